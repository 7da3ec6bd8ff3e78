// The flush: it writes each series, and removes idle ones.

package statsd

import (
	"math"
	"time"
)

const (
	// flushChunk is the number of series that are emptied while countMu is held.
	flushChunk = 128
	// crowd is the number of series from which idle ones are removed early, unless most of those come back.
	crowd = 16384
	// crowdIdle is the number of flushes for which they may be idle then.
	crowdIdle = 2
	// crowdSample is the number of new series from which their share that came back is judged.
	crowdSample = 256
	// crowdBits and crowdPlaces are the size of a set of removed series: one bit of sixteen is set in a full one.
	crowdBits   = 21
	crowdPlaces = 1 << crowdBits / 16
)

// crowding decides from how many series on idle ones are removed early. That keeps a flood of names that never return
// small. Names that return after more than crowdIdle flushes would be made again each time, so it remembers by a bit
// which were removed. The mutex of the table guards it.
type crowding struct {
	limit int
	// made counts new series since the last judgement, and back those of them that had been removed early.
	made, back int
	// removed has the series removed last, and before those before them. Both are nil until one is removed.
	removed, before *removedSet
}

type removedSet struct {
	bits  [1 << crowdBits / 64]uint64
	count int
}

func (s *removedSet) place(hash uint32) (word *uint64, bit uint64) {
	at := hash >> (32 - crowdBits)
	return &s.bits[at/64], 1 << (at % 64)
}

func (s *removedSet) has(hash uint32) bool {
	word, bit := s.place(hash)
	return *word&bit != 0
}

func (g *crowding) add(hash uint32) {
	g.made++
	if g.removed != nil && (g.removed.has(hash) || g.before.has(hash)) {
		g.back++
	}
}

func (g *crowding) remove(hash uint32) {
	if g.removed == nil {
		g.removed, g.before = new(removedSet), new(removedSet)
	} else if g.removed.count == crowdPlaces {
		g.removed, g.before = g.before, g.removed
		*g.removed = removedSet{}
	}
	word, bit := g.removed.place(hash)
	*word |= bit
	g.removed.count++
}

// isCrowd says whether this many series are too many to keep idle ones. The limit doubles where most new series had
// been removed before, and is halved where few had. It stays below the number of contexts from which new ones are
// refused.
func (g *crowding) isCrowd(all, maxContexts int) bool {
	if all <= crowd {
		g.limit = crowd
		return false
	}
	if all > g.limit && g.made >= crowdSample {
		switch {
		case 2*g.back >= g.made:
			g.limit = max(min(2*g.limit, maxContexts-maxContexts/8), crowd)
		case 4*g.back < g.made:
			g.limit = max(g.limit/2, crowd)
		}
		g.made, g.back = 0, 0
	}
	return all > g.limit
}

// flushSeries writes the collected values into packets. It waits for room in the queue: values not taken out of a
// series are not lost, it goes on collecting. wait says whether packets of the workers wait, too, instead of being
// dropped, and which says what series are flushed.
func (c *core) flushSeries(wait bool, which part) {
	c.flushMu.Lock()
	c.writeSeries(wait, which)
	lost := c.flushLost
	c.flushLost = nil
	if c.columns != nil && which&flushColumns != 0 {
		c.columns.seal(time.Now())
	}
	c.flushMu.Unlock()
	for _, l := range lost {
		c.handle(l)
	}
}

// writeSeries is flushSeries for a caller that holds flushMu.
func (c *core) writeSeries(wait bool, which part) {
	c.tableMu.Lock()
	all := len(c.live)
	isCrowd := c.crowding.isCrowd(all, c.maxContexts)
	c.tableMu.Unlock()
	limit := idleLimit{c.idleFlushes, c.idleFlushes}
	if c.columns != nil && c.columns.active() {
		limit.columns = c.columnIdle
	}
	if isCrowd {
		limit = idleLimit{min(limit.datagrams, crowdIdle), min(limit.columns, crowdIdle)}
	}
	idle := 0
	w := &c.collector
	for at := 0; at < all; at += flushChunk {
		// Others only add to the end.
		c.tableMu.Lock()
		c.flushing = append(c.flushing[:0], c.live[at:min(at+flushChunk, all)]...)
		c.tableMu.Unlock()
		c.countMu.Lock()
		for _, x := range c.flushing {
			if which&c.partOf(x.kind) == 0 {
				continue
			}
			if c.flushOne(w, x) {
				x.idle = 0
			} else if x.idle++; x.idle > limit.of(c, x) && !x.pinned() {
				idle++
			}
		}
		c.countMu.Unlock()
		c.collected(w, wait)
	}
	w.send()
	c.collected(w, wait)
	if idle > 0 {
		c.cool(limit)
		vecs := c.retire(limit, isCrowd)
		w.send()
		c.collected(w, wait)
		for _, v := range vecs {
			v.sweep()
		}
	}
	clear(c.flushing[:cap(c.flushing)])
}

// collected hands over the packets filled by a flush. A gauge that found no room in the table was sent at once, and
// may lie in a worker's packet still when its next value, which found room, is in one of these: packets of the workers
// go first then.
func (c *core) collected(w *worker, wait bool) {
	if len(w.full) > 0 && c.gaugesPast.Swap(false) {
		c.drainInboxes()
		for i := range c.workers {
			if lost := c.workers[i].flush(wait); lost != nil {
				c.flushLost = append(c.flushLost, lost)
			}
		}
	}
	w.release()
}

// flushOne writes what one series has collected and says whether there was anything. The caller holds flushMu and
// countMu.
func (c *core) flushOne(w *worker, x *series) bool {
	switch x.kind {
	case kindCount:
		return c.flushCount(w, x)
	case kindGauge:
		return c.flushGauge(w, x)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.more.Load()
	if pinning {
		c.flushLost = append(c.flushLost, x.takeLanes(x.lanes.Load())...)
	}
	calls := m.spilledCalls.Swap(0) + m.seen + m.sketched
	if calls == 0 {
		m.rest(x.idle)
		return false
	}
	x.heat(calls)
	c.flushedOne(x.kind, calls)
	switch x.kind {
	case kindFloatCount:
		if c.columnsActive() {
			c.columns.window().addPoint(point{identity: x.identity(), kind: x.kind, value: m.spilledFloat})
		} else {
			var tmp [32]byte
			c.countLost(w.line(x, appendFloat(tmp[:0], m.spilledFloat), 1))
		}
		m.spilledFloat = 0
	case kindSet:
		w.members(x, m.fresh)
		m.rest(x.idle)
		m.forgetMembers()
	default:
		c.flushValues(w, x)
	}
	return true
}

func (c *core) flushCount(w *worker, x *series) bool {
	fromLanes, laneCalls := x.lanes.Load().takeCount()
	if x.cell.Load() == 0 && x.spilled() == 0 && laneCalls == 0 && fromLanes == 0 {
		return false
	}
	sum, calls := unpackCell(x.cell.Swap(0))
	sum, calls = sum+fromLanes, calls+laneCalls
	if x.spilled() != 0 {
		x.mu.Lock()
		sum, calls = x.takeSpilled(sum, calls)
		x.mu.Unlock()
	}
	x.heat(calls)
	c.writeCount(w, x, sum, calls)
	return true
}

// writeCount writes the sum of a counter.
func (c *core) writeCount(w *worker, x *series, sum int64, calls uint64) {
	c.flushedOne(x.kind, calls)
	if c.columnsActive() {
		c.columns.window().addPoint(point{identity: x.identity(), kind: x.kind, sum: sum})
		return
	}
	var tmp [24]byte
	c.countLost(w.line(x, appendInt(tmp[:0], sum), 1))
}

// takeSpilled adds a counter's values outside of its cell. The caller holds x.mu.
func (x *series) takeSpilled(sum int64, calls uint64) (int64, uint64) {
	if m := x.more.Load(); m != nil {
		sum += m.spilledSum
		calls += m.spilledCalls.Swap(0)
		m.spilledSum = 0
	}
	return sum, calls
}

func (c *core) flushGauge(w *worker, x *series) bool {
	if x.cell.Load() == gaugeEmpty {
		return false
	}
	m := x.more.Load()
	x.mu.Lock()
	m.level = math.Float64frombits(x.cell.Swap(gaugeEmpty))
	x.mu.Unlock()
	x.heat(1)
	c.flushedOne(x.kind, max(m.calls.Swap(0), 1))
	if c.columnsActive() {
		c.columns.window().addPoint(point{identity: x.identity(), kind: x.kind, value: m.level})
		return true
	}
	var tmp [32]byte
	c.countLost(w.line(x, appendFloat(tmp[:0], m.level), 1))
	return true
}

func (c *core) countLost(err error) {
	if err != nil {
		c.oversized.Add(1)
	}
}

func (c *core) flushedOne(k kind, calls uint64) {
	c.totals[k] += calls
	c.flushed[k]++
}

// rest releases memory that was not used in this turn. The caller holds the mutex of the series.
func (m *store) rest(idle uint32) {
	if m.members != nil {
		for value, one := range m.members {
			if one.turn != m.turn {
				delete(m.members, value)
			}
		}
		if len(m.members) == 0 {
			m.members = nil
		}
	}
	if m.seen == 0 && m.sketched == 0 && idle > 4 {
		m.values, m.sketch = nil, nil
	}
}

// pinned says that the series knows something that must not be forgotten. The caller must not hold x.mu.
func (x *series) pinned() bool {
	if x.kind != kindGauge {
		return false
	}
	m := x.more.Load()
	x.mu.Lock()
	defer x.mu.Unlock()
	return m.counted && m.level != 0
}

// retire removes series that have been idle. A goroutine that still holds one finds its successor by closed,
// cellClosed and gaugeClosed. It returns the families that may hold some of them. early says that some of the series
// would stay if there were fewer.
func (c *core) retire(limit idleLimit, early bool) []sweeper {
	c.tableMu.Lock()
	defer c.tableMu.Unlock()
	var gone []*series
	kept := make([]*series, 0, len(c.live))
	for _, x := range c.live {
		if x.idle > limit.of(c, x) && !x.pinned() && x.closeIfEmpty() {
			gone = append(gone, x)
			if early {
				c.crowding.remove(x.hash)
			}
		} else {
			kept = append(kept, x)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	c.live = kept
	size := firstTable
	for size < 2*(len(kept)+1) {
		size *= 2
	}
	c.table.Store(tableOf(kept, size))
	places := firstMemo
	for places < 2*len(kept) {
		places *= 2
	}
	c.memo.Store(newMemo(places))
	// A value that came after the flush looked is still taken.
	c.countMu.Lock()
	for _, x := range gone {
		c.closeSeries(&c.collector, x)
	}
	c.countMu.Unlock()
	return append([]sweeper(nil), c.vecs...)
}

// closeIfEmpty closes the cell of a gauge that holds no value. One that has got a value since the flush looked stays:
// the next value could be sent past that value, for lack of room in the table, and arrive before it. The caller holds
// tableMu, on which a caller that finds the cell closed waits. Series of other kinds may be retired at any time.
func (x *series) closeIfEmpty() bool {
	return x.kind != kindGauge || x.cell.CompareAndSwap(gaugeEmpty, gaugeClosed)
}

func (c *core) closeSeries(w *worker, x *series) {
	x.mu.Lock()
	x.closed = true
	var sum int64
	var calls uint64
	if x.kind == kindCount {
		sum, calls = x.takeSpilled(unpackCell(x.cell.Swap(cellClosed)))
	}
	x.mu.Unlock()
	switch {
	case x.kind == kindGauge:
		// Its cell was closed by closeIfEmpty.
	case x.kind != kindCount:
		c.flushOne(w, x)
	case calls > 0:
		c.writeCount(w, x, sum, calls)
	}
}
