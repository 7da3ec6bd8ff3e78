//go:build !race

package statsd

import (
	"fmt"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// discard is a transport that keeps nothing.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) Close() error                { return nil }

func quiet(t *testing.T, options ...Option) *Client {
	t.Helper()
	base := []Option{WithoutTelemetry(), WithTags([]string{"g:1"}), WithContainerID("cid"),
		WithAggregationInterval(time.Hour), WithBufferFlushInterval(time.Hour)}
	c, err := NewWithWriter(discard{}, append(base, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestAllocations counts the allocations of every kind of call. The figures are exact: one more is a regression.
func TestAllocations(t *testing.T) {
	modes := map[string]*Client{
		"aggregated": quiet(t), "extended": quiet(t, WithExtendedClientSideAggregation()), "plain": quiet(t,
			WithoutClientSideAggregation()),
		"channel": quiet(t, WithChannelMode(), WithoutClientSideAggregation()),
		"capped":  quiet(t, WithExtendedClientSideAggregation(), WithMaxSamplesPerContext(50)),
		"full":    quiet(t, WithMaxContexts(1)),
	}
	_ = modes["full"].Incr("takes the only place", nil, 1)
	tags := []string{"a:1", "b:2", "c:3", "d:4", "e:5"}
	at := time.Unix(1700000000, 0)
	event := &Event{Title: "title", Text: "text", Tags: tags}
	check := &ServiceCheck{Name: "check", Message: "message", Tags: tags}
	for mode, c := range modes {
		child := c.Child("child", "x:y")
		counter, gauge, distribution, timing, set := c.NewCounter("hc", tags...), c.NewGauge("hg", tags...),
			c.NewDistribution("hd", tags...), c.NewTiming("ht", tags...), c.NewSet("hs", tags...)
		float := c.NewFloatCounter("hf")
		vec := c.NewCounterVec("v", "l1", "l2")
		level := c.NewGauge("level")
		for name, call := range map[string]func(){
			"Count":                func() { _ = c.Count("c", 1, tags, 1) },
			"Count without tags":   func() { _ = c.Count("c", 1, nil, 1) },
			"Count of a child":     func() { _ = child.Count("c", 1, tags, 1) },
			"Count with a rate":    func() { _ = c.Count("c", 1, tags, 0.5) },
			"Count, literal tags":  func() { _ = c.Count("c", 1, []string{"lit:1", "lit:2"}, 1) },
			"Incr, literal tags":   func() { _ = c.Incr("c", []string{"lit:1", "lit:2"}, 1) },
			"Gauge, literal tags":  func() { _ = c.Gauge("g", 1.5, []string{"lit:1", "lit:2"}, 1) },
			"Set, literal tags":    func() { _ = c.Set("s", "m", []string{"lit:1", "lit:2"}, 1) },
			"Dist., literal tags":  func() { _ = c.Distribution("d", 1.5, []string{"lit:1", "lit:2"}, 1) },
			"Count Ex":             func() { _ = c.Ex().Count("c", 1, tags, 1, CardinalityHigh) },
			"Count, typed tags":    func() { _ = c.CountWith("c", 1, StringTag("a", "b"), IntTag("i", 77)) },
			"Gauge":                func() { _ = c.Gauge("g", 12.3456, tags, 1) },
			"Set":                  func() { _ = c.Set("s", "member", tags, 1) },
			"Histogram":            func() { _ = c.Histogram("h", 12.3456, tags, 1) },
			"Distribution":         func() { _ = c.Distribution("d", 12.3456, tags, 1) },
			"Distribution, rate":   func() { _ = c.Distribution("d", 12.3456, tags, 0.5) },
			"Timing":               func() { _ = c.Timing("t", 12345*time.Microsecond, tags, 1) },
			"GaugeWithTimestamp":   func() { _ = c.GaugeWithTimestamp("g", 1, tags, 1, at) },
			"CountFloat":           func() { _ = c.CountFloat("f", 1.25, tags, 1) },
			"GaugeDelta":           func() { _ = c.GaugeDelta("g", 1.25, tags, 1) },
			"Event":                func() { _ = c.Event(event) },
			"ServiceCheck":         func() { _ = c.ServiceCheck(check) },
			"Counter handle":       func() { counter.Add(3) },
			"FloatCounter handle":  func() { float.Add(0.5) },
			"Gauge handle":         func() { gauge.Set(1.5) },
			"Gauge handle Add":     func() { level.Add(1.5) },
			"Distribution handle":  func() { distribution.Observe(1.5) },
			"Timing handle":        func() { timing.Observe(time.Millisecond) },
			"Set handle":           func() { set.Add("m") },
			"CounterVec":           func() { vec.With("a", "b").Inc() },
			"nothing to flush":     func() { _ = c.Flush() },
			"a call and its flush": func() { _ = c.Count("c", 1, tags, 1); _ = c.Flush() },
		} {
			for i := 0; i < 2000; i++ {
				call()
			}
			_ = c.Flush()
			want := 0.0
			if name == "Count, typed tags" && !usesUnsafe {
				// The text of each of the two tags is copied.
				want = 2
			}
			if n := testing.AllocsPerRun(1000, call); n != want {
				t.Errorf("%s, %s: %v allocations", mode, name, n)
			}
			_ = c.Flush()
		}
	}
}

// TestFlushMakesNoGarbage counts the allocations of an interval in which many known contexts are used.
func TestFlushMakesNoGarbage(t *testing.T) {
	c := quiet(t, WithExtendedClientSideAggregation())
	names := make([]string, 2000)
	for i := range names {
		names[i] = fmt.Sprint("name.", i)
	}
	interval := func() {
		for _, n := range names {
			_ = c.Count(n, 1, []string{"a:1"}, 1)
			_ = c.Gauge(n, 1.5, []string{"a:1"}, 1)
			_ = c.Distribution(n, 1.5, []string{"a:1"}, 1)
			_ = c.Set(n, "member", []string{"a:1"}, 1)
		}
		_ = c.Flush()
	}
	for i := 0; i < 3; i++ {
		interval()
	}
	// The sender runs concurrently, so the number of packets in use may still grow, up to the queue and one batch. A
	// packet is two allocations, so over this many intervals they add at most four to an interval.
	const intervals = (aheadMax + batchMax + 8) / 2
	if n := testing.AllocsPerRun(intervals, interval); n > 8 {
		t.Errorf("an interval with 8000 contexts makes %v allocations", n)
	}
}

// TestManyMetricsInTurn uses each of many metrics once in more flushes than a crowd's series stay.
func TestManyMetricsInTurn(t *testing.T) {
	names := make([]string, 3*crowd)
	for i := range names {
		names[i] = fmt.Sprint("name.", i)
	}
	c := quiet(t, WithContextIdleTime(1000*time.Hour))
	round := func() {
		for i, n := range names {
			_ = c.Count(n, 1, []string{"a:1"}, 1)
			if i%2000 == 1999 {
				_ = c.Flush()
			}
		}
	}
	for i := 0; i < 4; i++ {
		round()
	}
	// Packets, as in the test above.
	if n := testing.AllocsPerRun(2, round); n > float64(len(names)/1000) {
		t.Errorf("%d calls make %v allocations", len(names), n)
	}
	// A flood of names that never return uses what is below the limit of contexts, and is small again soon.
	most := 0
	for i := 0; i < 20*crowd; i++ {
		_ = c.Count(fmt.Sprint("flood.", i), 1, nil, 1)
		if i%2000 == 1999 {
			_ = c.Flush()
			most = max(most, int(c.Stats().Contexts))
		}
	}
	if n := c.Stats().Contexts; n > crowd+2000 || most > 1<<18 {
		t.Errorf("a flood leaves %d contexts, and has had %d", n, most)
	}
}

func TestNewIsCheap(t *testing.T) {
	n := testing.AllocsPerRun(50, func() {
		c, err := New("127.0.0.1:8125")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
	if n > 200 {
		t.Errorf("New and Close make %v allocations", n)
	}
}

// TestTagsDoNotEscape reads the compiler's report: a tag slice that escapes costs an allocation wherever tags are
// written at the call.
func TestTagsDoNotEscape(t *testing.T) {
	out, err := exec.Command("go", "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := string(out)
	for _, want := range []string{"methods.go", ": tags does not escape", ": name does not escape"} {
		if !strings.Contains(text, want) {
			t.Fatalf("the compiler's output has no %q; it may have changed its words", want)
		}
	}
	// Code that sends metrics may keep neither the slice of tags nor any text in it.
	escapes := regexp.MustCompile(`(?m)^\./` +
		`(?:methods|client|core|inbox|format|direct|tags|context|handles|vec|hash|memory_unsafe)\.go:\d+:\d+: ` +
		`(?:leaking param(?: content)?: ` +
		`(?:tags|values|name|value|member)|moved to heap: \w+)$`)
	for _, line := range escapes.FindAllString(text, -1) {
		t.Errorf("escapes: %s", line)
	}
}

// TestAllocationsOfColumns counts the allocations of calls whose values go as columns.
func TestAllocationsOfColumns(t *testing.T) {
	a := serveColumns(t, "")
	c, _, _ := columnar(t, a.address)
	c.clientEx.core.columns.settle()
	tags := []string{"a:1", "b:2", "c:3", "d:4", "e:5"}
	counter, gauge, distribution := c.NewCounter("hc", tags...), c.NewGauge("hg", tags...),
		c.NewDistribution("hd", tags...)
	direct, samples := &ClientDirect{c}, []float64{1, 2, 3}
	v := 1.0
	for name, call := range map[string]func(){
		"Count":               func() { _ = c.Count("c", 1, tags, 1) },
		"Gauge":               func() { _ = c.Gauge("g", 12.3456, tags, 1) },
		"Distribution":        func() { v = 1 + v*1.01 - 1; _ = c.Distribution("d", v, tags, 1) },
		"Dist., literal tags": func() { _ = c.Distribution("d", 1.5, []string{"lit:1", "lit:2"}, 1) },
		"Distribution, rate":  func() { _ = c.Distribution("d", 12.3456, tags, 0.5) },
		"CountFloat":          func() { _ = c.CountFloat("f", 1.25, tags, 1) },
		"DistributionSamples": func() { _ = direct.DistributionSamples("d", samples, tags, 1) },
		"Counter handle":      func() { counter.Add(3) },
		"Gauge handle":        func() { gauge.Set(1.5) },
		"Distribution handle": func() { v = 1 + v*1.01 - 1; distribution.Observe(v) },
	} {
		for round := 0; round < 2; round++ {
			// The second round of a handle that is called often has lanes.
			for i := 0; i < 5000; i++ {
				if call(); v > 1000 {
					v = 1
				}
			}
			_ = c.Flush()
		}
		for i := 0; i < 1000; i++ {
			if call(); v > 1000 {
				v = 1
			}
		}
		if n := testing.AllocsPerRun(1000, func() {
			if call(); v > 1000 {
				v = 1
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestHandlesOfColumnsThatAreHot calls a handle so often that it gets memory of its processor, with each flush between.
func TestHandlesOfColumnsThatAreHot(t *testing.T) {
	a := serveColumns(t, "")
	c, _, _ := columnar(t, a.address)
	c.clientEx.core.columns.settle()
	h := c.NewDistribution("hot")
	const rounds, calls = 4, 10000
	want := map[int64]int64{}
	for round := 0; round < rounds; round++ {
		var all sync.WaitGroup
		for g := 0; g < 2; g++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for i := 0; i < calls; i++ {
					h.Observe(float64(1 + i%1000))
				}
			}()
		}
		all.Wait()
		for i := 0; i < 2*calls; i++ {
			want[int64(sketchKey(float64(1+i/2%1000)))]++
		}
		mustFlush(t, c)
	}
	if x := h.series.Load(); pinning && (x.lanes.Load() == nil || len(x.lanes.Load().each[0].ring) != laneRingSketch) {
		t.Error("the handle has no lanes")
	}
	got := map[int64]int64{}
	for _, r := range a.all() {
		for _, b := range r.Bins {
			got[b[0]] += b[1]
		}
	}
	if !reflect.DeepEqual(got, want) || a.totals()["hot|"] != 2*rounds*calls {
		t.Errorf("%v samples, bins %v, not %v", a.totals()["hot|"], got, want)
	}
	if n := c.GetTelemetry().TotalMetricsDistribution; n != 2*rounds*calls {
		t.Errorf("%d calls are counted", n)
	}
}
