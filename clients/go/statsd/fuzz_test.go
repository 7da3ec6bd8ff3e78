package statsd_test

import (
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-dev/weir/clients/go/statsd"
	"github.com/weir-dev/weir/clients/go/statsd/statsdtest"
)

// keeper keeps packets.
type keeper struct {
	mu      sync.Mutex
	packets []string
}

func (k *keeper) Close() error { return nil }

func (k *keeper) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.packets = append(k.packets, string(b))
	return len(b), nil
}

// fuzzLimit is small, so that messages often do not fit.
const fuzzLimit = 300

// callEverything makes every kind of call with the same arguments.
func callEverything(c *statsd.Client, name, tag, text string, n int64, v, rate float64) {
	tags := []string{tag, text}
	if tag == "" {
		tags = nil
	}
	at := time.Unix(n, 0)
	_ = c.Count(name, n, tags, rate)
	_ = c.Gauge(name, v, tags, rate)
	_ = c.Set(name, text, tags, rate)
	_ = c.Histogram(name, v, tags, rate)
	_ = c.Distribution(name, v, tags, rate)
	_ = c.Distribution(name, v+1, tags, rate)
	_ = c.TimeInMilliseconds(name, v, tags, rate)
	_ = c.Timing(name, time.Duration(n), tags, rate)
	_ = c.CountWithTimestamp(name, n, tags, rate, at)
	_ = c.GaugeWithTimestamp(name, v, tags, rate, at)
	_ = c.CountFloat(name, v, tags, rate)
	_ = c.GaugeDelta(name, v, tags, rate)
	_ = c.CountWith(name, n, statsd.StringTag(tag, text), statsd.Int64Tag(text, n))
	_ = c.SimpleEvent(name, text)
	_ = c.Event(&statsd.Event{
		Title: text, Text: name, Timestamp: at, Hostname: tag, AggregationKey: text,
		Priority:       statsd.EventPriority(tag),
		SourceTypeName: name, AlertType: statsd.EventAlertType(text), Tags: tags,
	})
	_ = c.ServiceCheck(&statsd.ServiceCheck{
		Name: name, Status: statsd.ServiceCheckStatus(n & 7), Timestamp: at, Hostname: tag, Message: text, Tags: tags,
	})
	c.NewCounter(name, tags...).Add(n)
	c.NewGauge(name, tags...).Set(v)
	c.NewDistribution(name, tags...).Observe(v)
	c.NewSet(name, tags...).Add(text)
	c.NewCounterVec(name, tag).With(text).Inc()
	child := c.Child(tag, text)
	_ = child.Incr(name, tags, 1)
	_ = child.Histogram(name, v, tags, 1)
}

func fuzzClients(t testing.TB, tag string) map[*statsd.Client]*keeper {
	clients := map[*statsd.Client]*keeper{}
	for _, options := range [][]statsd.Option{
		{statsd.WithoutClientSideAggregation()},
		{statsd.WithExtendedClientSideAggregation(), statsd.WithNamespace(tag), statsd.WithTags([]string{tag}),
			statsd.WithContainerID(tag)},
		{statsd.WithPlainStatsD()},
		{statsd.WithChannelMode(), statsd.WithMaxContexts(2), statsd.WithMaxMessagesPerPayload(2)},
	} {
		k := &keeper{}
		c, err := statsd.NewWithWriter(k, append([]statsd.Option{
			statsd.WithoutTelemetry(), statsd.WithMaxBytesPerPayload(fuzzLimit), statsd.WithWorkersCount(2),
		}, options...)...)
		if err != nil {
			t.Fatal(err)
		}
		clients[c] = k
	}
	return clients
}

// checkPackets fails the test for a packet over the limit and for a line that an agent would refuse.
func checkPackets(t *testing.T, packets []string, limit int) {
	t.Helper()
	for _, p := range packets {
		if len(p) > limit || !strings.HasSuffix(p, "\n") {
			t.Errorf("a packet of %d bytes: %q", len(p), p)
		}
		for _, line := range strings.Split(strings.TrimSuffix(p, "\n"), "\n") {
			m, err := statsdtest.Parse(line)
			if err != nil {
				t.Error(err)
			} else if m.Kind == statsdtest.Event && !strings.HasPrefix(line, "_e{") || m.Kind == statsdtest.Metric &&
				m.Type == "" {
				t.Errorf("%q is read as %+v", line, m)
			}
		}
	}
}

// FuzzCalls hands arbitrary text and numbers to every kind of call: whatever they are, packets keep to the limit and an
// agent accepts every line.
func FuzzCalls(f *testing.F) {
	f.Add("name", "tag:1", "text", int64(5), 1.5, 1.0)
	f.Add("", "", "", int64(0), 0.0, 0.0)
	f.Add("a:b|c\n", "x|@y,\n", "m:|\r\n", int64(-1), math.Inf(1), 0.5)
	f.Add("_e{1,1}", "#", "|#|c:|T0|@x", int64(math.MinInt64), math.NaN(), math.NaN())
	f.Add("_sc|x", "\xff\xfe", "\xc3\x28", int64(math.MaxInt64), math.MaxFloat64, 1e-300)
	f.Add(strings.Repeat("n", 299), strings.Repeat("t", 150), strings.Repeat("v", 290), int64(7), -5e-324, -1.0)
	f.Add("name", "", "ends in\r", int64(1), 1.0, 1.0)
	f.Add("é", "e:\u2028", "\x00", int64(1700000000), 0.1, 2.0)
	f.Fuzz(func(t *testing.T, name, tag, text string, n int64, v, rate float64) {
		for c, k := range fuzzClients(t, tag) {
			callEverything(c, name, tag, text, n, v, rate)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			checkPackets(t, k.packets, fuzzLimit)
		}
	})
}

// FuzzContexts compares the look-up of contexts with the text they stand for: calls with the same line add up, others
// do not.
func FuzzContexts(f *testing.F) {
	f.Add("n", "a", "b", "n", "a,b", "")
	f.Add("n", "", "", "n", "", "")
	f.Add("12345678", "12345678", "1234567890123456", "12345678", "12345678,", "234567890123456")
	f.Add("n", "aaaaaaaaaaaaaaaaa", "b", "n", "aaaaaaaaaaaaaaaab", "b")
	f.Fuzz(func(t *testing.T, name1, a1, b1, name2, a2, b2 string) {
		k := &keeper{}
		c, err := statsd.NewWithWriter(k, statsd.WithoutTelemetry(), statsd.WithoutOriginDetection(),
			statsd.WithMaxBytesPerPayload(60000))
		if err != nil {
			t.Fatal(err)
		}
		calls := []struct {
			name string
			tags []string
		}{
			{name1, []string{a1, b1}}, {name2, []string{a2, b2}}, {name1, []string{a1}}, {name2, []string{a2}}, {name1,
				nil}, {name2, []string{}},
			{name1, []string{a1, b1, a2}},
		}
		direct := &keeper{}
		d, err := statsd.NewWithWriter(direct, statsd.WithoutTelemetry(), statsd.WithoutOriginDetection(),
			statsd.WithoutClientSideAggregation(), statsd.WithMaxBytesPerPayload(60000))
		if err != nil {
			t.Fatal(err)
		}
		for round := 0; round < 2; round++ {
			for i, x := range calls {
				_ = c.Count(strings.Clone(x.name), int64(1)<<i, x.tags, 1)
				_ = d.Count(x.name, int64(1)<<i, x.tags, 1)
			}
		}
		_ = c.Close()
		_ = d.Close()
		sums := func(packets []string) map[string]float64 {
			out := map[string]float64{}
			for _, p := range packets {
				for _, line := range strings.Split(strings.TrimSuffix(p, "\n"), "\n") {
					m, err := statsdtest.Parse(line)
					if err != nil {
						t.Fatal(err)
					}
					_, tail, _ := strings.Cut(line, "|")
					out[m.Name+"|"+tail] += m.Total()
				}
			}
			return out
		}
		want := sums(direct.packets)
		got := sums(k.packets)
		for line, n := range want {
			if got[line] != n {
				t.Errorf("%q adds up to %v, not %v", line, got[line], n)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d series, not %d", len(got), len(want))
		}
	})
}
