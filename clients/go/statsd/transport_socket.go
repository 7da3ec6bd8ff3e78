package statsd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// socketTransport writes to a Unix socket or a TCP connection. It connects at the first packet and again after an
// error. Only the sender's goroutine writes.
//
// On a stream a packet is a frame: its length as 32 bits, little-endian, and its bytes.
type socketTransport struct {
	// network is "unixgram", "unix" or "tcp"; empty until the type of a Unix socket is known.
	network string
	// guess says that the address does not name the type of a Unix socket, so that any may be there.
	guess   bool
	address string
	// tcpPort is set for TCP, and name if the host is one. local says that it is localhost, whose server may listen on
	// either loopback address.
	tcpPort int
	name    *nameWatch
	local   bool

	writeTimeout   time.Duration
	connectTimeout time.Duration
	refusedAt      time.Time
	// open is net.DialTimeout, but in a test.
	open func(network, address string, timeout time.Duration) (net.Conn, error)
	// hurried is set by any goroutine; the sender's spends patience from then on.
	hurried  atomic.Bool
	patience time.Duration

	conn   net.Conn
	stream bool
	// file is the socket file that conn belongs to.
	file  socketFile
	title atomic.Pointer[string]

	batch  datagramBatch
	frames net.Buffers
	store  [batchMax][]byte
}

func newSocketTransport(path, network string, o *Options) *socketTransport {
	t := &socketTransport{
		network: network, guess: network == "", address: path, writeTimeout: o.writeTimeout,
		connectTimeout: o.connectTimeout, open: net.DialTimeout, patience: closePatience * o.writeTimeout,
	}
	t.setTitle()
	return t
}

func newTCPTransport(host string, port int, o *Options) *socketTransport {
	t := &socketTransport{
		network: "tcp", address: net.JoinHostPort(host, strconv.Itoa(port)), tcpPort: port,
		writeTimeout: o.writeTimeout, connectTimeout: o.connectTimeout, open: net.DialTimeout,
		patience: closePatience * o.writeTimeout,
	}
	t.setTitle()
	if isLocalhost(host) && o.resolver == nil {
		t.local = true
		t.address = t.addressOf(loopbacks[0])
	} else if ip, err := numericHost(host); err == nil {
		t.address = t.addressOf(ip)
	} else {
		t.name = watchName(host, o)
	}
	return t
}

func (t *socketTransport) addressOf(ip netip.Addr) string {
	return netip.AddrPortFrom(ip, uint16(t.tcpPort)).String()
}

func (t *socketTransport) setTitle() {
	title := transportUDS
	switch t.network {
	case "unix":
		title = transportUDSStream
	case "tcp":
		title = transportTCP
	}
	t.title.Store(&title)
}

func (t *socketTransport) GetTransportName() string { return *t.title.Load() }

// closePatience is the number of write timeouts that a closing client spends in all on failing writes and
// connections. Failures in a row would be no bound: a hung agent's system accepts connections for it, and each takes
// some packets.
const closePatience = 10

// errClosing refuses packets when that time is up.
var errClosing = errors.New("statsd: the client is closing and the agent does not read")

func (t *socketTransport) hurry() { t.hurried.Store(true) }

// within shortens a wait to the rest of the patience.
func (t *socketTransport) within(wait time.Duration) time.Duration {
	if t.hurried.Load() {
		return min(wait, max(t.patience, time.Millisecond))
	}
	return wait
}

// spend takes a failure that began at start from the patience.
func (t *socketTransport) spend(start time.Time) {
	if t.hurried.Load() {
		t.patience -= time.Since(start)
	}
}

func (t *socketTransport) outOfPatience() bool { return t.patience <= 0 && t.hurried.Load() }

// renew leaves a connection whose socket file was replaced, for the agent that made the new one: the old agent
// may go on reading for a while, or hang. If nobody listens there yet, the connection stays.
func (t *socketTransport) renew() {
	if t.conn == nil || t.file == (socketFile{}) {
		return
	}
	file := socketFileAt(t.address)
	if file == t.file || file == (socketFile{}) {
		return
	}
	_ = t.eachNetwork(func(network string) error {
		conn, err := t.open(network, t.address, t.within(t.connectTimeout))
		if err == nil {
			t.conn.Close()
			t.use(conn, network, file)
		}
		return err
	})
}

// eachNetwork calls dial with the networks that may lead to the agent, the last one first, until the type of the socket
// is not what is wrong.
func (t *socketTransport) eachNetwork(dial func(network string) error) error {
	networks := []string{t.network}
	if t.guess {
		networks = []string{"unixgram", "unix"}
		if t.network == "unix" {
			networks = []string{"unix", "unixgram"}
		}
	}
	var err error
	for _, network := range networks {
		if err = dial(network); !errors.Is(err, syscall.EPROTOTYPE) {
			break
		}
	}
	return err
}

func (t *socketTransport) use(conn net.Conn, network string, file socketFile) {
	t.conn, t.network, t.file = conn, network, file
	t.stream = network != "unixgram"
	t.setTitle()
}

func (t *socketTransport) connect() error {
	if t.conn != nil {
		return nil
	}
	if t.name != nil {
		if err := t.name.waitReady(); err != nil {
			return err
		}
		t.address = t.addressOf(*t.name.ip.Load())
	}
	return t.eachNetwork(t.dial)
}

// dialTries is the number of attempts for a refused connection: an agent that restarts has removed its socket or
// does not listen yet.
const dialTries = 3

func (t *socketTransport) dial(network string) error {
	end := deadline(t.within(t.connectTimeout))
	tries := dialTries
	if t.hurried.Load() || time.Since(t.refusedAt) < t.connectTimeout {
		// Trying patiently has just failed; it must not hold up every packet.
		tries = 1
	}
	var refusal error
	for {
		var file socketFile
		if network != "tcp" {
			// Before the connection: one that is replaced in between is noticed at the next packet.
			file = socketFileAt(t.address)
		}
		conn, err := t.open(network, t.address, max(time.Until(end), time.Millisecond))
		if err != nil && t.local {
			other := t.addressOf(loopbacks[1])
			if second, e := t.open(network, other, max(time.Until(end), time.Millisecond)); e == nil {
				conn, err = second, nil
			}
		}
		tries--
		if refusal != nil && ranOut(err) {
			// This try had only the rest of the time, so the answer to an earlier one says more about the agent.
			err, tries = refusal, 0
		}
		switch {
		case err == nil:
			t.use(conn, network, file)
			t.refusedAt = time.Time{}
			return nil
		case !errors.Is(err, syscall.ECONNREFUSED):
			return fmt.Errorf("statsd: %w", err)
		case tries <= 0:
			if time.Since(t.refusedAt) >= t.connectTimeout {
				t.refusedAt = time.Now()
			}
			return fmt.Errorf("statsd: %w", err)
		}
		refusal = err
		time.Sleep(min(t.connectTimeout/(dialTries+1), time.Second))
	}
}

// ranOut says that connecting was given up when its time was over, before there was an answer.
func ranOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

func (t *socketTransport) disconnect() {
	if t.conn != nil {
		t.conn.Close()
		t.conn = nil
	}
}

// Write sends one packet. It is used for single packets where there is no batch, so it makes a frame of its own.
func (t *socketTransport) Write(b []byte) (int, error) {
	k := packet{buf: append(make([]byte, frameHeader), b...)}
	var errs [1]error
	t.writeBatch([]*packet{&k}, errs[:])
	if errs[0] != nil {
		return 0, errs[0]
	}
	return len(b), nil
}

func (t *socketTransport) writeBatch(packets []*packet, errs []error) {
	t.renew()
	fresh := false
	for len(packets) > 0 {
		start := time.Now()
		had := t.conn != nil
		err := errClosing
		if !t.outOfPatience() {
			if err = t.connect(); err != nil {
				t.spend(start)
			}
		}
		if err != nil {
			for i := range packets {
				errs[i] = err
			}
			return
		}
		fresh = fresh || !had
		var n int
		if t.stream {
			n, err = t.writeFrames(packets)
		} else {
			n, err = t.writeDatagrams(packets)
		}
		packets, errs = packets[n:], errs[n:]
		if err == nil {
			if n > 0 {
				fresh = false
			}
			continue
		}
		t.spend(start)
		var cut *cutFrameError
		if !isTimeout(err) || errors.As(err, &cut) {
			t.disconnect()
			if !fresh && cut == nil && !errors.Is(err, syscall.EMSGSIZE) {
				// The agent went away since the last packet. Nothing of this one was taken, so it goes to the next
				// agent.
				fresh = true
				continue
			}
		}
		fresh = false
		errs[0] = err
		packets, errs = packets[1:], errs[1:]
	}
}

// writeDatagrams writes packets until one fails, and returns how many were written.
func (t *socketTransport) writeDatagrams(packets []*packet) (int, error) {
	_ = t.conn.SetWriteDeadline(deadline(t.within(t.writeTimeout)))
	if conn, ok := t.conn.(syscall.Conn); ok && len(packets) > 1 {
		if n, err := t.batch.send(conn, packets); n > 0 || err != nil {
			if n > 0 {
				// The packet after them has a full timeout of its own.
				err = nil
			}
			return n, err
		}
	}
	if _, err := t.conn.Write(packets[0].payload()); err != nil {
		return 0, err
	}
	return 1, nil
}

// cutFrameError says that a frame was written in part, so that the stream cannot be used any more.
type cutFrameError struct{ err error }

func (e *cutFrameError) Error() string { return "statsd: frame written in part: " + e.err.Error() }
func (e *cutFrameError) Unwrap() error { return e.err }
func (e *cutFrameError) Timeout() bool { return isTimeout(e.err) }

// writeFrames writes packets as frames with one system call, and returns how many were written whole.
func (t *socketTransport) writeFrames(packets []*packet) (int, error) {
	_ = t.conn.SetWriteDeadline(deadline(t.within(t.writeTimeout)))
	if len(packets) == 1 {
		frame := frameOf(packets[0])
		n, err := t.conn.Write(frame)
		if n > 0 && n < len(frame) {
			return t.finishFrame(0, frame[n:])
		}
		if err != nil {
			return 0, err
		}
		return 1, nil
	}
	packets = packets[:min(len(packets), batchMax)]
	for i, k := range packets {
		t.store[i] = frameOf(k)
	}
	t.frames = t.store[:len(packets)]
	// WriteTo moves the slice on as it writes, and forgets the buffers behind it.
	written, err := t.frames.WriteTo(t.conn)
	t.frames = nil
	clear(t.store[:len(packets)])
	if err == nil {
		return len(packets), nil
	}
	whole := 0
	for _, k := range packets {
		if written < int64(len(k.buf)) {
			break
		}
		written -= int64(len(k.buf))
		whole++
	}
	if written > 0 {
		return t.finishFrame(whole, packets[whole].buf[written:])
	}
	if whole > 0 {
		// The packet after them has a full timeout of its own.
		return whole, nil
	}
	return 0, err
}

// frameOf fills in the length before a packet.
func frameOf(k *packet) []byte {
	binary.LittleEndian.PutUint32(k.buf, uint32(len(k.payload())))
	return k.buf
}

// finishFrame writes the rest of a frame that has been begun, for which there is more time.
func (t *socketTransport) finishFrame(whole int, rest []byte) (int, error) {
	_ = t.conn.SetWriteDeadline(deadline(t.within(t.connectTimeout)))
	if _, err := t.conn.Write(rest); err != nil {
		return whole, &cutFrameError{err}
	}
	return whole + 1, nil
}

func (t *socketTransport) Close() error {
	if t.name != nil {
		t.name.stop()
	}
	if t.conn == nil {
		return nil
	}
	err := t.conn.Close()
	t.conn = nil
	return err
}
