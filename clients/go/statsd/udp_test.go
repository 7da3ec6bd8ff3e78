package statsd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
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

func TestRefusedDatagramsAreCounted(t *testing.T) {
	noLeaks(t)
	var reported atomic.Uint64
	c, err := New(closedPort(t), WithoutTelemetry(), WithoutOriginDetection(), WithErrorHandler(func(err error) {
		if errors.Is(err, syscall.ECONNREFUSED) {
			reported.Add(1)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const flushes = 20
	for i := 0; i < flushes; i++ {
		_ = c.Incr("n", nil, 1)
		c.Flush()
	}
	tm := c.GetTelemetry()
	// The last one cannot be known yet. On a busy machine the kernel may tell of two at once; the client that sends
	// nothing again would count half of them.
	if tm.TotalPayloadsSent+tm.TotalPayloadsDroppedWriter != flushes || tm.TotalPayloadsDroppedWriter <= flushes/2 {
		t.Errorf("%d flushes into the void: %d sent, %d dropped", flushes, tm.TotalPayloadsSent,
			tm.TotalPayloadsDroppedWriter)
	}
	if reported.Load() != tm.TotalPayloadsDroppedWriter {
		t.Errorf("%d losses were reported, %d counted", reported.Load(), tm.TotalPayloadsDroppedWriter)
	}
	t.Logf("%d sent, %d dropped", tm.TotalPayloadsSent, tm.TotalPayloadsDroppedWriter)
}

// TestRefusedBatchesAreCounted: where several datagrams leave with one system call, the kernel's word on a datagram
// that was refused must not get lost between two of them.
func TestRefusedBatchesAreCounted(t *testing.T) {
	address := netip.MustParseAddrPort(closedPort(t))
	tr, err := newUDPTransport(address.Addr().String(), int(address.Port()), defaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	const rounds = 5
	refused := 0
	for round := 0; round < rounds; round++ {
		var packets []*packet
		for i := 0; i < batchMax; i++ {
			packets = append(packets, &packet{buf: append(make([]byte, frameHeader), fmt.Sprintf("n:%d|c\n", i)...)})
		}
		errs := make([]error, len(packets))
		tr.writeBatch(packets, errs)
		for i, err := range errs {
			if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("packet %d: %v", i, err)
			}
			if err != nil {
				refused++
			}
		}
	}
	// A kernel that is busy may tell of two at once.
	if refused < rounds*batchMax*3/4 {
		t.Errorf("%d of %d datagrams are known to be refused", refused, rounds*batchMax)
	}
	t.Logf("%d of %d", refused, rounds*batchMax)
}

// TestRefusedSocketIsOpenedAnew: a translation on the way that has gone stale is tied to the source port.
func TestRefusedSocketIsOpenedAnew(t *testing.T) {
	noLeaks(t)
	if runtime.GOOS != "linux" {
		t.Skip("how a system refuses datagrams differs")
	}
	first := servePorts(t, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
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
