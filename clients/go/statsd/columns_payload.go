package statsd

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// The payload of columns: one protobuf message whose fields are columns over all series, as Datadog's intake takes it
// since version 3. Text is in dictionaries; references to them, keys of bins and times are differences to the one
// before.

// The fields of the message MetricData that this client writes.
const (
	fieldNames         = 1
	fieldTags          = 2
	fieldTagSets       = 3
	fieldTypes         = 10
	fieldNameRefs      = 11
	fieldTagSetRefs    = 12
	fieldResourceRefs  = 13
	fieldIntervals     = 14
	fieldPointCounts   = 15
	fieldTimes         = 16
	fieldIntegers      = 17
	fieldFloats        = 18
	fieldDoubles       = 19
	fieldBinCounts     = 20
	fieldBinKeys       = 21
	fieldBinSizes      = 22
	fieldSourceRefs    = 23
	fieldOriginRefs    = 24
	fieldLimit         = 25
	fieldMetricData    = 3
	wireBytes          = 2
	metricCount        = 1
	metricGauge        = 3
	metricSketch       = 4
	valueInteger       = 0x10
	valueFloat         = 0x20
	valueDouble        = 0x30
	integerMax         = 1 << 48
	payloadSeriesMax   = 10000
	payloadBytesMax    = 1 << 20
	cardinalityTagName = "dd.internal.card:"
)

// payloadWriter collects series into columns.
type payloadWriter struct {
	columns [fieldLimit][]byte
	names   map[string]int64
	tags    map[string]int64
	tagSets map[tagSetKey]int64
	// before are the last values of columns that have differences.
	before  [fieldLimit]int64
	indexes []int64
	series  int
	bytes   int
}

// tagSetKey is a list of tags as it is written in a line, and the cardinality, which is a tag in columns.
type tagSetKey struct {
	tags string
	card Cardinality
}

func newPayloadWriter() *payloadWriter {
	return &payloadWriter{names: map[string]int64{}, tags: map[string]int64{}, tagSets: map[tagSetKey]int64{}}
}

// full says whether the payload has as much as one should have.
func (w *payloadWriter) full() bool {
	return w.series >= payloadSeriesMax || w.bytes >= payloadBytesMax
}

func (w *payloadWriter) signed(field int, v int64) {
	n := len(w.columns[field])
	w.columns[field] = binary.AppendVarint(w.columns[field], v)
	w.bytes += len(w.columns[field]) - n
}

func (w *payloadWriter) unsigned(field int, v uint64) {
	n := len(w.columns[field])
	w.columns[field] = binary.AppendUvarint(w.columns[field], v)
	w.bytes += len(w.columns[field]) - n
}

func (w *payloadWriter) delta(field int, v int64) {
	w.signed(field, v-w.before[field])
	w.before[field] = v
}

func (w *payloadWriter) text(field int, s string) {
	w.unsigned(field, uint64(len(s)))
	w.columns[field] = append(w.columns[field], s...)
	w.bytes += len(s)
}

// entry returns the index of a text in a dictionary, which it enters if it is new.
func (w *payloadWriter) entry(field int, dictionary map[string]int64, s string) int64 {
	i, known := dictionary[s]
	if !known {
		i = int64(len(dictionary) + 1)
		dictionary[s] = i
		w.text(field, s)
	}
	return i
}

// tagSet returns the index of a set of tags. The order of tags and repetitions mean nothing.
func (w *payloadWriter) tagSet(key tagSetKey) int64 {
	if key == (tagSetKey{}) {
		return 0
	}
	if i, known := w.tagSets[key]; known {
		return i
	}
	w.indexes = w.indexes[:0]
	for rest := key.tags; rest != ""; {
		var tag string
		if tag, rest, _ = strings.Cut(rest, ","); tag != "" {
			w.indexes = append(w.indexes, w.entry(fieldTags, w.tags, tag))
		}
	}
	if key.card != CardinalityNotSet {
		w.indexes = append(w.indexes, w.entry(fieldTags, w.tags, cardinalityTagName+key.card.String()))
	}
	slices.Sort(w.indexes)
	w.indexes = slices.Compact(w.indexes)
	i := int64(0)
	if len(w.indexes) > 0 {
		i = int64(len(w.tagSets) + 1)
		w.signed(fieldTagSets, int64(len(w.indexes)))
		before := int64(0)
		for _, index := range w.indexes {
			w.signed(fieldTagSets, index-before)
			before = index
		}
		w.tagSets[key] = i
	}
	return i
}

// begin adds a series with one point.
func (w *payloadWriter) begin(id *identity, metricType, valueType uint64, at, width int64) {
	w.series++
	w.unsigned(fieldTypes, metricType|valueType)
	w.delta(fieldNameRefs, w.entry(fieldNames, w.names, id.name()))
	w.delta(fieldTagSetRefs, w.tagSet(tagSetKey{id.tags(), id.card}))
	w.signed(fieldResourceRefs, 0)
	w.signed(fieldSourceRefs, 0)
	w.signed(fieldOriginRefs, 0)
	w.unsigned(fieldIntervals, uint64(width))
	w.unsigned(fieldPointCounts, 1)
	w.delta(fieldTimes, at)
}

func (w *payloadWriter) value(valueType uint64, v float64) {
	switch valueType {
	case valueInteger:
		w.signed(fieldIntegers, int64(v))
	case valueFloat:
		w.columns[fieldFloats] = binary.LittleEndian.AppendUint32(w.columns[fieldFloats], math.Float32bits(float32(v)))
		w.bytes += 4
	case valueDouble:
		w.columns[fieldDoubles] = binary.LittleEndian.AppendUint64(w.columns[fieldDoubles], math.Float64bits(v))
		w.bytes += 8
	}
}

// valueType returns the smallest type that holds all values.
func valueType(values ...float64) uint64 {
	zero, integer, float := true, true, true
	for _, v := range values {
		zero = zero && v == 0 && !math.Signbit(v)
		integer = integer && v == math.Trunc(v) && math.Abs(v) <= integerMax && !(v == 0 && math.Signbit(v))
		float = float && float64(float32(v)) == v
	}
	switch {
	case zero:
		return 0
	case integer:
		return valueInteger
	case float:
		return valueFloat
	}
	return valueDouble
}

// point adds a count or a gauge.
func (w *payloadWriter) point(p *point, at, width int64) {
	metricType, v := uint64(metricCount), p.value
	if p.kind == kindGauge {
		metricType, at, width = metricGauge, p.at, windowSeconds
	}
	if p.kind == kindCount {
		v = float64(p.sum)
	}
	typ := valueType(v)
	w.begin(&p.identity, metricType, typ, at, width)
	w.value(typ, v)
}

// sketch adds a distribution. A count of a bin above 2^32-1 is several bins of the same key, the rest first.
func (w *payloadWriter) sketch(p *sketchPoint, at, width int64) {
	s := &p.packedSketch
	typ := valueType(s.sum, s.min, s.max)
	w.begin(&p.identity, metricSketch, typ, at, width)
	w.value(typ, s.sum)
	w.value(typ, s.min)
	w.value(typ, s.max)
	w.signed(fieldIntegers, int64(s.count))
	b, before, bins := p.bins, int64(0), uint64(0)
	key := int64(0)
	add := func(n uint64) {
		w.signed(fieldBinKeys, key-before)
		w.unsigned(fieldBinSizes, n)
		before = key
		bins++
	}
	for at := 0; at < len(b); {
		step, n := varintAt(b, at)
		count, m := uvarintAt(b, at+n)
		at += n + m
		key += step
		if rest := count % math.MaxUint32; rest != 0 {
			add(rest)
		}
		for full := count / math.MaxUint32; full > 0; full-- {
			add(math.MaxUint32)
		}
	}
	w.unsigned(fieldBinCounts, bins)
}

func uvarintAt(s string, at int) (v uint64, n int) {
	for shift := 0; ; shift += 7 {
		c := s[at+n]
		n++
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, n
		}
	}
}

func varintAt(s string, at int) (int64, int) {
	u, n := uvarintAt(s, at)
	return int64(u>>1) ^ -int64(u&1), n
}

// encode returns the message.
func (w *payloadWriter) encode() []byte {
	size := 0
	for field, column := range w.columns {
		if len(column) > 0 {
			size += fieldSize(field, len(column))
		}
	}
	b := make([]byte, 0, fieldSize(fieldMetricData, size))
	b = appendFieldHead(b, fieldMetricData, size)
	for field, column := range w.columns {
		if len(column) > 0 {
			b = appendFieldHead(b, field, len(column))
			b = append(b, column...)
		}
	}
	return b
}

func appendFieldHead(b []byte, field, size int) []byte {
	b = binary.AppendUvarint(b, uint64(field<<3|wireBytes))
	return binary.AppendUvarint(b, uint64(size))
}

func fieldSize(field, size int) int {
	var room [2 * binary.MaxVarintLen64]byte
	return len(appendFieldHead(room[:0], field, size)) + size
}
