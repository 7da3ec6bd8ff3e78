package statsd

import (
	"math/rand/v2"
	"sync/atomic"
)

// lineCache remembers what stands before and after the value in messages that are not aggregated, by where the
// caller's strings are. A message that is found costs three copies; the others are written and checked piece by piece,
// tag by tag. It has a fixed size and is no table of contexts: a line that is not repeated soon is never entered, and
// one in it may be displaced at any time.
type lineCache struct {
	slots [lineSlots]lineSlot
	// candidates are places that have missed. The second miss enters the line, so that names that are new each time,
	// or many more names than there is room for, cost little more than without the cache.
	candidates [lineSlots]atomic.Uint32
}

type lineSlot struct {
	// place is the line's place, so that most misses need not look at the line itself. The comparison byte by byte
	// decides.
	place atomic.Uint64
	line  atomic.Pointer[series]
}

func (l *lineSlot) find(place uint64, key key, name string, tags []string) *series {
	if l.place.Load() == place {
		if x := l.line.Load(); x != nil && x.is(key) && x.matches(name, tags) {
			return x
		}
	}
	return nil
}

const (
	lineBits  = 12
	lineSlots = 1 << lineBits
	// lineTries is the number of misses of a used slot, on average, of which one is noted.
	lineTries = 16
	// candidateTries is the number of misses of other places that a candidate outlives on average.
	candidateTries = 4
)

// findLine returns the line of a call, or nil. It must not keep name or tags.
func (s *scope) findLine(key key, name string, tags []string) *series {
	cache := s.core.lines.Load()
	if cache == nil {
		cache = s.core.newLines()
	}
	place := placeOf(key.meta, name, tags)
	i := place >> (64 - lineBits)
	if x := cache.slots[i].find(place, key, name, tags); x != nil {
		return x
	}
	if x := cache.slots[i^1].find(place, key, name, tags); x != nil {
		return x
	}
	switch {
	case cache.slots[i].place.Load() == 0:
	case cache.slots[i^1].place.Load() == 0:
		i ^= 1
	default:
		r := rand.Uint32()
		if r%lineTries != 0 {
			return nil
		}
		i ^= uint64(r / lineTries & 1)
	}
	return s.enterLine(cache, i, place, key, name, tags)
}

// enterLine enters the line of a call that has missed before.
func (s *scope) enterLine(cache *lineCache, i, place uint64, key key, name string, tags []string) *series {
	mark := uint32(place) | 1
	if noted := cache.candidates[i].Load(); noted != mark {
		if noted == 0 || rand.Uint32()%candidateTries == 0 {
			cache.candidates[i].Store(mark)
		}
		return nil
	}
	x := s.newSeries(key, name, tags)
	if !x.sendable() {
		return nil
	}
	cache.slots[i].line.Store(x)
	cache.slots[i].place.Store(place)
	return x
}

func (c *core) newLines() *lineCache {
	c.lines.CompareAndSwap(nil, &lineCache{})
	return c.lines.Load()
}
