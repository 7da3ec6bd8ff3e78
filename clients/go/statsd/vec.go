package statsd

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// vec finds handles by the values of labels. It is read without locks.
type vec[H any] struct {
	labels []string
	bind   func(tags []string) (*H, *handle)

	table atomic.Pointer[vecTable[H]]
	memo  atomic.Pointer[vecTable[H]]
	mu    sync.Mutex
	live  []*vecEntry[H]
	// max is the number of handles that are kept; handles of further labels are made again each time.
	max int
}

// sweeper is a vec of any kind of handle.
type sweeper interface{ sweep() }

type vecTable[H any] struct {
	slots []atomic.Pointer[vecEntry[H]]
}

type vecEntry[H any] struct {
	values []string
	hash   uint64
	handle *H
	inner  *handle
}

func newVec[H any](c *Client, labels []string, bind func(tags []string) (*H, *handle)) *vec[H] {
	v := &vec[H]{labels: cloneAll(labels), bind: bind, max: 1}
	v.table.Store(newVecTable[H](16))
	v.memo.Store(newVecTable[H](32))
	if c != nil {
		core := c.clientEx.core
		v.max = core.maxContexts
		core.tableMu.Lock()
		core.vecs = append(core.vecs, v)
		core.tableMu.Unlock()
	}
	return v
}

func newVecTable[H any](size int) *vecTable[H] {
	return &vecTable[H]{slots: make([]atomic.Pointer[vecEntry[H]], size)}
}

func (e *vecEntry[H]) matches(values []string) bool {
	for i, v := range values {
		if e.values[i] != v {
			return false
		}
	}
	return true
}

// with returns the handle for label values. It must not keep them.
func (v *vec[H]) with(values []string) *H {
	if len(values) != len(v.labels) {
		panic(fmt.Sprintf("statsd: %d label values for %d labels", len(values), len(v.labels)))
	}
	place := placeOfValues(values)
	m := v.memo.Load()
	slot := &m.slots[place>>32&uint64(len(m.slots)-1)]
	if e := slot.Load(); e != nil && e.matches(values) {
		return e.handle
	}
	e := v.find(values)
	slot.Store(e)
	return e.handle
}

func (v *vec[H]) find(values []string) *vecEntry[H] {
	hash := labelHash(values)
	if e := v.table.Load().find(hash, values); e != nil {
		return e
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.table.Load()
	if e := t.find(hash, values); e != nil {
		return e
	}
	e := &vecEntry[H]{values: cloneAll(values), hash: hash}
	tags := make([]string, len(values))
	for i, label := range v.labels {
		tags[i] = StringTag(label, values[i]).String()
	}
	e.handle, e.inner = v.bind(tags)
	if len(v.live) >= v.max || e.inner != nil && e.inner.series.Load().overflowed {
		return e
	}
	v.live = append(v.live, e)
	if 2*len(v.live) > len(t.slots) {
		t = vecTableOf(v.live, 2*len(t.slots))
		v.table.Store(t)
		v.memo.Store(newVecTable[H](4 * len(t.slots)))
	} else {
		t.add(e)
	}
	return e
}

func vecTableOf[H any](live []*vecEntry[H], size int) *vecTable[H] {
	t := newVecTable[H](size)
	for _, e := range live {
		t.add(e)
	}
	return t
}

func (t *vecTable[H]) add(e *vecEntry[H]) {
	mask := uint64(len(t.slots) - 1)
	i := e.hash & mask
	for t.slots[i].Load() != nil {
		i = (i + 1) & mask
	}
	t.slots[i].Store(e)
}

func (t *vecTable[H]) find(hash uint64, values []string) *vecEntry[H] {
	mask := uint64(len(t.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		e := t.slots[i].Load()
		if e == nil || e.hash == hash && e.matches(values) {
			return e
		}
	}
}

// sweep forgets handles whose series was retired. A caller that still has one can keep using it.
func (v *vec[H]) sweep() {
	v.mu.Lock()
	defer v.mu.Unlock()
	kept := make([]*vecEntry[H], 0, len(v.live))
	for _, e := range v.live {
		x := e.inner.series.Load()
		if !x.isClosed() {
			kept = append(kept, e)
		}
	}
	if len(kept) == len(v.live) {
		return
	}
	v.live = kept
	size := 16
	for size < 2*(len(kept)+1) {
		size *= 2
	}
	v.table.Store(vecTableOf(kept, size))
	v.memo.Store(newVecTable[H](4 * size))
}
