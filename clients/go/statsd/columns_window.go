package statsd

import "math"

// windowSeconds is the length of a window: the agent's buckets. Windows begin at multiples of it.
const windowSeconds = 10

// The sizes of points, without their text.
const (
	pointBytes       = 64
	sketchPointBytes = 80
)

// identity is the context of a point: the text of its lines, and where the parts are.
type identity struct {
	text string
	// The name is before a colon at headEnd-1, and the tags before tagEnd; there are none if both are equal.
	headEnd, tagEnd uint32
	card            Cardinality
}

func (x *series) identity() identity {
	card := x.key().cardinality()
	end := len(x.text) - 1 - cardinalitySize(card) - len(x.scope.suffix)
	return identity{text: x.text, headEnd: x.headEnd, tagEnd: uint32(end), card: card}
}

func (id *identity) name() string { return id.text[:id.headEnd-1] }

func (id *identity) tags() string {
	if id.tagEnd == id.headEnd {
		return ""
	}
	return id.text[int(id.headEnd)+len("|#") : id.tagEnd]
}

// point is a count or a gauge of one window.
type point struct {
	identity
	kind kind
	// sum is the value of a count of integers, and value of the others.
	sum   int64
	value float64
	// at is the time of a gauge: of windows that are merged, the last value stays.
	at int64
}

// sketchPoint is a distribution of one window.
type sketchPoint struct {
	identity
	packedSketch
}

// window is what was collected between two moments. It has a number only when it is a payload.
type window struct {
	at, end  int64
	points   []point
	sketches []sketchPoint
	bytes    int
	// serial is the place of its oldest part in the order of windows.
	serial uint64
}

func (w *window) size() uint64 { return uint64(len(w.points) + len(w.sketches)) }

// The texts of identities belong to series, which may be gone before the window is.
func (w *window) addPoint(p point) {
	w.points = append(w.points, p)
	w.bytes += pointBytes + len(p.text)
}

func (w *window) addSketch(p sketchPoint) {
	w.sketches = append(w.sketches, p)
	w.bytes += sketchPointBytes + len(p.text) + len(p.bins)
}

type pointKey struct {
	text string
	kind kind
}

// merge returns one window with what is in both; w is the earlier one.
func (w *window) merge(later *window) *window {
	m := &window{at: min(w.at, later.at), end: max(w.end, later.end), serial: w.serial}
	places := make(map[pointKey]int, len(w.points)+len(w.sketches))
	for _, from := range []*window{w, later} {
		for i := range from.points {
			p := &from.points[i]
			key := pointKey{p.text, p.kind}
			at, known := places[key]
			if !known {
				places[key] = len(m.points)
				m.addPoint(*p)
				continue
			}
			q := &m.points[at]
			switch p.kind {
			case kindGauge:
				q.value, q.at = p.value, p.at
			case kindCount:
				q.sum += p.sum
			default:
				q.value += p.value
			}
		}
		for i := range from.sketches {
			p := &from.sketches[i]
			key := pointKey{p.text, kindDistribution}
			at, known := places[key]
			if !known {
				places[key] = len(m.sketches)
				m.addSketch(*p)
				continue
			}
			q := &m.sketches[at]
			m.bytes -= len(q.bins)
			q.packedSketch = q.merge(&p.packedSketch)
			m.bytes += len(q.bins)
		}
	}
	return m
}

// payload is a part of a window as it is sent, again and again with the same number until it is accepted.
type payload struct {
	number uint64
	path   string
	body   []byte
	points uint64
	serial uint64
	// tried says that the agent may have seen it.
	tried bool
}

const (
	pathSeries   = "/series"
	pathSketches = "/sketches"
)

// encode returns the window as payloads that have no numbers yet.
func (w *window) encode() (payloads []*payload) {
	width := w.end - w.at
	finish := func(out *payloadWriter, path string) {
		if out.series > 0 {
			payloads = append(payloads, &payload{path: path, body: out.encode(), points: uint64(out.series)})
		}
	}
	out := newPayloadWriter()
	for i := range w.points {
		if out.full() {
			finish(out, pathSeries)
			out = newPayloadWriter()
		}
		out.point(&w.points[i], w.at, width)
	}
	finish(out, pathSeries)
	out = newPayloadWriter()
	for i := range w.sketches {
		if out.full() {
			finish(out, pathSketches)
			out = newPayloadWriter()
		}
		out.sketch(&w.sketches[i], w.at, width)
	}
	finish(out, pathSketches)
	return payloads
}

// held is what was collected and not accepted yet. The mutex of the columns guards it.
type held struct {
	// payloads have numbers, in their order; windows do not, and are later.
	payloads []*payload
	windows  []*window
	bytes    int
	// last is the last number of a payload, and serial that of a window.
	last, serial uint64
}

func (h *held) empty() bool { return len(h.payloads) == 0 && len(h.windows) == 0 }

// waitsFor says whether a window up to this serial waits.
func (h *held) waitsFor(serial uint64) bool {
	return len(h.payloads) > 0 && h.payloads[0].serial <= serial || len(h.windows) > 0 && h.windows[0].serial <= serial
}

func (h *held) add(w *window) {
	h.serial++
	w.serial = h.serial
	h.windows = append(h.windows, w)
	h.bytes += w.bytes
}

// first returns the payload to send, or nil. A window gets its numbers here, when it is about to be sent, and cannot be
// merged from then on: the agent applies a number once, so that new content under an old number would be lost if the
// agent has applied it, and old content under a new number would be doubled.
func (h *held) first() *payload {
	for len(h.payloads) == 0 && len(h.windows) > 0 {
		w := h.windows[0]
		h.windows[0] = nil
		h.windows = h.windows[1:]
		h.bytes -= w.bytes
		for _, p := range w.encode() {
			h.last++
			p.number, p.serial = h.last, w.serial
			h.payloads = append(h.payloads, p)
			h.bytes += len(p.body)
		}
	}
	if len(h.payloads) == 0 {
		return nil
	}
	return h.payloads[0]
}

// oldest is the smallest number that may be sent again.
func (h *held) oldest() uint64 {
	if len(h.payloads) == 0 {
		return h.last + 1
	}
	return h.payloads[0].number
}

// remove forgets a payload if it is still there.
func (h *held) remove(p *payload) bool {
	for i, q := range h.payloads {
		if q == p {
			h.payloads = append(h.payloads[:i], h.payloads[i+1:]...)
			h.bytes -= len(p.body)
			return true
		}
	}
	return false
}

// shrink merges windows, and then drops the oldest, until all fit in a limit. A payload that is being sent stays, and
// so does the last window: a client with more series than the limit has room for works as long as the agent does. It
// returns the number of merged and dropped windows or payloads, and of points dropped.
func (h *held) shrink(limit int, sending *payload) (merged, dropped, points uint64) {
	for h.bytes > limit {
		if h.mergePair(limit) {
			merged++
			continue
		}
		n, ok := h.drop(sending)
		if !ok {
			break
		}
		dropped++
		points += n
	}
	return merged, dropped, points
}

// mergePair merges the two neighbours that are the shortest together, the earlier ones first.
func (h *held) mergePair(limit int) bool {
	best, shortest := -1, int64(math.MaxInt64)
	for i := 0; i+1 < len(h.windows); i++ {
		if width := h.windows[i+1].end - h.windows[i].at; width < shortest {
			best, shortest = i, width
		}
	}
	if best < 0 {
		return false
	}
	a, b := h.windows[best], h.windows[best+1]
	m := a.merge(b)
	if m.bytes > limit {
		return false
	}
	h.bytes += m.bytes - a.bytes - b.bytes
	h.windows[best] = m
	h.windows = append(h.windows[:best+1], h.windows[best+2:]...)
	return true
}

func (h *held) drop(sending *payload) (points uint64, ok bool) {
	for _, p := range h.payloads {
		if p != sending {
			h.remove(p)
			return p.points, true
		}
	}
	if len(h.windows) < 2 {
		return 0, false
	}
	w := h.windows[0]
	h.windows = h.windows[1:]
	h.bytes -= w.bytes
	return w.size(), true
}

// clear forgets everything and returns the number of windows and payloads, and of their points.
func (h *held) clear() (dropped, points uint64) {
	dropped = uint64(len(h.payloads) + len(h.windows))
	for _, p := range h.payloads {
		points += p.points
	}
	for _, w := range h.windows {
		points += w.size()
	}
	h.payloads, h.windows, h.bytes = nil, nil, 0
	return dropped, points
}
