//go:build purego

package statsd

// This file does without package unsafe what memory_unsafe.go does with it.

// usesUnsafe says which of the two files was built.
const usesUnsafe = false

// placeOf returns a number for the strings of a call. Their addresses are unknown here, so it is computed from their
// content.
func placeOf(meta uint64, name string, tags []string) uint64 {
	return contentHash(key{meta: meta, rate: 1}, name, tags)
}

// placeOfValues is placeOf for the label values of a family.
func placeOfValues(values []string) uint64 { return labelHash(values) }

// textOf returns a copy of bytes as text.
func textOf(b []byte) string { return string(b) }

// load64 returns the 8 bytes of a text that begin at a position. The compiler makes one load of it.
func load64(s string, at int) uint64 {
	t := s[at : at+8]
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
}

// load32 does the same for 4 bytes.
func load32(s string, at int) uint64 {
	t := s[at : at+4]
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24
}
