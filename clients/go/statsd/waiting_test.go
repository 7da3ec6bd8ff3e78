package statsd

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestCallsDoNotWaitForAFlush: a flush waits for an agent that hangs. Calls that write into the same packet must not
// wait with it.
func TestCallsDoNotWaitForAFlush(t *testing.T) {
	r := &recorder{block: make(chan struct{}), entered: make(chan struct{}, 1)}
	c, err := NewWithWriter(r, WithoutTelemetry(), WithoutOriginDetection(), WithWorkersCount(1),
		WithSenderQueueSize(1),
		WithAggregationInterval(time.Hour), WithBufferFlushInterval(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	core := c.clientEx.core
	at := time.Unix(1700000000, 0)
	// One packet is with the agent, one fills the queue, and the third is what the flush waits with.
	_ = c.GaugeWithTimestamp("g", 1, nil, 1, at)
	core.flushWorkers(false)
	<-r.entered
	_ = c.GaugeWithTimestamp("g", 2, nil, 1, at)
	core.flushWorkers(false)
	_ = c.GaugeWithTimestamp("g", 3, nil, 1, at)
	flushed := make(chan struct{})
	go func() { c.Flush(); close(flushed) }()
	eventually(t, "the flush waits for room", func() bool {
		core.out.queue.mu.Lock()
		defer core.out.queue.mu.Unlock()
		return core.out.queue.waiters > 0
	})
	called := make(chan struct{})
	go func() {
		_ = c.GaugeWithTimestamp("g", 4, nil, 1, at)
		_ = c.CountWithTimestamp("c", 4, nil, 1, at)
		_ = c.SimpleEvent("e", "")
		_ = c.SimpleServiceCheck("s", Ok)
		_ = c.Timing("t", time.Second, nil, 1)
		_ = c.GetTelemetry()
		close(called)
	}()
	select {
	case <-called:
	case <-time.After(patience / 4):
		t.Error("calls wait for the network")
	}
	select {
	case <-flushed:
		t.Error("the flush did not wait")
	default:
	}
	close(r.block)
	<-called
	<-flushed
	c.Close()
	// Nothing was dropped, and the gauge has kept its order.
	equalLines(t, r.lines(), []string{"g:1|g|T1700000000", "g:2|g|T1700000000", "g:3|g|T1700000000",
		"g:4|g|T1700000000",
		"c:4|c|T1700000000", "_e{1,0}:e|", "_sc|s|0", "t:1000.000000|ms"})
	if tm := c.GetTelemetry(); tm.TotalPayloadsDropped != 0 {
		t.Errorf("telemetry is %+v", tm)
	}
}

// TestTheCallersDeadline: the agent hangs, and the caller's context ends.
func TestTheCallersDeadline(t *testing.T) {
	noLeaks(t)
	r := &recorder{block: make(chan struct{}), entered: make(chan struct{}, 1)}
	c, err := NewWithWriter(r, WithoutTelemetry(), WithoutOriginDetection(), WithAggregationInterval(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Incr("n", nil, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-r.entered; cancel() }()
	if err := c.FlushContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("FlushContext: %v", err)
	}
	if err := c.CloseContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("CloseContext: %v", err)
	}
	close(r.block)
	// Both go on.
	eventually(t, "the end of the client", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.closed
	})
	equalLines(t, r.lines(), []string{"n:1|c"})
}

func TestADeadlineThatIsNotReached(t *testing.T) {
	noLeaks(t)
	r := &recorder{}
	c, err := NewWithWriter(r, WithoutTelemetry(), WithoutOriginDetection(), WithAggregationInterval(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Incr("n", nil, 1)
	if err := c.FlushContext(context.Background()); err != nil {
		t.Error(err)
	}
	equalLines(t, r.lines(), []string{"n:1|c"})
	if err := c.CloseContext(context.Background()); err != nil || !c.IsClosed() {
		t.Error(err)
	}
	var none *Client
	if err := none.CloseContext(context.Background()); !errors.Is(err, ErrNoClient) {
		t.Errorf("a nil client: %v", err)
	}
}
