package main

import (
	"fmt"
	"io"
	"math/rand"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"time"

	datadog "github.com/DataDog/datadog-go/v5/statsd"
	weir "github.com/weir-dev/weir/clients/go/statsd"
)

// A service: goroutines that make a mixture of calls at a steady rate, over a Unix datagram socket to a receiver that
// keeps up.
const (
	serviceGoroutines = 8
	serviceRate       = 1_000_000
	serviceContexts   = 1000
)

// serviceRun has the cost of one run of the service.
type serviceRun struct {
	calls          int
	cpu            time.Duration
	packets, bytes uint64
	lost           float64
	p99, slowest   time.Duration
	heap           uint64
	collections    uint32
	allocated      uint64
}

type serviceClient interface {
	statter
	Distribution(name string, value float64, tags []string, rate float64) error
	Timing(name string, value time.Duration, tags []string, rate float64) error
}

// service makes 60 % counts, 15 % gauges, 20 % distributions and 5 % timings. Every 64th call is timed.
func service(connect func(address string) serviceClient, sent func(c serviceClient) (packets, bytes uint64),
	duration time.Duration) serviceRun {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU()))
	r := startReceiver("unixgram-drain")
	c := connect("unixgram://" + r.address)
	names, lists := namesOf(serviceContexts), make([][]string, 16)
	for i := range lists {
		lists[i] = []string{"env:prod-01", "region:eu-1", "shard:" + strconv.Itoa(i)}
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := processorTime()
	begin := time.Now()
	latencies := make([][]time.Duration, serviceGoroutines)
	var all sync.WaitGroup
	counts := make([]int, serviceGoroutines)
	for g := range latencies {
		all.Add(1)
		latencies[g] = make([]time.Duration, 0, 1<<16)
		go func() {
			defer all.Done()
			random := rand.New(rand.NewSource(int64(g)))
			// A burst for each millisecond, so that pacing itself costs little.
			const burst = serviceRate / serviceGoroutines / 1000
			for turn := 1; ; turn++ {
				for i := 0; i < burst; i++ {
					n := random.Uint32()
					name, tags := names[n%serviceContexts], lists[n%serviceContexts%16]
					var start time.Time
					if i&63 == 0 {
						start = time.Now()
					}
					switch k := n >> 16 % 100; {
					case k < 60:
						_ = c.Count(name, 1, tags, 1)
					case k < 75:
						_ = c.Gauge(name, float64(n>>20), tags, 1)
					case k < 95:
						_ = c.Distribution(name, float64(n>>18)/100, tags, 1)
					default:
						_ = c.Timing(name, time.Duration(n>>8), tags, 1)
					}
					if i&63 == 0 && len(latencies[g]) < cap(latencies[g]) {
						latencies[g] = append(latencies[g], time.Since(start))
					}
				}
				counts[g] += burst
				next := time.Duration(turn) * time.Millisecond
				if next >= duration {
					return
				}
				if wait := next - time.Since(begin); wait > 0 {
					time.Sleep(wait)
				}
			}
		}()
	}
	all.Wait()
	_ = c.Flush()
	run := serviceRun{cpu: processorTime() - cpu}
	runtime.ReadMemStats(&after)
	run.packets, run.bytes = sent(c)
	run.lost = lostOf(c)
	_ = c.Close()
	r.stop()
	var times []time.Duration
	for g := range latencies {
		run.calls += counts[g]
		times = append(times, latencies[g]...)
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	run.p99, run.slowest = times[len(times)*99/100], times[len(times)-1]
	run.heap, run.collections, run.allocated = after.HeapInuse, after.NumGC-before.NumGC,
		after.TotalAlloc-before.TotalAlloc
	return run
}

func oursInService(options ...weir.Option) func(duration time.Duration) serviceRun {
	return func(duration time.Duration) serviceRun {
		return service(func(address string) serviceClient {
			c, err := weir.New(address, options...)
			if err != nil {
				panic(err)
			}
			return c
		}, func(c serviceClient) (uint64, uint64) {
			t := c.(*weir.Client).GetTelemetry()
			return t.TotalPayloadsSent, t.TotalBytesSent
		}, duration)
	}
}

func theirsInService(options ...datadog.Option) func(duration time.Duration) serviceRun {
	return func(duration time.Duration) serviceRun {
		return service(func(address string) serviceClient {
			c, err := datadog.New(address, options...)
			if err != nil {
				panic(err)
			}
			return c
		}, func(c serviceClient) (uint64, uint64) {
			t := c.(*datadog.Client).GetTelemetry()
			return t.TotalPayloadsSent, t.TotalBytesSent
		}, duration)
	}
}

// serviceTable runs the service alternately, ours and theirs, theirs and ours, and writes the median run of each.
func serviceTable(w io.Writer, duration time.Duration) {
	fmt.Fprintf(w, "| options | client | processor time | of it beside an idle loop | packets, MB sent | p99, "+
		"slowest call | heap, allocated | collections | lost |\n|---|---|---|---|---|---|---|---|---|\n")
	idle := service(func(string) serviceClient { return nothing{} }, func(serviceClient) (uint64, uint64) {
		return 0,
			0
	}, duration).cpu
	for _, mode := range []struct {
		name         string
		ours, theirs func(time.Duration) serviceRun
	}{
		{"default", oursInService(), theirsInService()},
		{"packed values", oursInService(packOurs...), theirsInService(packTheirs...)},
	} {
		a, d := mode.ours(duration), mode.theirs(duration)
		d2, a2 := mode.theirs(duration), mode.ours(duration)
		for _, x := range []struct {
			client   string
			one, two serviceRun
		}{{"ours", a, a2}, {"datadog-go", d, d2}} {
			cpu := (x.one.cpu + x.two.cpu) / 2
			r := x.one
			fmt.Fprintf(w, "| %s | %s | %.2f s | %.2f s | %d, %.1f | %v, %v | %.1f MB, %.1f MB | %d | %.1f %% |\n",
				mode.name, x.client, cpu.Seconds(),
				max(cpu-idle, 0).Seconds(), r.packets, float64(r.bytes)/1e6, max(r.p99, x.two.p99), max(r.slowest,
					x.two.slowest),
				float64(r.heap)/1e6, float64(r.allocated)/1e6, r.collections, 100*max(r.lost, x.two.lost))
		}
	}
}

// nothing is a client that does nothing, for the cost of the loop itself.
type nothing struct{}

func (nothing) Flush() error                                          { return nil }
func (nothing) Close() error                                          { return nil }
func (nothing) Count(string, int64, []string, float64) error          { return nil }
func (nothing) Gauge(string, float64, []string, float64) error        { return nil }
func (nothing) Set(string, string, []string, float64) error           { return nil }
func (nothing) Histogram(string, float64, []string, float64) error    { return nil }
func (nothing) Distribution(string, float64, []string, float64) error { return nil }
func (nothing) Timing(string, time.Duration, []string, float64) error { return nil }
