package statsd

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"sort"
	"sync"
)

// The DDSketch of the agent: a value belongs to the bin of its rounded logarithm, and a sketch counts the values of
// each bin, so that two sketches merge without loss. Keys, limits and collapsing are the agent's, bin for bin.

const (
	// sketchGamma is the ratio between neighbouring bins, and sketchLnGamma its logarithm, the agent's constant.
	sketchGamma     = 1.015625
	sketchLnGamma   = 0.015504186535965254
	sketchGammaRoot = 1.0077822185373186
	// sketchSlope is by how much the power of sketchGamma and that of the agent's constant differ, relatively, per bin.
	sketchSlope = -5.9e-18
	// sketchBias is the key of the value 1.
	sketchBias = 1338
	// sketchNormMin is the smallest value that is not in the bin of zero.
	sketchNormMin = 9.94185408912145e-10
	sketchKeyMax  = math.MaxInt16
	// sketchBinsMax is the number of keys of one sketch. The lowest beyond it are counted in the lowest that stays.
	sketchBinsMax = 4096
	// denseMax is the widest range of keys that are counted in place. It is 2 KiB and spans a factor of 8 million.
	denseMax = 1024
	// denseStep is the granularity of that range.
	denseStep = 32
	// sparseMax is the number of bins outside of that range from which it is moved.
	sparseMax = 16
)

// The tables cover 2^-29, just above sketchNormMin, to 2^64: nanosecond timestamps fit.
const (
	tableExponentMin = 1023 - 29
	tableExponents   = 64 + 29
	tableSlotBits    = 7
	tableFraction    = 32
)

// keyTables find the key of a value without a logarithm: exponent and upper bits of the mantissa narrow it down to
// half a bin, and one comparison with the boundary decides.
type keyTables struct {
	// exponents and slots are positions in bins, with tableFraction bits after the point.
	exponents [tableExponents]int64
	slots     [1 << tableSlotBits]int64
	// bounds has, for each key, the bits of the smallest value above it.
	bounds []uint64
}

var (
	keyTable     *keyTables
	keyTableOnce sync.Once
)

// prepareKeys makes the tables. It is called before the first sketch.
func prepareKeys() { keyTableOnce.Do(func() { keyTable = newKeyTables() }) }

func newKeyTables() *keyTables {
	t := &keyTables{}
	const one = 1 << tableFraction
	for i := range t.exponents {
		t.exponents[i] = int64(math.Floor(float64(i+tableExponentMin-1023) * (math.Ln2 / sketchLnGamma) * one))
	}
	for i := range t.slots {
		left := math.Log(1+float64(i)/(1<<tableSlotBits)) / sketchLnGamma
		// One half rounds; the hair keeps the sum of two positions from being too large.
		t.slots[i] = int64(math.Floor((left + sketchBias + 0.5 - 1e-8) * one))
	}
	steps, err := base64.StdEncoding.DecodeString(keyBoundSteps)
	if err != nil {
		panic(err)
	}
	t.bounds = make([]uint64, 1, len(steps)+1)
	t.bounds[0] = math.Float64bits(sketchNormMin)
	for i, step := range steps {
		t.bounds = append(t.bounds, uint64(int64(math.Float64bits(keyBound(i+1)))+int64(int8(step))))
	}
	return t
}

// keyBound estimates the smallest value above a key, to less than 128 units in the last place. The conversions forbid
// the compiler to fuse operations, so the bits are the same on every processor.
func keyBound(key int) float64 {
	middle := float64(gammaPower(key-sketchBias) * sketchGammaRoot)
	return middle + float64(middle*float64(float64(key-sketchBias)*sketchSlope))
}

// gammaPower returns sketchGamma to an integer power, by products in a fixed order.
func gammaPower(exponent int) float64 {
	n := exponent
	if n < 0 {
		n = -n
	}
	product, square := 1.0, sketchGamma
	for ; n != 0; n >>= 1 {
		if n&1 != 0 {
			product = float64(product * square)
		}
		square = float64(square * square)
	}
	if exponent < 0 {
		return 1 / product
	}
	return product
}

// sketchKey returns the key of a finite value.
func sketchKey(v float64) int32 {
	t := keyTable
	bits := math.Float64bits(v)
	size := bits &^ (1 << 63)
	exponent := size>>52 - tableExponentMin
	if exponent >= tableExponents {
		return keyByLogarithm(v)
	}
	k := uint32((t.exponents[exponent] + t.slots[size>>(52-tableSlotBits)&(1<<tableSlotBits-1)]) >> tableFraction)
	// One more if the value is not below the boundary: half of all values are, so a branch would often be mispredicted.
	k += uint32((t.bounds[k] - 1 - size) >> 63)
	if bits != size {
		return -int32(k)
	}
	return int32(k)
}

// keyByLogarithm is the definition of the key.
func keyByLogarithm(v float64) int32 {
	if v < 0 {
		return -keyByLogarithm(-v)
	}
	if !(v >= sketchNormMin) {
		return 0
	}
	rounded := math.RoundToEven(math.Log(v)/sketchLnGamma) + sketchBias
	return int32(min(max(rounded, 1), sketchKeyMax))
}

type sketchBin struct {
	key   int32
	count uint64
}

// sketch has the values of one series since the last window. The mutex of the series guards it.
type sketch struct {
	count         uint64
	sum, min, max float64
	// dense counts the keys from base on, and sparse all others and the counts that dense has no room for.
	dense  []uint16
	base   int32
	sparse []sketchBin
	// rest is the fraction of a value that the last sample with a rate left over.
	rest float64
}

func newSketch() *sketch { return &sketch{min: math.Inf(1), max: math.Inf(-1)} }

// add adds a finite value.
func (s *sketch) add(v float64) {
	s.count++
	s.sum += v
	if v < s.min {
		s.min = v
	}
	if v > s.max {
		s.max = v
	}
	k := sketchKey(v)
	if i := uint(k - s.base); i < uint(len(s.dense)) && s.dense[i] != math.MaxUint16 {
		s.dense[i]++
		return
	}
	s.addKey(k, 1)
}

// addEach adds finite values. The fields that all of them change stay in registers.
func (s *sketch) addEach(values []float64) {
	sum, low, high := s.sum, s.min, s.max
	for _, v := range values {
		sum += v
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
		k := sketchKey(v)
		if i := uint(k - s.base); i < uint(len(s.dense)) && s.dense[i] != math.MaxUint16 {
			s.dense[i]++
			continue
		}
		s.addKey(k, 1)
	}
	s.count += uint64(len(values))
	s.sum, s.min, s.max = sum, low, high
}

// addSampled adds a value that stands for 1/rate values, in whole numbers, as the agent does: the fraction is left over
// for the next one.
func (s *sketch) addSampled(v, rate float64) {
	due := 1/rate + s.rest
	whole := math.Floor(due)
	s.rest = due - whole
	s.addMany(v, uint64(whole))
}

// addMany adds a value n times.
func (s *sketch) addMany(v float64, n uint64) {
	if n == 0 {
		return
	}
	s.count += n
	s.sum += v * float64(n)
	s.min, s.max = min(s.min, v), max(s.max, v)
	s.addKey(sketchKey(v), n)
}

// addKey adds to a key outside of the quick path.
func (s *sketch) addKey(k int32, n uint64) {
	i := uint(k - s.base)
	if i >= uint(len(s.dense)) && s.widen(k) {
		i = uint(k - s.base)
	}
	if i < uint(len(s.dense)) {
		if n += uint64(s.dense[i]); n <= math.MaxUint16 {
			s.dense[i] = uint16(n)
			return
		}
		s.dense[i] = 0
	}
	at := sort.Search(len(s.sparse), func(i int) bool { return s.sparse[i].key >= k })
	if at < len(s.sparse) && s.sparse[at].key == k {
		s.sparse[at].count += n
		return
	}
	s.sparse = append(s.sparse, sketchBin{})
	copy(s.sparse[at+1:], s.sparse[at:])
	s.sparse[at] = sketchBin{k, n}
	if len(s.sparse) > 2*sketchBinsMax {
		s.sparse = collapse(s.sparse)
	}
}

// widen makes the dense range contain a key, unless it would be too wide. The bin of zero lies far from all others and
// opens none.
func (s *sketch) widen(k int32) bool {
	if len(s.dense) == 0 && k == 0 {
		return false
	}
	first, end := k&^(denseStep-1), (k+denseStep)&^(denseStep-1)
	if len(s.dense) > 0 {
		first, end = min(first, s.base), max(end, s.base+int32(len(s.dense)))
	}
	if end-first > denseMax {
		return false
	}
	dense := make([]uint16, end-first)
	if len(s.dense) > 0 {
		copy(dense[s.base-first:], s.dense)
	}
	s.dense, s.base = dense, first
	return true
}

// collapse counts the lowest bins in the lowest of the highest sketchBinsMax.
func collapse(bins []sketchBin) []sketchBin {
	excess := len(bins) - sketchBinsMax
	if excess <= 0 {
		return bins
	}
	for _, b := range bins[:excess] {
		bins[excess].count += b.count
	}
	return append(bins[:0], bins[excess:]...)
}

// bins appends the bins in the order of their keys.
func (s *sketch) bins(out []sketchBin) []sketchBin {
	start, at := len(out), 0
	for i, n := range s.dense {
		if n == 0 {
			continue
		}
		k := s.base + int32(i)
		for ; at < len(s.sparse) && s.sparse[at].key < k; at++ {
			out = append(out, s.sparse[at])
		}
		b := sketchBin{k, uint64(n)}
		if at < len(s.sparse) && s.sparse[at].key == k {
			b.count += s.sparse[at].count
			at++
		}
		out = append(out, b)
	}
	out = append(out, s.sparse[at:]...)
	return out[:start+len(collapse(out[start:]))]
}

// clear forgets the values, and keeps memory for the next ones. all are the bins that the sketch had.
func (s *sketch) clear(all []sketchBin) {
	s.count, s.sum, s.min, s.max = 0, 0, math.Inf(1), math.Inf(-1)
	clear(s.dense)
	outside := 0
	for _, b := range s.sparse {
		if uint(b.key-s.base) >= uint(len(s.dense)) {
			outside++
		}
	}
	if outside > sparseMax {
		s.place(all)
	}
	if cap(s.sparse) > 4*sparseMax {
		s.sparse = nil
	}
	s.sparse = s.sparse[:0]
}

// place moves the dense range to where most of the bins are.
func (s *sketch) place(all []sketchBin) {
	best, first, last, from := 0, int32(0), int32(0), 0
	for to := range all {
		for all[to].key-all[from].key >= denseMax-denseStep {
			from++
		}
		if n := to - from + 1; n > best {
			best, first, last = n, all[from].key, all[to].key
		}
	}
	s.base = first &^ (denseStep - 1)
	end := (last + denseStep) &^ (denseStep - 1)
	s.dense = make([]uint16, end-s.base)
}

// heapBytes is the memory that the sketch refers to.
func (s *sketch) heapBytes() int { return 2*cap(s.dense) + 16*cap(s.sparse) }

// packedSketch is a sketch at rest: bins are pairs of the difference of keys and the count, as variable-length
// integers.
type packedSketch struct {
	count         uint64
	sum, min, max float64
	bins          string
}

func packSketch(count uint64, sum, low, high float64, bins []sketchBin, room []byte) (packedSketch, []byte) {
	b, last := room[:0], int32(0)
	for _, one := range bins {
		b = binary.AppendVarint(b, int64(one.key-last))
		b = binary.AppendUvarint(b, one.count)
		last = one.key
	}
	return packedSketch{count: count, sum: sum, min: low, max: high, bins: string(b)}, b
}

// sketchRoom is memory that the taking of sketches uses again and again.
type sketchRoom struct {
	bins []sketchBin
	text []byte
}

// take returns the values as a sketch at rest, and forgets them.
func (s *sketch) take(room *sketchRoom) (p packedSketch) {
	room.bins = s.bins(room.bins[:0])
	p, room.text = packSketch(s.count, s.sum, s.min, s.max, room.bins, room.text)
	s.clear(room.bins)
	return p
}

// unpack appends the bins.
func (p *packedSketch) unpack(out []sketchBin) []sketchBin {
	b, last := []byte(p.bins), int32(0)
	for len(b) > 0 {
		step, n := binary.Varint(b)
		count, m := binary.Uvarint(b[n:])
		b = b[n+m:]
		last += int32(step)
		out = append(out, sketchBin{last, count})
	}
	return out
}

// merge returns the sketch of the values of both.
func (p *packedSketch) merge(q *packedSketch) packedSketch {
	a, b := p.unpack(nil), q.unpack(nil)
	all := make([]sketchBin, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].key < b[0].key:
			all, a = append(all, a[0]), a[1:]
		case a[0].key > b[0].key:
			all, b = append(all, b[0]), b[1:]
		default:
			all = append(all, sketchBin{a[0].key, a[0].count + b[0].count})
			a, b = a[1:], b[1:]
		}
	}
	all = collapse(append(append(all, a...), b...))
	merged, _ := packSketch(p.count+q.count, p.sum+q.sum, min(p.min, q.min), max(p.max, q.max), all, nil)
	return merged
}
