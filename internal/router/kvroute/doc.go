// Package kvroute is the router's mode kv: it sends a request where most of its prompt is cached already, as long as
// that worker isn't too busy.
//
//	snapshot ─▶ Router ─▶ pool (one endpoint): ranks, their loads, an index of their caches
//	events ─▶ feed ─▶ index          Chooser: hashes ─▶ overlaps ─▶ cost of each rank ─▶ choice, load noted
//
// An index is fed by the workers' KV events. A feed notices what was lost, by the numbers of the events, and asks the
// worker for it; until the answer is there later events wait, so that they are applied in order. A worker that can't
// answer loses its place in the index, so that the index never promises what it can't know. Where workers publish no
// events, a pool guesses: it notes the prompts it has sent, for a time.
//
// What each rank has to do is counted here, from the choice to the end of the answer: prompt tokens to be computed until
// the first output, and the blocks of the prompts at work, common beginnings counted once. With replica sync, routers
// tell each other.
//
// # Concurrency
//
// Choosing holds the pool's mutex while costs are compared and the choice is noted: two requests at once must not both
// find the same rank idle. Hashing and the lookup in the index are done before. Feeds have a mutex each. Pools come and
// go with Follow; the Router owns one goroutine for each recovery under way, and one for each replica outlet.
package kvroute
