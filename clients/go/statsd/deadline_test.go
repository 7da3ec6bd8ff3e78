package statsd

import (
	"context"
	"errors"
	"testing"
	"time"
)

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
