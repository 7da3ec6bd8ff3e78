package statsd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// closedPort returns a loopback address nobody listens at. The socket that reserves it is connected elsewhere, so that
// the kernel refuses what others send there and gives the port to nobody else.
func closedPort(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("how a system refuses datagrams differs")
	}
	peer := serveUDP(t)
	conn, err := net.Dial("udp", peer.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().String()
}

// portServer receives datagrams and remembers the ports they came from.
type portServer struct {
	conn  *net.UDPConn
	mu    sync.Mutex
	ports []int
	done  chan struct{}
}

func servePorts(t *testing.T, address *net.UDPAddr) *portServer {
	t.Helper()
	conn, err := net.ListenUDP("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	return servePortsOf(t, conn)
}

func servePortsOf(t *testing.T, conn *net.UDPConn) *portServer {
	s := &portServer{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		b := make([]byte, 70000)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.ports = append(s.ports, int(from.Port()))
			s.mu.Unlock()
		}
	}()
	t.Cleanup(s.close)
	return s
}

func (s *portServer) address() *net.UDPAddr { return s.conn.LocalAddr().(*net.UDPAddr) }

func (s *portServer) close() { s.conn.Close(); <-s.done }

func (s *portServer) all() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int(nil), s.ports...)
}

// TestRefusedSocketIsOpenedAnew: a translation on the way that has gone stale is tied to the source port.
func TestRefusedSocketIsOpenedAnew(t *testing.T) {
	noLeaks(t)
	if runtime.GOOS != "linux" {
		t.Skip("how a system refuses datagrams differs")
	}
	// Ports of this address are given to this process alone.
	pid := os.Getpid()
	first := servePorts(t, &net.UDPAddr{IP: net.IPv4(127, byte(1+pid>>16), byte(pid>>8), byte(pid))})
	address := first.address()
	c, err := New(address.String(), WithoutTelemetry(), WithoutOriginDetection(), WithResolveInterval(0))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send := func() { _ = c.Incr("n", nil, 1); c.Flush() }
	send()
	send()
	eventually(t, "two packets", func() bool { return len(first.all()) == 2 })
	if p := first.all(); p[0] != p[1] {
		t.Errorf("without a reason the port changed from %d to %d", p[0], p[1])
	}
	before := first.all()[0]
	first.close()
	eventually(t, "a refusal", func() bool { send(); return c.GetTelemetry().TotalPayloadsDroppedWriter > 0 })
	second := servePorts(t, address)
	send()
	eventually(t, "a packet after the return", func() bool { return len(second.all()) > 0 })
	if second.all()[0] == before {
		t.Errorf("the port is still %d", before)
	}
}

// TestUDPSocketIsOpenedAnewAtIntervals: no error reports an address translation that leads nowhere.
func TestUDPSocketIsOpenedAnewAtIntervals(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "agent.test"} {
		t.Run(host, func(t *testing.T) {
			noLeaks(t)
			s := servePorts(t, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			r := &resolver{}
			r.set(nil, "127.0.0.1")
			c, err := New(fmt.Sprint(host, ":", s.address().Port), WithoutTelemetry(), WithoutOriginDetection(),
				WithResolver(r.lookup),
				WithResolveInterval(10*time.Millisecond), WithConnectTimeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			eventually(t, "three source ports", func() bool {
				_ = c.Incr("n", nil, 1)
				c.Flush()
				ports := map[int]bool{}
				for _, p := range s.all() {
					ports[p] = true
				}
				return len(ports) >= 3
			})
			if tm := c.GetTelemetry(); tm.TotalPayloadsDropped != 0 {
				t.Errorf("telemetry is %+v", tm)
			}
		})
	}
}

// onlyOnIPv6 listens on ::1 alone. A connection has the same port of 127.0.0.1, which nobody else is given, and which
// refuses.
func onlyOnIPv6(t *testing.T) net.Listener {
	t.Helper()
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	for {
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			t.Skipf("this machine has no IPv6: %v", err)
		}
		t.Cleanup(func() { l.Close() })
		four := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.Addr().(*net.TCPAddr).Port}
		held, err := (&net.Dialer{LocalAddr: &four}).Dial("tcp", peer.Addr().String())
		if err == nil {
			t.Cleanup(func() { held.Close() })
			return l
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// TestLocalhostMayBeIPv6OverTCP: a refused connection costs nothing.
func TestLocalhostMayBeIPv6OverTCP(t *testing.T) {
	noLeaks(t)
	l := onlyOnIPv6(t)
	c, err := New(fmt.Sprint("tcp://localhost:", l.Addr().(*net.TCPAddr).Port), WithoutTelemetry(),
		WithoutOriginDetection(), WithConnectTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.Incr("n", nil, 1)
	c.Flush()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Errorf("nothing came: %v", err)
	}
	if tm := c.GetTelemetry(); tm.TotalPayloadsDropped != 0 {
		t.Errorf("telemetry is %+v", tm)
	}
}
