package statsd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultColumnarBytes is the memory for windows that the agent has not accepted yet, see [WithColumnarBytes].
const DefaultColumnarBytes = 4 << 20

const (
	// retryFirst and retryMax bound the pause after a failure, which doubles.
	retryFirst = 250 * time.Millisecond
	retryMax   = 30 * time.Second
	// retryAfterMax bounds the pause that an agent asks for.
	retryAfterMax = 5 * time.Minute
	// absentPause is the pause between two looks for an endpoint that is not there.
	absentPause = time.Minute
	// columnsTimeout limits one request. An agent with a state directory answers after its next checkpoint.
	columnsTimeout = 10 * time.Second
	// columnsPatience is the time that a client which closes spends on failures.
	columnsPatience = 5 * time.Second
)

// Errors of columns, given to the error handler.
var (
	// ErrNoColumns says that the agent does not take columns. Everything goes as datagrams then, and the client looks
	// again every minute. It is reported once until the agent takes columns.
	ErrNoColumns = errors.New("statsd: the agent does not take columns, datagrams are sent instead")
	// ErrNoDatagrams is the reason for packets dropped by a client with [WithoutDatagrams].
	ErrNoDatagrams = errors.New("statsd: this client has no address for datagrams")
)

// ErrorColumnsDropped is given to the error handler when points were dropped: the agent refused their payload, or there
// was no room for them any more, or the client was closed before the agent accepted them.
type ErrorColumnsDropped struct {
	// Points is the number of counts, gauges and distributions lost, each of one window.
	Points uint64
	// Reason is what failed last.
	Reason error
}

func (e *ErrorColumnsDropped) Error() string {
	return fmt.Sprintf("statsd: %d points dropped: %v", e.Points, e.Reason)
}

func (e *ErrorColumnsDropped) Unwrap() error { return e.Reason }

var errNoRoom = errors.New("too many windows wait, see WithColumnarBytes")

// ColumnsStats counts what a client with columns did. A payload is one request; a window has one or more.
type ColumnsStats struct {
	// Active says that counts, gauges and distributions go as columns now.
	Active bool
	// Windows counts windows that were closed, empty ones not included.
	Windows uint64
	// Payloads and Bytes count what the agent accepted. A payload that it had accepted before, without the client
	// learning of it, counts as Duplicates too.
	Payloads, Bytes, Duplicates uint64
	// Points counts the counts, gauges and distributions in these payloads.
	Points uint64
	// Retries counts requests that repeated a payload, and Failures requests without an answer or with a refusal for
	// now.
	Retries, Failures uint64
	// Merged counts windows that became part of a wider one for lack of room: nothing is lost but resolution.
	Merged uint64
	// Dropped counts windows or payloads dropped for lack of room or at the end of the client, Refused payloads that
	// the agent found wrong, and DroppedPoints the points in both.
	Dropped, Refused, DroppedPoints uint64
	// Held is the memory, in bytes, of what waits to be accepted.
	Held uint64
	// Absent counts requests that found no endpoint for columns.
	Absent uint64
}

// presence says whether the agent takes columns.
type presence uint32

const (
	// unknown holds until the first request is answered. Nothing is given out meanwhile.
	unknown presence = iota
	// absent means that everything goes as datagrams.
	absent
	present
)

// columns sends windows to the agent, in one goroutine, one at a time.
type columns struct {
	endpoint *endpoint
	handle   func(error)
	limit    int
	patience time.Duration
	state    atomic.Uint32

	// room and building belong to the flush: flushMu guards them.
	room     sketchRoom
	building *window
	// opened is the beginning of the current window, in seconds.
	opened int64

	mu     sync.Mutex
	change sync.Cond
	held   held
	// sending is the payload of the request under way.
	sending *payload
	stats   ColumnsStats
	// begun and failed number requests, so that a flush knows which failed after it began.
	begun, failed uint64
	failures      int
	retryAt       time.Time
	// mayHurry says that a flush need not wait for retryAt.
	mayHurry bool
	hurry    bool
	closing  bool
	closeAt  time.Time
	reported bool
	last     error
	wake     chan struct{}
	finished chan struct{}
}

func newColumns(e *endpoint, limit int, handle func(error)) *columns {
	prepareKeys()
	c := &columns{endpoint: e, handle: handle, limit: limit, patience: columnsPatience, wake: make(chan struct{}, 1),
		finished: make(chan struct{})}
	c.change.L = &c.mu
	c.opened = windowOf(time.Now())
	return c
}

// windowOf returns the beginning of the window of a moment.
func windowOf(t time.Time) int64 { return t.Unix() / windowSeconds * windowSeconds }

func (c *columns) presence() presence { return presence(c.state.Load()) }

// active says whether values go into windows.
func (c *columns) active() bool { return c.presence() == present }

// seal closes the window: it covers the time since the last one was closed. The caller holds flushMu. A window that
// began in the future, because the clock was set back, is moved to now.
func (c *columns) seal(now time.Time) {
	w, current := c.building, windowOf(now)
	c.building = nil
	at := min(c.opened, current)
	c.opened = current
	if w == nil {
		return
	}
	w.at, w.end = at, max(current, at+windowSeconds)
	for i := range w.points {
		w.points[i].at = w.end - windowSeconds
	}
	c.mu.Lock()
	c.held.add(w)
	c.stats.Windows++
	merged, dropped, points := c.held.shrink(c.limit, c.sending)
	c.stats.Merged += merged
	c.stats.Dropped += dropped
	c.stats.DroppedPoints += points
	c.mu.Unlock()
	c.poke()
	if points > 0 {
		c.handle(&ErrorColumnsDropped{points, errNoRoom})
	}
}

func (c *columns) window() *window {
	if c.building == nil {
		c.building = &window{}
	}
	return c.building
}

func (c *columns) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// settle returns when it is known whether the agent takes columns.
func (c *columns) settle() {
	c.mu.Lock()
	for c.presence() == unknown {
		c.change.Wait()
	}
	c.mu.Unlock()
}

// firstAnswer is the longest wait for the agent when a client is made. Without one, a burst of values right behind it
// would go as datagrams.
const firstAnswer = 100 * time.Millisecond

// settleWithin is settle with a limit.
func (c *columns) settleWithin(limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isOver := false
	timer := time.AfterFunc(limit, func() {
		c.mu.Lock()
		isOver = true
		c.change.Broadcast()
		c.mu.Unlock()
	})
	defer timer.Stop()
	for c.presence() == unknown && !isOver {
		c.change.Wait()
	}
}

// flush returns when all windows closed before are accepted or dropped, or a request that began after the call has
// failed. It does not shorten a pause that the agent asked for.
func (c *columns) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, begun := c.held.serial, c.begun
	for c.presence() == present && c.failed <= begun && c.held.waitsFor(last) {
		if time.Until(c.retryAt) > 0 && !c.mayHurry {
			return
		}
		c.hurry = true
		c.poke()
		c.change.Wait()
	}
}

// close sends what waits for as long as the agent accepts something within its patience, and counts the rest as
// dropped.
func (c *columns) close() {
	c.mu.Lock()
	c.closing = true
	c.closeAt = time.Now().Add(c.patience)
	c.retryAt = time.Time{}
	// Under the lock: an answer that comes now gives the next request more time.
	c.endpoint.hurry(c.closeAt)
	c.mu.Unlock()
	c.poke()
	<-c.finished
}

// run sends payloads until the client is closed.
func (c *columns) run() {
	defer close(c.finished)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p, path, pause := c.next()
		switch {
		case path != "":
			c.try(p, path)
			continue
		case pause == 0:
			return
		}
		timer.Reset(pause)
		select {
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// next returns the payload to send and its path; there is no payload when the client only looks for the endpoint.
// Without a path there is nothing to send before a pause, or at all.
func (c *columns) next() (*payload, string, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, now := c.presence(), time.Now()
	if c.closing && (state == absent || state == present && c.held.empty() || !now.Before(c.closeAt)) {
		c.abandon()
		return nil, "", 0
	}
	wait := c.retryAt.Sub(now)
	if c.hurry && c.mayHurry {
		wait = 0
	}
	switch {
	case state == present && c.held.empty():
		wait = time.Hour
	case wait <= 0 && state == present:
		c.hurry = false
		p := c.held.first()
		c.sending = p
		return p, p.path, 0
	case wait <= 0:
		return nil, pathSeries, 0
	}
	return nil, "", max(wait, time.Millisecond)
}

// abandon drops all that waits, at the end of the client.
func (c *columns) abandon() {
	if c.presence() == unknown {
		c.state.Store(uint32(absent))
	}
	dropped, points := c.held.clear()
	c.stats.Dropped += dropped
	c.stats.DroppedPoints += points
	c.change.Broadcast()
	if points > 0 {
		reason := c.last
		if reason == nil {
			reason = ErrNoColumns
		}
		c.mu.Unlock()
		c.handle(&ErrorColumnsDropped{points, reason})
		c.mu.Lock()
	}
}

// try makes one request.
func (c *columns) try(p *payload, path string) {
	c.mu.Lock()
	c.begun++
	request := c.begun
	var number uint64
	var body []byte
	if p != nil {
		if number, body = p.number, p.body; p.tried {
			c.stats.Retries++
		}
		p.tried = true
	}
	oldest := c.held.oldest()
	c.mu.Unlock()

	answer, err := c.endpoint.post(path, body, number, oldest)

	c.mu.Lock()
	c.sending = nil
	report := c.judge(p, answer, err)
	if report != nil || err != nil {
		c.failed = request
	}
	c.change.Broadcast()
	c.mu.Unlock()
	if report != nil {
		c.handle(report)
	}
}

// judge draws the consequences of an answer, and returns an error to report. The caller holds c.mu.
func (c *columns) judge(p *payload, a answer, err error) error {
	if err == nil {
		err = a.fault()
	}
	switch {
	case err == nil:
		c.found()
		c.accepted(p, a)
		return nil
	case a.status == 404 || a.status == 405 || a.status == 501 || a.status == 0 && c.presence() != present:
		return c.missing(a, err)
	case a.status == 400 || a.status == 413 || a.status == 415 || a.status == 422:
		c.found()
		if p == nil || !c.held.remove(p) {
			return nil
		}
		c.stats.Refused++
		c.stats.DroppedPoints += p.points
		return &ErrorColumnsDropped{p.points, err}
	}
	if a.status != 0 {
		c.presentNow()
	}
	c.stats.Failures++
	c.later(a, retryMax)
	first := c.last == nil
	c.last = err
	if first {
		return err
	}
	return nil
}

func (c *columns) accepted(p *payload, a answer) {
	if p == nil {
		return
	}
	if !c.held.remove(p) {
		return
	}
	if c.closing {
		c.closeAt = time.Now().Add(c.patience)
		c.endpoint.hurry(c.closeAt)
	}
	c.stats.Payloads++
	c.stats.Bytes += uint64(len(p.body))
	c.stats.Points += p.points
	if a.duplicate {
		c.stats.Duplicates++
	}
}

func (c *columns) presentNow() {
	c.state.Store(uint32(present))
	c.reported = false
}

// found notes that the agent takes columns and answers.
func (c *columns) found() {
	c.presentNow()
	c.failures, c.retryAt, c.last = 0, time.Time{}, nil
}

// missing notes that the agent does not take columns. Nobody may be there yet, so after a failed connection the client
// looks again soon, and less and less often.
func (c *columns) missing(a answer, err error) error {
	c.stats.Absent++
	c.state.Store(uint32(absent))
	if a.status != 0 {
		c.failures = 0
		c.retryAt, c.mayHurry = time.Now().Add(absentPause), false
	} else {
		c.later(a, absentPause)
		c.mayHurry = false
	}
	if c.reported {
		return nil
	}
	c.reported = true
	return fmt.Errorf("%w: %w", ErrNoColumns, err)
}

// later sets the time of the next request: after a pause that doubles, with jitter, or after the one that the agent
// asked for.
func (c *columns) later(a answer, limit time.Duration) {
	pause := min(retryFirst<<min(c.failures, 10), limit)
	c.failures++
	pause = pause/2 + rand.N(pause/2+1)
	c.mayHurry = true
	if a.retryAfter > 0 {
		pause, c.mayHurry = min(a.retryAfter, retryAfterMax), false
	}
	if c.closing {
		pause = min(pause, retryFirst)
	}
	c.retryAt = time.Now().Add(pause)
}

func (c *columns) snapshot() ColumnsStats {
	if c == nil {
		return ColumnsStats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Active = c.active()
	s.Held = uint64(c.held.bytes)
	return s
}
