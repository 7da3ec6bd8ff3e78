//go:build nightly && unix

package statsd_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-dev/weir/clients/go/statsd"
)

// TestRealAgentStops stops the agent's process for a while and continues it: the packets reported as dropped are the
// missing ones.
func TestRealAgentStops(t *testing.T) {
	for _, x := range []struct{ scheme, file string }{{"unixgram", "g"}, {"unix", "s"}} {
		t.Run(x.scheme, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			a := startAgent(t, dir)
			c, err := statsd.New(x.scheme+"://"+filepath.Join(dir, x.file), statsd.WithoutTelemetry(),
				statsd.WithoutOriginDetection(),
				statsd.WithoutClientSideAggregation(), statsd.WithSenderQueueSize(50))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			message := "calls:1|c|#" + strings.Repeat("t", 500) + "\n"
			tags := []string{strings.Repeat("t", 500)}
			_ = c.Count("calls", 1, tags, 1)
			_ = c.Flush()
			if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			calls, slowest := 1, time.Duration(0)
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
				for i := 0; i < 20; i++ {
					start := time.Now()
					_ = c.Count("calls", 1, tags, 1)
					slowest = max(slowest, time.Since(start))
					calls++
				}
				time.Sleep(time.Millisecond)
			}
			if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			tm := c.GetTelemetry()
			if tm.TotalBytesDropped == 0 || tm.TotalBytesDropped%uint64(len(message)) != 0 {
				t.Fatalf("%d bytes were dropped, a message has %d", tm.TotalBytesDropped, len(message))
			}
			want := calls - int(tm.TotalBytesDropped)/len(message)
			if got := a.stop()["calls|"+tags[0]]; got != float64(want) {
				t.Errorf("the agent got %v of %d calls, reported as lost are %d", got, calls, calls-want)
			}
			// A call never waits for the agent, which was stopped for 5 s; the bound leaves room for a busy machine.
			if slowest > 4*time.Second {
				t.Errorf("a call took %v", slowest)
			}
			t.Logf("%d calls, %d lost, the slowest took %v", calls, calls-want, slowest)
		})
	}
}
