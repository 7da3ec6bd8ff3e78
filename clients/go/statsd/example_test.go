package statsd_test

import (
	"expvar"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/weir-dev/weir/clients/go/statsd"
)

// stdout shows packets instead of sending them, with their lines in order.
type stdout struct{}

func (stdout) Close() error { return nil }

func (stdout) Write(packet []byte) (int, error) {
	lines := strings.Split(strings.TrimSuffix(string(packet), "\n"), "\n")
	sort.Strings(lines)
	_, err := io.WriteString(os.Stdout, strings.Join(lines, "\n")+"\n")
	return len(packet), err
}

func newClient(options ...statsd.Option) *statsd.Client {
	client, err := statsd.NewWithWriter(stdout{}, append([]statsd.Option{statsd.WithoutTelemetry(),
		statsd.WithoutOriginDetection()}, options...)...)
	if err != nil {
		panic(err)
	}
	return client
}

func Example() {
	client, err := statsd.New("127.0.0.1:8125", statsd.WithNamespace("shop"), statsd.WithTags([]string{"env:prod"}))
	if err != nil {
		// The address or an option cannot be valid. That the agent is not there is no error.
		panic(err)
	}
	defer client.Close()

	_ = client.Incr("orders", []string{"country:ch"}, 1)
	_ = client.Gauge("queue.depth", 12, nil, 1)
	_ = client.Distribution("order.value", 99.5, []string{"country:ch"}, 1)
	_ = client.Timing("checkout", 250*time.Millisecond, nil, 1)
}

func ExampleClient_Count() {
	client := newClient(statsd.WithNamespace("shop"), statsd.WithTags([]string{"env:prod"}))
	_ = client.Count("items", 3, []string{"country:ch"}, 1)
	_ = client.Count("items", 4, []string{"country:ch"}, 1)
	_ = client.Close()
	// Output: shop.items:7|c|#env:prod,country:ch
}

// A handle is a metric bound once. Using it costs a few nanoseconds, however many tags it has.
func ExampleClient_NewCounter() {
	client := newClient()
	hits := client.NewCounter("cache.hits", "cache:users", "region:eu")
	for i := 0; i < 1000; i++ {
		hits.Inc()
	}
	_ = client.Close()
	// Output: cache.hits:1000|c|#cache:users,region:eu
}

// A family of handles finds the handle for label values without building tags.
func ExampleClient_NewDistributionVec() {
	client := newClient(statsd.WithExtendedClientSideAggregation())
	sizes := client.NewDistributionVec("response.size", "method", "code")
	sizes.With("GET", "200").Observe(1024)
	sizes.With("GET", "200").Observe(2048)
	sizes.With("POST", "500").Observe(64)
	_ = client.Close()
	// Output:
	// response.size:1024:2048|d|#method:GET,code:200
	// response.size:64|d|#method:POST,code:500
}

// A gauge handle can count a level up and down.
func ExampleGauge_Add() {
	client := newClient()
	inFlight := client.NewGauge("in_flight")
	inFlight.Add(1)
	inFlight.Add(1)
	inFlight.Add(-1)
	_ = client.Close()
	// Output: in_flight:1|g
}

func ExampleClient_Child() {
	client := newClient(statsd.WithNamespace("shop"), statsd.WithTags([]string{"env:prod"}))
	database := client.Child("db", "shard:7")
	_ = database.Incr("queries", []string{"kind:read"}, 1)
	_ = client.Close()
	// Output: shop.db.queries:1|c|#env:prod,shard:7,kind:read
}

func ExampleClient_CountWith() {
	client := newClient()
	for code := 200; code <= 201; code++ {
		_ = client.CountWith("responses", 1, statsd.StringTag("method", "GET"), statsd.IntTag("code", code))
	}
	_ = client.Close()
	// Output:
	// responses:1|c|#method:GET,code:200
	// responses:1|c|#method:GET,code:201
}

// Publish the client's telemetry where the process shows its variables.
func ExampleClient_GetTelemetry_expvar() {
	client := newClient()
	defer client.Close()
	if expvar.Get("statsd") == nil {
		expvar.Publish("statsd", expvar.Func(func() any {
			return struct {
				statsd.Telemetry
				statsd.Stats
			}{client.GetTelemetry(), client.Stats()}
		}))
	}
	_ = client.Incr("n", nil, 1)
	fmt.Println(strings.Contains(expvar.Get("statsd").String(), `"TotalMetricsCount":1`))
	_ = client.Flush()
	// Output:
	// true
	// n:1|c
}

// statusWriter remembers the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Measure counts the requests of a handler and times them. The pattern must not be the path, or there is a context for
// each path.
func Measure(client *statsd.Client, pattern string, next http.Handler) http.Handler {
	client = client.Child("http", "handler:"+pattern)
	inFlight := client.NewGauge("in_flight")
	requests := client.NewCounterVec("requests", "method", "code")
	duration := client.NewTimingVec("duration", "method", "code")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		inFlight.Add(1)
		defer inFlight.Add(-1)
		s := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(s, r)
		code := strconv.Itoa(s.status)
		requests.With(r.Method, code).Inc()
		duration.With(r.Method, code).Since(start)
	})
}

// A middleware for package net/http.
func Example_httpMiddleware() {
	client := newClient(statsd.WithExtendedClientSideAggregation())
	handler := Measure(client, "users", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("id") == "" {
			http.Error(w, "which user?", http.StatusBadRequest)
		}
	}))
	for _, path := range []string{"/users?id=1", "/users?id=2", "/users"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	fmt.Println(client.GetTelemetry().TotalMetricsTiming, "timings")
	// Output: 3 timings
}
