package statsd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// udpTransport sends datagrams. Only the sender's goroutine writes.
//
// The socket is opened again, from another source port, when the address changes, at intervals, and when the kernel
// tells that nobody listens: a translation on the way, such as a conntrack entry on a node, belongs to the source port
// and lives as long as it is used, even if nobody receives.
type udpTransport struct {
	conn *net.UDPConn
	// to is where conn leads, and opened when it was opened last or tried to.
	to     netip.Addr
	opened time.Time
	// reopened is when a refusal was the reason.
	reopened time.Time
	port     int
	interval time.Duration

	name *nameWatch
	// local says that the host is localhost, whose server may listen on either loopback address.
	local bool
	batch datagramBatch
}

func newUDPTransport(host string, port int, o *Options) (*udpTransport, error) {
	t := &udpTransport{port: port, interval: o.resolveInterval}
	if isLocalhost(host) && o.resolver == nil {
		t.local = true
		return t, t.open(loopbacks[0])
	}
	ip, err := numericHost(host)
	if err != nil {
		t.name = watchName(host, o)
		return t, nil
	}
	return t, t.open(ip)
}

// open takes a new socket. When it fails, the one before is kept.
func (t *udpTransport) open(ip netip.Addr) error {
	t.opened = time.Now()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(t.port))))
	if err != nil {
		return fmt.Errorf("statsd: %w", err)
	}
	// Closed only now, so that the new one has another port.
	if t.conn != nil {
		t.conn.Close()
	}
	t.conn, t.to = conn, ip
	return nil
}

// numericHost returns the address of a host that needs no lookup. No host means this machine.
func numericHost(host string) (netip.Addr, error) {
	if host == "" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	return netip.ParseAddr(host)
}

// loopbacks are the addresses of localhost. Agents listen on the first unless they are told otherwise.
var loopbacks = [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

func isLocalhost(host string) bool {
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// current returns the socket to use, waiting a while for the first address.
func (t *udpTransport) current() (*net.UDPConn, error) {
	ip := t.to
	if t.name != nil {
		if err := t.name.waitReady(); err != nil {
			return nil, err
		}
		ip = *t.name.ip.Load()
	}
	if t.conn == nil || ip != t.to || t.interval > 0 && time.Since(t.opened) >= t.interval {
		if err := t.open(ip); err != nil && t.conn == nil {
			return nil, err
		}
	}
	return t.conn, nil
}

func (t *udpTransport) Write(b []byte) (int, error) {
	conn, err := t.current()
	if err != nil {
		return 0, err
	}
	n, err := conn.Write(b)
	if isRefusal(err) {
		return 0, t.refused(b, err)
	}
	return n, err
}

// isRefusal says whether an error can be about an earlier datagram, which its host or a firewall on the way refused.
func isRefusal(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH)
}

// reopenPause bounds how often a refusal opens a socket: each leaves a conntrack entry behind.
const reopenPause = time.Second

// turnPause is the same for localhost, where no such entry is in the way: a server that comes back at the other
// address is found after one packet.
const turnPause = 10 * time.Millisecond

// refused sends a packet again after the kernel reported that an earlier one was refused. It returns that error
// nevertheless: the earlier one was counted as sent, so that this one is counted as lost instead.
func (t *udpTransport) refused(b []byte, cause error) error {
	t.reopen()
	if _, err := t.conn.Write(b); err != nil {
		return err
	}
	return refusedEarlier(cause)
}

// reopen takes another socket after a refusal, unless one did so a moment ago.
func (t *udpTransport) reopen() {
	to, pause := t.to, reopenPause
	if t.local {
		to, pause = otherLoopback(to), turnPause
	}
	if time.Since(t.reopened) < pause {
		return
	}
	t.reopened = time.Now()
	_ = t.open(to)
}

// otherLoopback returns the address of localhost that is not this one.
func otherLoopback(ip netip.Addr) netip.Addr {
	if ip == loopbacks[0] {
		return loopbacks[1]
	}
	return loopbacks[0]
}

func refusedEarlier(cause error) error {
	return fmt.Errorf("statsd: an earlier packet found nobody: %w", cause)
}

func (t *udpTransport) writeBatch(packets []*packet, errs []error) {
	// Between two datagrams of a batch the kernel forgets why it stopped, so after a stop the rest is written one by
	// one.
	single := false
	for len(packets) > 0 {
		n := 0
		if conn, err := t.current(); err == nil && len(packets) > 1 && !single {
			n, err = t.batch.send(conn, packets)
			single = n < min(len(packets), batchMax)
			if t.batch.refused {
				single = true
				errs[0] = refusedEarlier(syscall.ECONNREFUSED)
				t.reopen()
			}
			if isRefusal(err) {
				errs[n] = t.refused(packets[n].payload(), err)
				n++
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

// nameWatch looks a name up in the background: at once, again and again until it succeeds, and then at intervals.
type nameWatch struct {
	host   string
	lookup func(context.Context, string) ([]netip.Addr, error)
	// ip is the last address found; nil until ready is closed.
	ip       atomic.Pointer[netip.Addr]
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

func watchName(host string, o *Options) *nameWatch {
	n := &nameWatch{
		host: host, lookup: o.resolver, interval: o.resolveInterval, patience: o.connectTimeout,
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
		if ip, err := n.choose(used); err != nil {
			n.lastErr.Store(&unresolvedError{n.host, err})
		} else if ip != used {
			n.ip.Store(&ip)
			if !used.IsValid() {
				close(n.ready)
			}
			used = ip
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

// choose looks the name up and stays with the address in use as long as it is among the answers, because some servers
// return them in turns.
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
