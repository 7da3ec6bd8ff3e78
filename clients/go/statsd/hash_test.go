package statsd

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// craftedTexts are texts whose words cancel or zero constants that somebody who reads this package knows: golden,
// lengths, and the words of keys. Each list holds different texts.
func craftedTexts(n int) map[string][]string {
	word := func(w uint64) string { return string(binary.LittleEndian.AppendUint64(nil, w)) }
	meta := (&scope{id: 1}).key(kindCount, CardinalityNotSet).meta
	lists := map[string][]string{}
	for _, size := range []int{16, 24, 32, 40} {
		for name, w := range map[string]uint64{
			"golden^len": golden ^ uint64(size), "golden": golden, "zero": 0, "ones": ^uint64(0), "len": uint64(size),
			"meta": meta, "golden*meta": golden * meta,
		} {
			ends, begins := fmt.Sprintf("%d bytes that end in %s", size, name),
				fmt.Sprintf("%d bytes that begin with %s", size, name)
			for i := 0; i < n; i++ {
				free := fmt.Sprintf("%0*d", size-8, i)
				lists[ends] = append(lists[ends], free+word(w))
				lists[begins] = append(lists[begins], word(w)+free)
			}
		}
	}
	return lists
}

func distinct(t *testing.T, what string, hashes map[uint64]int, n int) {
	t.Helper()
	if len(hashes) != n {
		t.Errorf("%s: %d texts have %d hashes with the secrets %#x", what, n, len(hashes), hashSecrets)
	}
}

// TestNoTextChoosesItsHash hashes texts made from public knowledge of the hash. Two random numbers of 64 bits are
// never the same in sets this small, so one pair of equal hashes is a flaw.
func TestNoTextChoosesItsHash(t *testing.T) {
	s := &scope{id: 1}
	k := s.key(kindCount, CardinalityNotSet)
	for what, texts := range craftedTexts(500) {
		names, tags, seconds := map[uint64]int{}, map[uint64]int{}, map[uint64]int{}
		for i, text := range texts {
			names[contentHash(k, text, nil)] = i
			tags[contentHash(k, "n", []string{text})] = i
			seconds[contentHash(k, "n", []string{"a:1", text})] = i
		}
		distinct(t, what+", as names", names, len(texts))
		distinct(t, what+", as tags", tags, len(texts))
		distinct(t, what+", as second tags", seconds, len(texts))
	}
}

// TestShortTextsOfDifferentLengths: texts that always collide would multiply, as each tag of a list may be one or the
// other.
func TestShortTextsOfDifferentLengths(t *testing.T) {
	texts := map[string]bool{}
	for size := 0; size <= 40; size++ {
		zeros := strings.Repeat("\x00", size)
		texts[zeros] = true
		for at := 0; at < size; at++ {
			for v := 1; v < 64; v++ {
				texts[zeros[:at]+string([]byte{byte(v)})+zeros[at+1:]] = true
			}
			for w := 1; w < 64; w++ {
				texts[strings.Repeat(string([]byte{byte(w)}), size)] = true
			}
		}
	}
	s := &scope{id: 1}
	k := s.key(kindCount, CardinalityNotSet)
	names, tags, values := map[uint64]int{}, map[uint64]int{}, map[uint64]int{}
	for text := range texts {
		names[contentHash(k, text, nil)]++
		tags[contentHash(k, "n", []string{text})]++
		values[labelHash([]string{text})]++
	}
	distinct(t, "names", names, len(texts))
	distinct(t, "tags", tags, len(texts))
	distinct(t, "label values", values, len(texts))
}

// TestKeysDoNotCancelTexts: a name must not be able to take back what kind, scope, cardinality or rate put into the
// hash.
func TestKeysDoNotCancelTexts(t *testing.T) {
	hashes, n := map[uint64]int{}, 0
	keys := []key{}
	for id := uint64(1); id <= 4; id++ {
		for _, rate := range []float64{1, 0.5, 0.25, 0.1} {
			k := (&scope{id: id}).key(kindDistribution, CardinalityLow)
			k.rate = rate
			keys = append(keys, k)
		}
	}
	seen := map[string]bool{}
	for _, k := range keys {
		for _, other := range keys {
			for _, w := range []uint64{k.meta ^ other.meta, (k.meta ^ other.meta) * golden,
				k.meta*golden ^ other.meta*golden,
				rateBits(k) ^ rateBits(other), (rateBits(k) * golden) ^ (rateBits(other) * golden)} {
				text := string(binary.LittleEndian.AppendUint64(nil, w)) + "12345678"
				if id := fmt.Sprint(k, text); !seen[id] {
					seen[id] = true
					n += 2
					hashes[contentHash(k, text, nil)]++
					hashes[contentHash(k, "n", []string{text})]++
				}
			}
		}
	}
	distinct(t, "names and tags", hashes, n)
}

// TestHashesDifferBetweenProcesses draws new secrets, as a new process does: no text may have the same hash again.
func TestHashesDifferBetweenProcesses(t *testing.T) {
	before := hashSecrets
	defer func() { hashSecrets = before }()
	s := &scope{id: 1}
	k := s.key(kindCount, CardinalityNotSet)
	texts := []string{""}
	for size := 1; size <= 40; size++ {
		texts = append(texts, strings.Repeat("x", size))
	}
	for _, list := range craftedTexts(20) {
		texts = append(texts, list...)
	}
	all := func(into map[uint64]int) {
		for _, text := range texts {
			into[contentHash(k, text, nil)]++
			into[contentHash(k, "n", []string{text})]++
			into[labelHash([]string{text})]++
		}
	}
	hashes := map[uint64]int{}
	all(hashes)
	once := len(hashes)
	hashSecrets = newHashSecrets()
	all(hashes)
	distinct(t, "two processes", hashes, 2*once)
}

// TestCraftedTagsAreFoundAtOnce fills the tables with tags that once had one hash, and looks at how far a search goes.
func TestCraftedTagsAreFoundAtOnce(t *testing.T) {
	c, _ := record(t)
	v := c.NewCounterVec("v", "l")
	const n = 4000
	for i := 0; i < n; i++ {
		text := fmt.Sprintf("%08d", i) + string(binary.LittleEndian.AppendUint64(nil, golden^16))
		_ = c.Incr("n", []string{text}, 1)
		v.With(text).Inc()
	}
	slots := c.clientEx.core.table.Load().slots
	longest := longestRun(len(slots), func(i int) bool { return slots[i].Load() != nil })
	families := v.vec.table.Load().slots
	longest = max(longest, longestRun(len(families), func(i int) bool { return families[i].Load() != nil }))
	// In a table that is half full at most, runs of random hashes are a few dozen long.
	if longest > 300 {
		t.Errorf("%d contexts in a row", longest)
	}
}

func longestRun(n int, taken func(int) bool) (longest int) {
	run := 0
	for i := 0; i < 2*n; i++ {
		if run++; !taken(i % n) {
			run = 0
		}
		longest = max(longest, min(run, n))
	}
	return longest
}
