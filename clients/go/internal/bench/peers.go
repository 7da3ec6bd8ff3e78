package main

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	datadog "github.com/DataDog/datadog-go/v5/statsd"
	cactus "github.com/cactus/go-statsd-client/v5/statsd"
	smira "github.com/smira/go-statsd"
	weir "github.com/weir-dev/weir/clients/go/statsd"
)

// This file has the cases of benchmarks that others published, through the public interface of both clients.

// parallel runs a side on two processors, as those benchmarks are run.
func parallel(s side) side {
	return func(b *meter) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
		s(b)
	}
}

// lostShare is the part of the calls whose bytes or metrics were dropped.
func lostShare(onReceive, metrics, bytesSent, bytesDropped uint64) float64 {
	share := float64(onReceive) / float64(max(metrics, 1))
	return share + (1-share)*float64(bytesDropped)/float64(max(bytesSent+bytesDropped, 1))
}

func lostOf(c client) float64 {
	switch c := c.(type) {
	case *weir.Client:
		t := c.GetTelemetry()
		return lostShare(t.TotalDroppedOnReceive, t.TotalMetrics, t.TotalBytesSent, t.TotalBytesDropped)
	case *datadog.Client:
		t := c.GetTelemetry()
		return lostShare(t.TotalDroppedOnReceive, t.TotalMetrics, t.TotalBytesSent, t.TotalBytesDropped)
	}
	return 0
}

// report makes the calls without a pause, as the benchmark of datadog-go does, flushes within the measured time, and
// counts losses.
func report(network string, connect func(address string) client, body func(c client, lo, hi, step int)) side {
	return parallel(func(b *meter) {
		r := startReceiver(network)
		address := r.address
		if network != "udp" {
			address = "unix://" + address
		}
		c := connect(address)
		onAllProcessors(b, func() { _ = c.Flush() }, func(lo, hi, step int) { body(c, lo, hi, step) })
		b.calls = uint64(b.N)
		b.lost = uint64(lostOf(c) * float64(b.N))
		_ = c.Close()
		r.stop()
	})
}

// gauges makes the calls of the benchmarks of datadog-go: one gauge for all goroutines, with its tag written at the
// call, or one for each.
func gauges(c client, lo, hi, step int, different bool) {
	name, tags := "test.metric"+strconv.Itoa(lo%2), []string{"tag:tag"}
	switch c := c.(type) {
	case *weir.Client:
		for ; lo < hi; lo += step {
			if different {
				_ = c.Gauge(name, 1, tags, 1)
			} else {
				_ = c.Gauge("test.metric", 1, []string{"tag:tag"}, 1)
			}
		}
	case *datadog.Client:
		for ; lo < hi; lo += step {
			if different {
				_ = c.Gauge(name, 1, tags, 1)
			} else {
				_ = c.Gauge("test.metric", 1, []string{"tag:tag"}, 1)
			}
		}
	}
}

// reportBenchmarks are the sixteen cases of datadog-go's statsd_benchmark_test.go.
func reportBenchmarks() []benchmark {
	var list []benchmark
	for _, network := range []string{"udp", "unix"} {
		for _, different := range []bool{false, true} {
			for _, channel := range []bool{false, true} {
				for _, aggregated := range []bool{false, true} {
					name := network + ", same metric"
					if different {
						name = network + ", different metrics"
					}
					o := []weir.Option{weir.WithMaxMessagesPerPayload(1024), weir.WithoutOriginDetection()}
					d := []datadog.Option{datadog.WithMaxMessagesPerPayload(1024), datadog.WithoutOriginDetection()}
					if channel {
						name += ", channel mode"
						o, d = append(o, weir.WithChannelMode()), append(d, datadog.WithChannelMode())
					} else {
						name += ", mutex mode"
					}
					if aggregated {
						name += ", aggregated"
					} else {
						name += ", not aggregated"
						o, d = append(o, plainOurs...), append(d, plainTheirs...)
					}
					body := func(c client, lo, hi, step int) { gauges(c, lo, hi, step, different) }
					list = append(list, benchmark{name,
						report(network, func(address string) client {
							c, err := weir.New(address, o...)
							if err != nil {
								panic(err)
							}
							return c
						}, body),
						report(network, func(address string) client {
							c, err := datadog.New(address, d...)
							if err != nil {
								panic(err)
							}
							return c
						}, body)})
				}
			}
		}
	}
	return list
}

// onAllProcessors measures b.N calls, shared out over the processors, and what finishes them.
func onAllProcessors(b *meter, finish func(), body func(lo, hi, step int)) {
	b.start()
	spread(b.N, body)
	finish()
	b.stop()
}

// statter has the methods that the aggregation benchmarks call.
type statter interface {
	client
	Count(name string, value int64, tags []string, rate float64) error
	Gauge(name string, value float64, tags []string, rate float64) error
	Set(name, value string, tags []string, rate float64) error
	Histogram(name string, value float64, tags []string, rate float64) error
}

var (
	_ statter = (*weir.Client)(nil)
	_ statter = (*datadog.Client)(nil)
)

// known makes the calls on contexts that exist. It measures the look-up; the last flush is not included.
func known(names []string, connect func() statter, call func(c statter, name string, i int)) side {
	return func(b *meter) {
		c := connect()
		for i, name := range names {
			call(c, name, i)
		}
		onAllProcessors(b, func() {}, func(lo, hi, step int) {
			for ; lo < hi; lo += step {
				call(c, names[lo%len(names)], lo)
			}
		})
		_ = c.Close()
	}
}

// sizedTags are tags of 55 bytes.
func sizedTags(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("tag%03d:", i) + strings.Repeat("v", 48)
	}
	return list
}

// aggregatorBenchmarks are the benchmarks of datadog-go's aggregator_benchmark_test.go and context_benchmark_test.go,
// which there work on internal parts. Clients write to nothing and do not flush while it is measured.
func aggregatorBenchmarks() []benchmark {
	var list []benchmark
	add := func(name string, shards int, packed bool, names []string, call func(c statter, name string, i int)) {
		list = append(list, benchmark{name,
			known(names, func() statter {
				o := []weir.Option{weir.WithAggregatorShardCount(shards), weir.WithAggregationInterval(time.Hour),
					weir.WithoutTelemetry(), weir.WithMaxBytesPerPayload(60000)}
				if packed {
					o = append(o, weir.WithExtendedClientSideAggregation())
				}
				return ours(nil, o...)
			}, call),
			known(names, func() statter {
				d := []datadog.Option{datadog.WithAggregatorShardCount(shards),
					datadog.WithAggregationInterval(time.Hour), datadog.WithoutTelemetry(),
					datadog.WithMaxBytesPerPayload(60000)}
				if packed {
					d = append(d, datadog.WithExtendedClientSideAggregation())
				}
				return theirs(nil, d...)
			}, call)})
	}
	mixed := func(tags []string) func(c statter, name string, i int) {
		return func(c statter, name string, _ int) {
			_ = c.Count(name, 1, tags, 1)
			_ = c.Gauge(name, 10, tags, 1)
			_ = c.Set(name, "val", tags, 1)
		}
	}
	many, few := namesOf(20000), namesOf(1000)
	two := []string{"tag:1", "tag:2"}
	for _, shards := range []int{1, 32, 256} {
		add(fmt.Sprintf("`Count`, `Gauge` and `Set`, 20,000 names, 2 tags, %d shards", shards), shards, false, many,
			mixed(two))
	}
	for _, n := range []int{5, 10, 40, 60, 100} {
		add(fmt.Sprintf("`Count`, `Gauge` and `Set`, 1,000 names, %d tags of 55 bytes", n), 1, false, few,
			mixed(sizedTags(n)))
	}
	add("`Count`, 20,000 names, 2 tags, 256 shards", 256, false, many, func(c statter, name string,
		_ int) {
		_ = c.Count(name, 1, two, 1)
	})
	add("`Gauge`, 20,000 names, 2 tags, 256 shards", 256, false, many, func(c statter, name string,
		_ int) {
		_ = c.Gauge(name, 10, two, 1)
	})
	add("`Set`, 20,000 names, 2 tags, 256 shards", 256, false, many, func(c statter, name string,
		_ int) {
		_ = c.Set(name, "existing", two, 1)
	})
	for _, n := range []int{5, 40, 100} {
		add(fmt.Sprintf("`Histogram`, packed, 1,000 names, %d tags of 55 bytes", n), 1, true, few,
			func(tags []string) func(c statter, name string, i int) {
				return func(c statter, name string, i int) { _ = c.Histogram(name, float64(i%1000), tags, 1) }
			}(sizedTags(n)))
	}
	flush := func(c statter, calls func(c statter)) side {
		return func(b *meter) {
			calls(c)
			_ = c.Flush()
			b.start()
			for i := 0; i < b.N; i++ {
				calls(c)
				_ = c.Flush()
			}
			b.stop()
		}
	}
	sparse := func(c statter) {
		_ = c.Count("metric.same", 1, two, 1)
		_ = c.Gauge("metric.same", 10, two, 1)
		_ = c.Set("metric.same", "val", two, 1)
	}
	both := func(name string, calls func(c statter)) {
		list = append(list, benchmark{name,
			func(b *meter) {
				c := ours(b, weir.WithAggregatorShardCount(256), weir.WithAggregationInterval(time.Hour),
					weir.WithoutTelemetry())
				flush(c, calls)(b)
				_ = c.Close()
			},
			func(b *meter) {
				c := theirs(b, datadog.WithAggregatorShardCount(256), datadog.WithAggregationInterval(time.Hour),
					datadog.WithoutTelemetry())
				flush(c, calls)(b)
				_ = c.Close()
			}})
	}
	both("`Flush` of nothing, 256 shards", func(statter) {})
	both("`Count`, `Gauge`, `Set` and `Flush`, 256 shards", sparse)
	list = append(list, benchmark{"a new client that writes to nothing, 256 shards, and its `Close`",
		func(b *meter) {
			b.start()
			for i := 0; i < b.N; i++ {
				_ = ours(b, weir.WithAggregatorShardCount(256)).Close()
			}
			b.stop()
		}, func(b *meter) {
			b.start()
			for i := 0; i < b.N; i++ {
				_ = theirs(b, datadog.WithAggregatorShardCount(256)).Close()
			}
			b.stop()
		}})
	return list
}

// formatBenchmarks send the eight messages of datadog-go's format_benchmark_test.go, which there are only formatted.
// As there, each tag ends in a newline, which the client has to delete.
func formatBenchmarks() []benchmark {
	var list []benchmark
	at := time.Date(2016, time.August, 15, 0, 0, 0, 0, time.UTC)
	for _, n := range []int{0, 1, 5, 10, 50} {
		var tags []string
		for i := 0; i < n; i++ {
			tags = append(tags, fmt.Sprintf("tag%d:tag%d\n", i, i))
		}
		list = append(list, benchmark{fmt.Sprintf("eight messages, %d tags with newlines", n), func(b *meter) {
			c := ours(b, weir.WithoutClientSideAggregation(), weir.WithNamespace("namespace"))
			event := &weir.Event{Title: "EvenTitle", Text: "EventText", Timestamp: at, Hostname: "hostname",
				AggregationKey: "aggregationKey",
				Priority:       "priority", SourceTypeName: "SourceTypeName", AlertType: "alertType", Tags: tags}
			check := &weir.ServiceCheck{Name: "service.check", Timestamp: at, Hostname: "hostname", Message: "message",
				Tags: []string{"tag1:tag1"}}
			loopFlushing(b, c, 100, func(i, end, step int) {
				for ; i < end; i += step {
					simple(c, tags)
					_ = c.Timing("metric", time.Millisecond, tags, 1)
					_ = c.Event(event)
					_ = c.ServiceCheck(check)
				}
			})
		}, func(b *meter) {
			c := theirs(b, datadog.WithoutClientSideAggregation(), datadog.WithNamespace("namespace"))
			event := &datadog.Event{Title: "EvenTitle", Text: "EventText", Timestamp: at, Hostname: "hostname",
				AggregationKey: "aggregationKey",
				Priority:       "priority", SourceTypeName: "SourceTypeName", AlertType: "alertType", Tags: tags}
			check := &datadog.ServiceCheck{Name: "service.check", Timestamp: at, Hostname: "hostname",
				Message: "message", Tags: []string{"tag1:tag1"}}
			loopFlushing(b, c, 100, func(i, end, step int) {
				for ; i < end; i += step {
					simple(c, tags)
					_ = c.Timing("metric", time.Millisecond, tags, 1)
					_ = c.Event(event)
					_ = c.ServiceCheck(check)
				}
			})
		}})
	}
	return list
}

func simple(c interface {
	statter
	Distribution(name string, value float64, tags []string, rate float64) error
}, tags []string) {
	_ = c.Gauge("metric", 1, tags, 1)
	_ = c.Count("metric", 1, tags, 1)
	_ = c.Histogram("metric", 1, tags, 1)
	_ = c.Distribution("metric", 1, tags, 1)
	_ = c.Set("metric", "setelement", tags, 1)
}

// suiteBenchmarks are the operation of the suites that compare StatsD clients: a counter, a gauge and a timing, with a
// prefix and without tags.
func suiteBenchmarks() []benchmark {
	const prefix = "metricPrefix"
	suite := func(connect func(address string) (op func(), flush func() error, stop func())) side {
		return overSocket("udp", []string{""}, func(address string) (func(string), func() error, func()) {
			op, flush, stop := connect(address)
			return func(string) { op() }, flush, stop
		})
	}
	ours := func(options ...weir.Option) side {
		return suite(func(address string) (func(), func() error, func()) {
			c, err := weir.New(address, append([]weir.Option{weir.WithNamespace(prefix), weir.WithoutTelemetry(),
				weir.WithoutOriginDetection()}, options...)...)
			if err != nil {
				panic(err)
			}
			return func() {
				_ = c.Incr("foo.bar.counter", nil, 1)
				_ = c.Gauge("foo.bar.gauge", 42, nil, 1)
				_ = c.Timing("foo.bar.timing", 153*time.Millisecond, nil, 1)
			}, c.Flush, func() { _ = c.Close() }
		})
	}
	theirs := func(options ...datadog.Option) side {
		return suite(func(address string) (func(), func() error, func()) {
			c, err := datadog.New(address, append([]datadog.Option{datadog.WithNamespace(prefix),
				datadog.WithoutTelemetry(), datadog.WithoutOriginDetection()}, options...)...)
			if err != nil {
				panic(err)
			}
			return func() {
				_ = c.Incr("foo.bar.counter", nil, 1)
				_ = c.Gauge("foo.bar.gauge", 42, nil, 1)
				_ = c.Timing("foo.bar.timing", 153*time.Millisecond, nil, 1)
			}, c.Flush, func() { _ = c.Close() }
		})
	}
	toSmira := suite(func(address string) (func(), func() error, func()) {
		c := smira.NewClient(address, smira.MetricPrefix(prefix+"."), smira.MaxPacketSize(1432))
		return func() {
			c.Incr("foo.bar.counter", 1)
			c.Gauge("foo.bar.gauge", 42)
			c.PrecisionTiming("foo.bar.timing", 153*time.Millisecond)
		}, func() error { return nil }, func() { _ = c.Close() }
	})
	toCactus := suite(func(address string) (func(), func() error, func()) {
		c, err := cactus.NewClientWithConfig(&cactus.ClientConfig{Address: address, Prefix: prefix, UseBuffered: true,
			FlushInterval: 100 * time.Millisecond, FlushBytes: 1432})
		if err != nil {
			panic(err)
		}
		return func() {
			_ = c.Inc("foo.bar.counter", 1, 1)
			_ = c.Gauge("foo.bar.gauge", 42, 1)
			_ = c.TimingDuration("foo.bar.timing", 153*time.Millisecond, 1)
		}, func() error { return nil }, func() { _ = c.Close() }
	})
	packed := weir.WithExtendedClientSideAggregation()
	return []benchmark{
		{"datadog-go, both with packed values", ours(packed), theirs(datadog.WithExtendedClientSideAggregation())},
		{"datadog-go, both with default options", ours(), theirs()},
		{"datadog-go, neither aggregates", ours(plainOurs...), theirs(plainTheirs...)},
		{"go-statsd v1.3.4, ours with packed values", ours(packed), toSmira},
		{"go-statsd v1.3.4, ours does not aggregate", ours(plainOurs...), toSmira},
		{"go-statsd-client v5.1.0 (cactus), buffered, ours with packed values", ours(packed), toCactus},
		{"go-statsd-client v5.1.0 (cactus), buffered, ours does not aggregate", ours(plainOurs...), toCactus},
	}
}
