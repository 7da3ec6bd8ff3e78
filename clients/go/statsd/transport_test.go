package statsd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTransports(t *testing.T) {
	for _, x := range []struct {
		name     string
		serve    func(testing.TB) *server
		prefix   string
		before   string
		after    string
		capacity int
	}{
		{"udp", func(t testing.TB) *server { return serveUDP(t) }, "", "udp", "udp", 1432},
		{"udp scheme", func(t testing.TB) *server { return serveUDP(t) }, "udp://", "udp", "udp", 1432},
		{"unixgram", func(t testing.TB) *server { return serveUnixgram(t, "") }, "unixgram://", "uds", "uds", 8192},
		{"unixstream", func(t testing.TB) *server { return serveStream(t, "unix", "") }, "unixstream://", "uds-stream",
			"uds-stream", 8192},
		{"guessed datagram", func(t testing.TB) *server { return serveUnixgram(t, "") }, "unix://", "uds", "uds", 8192},
		{"guessed stream", func(t testing.TB) *server { return serveStream(t, "unix", "") }, "unix://", "uds",
			"uds-stream", 8192},
		{"tcp", func(t testing.TB) *server { return serveStream(t, "tcp", "") }, "tcp://", "tcp", "tcp", 1432},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := x.serve(t)
			c, err := New(x.prefix+s.address, WithoutTelemetry(), WithoutOriginDetection(),
				WithoutClientSideAggregation(), WithWorkersCount(1),
				WithWriteTimeout(patience), WithConnectTimeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := c.GetTransport(); got != x.before {
				t.Errorf("transport is %q before the first packet", got)
			}
			const n = 5000
			var want []string
			for i := 0; i < n; i++ {
				if err := c.Count(fmt.Sprint("name.", i), int64(i), nil, 1); err != nil {
					t.Fatal(err)
				}
				want = append(want, fmt.Sprintf("name.%d:%d|c", i, i))
				if i%500 == 0 {
					// A queue of any length would do on a socket that pushes back; UDP has only the kernel's buffer.
					c.Flush()
					s.readAll(c)
				}
			}
			c.Flush()
			if got := c.GetTransport(); got != x.after {
				t.Errorf("transport is %q after the first packet", got)
			}
			eventually(t, "all messages", func() bool { return len(s.lines()) == n })
			equalLines(t, s.lines(), want)
			tm := c.GetTelemetry()
			if tm.TotalPayloadsSent != uint64(s.count()) || tm.TotalPayloadsDropped != 0 {
				t.Errorf("telemetry is %+v, %d packets arrived", tm, s.count())
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, p := range s.packets {
				if len(p) > x.capacity || !strings.HasSuffix(p, "\n") {
					t.Fatalf("packet of %d bytes ends in %q", len(p), p[len(p)-3:])
				}
			}
		})
	}
}

// TestManyPacketsWithFewSystemCalls counts how often the kernel is asked to send.
func TestManyPacketsWithFewSystemCalls(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" || !usesUnsafe {
		t.Skip("sendmmsg is used on Linux, amd64 and arm64, only, and not with the build tag purego")
	}
	s := serveUDP(t)
	o := defaultOptions()
	address, err := netip.ParseAddrPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := newUDPTransport(address.Addr().String(), int(address.Port()), o)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	var packets []*packet
	for i := 0; i < batchMax; i++ {
		packets = append(packets, &packet{buf: append(make([]byte, frameHeader), fmt.Sprintf("n:%d|c\n", i)...)})
	}
	errs := make([]error, len(packets))
	tr.writeBatch(packets, errs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if tr.batch.calls != 1 {
		t.Errorf("%d packets took %d system calls", len(packets), tr.batch.calls)
	}
	eventually(t, "all packets", func() bool { return s.count() == len(packets) })
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.packets {
		if p != fmt.Sprintf("n:%d|c\n", i) {
			t.Fatalf("packet %d is %q", i, p)
		}
	}
	if allocs := testing.AllocsPerRun(20, func() { tr.writeBatch(packets[:2], errs) }); allocs != 0 {
		t.Errorf("a batch makes %v allocations", allocs)
	}
}

// resolver answers lookups with the test's addresses.
type resolver struct {
	mu    sync.Mutex
	found []netip.Addr
	err   error
	calls atomic.Int64
	gate  chan struct{}
}

func (r *resolver) set(err error, found ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.found = err, nil
	for _, a := range found {
		r.found = append(r.found, netip.MustParseAddr(a))
	}
}

func (r *resolver) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	r.calls.Add(1)
	if r.gate != nil {
		select {
		case <-r.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found, r.err
}

// serveUDPOn listens at the same port of another loopback address.
func serveUDPOn(t *testing.T, ip string, port int) *server {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip), Port: port})
	if err != nil {
		t.Skipf("this machine has no second loopback address: %v", err)
	}
	s := &server{address: conn.LocalAddr().String()}
	s.readDatagrams(t, conn)
	return s
}

func TestNameIsLookedUpInTheBackgroundAndFollowed(t *testing.T) {
	noLeaks(t)
	first := serveUDP(t)
	_, port, _ := net.SplitHostPort(first.address)
	second := serveUDPOn(t, "127.0.0.2", int(netip.MustParseAddrPort(first.address).Port()))
	r := &resolver{err: errors.New("no such host")}
	var reported atomic.Int64
	c, err := New("agent.test:"+port, WithoutTelemetry(), WithoutOriginDetection(), WithResolver(r.lookup),
		WithResolveInterval(5*time.Millisecond), WithConnectTimeout(20*time.Millisecond),
		WithErrorHandler(func(err error) {
			var u *unresolvedError
			if errors.As(err, &u) {
				reported.Add(1)
			}
		}))
	if err != nil {
		t.Fatalf("a name that does not resolve yet fails construction: %v", err)
	}
	defer c.Close()
	_ = c.Incr("lost", nil, 1)
	c.Flush()
	if tm := c.GetTelemetry(); tm.TotalPayloadsDroppedWriter != 1 || reported.Load() != 1 {
		t.Errorf("telemetry is %+v, reported %d times", tm, reported.Load())
	}
	r.set(nil, "127.0.0.1")
	eventually(t, "metrics at the first address", func() bool {
		_ = c.Incr("n", nil, 1)
		c.Flush()
		return first.count() > 0
	})
	r.set(nil, "127.0.0.2")
	eventually(t, "metrics at the second address", func() bool {
		_ = c.Incr("n", nil, 1)
		c.Flush()
		return second.count() > 0
	})
	// The last good address is kept while lookups fail, and while it is one of several answers.
	r.set(errors.New("server failure"))
	for want := r.calls.Load() + 3; r.calls.Load() < want; {
		time.Sleep(time.Millisecond)
	}
	r.set(nil, "127.0.0.1", "127.0.0.2")
	for want := r.calls.Load() + 3; r.calls.Load() < want; {
		time.Sleep(time.Millisecond)
	}
	// Packets on their way would be counted below.
	eventually(t, "all packets so far", func() bool {
		return uint64(first.count()+second.count()) == c.GetTelemetry().TotalPayloadsSent
	})
	atFirst, atSecond := first.count(), second.count()
	_ = c.Incr("n", nil, 1)
	c.Flush()
	eventually(t, "the metric at the second address", func() bool { return second.count() == atSecond+1 })
	if first.count() != atFirst {
		t.Error("the client went back to the first address")
	}
}

func TestPacketsWaitForTheFirstLookup(t *testing.T) {
	s := serveUDP(t)
	_, port, _ := net.SplitHostPort(s.address)
	r := &resolver{gate: make(chan struct{})}
	r.set(nil, "127.0.0.1")
	c, err := New("agent.test:"+port, WithoutTelemetry(), WithResolver(r.lookup), WithConnectTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.Incr("n", nil, 1)
	flushed := make(chan struct{})
	go func() { c.Flush(); close(flushed) }()
	eventually(t, "a lookup", func() bool { return r.calls.Load() > 0 })
	close(r.gate)
	<-flushed
	eventually(t, "the packet", func() bool { return s.count() == 1 })
}

func TestCloseDuringAnEndlessLookup(t *testing.T) {
	noLeaks(t)
	r := &resolver{gate: make(chan struct{})}
	c, err := New("agent.test:8125", WithoutTelemetry(), WithResolver(r.lookup), WithConnectTimeout(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Incr("n", nil, 1)
	start := time.Now()
	c.Close()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
}

func TestAgentRestarts(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	for _, x := range []struct {
		name  string
		addr  string
		serve func(testing.TB) *server
	}{
		{"unixgram", "unixgram://" + path, func(t testing.TB) *server { return serveUnixgram(t, path) }},
		{"unixstream", "unixstream://" + path, func(t testing.TB) *server { return serveStream(t, "unix", path) }},
		{"guessed", "unix://" + path, func(t testing.TB) *server { return serveUnixgram(t, path) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			noLeaks(t)
			// A socket file of the test before would refuse, and connecting would be tried again after a while.
			_ = os.Remove(path)
			// No agent yet: construction succeeds, packets are dropped and counted.
			c, err := New(x.addr, WithoutTelemetry(), WithoutOriginDetection(), WithWriteTimeout(patience),
				WithConnectTimeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.Incr("lost", nil, 1)
			c.Flush()
			if tm := c.GetTelemetry(); tm.TotalPayloadsDroppedWriter != 1 {
				t.Fatalf("telemetry is %+v", tm)
			}
			for life := 0; life < 3; life++ {
				s := x.serve(t)
				_ = c.Incr(fmt.Sprint("life.", life), nil, 1)
				c.Flush()
				eventually(t, "the metric", func() bool { return s.count() == 1 })
				s.close()
			}
			tm := c.GetTelemetry()
			if tm.TotalPayloadsSent != 3 || tm.TotalPayloadsDropped != 1 {
				t.Errorf("the first packet of a new agent is not sent to it: %+v", tm)
			}
		})
	}
}

// TestStalledAgent is an agent that stops reading: calls stay fast, dropped packets are counted, and the others
// arrive.
func TestStalledAgent(t *testing.T) {
	for _, x := range []struct {
		name   string
		prefix string
		serve  func(testing.TB) *server
	}{
		{"unixgram", "unixgram://", func(t testing.TB) *server { return serveUnixgram(t, "") }},
		{"unixstream", "unixstream://", func(t testing.TB) *server { return serveStream(t, "unix", "") }},
	} {
		t.Run(x.name, func(t *testing.T) {
			noLeaks(t)
			s := x.serve(t)
			c, err := New(x.prefix+s.address, WithoutTelemetry(), WithoutOriginDetection(),
				WithoutClientSideAggregation(),
				WithMaxBytesPerPayload(4000), WithSenderQueueSize(20), WithWriteTimeout(30*time.Millisecond),
				WithWorkersCount(1),
				WithConnectTimeout(300*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			// The reader stops after its first packet.
			s.pause.Lock()
			_ = c.Incr("first", nil, 1)
			c.Flush()
			calls, slowest := 1, time.Duration(0)
			tag := []string{strings.Repeat("t", 500)}
			for tm := (Telemetry{}); tm.TotalPayloadsDroppedQueueFull < 100 ||
				tm.TotalPayloadsDroppedWriter < 3; tm = c.GetTelemetry() {
				for i := 0; i < 100; i++ {
					start := time.Now()
					_ = c.Count("n", 1, tag, 1)
					slowest = max(slowest, time.Since(start))
					calls++
				}
			}
			s.pause.Unlock()
			c.Flush()
			tm := c.GetTelemetry()
			// A cut frame is not seen by the server, and it is counted as dropped.
			eventually(t, "what was sent", func() bool { return uint64(s.count()) == tm.TotalPayloadsSent })
			if tm.TotalPayloadsDropped != tm.TotalPayloadsDroppedQueueFull+tm.TotalPayloadsDroppedWriter ||
				tm.TotalMetricsCount != uint64(calls) {
				t.Errorf("telemetry does not add up after %d calls: %+v", calls, tm)
			}
			bytes := uint64(0)
			s.mu.Lock()
			for _, p := range s.packets {
				bytes += uint64(len(p))
			}
			s.mu.Unlock()
			message := uint64(len("n:1|c|#\n") + 500)
			if total := uint64(len("first:1|c\n")) + uint64(calls-1)*message; bytes != tm.TotalBytesSent ||
				bytes+tm.TotalBytesDropped != total {
				t.Errorf("%d bytes arrived, %d reported sent, %d dropped, %d handed in", bytes, tm.TotalBytesSent,
					tm.TotalBytesDropped, total)
			}
			// A call never waits for the agent. Its time depends on the machine, too, so the gate leaves it out.
			if slowest > 5*time.Second && !testing.Short() {
				t.Errorf("a call took %v", slowest)
			}
			t.Logf("%d calls, the slowest took %v; %d packets dropped", calls, slowest, tm.TotalPayloadsDropped)
		})
	}
}

func TestCloseIsBoundedWhenTheAgentHangs(t *testing.T) {
	// The system accepts connections for an agent that hangs, and each takes as many packets as its buffer holds: many
	// small ones or a single large one.
	for _, size := range []int{8000, 120_000} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			s := serveStream(t, "unix", "")
			const timeout = 50 * time.Millisecond
			// Each failure after the client began to close may have waited for the agent.
			var failures atomic.Int64
			var last error
			var c *Client
			count := func(err error) {
				var full *ErrorSenderChannelFull
				// One failed connection is the reason of several packets.
				if errors.As(err, &full) || errors.Is(err, errClosing) || err == last {
					return
				}
				last = err
				if c.clientEx.core.sender.transport.(*socketTransport).hurried.Load() {
					failures.Add(1)
				}
			}
			c, err := New("unixstream://"+s.address, WithoutTelemetry(), WithoutClientSideAggregation(),
				WithSenderQueueSize(400),
				WithMaxBytesPerPayload(size), WithWriteTimeout(timeout), WithConnectTimeout(timeout),
				WithErrorHandler(count))
			if err != nil {
				t.Fatal(err)
			}
			s.pause.Lock()
			defer s.pause.Unlock()
			_ = c.Incr("first", nil, 1)
			c.Flush()
			tag := []string{strings.Repeat("t", size/2-100)}
			// Until nothing is taken any more, however much the system's buffers hold; then the queue is filled again.
			for end := time.Now().Add(patience); c.GetTelemetry().TotalPayloadsDroppedWriter == 0; {
				if time.Now().After(end) {
					t.Fatal("the system goes on taking packets")
				}
				_ = c.Count("n", 1, tag, 1)
			}
			for i := 0; i < 900; i++ {
				_ = c.Count("n", 1, tag, 1)
			}
			start := time.Now()
			c.Close()
			took := time.Since(start)
			// Earlier failures of the batch under way are reported at its end. With a timeout for each packet there
			// would be more than a hundred.
			if n := failures.Load(); n > batchMax+closePatience {
				t.Errorf("%d packets had a timeout each", n)
			}
			t.Logf("%d failures, Close took %v", failures.Load(), took)
			// With a timeout for each packet it would be 20 s, and on a machine with other work much more. Its time
			// depends on the machine, too, so the gate leaves it out.
			if took > closePatience*timeout+5*time.Second && !testing.Short() {
				t.Errorf("Close took %v", took)
			}
			tm := c.GetTelemetry()
			if tm.TotalPayloadsSent+tm.TotalPayloadsDropped < 400 || tm.TotalPayloadsDroppedWriter == 0 {
				t.Errorf("packets are missing: %+v", tm)
			}
		})
	}
}

func TestErrorsReachTheHandler(t *testing.T) {
	r := &recorder{block: make(chan struct{}), entered: make(chan struct{}, 1)}
	var full, lost atomic.Int64
	var c *Client
	c, err := NewWithWriter(r, WithoutTelemetry(), WithoutClientSideAggregation(), WithSenderQueueSize(2),
		WithMaxMessagesPerPayload(1),
		WithErrorHandler(func(err error) {
			var e *ErrorSenderChannelFull
			if errors.As(err, &e) {
				full.Add(1)
				lost.Add(int64(e.LostElements))
				// A handler may use the client.
				if full.Load() < 3 {
					_ = c.Incr("dropped", nil, 1)
				}
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 300; i++ {
		_ = c.Histogram("h", 1, nil, 1)
	}
	close(r.block)
	c.Close()
	tm := c.GetTelemetry()
	if full.Load() == 0 || lost.Load() != int64(tm.TotalPayloadsDroppedQueueFull) {
		t.Errorf("%d losses reported, telemetry is %+v", lost.Load(), tm)
	}
	if got := uint64(len(r.lines())); got+uint64(lost.Load()) != tm.TotalMetrics {
		t.Errorf("%d arrived, %d lost, %d sent", got, lost.Load(), tm.TotalMetrics)
	}
}

func TestChannelMode(t *testing.T) {
	noLeaks(t)
	r := &recorder{block: make(chan struct{}), entered: make(chan struct{}, 1)}
	var handled atomic.Int64
	c, err := NewWithWriter(r, WithoutTelemetry(), WithoutOriginDetection(), WithChannelMode(),
		WithChannelModeBufferSize(10), WithWorkersCount(1),
		WithChannelModeErrorsWhenFull(), WithErrorHandler(func(err error) {
			var e *ErrorInputChannelFull
			if errors.As(err, &e) {
				handled.Add(1)
				if e.ChannelSize != 10 || e.Metric.String() != "histogram h [a:1]" {
					t.Errorf("the error is %+v", e)
				}
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	// Holding the worker keeps its goroutine from taking messages.
	in, w := &c.clientEx.core.inboxes[0], &c.clientEx.core.workers[0]
	w.mu.Lock()
	_ = c.Histogram("h", 0, []string{"a:1"}, 1)
	eventually(t, "the goroutine is held up", func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.busy
	})
	failed := 0
	for i := 1; i <= 50; i++ {
		if err := c.Histogram("h", float64(i), []string{"a:1"}, 1); err != nil {
			failed++
		}
	}
	w.mu.Unlock()
	_ = c.Count("c", 1, nil, 1)
	close(r.block)
	c.Close()
	tm := c.GetTelemetry()
	if failed != 40 || handled.Load() != 40 || tm.TotalDroppedOnReceive != 40 || tm.TotalMetricsHistogram != 51 {
		t.Errorf("%d calls failed, %d handled, telemetry is %+v", failed, handled.Load(), tm)
	}
	if got := len(r.lines()); got != 12 {
		t.Errorf("%d messages arrived: %v", got, r.lines())
	}
}

func TestFlushIntervalSendsWithoutFlush(t *testing.T) {
	s := serveUDP(t)
	c, err := New(s.address, WithoutTelemetry(), WithBufferFlushInterval(5*time.Millisecond),
		WithAggregationInterval(5*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := 1; i <= 3; i++ {
		_ = c.Histogram("h", 1, nil, 1)
		_ = c.Count("c", 1, nil, 1)
		eventually(t, "both metrics", func() bool { return len(s.lines()) == 2*i })
	}
}

func TestTelemetry(t *testing.T) {
	s := serveUDP(t)
	other := serveUnixgram(t, "")
	c, err := New(s.address, WithNamespace("ns"), WithTags([]string{"g:1"}), WithContainerID("id"),
		WithTelemetryAddr("unixgram://"+other.address), WithCardinality(CardinalityLow),
		WithWriteTimeout(patience), WithAggregationInterval(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.clientEx.core.telemetry.worker.out.maxBytes; got != DefaultMaxAgentPayloadSize {
		t.Errorf("telemetry over a Unix socket uses packets of %d bytes", got)
	}
	_ = c.Incr("a", nil, 1)
	_ = c.Incr("a", nil, 1)
	_ = c.Distribution("d", 1, nil, 1)
	_ = c.SimpleEvent("e", "")
	c.Flush()
	tags := "|c|#g:1,client:weir-go,client_version:" + version + ",client_transport:udp"
	end := "|c:id|card:low"
	for round := 0; round < 2; round++ {
		before := other.count()
		c.clientEx.core.telemetry.report()
		eventually(t, "telemetry", func() bool { return other.count() > before })
		n := map[string]int{}
		if round == 0 {
			n = map[string]int{"metrics": 3, "count": 2, "distribution": 1, "events": 1,
				"packets_sent": int(c.GetTelemetry().TotalPayloadsSent),
				"bytes_sent":   int(c.GetTelemetry().TotalBytesSent), "contexts": 1}
		}
		var want []string
		line := func(name string, value int, byType string) {
			if byType != "" {
				byType = ",metrics_type:" + byType
			}
			want = append(want, fmt.Sprintf("datadog.dogstatsd.client.%s:%d%s%s%s", name, value, tags, byType, end))
		}
		line("metrics", n["metrics"], "")
		for _, k := range []string{"gauge", "count", "histogram", "distribution", "set", "timing"} {
			line("metrics_by_type", n[k], k)
		}
		line("events", n["events"], "")
		for _, k := range []string{"service_checks", "metric_dropped_on_receive", "packets_sent", "packets_dropped",
			"packets_dropped_queue", "packets_dropped_writer", "bytes_dropped", "bytes_sent", "bytes_dropped_queue",
			"bytes_dropped_writer"} {
			line(k, n[k], "")
		}
		line("aggregated_context", n["contexts"], "")
		for _, k := range []string{"gauge", "set", "count", "histogram", "distribution", "timing"} {
			value := 0
			if k == "count" {
				value = n["contexts"]
			}
			line("aggregated_context_by_type", value, k)
		}
		got := other.lines()
		equalLines(t, got[len(got)-len(want):], want)
	}
	plain, r := record(t, WithoutClientSideAggregation())
	own := &telemetry{core: plain.clientEx.core, scope: plain.clientEx.scope, name: "go",
		worker: &plain.clientEx.core.workers[0]}
	own.report()
	plain.Flush()
	if l := r.lines(); len(l) != 18 ||
		l[0] != "datadog.dogstatsd.client.metrics:0|c|#client:go,client_version:"+version+",client_transport:custom" {
		t.Errorf("telemetry without aggregation is %q", l)
	}
}
