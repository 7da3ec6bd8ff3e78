package statsd

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMessagesWithoutAggregation(t *testing.T) {
	at := time.Unix(1700000000, 0)
	c, r := record(t, WithoutClientSideAggregation(), WithNamespace("ns"), WithTags([]string{"g:1"}),
		WithContainerID("abc"), WithCardinality(CardinalityLow), WithWorkersCount(1))
	calls := []struct {
		err  error
		want string
	}{
		{c.Count("c", 3, []string{"a:1", "b"}, 1), "ns.c:3|c|#g:1,a:1,b|c:abc|card:low"},
		{c.Incr("c", nil, 1), "ns.c:1|c|#g:1|c:abc|card:low"},
		{c.Decr("c", nil, 1), "ns.c:-1|c|#g:1|c:abc|card:low"},
		{c.Gauge("g", 1.5, nil, 1), "ns.g:1.5|g|#g:1|c:abc|card:low"},
		{c.GaugeWithTimestamp("g", 2, nil, 1, at), "ns.g:2|g|#g:1|c:abc|T1700000000|card:low"},
		{c.CountWithTimestamp("c", 2, nil, 1, at), "ns.c:2|c|#g:1|c:abc|T1700000000|card:low"},
		{c.Histogram("h", 0.25, nil, 1), "ns.h:0.25|h|#g:1|c:abc|card:low"},
		{c.Distribution("d", 1e21, nil, 1), "ns.d:1000000000000000000000|d|#g:1|c:abc|card:low"},
		{c.Timing("t", 1500*time.Microsecond, nil, 1), "ns.t:1.500000|ms|#g:1|c:abc|card:low"},
		{c.TimeInMilliseconds("t", 2, nil, 1), "ns.t:2.000000|ms|#g:1|c:abc|card:low"},
		{c.Set("s", "x:y", nil, 1), "ns.s:x:y|s|#g:1|c:abc|card:low"},
		{c.CountFloat("f", 0.5, nil, 1), "ns.f:0.5|c|#g:1|c:abc|card:low"},
		{c.GaugeDelta("g", 3, nil, 1), "ns.g:+3|g|#g:1|c:abc|card:low"},
		{c.GaugeDelta("g", -3, nil, 1), "ns.g:-3|g|#g:1|c:abc|card:low"},
		{c.SimpleEvent("ti", "a\nb"), "_e{2,4}:ti|a\\nb|#g:1|c:abc|card:low"},
		{c.Event(&Event{Title: "t", Text: "x", Timestamp: at, Hostname: "h", AggregationKey: "k", Priority: Low,
			SourceTypeName: "s", AlertType: Error, Tags: []string{"e"}}),
			"_e{1,1}:t|x|d:1700000000|h:h|k:k|p:low|s:s|t:error|#g:1,e|c:abc|card:low"},
		{c.SimpleServiceCheck("sc", Warn), "_sc|sc|1|#g:1|c:abc|card:low"},
		{c.ServiceCheck(&ServiceCheck{Name: "sc", Status: Critical, Timestamp: at, Hostname: "h", Message: "m:1\nx",
			Tags: []string{"e"}}),
			`_sc|sc|2|d:1700000000|h:h|#g:1,e|m:m\:1\nx|c:abc|card:low`},
		{c.Ex().Count("c", 1, nil, 1, CardinalityHigh), "ns.c:1|c|#g:1|c:abc|card:high"},
		{c.Ex().Event(NewEvent("t", ""), CardinalityNone, "ignored"), "_e{1,0}:t||#g:1|c:abc|card:none"},
	}
	c.Flush()
	var want []string
	for _, x := range calls {
		if x.err != nil {
			t.Errorf("%s: %v", x.want, x.err)
		}
		want = append(want, x.want)
	}
	equalLines(t, r.lines(), want)
	tm := c.GetTelemetry()
	if tm.TotalMetrics != 15 || tm.TotalMetricsCount != 6 || tm.TotalMetricsGauge != 4 || tm.TotalEvents != 3 ||
		tm.TotalServiceChecks != 2 {
		t.Errorf("telemetry is %+v", tm)
	}
}

func TestAggregation(t *testing.T) {
	c, r := record(t)
	tags := []string{"a:1", "b:2"}
	for i := 0; i < 5; i++ {
		_ = c.Count("c", int64(i), tags, 0.1)
		_ = c.Gauge("g", float64(i), tags, 1)
		_ = c.Set("s", fmt.Sprint(i%2), tags, 1)
		_ = c.CountFloat("f", 0.25, tags, 1)
		_ = c.Distribution("d", float64(i), tags, 1)
	}
	_ = c.Count("big", math.MaxInt64, nil, 1)
	_ = c.Count("zero", 0, nil, 1)
	c.Flush()
	equalLines(t, r.sorted(), []string{
		"big:9223372036854775807|c",
		"c:10|c|#a:1,b:2",
		"d:0|d|#a:1,b:2", "d:1|d|#a:1,b:2", "d:2|d|#a:1,b:2", "d:3|d|#a:1,b:2", "d:4|d|#a:1,b:2",
		"f:1.25|c|#a:1,b:2",
		"g:4|g|#a:1,b:2",
		"s:0|s|#a:1,b:2", "s:1|s|#a:1,b:2",
		"zero:0|c",
	})
	tm := c.GetTelemetry()
	if tm.TotalMetrics != 27 || tm.AggregationNbContext != 6 || tm.AggregationNbContextSet != 1 {
		t.Errorf("telemetry is %+v", tm)
	}
	r.reset()
	c.Flush()
	equalLines(t, r.lines(), nil)
	_ = c.Incr("c", tags, 1)
	_ = c.Set("s", "0", tags, 1)
	c.Flush()
	equalLines(t, r.sorted(), []string{"c:1|c|#a:1,b:2", "s:0|s|#a:1,b:2"})
}

func TestExtendedAggregationPacksAndKeepsRatesApart(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation())
	for i := 0; i < 4; i++ {
		_ = c.Distribution("d", float64(i)+0.5, []string{"x"}, 1)
		_ = c.Histogram("h", 1, nil, 1)
		_ = c.Timing("t", time.Millisecond, nil, 1)
	}
	c.Flush()
	equalLines(t, r.sorted(), []string{"d:0.5:1.5:2.5:3.5|d|#x", "h:1:1:1:1|h",
		"t:1.000000:1.000000:1.000000:1.000000|ms"})

	// Two rates for one name used to share the first rate, so that half of the values had the wrong weight.
	r.reset()
	for i := 0; i < 2000; i++ {
		_ = c.Distribution("mixed", 1, nil, 0.5)
		_ = c.Distribution("mixed", 1, nil, 0.25)
	}
	c.Flush()
	weight := 0.0
	for _, l := range r.lines() {
		values := float64(strings.Count(l[:strings.Index(l, "|")], ":"))
		switch {
		case strings.HasSuffix(l, "|d|@0.5"):
			weight += values * 2
		case strings.HasSuffix(l, "|d|@0.25"):
			weight += values * 4
		default:
			t.Errorf("unexpected line %q", l)
		}
	}
	// Standard deviations are 45 and 77; ten of them are not reached by chance.
	if math.Abs(weight-4000) > 900 {
		t.Errorf("the weights add up to %v instead of about 4000", weight)
	}
}

func TestFullContextIsSentEarly(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation())
	const n = 5*packedMax + 3
	for i := 0; i < n; i++ {
		_ = c.Distribution("d", float64(i), nil, 1)
	}
	c.Flush()
	values := map[string]bool{}
	for _, l := range r.lines() {
		for _, v := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(l, "d:"), "|d"), ":") {
			values[v] = true
		}
	}
	if len(values) != n {
		t.Errorf("%d of %d values arrived", len(values), n)
	}
	if got := c.GetTelemetry().TotalMetricsDistribution; got != n {
		t.Errorf("telemetry counts %d of %d", got, n)
	}
	for i := 0; i < membersMax+100; i++ {
		_ = c.Set("s", fmt.Sprint(i), nil, 1)
	}
	r.reset()
	c.Flush()
	if got := len(r.lines()); got < 100 || got > membersMax+100 {
		t.Errorf("%d members in the last flush", got)
	}
}

func TestMaxSamplesPerContext(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation(), WithMaxSamplesPerContext(10))
	for i := 0; i < 100; i++ {
		_ = c.Distribution("d", 1, nil, 1)
	}
	c.Flush()
	equalLines(t, r.lines(), []string{"d" + strings.Repeat(":1", 10) + "|d|@0.1"})
}

func TestSampleRate(t *testing.T) {
	c, r := record(t, WithoutClientSideAggregation())
	for i := 0; i < 10000; i++ {
		_ = c.Count("c", 1, nil, 0.1)
		_ = c.Count("never", 1, nil, 0)
		_ = c.Count("never", 1, nil, -1)
	}
	c.Flush()
	n := len(r.lines())
	if n < 700 || n > 1300 {
		t.Errorf("%d of 10000 calls were sent at a rate of 0.1", n)
	}
	for _, l := range r.lines() {
		if l != "c:1|c|@0.1" {
			t.Fatalf("unexpected line %q", l)
		}
	}
	if got := c.GetTelemetry().TotalMetricsCount; got != 30000 {
		t.Errorf("telemetry counts %d calls", got)
	}
}

func TestWhatAnAgentWouldRefuseIsRefusedHere(t *testing.T) {
	for _, aggregation := range []Option{WithoutClientSideAggregation(), WithExtendedClientSideAggregation()} {
		c, r := record(t, aggregation)
		for _, err := range []error{
			c.Count("", 1, nil, 1), c.Gauge("", 1, []string{"a"}, 1), c.Set("", "x", nil, 1), c.Histogram("", 1, nil,
				1),
		} {
			if !errors.Is(err, ErrEmptyName) {
				t.Errorf("an empty name gives %v", err)
			}
		}
		for _, err := range []error{
			c.Gauge("g", math.NaN(), nil, 1), c.Histogram("g", math.Inf(1), nil, 1), c.TimeInMilliseconds("g",
				math.Inf(-1), nil, 1),
			c.CountFloat("g", math.NaN(), nil, 1), c.GaugeDelta("g", math.NaN(), nil, 1), c.Set("g", "", nil, 1),
			c.GaugeWithTimestamp("g", math.NaN(), nil, 1, time.Now()),
		} {
			if !errors.Is(err, ErrInvalidValue) {
				t.Errorf("an impossible value gives %v", err)
			}
		}
		for _, err := range []error{
			c.Event(nil), c.SimpleEvent("", "x"), c.ServiceCheck(nil), c.SimpleServiceCheck("", Ok),
			c.SimpleServiceCheck("x", 4),
		} {
			if err == nil {
				t.Error("an impossible event or check gives no error")
			}
		}
		long := strings.Repeat("n", 1500)
		for _, err := range []error{c.Count(long, 1, nil, 1), c.Gauge("g", 1, []string{long}, 1), c.SimpleEvent(long,
			"")} {
			if err != (MessageTooLongError{}) {
				t.Errorf("a long message gives %v", err)
			}
		}
		c.Flush()
		equalLines(t, r.lines(), nil)
		if s := c.Stats(); s.Invalid != 16 || s.TooLong != 3 || s.Contexts != 0 {
			t.Errorf("stats are %+v", s)
		}
	}
}

func TestTextThatWouldBreakALine(t *testing.T) {
	for _, aggregation := range []Option{WithoutClientSideAggregation(), WithExtendedClientSideAggregation()} {
		c, r := record(t, aggregation, WithTags([]string{"g|1\n"}))
		_ = c.Count("a:b|c\nd\xff", 1, []string{"x|y", "two\nlines", "\xff"}, 1)
		_ = c.Gauge("_e{1,1}", 1, nil, 1)
		_ = c.Set("s", "m|n\no\xfe", nil, 1)
		c.Flush()
		equalLines(t, r.sorted(), []string{
			"_e_1,1}:1|g|#g_1",
			"a_b_c_d_:1|c|#g_1,x_y,twolines,_",
			"s:m_n_o_|s|#g_1",
		})
	}
}

func TestCallerMayReuseItsMemory(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation())
	name, tag, value := []byte("name-1"), []byte("tag:1"), []byte("value1")
	tags := []string{alias(tag)}
	for i := 0; i < 3; i++ {
		name[5], tag[4], value[5] = byte('1'+i), byte('1'+i), byte('1'+i)
		_ = c.Count(alias(name), 1, tags, 1)
		_ = c.Distribution(alias(name), 1, tags, 1)
		_ = c.Set(alias(name), alias(value), tags, 1)
	}
	tags[0] = "gone"
	name[0], tag[0], value[0] = 'X', 'X', 'X'
	c.Flush()
	equalLines(t, r.sorted(), []string{
		"name-1:1|c|#tag:1", "name-1:1|d|#tag:1", "name-1:value1|s|#tag:1",
		"name-2:1|c|#tag:2", "name-2:1|d|#tag:2", "name-2:value2|s|#tag:2",
		"name-3:1|c|#tag:3", "name-3:1|d|#tag:3", "name-3:value3|s|#tag:3",
	})
}

func TestContextsAreToldApartAsOnTheWire(t *testing.T) {
	c, r := record(t)
	for _, tags := range [][]string{nil, {""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"a,b"}, {"b", "a"}, {"ab"},
		{"a", "b", "c"}, {"a,b", "c"}, {"a", "b,c"}, {"x,y", "z"}, {"x", "yQz"}} {
		_ = c.Count("n", 1, tags, 1)
		_ = c.Count("n", 1, tags, 1)
	}
	c.Flush()
	got := map[string]int{}
	for _, l := range r.lines() {
		got[l]++
	}
	for line, n := range got {
		want := "n:2|c"
		switch line[strings.IndexByte(line, '|'):] {
		case "|c|#a,b":
			want = "n:4|c"
		case "|c|#a,b,c":
			want = "n:6|c"
		}
		if n != 1 && want == "n:2|c" || !strings.HasPrefix(line, "n:") {
			t.Errorf("%q came %d times", line, n)
		}
	}
	if len(got) < 11 {
		t.Errorf("only %d different lines: %v", len(got), got)
	}
}

// TestCommasDoNotMakeTags: a label or a typed tag is one tag, whatever its text.
func TestCommasDoNotMakeTags(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation())
	c.NewCounterVec("c", "a", "b").With("1,b:2", "").Inc()
	c.NewFloatCounterVec("f", "a").With(",").Add(1)
	c.NewGaugeVec("g", "a,x").With("1").Set(1)
	c.NewHistogramVec("h", "a").With("1,2").Observe(1)
	c.NewDistributionVec("d", "a").With("1,2").Observe(1)
	c.NewTimingVec("t", "a").With("1,2").Observe(time.Millisecond)
	c.NewSetVec("s", "a").With("1,2").Add("m,n")
	_ = c.CountWith("tc", 1, StringTag("a", "1,b:2"), StringTag("k,ey", ""), IntTag("i,", 1))
	_ = c.SetWith("ts", "m", make([]Tag, 20)...)
	_ = c.Count("strings", 1, Strings(StringTag("a", "1,2"), BoolTag("b,", true)), 1)
	c.Flush()
	equalLines(t, r.sorted(), []string{
		"c:1|c|#a:1_b:2,b:", "d:1|d|#a:1_2", "f:1|c|#a:_", "g:1|g|#a_x:1", "h:1|h|#a:1_2", "s:m,n|s|#a:1_2",
		"strings:1|c|#a:1_2,b_:true",
		"t:1.000000|ms|#a:1_2", "tc:1|c|#a:1_b:2,k_ey:,i_:1", "ts:m|s|#:" + strings.Repeat(",:", 19),
	})
}

func TestPlainStatsD(t *testing.T) {
	c, r := record(t, WithPlainStatsD(), WithContainerID("abc"), WithCardinality(CardinalityHigh),
		WithExtendedClientSideAggregation(), WithOriginDetection())
	_ = c.Gauge("g", -5, nil, 1)
	_ = c.Distribution("d", 1, []string{"a:1"}, 1)
	_ = c.Distribution("d", 2, []string{"a:1"}, 1)
	for _, err := range []error{c.SimpleEvent("a", "b"), c.SimpleServiceCheck("a", Ok), c.GaugeWithTimestamp("g", 1,
		nil, 1, time.Now())} {
		if !errors.Is(err, ErrNotPlain) {
			t.Errorf("error is %v", err)
		}
	}
	c.Flush()
	equalLines(t, r.sorted(), []string{"d:1|d|#a:1", "d:2|d|#a:1", "g:-5|g", "g:0|g"})
	equalLines(t, r.lines()[:2], []string{"g:0|g", "g:-5|g"})
	direct, r2 := record(t, WithPlainStatsD(), WithoutClientSideAggregation())
	_ = direct.Gauge("g", -5, nil, 1)
	direct.Flush()
	equalLines(t, r2.lines(), []string{"g:0|g", "g:-5|g"})
}

func TestNilClient(t *testing.T) {
	var c *Client
	var x *ClientEx
	var d *ClientDirect
	for _, err := range []error{
		c.Count("a", 1, nil, 1), c.Gauge("a", 1, nil, 1), c.Set("a", "b", nil, 1), c.Incr("a", nil, 1), c.Decr("a", nil,
			1),
		c.Histogram("a", 1, nil, 1), c.Distribution("a", 1, nil, 1), c.Timing("a", 1, nil, 1), c.TimeInMilliseconds("a",
			1, nil, 1),
		c.Event(nil), c.SimpleEvent("a", ""), c.ServiceCheck(nil), c.SimpleServiceCheck("a", Ok), c.Flush(), c.Close(),
		c.CountWithTimestamp("a", 1, nil, 1, time.Now()), c.GaugeWithTimestamp("a", 1, nil, 1, time.Now()),
		c.CountFloat("a", 1, nil, 1), c.GaugeDelta("a", 1, nil, 1), c.CountWith("a", 1),
		x.Count("a", 1, nil, 1), x.Flush(), x.Close(), d.DistributionSamples("a", nil, nil, 1),
	} {
		if err != ErrNoClient {
			t.Errorf("error is %v", err)
		}
	}
	c.NewCounter("a").Inc()
	c.NewGauge("a").Set(1)
	c.NewCounterVec("a", "b").With("c").Inc()
	if _, err := CloneWithExtraOptions(nil); err != ErrNoClient {
		t.Errorf("cloning nil gives %v", err)
	}
	if c.GetTransport() != "" || !c.IsClosed() {
		t.Error("a nil client has a transport or is open")
	}
}

func TestCloseFlushesAndCallsAfterItDoNotPanic(t *testing.T) {
	noLeaks(t)
	for _, mode := range []Option{WithMutexMode(), WithChannelMode()} {
		c, r := record(t, mode)
		_ = c.Count("c", 1, nil, 1)
		_ = c.Histogram("h", 1, nil, 1)
		if c.IsClosed() {
			t.Error("closed before Close")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil || !c.IsClosed() || !r.closed {
			t.Errorf("second Close: %v, closed %v, writer closed %v", err, c.IsClosed(), r.closed)
		}
		equalLines(t, r.sorted(), []string{"c:1|c", "h:1|h"})
		_ = c.Count("c", 1, nil, 1)
		for i := 0; i < 10000; i++ {
			_ = c.Histogram("h", 1, nil, 1)
		}
		_ = c.Flush()
	}
}

func TestChildren(t *testing.T) {
	c, r := record(t, WithNamespace("app"), WithTags([]string{"g:1"}))
	child := c.Child("db", "shard:1")
	grandchild := child.Child("", "x")
	_ = c.Incr("n", nil, 1)
	_ = child.Incr("n", []string{"a"}, 1)
	_ = grandchild.Incr("n", nil, 1)
	child.NewCounter("n", "a").Inc()
	_ = child.SimpleEvent("t", "")
	if err := child.Close(); err != nil || !child.IsClosed() || c.IsClosed() {
		t.Errorf("closing a child: %v", err)
	}
	equalLines(t, r.sorted(), []string{
		"_e{1,0}:t||#g:1,shard:1",
		"app.db.n:1|c|#g:1,shard:1,x", "app.db.n:2|c|#g:1,shard:1,a", "app.n:1|c|#g:1",
	})
	if got := c.GetTelemetry().TotalMetricsCount; got != 4 {
		t.Errorf("telemetry counts %d", got)
	}
	c.Close()
	if !grandchild.IsClosed() {
		t.Error("a child is open after its parent was closed")
	}
}

func TestTypedTags(t *testing.T) {
	c, r := record(t, WithExtendedClientSideAggregation())
	for i := 0; i < 2; i++ {
		_ = c.CountWith("c", 1, StringTag("s", "x"), IntTag("i", -5), Int64Tag("l", math.MaxInt64), BoolTag("b", true))
		_ = c.GaugeWith("g", 1, BoolTag("b", false))
		_ = c.HistogramWith("h", 1, IntTag("i", i/2))
		_ = c.DistributionWith("d", 1)
		_ = c.TimingWith("t", time.Millisecond, IntTag("i", 1))
		_ = c.SetWith("s", "v", IntTag("i", 1))
	}
	many := make([]Tag, 20)
	for i := range many {
		many[i] = IntTag("i", i)
	}
	_ = c.CountWith("many", 1, many...)
	_ = c.CountWith("long", 1, StringTag("k", strings.Repeat("v", 300)), IntTag("i", 1))
	c.Flush()
	equalLines(t, r.sorted(), []string{
		"c:2|c|#s:x,i:-5,l:9223372036854775807,b:true", "d:1:1|d", "g:1|g|#b:false", "h:1:1|h|#i:0",
		"long:1|c|#k:" + strings.Repeat("v", 300) + ",i:1",
		"many:1|c|#" + strings.Join(Strings(many...), ","), "s:v|s|#i:1", "t:1.000000:1.000000|ms|#i:1",
	})
}

func TestNewErrors(t *testing.T) {
	for _, addr := range []string{"", "localhost:notaport", "a:b:c", "unix://", "localhost:99999", "localhost:0",
		`\\.\pipe\x`} {
		if c, err := New(addr); err == nil {
			t.Errorf("%q: no error", addr)
			c.Close()
		}
	}
	for i, o := range []Option{WithWorkersCount(0), WithAggregatorShardCount(0), WithCardinality(9),
		WithMaxContexts(-1)} {
		if c, err := New("127.0.0.1:8125", o); err == nil {
			t.Errorf("option %d: no error", i)
			c.Close()
		}
	}
	if _, err := NewWithWriter(nil); err == nil {
		t.Error("a nil writer gives no error")
	}
	if _, err := New("127.0.0.1:8125", WithTelemetryAddr("a:b:c")); err == nil {
		t.Error("a bad telemetry address gives no error")
	}
	c, _ := record(t)
	if _, err := CloneWithExtraOptions(c); err == nil {
		t.Error("a client made from a writer can be cloned")
	}
}

func TestClone(t *testing.T) {
	s := serveUDP(t)
	c, err := New(s.address, WithNamespace("a"), WithTags([]string{"x"}), WithoutTelemetry(), WithoutOriginDetection())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	clone, err := CloneWithExtraOptions(c, WithNamespace("b"))
	if err != nil {
		t.Fatal(err)
	}
	_ = clone.Incr("n", nil, 1)
	clone.Close()
	eventually(t, "the clone's metric", func() bool { return s.count() == 1 })
	equalLines(t, s.lines(), []string{"b.n:1|c|#x"})
	if c.IsClosed() {
		t.Error("closing the clone closed the original")
	}
}

func TestEnvironment(t *testing.T) {
	s := serveUDP(t)
	host, port, _ := strings.Cut(s.address, ":")
	socket := filepath.Join(shortDir(t), "s")
	g := serveUnixgram(t, socket)
	cases := []struct {
		env    map[string]string
		server *server
	}{
		{map[string]string{"DD_AGENT_HOST": host, "DD_DOGSTATSD_PORT": port}, s},
		{map[string]string{"DD_AGENT_HOST": "no.such.host.invalid", "DD_DOGSTATSD_URL": "udp://" + s.address}, s},
		{map[string]string{"DD_AGENT_HOST": host, "DD_DOGSTATSD_PORT": port, "DD_DOGSTATSD_URL": "http://bad"}, s},
		{map[string]string{"DD_DOGSTATSD_URL": "unix://" + socket}, g},
		{map[string]string{"DD_DOGSTATSD_URL": "unixgram://" + socket}, g},
	}
	for i, x := range cases {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			for k, v := range x.env {
				t.Setenv(k, v)
			}
			t.Setenv("DD_ENTITY_ID", "pod")
			t.Setenv("DD_ENV", "prod")
			t.Setenv("DD_SERVICE", "svc")
			t.Setenv("DD_VERSION", "1")
			t.Setenv("DD_TAGS", "team:a, b:c")
			t.Setenv("DD_EXTERNAL_ENV", "it-false|\x01,cn-x")
			t.Setenv("DD_CARDINALITY", "bogus")
			t.Setenv("DATADOG_CARDINALITY", "HIGH")
			before := x.server.count()
			c, err := New("", WithoutTelemetry(), WithTags([]string{"own"}), WithContainerID("cid"),
				WithWriteTimeout(patience))
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Incr(fmt.Sprint("n", i), []string{"call"}, 1)
			c.Close()
			eventually(t, "the metric", func() bool { return x.server.count() > before })
			lines := x.server.lines()
			equalLines(t, lines[len(lines)-1:], []string{fmt.Sprintf(
				"n%d:1|c|#own,dd.internal.entity_id:pod,env:prod,service:svc,version:1,"+
					"team:a,b:c,call|c:cid|e:it-false,cn-x|card:high", i)})
		})
	}
	t.Run("switched off", func(t *testing.T) {
		t.Setenv("DD_TAGS", "a b")
		t.Setenv("DD_EXTERNAL_ENV", "x")
		t.Setenv("DD_ORIGIN_DETECTION_ENABLED", "false")
		c, r := record(t, WithoutEnvTags(), WithOriginDetection())
		_ = c.Incr("n", nil, 1)
		c.Flush()
		equalLines(t, r.lines(), []string{"n:1|c"})
		os.Setenv("DD_ORIGIN_DETECTION_ENABLED", "not a bool")
		d, r2 := record(t, WithOriginDetection(), WithContainerID("id"))
		_ = d.Incr("n", nil, 1)
		d.Flush()
		equalLines(t, r2.lines(), []string{"n:1|c|#a,b|c:id|e:x"})
	})
}

func TestResolveAddress(t *testing.T) {
	for in, want := range map[string]string{
		"localhost": "localhost:8125", "localhost:1": "localhost:1", "::1": "[::1]:8125", "[::1]:5": "[::1]:5",
		"[::1]":     "[::1]:8125",
		"unix:///a": "unix:///a", "unixgram:///a": "unixgram:///a", `\\.\pipe\a`: `\\.\pipe\a`, "udp://h": "h:8125",
		"udp://h:2": "h:2",
		"tcp://h":   "tcp://h:8125", "": "",
	} {
		if got := resolveAddress(in); got != want {
			t.Errorf("%q becomes %q, not %q", in, got, want)
		}
	}
}
