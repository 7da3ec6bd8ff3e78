package statsd

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// columnVector is a file of tests/vectors/columns: a payload, and what is in it.
type columnVector struct {
	Path string      `json:"path"`
	Hex  string      `json:"hex"`
	Rows []vectorRow `json:"rows"`
}

type vectorRow struct {
	Name     string   `json:"name"`
	Tags     []string `json:"tags"`
	Type     string   `json:"type"`
	Interval uint64   `json:"interval"`
	Time     int64    `json:"timestamp"`
	Value    *float64 `json:"value,omitempty"`
	Count    *int64   `json:"cnt,omitempty"`
	Sum      *float64 `json:"sum,omitempty"`
	Min      *float64 `json:"min,omitempty"`
	Max      *float64 `json:"max,omitempty"`
	// Bins are pairs of key and count, as they are written.
	Bins [][2]int64 `json:"bins,omitempty"`
}

var vectorTypes = map[int]string{1: "count", 3: "gauge", 4: "sketch"}

func vectorOf(t *testing.T, p *payload) columnVector {
	t.Helper()
	v := columnVector{Path: p.path, Hex: hex.EncodeToString(p.body)}
	rows, err := decodeColumns(p.body)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		row := vectorRow{Name: r.Name, Tags: slices.Clone(r.Tags), Type: vectorTypes[r.Type], Interval: r.Interval,
			Time: r.Time}
		if row.Tags == nil {
			row.Tags = []string{}
		}
		if r.Type == 4 {
			row.Count, row.Sum, row.Min, row.Max, row.Bins = &r.Count, &r.Sum, &r.Min, &r.Max, r.Bins
		} else {
			row.Value = &r.Value
		}
		v.Rows = append(v.Rows, row)
	}
	return v
}

// vectorWindow is the window of the vectors: each type of value, shared and repeated tags, and bins beyond 32 bits.
func vectorWindow(c *Client) *window {
	id := func(k kind, name string, card Cardinality, tags ...string) identity {
		return c.clientEx.scope.newSeries(c.clientEx.scope.key(k, card), name, tags).identity()
	}
	w := &window{at: 1700000000, end: 1700000010}
	count := func(name string, n int64, tags ...string) {
		w.addPoint(point{identity: id(kindCount, name, 0, tags...), kind: kindCount, sum: n})
	}
	float := func(name string, v float64, tags ...string) {
		w.addPoint(point{identity: id(kindFloatCount, name, 0, tags...), kind: kindFloatCount, value: v})
	}
	gauge := func(name string, v float64, tags ...string) {
		w.addPoint(point{identity: id(kindGauge, name, 0, tags...), kind: kindGauge, value: v, at: w.at})
	}
	count("shop.orders", 12, "country:ch", "b:2", "a:1")
	count("shop.orders", -3, "a:1", "country:ch", "a:1")
	count("shop.zero", 0, "country:ch", "b:2", "a:1")
	count("shop.integer", 1<<48, "env:prod")
	count("shop.double", 1<<48+1)
	count("shop.größe", 1<<60, "straße:1,second:2")
	float("shop.float", 1.5)
	float("shop.tenth", 0.1, "", "env:prod", "")
	gauge("shop.level", -2.25, "env:prod")
	gauge("shop.huge", 1e300)
	gauge("shop.million", 1e6, strings.Repeat("long:", 40))
	w.addPoint(point{identity: id(kindGauge, "shop.card", CardinalityHigh, "env:prod"), kind: kindGauge, value: 7,
		at: w.at})
	sketch := func(name string, values []float64, tags ...string) *sketch {
		s := newSketch()
		for _, v := range values {
			s.add(v)
		}
		w.addSketch(sketchPoint{id(kindDistribution, name, 0, tags...), s.take(&sketchRoom{})})
		return s
	}
	sketch("db.time", []float64{1, 1, 10}, "env:prod")
	sketch("db.time", []float64{0.25, 0.5, 1024}, "env:prod", "table:users")
	sketch("db.signs", []float64{-2.5, 0, 1e-10, 42.1})
	sketch("db.zero", []float64{0, 0})
	sketch("db.large", []float64{1e300, 9007199254740993})
	spread := []float64{}
	for i := 0; i < 200; i++ {
		spread = append(spread, math.Round(gammaPower(i*3)*1000)/1000)
	}
	sketch("db.spread", spread, "env:prod")
	many := newSketch()
	many.addMany(1, math.MaxUint32)
	many.addMany(1, 3)
	many.addMany(2, 2*math.MaxUint32)
	w.addSketch(sketchPoint{id(kindDistribution, "db.many", 0), many.take(&sketchRoom{})})
	return w
}

// TestColumnVectors encodes the payloads of tests/vectors/columns, which other decoders read, too. With
// WEIR_WRITE_VECTORS it writes them.
func TestColumnVectors(t *testing.T) {
	prepareKeys()
	c, _ := record(t)
	w := vectorWindow(c)
	later := vectorWindow(c)
	later.at, later.end = w.at+10, w.at+40
	for i := range later.points {
		later.points[i].at = later.end - windowSeconds
		later.points[i].value++
	}
	merged := w.merge(later)
	payloads := map[string]*payload{}
	for _, p := range w.encode() {
		payloads[strings.TrimPrefix(p.path, "/")] = p
	}
	for _, p := range merged.encode() {
		payloads["merged-"+strings.TrimPrefix(p.path, "/")] = p
	}
	if len(payloads) != 4 {
		t.Fatalf("%d payloads", len(payloads))
	}
	for name, p := range payloads {
		file := filepath.Join("columns", name+".json")
		want := vectorOf(t, p)
		if os.Getenv("WEIR_WRITE_VECTORS") != "" {
			text, err := json.MarshalIndent(want, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(t, filepath.Join("../../../tests/vectors", file), compactBins(string(text))+"\n")
		}
		var v columnVector
		if err := json.NewDecoder(vectorFile(t, file)).Decode(&v); err != nil {
			t.Fatal(err)
		}
		if v.Hex != want.Hex {
			t.Errorf("%s is encoded as\n%s, not\n%s", name, want.Hex, v.Hex)
		}
		if !reflect.DeepEqual(v.Rows, want.Rows) || v.Path != want.Path {
			t.Errorf("%s has the rows\n%+v, not\n%+v", name, want.Rows, v.Rows)
		}
	}
}

// compactBins writes a pair of numbers, and a list of texts, on one line.
func compactBins(text string) string {
	lines := strings.Split(text, "\n")
	var b strings.Builder
	depth := 0
	for _, line := range lines {
		trimmed := strings.TrimSpace(line)
		if strings.HasSuffix(trimmed, "\": [") && !strings.HasPrefix(trimmed, "\"rows\"") {
			depth = 1
			b.WriteString(line)
			continue
		}
		if depth == 0 {
			b.WriteString(line + "\n")
			continue
		}
		b.WriteString(trimmed)
		depth += strings.Count(trimmed, "[") - strings.Count(trimmed, "]")
		if depth == 0 {
			b.WriteString("\n")
		} else if strings.HasSuffix(trimmed, ",") {
			b.WriteString(" ")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// columnRow is a point of a payload, decoded.
type columnRow struct {
	Name     string
	Tags     []string
	Type     int
	Interval uint64
	Time     int64
	// Value is that of a count or a gauge.
	Value float64
	// The rest is that of a sketch. Bins are pairs of key and count.
	Sum, Min, Max float64
	Count         int64
	Bins          [][2]int64
}

// columnReader reads one column.
type columnReader struct {
	b      []byte
	before int64
}

func (r *columnReader) unsigned() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		panic("a short column")
	}
	r.b = r.b[n:]
	return v
}

func (r *columnReader) signed() int64 {
	u := r.unsigned()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *columnReader) delta() int64 {
	r.before += r.signed()
	return r.before
}

func (r *columnReader) bytes(n int) []byte {
	if len(r.b) < n {
		panic("a short column")
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *columnReader) texts() (all []string) {
	for all = []string{""}; len(r.b) > 0; {
		all = append(all, string(r.bytes(int(r.unsigned()))))
	}
	return all
}

// fields reads the fields of a message; all are bytes.
func fields(b []byte) map[uint64]*columnReader {
	all := map[uint64]*columnReader{}
	for r := (&columnReader{b: b}); len(r.b) > 0; {
		tag := r.unsigned()
		if tag&7 != 2 || all[tag>>3] != nil {
			panic(fmt.Sprintf("field %d of type %d", tag>>3, tag&7))
		}
		all[tag>>3] = &columnReader{b: r.bytes(int(r.unsigned()))}
	}
	return all
}

// decodeColumns reads a payload, written from the description of the format alone. It knows all that clients send, and
// refuses a payload that has something left over.
func decodeColumns(body []byte) (rows []columnRow, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	if len(body) == 0 {
		return nil, nil
	}
	outer := fields(body)
	if outer[3] == nil || len(outer) != 1 {
		return nil, fmt.Errorf("the payload has the fields %v", outer)
	}
	f := fields(outer[3].b)
	column := func(n uint64) *columnReader {
		if f[n] == nil {
			f[n] = &columnReader{}
		}
		return f[n]
	}
	names, tags := column(1).texts(), column(2).texts()
	sets := [][]string{nil}
	for r := column(3); len(r.b) > 0; {
		set, at := []string{}, int64(0)
		for n := r.signed(); n > 0; n-- {
			step := r.signed()
			if at += step; step <= 0 {
				panic("tags of a set do not ascend")
			}
			set = append(set, tags[at])
		}
		sets = append(sets, set)
	}
	for types := column(10); len(types.b) > 0; {
		typ := types.unsigned()
		row := columnRow{Type: int(typ & 15), Name: names[column(11).delta()], Tags: sets[column(12).delta()],
			Interval: column(14).unsigned()}
		if column(13).delta() != 0 || column(23).delta() != 0 || column(24).delta() != 0 {
			panic("a reference to what is not there")
		}
		if points := column(15).unsigned(); points != 1 {
			panic(fmt.Sprintf("%d points", points))
		}
		row.Time = column(16).delta()
		value := func() float64 {
			switch typ & 0xf0 {
			case 0:
				return 0
			case 0x10:
				return float64(column(17).signed())
			case 0x20:
				return float64(math.Float32frombits(binary.LittleEndian.Uint32(column(18).bytes(4))))
			case 0x30:
				return math.Float64frombits(binary.LittleEndian.Uint64(column(19).bytes(8)))
			}
			panic(fmt.Sprintf("type %#x", typ))
		}
		if row.Type != 4 {
			row.Value = value()
		} else {
			row.Sum, row.Min, row.Max, row.Count = value(), value(), value(), column(17).signed()
			key, total := int64(0), int64(0)
			for n := column(20).unsigned(); n > 0; n-- {
				key += column(21).signed()
				count := int64(column(22).unsigned())
				row.Bins = append(row.Bins, [2]int64{key, count})
				total += count
			}
			if total != row.Count {
				panic(fmt.Sprintf("%s: a count of %d, and bins of %d", row.Name, row.Count, total))
			}
		}
		rows = append(rows, row)
	}
	for n, r := range f {
		if len(r.b) > 0 {
			return nil, fmt.Errorf("column %d has %d bytes left over", n, len(r.b))
		}
	}
	return rows, nil
}

// key names a row in the tests: "name|tag,tag".
func (r *columnRow) key() string { return r.Name + "|" + strings.Join(r.Tags, ",") }
