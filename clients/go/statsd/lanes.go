package statsd

import (
	"runtime"
	"sync/atomic"
)

// Handles write to one place of memory that all processors share: a locked instruction for a counter and a gauge, a
// mutex for values that are packed. A series whose handles send much gets lanes: one for each processor of the
// scheduler, which only the goroutine that runs there writes to, with plain instructions. The flush adds the lanes up.
//
// The rules that make this safe:
//
//   - A goroutine looks whether the series has lanes, and writes, between pin and unpin. Nobody else runs on its
//     processor meanwhile, and the world does not stop.
//   - Totals in a lane only grow, and only its processor writes them. The reader remembers the totals it has taken. The
//     positions of a ring have one writer each.
//   - Lanes are given and taken away by the flush alone. It takes them from an idle series, stops the world once, after
//     which nobody can be writing to them, and takes their remaining values.
//
// The reader relies on an order of stores that amd64 keeps and other processors do not, so they have no lanes; see
// lanes_amd64.go.

const (
	// hotCalls is the number of calls between two flushes that gives a series lanes.
	hotCalls = 4096
	// laneRing is the number of values of a packed kind that a lane holds before they go to the series. Values for a
	// sketch need no memory of their own there, so they wait in few places.
	laneRing       = 256
	laneRingSketch = 16
)

type lanes struct{ each []lane }

// gaugeLanes stands for the lanes of every gauge: the last value is all there is to know, so processors share one
// cell, which takes a plain store.
var gaugeLanes = &lanes{}

type lane struct {
	// ones are increments by one; sum and calls are all others. Written by the processor.
	ones, sum, calls uint64
	// ring holds values up to position written. Written by the processor.
	ring    []float64
	written uint64
	// read is the position up to which the reader has taken values. It is in the cache line of those above: with a
	// thousand busy series, each line is a cache miss.
	read atomic.Uint64

	// The values that the reader has taken. Guarded by countMu for counters, by the mutex of the series for values.
	takenOnes, takenSum, takenCalls uint64
	// Two cache lines, so that no processor writes to what another one reads.
	_ [128 - 11*8]byte
}

// heat gives a series lanes if its handles send much. The caller holds flushMu, without which nobody closes a series.
func (x *series) heat(calls uint64) {
	m := x.more.Load()
	if !pinning || x.closed || m == nil || !m.bound.Load() || x.lanes.Load() != nil {
		return
	}
	if x.kind == kindGauge {
		x.lanes.Store(gaugeLanes)
		return
	}
	if calls < hotCalls {
		return
	}
	l := &lanes{make([]lane, runtime.GOMAXPROCS(0))}
	if x.kind.isPacked() {
		ring := laneRing
		if x.scope.core.isColumn(x.kind) {
			ring = laneRingSketch
		}
		for i := range l.each {
			l.each[i].ring = make([]float64, ring)
		}
	}
	x.lanes.Store(l)
}

// takeCount returns the sum that a counter's lanes received since the last time. The caller holds countMu.
func (l *lanes) takeCount() (sum int64, calls uint64) {
	if l == nil {
		return 0, 0
	}
	for i := range l.each {
		a := &l.each[i]
		ones, more, n := atomic.LoadUint64(&a.ones), atomic.LoadUint64(&a.sum), atomic.LoadUint64(&a.calls)
		sum += int64(ones - a.takenOnes + more - a.takenSum)
		calls += ones - a.takenOnes + n - a.takenCalls
		a.takenOnes, a.takenSum, a.takenCalls = ones, more, n
	}
	return sum, calls
}

// waiting returns the number of calls in the lanes. The caller holds countMu, or the mutex of a packed series.
func (l *lanes) waiting() (calls uint64) {
	if l == nil {
		return 0
	}
	for i := range l.each {
		a := &l.each[i]
		calls += atomic.LoadUint64(&a.ones) - a.takenOnes + atomic.LoadUint64(&a.calls) - a.takenCalls
		calls += atomic.LoadUint64(&a.written) - a.read.Load()
	}
	return calls
}

// takeLanes moves the values in the lanes to the series. The caller holds x.mu, and reports the losses returned once
// it has let go.
func (x *series) takeLanes(l *lanes) (lost []*ErrorSenderChannelFull) {
	if l == nil {
		return nil
	}
	for i := range l.each {
		lost = append(lost, x.takeLane(&l.each[i])...)
	}
	return lost
}

// takeLane is takeLanes for one lane.
func (x *series) takeLane(a *lane) (lost []*ErrorSenderChannelFull) {
	end, at := atomic.LoadUint64(&a.written), a.read.Load()
	if at != end && x.kind == kindDistribution && x.rate() == 1 && x.scope.core.columnsActive() {
		m, first, last := x.more.Load(), at&uint64(len(a.ring)-1), end&uint64(len(a.ring)-1)
		m.sketched += end - at
		if last > first {
			m.sketchValues(a.ring[first:last])
		} else {
			m.sketchValues(a.ring[first:])
			m.sketchValues(a.ring[:last])
		}
		at = end
	}
	for ; at != end; at++ {
		if one := x.keepValue(a.ring[at&uint64(len(a.ring)-1)]); one != nil {
			lost = append(lost, one)
		}
	}
	a.read.Store(end)
	return lost
}

// cool takes the lanes from series that are idle, before they are retired. A series that got something meanwhile is
// not idle. The caller holds flushMu.
func (c *core) cool(limit idleLimit) {
	var cooled []*series
	var taken []*lanes
	c.tableMu.Lock()
	live := c.live
	c.tableMu.Unlock()
	for _, x := range live {
		if x.idle > limit.of(c, x) && x.lanes.Load() != nil && !x.pinned() {
			cooled, taken = append(cooled, x), append(taken, x.lanes.Swap(nil))
		}
	}
	if cooled == nil {
		return
	}
	stopWorldOnce()
	c.countMu.Lock()
	defer c.countMu.Unlock()
	for i, x := range cooled {
		x.mu.Lock()
		if x.kind == kindCount {
			if sum, calls := taken[i].takeCount(); calls > 0 || sum != 0 {
				m := x.spill()
				m.spilledSum += sum
				m.spilledCalls.Add(calls)
				x.idle = 0
			}
		} else if taken[i].waiting() > 0 {
			c.flushLost = append(c.flushLost, x.takeLanes(taken[i])...)
			x.idle = 0
		}
		x.mu.Unlock()
	}
}

// stopWorldOnce returns after every processor has been stopped for a moment.
func stopWorldOnce() {
	var unused runtime.MemStats
	runtime.ReadMemStats(&unused)
}
