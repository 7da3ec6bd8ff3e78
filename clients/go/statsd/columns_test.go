package statsd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// columnRequest is a request as the agent of a test got it.
type columnRequest struct {
	path             string
	client           string
	sequence, oldest string
	header           http.Header
	body             []byte
	rows             []columnRow
}

// columnAgent takes columns, applies each number once, and answers as the test wants.
type columnAgent struct {
	t       testing.TB
	address string
	server  *http.Server

	mu       sync.Mutex
	requests []columnRequest
	applied  map[string]bool
	// rows are those of payloads that were applied.
	rows []columnRow
	// answer, if set, chooses the status of the nth request with a number, and whether it is applied. 0 is no answer.
	answer func(n int, r *columnRequest) (status int, apply bool)
	// after is the text of Retry-After; "probe" makes answer cover requests without a number.
	after string
}

// serveColumns starts an agent at an address of its own, or at the path of a socket.
func serveColumns(t testing.TB, path string) *columnAgent {
	t.Helper()
	network, address := "tcp", "127.0.0.1:0"
	if path != "" {
		network, address = "unix", path
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	a := &columnAgent{t: t, applied: map[string]bool{}}
	a.address = "http://" + l.Addr().String()
	if path != "" {
		a.address = "http+unix://" + path
	}
	a.serve(l)
	return a
}

func (a *columnAgent) serve(l net.Listener) {
	server := &http.Server{Handler: a}
	a.mu.Lock()
	a.server = server
	a.mu.Unlock()
	done := make(chan struct{})
	go func() {
		_ = server.Serve(l)
		close(done)
	}()
	a.t.Cleanup(func() {
		server.Close()
		<-done
	})
}

func (a *columnAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Errorf("the body of %s: %v", r.URL.Path, err)
		return
	}
	q := columnRequest{path: r.URL.Path, client: r.Header.Get("x-weir-client"), body: body, header: r.Header,
		sequence: r.Header.Get("x-weir-sequence"), oldest: r.Header.Get("x-weir-oldest")}
	if q.rows, err = decodeColumns(body); err != nil || r.Method != "POST" {
		a.t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	for _, row := range q.rows {
		if (row.Type == 4) != (q.path == "/sketches") || q.path != "/sketches" && q.path != "/series" {
			a.t.Errorf("type %d at %s", row.Type, q.path)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	status, apply := 200, true
	if q.sequence != "" || a.after == "probe" {
		if a.answer != nil {
			status, apply = a.answer(len(a.requests), &q)
		}
		a.requests = append(a.requests, q)
	}
	if apply && q.sequence != "" {
		key := q.client + " " + q.sequence
		if a.applied[key] {
			w.Header().Set("x-weir-duplicate", "1")
		} else {
			a.applied[key] = true
			a.rows = append(a.rows, q.rows...)
		}
	}
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	if a.after != "" && a.after != "probe" && status == 503 {
		w.Header().Set("Retry-After", a.after)
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, "status %d", status)
}

// totals adds up the rows applied: the sum of counts, the last gauge, the count of sketches.
func (a *columnAgent) totals() map[string]float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := map[string]float64{}
	for i := range a.rows {
		r := &a.rows[i]
		switch r.Type {
		case 1:
			got[r.key()] += r.Value
		case 3:
			got[r.key()] = r.Value
		case 4:
			got[r.key()] += float64(r.Count)
		}
	}
	return got
}

func (a *columnAgent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

func (a *columnAgent) respond(answer func(n int, r *columnRequest) (int, bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// pause sets the text of Retry-After, or makes the answer cover requests without a number.
func (a *columnAgent) pause(after string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.after = after
}

func (a *columnAgent) got() []columnRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// all returns the rows of all payloads that were applied.
func (a *columnAgent) all() []columnRow {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.rows)
}

// handled collects the errors given to the error handler.
type handled struct {
	mu   sync.Mutex
	errs []error
}

func (h *handled) add(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

func (h *handled) all() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.errs)
}

// windowsEndWithFlush is an option.
func windowsEndWithFlush(o *Options) error {
	o.untilWindowEnds = func(time.Time) time.Duration { return time.Hour }
	return nil
}

// columnar returns a client of an agent, without telemetry and origin, whose datagrams go to a socket of the test.
// Its windows end when the test flushes: with the clock, a window that a test fills could end halfway. An agent that
// gets its turn late is not taken for one without columns: the first look waits for it.
func columnar(t testing.TB, address string, options ...Option) (*Client, *server, *handled) {
	t.Helper()
	datagrams := serveUnixgram(t, "")
	h := &handled{}
	c, err := New(address, append([]Option{WithDatagramAddress("unixgram://" + datagrams.address), WithoutTelemetry(),
		WithoutOriginDetection(), WithErrorHandler(h.add), WithAggregationInterval(time.Hour),
		WithConnectTimeout(patience), windowsEndWithFlush}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, datagrams, h
}

func mustFlush(t testing.TB, c *Client) {
	t.Helper()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestColumnsHaveEveryKind sends each kind once and compares what arrives, in columns and in datagrams.
func TestColumnsHaveEveryKind(t *testing.T) {
	noLeaks(t)
	for _, path := range []string{"", filepath.Join(shortDir(t), "http")} {
		a := serveColumns(t, path)
		// The first window begins with the client.
		before := windowOf(time.Now())
		c, datagrams, h := columnar(t, a.address, WithNamespace("ns"), WithTags([]string{"g:1", "z"}),
			WithContainerID("ci-abc"))
		_ = c.Count("count", 3, []string{"a:1", "g:1", "b,c"}, 1)
		_ = c.Count("count", 4, []string{"a:1", "g:1", "b,c"}, 1)
		_ = c.Count("count.none", 0, nil, 1)
		_ = c.CountFloat("float", 0.1, nil, 1)
		_ = c.Count("large", 1<<60, nil, 1)
		_ = c.Gauge("gauge", 1.5, nil, 1)
		_ = c.Gauge("gauge", 2.5, nil, 1)
		_ = c.Ex().Gauge("card", -7, []string{"x"}, 1, CardinalityLow)
		_ = c.Distribution("dist", 1, []string{"t:1"}, 1)
		_ = c.Distribution("dist", 10, []string{"t:1"}, 1)
		c.NewDistribution("dist", "t:1").Observe(1)
		c.NewCounter("count", "a:1", "g:1", "b,c").Add(5)
		_ = (&ClientDirect{c}).DistributionSamples("direct", []float64{-1, 0.5}, nil, 0.5)
		_ = c.Timing("timing", 2*time.Millisecond, nil, 1)
		_ = c.Histogram("hist", 2, nil, 1)
		_ = c.Set("set", "m", nil, 1)
		_ = c.SimpleEvent("title", "text")
		_ = c.SimpleServiceCheck("check", Ok)
		_ = c.GaugeWithTimestamp("stamped", 1, nil, 1, time.Unix(1700000000, 0))
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		after := windowOf(time.Now())
		got := map[string]columnRow{}
		for _, r := range a.all() {
			if r.Time < before || r.Time > after || r.Interval != 10 || r.Time%10 != 0 {
				t.Errorf("%s at %d, every %d s", r.Name, r.Time, r.Interval)
			}
			r.Time, r.Interval = 0, 0
			got[r.Name] = r
		}
		tags := func(more ...string) []string { return append([]string{"g:1", "z"}, more...) }
		for _, want := range []columnRow{
			{Name: "ns.count", Type: 1, Value: 12, Tags: tags("a:1", "b", "c")},
			{Name: "ns.count.none", Type: 1, Tags: tags()},
			{Name: "ns.float", Type: 1, Value: 0.1, Tags: tags()},
			{Name: "ns.large", Type: 1, Value: 1 << 60, Tags: tags()},
			{Name: "ns.gauge", Type: 3, Value: 2.5, Tags: tags()},
			{Name: "ns.card", Type: 3, Value: -7, Tags: tags("x", "dd.internal.card:low")},
			{Name: "ns.dist", Type: 4, Sum: 12, Min: 1, Max: 10, Count: 3, Bins: [][2]int64{{1338, 2}, {1487, 1}},
				Tags: tags("t:1")},
			{Name: "ns.direct", Type: 4, Sum: -1, Min: -1, Max: 0.5, Count: 4, Bins: [][2]int64{{-1338, 2}, {1293, 2}},
				Tags: tags()},
		} {
			row := got[want.Name]
			slices.Sort(row.Tags)
			slices.Sort(want.Tags)
			if !reflect.DeepEqual(row, want) {
				t.Errorf("%s: got  %+v\nwanted %+v", want.Name, row, want)
			}
		}
		if len(got) != 8 || len(a.all()) != 8 {
			t.Errorf("%d rows: %v", len(a.all()), a.all())
		}
		datagrams.readAll(c)
		names := map[string]bool{}
		for _, line := range datagrams.lines() {
			name, _, _ := strings.Cut(line, ":")
			names[name] = true
		}
		for _, name := range []string{"ns.timing", "ns.hist", "ns.set", "_e{5,4}", "_sc|check|0|#g", "ns.stamped"} {
			if !names[name] {
				t.Errorf("no datagram of %s: %v", name, names)
			}
		}
		if len(names) != 6 {
			t.Errorf("datagrams: %v", names)
		}
		for i, r := range a.got() {
			if len(r.client) != 32 || r.client != a.got()[0].client || r.sequence != strconv.Itoa(i+1) ||
				r.oldest != r.sequence && r.oldest != "1" || r.header.Get("x-dsd-ld") != "ci-abc" {
				t.Errorf("request %d: %+v", i, r.header)
			}
		}
		if s := c.Stats().Columns; s.Payloads != uint64(len(a.got())) || s.Points != 8 || s.Windows != 1 ||
			s.Held != 0 || s.Dropped+s.Refused+s.Retries+s.Failures+s.Duplicates+s.Absent != 0 || s.Bytes == 0 {
			t.Errorf("stats: %+v", s)
		}
		if errs := h.all(); errs != nil {
			t.Error(errs)
		}
	}
}

// TestColumnsHaveTheTotalsOfManyGoroutines compares totals and bins with the truth, over windows that the test closes
// at random moments.
func TestColumnsHaveTheTotalsOfManyGoroutines(t *testing.T) {
	noLeaks(t)
	a := serveColumns(t, "")
	c, datagrams, _ := columnar(t, a.address)
	seed := SeedOf(t)
	const goroutines, calls = 4, 20000
	var all, closing sync.WaitGroup
	stop := make(chan struct{})
	closing.Add(1)
	go func() {
		defer closing.Done()
		for {
			select {
			case <-stop:
				return
			default:
				c.clientEx.core.flushSeries(false, flushColumns)
			}
		}
	}()
	want := map[string]float64{}
	bins := map[string]map[int64]int64{}
	var mu sync.Mutex
	c.clientEx.core.columns.settle()
	for g := 0; g < goroutines; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			r := rand.New(rand.NewSource(seed + int64(g)))
			own, ownBins := map[string]float64{}, map[string]map[int64]int64{"handle|": {}, "dist|": {}}
			handle, counter := c.NewDistribution("handle"), c.NewCounter("hits")
			for i := 0; i < calls; i++ {
				v := math.Round(math.Pow(10, r.Float64()*6-2)*100) / 100 * float64(r.Intn(3)-1)
				switch i % 5 {
				case 0:
					_ = c.Count("count", int64(i), nil, 1)
					own["count|"] += float64(i)
				case 1:
					counter.Inc()
					own["hits|"]++
				case 2:
					_ = c.Distribution("dist", v, nil, 1)
					own["dist|"]++
					ownBins["dist|"][int64(sketchKey(v))]++
				case 3:
					handle.Observe(v)
					own["handle|"]++
					ownBins["handle|"][int64(sketchKey(v))]++
				case 4:
					_ = c.Gauge(fmt.Sprint("gauge", g), v, nil, 1)
					own[fmt.Sprint("gauge", g, "|")] = v
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for k, v := range own {
				want[k] += v
			}
			for k, all := range ownBins {
				if bins[k] == nil {
					bins[k] = map[int64]int64{}
				}
				for key, n := range all {
					bins[k][key] += n
				}
			}
		}()
	}
	all.Wait()
	close(stop)
	closing.Wait()
	mustFlush(t, c)
	if got := a.totals(); !reflect.DeepEqual(got, want) {
		t.Errorf("totals %v, not %v", got, want)
	}
	gotBins := map[string]map[int64]int64{"handle|": {}, "dist|": {}}
	rows := a.all()
	for i := range rows {
		for _, b := range rows[i].Bins {
			gotBins[rows[i].key()][b[0]] += b[1]
		}
	}
	if !reflect.DeepEqual(gotBins, bins) {
		t.Error("the bins differ from those of all values")
	}
	if datagrams.count() != 0 {
		t.Errorf("datagrams: %v", datagrams.lines())
	}
	tm := c.GetTelemetry()
	if tm.TotalMetricsCount != goroutines*calls/5*2 || tm.TotalMetricsDistribution != goroutines*calls/5*2 {
		t.Errorf("telemetry: %+v", tm)
	}
}

// TestColumnsCountOnce loses answers, refuses, breaks connections: every window counts once, with the same bytes under
// the same number.
func TestColumnsCountOnce(t *testing.T) {
	noLeaks(t)
	a := serveColumns(t, "")
	c, _, h := columnar(t, a.address)
	r := rand.New(rand.NewSource(SeedOf(t)))
	c.clientEx.core.columns.settle()
	a.respond(func(n int, _ *columnRequest) (int, bool) {
		switch r.Intn(5) {
		case 0:
			return 0, true // applied, and the answer is lost
		case 1:
			return 0, false
		case 2:
			return 503, false
		case 3:
			return 500, true
		}
		return 200, true
	})
	want := 0.0
	for i := 0; i < 60; i++ {
		_ = c.Count("count", int64(i), nil, 1)
		_ = c.Distribution("dist", float64(i), nil, 1)
		want += float64(i)
		mustFlush(t, c)
	}
	a.respond(nil)
	eventually(t, "everything is accepted", func() bool { mustFlush(t, c); return c.Stats().Columns.Held == 0 })
	if got := a.totals(); got["count|"] != want || got["dist|"] != 60 {
		t.Errorf("totals: %v, not %v and 60", got, want)
	}
	bodies := map[string][]byte{}
	last, duplicates := uint64(0), 0
	for _, q := range a.got() {
		if body, known := bodies[q.sequence]; known && !bytes.Equal(body, q.body) {
			t.Errorf("number %s has other bytes than before", q.sequence)
		}
		bodies[q.sequence] = q.body
		number, _ := strconv.ParseUint(q.sequence, 10, 64)
		oldest, _ := strconv.ParseUint(q.oldest, 10, 64)
		if number > last+1 || oldest > number || number < last {
			t.Errorf("number %d, oldest %d, after %d", number, oldest, last)
		}
		if number == last {
			duplicates++
		}
		last = number
	}
	s := c.Stats().Columns
	if s.Payloads != uint64(len(bodies)) || s.Retries != uint64(duplicates) || s.Duplicates == 0 ||
		s.Failures == 0 || s.Dropped+s.Refused+s.Absent != 0 {
		t.Errorf("%d payloads, %d repeated: %+v", len(bodies), duplicates, s)
	}
	if len(h.all()) == 0 {
		t.Error("no error was reported")
	}
}

// TestColumnsAreMergedForLackOfRoom keeps the agent away until windows have to be merged, but not the one that was sent
// without an answer: its number may have been applied.
func TestColumnsAreMergedForLackOfRoom(t *testing.T) {
	a := serveColumns(t, "")
	c, _, _ := columnar(t, a.address, WithColumnarBytes(20000))
	c.clientEx.core.columns.settle()
	a.respond(func(int, *columnRequest) (int, bool) { return 0, true })
	const windows, series = 100, 50
	for w := 0; w < windows; w++ {
		for i := 0; i < series; i++ {
			_ = c.Count(fmt.Sprint("count.", i), 1, []string{"some:tag"}, 1)
			_ = c.Gauge("gauge", float64(w), nil, 1)
			_ = c.Distribution("dist", float64(1+i), nil, 1)
		}
		if w == 0 {
			mustFlush(t, c)
			continue
		}
		c.clientEx.core.flushSeries(false, flushColumns)
	}
	s := c.Stats().Columns
	if s.Merged == 0 || s.Dropped != 0 || s.Held > 20000 || s.Windows != windows {
		t.Errorf("before the agent is back: %+v", s)
	}
	a.respond(nil)
	eventually(t, "everything is accepted", func() bool { mustFlush(t, c); return c.Stats().Columns.Held == 0 })
	got := a.totals()
	for i := 0; i < series; i++ {
		if n := got[fmt.Sprint("count.", i, "|some:tag")]; n != windows {
			t.Errorf("count %d is %v", i, n)
		}
	}
	if got["gauge|"] != windows-1 || got["dist|"] != windows*series {
		t.Errorf("gauge %v, distribution %v", got["gauge|"], got["dist|"])
	}
	if s := c.Stats().Columns; s.Duplicates != 1 || s.Merged == 0 || s.Dropped != 0 {
		t.Errorf("stats: %+v", s)
	}
}

// TestColumnsBeyondTheLimitAreDroppedOldestFirst has names that are new in each window, so that merging does not help.
func TestColumnsBeyondTheLimitAreDroppedOldestFirst(t *testing.T) {
	a := serveColumns(t, "")
	c, _, h := columnar(t, a.address, WithColumnarBytes(20000))
	c.clientEx.core.columns.settle()
	a.respond(func(int, *columnRequest) (int, bool) { return 503, false })
	a.pause("3600")
	const windows, series = 50, 50
	for w := 0; w < windows; w++ {
		for i := 0; i < series; i++ {
			_ = c.Count(fmt.Sprint("count.", w, ".", i), 1, nil, 1)
		}
		c.clientEx.core.flushSeries(false, flushColumns)
		if w == 0 {
			mustFlush(t, c)
		}
	}
	s := c.Stats().Columns
	if s.Held > 20000 || s.Dropped == 0 || s.DroppedPoints == 0 {
		t.Errorf("stats: %+v", s)
	}
	a.respond(nil)
	c.Close()
	got := a.totals()
	if uint64(len(got))+s.DroppedPoints != windows*series {
		t.Errorf("%d of %d points arrived, and %d were dropped", len(got), windows*series, s.DroppedPoints)
	}
	for i := 0; i < series; i++ {
		if got[fmt.Sprint("count.", windows-1, ".", i, "|")] != 1 || got[fmt.Sprint("count.0.", i, "|")] != 0 {
			t.Errorf("the oldest was kept, or the newest was dropped: %v", got)
		}
	}
	var dropped *ErrorColumnsDropped
	lost := uint64(0)
	for _, err := range h.all() {
		if errors.As(err, &dropped) {
			lost += dropped.Points
		}
	}
	if lost != s.DroppedPoints {
		t.Errorf("%d points reported, %d dropped", lost, s.DroppedPoints)
	}
}

// TestAWindowLargerThanTheLimitIsSent has more series than there is room for, with an agent that works.
func TestAWindowLargerThanTheLimitIsSent(t *testing.T) {
	a := serveColumns(t, "")
	c, _, _ := columnar(t, a.address, WithColumnarBytes(1000))
	c.clientEx.core.columns.settle()
	for w := 0; w < 3; w++ {
		for i := 0; i < 25000; i++ {
			_ = c.Count(fmt.Sprint("count.", i), 1, nil, 1)
		}
		mustFlush(t, c)
	}
	if got := a.totals(); len(got) != 25000 || got["count.24999|"] != 3 {
		t.Errorf("%d counts, the last is %v", len(got), got["count.24999|"])
	}
	if n := a.count(); n != 9 {
		t.Errorf("%d requests", n)
	}
}

// TestValuesBeforeTheFirstAnswerAreKept adds more values than a datagram has room for before the agent says whether it
// takes columns.
func TestValuesBeforeTheFirstAnswerAreKept(t *testing.T) {
	noLeaks(t)
	const values = 5*packedMax + 3
	for _, status := range []int{200, 404} {
		a := serveColumns(t, "")
		a.pause("probe")
		release := make(chan struct{})
		a.respond(func(int, *columnRequest) (int, bool) {
			<-release
			return status, status == 200
		})
		c, datagrams, _ := columnar(t, a.address)
		for i := range values {
			_ = c.Distribution("dist", float64(i), nil, 1)
		}
		close(release)
		mustFlush(t, c)
		datagrams.readAll(c)
		sent := 0
		for _, line := range datagrams.lines() {
			sent += strings.Count(line, ":")
		}
		expected := map[int][2]float64{200: {values, 0}, 404: {0, values}}[status]
		if got := [2]float64{a.totals()["dist|"], float64(sent)}; got != expected {
			t.Errorf("%d: %v values in columns and in datagrams, not %v", status, got, expected)
		}
		c.Close()
	}
}

// TestAnAgentWithoutColumnsGetsDatagrams answers 404 and later takes columns.
func TestAnAgentWithoutColumnsGetsDatagrams(t *testing.T) {
	noLeaks(t)
	a := serveColumns(t, "")
	a.pause("probe")
	a.respond(func(int, *columnRequest) (int, bool) { return 404, false })
	c, datagrams, h := columnar(t, a.address)
	_ = c.Count("count", 2, nil, 1)
	_ = c.Distribution("dist", 1.5, nil, 1)
	mustFlush(t, c)
	datagrams.readAll(c)
	lines := datagrams.lines()
	slices.Sort(lines)
	equalLines(t, lines, []string{"count:2|c", "dist:1.5|d"})
	// The flush returns before the handler is called.
	eventually(t, "an error", func() bool { return len(h.all()) > 0 })
	if errs := h.all(); len(errs) != 1 || !errors.Is(errs[0], ErrNoColumns) {
		t.Errorf("errors: %v", errs)
	}
	k := c.clientEx.core.columns
	k.mu.Lock()
	pause := time.Until(k.retryAt)
	k.retryAt = time.Now()
	k.mu.Unlock()
	if pause < 50*time.Second || pause > time.Minute {
		t.Errorf("looks again in %v", pause)
	}
	k.poke()
	eventually(t, "the second look", func() bool { return c.Stats().Columns.Absent == 2 })
	if errs := h.all(); len(errs) != 1 {
		t.Errorf("errors: %v", errs)
	}
	a.respond(nil)
	// Values collected now were meant for a datagram.
	_ = c.Count("count", 3, nil, 1)
	_ = c.Distribution("dist", 2, nil, 1)
	k.mu.Lock()
	k.retryAt = time.Now()
	k.mu.Unlock()
	k.poke()
	eventually(t, "the third look", func() bool { return c.Stats().Columns.Active })
	_ = c.Distribution("dist", 2, nil, 1)
	mustFlush(t, c)
	if got := a.totals(); got["count|"] != 3 || got["dist|"] != 2 || datagrams.count() != 1 {
		t.Errorf("columns %v, datagrams %v", got, datagrams.lines())
	}
	// An agent of before takes its place.
	a.respond(func(int, *columnRequest) (int, bool) { return 404, false })
	_ = c.Distribution("dist", 3, nil, 1)
	mustFlush(t, c)
	_ = c.Distribution("dist", 4, nil, 1)
	mustFlush(t, c)
	a.respond(nil)
	// Closing makes the next look due, which is not taken any more. Due before, it could still be.
	c.Close()
	datagrams.readAll(c)
	if lines := datagrams.lines(); lines[len(lines)-1] != "dist:4|d" {
		t.Errorf("datagrams: %v", lines)
	}
	if errs := h.all(); len(errs) != 3 || !errors.Is(errs[1], ErrNoColumns) {
		t.Errorf("errors: %v", errs)
	}
	if s := c.Stats().Columns; s.DroppedPoints != 1 {
		t.Errorf("stats: %+v", s)
	}
}

// TestNobodyListensAtFirst begins without an agent: datagrams go out at once, and columns as soon as it is there.
func TestNobodyListensAtFirst(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(shortDir(t), "http")
	c, datagrams, _ := columnar(t, "http+unix://"+path)
	_ = c.Count("count", 2, nil, 1)
	mustFlush(t, c)
	datagrams.readAll(c)
	equalLines(t, datagrams.lines(), []string{"count:2|c"})
	a := serveColumns(t, path)
	eventually(t, "the client finds the agent", func() bool { return c.Stats().Columns.Active })
	_ = c.Count("count", 3, nil, 1)
	mustFlush(t, c)
	if got := a.totals(); got["count|"] != 3 {
		t.Errorf("totals: %v", got)
	}
	// The agent is down for a while: nothing is lost, and nothing goes as a datagram.
	a.server.Close()
	_ = c.Count("count", 4, nil, 1)
	mustFlush(t, c)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	a.serve(l)
	_ = c.Count("count", 5, nil, 1)
	c.Close()
	if got := a.totals(); got["count|"] != 12 || datagrams.count() != 1 {
		t.Errorf("totals: %v, datagrams %v", got, datagrams.lines())
	}
}

// TestRetryAfterIsHonoured has the agent ask for a pause, which a flush does not shorten.
func TestRetryAfterIsHonoured(t *testing.T) {
	a := serveColumns(t, "")
	a.pause("3600")
	c, _, _ := columnar(t, a.address)
	c.clientEx.core.columns.settle()
	a.respond(func(int, *columnRequest) (int, bool) { return 503, false })
	_ = c.Count("count", 1, nil, 1)
	mustFlush(t, c)
	mustFlush(t, c)
	mustFlush(t, c)
	if n := a.count(); n != 1 {
		t.Errorf("%d requests", n)
	}
	k := c.clientEx.core.columns
	k.mu.Lock()
	if pause := time.Until(k.retryAt); pause < 4*time.Minute || pause > retryAfterMax {
		t.Errorf("a pause of %v", pause)
	}
	k.mu.Unlock()
	a.respond(nil)
	c.Close()
	if got := a.totals(); got["count|"] != 1 {
		t.Errorf("totals: %v", got)
	}
	for text, want := range map[string]time.Duration{"": 0, "x": 0, "-1": 0, "7": 7 * time.Second,
		"Mon, 02 Jan 2006 15:04:05 GMT": 0} {
		if got := parseRetryAfter(text); got != want {
			t.Errorf("%q is %v", text, got)
		}
	}
	soon := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	if got := parseRetryAfter(soon); got < 59*time.Minute || got > time.Hour {
		t.Errorf("%q is %v", soon, got)
	}
}

// TestARefusedPayloadIsDropped has the agent find a payload wrong; the next one is sent.
func TestARefusedPayloadIsDropped(t *testing.T) {
	a := serveColumns(t, "")
	c, _, h := columnar(t, a.address)
	c.clientEx.core.columns.settle()
	a.respond(func(n int, _ *columnRequest) (int, bool) {
		if n == 0 {
			return 400, false
		}
		return 200, true
	})
	_ = c.Count("bad", 1, nil, 1)
	mustFlush(t, c)
	_ = c.Count("good", 1, nil, 1)
	mustFlush(t, c)
	if got := a.totals(); len(got) != 1 || got["good|"] != 1 {
		t.Errorf("totals: %v", got)
	}
	var dropped *ErrorColumnsDropped
	if errs := h.all(); len(errs) != 1 || !errors.As(errs[0], &dropped) || dropped.Points != 1 ||
		!strings.Contains(dropped.Error(), "status 400") {
		t.Errorf("errors: %v", errs)
	}
	if s := c.Stats().Columns; s.Refused != 1 || s.DroppedPoints != 1 || s.Payloads != 1 {
		t.Errorf("stats: %+v", s)
	}
	if a.got()[1].sequence != "2" || a.got()[1].oldest != "2" {
		t.Errorf("the second request is number %s, oldest %s", a.got()[1].sequence, a.got()[1].oldest)
	}
}

// TestCallsDoNotWaitForTheAgent has an agent that does not answer, while goroutines go on.
func TestCallsDoNotWaitForTheAgent(t *testing.T) {
	a := serveColumns(t, "")
	c, _, _ := columnar(t, a.address)
	c.clientEx.core.columns.settle()
	release, entered := make(chan struct{}), make(chan struct{})
	a.respond(func(n int, _ *columnRequest) (int, bool) {
		if n == 0 {
			close(entered)
			<-release
		}
		return 200, true
	})
	_ = c.Count("count", 1, nil, 1)
	flushed := make(chan struct{})
	go func() { mustFlush(t, c); close(flushed) }()
	<-entered
	done := make(chan struct{})
	go func() {
		handle := c.NewDistribution("handle")
		for i := 0; i < 1000; i++ {
			_ = c.Count("count", 1, nil, 1)
			_ = c.Distribution(fmt.Sprint("dist", i), 1, nil, 1)
			handle.Observe(1)
			c.clientEx.core.flushSeries(false, c.clientEx.core.windowEnded())
			c.Stats()
			c.GetTelemetry()
		}
		close(done)
	}()
	<-done
	select {
	case <-flushed:
		t.Error("the flush did not wait")
	default:
	}
	close(release)
	<-flushed
	c.Close()
	if got := a.totals(); got["count|"] != 1001 || got["handle|"] != 1000 || len(got) != 1002 {
		t.Errorf("%d totals, count %v, handle %v", len(got), got["count|"], got["handle|"])
	}
}

// TestColumnsAreSentAtTheEndOfTheWindow waits for the clock to do it.
func TestColumnsAreSentAtTheEndOfTheWindow(t *testing.T) {
	a := serveColumns(t, "")
	withClock := func(o *Options) error { o.untilWindowEnds = untilNextWindow; return nil }
	c, _, _ := columnar(t, a.address, withClock)
	c.clientEx.core.columns.settle()
	for now := time.Now().UTC(); ; now = now.Add(time.Second) {
		if d := untilNextWindow(now); d <= 0 || d > 10*time.Second || windowOf(now.Add(d)) != windowOf(now)+10 {
			t.Fatalf("the window of %v ends in %v", now, d)
		}
		if now.Second() == 59 {
			break
		}
	}
	_ = c.Count("count", 1, nil, 1)
	began := windowOf(time.Now())
	eventually(t, "the window is sent", func() bool { return a.count() > 0 })
	if at := a.all()[0].Time; at != began && at != began-10 {
		t.Errorf("the window of %d has the time %d", began, at)
	}
}

// TestWindowsOfAClockThatJumps closes windows late and early.
func TestWindowsOfAClockThatJumps(t *testing.T) {
	c := newColumns(&endpoint{}, 1<<20, func(error) {})
	for _, x := range []struct{ opened, now, at, end int64 }{
		{1000, 1010, 1000, 1010}, {1000, 1005, 1000, 1010}, {1000, 1063, 1000, 1060}, {1000, 903, 900, 910},
	} {
		c.opened = x.opened
		c.window().addPoint(point{identity: identity{text: "g:\n", headEnd: 2, tagEnd: 2}, kind: kindGauge})
		c.seal(time.Unix(x.now, 0))
		w := c.held.windows[len(c.held.windows)-1]
		if w.at != x.at || w.end != x.end || w.points[0].at != x.end-10 {
			t.Errorf("a window of %d closed at %d is [%d, %d), its gauge at %d", x.opened, x.now, w.at, w.end,
				w.points[0].at)
		}
	}
}

// TestColumnsOptions has addresses and options that cannot be valid, and what addresses mean.
func TestColumnsOptions(t *testing.T) {
	for _, addr := range []string{"http://", "http://:8125", "http://h:0", "http://h:x", "http://u@h:1",
		"http://h:1?x=1", "http+unix://", "https://h:1"} {
		if c, err := New(addr, WithDatagramAddress("127.0.0.1:9")); err == nil {
			c.Close()
			t.Errorf("%q is accepted", addr)
		}
	}
	for name, options := range map[string][]Option{
		"plain": {WithColumnar(), WithPlainStatsD()}, "address": {WithColumnar("h:1")},
		"bytes":        {WithColumnarBytes(-1)},
		"no datagrams": {WithoutDatagrams()}, "two": {WithColumnar("http://a:1", "http://b:1")},
	} {
		if c, err := New("127.0.0.1:9", options...); err == nil {
			c.Close()
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := NewWithWriter(&recorder{}, WithColumnar()); err == nil {
		t.Error("a writer has no endpoint")
	}
	for _, x := range []struct{ datagrams, columns string }{
		{"127.0.0.1:8125", "http://127.0.0.1:8125"}, {"tcp://h:1", "http://h:1"},
		{"unixgram:///run/weir/dsd.sock", "http+unix:///run/weir/dsd-http.sock"},
		{"unix://dsd", "http+unix://dsd-http.sock"},
	} {
		if got, err := columnsAddress(x.datagrams); got != x.columns || err != nil {
			t.Errorf("%s: %s, %v", x.datagrams, got, err)
		}
	}
	if got := datagramAddress("http://h:80"); got != "h:8125" {
		t.Error(got)
	}
	if got := datagramAddress("http+unix:///x"); got != "127.0.0.1:8125" {
		t.Error(got)
	}
	t.Setenv("DD_AGENT_HOST", "agent")
	if got := datagramAddress("http://h:80"); got != "agent:8125" {
		t.Error(got)
	}
	t.Setenv("DD_DOGSTATSD_URL", "http://h:81")
	if got := resolveAddress(""); got != "http://h:81" {
		t.Error(got)
	}
	if got := datagramAddress("http://h:81"); got != "agent:8125" {
		t.Error(got)
	}
}

// TestWithoutDatagrams drops and counts what cannot go as a column; timings can as distributions.
func TestWithoutDatagrams(t *testing.T) {
	a := serveColumns(t, "")
	h := &handled{}
	c, err := New(a.address, WithoutDatagrams(), WithTimingsAsDistributions(), WithErrorHandler(h.add),
		WithConnectTimeout(patience), windowsEndWithFlush)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.Timing("timing", 3*time.Millisecond, nil, 1)
	c.NewTiming("timing").Observe(4 * time.Millisecond)
	_ = c.Set("set", "m", nil, 1)
	mustFlush(t, c)
	if len(a.all()) != 1 || a.all()[0].Sum != 7 || a.all()[0].Type != 4 {
		t.Errorf("rows: %+v", a.all())
	}
	if tm := c.GetTelemetry(); tm.TotalPayloadsDroppedWriter != 1 {
		t.Errorf("telemetry: %+v", tm)
	}
	if errs := h.all(); len(errs) != 1 || !errors.Is(errs[0], ErrNoDatagrams) {
		t.Errorf("errors: %v", errs)
	}
}

// TestIdleSeriesOfColumnsAreForgotten counts flushes of windows for columns and of the interval for the rest.
func TestIdleSeriesOfColumnsAreForgotten(t *testing.T) {
	a := serveColumns(t, "")
	c, _, _ := columnar(t, a.address, WithContextIdleTime(30*time.Second), WithAggregationInterval(time.Hour))
	c.clientEx.core.columns.settle()
	_ = c.Distribution("dist", 1, nil, 1)
	_ = c.Count("count", 1, nil, 1)
	_ = c.Set("set", "m", nil, 1)
	for i := 0; i < 4; i++ {
		c.clientEx.core.flushSeries(false, flushColumns)
		if n := c.Stats().Contexts; n != 3 {
			t.Fatalf("%d contexts after %d windows", n, i)
		}
	}
	c.clientEx.core.flushSeries(false, flushColumns)
	if n := c.Stats().Contexts; n != 1 {
		t.Errorf("%d contexts", n)
	}
	_ = c.Count("count", 1, nil, 1)
	mustFlush(t, c)
	if got := a.totals(); got["count|"] != 2 || got["dist|"] != 1 {
		t.Errorf("totals: %v", got)
	}
}

// TestACloseEndsWithAnAgentThatHangs has the agent accept the first windows at close, and then not answer any more.
func TestACloseEndsWithAnAgentThatHangs(t *testing.T) {
	a := serveColumns(t, "")
	c, _, h := columnar(t, a.address)
	k := c.clientEx.core.columns
	k.settle()
	// The windows that the agent accepts have the time of the test. Only what comes after them is cut short.
	spend := func(of time.Duration) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.patience = of
	}
	spend(patience)
	release := make(chan struct{})
	defer close(release)
	a.respond(func(_ int, q *columnRequest) (int, bool) {
		switch number, _ := strconv.Atoi(q.sequence); {
		case number == 5:
			spend(3 * time.Second)
		case number > 5:
			a.mu.Unlock()
			<-release
			a.mu.Lock()
			return 0, false
		}
		return 200, true
	})
	for i := 0; i < 8; i++ {
		_ = c.Count("count", 1, nil, 1)
		k.mu.Lock()
		k.retryAt = time.Now().Add(time.Hour)
		k.mu.Unlock()
		c.clientEx.core.flushSeries(false, flushColumns)
	}
	c.Close()
	if got := a.totals(); got["count|"] != 5 {
		t.Errorf("totals: %v", got)
	}
	if s := c.Stats().Columns; s.Payloads != 5 || s.Dropped != 3 || s.DroppedPoints != 3 || s.Held != 0 {
		t.Errorf("stats: %+v", s)
	}
	var dropped *ErrorColumnsDropped
	if errs := h.all(); len(errs) < 1 || !errors.As(errs[len(errs)-1], &dropped) || dropped.Points != 3 {
		t.Errorf("errors: %v", errs)
	}
}
