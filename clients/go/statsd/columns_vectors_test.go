package statsd

import (
	"encoding/hex"
	"encoding/json"
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
