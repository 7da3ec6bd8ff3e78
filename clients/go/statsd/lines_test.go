package statsd

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLinesAreWrittenAsTheFirstTime repeats calls that are not aggregated until their lines are known. Every repetition
// must have the bytes of the first one, which is written piece by piece.
func TestLinesAreWrittenAsTheFirstTime(t *testing.T) {
	for mode, options := range map[string][]Option{
		"plain tags": {WithoutClientSideAggregation()},
		"everything": {WithoutClientSideAggregation(), WithNamespace("ns"), WithTags([]string{"g:1", "h"}),
			WithContainerID("cid"), WithCardinality(CardinalityLow)},
		"channel": {WithoutClientSideAggregation(), WithChannelMode()},
		"plain":   {WithoutClientSideAggregation(), WithPlainStatsD()},
	} {
		c, r := record(t, options...)
		child := c.Child("kid", "k:v")
		tags := [][]string{nil, {}, {""}, {"", ""}, {"a"}, {"a,b", "c"}, {"a", "b,c"}, {"x|y\n", "\xff"},
			{strings.Repeat("t", 300), "z"}}
		names := []string{"n", "a:b|c\n", "_e{1", "é", strings.Repeat("long", 20)}
		first := map[string]string{}
		for round := 0; round < 8; round++ {
			for _, name := range names {
				for i, list := range tags {
					for what, call := range map[string]func() error{
						"count": func() error { return c.Count(name, -3, list, 1) },
						"rate":  func() error { return c.Count(name, 3, list, 0.999999999999) },
						"gauge": func() error { return c.Gauge(name, -1.5, list, 1) },
						"set":   func() error { return c.Set(name, "m|m", list, 1) },
						"hist":  func() error { return c.Histogram(name, 12.25, list, 1) },
						"dist":  func() error { return c.Distribution(name, 12.25, list, 1) },
						"time":  func() error { return c.TimeInMilliseconds(name, 12.25, list, 1) },
						"float": func() error { return c.CountFloat(name, 0.5, list, 1) },
						"delta": func() error { return c.GaugeDelta(name, 0.5, list, 1) },
						"card":  func() error { return c.Ex().Count(name, 1, list, 1, CardinalityHigh) },
						"child": func() error { return child.Count(name, 1, list, 1) },
						"at": func() error {
							return c.GaugeWithTimestamp(name, 1, list, 1, time.Unix(1700000000,
								0))
						},
					} {
						r.reset()
						if err := call(); err != nil && !(mode == "plain" && what == "at") {
							t.Fatal(err)
						}
						c.Flush()
						key, got := fmt.Sprint(what, name, i), strings.Join(r.lines(), "\n")
						if round == 0 {
							first[key] = got
						} else if got != first[key] {
							t.Fatalf("%s, %s with %q %q: %q, the first time %q", mode, what, name, list, got,
								first[key])
						}
					}
				}
			}
		}
		found := 0
		for i := range c.clientEx.core.lines.Load().slots {
			if c.clientEx.core.lines.Load().slots[i].line.Load() != nil {
				found++
			}
		}
		if found < 200 {
			t.Errorf("%s: only %d lines are known", mode, found)
		}
	}
}

// TestLinesOfReusedMemory changes the text behind the caller's strings between calls that find the same place in the
// cache.
func TestLinesOfReusedMemory(t *testing.T) {
	c, r := record(t, WithoutClientSideAggregation())
	name, tag := []byte("name"), []byte("tag:00000000")
	var want []string
	for i := 0; i < 2000; i++ {
		copy(tag, fmt.Sprintf("tag:%08d", i/10))
		name[3] = byte('a' + i%3)
		_ = c.Count(alias(name), 1, []string{alias(tag)}, 1)
		want = append(want, fmt.Sprintf("%s:1|c|#%s", name, tag))
	}
	c.Flush()
	// Different names may go through different packets.
	sortStrings(want)
	equalLines(t, r.sorted(), want)
}

// TestEveryByteOfATagCounts compares tags that differ in one byte, of every length and at every place, with a series.
func TestEveryByteOfATagCounts(t *testing.T) {
	s := &scope{core: &core{}}
	for n := 1; n <= 80; n++ {
		tag := []byte(strings.Repeat("abcdefgh", 10)[:n])
		for _, list := range [][]string{{string(tag)}, {"first", string(tag)}, {string(tag), "last"}} {
			x := s.newSeries(s.key(kindCount, CardinalityNotSet), "name", list)
			if !x.matches("name", list) {
				t.Fatalf("%q is not like itself", list)
			}
			for i := range tag {
				for _, bit := range []byte{1, 0x80} {
					tag[i] ^= bit
					other := append([]string(nil), list...)
					for j := range other {
						if len(other[j]) == n && other[j] != "first" && other[j] != "last" {
							other[j] = string(tag)
						}
					}
					if strings.Join(other, ",") != strings.Join(list, ",") && x.matches("name", other) {
						t.Fatalf("%q is taken for %q", other, list)
					}
					tag[i] ^= bit
				}
			}
		}
	}
}
