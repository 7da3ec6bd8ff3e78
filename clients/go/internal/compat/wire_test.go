package compat

import (
	"math"
	"math/rand"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	datadog "github.com/DataDog/datadog-go/v5/statsd"
	weir "github.com/weir-dev/weir/clients/go/statsd"
	"os"
	"strconv"
)

// packets keeps a client's output.
type packets struct {
	mu    sync.Mutex
	lines []string
	sizes []int
}

func (p *packets) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes = append(p.sizes, len(b))
	p.lines = append(p.lines, strings.SplitAfter(string(b), "\n")...)
	// The text after the last newline is empty: every message ends in one.
	if last := len(p.lines) - 1; p.lines[last] == "" {
		p.lines = p.lines[:last]
	}
	return len(b), nil
}

func (*packets) Close() error { return nil }

// client has the methods that have the same types in both clients.
type client interface {
	Gauge(string, float64, []string, float64) error
	GaugeWithTimestamp(string, float64, []string, float64, time.Time) error
	Count(string, int64, []string, float64) error
	CountWithTimestamp(string, int64, []string, float64, time.Time) error
	Histogram(string, float64, []string, float64) error
	Distribution(string, float64, []string, float64) error
	Decr(string, []string, float64) error
	Incr(string, []string, float64) error
	Set(string, string, []string, float64) error
	Timing(string, time.Duration, []string, float64) error
	TimeInMilliseconds(string, float64, []string, float64) error
	SimpleEvent(string, string) error
	Flush() error
	Close() error
}

type optionSet struct {
	name string
	// aggregated lines come in no particular order.
	aggregated bool
	theirs     []datadog.Option
	ours       []weir.Option
}

// optionSets are the same settings for both. The container id is given in all of them: the pinned client keeps it for
// the process. Nothing is sent by time, or a stop of the machine would put what one client aggregates or packs into
// two.
func optionSets() []optionSet {
	both := func(name string, aggregated bool, d []datadog.Option, w []weir.Option) optionSet {
		return optionSet{name, aggregated,
			append([]datadog.Option{datadog.WithoutTelemetry(), datadog.WithContainerID("cid"),
				datadog.WithWorkersCount(1),
				datadog.WithBufferFlushInterval(time.Hour), datadog.WithAggregationInterval(time.Hour)}, d...),
			append([]weir.Option{weir.WithoutTelemetry(), weir.WithContainerID("cid"), weir.WithWorkersCount(1),
				weir.WithBufferFlushInterval(time.Hour), weir.WithAggregationInterval(time.Hour)}, w...)}
	}
	return []optionSet{
		both("plain calls", false,
			[]datadog.Option{datadog.WithoutClientSideAggregation()},
			[]weir.Option{weir.WithoutClientSideAggregation()}),
		both("namespace, tags, cardinality", false,
			[]datadog.Option{datadog.WithoutClientSideAggregation(), datadog.WithNamespace("ns"),
				datadog.WithTags([]string{"g:1", "h"}), datadog.WithCardinality(datadog.CardinalityHigh)},
			[]weir.Option{weir.WithoutClientSideAggregation(), weir.WithNamespace("ns"), weir.WithTags([]string{"g:1",
				"h"}), weir.WithCardinality(weir.CardinalityHigh)}),
		both("small packets", false,
			[]datadog.Option{datadog.WithoutClientSideAggregation(), datadog.WithMaxBytesPerPayload(120)},
			[]weir.Option{weir.WithoutClientSideAggregation(), weir.WithMaxBytesPerPayload(120)}),
		both("two messages per packet", false,
			[]datadog.Option{datadog.WithoutClientSideAggregation(), datadog.WithMaxMessagesPerPayload(2)},
			[]weir.Option{weir.WithoutClientSideAggregation(), weir.WithMaxMessagesPerPayload(2)}),
		both("aggregation", true, nil, nil),
		both("aggregation, namespace, tags", true,
			[]datadog.Option{datadog.WithNamespace("ns."), datadog.WithTags([]string{"g:1"})},
			[]weir.Option{weir.WithNamespace("ns."), weir.WithTags([]string{"g:1"})}),
		both("extended aggregation", true,
			[]datadog.Option{datadog.WithExtendedClientSideAggregation()},
			[]weir.Option{weir.WithExtendedClientSideAggregation()}),
		both("extended aggregation, tags, cardinality", true,
			[]datadog.Option{datadog.WithExtendedClientSideAggregation(), datadog.WithTags([]string{"g:1"}),
				datadog.WithCardinality(datadog.CardinalityLow)},
			[]weir.Option{weir.WithExtendedClientSideAggregation(), weir.WithTags([]string{"g:1"}),
				weir.WithCardinality(weir.CardinalityLow)}),
		both("empty namespace", true, []datadog.Option{datadog.WithNamespace("")},
			[]weir.Option{weir.WithNamespace("")}),
	}
}

// run makes the same calls on both clients and returns the lines each wrote and the packet sizes.
func run(t *testing.T, o optionSet, calls func(client), special func(d *datadog.Client, w *weir.Client)) (theirs,
	ours *packets) {
	t.Helper()
	theirs, ours = &packets{}, &packets{}
	d, err := datadog.NewWithWriter(theirs, o.theirs...)
	if err != nil {
		t.Fatal(err)
	}
	w, err := weir.NewWithWriter(ours, o.ours...)
	if err != nil {
		t.Fatal(err)
	}
	calls(d)
	calls(w)
	if special != nil {
		special(d, w)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return theirs, ours
}

func same(t *testing.T, theirs, ours *packets, ordered bool) {
	t.Helper()
	a, b := theirs.lines, ours.lines
	if !ordered {
		sort.Strings(a)
		sort.Strings(b)
	}
	for i := 0; i < max(len(a), len(b)); i++ {
		x, y := "(nothing)", "(nothing)"
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			t.Fatalf("line %d of %d and %d differs:\ntheirs %q\nours   %q", i, len(a), len(b), x, y)
		}
	}
	if len(a) == 0 {
		t.Fatal("nothing was written")
	}
}

var tagLists = [][]string{nil, {}, {"a:1"}, {"a:1", "b:2", "c"}, {""}, {"", "x"}, {"with space:y"}, {"new\nline:1",
	"z\n"}, {"é:ü"}, {"a,b:1", "c"}}

var floats = []float64{
	0, 1, -1, 1.5, 0.1, 123.456, 12.345678, 1e6, 1e15, 1e16, 1e21, 1.0 / 3, -2.5e-7, 123456789.123456, 1e-6, 5e-324,
	math.MaxFloat64,
	999999.999999, 0.0000005, 0.9999995, 1234567.8912345, math.Copysign(0, -1), 1e9, 999999999.9999995,
}

func everyCall(c client) {
	at := time.Unix(1700000000, 0)
	for _, tags := range tagLists {
		_ = c.Count("count", 5, tags, 1)
		_ = c.Count("count", -7, tags, 1)
		_ = c.Incr("count.incr", tags, 1)
		_ = c.Decr("count.decr", tags, 1)
		_ = c.Gauge("gauge", 1.25, tags, 1)
		_ = c.Gauge("gauge", -3, tags, 1)
		_ = c.Histogram("histogram", 1.25, tags, 1)
		_ = c.Distribution("distribution", 2.5, tags, 1)
		_ = c.Timing("timing", 1234567*time.Nanosecond, tags, 1)
		_ = c.TimeInMilliseconds("timing.ms", 0.1, tags, 1)
		_ = c.Set("set", "member", tags, 1)
		_ = c.Set("set", "member", tags, 1)
		_ = c.GaugeWithTimestamp("gauge.at", 1.5, tags, 1, at)
		_ = c.CountWithTimestamp("count.at", 3, tags, 1, at)
	}
	for _, v := range floats {
		_ = c.Histogram("float.h", v, nil, 1)
		_ = c.Distribution("float.d", v, nil, 1)
		_ = c.TimeInMilliseconds("float.ms", v, nil, 1)
	}
	_ = c.Count("big", math.MaxInt64, nil, 1)
	_ = c.Count("small", math.MinInt64, nil, 1)
	_ = c.Count("wide.é-name_/ x", 1, nil, 1)
	_ = c.SimpleEvent("title", "text")
	_ = c.SimpleEvent("title", "two\nlines é")
}

func TestWireIsByteIdentical(t *testing.T) {
	for _, o := range optionSets() {
		t.Run(o.name, func(t *testing.T) {
			theirs, ours := run(t, o, everyCall, nil)
			if o.aggregated {
				// The grouping of values into messages depends on the rest of the packet, and contexts are flushed in
				// any order.
				theirs.lines, ours.lines = unpack(theirs.lines), unpack(ours.lines)
			}
			same(t, theirs, ours, !o.aggregated)
			// The pinned client also ends a packet for a message that then turns out to fit none.
			if !o.aggregated && len(ours.sizes) > len(theirs.sizes) {
				t.Errorf("more packets: theirs %v, ours %v", theirs.sizes, ours.sizes)
			}
		})
	}
}

func TestWireOfEventsAndChecks(t *testing.T) {
	at := time.Unix(1700000000, 5)
	for _, o := range optionSets() {
		t.Run(o.name, func(t *testing.T) {
			theirs, ours := run(t, o, func(client) {}, func(d *datadog.Client, w *weir.Client) {
				de := &datadog.Event{Title: "t", Text: "x\ny", Timestamp: at, Hostname: "h", AggregationKey: "k",
					Priority: datadog.Low, SourceTypeName: "s", AlertType: datadog.Warning, Tags: []string{"a:1", "b"}}
				we := &weir.Event{Title: "t", Text: "x\ny", Timestamp: at, Hostname: "h", AggregationKey: "k",
					Priority: weir.Low, SourceTypeName: "s", AlertType: weir.Warning, Tags: []string{"a:1", "b"}}
				for _, err := range []error{d.Event(de), w.Event(we), d.SimpleServiceCheck("check", datadog.Critical),
					w.SimpleServiceCheck("check", weir.Critical)} {
					if err != nil && !strings.Contains(o.name, "small") {
						t.Fatal(err)
					}
				}
				dc := &datadog.ServiceCheck{Name: "c", Status: datadog.Warn, Timestamp: at, Hostname: "h",
					Message: "a\nm:b mm: m:", Tags: []string{"x:y"}}
				wc := &weir.ServiceCheck{Name: "c", Status: weir.Warn, Timestamp: at, Hostname: "h",
					Message: "a\nm:b mm: m:", Tags: []string{"x:y"}}
				if a, b := d.ServiceCheck(dc), w.ServiceCheck(wc); (a == nil) != (b == nil) {
					t.Fatalf("theirs returns %v, ours %v", a, b)
				}
			})
			same(t, theirs, ours, true)
		})
	}
}

// TestWireOfRandomFloats compares the text of values that take the fast path and of others.
func TestWireOfRandomFloats(t *testing.T) {
	seed := seedOf(t)
	o := optionSets()[0]
	theirs, ours := run(t, o, func(c client) {
		r := rand.New(rand.NewSource(seed))
		for i := 0; i < 50000; i++ {
			v := r.NormFloat64() * math.Pow(10, float64(r.Intn(12)-4))
			switch i % 4 {
			case 1:
				v = math.Round(v*100) / 100
			case 2:
				v = math.Round(v*1e6) / 1e6
			case 3:
				v = math.Float64frombits(r.Uint64())
				if v != v || math.IsInf(v, 0) {
					v = 0
				}
			}
			_ = c.Histogram("f", v, nil, 1)
			_ = c.TimeInMilliseconds("m", v, nil, 1)
			if i%1000 == 0 {
				_ = c.Flush()
			}
		}
	}, nil)
	same(t, theirs, ours, true)
}

// unpack writes a message of several values as several messages.
func unpack(lines []string) (out []string) {
	for _, l := range lines {
		name, rest, _ := strings.Cut(l, ":")
		text, tail, _ := strings.Cut(rest, "|")
		if strings.HasPrefix(l, "_e{") || strings.HasPrefix(tail, "s|") {
			out = append(out, l)
			continue
		}
		for _, v := range strings.Split(text, ":") {
			out = append(out, name+":"+v+"|"+tail)
		}
	}
	return out
}

// TestPackedLinesAcrossPackets compares how values are spread over packets.
func TestPackedLinesAcrossPackets(t *testing.T) {
	for _, limit := range []int{60, 100, 1432} {
		o := optionSet{
			theirs: []datadog.Option{datadog.WithoutTelemetry(), datadog.WithContainerID("cid"),
				datadog.WithWorkersCount(1), datadog.WithMaxBytesPerPayload(limit),
				datadog.WithBufferFlushInterval(time.Hour)},
			ours: []weir.Option{weir.WithoutTelemetry(), weir.WithContainerID("cid"), weir.WithWorkersCount(1),
				weir.WithMaxBytesPerPayload(limit), weir.WithBufferFlushInterval(time.Hour)},
		}
		values := make([]float64, 500)
		for i := range values {
			values[i] = float64(i) / 8
		}
		a, b := &packets{}, &packets{}
		d, err := datadog.NewDirectWithWriter(a, o.theirs...)
		if err != nil {
			t.Fatal(err)
		}
		w, err := weir.NewDirectWithWriter(b, o.ours...)
		if err != nil {
			t.Fatal(err)
		}
		_ = d.DistributionSamples("direct", values, []string{"a:1", "b"}, 0.25)
		_ = w.DistributionSamples("direct", values, []string{"a:1", "b"}, 0.25)
		d.Close()
		w.Close()
		// The number of values per line may differ: the pinned client reserves more room than it needs. The values
		// and all the rest of each line may not.
		x, y := unpack(a.lines), unpack(b.lines)
		if len(x) != len(values) || strings.Join(x, "\n") != strings.Join(y, "\n") {
			t.Errorf("limit %d: values differ: %d and %d, %q and %q", limit, len(x), len(y), a.lines[0], b.lines[0])
		}
		for _, n := range b.sizes {
			if n > limit {
				t.Errorf("limit %d: a packet has %d bytes", limit, n)
			}
		}
		if len(b.sizes) > len(a.sizes) {
			t.Errorf("limit %d: %d packets, theirs are %d", limit, len(b.sizes), len(a.sizes))
		}
	}
}

func TestErrorsAreTheSame(t *testing.T) {
	d, err := datadog.NewWithWriter(&packets{}, datadog.WithoutTelemetry(), datadog.WithoutClientSideAggregation())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	w, err := weir.NewWithWriter(&packets{}, weir.WithoutTelemetry(), weir.WithoutClientSideAggregation())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	long := strings.Repeat("x", 2000)
	for _, c := range []client{d, w} {
		if err := c.GaugeWithTimestamp("a", 1, nil, 1, time.Time{}); err == nil ||
			err.Error() != string(datadog.InvalidTimestamp) {
			t.Errorf("%T: zero time gives %v", c, err)
		}
		if err := c.CountWithTimestamp("a", 1, nil, 1, time.Unix(0, 0)); err == nil ||
			err.Error() != string(weir.InvalidTimestamp) {
			t.Errorf("%T: 1970 gives %v", c, err)
		}
		if err := c.Count(long, 1, nil, 1); err == nil || !strings.Contains(err.Error(), "WithMaxBytesPerPayload") {
			t.Errorf("%T: a long name gives %v", c, err)
		}
	}
	if err := w.Count(long, 1, nil, 1); err != (weir.MessageTooLongError{}) {
		t.Errorf("a long name gives %#v", err)
	}
	var none *weir.Client
	if err := none.Incr("a", nil, 1); err != weir.ErrNoClient {
		t.Errorf("a nil client gives %v", err)
	}
}

// seedOf returns the seed of random numbers: the same each time, unless WEIR_SEED is a number, or "random".
func seedOf(t testing.TB) int64 {
	t.Helper()
	seed := int64(1)
	switch text := os.Getenv("WEIR_SEED"); text {
	case "":
	case "random":
		seed = time.Now().UnixNano()
	default:
		var err error
		if seed, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("WEIR_SEED: %v", err)
		}
	}
	t.Logf("seed %d", seed)
	return seed
}
