package main

import (
	"io"
	"math"
	"math/rand"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	datadog "github.com/DataDog/datadog-go/v5/statsd"
	weir "github.com/weir-dev/weir/clients/go/statsd"
)

// null discards packets, so that only the client is measured.
type null struct{}

func (null) Write(b []byte) (int, error) { return len(b), nil }
func (null) Close() error                { return nil }

const name = "service.http.request"

var tags = []string{
	"env:prod-01", "region:eu-1", "status:2001", "method:POST", "shard:00017", "zone:eu-1-b", "team:core-1",
	"tier:silver1", "version:1.2", "canary:fals",
}

func ours(b *meter, options ...weir.Option) *weir.Client {
	c, err := weir.NewWithWriter(null{}, append([]weir.Option{weir.WithoutOriginDetection()}, options...)...)
	if err != nil {
		panic(err)
	}
	return c
}

func theirs(b *meter, options ...datadog.Option) *datadog.Client {
	c, err := datadog.NewWithWriter(null{}, append([]datadog.Option{datadog.WithoutOriginDetection()}, options...)...)
	if err != nil {
		panic(err)
	}
	return c
}

// client has the methods that the loops call on both clients.
type client interface {
	Flush() error
	Close() error
}

// paced is the number of calls without aggregation between flushes, so that the queue of packets never
// overflows: dropping is cheap, and its speed means nothing.
const paced = 10000

// loop runs a body that makes the calls lo, lo+step, ... below hi, on every processor. What the calls leave behind is
// flushed within the measured time. A first round, not measured, makes contexts and buffers known.
func loop(b *meter, c client, body func(lo, hi, step int)) { loopFlushing(b, c, 1<<30, body) }

// loopPaced flushes after every paced calls.
func loopPaced(b *meter, c client, body func(lo, hi, step int)) { loopFlushing(b, c, paced, body) }

func loopFlushing(b *meter, c client, every int, body func(lo, hi, step int)) {
	first := min(paced, every)
	body(0, first, 1)
	_ = c.Flush()
	b.start()
	for lo := 0; lo < b.N; lo += every {
		hi := min(b.N, lo+every)
		spread(hi-lo, func(i, end, step int) { body(lo+i, lo+end, step) })
		_ = c.Flush()
	}
	b.stop()
	b.calls += uint64(b.N + first)
	b.lost += lostCalls(c)
	_ = c.Close()
}

// spread makes n calls, divided among the processors.
func spread(n int, body func(lo, hi, step int)) {
	workers := runtime.GOMAXPROCS(0)
	if workers == 1 {
		body(0, n, 1)
		return
	}
	var all sync.WaitGroup
	for w := 0; w < workers; w++ {
		all.Add(1)
		go func() {
			defer all.Done()
			body(w, n, workers)
		}()
	}
	all.Wait()
}

// lostCalls counts packets that were dropped, and calls where the client counts those.
func lostCalls(c client) uint64 {
	switch c := c.(type) {
	case *weir.Client:
		t := c.GetTelemetry()
		return t.TotalPayloadsDropped + t.TotalDroppedOnReceive + c.Stats().Columns.DroppedPoints
	case *datadog.Client:
		t := c.GetTelemetry()
		return t.TotalPayloadsDropped + t.TotalDroppedOnReceive
	}
	return 0
}

// side is one client's part of a case.
type side func(b *meter)

type benchmark struct {
	name         string
	ours, theirs side
}

// targets are the ratios that were set before the client was written.
var targets = map[string]float64{
	"counter handle `Inc`, 5 tags, against `Count`":                         10,
	"gauge handle `Set`, 5 tags, against `Gauge`":                           10,
	"distribution handle `Observe`, 5 tags, packed, against `Distribution`": 8,
	"`Count`, 0 tags": 1.6, "`Count`, 2 tags": 2.2, "`Count`, 5 tags": 1.8, "`Count`, 10 tags": 1.5,
	"`Count`, 2 tags as a literal at the call":                3,
	"`Count`, 5 tags, 10,000 contexts in turn":                1.5,
	"`Distribution`, 5 tags, packed":                          3,
	"`Count`, 5 tags, not aggregated":                         2,
	"`Gauge` 123.456, 5 tags, not aggregated":                 2,
	"`Distribution` 12.3456, 5 tags, not packed":              2,
	"10,000 `Count`s of 10,000 contexts, 5 tags, and `Flush`": 8,
	"`New` and `Close`, UDP, default options":                 15,
}

func count(n int, o []weir.Option, d []datadog.Option) (side, side) { return countWith(loop, n, o, d) }

func countWith(loop func(*meter, client, func(lo, hi, step int)), n int, o []weir.Option, d []datadog.Option) (side,
	side) {
	return func(b *meter) {
			c := ours(b, o...)
			loop(b, c, func(i, end, step int) {
				for ; i < end; i += step {
					_ = c.Count(name, 1, tags[:n], 1)
				}
			})
		}, func(b *meter) {
			c := theirs(b, d...)
			loop(b, c, func(i, end, step int) {
				for ; i < end; i += step {
					_ = c.Count(name, 1, tags[:n], 1)
				}
			})
		}
}

var (
	plainOurs   = []weir.Option{weir.WithoutClientSideAggregation()}
	plainTheirs = []datadog.Option{datadog.WithoutClientSideAggregation()}
	packOurs    = []weir.Option{weir.WithExtendedClientSideAggregation()}
	packTheirs  = []datadog.Option{datadog.WithExtendedClientSideAggregation()}
)

func benchmarks() []benchmark {
	var list []benchmark
	add := func(name string, ours, theirs side) {
		list = append(list, benchmark{name: name, ours: ours, theirs: theirs})
	}

	_, peer := count(5, nil, nil)
	add("one atomic addition without any client, the floor of a counter handle, against `Count`, 5 tags",
		func(b *meter) {
			var cell atomic.Uint64
			b.start()
			for i := 0; i < b.N; i++ {
				cell.Add(1)
			}
			b.stop()
		}, peer)
	add("counter handle `Inc`, 5 tags, against `Count`", func(b *meter) {
		c := ours(b)
		h := c.NewCounter(name, tags[:5]...)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				h.Inc()
			}
		})
	}, peer)
	peerGauge := func(b *meter) {
		c := theirs(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Gauge(name, 123.456, tags[:5], 1)
			}
		})
	}
	add("gauge handle `Set`, 5 tags, against `Gauge`", func(b *meter) {
		c := ours(b)
		h := c.NewGauge(name, tags[:5]...)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				h.Set(123.456)
			}
		})
	}, peerGauge)
	peerDistribution := func(b *meter) {
		c := theirs(b, packTheirs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	}
	add("distribution handle `Observe`, 5 tags, packed, against `Distribution`", func(b *meter) {
		c := ours(b, packOurs...)
		h := c.NewDistribution(name, tags[:5]...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				h.Observe(12.3456)
			}
		})
	}, peerDistribution)
	add("locking and unlocking a mutex without any client, below the floor of a distribution handle, against "+
		"`Distribution`, 5 tags, packed", func(b *meter) {
		var mu sync.Mutex
		sum := 0.0
		b.start()
		for i := 0; i < b.N; i++ {
			mu.Lock()
			sum += 12.3456
			mu.Unlock()
		}
		b.stop()
		runtime.KeepAlive(sum)
	}, peerDistribution)
	// Durations as they are measured: with all the digits a float has.
	different := make([]float64, 1000)
	random := rand.New(rand.NewSource(1))
	for i := range different {
		different[i] = random.ExpFloat64() / 100
	}
	values := []string{"GET", "POST", "PUT", "HEAD"}
	add("label family `With(2 labels).Inc`, against `Count` with 2 tags", func(b *meter) {
		c := ours(b)
		v := c.NewCounterVec(name, "method", "zone")
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				v.With(values[i&3], "eu-1-b").Inc()
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		lists := make([][]string, 4)
		for i := range lists {
			lists[i] = []string{"method:" + values[i], "zone:eu-1-b"}
		}
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Count(name, 1, lists[i&3], 1)
			}
		})
	})

	add("distribution handle `Observe` of 1000 different values, packed, against `Distribution`", func(b *meter) {
		c := ours(b, packOurs...)
		h := c.NewDistribution(name, tags[:5]...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				h.Observe(different[i%1000])
			}
		})
	}, func(b *meter) {
		c := theirs(b, packTheirs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, different[i%1000], tags[:5], 1)
			}
		})
	})
	list = append(list, columnsBenchmarks(different, peerDistribution)...)
	for _, n := range []int{0, 2, 5, 10} {
		o, d := count(n, nil, nil)
		add("`Count`, "+strconv.Itoa(n)+" tags", o, d)
	}
	o, d := count(5, []weir.Option{weir.WithAggregatorShardCount(32)},
		[]datadog.Option{datadog.WithAggregatorShardCount(32)})
	add("`Count`, 5 tags, `WithAggregatorShardCount(32)`", o, d)
	add("`Count`, 2 tags as a literal at the call", func(b *meter) {
		c := ours(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Count(name, 1, []string{"env:prod-01", "region:eu-1"}, 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Count(name, 1, []string{"env:prod-01", "region:eu-1"}, 1)
			}
		})
	})
	users := make([]string, 1000)
	for i := range users {
		users[i] = "user:" + strconv.Itoa(i)
	}
	add("`Count`, one of 2 tags built at the call", func(b *meter) {
		c := ours(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Count(name, 1, []string{"env:prod-01", strings.Clone(users[i%1000])}, 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Count(name, 1, []string{"env:prod-01", strings.Clone(users[i%1000])}, 1)
			}
		})
	})
	names := namesOf(10000)
	add("`Count`, 5 tags, 10,000 contexts in turn", func(b *meter) {
		c := ours(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Count(names[i%len(names)], 1, tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Count(names[i%len(names)], 1, tags[:5], 1)
			}
		})
	})
	add("`Gauge` 123.456, 5 tags", func(b *meter) {
		c := ours(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Gauge(name, 123.456, tags[:5], 1)
			}
		})
	}, peerGauge)
	add("`Set`, 5 tags, one member", func(b *meter) {
		c := ours(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Set(name, "member", tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		loop(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Set(name, "member", tags[:5], 1)
			}
		})
	})
	add("`Distribution`, 5 tags, packed", func(b *meter) {
		c := ours(b, packOurs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	}, peerDistribution)
	add("`Distribution`, 5 tags, packed, at most 100 values", func(b *meter) {
		c := ours(b, append(packOurs[:1:1], weir.WithMaxSamplesPerContext(100))...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b, append(packTheirs[:1:1], datadog.WithMaxSamplesPerContext(100))...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	})
	add("`Timing`, 5 tags, packed", func(b *meter) {
		c := ours(b, packOurs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Timing(name, 12345*time.Microsecond, tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b, packTheirs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Timing(name, 12345*time.Microsecond, tags[:5], 1)
			}
		})
	})
	for _, n := range []int{0, 5, 10} {
		o, d := countWith(loopPaced, n, plainOurs, plainTheirs)
		add("`Count`, "+strconv.Itoa(n)+" tags, not aggregated", o, d)
	}
	add("`Gauge` 123.456, 5 tags, not aggregated", func(b *meter) {
		c := ours(b, plainOurs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Gauge(name, 123.456, tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b, plainTheirs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Gauge(name, 123.456, tags[:5], 1)
			}
		})
	})
	add("`Distribution` 12.3456, 5 tags, not packed", func(b *meter) {
		c := ours(b)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	})
	add("`Timing`, 5 tags, not packed", func(b *meter) {
		c := ours(b)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Timing(name, 12345*time.Microsecond, tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Timing(name, 12345*time.Microsecond, tags[:5], 1)
			}
		})
	})
	add("`Distribution`, 5 tags, channel mode", func(b *meter) {
		c := ours(b, weir.WithChannelMode())
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	}, func(b *meter) {
		c := theirs(b, datadog.WithChannelMode())
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(name, 12.3456, tags[:5], 1)
			}
		})
	})
	add("`Event`, 5 tags", func(b *meter) {
		c := ours(b)
		e := &weir.Event{Title: "deploy finished", Text: "version 1.2.3 is live", Tags: tags[:5]}
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Event(e)
			}
		})
	}, func(b *meter) {
		c := theirs(b)
		e := &datadog.Event{Title: "deploy finished", Text: "version 1.2.3 is live", Tags: tags[:5]}
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Event(e)
			}
		})
	})
	add("10,000 `Count`s of 10,000 contexts, 5 tags, and `Flush`", func(b *meter) {
		c := ours(b, weir.WithAggregationInterval(time.Hour))
		flushes(b, c.Flush, func(i int) { _ = c.Count(names[i], 1, tags[:5], 1) })
		c.Close()
	}, func(b *meter) {
		c := theirs(b, datadog.WithAggregationInterval(time.Hour))
		flushes(b, c.Flush, func(i int) { _ = c.Count(names[i], 1, tags[:5], 1) })
		c.Close()
	})
	add("the same with contexts never seen before", func(b *meter) {
		all := namesOf(10000)
		b.start()
		for n := 0; n < b.N; n++ {
			c := ours(b, weir.WithAggregationInterval(time.Hour))
			for i := range all {
				_ = c.Count(all[i], 1, tags[:5], 1)
			}
			c.Close()
		}
		b.stop()
	}, func(b *meter) {
		all := namesOf(10000)
		b.start()
		for n := 0; n < b.N; n++ {
			c := theirs(b, datadog.WithAggregationInterval(time.Hour))
			for i := range all {
				_ = c.Count(all[i], 1, tags[:5], 1)
			}
			c.Close()
		}
		b.stop()
	})
	add("`New` and `Close`, UDP, default options", func(b *meter) {
		b.start()
		for i := 0; i < b.N; i++ {
			c, err := weir.New("127.0.0.1:8125")
			if err != nil {
				panic(err)
			}
			c.Close()
		}
		b.stop()
	}, func(b *meter) {
		b.start()
		for i := 0; i < b.N; i++ {
			c, err := datadog.New("127.0.0.1:8125")
			if err != nil {
				panic(err)
			}
			c.Close()
		}
		b.stop()
	})
	return list
}

func namesOf(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = "service.request." + strconv.Itoa(i)
	}
	return all
}

// flushes counts 10,000 contexts and a flush as one operation, after a first round that makes them known.
func flushes(b *meter, flush func() error, call func(i int)) {
	round := func() {
		for i := 0; i < 10000; i++ {
			call(i)
		}
		_ = flush()
	}
	round()
	b.start()
	for n := 0; n < b.N; n++ {
		round()
	}
	b.stop()
}

// endpoint is the address of a receiver of columns in this process, which accepts everything. Its work is measured with
// the client's: one request for each flush.
var endpoint = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		panic(err)
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	accept := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
	go func() { _ = http.Serve(listener, http.HandlerFunc(accept)) }()
	return "http+unix://" + path
})

func oursColumns(b *meter) *weir.Client {
	c, err := weir.New(endpoint(), weir.WithoutDatagrams(), weir.WithoutOriginDetection(),
		weir.WithExtendedClientSideAggregation())
	if err != nil {
		panic(err)
	}
	return c
}

// columnsBenchmarks are calls that end in a sketch of the process. A flush is the end of a window, so a run is one.
func columnsBenchmarks(different []float64, peer side) []benchmark {
	handle := func(value func(i int) float64) side {
		return func(b *meter) {
			c := oursColumns(b)
			h := c.NewDistribution(name, tags[:5]...)
			loop(b, c, func(i, end, step int) {
				for ; i < end; i += step {
					h.Observe(value(i))
				}
			})
		}
	}
	const series = 1000
	random, spread := rand.New(rand.NewSource(1)), make([]float64, 4096)
	for i := range spread {
		spread[i] = math.Pow(10, 3*random.Float64())
	}
	names := namesOf(series)
	inTurn := func(c *weir.Client, loop func(*meter, client, func(lo, hi, step int)), b *meter) {
		handles := make([]*weir.Distribution, series)
		for i := range handles {
			handles[i] = c.NewDistribution(names[i], tags[:5]...)
		}
		observe := func(i, end, step int) {
			for ; i < end; i += step {
				handles[i%series].Observe(spread[i*7%len(spread)])
			}
		}
		// Sketches have reached their size after a window or two, and busy series have their lanes.
		if c.Stats().Columns.Active {
			for window := 0; window < 2; window++ {
				observe(0, 5000*series, 1)
				_ = c.Flush()
			}
		}
		loop(b, c, observe)
	}
	peerInTurn := func(b *meter) {
		c := theirs(b, packTheirs...)
		loopPaced(b, c, func(i, end, step int) {
			for ; i < end; i += step {
				_ = c.Distribution(names[i%series], spread[i*7%len(spread)], tags[:5], 1)
			}
		})
	}
	return []benchmark{
		{"distribution handle `Observe`, 5 tags, as columns, against `Distribution`",
			handle(func(int) float64 { return 12.3456 }), peer},
		{"distribution handle `Observe` of 1000 different values, as columns, against `Distribution`",
			handle(func(i int) float64 { return different[i%1000] }), func(b *meter) {
				c := theirs(b, packTheirs...)
				loopPaced(b, c, func(i, end, step int) {
					for ; i < end; i += step {
						_ = c.Distribution(name, different[i%1000], tags[:5], 1)
					}
				})
			}},
		{"distribution handle `Observe`, 1000 series in turn, values over three decades, as columns, against " +
			"`Distribution`", func(b *meter) { inTurn(oursColumns(b), loop, b) }, peerInTurn},
		{"distribution handle `Observe`, 1000 series in turn, values over three decades, packed, against " +
			"`Distribution`", func(b *meter) { inTurn(ours(b, packOurs...), loopPaced, b) }, peerInTurn},
	}
}
