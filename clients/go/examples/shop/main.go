// Command shop is a service that only reports metrics: an example of each kind.
//
//	DD_DOGSTATSD_URL=unix:///var/run/weir.sock go run ./examples/shop -for 30s
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"os/signal"
	"syscall"
	"time"

	"github.com/weir-dev/weir/clients/go/statsd"
)

func main() {
	address := flag.String("address", "", "address of the agent [default: DD_DOGSTATSD_URL or DD_AGENT_HOST]")
	length := flag.Duration("for", 30*time.Second, "how long to run")
	pause := flag.Duration("pause", 5*time.Millisecond, "time between two orders")
	flag.Parse()
	if err := run(*address, *length, *pause); err != nil {
		log.Fatal(err)
	}
}

func run(address string, length, pause time.Duration) error {
	client, err := statsd.New(address, statsd.WithNamespace("shop"), statsd.WithTags([]string{"lang:go"}),
		statsd.WithAggregationInterval(time.Second),
		statsd.WithErrorHandler(func(err error) { log.Print(err) }))
	if err != nil {
		return err
	}
	deployed := statsd.NewEvent("Deployed the Go shop", "It runs for "+length.String())
	deployed.Tags = []string{"version:1"}
	if err := client.Event(deployed); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	s := newShop(client)
	for end := time.Now().Add(length); ctx.Err() == nil && time.Now().Before(end); time.Sleep(pause) {
		s.order()
	}
	if err := client.ServiceCheck(statsd.NewServiceCheck("shop.open", statsd.Ok)); err != nil {
		return err
	}
	err = client.Close()
	t := client.GetTelemetry()
	fmt.Printf("Go: %d metrics in %d packets, %d packets dropped\n", t.TotalMetrics, t.TotalPayloadsSent,
		t.TotalPayloadsDropped)
	return err
}

// shop has handles for its frequent metrics, which send without a lookup.
type shop struct {
	client *statsd.Client
	orders *statsd.CounterVec
	queue  *statsd.Gauge
	value  *statsd.Distribution
}

func newShop(client *statsd.Client) *shop {
	return &shop{client, client.NewCounterVec("orders", "country", "plan"), client.NewGauge("queue.length"),
		client.NewDistribution("order.value", "currency:eur")}
}

func (s *shop) order() {
	country := []string{"at", "ch", "de"}[rand.Intn(3)]
	plan := []string{"free", "pro"}[rand.Intn(2)]
	s.orders.With(country, plan).Inc()
	s.queue.Add(float64(rand.Intn(3) - 1))
	s.value.Observe(20 + 15*rand.ExpFloat64())
	// Rare metrics need no handle.
	_ = s.client.Set("visitors", fmt.Sprint("visitor-", rand.Intn(500)), []string{"country:" + country}, 1)
	_ = s.client.Timing("request.time", time.Duration(rand.ExpFloat64()*float64(30*time.Millisecond)), nil, 1)
}
