package statsd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// udpTransport sends datagrams. Only the sender's goroutine writes.
type udpTransport struct {
	conn *net.UDPConn
	// next is a socket to a newer address, for the sender to take over.
	next atomic.Pointer[net.UDPConn]

	name  *nameWatch
	batch datagramBatch
}

func newUDPTransport(host string, port int, o *Options) (*udpTransport, error) {
	t := &udpTransport{}
	dial := func(ip netip.Addr) (*net.UDPConn, error) {
		return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(port))))
	}
	if ip, err := numericHost(host); err == nil {
		conn, err := dial(ip)
		if err != nil {
			return nil, fmt.Errorf("statsd: %w", err)
		}
		t.conn = conn
		return t, nil
	}
	t.name = watchName(host, o, func(ip netip.Addr) error {
		conn, err := dial(ip)
		if err != nil {
			return err
		}
		if unused := t.next.Swap(conn); unused != nil {
			unused.Close()
		}
		return nil
	})
	return t, nil
}

// numericHost returns the address of a host that needs no lookup. No host means this machine.
func numericHost(host string) (netip.Addr, error) {
	if host == "" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	return netip.ParseAddr(host)
}

// current returns the socket to use, waiting a while for the first one.
func (t *udpTransport) current() (*net.UDPConn, error) {
	if t.name == nil {
		return t.conn, nil
	}
	if t.conn == nil {
		if err := t.name.waitReady(); err != nil {
			return nil, err
		}
	}
	if next := t.next.Swap(nil); next != nil {
		if t.conn != nil {
			t.conn.Close()
		}
		t.conn = next
	}
	return t.conn, nil
}

func (t *udpTransport) Write(b []byte) (int, error) {
	conn, err := t.current()
	if err != nil {
		return 0, err
	}
	n, err := conn.Write(b)
	if errors.Is(err, syscall.ECONNREFUSED) {
		// The kernel reports here that an earlier datagram found nobody; this one was not sent.
		n, err = conn.Write(b)
	}
	return n, err
}

func (t *udpTransport) writeBatch(packets []*packet, errs []error) {
	for len(packets) > 0 {
		n := 0
		if len(packets) > 1 {
			if conn, err := t.current(); err == nil {
				n, _ = t.batch.send(conn, packets)
			}
		}
		if n == 0 {
			_, errs[0] = t.Write(packets[0].payload())
			n = 1
		}
		packets, errs = packets[n:], errs[n:]
	}
}

func (t *udpTransport) Close() error {
	if t.name != nil {
		t.name.stop()
		if next := t.next.Swap(nil); next != nil {
			next.Close()
		}
	}
	if t.conn != nil {
		return t.conn.Close()
	}
	return nil
}

func (t *udpTransport) GetTransportName() string { return transportUDP }

// unresolvedError says that a name could not be looked up yet. Packets are dropped with it.
type unresolvedError struct {
	host string
	err  error
}

func (e *unresolvedError) Error() string {
	return fmt.Sprintf("statsd: %q cannot be looked up yet: %v", e.host, e.err)
}

func (e *unresolvedError) Unwrap() error { return e.err }

// nameWatch looks a name up in the background: at once, again and again until it succeeds, and then at intervals. It calls use
// when the address changes.
type nameWatch struct {
	host     string
	lookup   func(context.Context, string) ([]netip.Addr, error)
	use      func(netip.Addr) error
	interval time.Duration
	patience time.Duration

	ctx      context.Context
	cancel   context.CancelFunc
	finished chan struct{}
	ready    chan struct{}
	lastErr  atomic.Pointer[unresolvedError]
	// waited is used by the sender only: the time given to the first lookup is spent.
	waited bool
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

func watchName(host string, o *Options, use func(netip.Addr) error) *nameWatch {
	n := &nameWatch{
		host: host, lookup: o.resolver, use: use, interval: o.resolveInterval, patience: o.connectTimeout,
		finished: make(chan struct{}), ready: make(chan struct{}),
	}
	if n.lookup == nil {
		n.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	go n.run()
	return n
}

func (n *nameWatch) run() {
	defer close(n.finished)
	var used netip.Addr
	retry := firstRetry
	for {
		pause := n.interval
		if ip, err := n.choose(used); err == nil {
			if ip != used {
				err = n.use(ip)
			}
			if err == nil {
				if !used.IsValid() {
					close(n.ready)
				}
				used = ip
			} else {
				n.fail(err)
			}
		} else {
			n.fail(err)
		}
		if !used.IsValid() {
			pause = retry
			retry = min(2*retry, lastRetry)
		} else if n.interval <= 0 {
			return
		}
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (n *nameWatch) fail(err error) { n.lastErr.Store(&unresolvedError{n.host, err}) }

// choose looks the name up and stays with the address in use as long as it is among the answers, because some servers return them
// in turns.
func (n *nameWatch) choose(used netip.Addr) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(n.ctx, lastRetry)
	defer cancel()
	found, err := n.lookup(ctx, n.host)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(found) == 0 {
		return netip.Addr{}, errors.New("no address")
	}
	best := found[0].Unmap()
	for _, ip := range found {
		ip = ip.Unmap()
		if ip == used {
			return ip, nil
		}
		// As the dialler of the net package: agents that listen on one family listen on this one.
		if ip.Is4() && !best.Is4() {
			best = ip
		}
	}
	return best, nil
}

// waitReady waits for the first address, once as long as connecting may take; later calls only look.
func (n *nameWatch) waitReady() error {
	select {
	case <-n.ready:
		return nil
	default:
	}
	if !n.waited {
		n.waited = true
		timer := time.NewTimer(n.patience)
		defer timer.Stop()
		select {
		case <-n.ready:
			return nil
		case <-timer.C:
		}
	}
	if err := n.lastErr.Load(); err != nil {
		return err
	}
	return &unresolvedError{n.host, context.DeadlineExceeded}
}

func (n *nameWatch) stop() {
	n.cancel()
	<-n.finished
}
