package statsd

import (
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hot calls a handle until a flush has given its series lanes, and returns the number of calls.
func hot(t *testing.T, c *Client, h *handle, call func()) int {
	t.Helper()
	for i := 0; i < hotCalls; i++ {
		call()
	}
	c.Flush()
	if has := h.series.Load().lanes.Load() != nil; has != pinning {
		t.Fatalf("the series has lanes: %v", has)
	}
	return hotCalls
}

// sumOf returns the sum and the number of received values of a name.
func sumOf(t *testing.T, lines []string, name string) (sum float64, values int) {
	t.Helper()
	for _, l := range lines {
		rest, ok := strings.CutPrefix(l, name+":")
		if !ok {
			continue
		}
		text, _, _ := strings.Cut(rest, "|")
		for _, v := range strings.Split(text, ":") {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += f
			values++
		}
	}
	return sum, values
}

// TestLanesLoseNothing: handles are called from many goroutines while flushes run, and while series are given up for
// being idle, again and again. Sums, numbers of values and telemetry are exact at the end, and the gauge is at its
// last value.
func TestLanesLoseNothing(t *testing.T) {
	c, r := record(t, WithContextIdleTime(time.Nanosecond), WithSenderQueueSize(1<<20))
	counter, gauge, values, timing := c.NewCounter("c"), c.NewGauge("g"), c.NewDistribution("d"), c.NewTiming("t")
	calls := hot(t, c, &counter.handle, counter.Inc)
	observed := hot(t, c, &values.handle, func() { values.Observe(1) })
	stop := make(chan struct{})
	var flusher, all sync.WaitGroup
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
	const goroutines, bursts, burst = 8, 20, 3000
	for g := 0; g < goroutines; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < bursts; i++ {
				for j := 0; j < burst; j++ {
					counter.Inc()
					counter.Add(2)
					gauge.Set(float64(j))
					values.Observe(0.5)
					timing.Observe(time.Millisecond)
				}
				// Long enough without a call for some series to be given up.
				for n := c.GetTelemetry().AggregationNbContext; c.Stats().Contexts > 1; runtime.Gosched() {
					if c.GetTelemetry().AggregationNbContext > n+20 {
						break
					}
				}
			}
		}()
	}
	all.Wait()
	close(stop)
	flusher.Wait()
	gauge.Set(-7)
	c.Flush()
	lines := r.lines()
	const n = goroutines * bursts * burst
	if sum, _ := sumOf(t, lines, "c"); sum != float64(calls+3*n) {
		t.Errorf("the counter is %v instead of %d", sum, calls+3*n)
	}
	if sum, got := sumOf(t, lines, "d"); got != observed+n || sum != float64(observed)+n/2 {
		t.Errorf("%d values of %v instead of %d of %v", got, sum, observed+n, float64(observed)+n/2)
	}
	if sum, got := sumOf(t, lines, "t"); got != n || sum != n {
		t.Errorf("%d timings of %v instead of %d", got, sum, n)
	}
	last := ""
	for _, l := range lines {
		if strings.HasPrefix(l, "g:") {
			last = l
		}
	}
	if last != "g:-7|g" {
		t.Errorf("the last value of the gauge is %q", last)
	}
	tm := c.GetTelemetry()
	if tm.TotalMetricsCount != uint64(calls+2*n) || tm.TotalMetricsDistribution != uint64(observed+n) ||
		tm.TotalMetricsTiming != n || tm.TotalPayloadsDropped != 0 {
		t.Errorf("telemetry is %+v", tm)
	}
}

// TestGaugesOfHandlesNeverGoBack: one goroutine sets rising values while others flush and series are given up.
func TestGaugesOfHandlesNeverGoBack(t *testing.T) {
	c, r := record(t, WithContextIdleTime(time.Nanosecond), WithSenderQueueSize(1<<20))
	g := c.NewGauge("g")
	var done atomic.Bool
	var flusher sync.WaitGroup
	flusher.Add(1)
	go func() {
		defer flusher.Done()
		for !done.Load() {
			c.Flush()
		}
	}()
	for i := 1; i <= 200000; i++ {
		g.Set(float64(i))
		if i%1000 == 0 {
			runtime.Gosched()
		}
	}
	done.Store(true)
	flusher.Wait()
	c.Flush()
	last := 0.0
	for _, l := range r.lines() {
		v, _ := sumOf(t, []string{l}, "g")
		if v < last {
			t.Fatalf("%v after %v", v, last)
		}
		last = v
	}
	if last != 200000 {
		t.Errorf("the last value is %v", last)
	}
}

// TestLanesGoWithIdleSeries: lanes are taken away before a series is retired, and their remaining values are sent.
func TestLanesGoWithIdleSeries(t *testing.T) {
	c, r := record(t, WithContextIdleTime(time.Nanosecond))
	counter, values := c.NewCounter("c"), c.NewDistribution("d")
	n := hot(t, c, &counter.handle, counter.Inc)
	hot(t, c, &values.handle, func() { values.Observe(1) })
	x := counter.series.Load()
	counter.Inc()
	values.Observe(1)
	if tm := c.GetTelemetry(); tm.TotalMetricsCount != uint64(n+1) || tm.TotalMetricsDistribution != uint64(n+1) {
		t.Errorf("what is in lanes is not counted: %+v", tm)
	}
	for i := 0; c.Stats().Contexts > 0; i++ {
		if c.Flush(); i > 100 {
			t.Fatal("idle series are kept")
		}
	}
	if x.lanes.Load() != nil {
		t.Error("a retired series has lanes")
	}
	counter.Inc()
	values.Observe(1)
	c.Flush()
	if sum, _ := sumOf(t, r.lines(), "c"); sum != float64(n+2) {
		t.Errorf("the counter is %v", sum)
	}
	if _, got := sumOf(t, r.lines(), "d"); got != n+2 {
		t.Errorf("%d values arrived", got)
	}
}

// TestMoreProcessorsThanLanes: GOMAXPROCS can be raised while the program runs.
func TestMoreProcessorsThanLanes(t *testing.T) {
	c, r := record(t)
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	counter, values := c.NewCounter("c"), c.NewDistribution("d")
	n := hot(t, c, &counter.handle, counter.Inc)
	hot(t, c, &values.handle, func() { values.Observe(1) })
	runtime.GOMAXPROCS(8)
	var all sync.WaitGroup
	for g := 0; g < 16; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < 5000; i++ {
				counter.Inc()
				values.Observe(1)
			}
		}()
	}
	all.Wait()
	c.Flush()
	if sum, _ := sumOf(t, r.lines(), "c"); sum != float64(n+16*5000) {
		t.Errorf("the counter is %v", sum)
	}
	if _, got := sumOf(t, r.lines(), "d"); got != n+16*5000 {
		t.Errorf("%d values arrived", got)
	}
}

// TestALiveCounterIsSmall measures the memory of a counter with five tags, tables and packets included.
func TestALiveCounterIsSmall(t *testing.T) {
	const contexts = 20000
	names := make([]string, contexts)
	for i := range names {
		names[i] = fmt.Sprintf("service.http.%07d", i)
	}
	tags := []string{"env:prod-01", "region:eu-1", "status:2001", "method:POST", "shard:00017"}
	c, err := NewWithWriter(discardWriter{}, WithoutTelemetry(), WithoutOriginDetection(),
		WithAggregationInterval(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := heapInUse()
	for round := 0; round < 3; round++ {
		for _, name := range names {
			_ = c.Count(name, 1, tags, 1)
		}
		c.Flush()
	}
	each := (heapInUse() - before) / contexts
	t.Logf("%d bytes for each of %d counters", each, contexts)
	if each > 300 && usesUnsafe {
		t.Errorf("a live counter takes %d bytes", each)
	}
	runtime.KeepAlive(names)
}

type discardWriter struct{}

func (discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (discardWriter) Close() error                { return nil }

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// TestBuildWithoutUnsafe asks the compiler's own list: with the build tag purego the package does not import unsafe, on
// any system.
func TestBuildWithoutUnsafe(t *testing.T) {
	imports := func(goos string, args ...string) string {
		cmd := exec.Command("go", append([]string{"list", "-f", "{{join .Imports \" \"}}"}, args...)...)
		cmd.Env = append(cmd.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, out)
		}
		return " " + strings.TrimSpace(string(out)) + " "
	}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		if list := imports(goos, "-tags", "purego", "."); strings.Contains(list, " unsafe ") || !strings.Contains(list,
			" sync ") {
			t.Errorf("%s: the package imports%s", goos, list)
		}
		if list := imports(goos, "."); !strings.Contains(list, " unsafe ") {
			t.Errorf("%s: without the tag unsafe is not imported, so this test shows nothing:%s", goos, list)
		}
	}
}
