package slots

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory maps n bytes outside Go's heap: their address never changes, and children of this process don't have them.
func mapMemory(n int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	mem := unsafe.Slice((*byte)(p), n)
	// Both are advice: without it a fork may copy pages under a transfer, and first use takes more faults.
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	if n >= 2<<20 {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	return mem, nil
}

// unmap gives memory back that nobody was told of.
func unmap(mem []byte) { _ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))) }

// cover replaces memory by pages of zeros that can only be read and take no memory, at the same addresses. Unmapping
// would be worse: over some transports a late reader then ends this process, and the addresses could become another
// request's.
func cover(mem []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return err
}
