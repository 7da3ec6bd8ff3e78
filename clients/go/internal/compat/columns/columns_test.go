// Package columns has the tests that read the client's columns with the message that Datadog publishes.
package columns

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/DataDog/agent-payload/v5/metrics/intake_v3"
	"github.com/weir-dev/weir/clients/go/statsd"
	"google.golang.org/protobuf/proto"
)

// row is a point read from the message.
type row struct {
	Name          string   `json:"name"`
	Tags          []string `json:"tags"`
	Type          string   `json:"type"`
	Interval      uint64   `json:"interval"`
	Timestamp     int64    `json:"timestamp"`
	Value         float64  `json:"value"`
	Count         int64    `json:"cnt"`
	Sum, Min, Max float64
	Bins          [][2]int64
}

// texts splits a dictionary. The lengths of the entries are varints.
func texts(b []byte) []string {
	all := []string{""}
	for len(b) > 0 {
		size, n := 0, 0
		for shift := 0; ; shift += 7 {
			size |= int(b[n]&0x7f) << shift
			n++
			if b[n-1] < 0x80 {
				break
			}
		}
		all = append(all, string(b[n:n+size]))
		b = b[n+size:]
	}
	return all
}

// sums undoes differences.
func sums(deltas []int64) []int64 {
	out, at := make([]int64, len(deltas)), int64(0)
	for i, d := range deltas {
		at += d
		out[i] = at
	}
	return out
}

// read takes a payload apart with the published message.
func read(t *testing.T, body []byte) (rows []row) {
	t.Helper()
	var p intake_v3.Payload
	if err := proto.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	if len(p.ProtoReflect().GetUnknown())+len(p.GetMetricData().ProtoReflect().GetUnknown()) > 0 || p.Metadata != nil {
		t.Fatalf("fields that are not in the message: %v", &p)
	}
	d := p.GetMetricData()
	names, tags := texts(d.DictNameStr), texts(d.DictTagStr)
	sets := [][]string{{}}
	for at := 0; at < len(d.DictTagsets); {
		n := int(d.DictTagsets[at])
		set := []string{}
		for _, i := range sums(d.DictTagsets[at+1 : at+1+n]) {
			set = append(set, tags[i])
		}
		sets = append(sets, set)
		at += 1 + n
	}
	nameRefs, setRefs, times := sums(d.NameRefs), sums(d.TagsetRefs), sums(d.Timestamps)
	n := len(d.Types)
	for what, length := range map[string]int{"names": len(nameRefs), "tag sets": len(setRefs), "resources": len(
		d.ResourcesRefs), "source types": len(d.SourceTypeNameRefs), "origins": len(d.OriginInfoRefs),
		"intervals": len(d.Intervals), "points": len(d.NumPoints), "times": len(times)} {
		if length != n {
			t.Fatalf("%d series, and %d entries of %s", n, length, what)
		}
	}
	integers, floats, doubles, bins, sizes := d.ValsSint64, d.ValsFloat32, d.ValsFloat64, d.BinKeys, d.BinCnts
	numbers := d.NumBins
	for i, typ := range d.Types {
		r := row{Name: names[nameRefs[i]], Tags: sets[setRefs[i]], Interval: d.Intervals[i], Timestamp: times[i]}
		value := func() (v float64) {
			switch intake_v3.ValueType(typ & 0xf0) {
			case intake_v3.ValueType_Sint64:
				v, integers = float64(integers[0]), integers[1:]
			case intake_v3.ValueType_Float32:
				v, floats = float64(floats[0]), floats[1:]
			case intake_v3.ValueType_Float64:
				v, doubles = doubles[0], doubles[1:]
			}
			return v
		}
		switch intake_v3.MetricType(typ & 0xf) {
		case intake_v3.MetricType_Count:
			r.Type, r.Value = "count", value()
		case intake_v3.MetricType_Gauge:
			r.Type, r.Value = "gauge", value()
		case intake_v3.MetricType_DDSketch:
			r.Type, r.Sum, r.Min, r.Max = "sketch", value(), value(), value()
			r.Count, integers = integers[0], integers[1:]
			key := int64(0)
			for ; numbers[0] > 0; numbers[0]-- {
				key += int64(bins[0])
				r.Bins = append(r.Bins, [2]int64{key, int64(sizes[0])})
				bins, sizes = bins[1:], sizes[1:]
			}
			numbers = numbers[1:]
		default:
			t.Fatalf("type %#x", typ)
		}
		rows = append(rows, r)
	}
	if left := len(integers) + len(floats) + len(doubles) + len(bins) + len(sizes) + len(numbers); left > 0 {
		t.Fatalf("%d values are left over", left)
	}
	return rows
}

// TestVectorsAreReadByThePublishedMessage compares the vectors of the repository with what the message has.
func TestVectorsAreReadByThePublishedMessage(t *testing.T) {
	files, err := filepath.Glob("../../../../../tests/vectors/columns/*.json")
	if err != nil || len(files) < 4 {
		t.Fatalf("%d vectors, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			Hex  string
			Rows []row
		}
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		body, err := hex.DecodeString(v.Hex)
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, body)
		if !reflect.DeepEqual(got, v.Rows) {
			t.Errorf("%s: read\n%+v, not\n%+v", file, got, v.Rows)
		}
	}
}

// TestAClientIsReadByThePublishedMessage sends a few thousand series and compares every value.
func TestAClientIsReadByThePublishedMessage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	got := map[string]row{}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%v: %v", r.Header, err)
		}
		if len(body) == 0 {
			return // The client looks whether somebody is there.
		}
		mu.Lock()
		defer mu.Unlock()
		for _, one := range read(t, body) {
			slices.Sort(one.Tags)
			key := one.Type + " " + one.Name + " " + strings.Join(one.Tags, ",")
			// A window may end between two values of a distribution.
			if first, ok := got[key]; ok && one.Bins != nil {
				one.Count, one.Sum = one.Count+first.Count, one.Sum+first.Sum
				one.Min, one.Max = min(one.Min, first.Min), max(one.Max, first.Max)
			}
			got[key] = one
		}
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	c, err := statsd.New("http://"+l.Addr().String(), statsd.WithoutDatagrams(), statsd.WithoutOriginDetection(),
		statsd.WithoutEnvTags())
	if err != nil {
		t.Fatal(err)
	}
	const series = 3000
	for i := 0; i < series; i++ {
		tags := []string{fmt.Sprint("i:", i%17), fmt.Sprint("j:", i%5)}
		_ = c.Count(fmt.Sprint("count.", i), int64(i)<<(i%40), tags, 1)
		_ = c.Gauge(fmt.Sprint("gauge.", i), float64(i)/8*float64(1-i%3), tags, 1)
		for n := 0; n < i%9+1; n++ {
			_ = c.Distribution(fmt.Sprint("dist.", i), float64(n*i), tags, 1)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 3*series {
		t.Fatalf("%d rows", len(got))
	}
	for i := 0; i < series; i++ {
		tags := fmt.Sprintf("i:%d,j:%d", i%17, i%5)
		if r := got[fmt.Sprintf("count count.%d %s", i, tags)]; r.Value != float64(int64(i)<<(i%40)) {
			t.Errorf("count %d: %+v", i, r)
		}
		if r := got[fmt.Sprintf("gauge gauge.%d %s", i, tags)]; r.Value != float64(i)/8*float64(1-i%3) {
			t.Errorf("gauge %d: %+v", i, r)
		}
		n, sum := int64(i%9+1), 0.0
		for k := int64(0); k < n; k++ {
			sum += float64(k * int64(i))
		}
		if r := got[fmt.Sprintf("sketch dist.%d %s", i, tags)]; r.Count != n || r.Sum != sum || r.Min != 0 ||
			r.Max != float64((n-1)*int64(i)) {
			t.Errorf("sketch %d: %+v", i, r)
		}
	}
}
