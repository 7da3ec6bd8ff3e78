package statsd

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestHandles(t *testing.T) {
	for _, x := range []struct {
		name    string
		options []Option
		want    []string
	}{
		{"extended aggregation", []Option{WithExtendedClientSideAggregation()}, []string{
			"c:8|c|#a:1,b", "d:1.5:2.5|d|#a:1,b", "f:0.75|c|#a:1,b", "g:3|g|#a:1,b", "h:1:2|h|#a:1,b", "l:-1|g|#a:1,b",
			"s:m|s|#a:1,b",
			"t:2.000000:3.000000|ms|#a:1,b",
		}},
		{"aggregation", nil, []string{
			"c:8|c|#a:1,b", "d:1.5:2.5|d|#a:1,b", "f:0.75|c|#a:1,b", "g:3|g|#a:1,b", "h:1:2|h|#a:1,b", "l:-1|g|#a:1,b",
			"s:m|s|#a:1,b",
			"t:2.000000:3.000000|ms|#a:1,b",
		}},
		{"no aggregation", []Option{WithoutClientSideAggregation()}, []string{
			"c:1|c|#a:1,b", "c:7|c|#a:1,b", "d:1.5|d|#a:1,b", "d:2.5|d|#a:1,b", "f:0.25|c|#a:1,b", "f:0.5|c|#a:1,b",
			"g:2|g|#a:1,b",
			"g:3|g|#a:1,b", "h:1|h|#a:1,b", "h:2|h|#a:1,b", "l:-1|g|#a:1,b", "l:2|g|#a:1,b", "s:m|s|#a:1,b",
			"s:m|s|#a:1,b",
			"t:2.000000|ms|#a:1,b", "t:3.000000|ms|#a:1,b",
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, r := record(t, x.options...)
			counter, float, gauge, level := c.NewCounter("c", "a:1", "b"), c.NewFloatCounter("f", "a:1", "b"),
				c.NewGauge("g", "a:1", "b"), c.NewGauge("l", "a:1", "b")
			histogram, distribution, timing, set := c.NewHistogram("h", "a:1", "b"), c.NewDistribution("d", "a:1", "b"),
				c.NewTiming("t", "a:1", "b"), c.NewSet("s", "a:1", "b")
			counter.Inc()
			counter.Add(7)
			float.Add(0.25)
			float.Add(0.5)
			gauge.Set(2)
			gauge.Set(3)
			level.Add(2)
			level.Add(-3)
			histogram.Observe(1)
			histogram.Observe(2)
			distribution.Observe(1.5)
			distribution.Observe(2.5)
			timing.Observe(2 * time.Millisecond)
			timing.Observe(3 * time.Millisecond)
			set.Add("m")
			set.Add("m")
			// These are refused and counted.
			float.Add(math.NaN())
			gauge.Set(math.Inf(1))
			level.Add(math.NaN())
			distribution.Observe(math.NaN())
			set.Add("")
			bad := c.NewCounter("")
			bad.Inc()
			bad.Add(3)
			c.NewGauge("").Set(1)
			c.NewHistogram(strings.Repeat("x", 2000)).Observe(1)
			c.Flush()
			equalLines(t, r.sorted(), x.want)
			if s := c.Stats(); s.Invalid != 8 || s.TooLong != 1 {
				t.Errorf("stats are %+v", s)
			}
			tm := c.GetTelemetry()
			if tm.TotalMetricsCount != 4 || tm.TotalMetricsDistribution != 2 || tm.TotalMetricsSet != 2 {
				t.Errorf("telemetry is %+v", tm)
			}
			if timing.Since(time.Now().Add(-time.Hour)); c.GetTelemetry().TotalMetricsTiming != 3 {
				t.Error("Since sends nothing")
			}
		})
	}
}

func TestHandleAndCallShareTheirContext(t *testing.T) {
	c, r := record(t)
	c.NewCounter("c", "a", "b").Add(2)
	_ = c.Count("c", 3, []string{"a", "b"}, 1)
	c.NewCounterVec("c", "k").With("v").Add(5)
	_ = c.Count("c", 1, []string{"k:v"}, 1)
	c.Flush()
	equalLines(t, r.sorted(), []string{"c:5|c|#a,b", "c:6|c|#k:v"})
}

func TestVecs(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation())
	counters := c.NewCounterVec("c", "method", "code")
	for i := 0; i < 100; i++ {
		counters.With("GET", fmt.Sprint(i%3)).Inc()
		counters.With("GET,x", fmt.Sprint(i%3)).Inc()
	}
	if counters.With("GET", "0") != counters.With(strings.Clone("GET"), fmt.Sprint(0)) {
		t.Error("the same labels have two handles")
	}
	c.NewFloatCounterVec("f", "l").With("1").Add(1)
	c.NewGaugeVec("g", "l").With("1").Set(1)
	c.NewHistogramVec("h", "l").With("1").Observe(1)
	c.NewDistributionVec("d", "l").With("1").Observe(1)
	c.NewTimingVec("t", "l").With("1").Observe(time.Millisecond)
	c.NewSetVec("s", "l").With("1").Add("m")
	c.Flush()
	equalLines(t, r.sorted(), []string{
		"c:33|c|#method:GET,code:1", "c:33|c|#method:GET,code:2", "c:33|c|#method:GET_x,code:1",
		"c:33|c|#method:GET_x,code:2",
		"c:34|c|#method:GET,code:0", "c:34|c|#method:GET_x,code:0",
		"d:1|d|#l:1", "f:1|c|#l:1", "g:1|g|#l:1", "h:1|h|#l:1", "s:m|s|#l:1", "t:1.000000|ms|#l:1",
	})
	defer func() {
		if recover() == nil {
			t.Error("a wrong number of label values does not panic")
		}
	}()
	counters.With("GET")
}

// TestLargeCountsAndManyCalls takes the slow paths of a counter's cell: values that do not fit it, and so many calls
// that it is full.
func TestLargeCountsAndManyCalls(t *testing.T) {
	c, r := record(t)
	h := c.NewCounter("c")
	want := int64(0)
	add := func(n int64) {
		h.Add(n)
		want += n
	}
	for i := 0; i < 1<<20+5; i++ {
		add(-(smallCount))
	}
	for i := 0; i < 1<<19+5; i++ {
		add(smallCount - 1)
	}
	for _, n := range []int64{smallCount, -smallCount - 1, math.MaxInt32, math.MinInt32, 1 << 50, -1 << 49} {
		add(n)
	}
	calls := uint64(1<<20 + 5 + 1<<19 + 5 + 6)
	if got := c.GetTelemetry().TotalMetricsCount; got != calls {
		t.Errorf("telemetry counts %d calls, not %d", got, calls)
	}
	c.Flush()
	equalLines(t, r.lines(), []string{fmt.Sprintf("c:%d|c", want)})
	if got := c.GetTelemetry().TotalMetricsCount; got != calls {
		t.Errorf("telemetry counts %d calls after the flush, not %d", got, calls)
	}
}

// TestIdleContextsAreRetired uses handles and calls on contexts that were given up meanwhile.
func TestIdleContextsAreRetired(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation(), WithAggregationInterval(time.Hour),
		WithContextIdleTime(2*time.Hour))
	vec := c.NewCounterVec("v", "l")
	use := func() []string {
		_ = c.Count("c", 1, []string{"a"}, 1)
		_ = c.Gauge("g", 1, nil, 1)
		_ = c.Set("s", "m", nil, 1)
		_ = c.Distribution("d", 1, nil, 1)
		vec.With("x").Inc()
		return []string{"c:1|c|#a", "d:1|d", "g:1|g", "s:m|s", "v:1|c|#l:x"}
	}
	counter, gauge, distribution, set, float := c.NewCounter("hc"), c.NewGauge("hg"), c.NewDistribution("hd"),
		c.NewSet("hs"), c.NewFloatCounter("hf")
	useHandles := func() []string {
		counter.Add(2)
		gauge.Set(2)
		distribution.Observe(2)
		set.Add("n")
		float.Add(0.5)
		return []string{"hc:2|c", "hd:2|d", "hf:0.5|c", "hg:2|g", "hs:n|s"}
	}
	for round := 0; round < 3; round++ {
		want := append(use(), useHandles()...)
		r.reset()
		c.Flush()
		got := r.sorted()
		sortedWant := append([]string(nil), want...)
		sortStrings(sortedWant)
		equalLines(t, got, sortedWant)
		if n := c.Stats().Contexts; n != 10 {
			t.Errorf("%d contexts while in use", n)
		}
		r.reset()
		for i := 0; i < 3; i++ {
			c.Flush()
		}
		equalLines(t, r.lines(), nil)
		if n := c.Stats().Contexts; n != 0 {
			t.Errorf("%d contexts after they were idle", n)
		}
		if n := len(vec.vec.live); n != 0 {
			t.Errorf("%d handles in the family after they were idle", n)
		}
	}
	if got := c.GetTelemetry(); got.TotalMetrics != 30 {
		t.Errorf("telemetry is %+v", got)
	}
}

// TestNothingIsLostWhileContextsAreRetired makes every flush retire contexts not used since the last one, while
// goroutines use them.
func TestNothingIsLostWhileContextsAreRetired(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation(), WithContextIdleTime(1), WithSenderQueueSize(1<<20))
	c.clientEx.core.idleFlushes = 0
	const each = 20000
	stop := make(chan struct{})
	var flusher sync.WaitGroup
	flusher.Add(1)
	go func() {
		defer flusher.Done()
		for {
			select {
			case <-stop:
				return
			default:
				c.Flush()
			}
		}
	}()
	var all sync.WaitGroup
	for g := 0; g < 4; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			h := c.NewCounter("handle")
			d := c.NewDistribution("dist")
			for i := 0; i < each; i++ {
				h.Inc()
				_ = c.Count("call", 2, []string{"a"}, 1)
				d.Observe(1)
				_ = c.Set("set", fmt.Sprint(g, i), nil, 1)
			}
			_ = c.Gauge("gauge", float64(g), nil, 1)
		}()
	}
	all.Wait()
	close(stop)
	flusher.Wait()
	c.Close()
	sums := map[string]int64{}
	for _, l := range r.lines() {
		m := parse(t, l)
		sums[m.name] += m.total()
	}
	want := map[string]int64{"handle": 4 * each, "call": 8 * each, "dist": 4 * each, "set": 4 * each}
	for name, n := range want {
		if sums[name] != n {
			t.Errorf("%s adds up to %d, not %d", name, sums[name], n)
		}
	}
	if tm := c.GetTelemetry(); tm.TotalMetrics != 16*each+4 {
		t.Errorf("telemetry counts %d calls, not %d", tm.TotalMetrics, 16*each+4)
	}
}

func TestContextCap(t *testing.T) {
	c, r := record(t, WithMaxContexts(10), WithExtendedClientSideAggregation())
	for round := 0; round < 2; round++ {
		for i := 0; i < 100; i++ {
			_ = c.Count(fmt.Sprint("n", i), 1, nil, 0.5)
			_ = c.Distribution(fmt.Sprint("d", i), 1, nil, 1)
		}
	}
	h := c.NewCounter("handle")
	h.Inc()
	h.Add(1 << 40)
	c.NewGauge("hg").Set(3)
	c.NewDistribution("hd").Observe(3)
	c.Flush()
	sums := map[string]int64{}
	for _, l := range r.lines() {
		m := parse(t, l)
		sums[m.name] += m.total()
	}
	for i := 0; i < 100; i++ {
		if sums[fmt.Sprint("n", i)] != 2 || sums[fmt.Sprint("d", i)] != 2 {
			t.Fatalf("context %d adds up to %d and %d", i, sums[fmt.Sprint("n", i)], sums[fmt.Sprint("d", i)])
		}
	}
	if sums["handle"] != 1+1<<40 || sums["hg"] != 3 || sums["hd"] != 1 {
		t.Errorf("handles beyond the cap sent %v, %v, %v", sums["handle"], sums["hg"], sums["hd"])
	}
	if s := c.Stats(); s.Contexts != 10 || s.Overflow != 2*190+3 {
		t.Errorf("stats are %+v", s)
	}
	if tm := c.GetTelemetry(); tm.TotalMetrics != 404 {
		t.Errorf("telemetry counts %d", tm.TotalMetrics)
	}
}

// TestFamilyKeepsToTheCap: a label with endless values must not fill the memory.
func TestFamilyKeepsToTheCap(t *testing.T) {
	for _, mode := range []Option{WithClientSideAggregation(), WithoutClientSideAggregation()} {
		c, r := record(t, WithMaxContexts(10), mode)
		v := c.NewCounterVec("v", "l")
		for i := 0; i < 200; i++ {
			v.With(fmt.Sprint(i % 100)).Inc()
		}
		c.Flush()
		sums := map[string]int64{}
		for _, l := range r.lines() {
			m := parse(t, l)
			sums[m.tags] += m.total()
		}
		if len(sums) != 100 || sums["l:7"] != 2 || sums["l:99"] != 2 {
			t.Errorf("%d series arrived: %v", len(sums), sums)
		}
		if n := len(v.vec.live); n > 10 {
			t.Errorf("%d handles are kept", n)
		}
	}
}

func TestManyContextsAreForgottenSoon(t *testing.T) {
	c, r := record(t, WithSenderQueueSize(1<<20))
	for i := 0; i < crowd+10; i++ {
		_ = c.Count(fmt.Sprint("n", i), 1, nil, 1)
	}
	for i := 0; i < 4; i++ {
		_ = c.Count("stays", 1, nil, 1)
		c.Flush()
	}
	if n := c.Stats().Contexts; n != 1 {
		t.Errorf("%d contexts are left", n)
	}
	if n := len(r.lines()); n != crowd+10+4 {
		t.Errorf("%d lines", n)
	}
}

// TestGaugeAddFromManyGoroutines ends at the level all changes add up to.
func TestGaugeAddFromManyGoroutines(t *testing.T) {
	c, r := record(t)
	g := c.NewGauge("g")
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 5000; j++ {
				g.Add(1)
				g.Add(2)
				g.Add(-1)
			}
		}()
	}
	all.Wait()
	c.Flush()
	equalLines(t, r.lines(), []string{"g:80000|g"})
}

// TestHandlesThatDoNothing uses every kind of handle of a client that does nothing, and of none.
func TestHandlesThatDoNothing(t *testing.T) {
	var none *Client
	for _, c := range []HandleInterface{&NoOpClient{}, &NoOpClientDirect{}, none} {
		for i := 0; i < 100; i++ {
			label := fmt.Sprint(i)
			for _, h := range []CounterInterface{c.NewCounter("n", "a:1"), c.NewCounterVec("n", "l").With(label)} {
				h.Inc()
				h.Add(1)
			}
			for _, h := range []FloatCounterInterface{
				c.NewFloatCounter("n"), c.NewFloatCounterVec("n", "l").With(label),
			} {
				h.Add(1)
			}
			for _, h := range []GaugeInterface{c.NewGauge("n"), c.NewGaugeVec("n", "l").With(label)} {
				h.Set(1)
				h.Add(1)
			}
			for _, h := range []ObserverInterface{
				c.NewHistogram("n"), c.NewHistogramVec("n", "l").With(label), c.NewDistribution("n"),
				c.NewDistributionVec("n", "l").With(label),
			} {
				h.Observe(1)
			}
			for _, h := range []TimingInterface{c.NewTiming("n"), c.NewTimingVec("n", "l").With(label)} {
				h.Observe(time.Second)
				h.Since(time.Now())
			}
			for _, h := range []SetInterface{c.NewSet("n"), c.NewSetVec("n", "l").With(label)} {
				h.Add("m")
			}
		}
	}
}
