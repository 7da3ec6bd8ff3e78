package statsd

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"testing"
	"unsafe"
)

// sketchVector is a line of tests/vectors/sketches.jsonl.
type sketchVector struct {
	ID       string
	Keys     json.RawMessage
	FNV1a    string
	Values   []float64
	Weighted [][2]json.Number
	EachKey  []int `json:"each_key"`
	Cnt      uint64
	Sum      float64
	Min      float64
	Max      float64
	Bins     [][2]int64
	BinsLen  int `json:"bins_len"`
	Lowest   [2]int64
	Highest  [2]int64
}

// vectorFile opens a file of tests/vectors, or skips the test where the client stands alone.
func vectorFile(t testing.TB, name string) *os.File {
	t.Helper()
	f, err := os.Open(filepath.Join("../../../tests/vectors", name))
	if os.IsNotExist(err) {
		t.Skip("the client stands alone here, without tests/vectors")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// wireBins are bins as they are sent: counts beyond 32 bits are several, the rest first.
func wireBins(bins []sketchBin) (out [][2]int64) {
	for _, b := range bins {
		if rest := b.count % math.MaxUint32; rest != 0 {
			out = append(out, [2]int64{int64(b.key), int64(rest)})
		}
		for full := b.count / math.MaxUint32; full > 0; full-- {
			out = append(out, [2]int64{int64(b.key), math.MaxUint32})
		}
	}
	return out
}

// TestSketchesAreTheAgents reads what the agent's sketch makes of values.
func TestSketchesAreTheAgents(t *testing.T) {
	prepareKeys()
	lines := bufio.NewScanner(vectorFile(t, "sketches.jsonl"))
	lines.Buffer(nil, 1<<20)
	seen := 0
	for lines.Scan() {
		var v sketchVector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		seen++
		s := newSketch()
		switch v.ID {
		case "boundaries":
			h := fnv.New64a()
			for _, b := range keyTable.bounds[1:] {
				_ = binary.Write(h, binary.LittleEndian, b)
			}
			if got := fmt.Sprintf("%016x", h.Sum64()); got != v.FNV1a || string(v.Keys) != fmt.Sprint(len(
				keyTable.bounds)-1) {
				t.Errorf("the boundaries of %d keys have the digest %s, not %s", len(keyTable.bounds)-1, got, v.FNV1a)
			}
			continue
		case "keys":
			var pairs [][2]float64
			if err := json.Unmarshal(v.Keys, &pairs); err != nil || len(pairs) < 40 {
				t.Fatal(len(pairs), err)
			}
			for _, p := range pairs {
				if k := sketchKey(p[0]); k != int32(p[1]) {
					t.Errorf("key of %v is %d, not %v", p[0], k, p[1])
				}
			}
			continue
		case "collapsed":
			for k := v.EachKey[0]; k <= v.EachKey[1]; k++ {
				size := max(k, -k)
				x := 0.0
				if size > 0 {
					x = math.Copysign(gammaPower(size-sketchBias), float64(k))
				}
				s.add(x)
			}
			bins := wireBins(s.bins(nil))
			if len(bins) != v.BinsLen || bins[0] != v.Lowest || bins[len(bins)-1] != v.Highest {
				t.Errorf("%v: %d bins from %v to %v, not %d from %v to %v", v.EachKey, len(bins), bins[0],
					bins[len(bins)-1], v.BinsLen, v.Lowest, v.Highest)
			}
			continue
		}
		for _, x := range v.Values {
			s.add(x)
		}
		for _, w := range v.Weighted {
			x, _ := w[0].Float64()
			n, _ := w[1].Int64()
			s.addMany(x, uint64(n))
		}
		if s.count != v.Cnt || s.sum != v.Sum || s.min != v.Min || s.max != v.Max {
			t.Errorf("%s: count %d, sum %v, min %v, max %v, not %d, %v, %v, %v", v.ID, s.count, s.sum, s.min, s.max,
				v.Cnt, v.Sum, v.Min, v.Max)
		}
		if got := wireBins(s.bins(nil)); !reflect.DeepEqual(got, v.Bins) {
			t.Errorf("%s: bins %v, not %v", v.ID, got, v.Bins)
		}
	}
	if err := lines.Err(); err != nil || seen < 11 {
		t.Fatalf("%d vectors, %v", seen, err)
	}
}

// naiveBins counts the keys of values in the way the agent defines them.
func naiveBins(values []float64) (bins []sketchBin) {
	counts := map[int32]uint64{}
	for _, v := range values {
		counts[sketchKey(v)]++
	}
	for k, n := range counts {
		bins = append(bins, sketchBin{k, n})
	}
	sort.Slice(bins, func(i, j int) bool { return bins[i].key < bins[j].key })
	return collapse(bins)
}

// randomValues are values of one of several shapes.
func randomValues(r *rand.Rand) []float64 {
	n, shape := r.Intn(3000), r.Intn(5)
	values := make([]float64, n)
	for i := range values {
		v := math.Pow(10, r.Float64()*3)
		switch shape {
		case 1:
			v = math.Pow(10, r.Float64()*600-300)
		case 2:
			v *= float64(r.Intn(3) - 1)
		case 3:
			v = float64(r.Intn(20))
		case 4:
			v = -v
		}
		values[i] = v
	}
	return values
}

// TestSketchCountsEveryKey compares sketches, alone, at rest and merged, with a map of keys, also after they were used
// for other values.
func TestSketchCountsEveryKey(t *testing.T) {
	prepareKeys()
	r := rand.New(rand.NewSource(SeedOf(t)))
	var room sketchRoom
	s := newSketch()
	var all []float64
	var merged packedSketch
	for i := 0; i < 60; i++ {
		values := randomValues(r)
		sum := 0.0
		for j, v := range values {
			sum += v
			if i%2 == 0 {
				s.add(v)
			} else if j%7 == 0 {
				s.addEach(values[j:min(j+7, len(values))])
			}
		}
		want := naiveBins(values)
		if got := s.bins(nil); !slices.Equal(got, want) {
			t.Fatalf("round %d: %d values: bins %v, not %v", i, len(values), got, want)
		}
		p := s.take(&room)
		if got := p.unpack(nil); !slices.Equal(got, want) || p.count != uint64(len(values)) || p.sum != sum ||
			len(values) > 0 && (p.min != slices.Min(values) || p.max != slices.Max(values)) {
			t.Fatalf("round %d: at rest %+v, not %v", i, p, want)
		}
		if len(values) == 0 {
			continue
		}
		if all = append(all, values...); i == 0 || merged.count == 0 {
			merged = p
		} else {
			merged = merged.merge(&p)
		}
		if got, want := merged.unpack(nil), naiveBins(all); !slices.Equal(got, want) ||
			merged.min != slices.Min(all) || merged.max != slices.Max(all) || merged.count != uint64(len(all)) {
			t.Fatalf("round %d: merged to %v, not %v", i, got, want)
		}
	}
}

// TestSampledValuesStandForWholeNumbers adds values with sample rates; fractions go to the next value.
func TestSampledValuesStandForWholeNumbers(t *testing.T) {
	prepareKeys()
	s := newSketch()
	for i := 0; i < 10; i++ {
		s.addSampled(1, 0.4)
	}
	s.addSampled(2, 1e-6)
	want := []sketchBin{{1338, 25}, {1383, 1000000}}
	if got := s.bins(nil); !slices.Equal(got, want) || s.count != 1000025 || s.sum != 2000025 {
		t.Errorf("bins %v, count %d, sum %v", got, s.count, s.sum)
	}
}

// TestSketchMemory counts the bytes of a distribution whose values span three decades, with all that belongs to it.
func TestSketchMemory(t *testing.T) {
	prepareKeys()
	r := rand.New(rand.NewSource(SeedOf(t)))
	s := newSketch()
	var room sketchRoom
	for window := 0; window < 5; window++ {
		for i := 0; i < 100000; i++ {
			s.add(math.Pow(10, r.Float64()*3))
		}
		if window < 4 {
			s.take(&room)
		}
	}
	own := int(unsafe.Sizeof(series{})+unsafe.Sizeof(store{})+unsafe.Sizeof(sketch{})) + s.heapBytes()
	lanes := int(unsafe.Sizeof(lane{})) + 8*laneRingSketch
	t.Logf("%d bytes, and %d for each processor of a distribution with many values", own, lanes)
	if total := own + 2*lanes; total > 2048 {
		t.Errorf("a distribution takes %d bytes with two processors", total)
	}
	if unsafe.Sizeof(point{}) > pointBytes || unsafe.Sizeof(sketchPoint{}) > sketchPointBytes {
		t.Errorf("points take %d and %d bytes", unsafe.Sizeof(point{}), unsafe.Sizeof(sketchPoint{}))
	}
}

func BenchmarkSketch(b *testing.B) {
	prepareKeys()
	r := rand.New(rand.NewSource(1))
	values := make([]float64, 4096)
	for i := range values {
		values[i] = math.Pow(10, r.Float64()*3)
	}
	s := newSketch()
	for i := 0; i < b.N; i += 16 {
		s.addEach(values[i&4095 : i&4095+16])
	}
}
