//go:build unix

package statsd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
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
		"unixgram, left open":       {"unixgram", serveUnixgram, replaceLeftOpen},
		"unixstream, left open":     {"unixstream", stream, replaceLeftOpen},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			path := filepath.Join(shortDir(t), "s")
			old := x.serve(t, path)
			c, err := New(x.scheme+"://"+path, WithoutTelemetry(), WithoutOriginDetection(), WithWriteTimeout(patience),
				WithConnectTimeout(patience))
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

// TestATypeIsGuessedAgain: an agent that returns at its path with a socket of the other type gets the next packet,
// if the address does not name the type.
func TestATypeIsGuessedAgain(t *testing.T) {
	stream := func(t testing.TB, path string) *server { return serveStream(t, "unix", path) }
	replace := map[string]func(*testing.T, *server, string, func(testing.TB, string) *server) *server{
		"closed before": replaceClosed, "moved over": replaceMoved, "left open": replaceLeftOpen,
	}
	for name, replace := range replace {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			path := filepath.Join(shortDir(t), "s")
			s := serveUnixgram(t, path)
			c, err := New("unix://"+path, WithoutTelemetry(), WithoutOriginDetection(), WithWriteTimeout(patience),
				WithConnectTimeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for life := 0; life < 6; life++ {
				for i := 1; i <= 2; i++ {
					_ = c.Incr("n", nil, 1)
					c.Flush()
					eventually(t, "the metric", func() bool { return s.count() == i })
				}
				serve, want := stream, transportUDS
				if life%2 == 1 {
					serve, want = serveUnixgram, transportUDSStream
				}
				if got := c.GetTransport(); got != want {
					t.Errorf("life %d: the transport is %q", life, got)
				}
				s = replace(t, s, path, serve)
			}
			if tm := c.GetTelemetry(); tm.TotalPayloadsSent != 12 || tm.TotalPayloadsDropped != 0 {
				t.Errorf("telemetry is %+v", tm)
			}
		})
	}
}

// TestANamedTypeStays: an address that names the type never leads to the other one.
func TestANamedTypeStays(t *testing.T) {
	for _, x := range []struct {
		network string
		serve   func(testing.TB, string) *server
	}{
		{"unixgram", func(t testing.TB, path string) *server { return serveStream(t, "unix", path) }},
		{"unix", serveUnixgram},
	} {
		path := filepath.Join(shortDir(t), "s")
		s := x.serve(t, path)
		tr := newSocketTransport(path, x.network, patientOptions())
		for i := 0; i < 2; i++ {
			if _, err := tr.Write([]byte("n:1|c")); !errors.Is(err, syscall.EPROTOTYPE) {
				t.Errorf("%s: %v", x.network, err)
			}
		}
		tr.Close()
		s.close()
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

// replaceLeftOpen puts the new socket over the old one, which stays open to the end: no write fails.
func replaceLeftOpen(t *testing.T, _ *server, path string, serve func(testing.TB, string) *server) *server {
	next := serve(t, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return next
}

// patientOptions are those of a transport that gets its turn, or whose server does, later than an application would
// wait.
func patientOptions() *Options {
	o := defaultOptions()
	o.writeTimeout, o.connectTimeout = patience, patience
	return o
}

// leaveDeadSocket makes a socket file that nobody listens at.
func leaveDeadSocket(t *testing.T, path string) {
	t.Helper()
	dead, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = syscall.Bind(dead, &syscall.SockaddrUnix{Name: path})
	_ = syscall.Close(dead)
	if err != nil {
		t.Fatal(err)
	}
}

// TestAConnectionStaysWhereNobodyListensYet: a socket file that was removed, or replaced by one that refuses, is
// no reason to leave an agent that reads.
func TestAConnectionStaysWhereNobodyListensYet(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(shortDir(t), "s")
	s := serveUnixgram(t, path)
	tr := newSocketTransport(path, "unixgram", patientOptions())
	defer tr.Close()
	taken := 0
	take := func(what string) {
		t.Helper()
		if _, err := tr.Write([]byte("n:1|c")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		taken++
		eventually(t, what, func() bool { return s.count() == taken })
	}
	take("the agent is there")
	if err := os.Rename(path, path+".kept"); err != nil {
		t.Fatal(err)
	}
	take("the file is gone")
	leaveDeadSocket(t, path)
	take("the file is another one and refuses")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	take("the file is no socket")
}

// TestEachWayToLearnThatTheAgentIsGone: the kernel's errors on the connection, by name. The packet
// that met the error arrives at the new agent.
func TestEachWayToLearnThatTheAgentIsGone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("which error a system gives differs")
	}
	stream := func(t testing.TB, path string) *server { return serveStream(t, "unix", path) }
	for name, x := range map[string]struct {
		network string
		serve   func(testing.TB, string) *server
		// before are the errors of writes that came earlier, straight on the connection.
		before []error
		want   error
	}{
		"ECONNREFUSED": {"unixgram", serveUnixgram, nil, syscall.ECONNREFUSED},
		// The kernel has taken the peer away with the refusal.
		"ENOTCONN": {"unixgram", serveUnixgram, []error{syscall.ECONNREFUSED}, syscall.ENOTCONN},
		"EPIPE":    {"unix", stream, nil, syscall.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			path := filepath.Join(shortDir(t), "s")
			s := x.serve(t, path)
			tr := newSocketTransport(path, x.network, patientOptions())
			defer tr.Close()
			if _, err := tr.Write([]byte("before:1|c")); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the first packet", func() bool { return s.count() == 1 })
			s.close()
			_ = os.Remove(path)
			met := &errorsMet{Conn: tr.conn}
			for _, want := range x.before {
				if _, err := met.Write([]byte("n:1|c")); !errors.Is(err, want) {
					t.Errorf("%v instead of %v", err, want)
				}
			}
			tr.conn = met
			// Nobody receives: the packet is lost, with the reason of the new connection.
			if _, err := tr.Write([]byte("lost:1|c")); !errors.Is(err, syscall.ENOENT) {
				t.Errorf("the reason is %v", err)
			}
			if !errors.Is(met.last, x.want) {
				t.Errorf("the connection said %v", met.last)
			}

			// The same again, with an agent that has come back.
			s = x.serve(t, path)
			if _, err := tr.Write([]byte("between:1|c")); err != nil {
				t.Fatal(err)
			}
			// A stream that ends with something unread says so instead.
			eventually(t, "the packet between", func() bool { return s.count() == 1 })
			s.close()
			for _, want := range x.before {
				if _, err := tr.conn.Write([]byte("n:1|c")); !errors.Is(err, want) {
					t.Errorf("%v instead of %v", err, want)
				}
			}
			met = &errorsMet{Conn: tr.conn}
			tr.conn, tr.file = met, socketFile{}
			s = x.serve(t, path)
			if _, err := tr.Write([]byte("after:1|c")); err != nil {
				t.Error(err)
			}
			eventually(t, "the packet", func() bool { return s.count() == 1 })
			if !errors.Is(met.last, x.want) {
				t.Errorf("the connection said %v", met.last)
			}
		})
	}
}

// errorsMet is a connection that remembers what its last write ended with.
type errorsMet struct {
	net.Conn
	last error
}

func (c *errorsMet) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.last = err
	return n, err
}

// TestARefusalIsTheReason: the time for connecting may be over before a refused connection is tried again. The packet
// is lost for the refusal then, and the next ones are not held up.
func TestARefusalIsTheReason(t *testing.T) {
	for refusals, want := range []error{context.DeadlineExceeded, syscall.ECONNREFUSED, syscall.ECONNREFUSED} {
		path := filepath.Join(shortDir(t), "s")
		leaveDeadSocket(t, path)
		o := defaultOptions()
		// The pause between two tries is a part of it. Each try of this test has a time of its own.
		o.connectTimeout = 4 * time.Millisecond
		tr := newSocketTransport(path, "unixgram", o)
		tries := 0
		tr.open = func(network, address string, _ time.Duration) (net.Conn, error) {
			timeout := patience
			if tries++; tries > refusals {
				timeout = -1
			}
			return net.DialTimeout(network, address, timeout)
		}
		if _, err := tr.Write([]byte("n:1|c")); !errors.Is(err, want) || tries != refusals+1 {
			t.Errorf("%d refusals, %d tries: %v", refusals, tries, err)
		}
		if tr.refusedAt.IsZero() != (refusals == 0) {
			t.Errorf("%d refusals, the last at %v", refusals, tr.refusedAt)
		}
		tr.Close()
	}
}

// TestPacketsWithoutAnAgentAreCounted: while nobody is there, each packet is lost and counted with the reason, and the
// first one after the return arrives.
func TestPacketsWithoutAnAgentAreCounted(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(shortDir(t), "s")
	reasons := make(chan error, 100)
	c, err := New("unixgram://"+path, WithoutTelemetry(), WithoutOriginDetection(),
		WithConnectTimeout(patience), WithWriteTimeout(patience),
		WithErrorHandler(func(err error) { reasons <- err }))
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
	// A killed agent leaves a socket file that nobody listens at.
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
