//go:build unix

package statsd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// TestAnotherSocketAtTheSamePath: each way in which a Unix socket stops being the agent's. The first packet after it
// goes to the agent that is there now, within the same flush.
func TestAnotherSocketAtTheSamePath(t *testing.T) {
	type serve = func(testing.TB, string) *server
	stream := func(t testing.TB, path string) *server { return serveStream(t, "unix", path) }
	for name, x := range map[string]struct {
		scheme string
		serve  serve
		// replace takes the agent away and returns the one in its place.
		replace func(t *testing.T, old *server, path string, serve serve) *server
	}{
		"unixgram, closed before":   {"unixgram", serveUnixgram, replaceClosed},
		"unixstream, closed before": {"unixstream", stream, replaceClosed},
		"guessed, closed before":    {"unix", serveUnixgram, replaceClosed},
		"unixgram, moved over":      {"unixgram", serveUnixgram, replaceMoved},
		"unixstream, moved over":    {"unixstream", stream, replaceMoved},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			path := filepath.Join(shortDir(t), "s")
			old := x.serve(t, path)
			c, err := New(x.scheme+"://"+path, WithoutTelemetry(), WithoutOriginDetection(), WithWriteTimeout(patience),
				WithConnectTimeout(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for life := 0; life < 5; life++ {
				_ = c.Incr(fmt.Sprint("life.", life), nil, 1)
				c.Flush()
				eventually(t, "the metric", func() bool { return old.count() == 1 })
				before := inode(t, path)
				next := x.replace(t, old, path, x.serve)
				if inode(t, path) == before {
					t.Log("the file system gave the same inode again")
				}
				old = next
			}
			if tm := c.GetTelemetry(); tm.TotalPayloadsSent != 5 || tm.TotalPayloadsDropped != 0 {
				t.Errorf("telemetry is %+v", tm)
			}
		})
	}
}

func replaceClosed(t *testing.T, old *server, path string, serve func(testing.TB, string) *server) *server {
	old.close()
	return serve(t, path)
}

// replaceMoved puts the new socket over the old one while that is still open, and closes that afterwards.
func replaceMoved(t *testing.T, old *server, path string, serve func(testing.TB, string) *server) *server {
	next := serve(t, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	old.close()
	return next
}

// TestPacketsWithoutAnAgentAreCounted: while nobody is there, each packet is lost and counted with the reason, and the
// first one after the return arrives.
func TestPacketsWithoutAnAgentAreCounted(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(shortDir(t), "s")
	reasons := make(chan error, 100)
	c, err := New("unixgram://"+path, WithoutTelemetry(), WithoutOriginDetection(),
		WithConnectTimeout(40*time.Millisecond),
		WithWriteTimeout(patience), WithErrorHandler(func(err error) { reasons <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send := func() { _ = c.Incr("n", nil, 1); c.Flush() }
	lost := func(what string, want error) {
		t.Helper()
		before := c.GetTelemetry().TotalPayloadsDroppedWriter
		for i := 0; i < 3; i++ {
			send()
			if err := <-reasons; !errors.Is(err, want) {
				t.Errorf("%s: the reason is %v", what, err)
			}
		}
		if n := c.GetTelemetry().TotalPayloadsDroppedWriter - before; n != 3 {
			t.Errorf("%s: %d packets are counted as lost", what, n)
		}
	}
	arrives := func() *server {
		t.Helper()
		s := serveUnixgram(t, path)
		send()
		eventually(t, "the packet", func() bool { return s.count() == 1 })
		return s
	}
	lost("no socket yet", syscall.ENOENT)
	s := arrives()
	s.close()
	_ = os.Remove(path)
	lost("the socket is gone", syscall.ENOENT)
	s = arrives()
	// A socket file that nobody listens at is what a killed agent leaves.
	if err := os.Rename(path, path+".kept"); err != nil {
		t.Fatal(err)
	}
	s.close()
	if err := os.Rename(path+".kept", path); err != nil {
		t.Skipf("the socket file went with its socket: %v", err)
	}
	lost("nobody listens", syscall.ECONNREFUSED)
	arrives()
	if tm := c.GetTelemetry(); tm.TotalPayloadsSent != 3 || tm.TotalPayloadsDropped != 9 {
		t.Errorf("telemetry is %+v", tm)
	}
}
