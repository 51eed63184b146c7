//go:build !amd64 && !arm64

package kvhash

// join reads tokens two at a time, the first in the lower half.
func join(w []uint64, t []uint32) {
	for i := range w {
		w[i] = uint64(t[2*i]) | uint64(t[2*i+1])<<32
	}
}

func words8(t []uint32) *[8]uint64 {
	var w [8]uint64
	join(w[:], t)
	return &w
}

func words16(t []uint32) *[16]uint64 {
	var w [16]uint64
	join(w[:], t)
	return &w
}

func words32(t []uint32) *[32]uint64 {
	var w [32]uint64
	join(w[:], t)
	return &w
}
