package statsd

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

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
		dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: ip, Port: port}, Control: reusePort}
		conn, err := dialer.Dial("udp", net.JoinHostPort(ip.String(), "9"))
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { conn.Close() })
		return conn.(*net.UDPConn), nil
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
		listen := net.ListenConfig{Control: reusePort}
		server, err := listen.ListenPacket(context.Background(), "udp", net.JoinHostPort(ip, fmt.Sprint(port)))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a packet at "+ip, func() bool {
			send()
			_ = server.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, _, err := server.ReadFrom(make([]byte, 64))
			return err == nil
		})
		server.Close()
		// One was under way before, and one went to the other address.
		if lost := c.GetTelemetry().TotalPayloadsDropped - before; lost > 2 {
			t.Errorf("%s: %d packets were lost", ip, lost)
		}
	}
}
