package compat

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	datadog "github.com/DataDog/datadog-go/v5/statsd"
	weir "github.com/weir-dev/weir/clients/go/statsd"
)

// gate is a writer that waits until it is opened.
type gate chan struct{}

func (g gate) Write(b []byte) (int, error) { <-g; return len(b), nil }
func (gate) Close() error                  { return nil }

// firstError keeps the first error of a type that an error handler is given.
type firstError struct {
	once sync.Once
	text chan string
}

func (f *firstError) keep(err error) { f.once.Do(func() { f.text <- err.Error() }) }

// fullQueue makes a client drop packets and returns the text of the error.
func fullQueue(t *testing.T, open func(io.WriteCloser, func(error)) client) string {
	t.Helper()
	g, first := make(gate), &firstError{text: make(chan string, 1)}
	c := open(g, first.keep)
	for i := 0; i < 500; i++ {
		_ = c.Histogram("h", 1, nil, 1)
	}
	close(g)
	_ = c.Close()
	select {
	case text := <-first.text:
		return text
	default:
		t.Fatal("no packet was dropped")
		return ""
	}
}

// The other client takes the container's id of the first client of the process for all, so it is given here too.

// TestErrorTexts: programs and their tests compare texts of errors, and logs are searched for them.
func TestErrorTexts(t *testing.T) {
	for _, name := range []string{"DD_AGENT_HOST", "DD_DOGSTATSD_URL", "DD_DOGSTATSD_PORT"} {
		t.Setenv(name, "")
	}
	_, noAddress := datadog.New("")
	_, ourNoAddress := weir.New("")
	if !errors.Is(ourNoAddress, weir.ErrNoAddress) {
		t.Errorf("the error is %v, not ErrNoAddress", ourNoAddress)
	}
	_, workers := datadog.New("127.0.0.1:8125", datadog.WithWorkersCount(0))
	_, ourWorkers := weir.New("127.0.0.1:8125", weir.WithWorkersCount(0))
	_, shards := datadog.New("127.0.0.1:8125", datadog.WithAggregatorShardCount(0))
	_, ourShards := weir.New("127.0.0.1:8125", weir.WithAggregatorShardCount(0))
	_, card := datadog.New("127.0.0.1:8125", datadog.WithCardinality(9))
	_, ourCard := weir.New("127.0.0.1:8125", weir.WithCardinality(9))
	_, pipe := datadog.New(`\\.\pipe\x`)
	_, ourPipe := weir.New(`\\.\pipe\x`)
	theirs, err := datadog.NewWithWriter(&packets{}, datadog.WithContainerID("cid"))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	ours, err := weir.NewWithWriter(&packets{})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	_, clone := datadog.CloneWithExtraOptions(theirs)
	_, ourClone := weir.CloneWithExtraOptions(ours)
	var nobody *datadog.Client
	var weNobody *weir.Client
	status := &datadog.ServiceCheck{Name: "n", Status: 9}
	ourStatus := &weir.ServiceCheck{Name: "n", Status: 9}
	for _, x := range []struct {
		what       string
		want, have error
	}{
		{"no address", noAddress, ourNoAddress},
		{"no workers", workers, ourWorkers},
		{"no shards", shards, ourShards},
		{"cardinality", card, ourCard},
		{"pipe", pipe, ourPipe},
		{"clone of a client with a writer", clone, ourClone},
		{"no client", nobody.Incr("n", nil, 1), weNobody.Incr("n", nil, 1)},
		{"no timestamp", datadog.InvalidTimestamp, weir.InvalidTimestamp},
		{"long message", datadog.MessageTooLongError{}, weir.MessageTooLongError{}},
		{"long event", theirs.SimpleEvent("t", strings.Repeat("x", 9000)), ours.SimpleEvent("t", strings.Repeat("x",
			9000))},
		{"event without a title", datadog.NewEvent("", "x").Check(), ours.SimpleEvent("", "x")},
		{"check without a name", datadog.NewServiceCheck("", 0).Check(), ours.SimpleServiceCheck("", 0)},
		{"status of a check", status.Check(), ours.ServiceCheck(ourStatus)},
	} {
		if x.want == nil || x.have == nil || x.want.Error() != x.have.Error() {
			t.Errorf("%s: %v, here %v", x.what, x.want, x.have)
		}
	}
	want := fullQueue(t, func(w io.WriteCloser, keep func(error)) client {
		c, err := datadog.NewWithWriter(w, datadog.WithContainerID("cid"), datadog.WithoutTelemetry(),
			datadog.WithSenderQueueSize(2), datadog.WithMaxMessagesPerPayload(1),
			datadog.WithErrorHandler(keep))
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
	have := fullQueue(t, func(w io.WriteCloser, keep func(error)) client {
		c, err := weir.NewWithWriter(w, weir.WithoutTelemetry(), weir.WithSenderQueueSize(2),
			weir.WithMaxMessagesPerPayload(1),
			weir.WithErrorHandler(keep))
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
	if want != have {
		t.Errorf("full queue: %q, here %q", want, have)
	}
}
