//go:build amd64 || arm64

package kvhash

import "unsafe"

// These machines are little-endian and read words from any address, so tokens can be read two at a time where they are.

func words8(t []uint32) *[8]uint64 {
	return (*[8]uint64)(unsafe.Pointer((*[16]uint32)(t)))
}

func words16(t []uint32) *[16]uint64 {
	return (*[16]uint64)(unsafe.Pointer((*[32]uint32)(t)))
}

func words32(t []uint32) *[32]uint64 {
	return (*[32]uint64)(unsafe.Pointer((*[64]uint32)(t)))
}
