package statsd

import (
	"math"
	"math/rand"
	"strconv"
	"strings"
	"testing"
)

// TestNumbersAreThoseOfTheStandardLibrary compares every short cut of the number formatting with strconv.
func TestNumbersAreThoseOfTheStandardLibrary(t *testing.T) {
	seed := SeedOf(t)
	r := rand.New(rand.NewSource(seed))
	check := func(v float64) {
		for _, b := range [][]byte{nil, make([]byte, 3, 4), make([]byte, 0, 64)} {
			n := len(b)
			if got, want := string(appendFloat(b, v)[n:]), strconv.FormatFloat(v, 'f', -1, 64); got != want {
				t.Fatalf("%x is written %s, not %s", v, got, want)
			}
			if got, want := string(appendFixed6(b, v)[n:]), strconv.FormatFloat(v, 'f', 6, 64); got != want {
				t.Fatalf("%x is written %s, not %s", v, got, want)
			}
			if i := int64(v); math.Abs(v) < 1<<62 {
				if got, want := string(appendInt(b, i)[n:]), strconv.FormatInt(i, 10); got != want {
					t.Fatalf("%d is written %s", i, got)
				}
			}
		}
	}
	both := func(v float64) { check(v); check(-v) }
	for exp := -9; exp <= 18; exp++ {
		p := math.Pow(10, float64(exp))
		for _, v := range []float64{p, p - 1, p + 1, 9.5 * p, p * (1 + 1e-15), p - 1e-6, p + 0.5e-6, p / 2, 0} {
			both(v)
			both(math.Nextafter(v, 0))
			both(math.Nextafter(v, math.MaxFloat64))
		}
	}
	for _, v := range []float64{math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1, 0.0000005, 0.0000015, 1e9, 1e15,
		999999.9999995} {
		both(v)
	}
	rounds := 100_000
	if testing.Short() {
		// As beside the race detector, for which one goroutine is nothing to look at.
		rounds = 5_000
	}
	for i := 0; i < rounds; i++ {
		both(float64(r.Intn(1<<r.Intn(31) + 1)))
		both(float64(r.Int63n(1<<r.Intn(62)+1)) / math.Pow(10, float64(r.Intn(9))))
		both(r.Float64() * math.Pow(10, float64(r.Intn(12)-4)))
		if v := math.Float64frombits(r.Uint64()); finite(v) {
			check(v)
		}
	}
	check(math.Copysign(0, -1))
	for _, i := range []int64{0, 9, 10, 99, 100, 999, 1000, 9999, 10000, 99999, 100000, 999999, 1000000, -1,
		math.MaxInt64, math.MinInt64} {
		if got := string(appendInt(nil, i)); got != strconv.FormatInt(i, 10) {
			t.Errorf("%d is written %s", i, got)
		}
	}
}

// TestTextIsCleanedInPlace compares with the same rules applied step by step.
func TestTextIsCleanedInPlace(t *testing.T) {
	seed := SeedOf(t)
	r := rand.New(rand.NewSource(seed))
	pieces := []string{"a", "bc", "|", "\n", "\xff", "\xc3", "\xc3\xa9", "\uFFFD", "\xe2\x82", "\xf0\x9f\x98\x80", ","}
	for i := 0; i < 100000; i++ {
		text := ""
		for n := r.Intn(12); n > 0; n-- {
			text += pieces[r.Intn(len(pieces))]
		}
		want := strings.ReplaceAll(strings.ReplaceAll(strings.ToValidUTF8(text, "_"), "\n", ""), "|", "_")
		if got := string(cleanText([]byte("be|fore"+text), 7)[7:]); got != want {
			t.Fatalf("%q becomes %q, not %q", text, got, want)
		}
	}
}

// TestRepeatedValuesHaveTheirText: values in a packed line come in runs, of any text and length, and the line ends
// anywhere.
func TestRepeatedValuesHaveTheirText(t *testing.T) {
	seed := SeedOf(t)
	random := rand.New(rand.NewSource(seed))
	choices := []float64{0, 1, -1, 12.3456, 1e21, 1e-300, 0.1 + 0.2, -123456789.123456789, math.MaxFloat64, 5e-324,
		math.Copysign(0, -1), 1234567}
	for round := 0; round < 2000; round++ {
		var values []float64
		for len(values) < 40 {
			v := choices[random.Intn(len(choices))]
			for n := random.Intn(4); n >= 0; n-- {
				values = append(values, v)
			}
		}
		for _, k := range []kind{kindDistribution, kindTiming} {
			last := random.Intn(400)
			b, rest := appendValues(make([]byte, 0, random.Intn(300)), k, values, last)
			var want []byte
			for _, v := range values[:len(values)-len(rest)] {
				want = appendValue(append(want, ':'), k, v)
			}
			if string(b) != string(want) || len(b) > last {
				t.Fatalf("%q instead of %q, within %d", b, want, last)
			}
			if len(rest) > 0 && len(appendValue(append(want, ':'), k, rest[0])) <= last {
				t.Fatalf("%v had room after %q within %d", rest[0], b, last)
			}
		}
	}
}
