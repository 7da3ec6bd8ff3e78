package statsd

import (
	"bytes"
	"sync"
)

// inbox holds messages of channel mode until a goroutine packs them. Both buffers are kept, so a message
// costs a copy and no allocation.
type inbox struct {
	mu     sync.Mutex
	change sync.Cond
	text   []byte
	count  int
	max    int
	// busy says that the goroutine has taken messages it has not packed yet.
	busy   bool
	closed bool
	spare  []byte
	worker *worker
	tally  [kindLimit]uint64
	lost   uint64
}

func (c *core) startInboxes(max int) {
	c.inboxes = make([]inbox, len(c.workers))
	for i := range c.inboxes {
		in := &c.inboxes[i]
		in.max = max
		in.worker = &c.workers[i]
		in.change.L = &in.mu
		c.stopped.Add(1)
		go c.runInbox(in)
	}
}

func (c *core) runInbox(in *inbox) {
	defer c.stopped.Done()
	in.mu.Lock()
	for {
		for in.count == 0 && !in.closed {
			in.change.Wait()
		}
		if in.count == 0 {
			in.mu.Unlock()
			return
		}
		text := in.text
		in.text, in.spare = in.spare[:0], nil
		in.count = 0
		in.busy = true
		in.mu.Unlock()

		w := in.worker
		w.mu.Lock()
		for rest := text; len(rest) > 0; {
			n := bytes.IndexByte(rest, '\n') + 1
			// Its size was checked when it came in.
			_ = w.commit(append(w.begin(), rest[:n]...))
			rest = rest[n:]
		}
		c.unlock(w)

		in.mu.Lock()
		in.spare = text[:0]
		in.busy = false
		in.change.Broadcast()
	}
}

// inOrder says whether a message of a kind may be written now, past the goroutine: a gauge may not while others wait.
// The caller holds the worker's lock, so that what the goroutine has taken is either in a packet or makes it busy.
func (in *inbox) inOrder(k kind) bool {
	if k != kindGauge && k != kindGaugeDelta {
		return true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.count == 0 && !in.busy
}

// sendToInbox writes a metric into a packet if that needs no waiting, and otherwise leaves it for the goroutine, unless
// too many wait.
func (s *scope) sendToInbox(k kind, name string, value []byte, tags []string, x extras) error {
	c := s.core
	in := &c.inboxes[spread(name, len(c.inboxes))]
	if w := in.worker; w.mu.TryLock() {
		if !in.inOrder(k) {
			c.unlock(w)
			return s.leave(in, k, name, value, tags, x)
		}
		w.tally[k]++
		var err error
		if line := s.lineOf(k, name, tags, x); line != nil {
			err = w.rawLine(line, value, x.rate)
		} else {
			err = w.commit(s.appendMetric(w.begin(), k, name, value, tags, x))
		}
		c.unlock(w)
		if err != nil {
			return c.tooLong()
		}
		return nil
	}
	return s.leave(in, k, name, value, tags, x)
}

// leave leaves a message for the goroutine.
func (s *scope) leave(in *inbox, k kind, name string, value []byte, tags []string, x extras) error {
	c := s.core
	in.mu.Lock()
	in.tally[k]++
	if in.count >= in.max || in.closed {
		in.lost++
		waiting := in.count
		in.mu.Unlock()
		return c.lostInput(waiting, k, name, tags)
	}
	start := len(in.text)
	text := s.appendMetric(in.text, k, name, value, tags, x)
	if len(text)-start > c.out.maxBytes {
		in.text = text[:start]
		in.mu.Unlock()
		return c.tooLong()
	}
	in.put(text)
	in.mu.Unlock()
	return nil
}

// put makes the message appended to the text part of it. The caller holds in.mu.
func (in *inbox) put(text []byte) {
	in.text = text
	in.count++
	if in.count == 1 {
		in.change.Broadcast()
	}
}

func (c *core) lostInput(waiting int, k kind, name string, tags []string) error {
	if c.errorHandler == nil && !c.channelErrors {
		return nil
	}
	err := &ErrorInputChannelFull{Metric: newMetric(k, name, tags), ChannelSize: waiting,
		Msg: "Worker input channel full"}
	c.handle(err)
	if c.channelErrors {
		return err
	}
	return nil
}

// drainInboxes returns when all messages left before are in packets.
func (c *core) drainInboxes() {
	for i := range c.inboxes {
		in := &c.inboxes[i]
		in.mu.Lock()
		for in.count > 0 || in.busy {
			in.change.Wait()
		}
		in.mu.Unlock()
	}
}

func (c *core) closeInboxes() {
	for i := range c.inboxes {
		in := &c.inboxes[i]
		in.mu.Lock()
		in.closed = true
		in.change.Broadcast()
		in.mu.Unlock()
	}
}
