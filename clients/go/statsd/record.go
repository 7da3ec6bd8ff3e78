// The effect of a call on its series: counts, gauges, values and members between two flushes.

package statsd

import (
	"math"
	"math/rand/v2"
	"strings"
)

// fits says whether the shortest message of the series fits a packet.
func (x *series) fits(valueBytes int) bool {
	return len(x.text)+valueBytes+len(kindMiddle[x.kind]) <= x.scope.core.out.maxBytes
}

// addCount adds to a counter. It is the path of nearly every call and small enough to be inlined.
func (x *series) addCount(v int64) {
	if uint64(v+smallCount) >= 2*smallCount || int64(x.cell.Add(uint64(v)+cellCall)) < 0 {
		x.addCountSlow(v)
	}
}

// addCountSlow deals with large values, with cells that are full and with series that are closed or direct.
func (x *series) addCountSlow(v int64) {
	large := uint64(v+smallCount) >= 2*smallCount
	x.mu.Lock()
	var base uint64
	if x.closed || x.direct {
		base = cellClosed
	}
	var sum int64
	var calls uint64
	if !large || base == 0 {
		// Values that others have added meanwhile are taken too; those callers have nothing left to do.
		sum, calls = unpackCell(x.cell.Swap(base) - base)
	}
	if large {
		sum += v
		calls++
	}
	if base == 0 {
		m := x.spill()
		m.spilledSum += sum
		m.spilledCalls.Add(calls)
		x.mu.Unlock()
		return
	}
	x.mu.Unlock()
	if calls > 0 {
		x.forwardCount(sum, calls)
	}
}

// forwardCount passes on the sum of a series that does not collect.
func (x *series) forwardCount(sum int64, calls uint64) {
	if y := x.successor(calls); y != nil {
		y.mu.Lock()
		if !y.closed {
			m := y.spill()
			m.spilledSum += sum
			m.spilledCalls.Add(calls)
			y.mu.Unlock()
			return
		}
		y.mu.Unlock()
		y.forwardCount(sum, calls)
		return
	}
	var tmp [24]byte
	_ = x.sendNow(appendInt(tmp[:0], sum), calls)
}

// setGauge stores the value of a gauge.
func (x *series) setGauge(v float64) {
	if x.cell.Swap(math.Float64bits(v)) == gaugeClosed {
		x.setGaugeSlow(v)
	}
}

func (x *series) setGaugeSlow(v float64) {
	// Another goroutine may have stored a value after ours, before it saw that the series is closed; that value is the
	// last.
	if later := x.cell.Swap(gaugeClosed); later != gaugeClosed && later != gaugeEmpty {
		v = math.Float64frombits(later)
	}
	if y := x.successor(1); y != nil {
		y.setGauge(v)
		return
	}
	var tmp [32]byte
	_ = x.sendNow(appendFloat(tmp[:0], v), 1)
}

// addFloatCount adds to a float counter.
func (x *series) addFloatCount(v float64) {
	x.mu.Lock()
	if !x.closed && !x.direct {
		m := x.more.Load()
		m.spilledFloat += v
		m.spilledCalls.Add(1)
		x.mu.Unlock()
		return
	}
	x.mu.Unlock()
	if y := x.successor(1); y != nil {
		y.addFloatCount(v)
		return
	}
	var tmp [32]byte
	_ = x.sendNow(appendFloat(tmp[:0], v), 1)
}

// observe adds a value of a packed kind that has passed its sample rate.
func (x *series) observe(v float64) {
	x.mu.Lock()
	if x.closed || x.direct {
		x.mu.Unlock()
		x.observeSlow(v)
		return
	}
	lost := x.keepValue(v)
	x.mu.Unlock()
	if lost != nil {
		x.scope.core.handle(lost)
	}
}

// keepValue adds a value to a series of a packed kind. The caller holds x.mu, and reports the loss returned once it
// has let go.
func (x *series) keepValue(v float64) *ErrorSenderChannelFull {
	m := x.more.Load()
	if x.kind == kindDistribution && x.scope.core.columnsActive() {
		m.sketched++
		m.sketchValue(v, x.rate())
		return nil
	}
	if n := len(m.values); n < cap(m.values) {
		m.values = m.values[:n+1]
		m.values[n] = v
		m.seen++
		return nil
	}
	return x.observeFull(v)
}

// observeFull makes room for a value: it grows the store, sends its values, or chooses the values to keep.
func (x *series) observeFull(v float64) (lost *ErrorSenderChannelFull) {
	c, m := x.scope.core, x.more.Load()
	limit := packedMax
	if x.kind == kindDistribution && c.columns != nil && c.columns.presence() == unknown {
		limit = unsettledMax
	}
	if c.maxSamples > 0 {
		limit = c.maxSamples
	}
	n := len(m.values)
	m.seen++
	switch {
	case n < limit:
		grown := make([]float64, n+1, min(max(packedFirst, 4*n), limit))
		copy(grown, m.values)
		grown[n] = v
		m.values = grown
	case c.maxSamples > 0:
		// Each of the values seen stays with the same chance.
		if i := rand.Uint64N(m.seen); i < uint64(n) {
			m.values[i] = v
		}
	default:
		// The value is not sent.
		m.seen--
		lost = c.sendEarly(x)
		m.seen++
		m.values = append(m.values[:0], v)
	}
	return lost
}

func (x *series) observeSlow(v float64) {
	if y := x.successor(1); y != nil {
		y.observe(v)
		return
	}
	var tmp [32]byte
	_ = x.sendNow(appendValue(tmp[:0], x.kind, v), 1)
}

// addMember adds a member to a set. The value is copied if it is new.
func (x *series) addMember(value string) error {
	x.mu.Lock()
	if x.closed || x.direct {
		x.mu.Unlock()
		if y := x.successor(1); y != nil {
			return y.addMember(value)
		}
		var tmp [64]byte
		return x.sendNow(appendSetValue(tmp[:0], value), 1)
	}
	kept := x.more.Load()
	kept.spilledCalls.Add(1)
	m := kept.members[value]
	if m != nil && m.turn == kept.turn {
		x.mu.Unlock()
		return nil
	}
	if m == nil {
		if !x.fits(len(value)) {
			x.mu.Unlock()
			return x.scope.core.tooLong()
		}
		m = &member{value: strings.Clone(value)}
		if kept.members == nil {
			kept.members = make(map[string]*member)
		}
		kept.members[m.value] = m
	}
	var lost *ErrorSenderChannelFull
	if len(kept.fresh) >= membersMax {
		lost = x.scope.core.sendEarly(x)
		kept.members[m.value] = m
	}
	m.turn = kept.turn
	kept.fresh = append(kept.fresh, m)
	x.mu.Unlock()
	if lost != nil {
		x.scope.core.handle(lost)
	}
	return nil
}
