package statsd

import (
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
)

// scope has the parts that a client adds to each of its messages. Child clients have scopes of their own on a shared
// core.
type scope struct {
	core *core
	// id distinguishes scopes in keys.
	id        uint64
	namespace string
	// prefix is namespace as it is written.
	prefix string
	tags   []string
	// tagText is the global tags as they are written.
	tagText string
	hasTags bool
	// suffix is the origin sections.
	suffix string
	card   Cardinality
}

// key is the part of a context's identity besides name and tags.
type key struct {
	// meta holds the scope, cardinality and kind, and whether there is a sample rate.
	meta uint64
	// rate is the sample rate of packed values; 1 for other kinds.
	rate float64
}

// metaSampled is set in the meta of a key with a sample rate.
const metaSampled = 0x80

func (s *scope) key(k kind, card Cardinality) key {
	return key{meta: s.id<<16 | uint64(card)<<8 | uint64(k), rate: 1}
}

func (k key) sampled(rate float64) key { return key{meta: k.meta | metaSampled, rate: rate} }

func (k key) cardinality() Cardinality { return Cardinality(k.meta >> 8 & 0xff) }

func (k key) kind() kind { return kind(k.meta & (metaSampled - 1)) }

// A counter's cell holds both the number of calls and their sum, so that a call is one atomic addition: the sum is in
// the lower 44 bits, signed, and the calls are above. The sign bit of the whole asks for the slow path: either 2^19
// calls have been collected and must be moved, or the context cannot be used and the cell rests at cellClosed.
const (
	cellCall   = 1 << 44
	cellClosed = 1 << 63
	// smallCount bounds the increment of a cell: 2^19 times it stays within the sum's range.
	smallCount = 1 << 20
)

func unpackCell(cell uint64) (sum int64, calls uint64) {
	sum = int64(cell<<20) >> 20
	return sum, (cell - uint64(sum)) >> 44
}

// A gauge's cell holds the bits of its value, or one of these two, which no value can have because values are finite.
const (
	gaugeEmpty  = 0x7FF8_0000_57A7_5D00
	gaugeClosed = 0x7FF8_0000_57A7_5D01
)

// series is one context of this client and its values since the last flush. Its size is the cost of a
// live counter, so rarely needed fields are in a store.
type series struct {
	// The fields up to meta are in one cache line, for handles use no others.

	// cell is the value of a counter or a gauge.
	cell atomic.Uint64
	// lanes hold the values of handles that send many.
	lanes atomic.Pointer[lanes]
	// more is nil for a counter that never needed it, and else never changes.
	more atomic.Pointer[store]

	mu      sync.Mutex
	hasTags bool
	kind    kind
	// usable is false for the stand-ins of contexts that cannot be sent.
	usable bool
	// direct says that values are not collected here but sent at once; overflowed, that this is for lack of room.
	direct, overflowed bool
	// closed says that the series has been given up; a caller that still holds it must look again. Guarded by mu.
	closed bool
	// idle counts flushes without a value; it belongs to the flush.
	idle uint32
	// hash is the lower half of the hash of the identity.
	hash uint32
	meta uint64

	// name and tags (joined with commas) are as the caller gave them; the strings are ours.
	name  string
	tags  string
	scope *scope
	// text is written before the value, up to headEnd, and after the value and type.
	text    string
	headEnd uint32
}

// store has the other fields of a series. A counter of small increments has none.
type store struct {
	// rate is the sample rate of packed values.
	rate float64
	// calls counts the calls for a gauge, except those through a handle, which are counted once per flush.
	calls atomic.Uint64
	// spilledCalls counts the calls that are not in a cell.
	spilledCalls atomic.Uint64
	// bound says that a handle has the series.
	bound atomic.Bool

	// The mutex of the series guards the fields below.

	// level is the value of a gauge at the last flush, from which Add of a handle goes on.
	level float64
	// counted says that a handle's Add is used on the gauge, so that its level must outlive idle times.
	counted bool
	// spilledSum holds what does not fit the cell of a counter, and spilledFloat the sum of a float counter.
	spilledSum   int64
	spilledFloat float64
	// values are the values of a packed kind that go as datagrams, and sketch those that go as columns.
	values []float64
	sketch *sketch
	// sketched is the number of values that went into the sketch since the last flush.
	sketched uint64
	// seen is the number of values offered since the last flush.
	seen uint64
	// members are the members of a set, and fresh the ones seen since the last flush.
	members map[string]*member
	fresh   []*member
	turn    uint32
}

// blankSeries makes a series with what its kind needs, in one piece.
func blankSeries(k key) *series {
	if k.kind() == kindCount {
		return &series{meta: k.meta, kind: kindCount}
	}
	whole := &struct {
		series
		store
	}{store: store{rate: k.rate}}
	x := &whole.series
	x.meta, x.kind = k.meta, k.kind()
	x.more.Store(&whole.store)
	if x.kind == kindGauge {
		x.cell.Store(gaugeEmpty)
	}
	return x
}

// spill returns the store of a counter. The caller holds x.mu.
func (x *series) spill() *store {
	m := x.more.Load()
	if m == nil {
		m = &store{rate: 1}
		x.more.Store(m)
	}
	return m
}

// spilled returns the number of calls that are not in the cell.
func (x *series) spilled() uint64 {
	if m := x.more.Load(); m != nil {
		return m.spilledCalls.Load()
	}
	return 0
}

func (x *series) key() key { return key{x.meta, x.rate()} }

func (x *series) rate() float64 {
	if x.meta&metaSampled == 0 {
		return 1
	}
	return x.more.Load().rate
}

// is says whether the series has a key.
func (x *series) is(k key) bool {
	return x.meta == k.meta && (k.meta&metaSampled == 0 || x.rate() == k.rate)
}

func (x *series) head() string { return x.text[:x.headEnd] }
func (x *series) tail() string { return x.text[x.headEnd:] }

// member is a member of a set. It stays for one flush longer than it is used, so that a member that comes again costs
// nothing.
type member struct {
	value string
	// turn is the last flush in which it was seen.
	turn uint32
}

const (
	// packedMax is the number of values that a context collects before they are sent early.
	packedMax = 512
	// unsettledMax is that number as long as it is not known whether the agent takes columns.
	unsettledMax = 32 * packedMax
	// packedFirst is its room for values at first.
	packedFirst = 16
	// membersMax is the number of members of a set that are collected before they are sent early.
	membersMax = 4096
)

// matches compares name and tags of a call with the series, byte by byte. Commas separate
// tags, as they do for the agent.
func (x *series) matches(name string, tags []string) bool {
	if x.name != name {
		return false
	}
	if len(tags) == 0 {
		return !x.hasTags
	}
	if !x.hasTags {
		return false
	}
	size, at := len(x.tags), 0
	for i := range tags {
		if i > 0 {
			if at == size || x.tags[at] != ',' {
				return false
			}
			at++
		}
		t := tags[i]
		n := len(t)
		if n > size-at {
			return false
		}
		// Most tags have 8 to 64 bytes, for which a few loads, of which the last may overlap, are cheaper than a call.
		if n >= 8 && n <= 64 {
			differ := (load64(x.tags, at) ^ load64(t, 0)) | (load64(x.tags, at+n-8) ^ load64(t, n-8))
			for i := 8; i < n-8; i += 8 {
				differ |= load64(x.tags, at+i) ^ load64(t, i)
			}
			if differ != 0 {
				return false
			}
		} else if x.tags[at:at+n] != t {
			return false
		}
		at += n
	}
	return at == size
}

// table finds series by content: open addressing, read without locks, replaced when it grows or shrinks.
type table struct {
	slots []atomic.Pointer[series]
	used  int
}

func newTable(size int) *table { return &table{slots: make([]atomic.Pointer[series], size)} }

func (t *table) add(x *series) {
	mask := uint64(len(t.slots) - 1)
	for i := uint64(x.hash) & mask; ; i = (i + 1) & mask {
		if t.slots[i].Load() == nil {
			t.slots[i].Store(x)
			t.used++
			return
		}
	}
}

func (t *table) find(hash uint32, k key, name string, tags []string) *series {
	mask := uint64(len(t.slots) - 1)
	for i := uint64(hash) & mask; ; i = (i + 1) & mask {
		x := t.slots[i].Load()
		if x == nil {
			return nil
		}
		if x.hash == hash && x.is(k) && x.matches(name, tags) {
			return x
		}
	}
}

// findLike finds the series that has replaced a closed one.
func (t *table) findLike(old *series) *series {
	mask := uint64(len(t.slots) - 1)
	for i := uint64(old.hash) & mask; ; i = (i + 1) & mask {
		x := t.slots[i].Load()
		if x == nil {
			return nil
		}
		if x.hash == old.hash && x.is(old.key()) && x.name == old.name && x.hasTags == old.hasTags &&
			x.tags == old.tags {
			return x
		}
	}
}

// memo finds series by the addresses of the caller's strings, which is cheaper than by their content. A hit must
// still be compared by content, because memory can be reused for other text.
type memo struct {
	slots []atomic.Pointer[series]
	shift uint
}

func newMemo(size int) *memo {
	return &memo{slots: make([]atomic.Pointer[series], size), shift: uint(64 - bits.TrailingZeros(uint(size)))}
}

const (
	firstTable = 64
	firstMemo  = 128
	golden     = 0x9E3779B97F4A7C15
)

// lookup returns the series of a call, or nil if there is no room for another one. It must not keep name or tags.
func (s *scope) lookup(k key, name string, tags []string) *series {
	place := placeOf(k.meta, name, tags)
	m := s.core.memo.Load()
	i := place >> m.shift
	if x := m.slots[i].Load(); x != nil && x.is(k) && x.matches(name, tags) {
		return x
	}
	return s.lookupSecond(k, name, tags, m, i)
}

// lookupSecond goes on where lookup found nothing: the neighbouring place, then by content.
func (s *scope) lookupSecond(k key, name string, tags []string, m *memo, i uint64) *series {
	if x := m.slots[i^1].Load(); x != nil && x.is(k) && x.matches(name, tags) {
		return x
	}
	x := s.lookupContent(k, name, tags)
	if x == nil || !x.usable {
		return x
	}
	if m.slots[i].Load() != nil {
		// Taking the neighbour every other time keeps two calls that meet here from displacing each other endlessly. A
		// call whose strings are new each time only displaces now and then.
		switch r := rand.Uint32(); {
		case r&3 != 0 && m.slots[i^1].Load() != nil:
			return x
		case r&4 == 0 || m.slots[i^1].Load() == nil:
			i ^= 1
		}
	}
	m.slots[i].Store(x)
	return x
}

// lookupContent finds or makes the series by content.
func (s *scope) lookupContent(k key, name string, tags []string) *series {
	hash := uint32(contentHash(k, name, tags))
	if x := s.core.table.Load().find(hash, k, name, tags); x != nil {
		return x
	}
	return s.create(hash, k, name, tags)
}

func (s *scope) create(hash uint32, k key, name string, tags []string) *series {
	c := s.core
	c.tableMu.Lock()
	defer c.tableMu.Unlock()
	t := c.table.Load()
	if x := t.find(hash, k, name, tags); x != nil {
		return x
	}
	if len(c.live) >= c.maxContexts {
		return nil
	}
	x := s.newSeries(k, name, tags)
	x.hash = hash
	if x.usable = x.sendable(); x.usable {
		c.insert(x)
	}
	return x
}

// joinTags returns tags with commas between them. Unlike strings.Join it always copies.
func joinTags(tags []string) string {
	var b []byte
	for i, t := range tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, t...)
	}
	return string(b)
}

// sendable says whether messages of the series can be accepted by an agent and fit a packet.
func (x *series) sendable() bool {
	return x.headEnd > 1 && x.fits(1)
}

// newSeries makes a series that is in no table.
func (s *scope) newSeries(k key, name string, tags []string) *series {
	x := blankSeries(k)
	x.scope, x.hasTags = s, len(tags) > 0
	size := len(s.prefix) + len(name) + len(":|#,\n") + len(s.tagText) + len(s.suffix) +
		cardinalitySize(k.cardinality())
	for _, t := range tags {
		size += len(t) + 1
	}
	b := make([]byte, 0, size)
	b = append(b, s.prefix...)
	nameAt := len(b)
	b = appendName(b, name)
	nameEnd := len(b)
	b = append(b, ':')
	headEnd := len(b)
	tagsAt, tagsEnd := 0, 0
	// The client of Datadog writes a list with nothing but an empty tag, except for packed values.
	written := x.hasTags && !(len(tags) == 1 && tags[0] == "" && x.kind.isPacked())
	if s.hasTags || written {
		b = append(b, "|#"...)
		b = append(b, s.tagText...)
		if written {
			if s.hasTags {
				b = append(b, ',')
			}
			tagsAt = len(b)
			b = appendTagList(b, tags)
			tagsEnd = len(b)
		}
	}
	b = append(b, s.suffix...)
	b = appendCardinality(b, k.cardinality())
	b = append(b, '\n')
	// The bytes are not changed from here on.
	text := textOf(b)
	x.text, x.headEnd = text, uint32(headEnd)
	x.name, x.tags = text[nameAt:nameEnd], text[tagsAt:tagsEnd]
	if !x.matches(name, tags) {
		// Some bytes were replaced for the wire; the caller's text is the identity.
		x.name, x.tags = strings.Clone(name), joinTags(tags)
	}
	return x
}

// insert adds a series to the table. The caller holds tableMu.
func (c *core) insert(x *series) {
	t := c.table.Load()
	if 4*(t.used+1) > 3*len(t.slots) {
		t = tableOf(c.live, 2*len(t.slots))
		c.table.Store(t)
	}
	t.add(x)
	c.crowding.add(x.hash)
	c.live = append(c.live, x)
	if m := c.memo.Load(); len(c.live)*2 > len(m.slots) {
		c.memo.Store(newMemo(2 * len(m.slots)))
	}
}

func tableOf(live []*series, size int) *table {
	t := newTable(size)
	for _, x := range live {
		t.add(x)
	}
	return t
}

// again returns the series that has replaced a closed one, and makes it if necessary. It returns nil if there is
// no room.
func (x *series) again() *series {
	c := x.scope.core
	c.tableMu.Lock()
	defer c.tableMu.Unlock()
	if y := c.table.Load().findLike(x); y != nil {
		return y
	}
	if len(c.live) >= c.maxContexts {
		return nil
	}
	y := x.copyIdentity()
	c.insert(y)
	return y
}

// successor returns the series that collects instead of this one. It returns nil if the value of these calls has to be
// sent at once; without room that counts as an overflow.
func (x *series) successor(calls uint64) *series {
	if x.direct {
		return nil
	}
	y := x.again()
	if y == nil {
		x.scope.core.overflow.Add(calls)
	}
	return y
}

func (x *series) copyIdentity() *series {
	y := blankSeries(x.key())
	y.name, y.tags, y.hasTags, y.hash, y.scope = x.name, x.tags, x.hasTags, x.hash, x.scope
	y.text, y.headEnd, y.usable = x.text, x.headEnd, true
	return y
}

// makeDirect turns a series that is in no table into one that sends at once.
func (x *series) makeDirect() *series {
	x.direct = true
	switch x.kind {
	case kindCount:
		x.cell.Store(cellClosed)
	case kindGauge:
		x.cell.Store(gaugeClosed)
	}
	return x
}
