package statsd

import (
	"sync"
	"sync/atomic"
	"time"
)

// aheadMax is the number of packets that may wait while a flush fills more. It bounds the memory of a flush of very
// many contexts, and leaves the rest of the queue to calls that must not wait.
const aheadMax = 128

// batchMax is the number of packets taken from the queue at once.
const batchMax = 64

// queue holds packets that wait to be written, at most max of them.
type queue struct {
	mu     sync.Mutex
	change sync.Cond
	ring   []*packet
	head   int
	count  int
	max    int
	closed bool
	// pushed and done count packets since the start, so that a flush knows what to wait for.
	pushed, done uint64
	waiters      int

	droppedPackets, droppedBytes uint64
}

func newQueue(max int) *queue {
	q := &queue{max: max}
	q.change.L = &q.mu
	return q
}

// push adds a packet unless the queue is full or closed; then the packet is counted as dropped. It returns how many
// wait.
func (q *queue) push(k *packet) (waiting int, ok bool) {
	q.mu.Lock()
	if q.count >= q.max || q.closed {
		q.droppedPackets++
		q.droppedBytes += uint64(len(k.payload()))
		waiting = q.count
		q.mu.Unlock()
		return waiting, false
	}
	q.add(k)
	q.mu.Unlock()
	return 0, true
}

// pushWait adds a packet when there is room and few others wait.
func (q *queue) pushWait(k *packet) {
	for !q.pushIfRoom(k) {
		q.waitForRoom()
	}
}

// pushIfRoom adds a packet if there is room and few others wait. When the queue is closed, the packet is counted as
// dropped.
func (q *queue) pushIfRoom(k *packet) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		q.droppedPackets++
		q.droppedBytes += uint64(len(k.payload()))
	case q.crowded():
		return false
	default:
		q.add(k)
	}
	return true
}

// waitForRoom returns when pushIfRoom may succeed.
func (q *queue) waitForRoom() {
	q.mu.Lock()
	for q.crowded() && !q.closed {
		q.wait()
	}
	q.mu.Unlock()
}

func (q *queue) crowded() bool { return q.count >= min(q.max, aheadMax) }

func (q *queue) wait() {
	q.waiters++
	q.change.Wait()
	q.waiters--
}

func (q *queue) add(k *packet) {
	if q.count == len(q.ring) {
		grown := make([]*packet, max(16, min(2*len(q.ring), q.max)))
		for i := 0; i < q.count; i++ {
			grown[i] = q.ring[(q.head+i)%len(q.ring)]
		}
		q.ring, q.head = grown, 0
	}
	q.ring[(q.head+q.count)%len(q.ring)] = k
	q.count++
	q.pushed++
	if q.waiters > 0 {
		q.change.Broadcast()
	}
}

// take waits for packets and moves up to len(into) of them there. It returns none when the queue is closed and empty.
func (q *queue) take(into []*packet) []*packet {
	q.mu.Lock()
	for q.count == 0 && !q.closed {
		q.wait()
	}
	n := min(q.count, len(into))
	for i := 0; i < n; i++ {
		into[i] = q.ring[q.head]
		q.ring[q.head] = nil
		q.head = (q.head + 1) % len(q.ring)
	}
	q.count -= n
	if q.waiters > 0 {
		q.change.Broadcast()
	}
	q.mu.Unlock()
	return into[:n]
}

func (q *queue) finish(n int) {
	q.mu.Lock()
	q.done += uint64(n)
	if q.waiters > 0 {
		q.change.Broadcast()
	}
	q.mu.Unlock()
}

// flush returns when all packets pushed before are written or dropped.
func (q *queue) flush() {
	q.mu.Lock()
	for target := q.pushed; q.done < target; {
		q.wait()
	}
	q.mu.Unlock()
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.change.Broadcast()
	q.mu.Unlock()
}

// batchTransport is a transport that writes several packets with fewer system calls. For each packet it stores in errs
// whether it was written.
type batchTransport interface {
	writeBatch(packets []*packet, errs []error)
}

// hurrier is a transport that any goroutine can notify that the client is closing: after that it waits for a
// peer which does not read or cannot be reached only so long in all, and refuses the rest at once.
type hurrier interface{ hurry() }

// sender writes packets in one goroutine.
type sender struct {
	transport Transport
	queue     *queue
	pool      *pool
	handle    func(error)
	finished  chan struct{}

	sentPackets, sentBytes       atomic.Uint64
	droppedPackets, droppedBytes atomic.Uint64
}

func newSender(t Transport, out *output, handle func(error)) *sender {
	s := &sender{transport: t, queue: out.queue, pool: &out.pool, handle: handle, finished: make(chan struct{})}
	go s.run()
	return s
}

func (s *sender) run() {
	defer close(s.finished)
	batches, _ := s.transport.(batchTransport)
	var packets [batchMax]*packet
	var errs [batchMax]error
	for {
		batch := s.queue.take(packets[:])
		if len(batch) == 0 {
			return
		}
		if batches != nil {
			batches.writeBatch(batch, errs[:len(batch)])
		} else {
			for i, k := range batch {
				_, errs[i] = s.transport.Write(k.payload())
			}
		}
		for i, k := range batch {
			size := uint64(len(k.payload()))
			if err := errs[i]; err != nil {
				s.droppedPackets.Add(1)
				s.droppedBytes.Add(size)
				s.handle(err)
			} else {
				s.sentPackets.Add(1)
				s.sentBytes.Add(size)
			}
			errs[i] = nil
			packets[i] = nil
			s.pool.put(k)
		}
		s.queue.finish(len(batch))
	}
}

// hurry is called when the client begins to close: what waits is still written, unless that fails for longer than
// closePatience allows.
func (s *sender) hurry() {
	if h, ok := s.transport.(hurrier); ok {
		h.hurry()
	}
}

// close writes the queued packets and closes the transport.
func (s *sender) close() error {
	s.hurry()
	s.queue.close()
	<-s.finished
	return s.transport.Close()
}

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// customTransport is a writer given by the user.
type customTransport struct {
	w interface {
		Write([]byte) (int, error)
		Close() error
	}
}

func (t customTransport) Write(b []byte) (int, error) { return t.w.Write(b) }
func (t customTransport) Close() error                { return t.w.Close() }
func (t customTransport) GetTransportName() string    { return transportCustom }

// deadline returns the moment a write that begins now must end.
func deadline(timeout time.Duration) time.Time { return time.Now().Add(timeout) }
