// Package statsdtest helps to test code that sends metrics: a client whose messages stay in memory and are read back
// as an agent would read them.
package statsdtest

import (
	"strings"
	"sync"
	"testing"

	"github.com/weir-dev/weir/clients/go/statsd"
)

// Capture keeps what its client sends.
type Capture struct {
	// Client sends into the capture. It is closed at the end of the test.
	Client *statsd.Client

	t  testing.TB
	mu sync.Mutex
	// messages are in the order they were written; contexts are flushed in any order.
	messages []Message
}

// New returns a capture whose client has these options. Telemetry and origin detection are off unless an option turns
// them on, so that only the test's messages are captured.
func New(t testing.TB, options ...statsd.Option) *Capture {
	t.Helper()
	c := &Capture{t: t}
	defaults := []statsd.Option{statsd.WithoutTelemetry(), statsd.WithoutOriginDetection(), statsd.WithoutEnvTags()}
	client, err := statsd.NewWithWriter(writer{c}, append(defaults, options...)...)
	if err != nil {
		t.Fatalf("statsdtest: %v", err)
	}
	c.Client = client
	t.Cleanup(func() { _ = client.Close() })
	return c
}

type writer struct{ capture *Capture }

func (w writer) Close() error { return nil }

func (w writer) Write(packet []byte) (int, error) {
	c := w.capture
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range strings.Split(strings.TrimSuffix(string(packet), "\n"), "\n") {
		m, err := Parse(line)
		if err != nil {
			c.t.Errorf("statsdtest: an agent would refuse this: %v", err)
			continue
		}
		c.messages = append(c.messages, m)
	}
	return len(packet), nil
}

// Messages flushes the client and returns the messages sent since the start or the last [Capture.Reset].
func (c *Capture) Messages() []Message {
	_ = c.Client.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Message(nil), c.messages...)
}

// Find returns the messages with this name (of a metric or service check) or title (of an event) that have all these
// tags.
func (c *Capture) Find(name string, tags ...string) []Message {
	var found []Message
	for _, m := range c.Messages() {
		if (m.Name == name || m.Kind == Event && m.Title == name) && m.HasTags(tags...) {
			found = append(found, m)
		}
	}
	return found
}

// Total adds up [Message.Total] of the messages found; of gauges it is the last value.
func (c *Capture) Total(name string, tags ...string) float64 {
	total := 0.0
	for _, m := range c.Find(name, tags...) {
		if m.Type == "g" {
			total = m.Total()
		} else {
			total += m.Total()
		}
	}
	return total
}

// Values returns the values of the messages found, in the order they were sent.
func (c *Capture) Values(name string, tags ...string) []float64 {
	var values []float64
	for _, m := range c.Find(name, tags...) {
		values = append(values, m.Values...)
	}
	return values
}

// Reset flushes the client and forgets the captured messages.
func (c *Capture) Reset() {
	_ = c.Client.Flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages = nil
}
