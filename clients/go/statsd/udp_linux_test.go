package statsd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// awaitRefusal waits until the kernel knows that the last datagram was refused. It will tell at the next one.
func awaitRefusal(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a refusal", func() bool {
		ready := 0
		_ = raw.Control(func(fd uintptr) {
			var readable syscall.FdSet
			bits := 8 * unsafe.Sizeof(readable.Bits[0])
			readable.Bits[fd/bits] = 1 << (fd % bits)
			none := syscall.NsecToTimeval((10 * time.Millisecond).Nanoseconds())
			ready, _ = syscall.Select(int(fd)+1, &readable, nil, nil, &none)
		})
		return ready > 0
	})
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
		if i > 0 {
			awaitRefusal(t, c.clientEx.core.sender.transport.(*udpTransport).conn)
		}
		_ = c.Incr("n", nil, 1)
		c.Flush()
	}
	// The last one cannot be known yet.
	tm := c.GetTelemetry()
	if tm.TotalPayloadsSent != 1 || tm.TotalPayloadsDroppedWriter != flushes-1 {
		t.Errorf("%d flushes into the void: %d sent, %d dropped", flushes, tm.TotalPayloadsSent,
			tm.TotalPayloadsDroppedWriter)
	}
	if size := uint64(len("n:1|c\n")); tm.TotalBytesSent != size || tm.TotalBytesDroppedWriter != (flushes-1)*size {
		t.Errorf("%d bytes sent, %d dropped", tm.TotalBytesSent, tm.TotalBytesDroppedWriter)
	}
	if reported.Load() != tm.TotalPayloadsDroppedWriter {
		t.Errorf("%d losses were reported, %d counted", reported.Load(), tm.TotalPayloadsDroppedWriter)
	}
}

func refusedTransport(t *testing.T) *udpTransport {
	t.Helper()
	address := netip.MustParseAddrPort(closedPort(t))
	tr, err := newUDPTransport(address.Addr().String(), int(address.Port()), defaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// writeRefused writes a batch and returns how many of its packets are known to be refused.
func writeRefused(t *testing.T, tr *udpTransport, size int) (refused int) {
	t.Helper()
	var packets []*packet
	for i := 0; i < size; i++ {
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
	return refused
}

// TestRefusedBatchesAreCounted: the first error of a batch is about a packet before it.
func TestRefusedBatchesAreCounted(t *testing.T) {
	tr := refusedTransport(t)
	writeRefused(t, tr, 1)
	for _, size := range []int{2, batchMax} {
		awaitRefusal(t, tr.conn)
		if refused := writeRefused(t, tr, size); refused == 0 {
			t.Errorf("of %d datagrams none is known to be refused", size)
		}
	}
}

// TestRefusalBetweenTwoDatagrams: a datagram of a batch is refused at once, the kernel stops before the next, and says
// nothing.
func TestRefusalBetweenTwoDatagrams(t *testing.T) {
	if !usesUnsafe {
		t.Skip("without batches no refusal is between two datagrams")
	}
	eventually(t, "a refusal that comes in time", func() bool {
		tr := refusedTransport(t)
		refused := writeRefused(t, tr, 2)
		if tr.batch.calls == 1 {
			return false
		}
		if refused == 0 {
			t.Error("the batch stopped and nothing is known to be refused")
		}
		return true
	})
}

// soReusePort lets several sockets have one port.
const soReusePort = 0xf

func reusePort(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soReusePort, 1)
	})
	if err != nil {
		return err
	}
	return failed
}

// refusingPort holds a port of both loopback addresses, which refuses: its sockets take packets of one other port
// alone.
func refusingPort(t *testing.T) int {
	t.Helper()
	hold := func(ip net.IP, port int) (*net.UDPConn, error) {
		conn, err := net.DialUDP("udp", &net.UDPAddr{IP: ip, Port: port}, &net.UDPAddr{IP: ip, Port: 9})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { conn.Close() })
		// Before, the port might be one that others share.
		raw, err := conn.SyscallConn()
		if err != nil {
			return nil, err
		}
		return conn, reusePort("", "", raw)
	}
	if _, err := hold(net.IPv6loopback, 0); err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	}
	for {
		first, err := hold(net.IPv4(127, 0, 0, 1), 0)
		if err != nil {
			t.Fatal(err)
		}
		port := first.LocalAddr().(*net.UDPAddr).Port
		if _, err := hold(net.IPv6loopback, port); err == nil {
			return port
		}
	}
}

// serveRefusing begins to serve a refusing port.
func serveRefusing(t *testing.T, ip string, port int) *portServer {
	t.Helper()
	listen := net.ListenConfig{Control: reusePort}
	conn, err := listen.ListenPacket(context.Background(), "udp", net.JoinHostPort(ip, fmt.Sprint(port)))
	if err != nil {
		t.Fatal(err)
	}
	return servePortsOf(t, conn.(*net.UDPConn))
}

// TestLocalhostMayBeIPv6: the server of localhost listens on one of the two addresses, and not on the first.
func TestLocalhostMayBeIPv6(t *testing.T) {
	noLeaks(t)
	port := refusingPort(t)
	s := serveRefusing(t, "::1", port)
	c, err := New(fmt.Sprint("LocalHost:", port), WithoutTelemetry(), WithoutOriginDetection())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := 0
	eventually(t, "a packet", func() bool {
		_ = c.Incr("n", nil, 1)
		c.Flush()
		sent++
		return len(s.all()) > 0
	})
	before := c.GetTelemetry().TotalPayloadsDropped
	if before > 2 {
		t.Errorf("%d of %d packets were lost before the server was found", before, sent)
	}
	had := len(s.all())
	_ = c.Incr("n", nil, 1)
	c.Flush()
	eventually(t, "the next one", func() bool { return len(s.all()) > had })
	if after := c.GetTelemetry().TotalPayloadsDropped; after != before {
		t.Errorf("afterwards %d packets were lost", after-before)
	}
}

// TestLocalhostIsFoundAgainAfterAPacket: a server ends, and comes back at either address.
func TestLocalhostIsFoundAgainAfterAPacket(t *testing.T) {
	noLeaks(t)
	port := refusingPort(t)
	c, err := New(fmt.Sprint("localhost:", port), WithoutTelemetry(), WithoutOriginDetection())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send := func() {
		_ = c.Incr("n", nil, 1)
		c.Flush()
		time.Sleep(2 * turnPause)
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		for range 5 {
			send()
		}
		before := c.GetTelemetry().TotalPayloadsDropped
		if before == 0 {
			t.Fatal("nothing was refused")
		}
		server := serveRefusing(t, ip, port)
		eventually(t, "a packet at "+ip, func() bool {
			send()
			return len(server.all()) > 0
		})
		server.close()
		// One was under way before, and one went to the other address.
		if lost := c.GetTelemetry().TotalPayloadsDropped - before; lost > 2 {
			t.Errorf("%s: %d packets were lost", ip, lost)
		}
	}
}
