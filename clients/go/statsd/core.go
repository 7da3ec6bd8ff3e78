package statsd

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// core is the part of a client that its children share: contexts, packets, sender, telemetry.
//
// A holder of one of these locks may take those further right, and none further left:
//
//	closing, flushMu, vec.mu, tableMu, countMu, series.mu, worker.mu, inbox.mu, queue.mu and pool.mu
//
// Of series, workers, inboxes and families one is locked at a time. Nobody waits for the network, or for room in the
// queue, with a lock that a call of a user takes: only closing and flushMu are held then. The error handler is called
// without any of them but closing.
type core struct {
	table    atomic.Pointer[table]
	memo     atomic.Pointer[memo]
	lines    atomic.Pointer[lineCache]
	out      output
	workers  []worker
	inboxes  []inbox
	overflow atomic.Uint64

	channelErrors bool
	aggregate     bool
	extended      bool
	plain         bool
	maxSamples    int
	maxContexts   int
	idleFlushes   uint32

	// tableMu guards live, and changes of table.
	tableMu sync.Mutex
	// live lists all series in the table.
	live     []*series
	crowding crowding
	scopes   uint64
	vecs     []sweeper

	// flushMu lets one flush of the series run at a time; it guards collector, flushing and flushLost.
	flushMu   sync.Mutex
	collector worker
	flushing  []*series
	// flushLost is the loss of a flush, to be reported once flushMu is unlocked.
	flushLost []*ErrorSenderChannelFull

	// countMu guards totals and the moving of calls from series into them.
	countMu sync.Mutex
	totals  [kindLimit]uint64
	flushed [kindLimit]uint64

	// gaugesPast says that a gauge went straight into a packet since the last flush looked. See collected.
	gaugesPast atomic.Bool

	sampledOut [kindLimit]atomic.Uint64
	invalid    atomic.Uint64
	oversized  atomic.Uint64

	errorHandler ErrorHandler
	sender       *sender
	telemetry    *telemetry
	// columns is nil without an endpoint for them.
	columns               *columns
	columnIdle            uint32
	untilWindowEnds       func(now time.Time) time.Duration
	timingsAsDistribution bool

	// armed says that the clock will flush the workers soon.
	armed    atomic.Bool
	wake     chan struct{}
	stop     chan struct{}
	stopped  sync.WaitGroup
	closing  sync.Mutex
	isClosed atomic.Bool

	flushInterval time.Duration
	interval      time.Duration
}

func (c *core) handle(err error) {
	if c.errorHandler != nil {
		c.errorHandler(err)
	}
}

// tooLong counts a message that does not fit into a packet.
func (c *core) tooLong() error {
	c.oversized.Add(1)
	return MessageTooLongError{}
}

func (c *core) refuse(err error) error {
	c.invalid.Add(1)
	return err
}

// appendValue writes a value as its kind is written.
func appendValue(b []byte, k kind, v float64) []byte {
	if k == kindTiming {
		return appendFixed6(b, v)
	}
	return appendFloat(b, v)
}

func finite(v float64) bool { return v-v == 0 }

// keep decides whether a call with a sample rate is sent.
func keep(rate float64) bool { return !(rate < 1) || rand.Float64() <= rate && rate > 0 }

// spread chooses one of n by name.
func spread(name string, n int) int {
	h := uint64(len(name))
	if len(name) >= 8 {
		h ^= load64(name, 0) ^ load64(name, len(name)-8)*3
	} else {
		for i := 0; i < len(name); i++ {
			h = h*31 + uint64(name[i])
		}
	}
	return int((h * golden) >> 32 * uint64(n) >> 32)
}

// lock returns a worker for a metric. Gauges of one name always get the same one, because their order matters; others
// take any that is free.
func (c *core) lock(k kind, name string) *worker {
	first := spread(name, len(c.workers))
	w := &c.workers[first]
	if w.mu.TryLock() {
		return w
	}
	if k != kindGauge && k != kindGaugeDelta {
		for step := 1; step <= 3; step++ {
			if v := &c.workers[(first+step)%len(c.workers)]; v.mu.TryLock() {
				return v
			}
		}
	}
	w.mu.Lock()
	return w
}

// extras are the optional sections of a message.
type extras struct {
	rate      float64
	timestamp int64
	card      Cardinality
}

// send writes a metric that is not aggregated. It must not keep name, value or tags.
func (s *scope) send(k kind, name string, value []byte, tags []string, x extras) error {
	c := s.core
	if name == "" && s.prefix == "" {
		return c.refuse(ErrEmptyName)
	}
	if !keep(x.rate) {
		c.sampledOut[k].Add(1)
		return nil
	}
	if c.inboxes != nil {
		return s.sendToInbox(k, name, value, tags, x)
	}
	line := s.lineOf(k, name, tags, x)
	w := c.lock(k, name)
	w.tally[k]++
	var err error
	if line != nil {
		err = w.rawLine(line, value, x.rate)
	} else {
		err = w.commit(s.appendMetric(w.begin(), k, name, value, tags, x))
	}
	c.unlock(w)
	if err != nil {
		c.oversized.Add(1)
	}
	return err
}

// lineOf returns the line of a metric that is not aggregated if it is known and has nothing that lines do not have.
func (s *scope) lineOf(k kind, name string, tags []string, x extras) *series {
	// A list with nothing but an empty tag is written for some kinds and not for others.
	if x.timestamp != 0 || len(tags) == 1 && tags[0] == "" {
		return nil
	}
	return s.findLine(s.key(k, x.card), name, tags)
}

func (s *scope) appendMetric(b []byte, k kind, name string, value []byte, tags []string, x extras) []byte {
	b = append(b, s.prefix...)
	b = appendName(b, name)
	b = append(b, ':')
	b = append(b, value...)
	b = append(b, kindMiddle[k]...)
	if x.rate < 1 {
		b = appendRate(b, x.rate)
	}
	b = appendTags(b, s.hasTags, s.tagText, tags)
	b = append(b, s.suffix...)
	if x.timestamp != 0 {
		b = append(b, "|T"...)
		b = strconv.AppendInt(b, x.timestamp, 10)
	}
	if x.card != CardinalityNotSet {
		b = appendCardinality(b, x.card)
	}
	return append(b, '\n')
}

// sendGauge writes a gauge that is not aggregated. Plain StatsD takes a sign for a change, so a negative value is a
// change from zero.
func (s *scope) sendGauge(name string, v float64, tags []string, x extras) error {
	var tmp [32]byte
	var err error
	if s.core.plain && math.Signbit(v) && v != 0 {
		if err = s.send(kindGauge, name, []byte("0"), tags, extras{rate: 1, card: x.card}); err == nil {
			err = s.send(kindGaugeDelta, name, appendFloat(tmp[:0], v), tags, x)
		}
	} else {
		err = s.send(kindGauge, name, appendFloat(tmp[:0], v), tags, x)
	}
	if s.core.aggregate {
		s.core.gaugesPast.Store(true)
	}
	return err
}

// sendNow writes a value of a series at once, counting it as this many calls.
func (x *series) sendNow(value []byte, calls uint64) error {
	c := x.scope.core
	w := c.lock(x.kind, x.name)
	w.tally[x.kind] += calls
	err := w.line(x, value, x.rate())
	c.unlock(w)
	if x.kind == kindGauge {
		c.gaugesPast.Store(true)
	}
	if err != nil {
		return c.tooLong()
	}
	return nil
}

// line writes one message of a series.
func (w *worker) line(x *series, value []byte, rate float64) error {
	if x.kind == kindGauge && len(value) > 0 && value[0] == '-' && x.scope.core.plain {
		_ = w.rawLine(x, []byte("0"), 1)
	}
	return w.rawLine(x, value, rate)
}

func (w *worker) rawLine(x *series, value []byte, rate float64) error {
	b := w.begin()
	b = append(b, x.head()...)
	b = append(b, value...)
	b = append(b, kindMiddle[x.kind]...)
	if rate < 1 {
		b = appendRate(b, rate)
	}
	b = append(b, x.tail()...)
	return w.commit(b)
}

// packed writes values in as few messages as fit, and returns the number of values that fit no packet at all.
func (w *worker) packed(x *series, values []float64, rate float64) (lost int) {
	if x.scope.core.plain {
		var tmp [32]byte
		for _, v := range values {
			if w.line(x, appendValue(tmp[:0], x.kind, v), rate) != nil {
				lost++
			}
		}
		return lost
	}
	var rateText [32]byte
	end := rateText[:0]
	if rate < 1 {
		end = appendRate(end, rate)
	}
	return w.packedText(x.kind, x.head(), values, end, x.tail())
}

func (w *worker) packedText(k kind, head string, values []float64, rate []byte, tail string) (lost int) {
	var tmp [32]byte
	fixed := len(head) + len(kindMiddle[k]) + len(rate) + len(tail)
	for len(values) > 0 {
		text := appendValue(tmp[:0], k, values[0])
		if fixed+len(text) > w.out.maxBytes {
			lost++
			values = values[1:]
			continue
		}
		if fixed+len(text) > w.room() {
			w.send()
		}
		b := w.begin()
		last := frameHeader + w.out.maxBytes - (fixed - len(head))
		b = append(b, head...)
		b = append(b, text...)
		values = values[1:]
		b, values = appendValues(b, k, values, last)
		b = append(b, kindMiddle[k]...)
		b = append(b, rate...)
		b = append(b, tail...)
		_ = w.commit(b)
	}
	return lost
}

// valueRoom is the number of bytes copied at once for a repeated value; most texts are shorter.
const valueRoom = 16

// appendValues writes values, each after a colon, while the text stays within last bytes, and returns those left over.
// Each is written in place, and taken back if it is too long. A value that is the same as the one before has the same
// text, colon included, which lies right before it.
func appendValues(b []byte, k kind, values []float64, last int) ([]byte, []float64) {
	before, size := uint64(0), 0
	for i, v := range values {
		n := len(b)
		if same := math.Float64bits(v); same == before && size > 0 && size <= valueRoom {
			b = growFor(b, valueRoom)[:n+valueRoom]
			*(*[valueRoom]byte)(b[n:]) = *(*[valueRoom]byte)(b[n-size:])
			b = b[:n+size]
		} else {
			if b = append(b, ':'); k == kindTiming {
				b = appendFixed6(b, v)
			} else {
				b = appendFloat(b, v)
			}
			before, size = same, len(b)-n
		}
		if len(b) > last {
			return b[:n], values[i:]
		}
	}
	return b, nil
}

// takeValues returns the values of a packed series with the sample rate they stand for. The caller holds x.mu and has
// to use them before it lets go.
func (x *series) takeValues() (values []float64, rate float64) {
	m := x.more.Load()
	values, rate = m.values, m.rate
	if n := uint64(len(values)); n < m.seen {
		rate *= float64(n) / float64(m.seen)
	}
	m.values = m.values[:0]
	m.seen = 0
	return values, rate
}

// sendEarly sends the values of a full series. The caller holds x.mu, and reports the loss returned once it has let
// go.
func (c *core) sendEarly(x *series) *ErrorSenderChannelFull {
	w, m := c.lock(x.kind, x.name), x.more.Load()
	if x.kind == kindSet {
		w.members(x, m.fresh)
		m.forgetMembers()
		m.members = make(map[string]*member)
	} else {
		m.spilledCalls.Add(m.seen)
		values, rate := x.takeValues()
		c.oversized.Add(uint64(w.packed(x, values, rate)))
	}
	lost := w.dropped
	w.dropped = nil
	w.mu.Unlock()
	return lost
}

func (w *worker) members(x *series, members []*member) {
	var tmp [64]byte
	for _, m := range members {
		if w.line(x, appendSetValue(tmp[:0], m.value), 1) != nil {
			x.scope.core.oversized.Add(1)
		}
	}
}

func (m *store) forgetMembers() {
	clear(m.fresh)
	m.fresh = m.fresh[:0]
	m.turn++
}

// flushWorkers sends the packets that are being filled.
func (c *core) flushWorkers(wait bool) {
	for i := range c.workers {
		c.flushWorker(&c.workers[i], wait)
	}
}

// kick makes the clock flush the workers within the flush interval.
func (c *core) kick() {
	if !c.armed.Load() && c.armed.CompareAndSwap(false, true) {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// clock runs the periodic work.
func (c *core) clock() {
	defer c.stopped.Done()
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var flush, report, sealed <-chan time.Time
	var seal *time.Timer
	if c.columns != nil {
		seal = time.NewTimer(c.untilWindowEnds(time.Now()))
		defer seal.Stop()
		sealed = seal.C
	}
	if c.aggregate {
		t := time.NewTicker(c.interval)
		defer t.Stop()
		flush = t.C
	}
	if c.telemetry != nil {
		t := time.NewTicker(telemetryInterval)
		defer t.Stop()
		report = t.C
	}
	for {
		select {
		case <-c.stop:
			return
		case <-c.wake:
			timer.Reset(c.flushInterval)
		case <-timer.C:
			c.armed.Store(false)
			c.flushWorkers(false)
		case <-flush:
			c.flushSeries(false, c.ticked())
		case <-sealed:
			c.flushSeries(false, c.windowEnded())
			seal.Reset(c.untilWindowEnds(time.Now()))
		case <-report:
			c.telemetry.report()
		}
	}
}

func (c *core) flush() {
	c.drainInboxes()
	if c.columns != nil {
		c.columns.settle()
	}
	if c.aggregate {
		c.flushSeries(true, flushAll)
	}
	c.flushWorkers(true)
	c.out.queue.flush()
	if c.columns != nil {
		c.columns.flush()
	}
}

func (c *core) close() error {
	// First, because everything below may wait for room in the queue.
	c.sender.hurry()
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.isClosed.Swap(true) {
		return nil
	}
	close(c.stop)
	c.closeInboxes()
	c.stopped.Wait()
	if c.columns != nil {
		c.columns.settle()
	}
	if c.aggregate {
		c.flushSeries(true, flushAll)
	}
	c.flushWorkers(true)
	err := c.sender.close()
	if c.columns != nil {
		c.columns.close()
	}
	if c.telemetry != nil {
		c.telemetry.close()
	}
	return err
}
