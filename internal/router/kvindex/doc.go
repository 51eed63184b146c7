// Package kvindex knows which worker has how much of a prompt in its KV cache. It is a radix tree over local block
// hashes (package kvhash), kept by the events that workers publish or, for workers that publish none, by what the router
// has sent where.
//
//	x, err := kvindex.New(kvindex.Options{MemoryLimit: 1 << 30})
//	err = x.Stored(kvindex.Device, worker, parent, blocks)
//	x.Removed(kvindex.Device, worker, names)
//
//	view := x.View()
//	overlap := make([]uint32, view.Slots())
//	x.Match(local, overlap) // overlap[slot] blocks are at view.Worker(slot)
//
// # What it means
//
// The index equals, after every history of events, the plain model: a tree with a node for each block behind its
// predecessors, and on each node the set of workers that hold it. When a worker drops a block, what it holds behind that
// block goes too: an overlap counts from the start of the prompt, so the rest couldn't be found. For engines that evict
// from the tail that makes no difference. For others it does when the dropped block comes back: the plain model would
// find again what is behind it, and this index waits until that is stored again.
//
// Engines name blocks by hashes of their own. A name means what its worker said last; if that is another block than
// before, the old one is dropped. Names are kept for each worker by itself, so it doesn't matter whether workers name
// the same content alike: engines with a random hash seed don't.
//
// # How it is built
//
// A segment of the tree holds up to 256 blocks of one path, a bit for each worker that has all of it, and a list of
// those that have a part. Coverage is closed towards the root, so that a lookup never intersects sets: at each step it
// writes down only the workers that stop there. Segments and blocks lie in arenas without pointers, which the garbage
// collector needn't look into. Extents of freed blocks merge with their neighbours.
//
// A name leads to an address: the segment and position of the block when it was stored. A split moves the end of a
// segment elsewhere and notes where to; addresses follow that note, and aren't updated. So an event touches the names
// of its own worker only, and the tree for no longer than it takes to compare and copy its hashes.
//
// # Concurrency
//
// Everything may be called concurrently. The tree is cut by first block into 64 shards. A lookup takes the read lock of
// one, an event the write lock, for about a microsecond or less: the names, which are most of the work, are under the
// worker's own mutex, which lookups don't know. A lookup whose first block nobody holds mostly takes no lock: bits tell
// of which groups of first blocks there are any, 512 groups in each shard. The shards' locks spin and don't park, because
// waking a goroutine takes longer than the work. Long jobs (forgetting a worker, evicting, expiring) are cut into pieces
// between which lookups go on; memory that a shard will need soon is allocated without its lock. Events of different
// workers run in parallel; those of one worker must be applied in their order, by the caller. There are no goroutines.
//
// Workers may come and go without bound. A worker has a slot, which is its place in Match's array; a slot that has
// become free is given away again. A View that is older than a Match may miss a worker that has joined since.
//
// # Bounds
//
// Beyond the memory limit, leaves that were neither looked up nor stored for longest are evicted, an eighth of the limit
// at a time. A worker's later blocks behind an evicted one are refused then, as for any unknown parent. Time is counted
// in stores, so a quiet index doesn't age.
package kvindex
