package statsd

import (
	"bytes"
	"sync"
	"sync/atomic"
)

// frameHeader is room at the start of a packet's buffer for the length a stream needs before it, so that a frame is
// written whole with one call.
const frameHeader = 4

// messageSlack is room after the largest packet: a message is written first and moved to the next packet if it does
// not fit.
const messageSlack = 512

func indexByte(b []byte, c byte) int { return bytes.IndexByte(b, c) }

// packet is a packet being filled, waiting or being written. Its bytes are buf[frameHeader:].
type packet struct {
	buf      []byte
	messages int
}

func (p *packet) payload() []byte { return p.buf[frameHeader:] }

// pool keeps packets for reuse. It starts empty, so that a client that sends little costs little.
type pool struct {
	mu       sync.Mutex
	free     []*packet
	max      int
	maxBytes int
}

func (p *pool) get() *packet {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		k := p.free[n-1]
		p.free[n-1] = nil
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return k
	}
	p.mu.Unlock()
	return &packet{buf: make([]byte, frameHeader, frameHeader+p.maxBytes+messageSlack)}
}

func (p *pool) put(k *packet) {
	k.buf = k.buf[:frameHeader]
	k.messages = 0
	p.mu.Lock()
	if len(p.free) < p.max {
		p.free = append(p.free, k)
	}
	p.mu.Unlock()
}

// worker fills one packet. All fields but stale are guarded by mu.
type worker struct {
	mu     sync.Mutex
	out    *output
	packet *packet
	// full holds packets until release, for a worker that must not wait while it is locked.
	full []*packet
	hold bool
	// tally counts the calls by kind that came straight here.
	tally [kindLimit]uint64
	// dropped is the loss of this turn, reported by unlock.
	dropped *ErrorSenderChannelFull
	// stale says that a packet has been begun since the last look of the clock.
	stale atomic.Bool
	_     [64]byte
}

// output takes the packets of workers: one for metrics and, if telemetry has an address of its own, one for that.
type output struct {
	pool        pool
	queue       *queue
	maxBytes    int
	maxMessages int
	// kick is called when a packet is begun, so that it leaves in time.
	kick func()
}

// begin returns the buffer a message is to be appended to.
func (w *worker) begin() []byte {
	if w.packet != nil {
		if w.packet.messages < w.out.maxMessages {
			return w.packet.buf
		}
		w.send()
	}
	w.packet = w.out.pool.get()
	w.stale.Store(true)
	if w.out.kick != nil {
		w.out.kick()
	}
	return w.packet.buf
}

// commit takes the buffer with the message appended. A message that does not fit begins the next packet.
func (w *worker) commit(b []byte) error {
	start := len(w.packet.buf)
	if len(b) <= frameHeader+w.out.maxBytes {
		w.packet.buf = b
		w.packet.messages++
		return nil
	}
	message := b[start:]
	if len(message) > w.out.maxBytes {
		if start == frameHeader {
			w.giveBack()
		}
		return MessageTooLongError{}
	}
	// The message is copied before its packet is handed over, because from then on others may fill that packet again.
	next := w.out.pool.get()
	next.buf = append(next.buf, message...)
	next.messages = 1
	w.send()
	w.packet = next
	w.stale.Store(true)
	if w.out.kick != nil {
		w.out.kick()
	}
	return nil
}

// room says how many bytes are left in the packet, begun or not.
func (w *worker) room() int {
	if w.packet == nil || w.packet.messages >= w.out.maxMessages {
		return w.out.maxBytes
	}
	return frameHeader + w.out.maxBytes - len(w.packet.buf)
}

// giveBack returns a packet that was begun and got no message.
func (w *worker) giveBack() {
	if w.packet != nil && w.packet.messages == 0 {
		w.out.pool.put(w.packet)
		w.packet = nil
	}
}

// send puts the packet into the queue.
func (w *worker) send() {
	k := w.packet
	if k == nil || k.messages == 0 {
		return
	}
	w.packet = nil
	if w.hold {
		w.full = append(w.full, k)
		return
	}
	if waiting, ok := w.out.queue.push(k); !ok {
		if w.dropped == nil {
			w.dropped = &ErrorSenderChannelFull{Msg: "Sender queue is full"}
		}
		w.dropped.LostElements += k.messages
		w.dropped.ChannelSize = waiting
		w.out.pool.put(k)
	}
}

// release puts the held packets into the queue, waiting for room.
func (w *worker) release() {
	for i, k := range w.full {
		w.out.queue.pushWait(k)
		w.full[i] = nil
	}
	w.full = w.full[:0]
}

// unlock ends a turn and reports its losses, after the lock is released so that the handler may use the client.
func (c *core) unlock(w *worker) {
	lost := w.dropped
	w.dropped = nil
	w.mu.Unlock()
	if lost != nil {
		c.handle(lost)
	}
}

// flushWorker sends a packet that is not full yet.
func (c *core) flushWorker(w *worker, wait bool) {
	if lost := w.flush(wait); lost != nil {
		c.handle(lost)
	}
}

// flush is flushWorker for a caller that reports the loss later.
func (w *worker) flush(wait bool) (lost *ErrorSenderChannelFull) {
	if !w.stale.Load() {
		return nil
	}
	if wait {
		w.sendWhenRoom()
		return nil
	}
	w.mu.Lock()
	w.stale.Store(false)
	w.send()
	lost = w.dropped
	w.dropped = nil
	w.mu.Unlock()
	return lost
}

// sendWhenRoom puts the packet into the queue as soon as there is room. It waits without the lock, because calls must
// not wait for the network; until then the packet stays in its place, so that values added to it or sent after it
// keep their order.
func (w *worker) sendWhenRoom() {
	var first *packet
	for {
		w.mu.Lock()
		k := w.packet
		if first == nil {
			first = k
		}
		done := true
		switch {
		case k == nil || k.messages == 0:
			w.stale.Store(false)
		case k != first:
			// A call has filled the packet and sent it.
		case w.out.queue.pushIfRoom(k):
			w.stale.Store(false)
			w.packet = nil
		default:
			done = false
		}
		w.mu.Unlock()
		if done {
			return
		}
		w.out.queue.waitForRoom()
	}
}
