package statsd

import (
	"math"
	"strings"
	"sync/atomic"
	"time"
)

// handle is a name and tags bound once, so that sending a value needs no lookup. All handles may be used by several
// goroutines, and stay valid for the life of their client however long they are idle.
type handle struct {
	series atomic.Pointer[series]
}

// bind finds or makes the series of a handle. A series that cannot be kept, because there are too many or because the
// client does not aggregate its kind, sends at once.
func (c *ClientEx) bind(h *handle, k kind, name string, tags []string) {
	s := c.scope
	k = c.core.sentAs(k)
	key := s.key(k, s.card)
	overflowed := false
	if c.core.aggregate {
		switch x := s.lookup(key, name, tags); {
		case x == nil:
			overflowed = true
			c.core.overflow.Add(1)
		case x.usable:
			x.mu.Lock()
			x.spill().bound.Store(true)
			x.mu.Unlock()
			h.series.Store(x)
			return
		}
	}
	x := s.newSeries(key, name, tags)
	x.usable = x.sendable()
	x.overflowed = overflowed
	h.series.Store(x.makeDirect())
}

// get returns the series, or nil if its metrics cannot be sent.
func (h *handle) get() *series {
	x := h.series.Load()
	if !x.usable {
		_ = x.scope.core.unusable(x)
		return nil
	}
	return x
}

// renew replaces a series that was retired, so that the next call finds its successor at once.
func (h *handle) renew(x *series) {
	if x.direct {
		return
	}
	if y := x.again(); y != nil {
		h.series.CompareAndSwap(x, y)
	}
}

func (x *series) isClosed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.closed
}

// Counter is a handle of a counter.
type Counter struct{ handle }

// Inc adds one. It costs one atomic addition, or less if it is called often.
func (h *Counter) Inc() {
	if h == nil {
		return
	}
	x := h.series.Load()
	if pinning && x.lanes.Load() != nil {
		p := pin()
		if l := x.lanes.Load(); l != nil && p < len(l.each) {
			l.each[p].ones++
			unpin()
			return
		}
		unpin()
	}
	if int64(x.cell.Add(1+cellCall)) < 0 {
		h.slow(x, 1)
	}
}

// Add adds n.
func (h *Counter) Add(n int64) {
	if h == nil {
		return
	}
	x := h.series.Load()
	if pinning && x.lanes.Load() != nil {
		p := pin()
		if l := x.lanes.Load(); l != nil && p < len(l.each) {
			l.each[p].sum += uint64(n)
			l.each[p].calls++
			unpin()
			return
		}
		unpin()
	}
	if uint64(n+smallCount) >= 2*smallCount || int64(x.cell.Add(uint64(n)+cellCall)) < 0 {
		h.slow(x, n)
	}
}

func (h *Counter) slow(x *series, n int64) {
	if !x.usable {
		_ = x.scope.core.unusable(x)
		x.cell.Store(cellClosed)
		return
	}
	x.addCountSlow(n)
	if x.isClosed() {
		h.renew(x)
	}
}

// FloatCounter is a handle of a counter of floats.
type FloatCounter struct{ handle }

// Add adds v. A value that is not finite is ignored and counted as invalid.
func (h *FloatCounter) Add(v float64) {
	if h == nil {
		return
	}
	x := h.get()
	if x == nil {
		return
	}
	if !finite(v) {
		_ = x.scope.core.refuse(ErrInvalidValue)
		return
	}
	x.addFloatCount(v)
	if x.isClosed() {
		h.renew(x)
	}
}

// Gauge is a handle of a gauge.
type Gauge struct{ handle }

// Set sends v as the value at this moment. A value that is not finite is ignored and counted as invalid.
func (h *Gauge) Set(v float64) {
	if h == nil {
		return
	}
	x := h.series.Load()
	if pinning && v-v == 0 && x.lanes.Load() != nil {
		pin()
		if x.lanes.Load() != nil {
			storePlain(&x.cell, math.Float64bits(v))
			unpin()
			return
		}
		unpin()
	}
	if v-v != 0 || x.cell.Swap(math.Float64bits(v)) == gaugeClosed {
		h.slow(x, v)
	}
}

func (h *Gauge) refuse(x *series) {
	if !x.usable {
		_ = x.scope.core.unusable(x)
		return
	}
	_ = x.scope.core.refuse(ErrInvalidValue)
}

func (h *Gauge) slow(x *series, v float64) {
	if !x.usable {
		x.cell.Store(gaugeClosed)
	}
	if !finite(v) || !x.usable {
		h.refuse(x)
		return
	}
	if x.direct {
		x.mu.Lock()
		x.more.Load().level = v
		x.mu.Unlock()
	}
	x.setGaugeSlow(v)
	h.renew(x)
}

// Add changes the value of the gauge by v, starting from zero, and sends the result. It is for a level that is counted
// here, such as requests in flight: changes by other clients and processes are not known to it. A gauge at another
// level than zero is kept however long it is idle.
func (h *Gauge) Add(v float64) {
	if h == nil {
		return
	}
	x := h.series.Load()
	if !finite(v) || !x.usable {
		h.refuse(x)
		return
	}
	for {
		done, level := x.addGauge(v)
		if done {
			return
		}
		if x.direct {
			var tmp [32]byte
			_ = x.sendNow(appendFloat(tmp[:0], level), 1)
			return
		}
		h.renew(x)
		if next := h.series.Load(); next != x {
			x = next
			continue
		}
		// No room for its successor: only the handle keeps the level.
		x.scope.core.overflow.Add(1)
		h.series.CompareAndSwap(x, x.copyIdentity().makeDirect())
		x = h.series.Load()
	}
}

// addGauge changes the level. It returns false if the value was not collected; the level is changed all the same if the
// series is direct.
func (x *series) addGauge(v float64) (done bool, level float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.more.Load()
	m.counted = true
	if x.direct {
		m.level += v
		return false, m.level
	}
	for {
		// The flush empties the cell only under mu; a value set meanwhile is seen by the comparison.
		cell := x.cell.Load()
		if cell == gaugeClosed {
			return false, 0
		}
		level = m.level
		if cell != gaugeEmpty {
			level = math.Float64frombits(cell)
		}
		if level += v; !finite(level) {
			_ = x.scope.core.refuse(ErrInvalidValue)
			return true, level
		}
		if x.cell.CompareAndSwap(cell, math.Float64bits(level)) {
			return true, level
		}
	}
}

// packedHandle is the common part of handles of packed kinds.
type packedHandle struct{ handle }

func (h *packedHandle) observe(v float64) {
	x := h.series.Load()
	if !finite(v) || !x.usable {
		h.refuse(x)
		return
	}
	if pinning && x.lanes.Load() != nil {
		p := pin()
		if l := x.lanes.Load(); l != nil && p < len(l.each) {
			a := &l.each[p]
			if at := a.written; at-a.read.Load() < uint64(len(a.ring)) {
				a.ring[at&uint64(len(a.ring)-1)] = v
				a.written = at + 1
				unpin()
				return
			}
			unpin()
			h.observeLocked(x, v, p)
			return
		}
		unpin()
	}
	h.observeLocked(x, v, 0)
}

// observeLocked adds a value under the mutex, and first the values in the lane that was full.
func (h *packedHandle) observeLocked(x *series, v float64, full int) {
	x.mu.Lock()
	if x.closed || x.direct {
		closed := x.closed
		x.mu.Unlock()
		x.observeSlow(v)
		if closed {
			h.renew(x)
		}
		return
	}
	var lost []*ErrorSenderChannelFull
	if l := x.lanes.Load(); l != nil && full < len(l.each) {
		lost = x.takeLane(&l.each[full])
	}
	if one := x.keepValue(v); one != nil {
		lost = append(lost, one)
	}
	x.mu.Unlock()
	for _, one := range lost {
		x.scope.core.handle(one)
	}
}

func (h *packedHandle) refuse(x *series) {
	if !x.usable {
		_ = x.scope.core.unusable(x)
		return
	}
	_ = x.scope.core.refuse(ErrInvalidValue)
}

// Histogram is a handle of a histogram.
type Histogram struct{ packedHandle }

// Observe adds a value. A value that is not finite is ignored and counted as invalid.
func (h *Histogram) Observe(v float64) {
	if h != nil {
		h.observe(v)
	}
}

// Distribution is a handle of a distribution.
type Distribution struct{ packedHandle }

// Observe adds a value. A value that is not finite is ignored and counted as invalid.
func (h *Distribution) Observe(v float64) {
	if h != nil {
		h.observe(v)
	}
}

// Timing is a handle of a timing.
type Timing struct{ packedHandle }

// Observe adds a duration.
func (h *Timing) Observe(d time.Duration) {
	if h != nil {
		h.observe(milliseconds(d))
	}
}

// Since adds the time that has passed since start.
func (h *Timing) Since(start time.Time) { h.Observe(time.Since(start)) }

// Set is a handle of a set.
type Set struct{ handle }

// Add adds a member. An empty one is ignored and counted as invalid.
func (h *Set) Add(member string) {
	if h == nil {
		return
	}
	x := h.get()
	if x == nil {
		return
	}
	if member == "" {
		_ = x.scope.core.refuse(ErrInvalidValue)
		return
	}
	_ = x.addMember(member)
	if x.isClosed() {
		h.renew(x)
	}
}

// NewCounter returns a handle of the counter with this name and these tags.
func (c *Client) NewCounter(name string, tags ...string) *Counter {
	h := &Counter{}
	return bound(c, h, &h.handle, kindCount, name, tags)
}

// NewFloatCounter returns a handle of the float counter with this name and these tags.
func (c *Client) NewFloatCounter(name string, tags ...string) *FloatCounter {
	h := &FloatCounter{}
	return bound(c, h, &h.handle, kindFloatCount, name, tags)
}

// NewGauge returns a handle of the gauge with this name and these tags.
func (c *Client) NewGauge(name string, tags ...string) *Gauge {
	h := &Gauge{}
	return bound(c, h, &h.handle, kindGauge, name, tags)
}

// NewHistogram returns a handle of the histogram with this name and these tags.
func (c *Client) NewHistogram(name string, tags ...string) *Histogram {
	h := &Histogram{}
	return bound(c, h, &h.handle, kindHistogram, name, tags)
}

// NewDistribution returns a handle of the distribution with this name and these tags.
func (c *Client) NewDistribution(name string, tags ...string) *Distribution {
	h := &Distribution{}
	return bound(c, h, &h.handle, kindDistribution, name, tags)
}

// NewTiming returns a handle of the timing with this name and these tags.
func (c *Client) NewTiming(name string, tags ...string) *Timing {
	h := &Timing{}
	return bound(c, h, &h.handle, kindTiming, name, tags)
}

// NewSet returns a handle of the set with this name and these tags.
func (c *Client) NewSet(name string, tags ...string) *Set {
	h := &Set{}
	return bound(c, h, &h.handle, kindSet, name, tags)
}

// bound binds a handle, or returns the nil handle, which does nothing, for a nil client.
func bound[H any](c *Client, h *H, inner *handle, k kind, name string, tags []string) *H {
	if c == nil {
		return nil
	}
	c.clientEx.bind(inner, k, name, tags)
	return h
}

// CountFloat adds to a counter of floats, written in as few digits as are exact.
func (c *Client) CountFloat(name string, value float64, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.floatCount(name, value, tags, rate)
}

// GaugeDelta changes a gauge in the server by delta: the value is written with its sign. Servers of plain StatsD
// understand that, and weir where gauge deltas are turned on; others take it for a value. It is never aggregated.
func (c *Client) GaugeDelta(name string, delta float64, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	if !finite(delta) {
		return c.clientEx.core.refuse(ErrInvalidValue)
	}
	var tmp [32]byte
	value := tmp[:0]
	if !math.Signbit(delta) {
		value = append(value, '+')
	}
	return c.clientEx.scope.send(kindGaugeDelta, name, appendFloat(value, delta), tags,
		extras{rate: rate, card: c.clientEx.scope.card})
}

// cloneAll returns copies of strings that outlive the call they came with.
func cloneAll(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = strings.Clone(s)
	}
	return out
}
