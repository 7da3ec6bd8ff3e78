//go:build !purego

package statsd

import (
	"math/bits"
	"unsafe"
)

// This file holds all that needs package unsafe, except sendmmsg on Linux. The build tag purego takes memory_safe.go
// instead.

// usesUnsafe says which of the two files was built.
const usesUnsafe = true

// placeOf returns a number for where the strings of a call are. The same strings in other places have another number.
func placeOf(meta uint64, name string, tags []string) uint64 {
	h := meta ^ addressOf(name)
	for i := range tags {
		h = bits.RotateLeft64(h, 9) ^ addressOf(tags[i])
	}
	return h * golden
}

// placeOfValues is placeOf for the label values of a family.
func placeOfValues(values []string) (h uint64) {
	for i := range values {
		h = bits.RotateLeft64(h, 9) ^ addressOf(values[i])
	}
	return h * golden
}

func addressOf(s string) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.StringData(s)))) }

// textOf returns bytes as text without copying them. They must not change as long as the text is in use.
func textOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// load64 returns the 8 bytes of a text that begin at a position, which the caller knows to be there.
func load64(s string, at int) uint64 {
	return *(*uint64)(unsafe.Add(unsafe.Pointer(unsafe.StringData(s)), at))
}

// load32 does the same for 4 bytes.
func load32(s string, at int) uint64 {
	return uint64(*(*uint32)(unsafe.Add(unsafe.Pointer(unsafe.StringData(s)), at)))
}
