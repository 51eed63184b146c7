package native

// #include "tokens.h"
import "C"

// TrimHeap gives free pages of the C heap back to the system. Loading and freeing a vocabulary leaves hundreds of
// megabytes behind that the C library would keep.
func TrimHeap() { C.portico_heap_trim() }

// HeapInUse returns how many bytes of the C heap are in use; 0 where the C library doesn't tell. Go's own statistics
// don't include them.
func HeapInUse() uint64 { return uint64(C.portico_heap_in_use()) }
