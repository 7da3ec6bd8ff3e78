package statsd

import (
	"fmt"
	"math/rand"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestTotalsAfterClose sends a random mix from 8 goroutines and compares received with sent samples, to the last
// sample.
func TestTotalsAfterClose(t *testing.T) {
	transports := []struct {
		name, prefix string
		serve        func(testing.TB) *server
		paced        bool
	}{
		{"udp", "", serveUDP, true},
		{"unixgram", "unixgram://", func(t testing.TB) *server { return serveUnixgram(t, "") }, false},
		{"unixstream", "unixstream://", func(t testing.TB) *server { return serveStream(t, "unix", "") }, false},
	}
	modes := map[string][]Option{
		"default":        nil,
		"extended":       {WithExtendedClientSideAggregation()},
		"not aggregated": {WithoutClientSideAggregation()},
		"channel":        {WithChannelMode(), WithChannelModeBufferSize(1 << 20)},
		"few contexts":   {WithExtendedClientSideAggregation(), WithMaxContexts(5), WithContextIdleTime(1)},
	}
	names := make([]string, 0, len(modes))
	for mode := range modes {
		names = append(names, mode)
	}
	sort.Strings(names)
	for _, x := range transports {
		for _, mode := range names {
			t.Run(x.name+"/"+mode, func(t *testing.T) {
				noLeaks(t)
				s := x.serve(t)
				// The receiver's machine may be busy: a packet must not be dropped for a slow reader, and the queue
				// must hold all.
				options := append([]Option{WithoutTelemetry(), WithSenderQueueSize(1 << 20), WithWriteTimeout(patience),
					WithAggregationInterval(3 * time.Millisecond),
					WithBufferFlushInterval(2 * time.Millisecond)}, modes[mode]...)
				c, err := New(x.prefix+s.address, options...)
				if err != nil {
					t.Fatal(err)
				}
				seed := SeedOf(t)
				pace := func() {}
				if x.paced {
					pace = func() {
						c.Flush()
						if !s.readAll(c) {
							t.Error("the server does not get what was sent")
						}
					}
				}
				const goroutines, calls = 8, 4000
				var all sync.WaitGroup
				want := make([]map[string]int64, goroutines)
				for g := range want {
					want[g] = map[string]int64{}
					all.Add(1)
					go func() {
						defer all.Done()
						mixture(c, rand.New(rand.NewSource(seed+int64(g))), g, calls, want[g], pace)
					}()
				}
				all.Wait()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				tm := c.GetTelemetry()
				handleSets := uint64(0)
				for _, w := range want {
					handleSets += uint64(w["sets of the gauge handle"])
					delete(w, "sets of the gauge handle")
				}
				// A gauge handle counts once per flush, everything else each time.
				counted := tm.TotalMetrics <= goroutines*calls &&
					tm.TotalMetrics >= goroutines*calls-handleSets+goroutines
				if !counted || tm.TotalPayloadsDropped != 0 || tm.TotalDroppedOnReceive != 0 {
					t.Errorf("telemetry after %d calls: %+v", goroutines*calls, tm)
				}
				eventually(t, "all packets", func() bool { return uint64(s.count()) == tm.TotalPayloadsSent })
				got, members := map[string]int64{}, map[string]bool{}
				for _, l := range s.lines() {
					p := parse(t, l)
					key := p.name + "|" + p.kind + "|" + p.tags
					switch p.kind {
					case "s":
						if m := key + p.values[0]; !members[m] {
							members[m] = true
							got[key]++
						}
					case "g":
						got[key] = p.total()
					default:
						got[key] += p.total()
					}
				}
				sum := map[string]int64{}
				for _, w := range want {
					for k, n := range w {
						sum[k] += n
					}
				}
				for k, n := range sum {
					if got[k] != n {
						t.Errorf("%s is %d, not %d", k, got[k], n)
					}
				}
				if len(got) != len(sum) {
					t.Errorf("%d series arrived, not %d", len(got), len(sum))
				}
			})
		}
	}
}

// mixture makes calls of all kinds through all interfaces, and notes what the receiver should count. Sets and gauges
// are of this goroutine alone, since what others do to them depends on the order. It calls pace now and then.
func mixture(c *Client, r *rand.Rand, g, calls int, want map[string]int64, pace func()) {
	counter, distribution := c.NewCounter("handle", "a:1"), c.NewDistribution("handle.d", "a:1")
	gauge := c.NewGauge(fmt.Sprint("handle.g", g))
	vec := c.NewCounterVec("vec", "l")
	child := c.Child("child", "c:1")
	buffer := []byte("tag:0")
	seen := map[string]bool{}
	for i := 0; i < calls; i++ {
		n := int64(r.Intn(1000) - 500)
		k := r.Intn(7)
		tag := fmt.Sprint("k:", k)
		switch r.Intn(12) {
		case 0, 1:
			_ = c.Count("count", n, []string{tag, "b"}, 1)
			want["count|c|"+tag+",b"] += n
		case 2:
			buffer[4] = byte('0' + k)
			_ = c.Count("reused", n, []string{alias(buffer)}, 1)
			want["reused|c|"+string(buffer)] += n
		case 3:
			counter.Add(n)
			want["handle|c|a:1"] += n
		case 4:
			vec.With(fmt.Sprint(k)).Inc()
			want["vec|c|l:"+fmt.Sprint(k)]++
		case 5:
			_ = c.Distribution("dist", float64(n), []string{tag}, 1)
			want["dist|d|"+tag]++
		case 6:
			distribution.Observe(float64(n))
			want["handle.d|d|a:1"]++
		case 7:
			_ = c.Timing("timing", time.Duration(i), nil, 1)
			want["timing|ms|"]++
		case 8:
			name := fmt.Sprint("set", g)
			_ = c.Set(name, fmt.Sprint(n), nil, 1)
			if m := fmt.Sprint(n); !seen[m] {
				seen[m] = true
				want[name+"|s|"]++
			}
		case 9:
			name := fmt.Sprint("gauge", g)
			_ = c.Gauge(name, float64(i), nil, 1)
			want[name+"|g|"] = int64(i)
		case 10:
			gauge.Set(float64(i))
			want["sets of the gauge handle"]++
			want[fmt.Sprint("handle.g", g)+"|g|"] = int64(i)
		case 11:
			_ = child.Incr("count", []string{"own"}, 1)
			want["child.count|c|c:1,own"]++
		}
		if i%100 == 99 {
			pace()
			runtime.Gosched()
		}
	}
}

// TestOrderOfGaugesWithoutRoom: a gauge that finds no room in the table is sent at once, and its next value, which
// finds some, comes after it all the same.
func TestOrderOfGaugesWithoutRoom(t *testing.T) {
	for mode, options := range map[string][]Option{"default": nil, "channel": {WithChannelMode()}} {
		c, r := record(t, append(options, WithMaxContexts(1), WithContextIdleTime(1))...)
		_ = c.Count("other", 1, nil, 1)
		_ = c.Gauge("g", 1, nil, 1)
		if c.Stats().Overflow != 1 {
			t.Fatalf("%s: there was room for both", mode)
		}
		for c.Stats().Contexts > 0 {
			c.clientEx.core.flushSeries(false, flushAll)
		}
		_ = c.Gauge("g", 2, nil, 1)
		if c.Stats().Contexts != 1 {
			t.Fatalf("%s: there is no room yet", mode)
		}
		c.Flush()
		equalLines(t, r.lines(), []string{"g:1|g", "other:1|c", "g:2|g"})
	}
}

// TestHandlerFlushesWhatAFlushLost: an error handler may use the client, also when it is called for a gauge that a
// flush had to send and for which the queue had no room.
func TestHandlerFlushesWhatAFlushLost(t *testing.T) {
	r := &recorder{block: make(chan struct{}), entered: make(chan struct{}, 1)}
	var c *Client
	told := make(chan struct{})
	var once sync.Once
	handler := func(error) {
		once.Do(func() {
			c.clientEx.core.flushSeries(false, flushAll)
			close(told)
		})
	}
	c, err := NewWithWriter(r, WithoutTelemetry(), WithoutOriginDetection(), WithAggregationInterval(time.Hour),
		WithBufferFlushInterval(time.Hour),
		WithSenderQueueSize(1), WithMaxContexts(1), WithErrorHandler(handler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	core := c.clientEx.core
	// One packet is being written, and one waits: the queue is full.
	_ = c.Count("other", 1, nil, 1)
	core.flushSeries(false, flushAll)
	<-r.entered
	_ = c.Count("other", 2, nil, 1)
	core.flushSeries(false, flushAll)
	_ = c.Gauge("g", 1, nil, 1)
	_ = c.Count("other", 3, nil, 1)
	go core.flushSeries(false, flushAll)
	eventually(t, "the gauge is dropped", func() bool { return c.GetTelemetry().TotalPayloadsDroppedQueueFull == 1 })
	close(r.block)
	select {
	case <-told:
	case <-time.After(patience):
		t.Fatal("the handler hangs")
	}
	c.Flush()
	equalLines(t, r.lines(), []string{"other:1|c", "other:2|c", "other:3|c"})
}

// TestOrderOfGauges: the last value of a gauge is the last one on the wire, however it is sent.
func TestOrderOfGauges(t *testing.T) {
	for mode, options := range map[string][]Option{
		"not aggregated": {WithoutClientSideAggregation()}, "channel": {WithoutClientSideAggregation(),
			WithChannelMode(), WithChannelModeBufferSize(1 << 20)},
	} {
		c, r := record(t, append(options, WithSenderQueueSize(1<<20))...)
		var all sync.WaitGroup
		for g := 0; g < 8; g++ {
			all.Add(1)
			go func() {
				defer all.Done()
				name := fmt.Sprint("g", g)
				for i := 0; i < 3000; i++ {
					_ = c.Gauge(name, float64(i), nil, 1)
					_ = c.Count("other", 1, nil, 1)
				}
			}()
		}
		all.Wait()
		c.Close()
		last := map[string]string{}
		for _, l := range r.lines() {
			if p := parse(t, l); p.kind == "g" {
				last[p.name] = p.values[0]
			}
		}
		for g := 0; g < 8; g++ {
			if v := last[fmt.Sprint("g", g)]; v != "2999" {
				t.Errorf("%s: gauge %d ends at %s", mode, g, v)
			}
		}
	}
}

// TestEverythingAtOnce lets calls, flushes, snapshots, children, handles and Close run into each other. It is for the
// race detector.
func TestEverythingAtOnce(t *testing.T) {
	noLeaks(t)
	c, r := record(t, WithExtendedClientSideAggregation(), WithAggregationInterval(time.Millisecond),
		WithBufferFlushInterval(time.Millisecond),
		WithContextIdleTime(1), WithMaxContexts(50))
	var all sync.WaitGroup
	var made atomic.Int64
	half := make(chan struct{})
	for g := 0; g < 8; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			gauge := c.NewGauge("level")
			vec := c.NewGaugeVec("v", "l")
			for i := 0; i < 3000; i++ {
				if made.Add(1) == 8*3000/2 {
					close(half)
				}
				switch i % 8 {
				case 0:
					_ = c.Count(fmt.Sprint("n", i%100), 1, []string{"a"}, 1)
				case 1:
					gauge.Add(1)
				case 2:
					vec.With(fmt.Sprint(i % 90)).Set(1)
				case 3:
					_ = c.Child("x", fmt.Sprint(i)).Set("s", "m", nil, 1)
				case 4:
					_ = c.GetTelemetry()
				case 5:
					_ = c.Stats()
				case 6:
					_ = c.Histogram(strings.Repeat("n", i%50+1), 1, nil, 0.5)
				case 7:
					if i%400 == 7 {
						_ = c.Flush()
					}
				}
			}
		}()
	}
	all.Add(1)
	go func() {
		defer all.Done()
		<-half
		c.Close()
	}()
	all.Wait()
	if n := len(r.lines()); n < 1000 {
		t.Errorf("only %d lines were sent", n)
	}
}
