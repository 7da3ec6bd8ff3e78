package statsd

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// hashSecrets key the hashes by which contexts and handles are found. They differ between processes, and every word of
// a text meets one of them, or a hash made with them, in both factors of its multiplication: an attacker who writes
// names and tags can neither make a factor zero nor take back what another word did, and so cannot choose where a text
// goes in a table.
var hashSecrets = newHashSecrets()

func newHashSecrets() [3]uint64 { return [3]uint64{rand.Uint64(), rand.Uint64(), rand.Uint64()} }

func contentHash(k key, name string, tags []string) uint64 {
	h := hashText(mix(k.meta^hashSecrets[0], rateBits(k)^hashSecrets[1]), name)
	for _, t := range tags {
		h = hashText(h, t)
	}
	return h
}

// labelHash is the hash of the label values of a family.
func labelHash(values []string) uint64 {
	h := hashSecrets[0]
	for _, v := range values {
		h = hashText(h, v)
	}
	return h
}

func rateBits(k key) uint64 { return math.Float64bits(k.rate) }

// hashText adds text to a hash that is secret, 16 bytes per multiplication. The length has a multiplication of its own:
// two texts of different lengths whose hashes are always the same would make 2^n lists of n tags with one hash.
func hashText(h uint64, text string) uint64 {
	n := len(text)
	var a, b uint64
	switch {
	case n > 16:
		for at := 0; n-at > 16; at += 16 {
			h = mix(h^load64(text, at), hashSecrets[1]^load64(text, at+8))
		}
		// The last 16 bytes may have been in part of the ones before.
		a, b = load64(text, n-16), load64(text, n-8)
	case n >= 8:
		a, b = load64(text, 0), load64(text, n-8)
	case n >= 4:
		a, b = load32(text, 0), load32(text, n-4)
	case n > 0:
		a = uint64(text[0])<<16 | uint64(text[n/2])<<8 | uint64(text[n-1])
	}
	return mix(mix(h^a, hashSecrets[1]^b)^uint64(n), hashSecrets[2])
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
