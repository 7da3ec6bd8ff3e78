package statsdtest_test

import (
	"testing"

	"github.com/weir-dev/weir/clients/go/statsd"
	"github.com/weir-dev/weir/clients/go/statsd/statsdtest"
)

// Checkout is the code under test.
func Checkout(client statsd.ClientInterface, items int) {
	_ = client.Count("items", int64(items), []string{"country:ch"}, 1)
	_ = client.Distribution("basket", float64(items), nil, 1)
}

func TestCheckout(t *testing.T) {
	capture := statsdtest.New(t)
	Checkout(capture.Client, 3)
	Checkout(capture.Client, 4)
	if got := capture.Total("items", "country:ch"); got != 7 {
		t.Errorf("%v items were counted", got)
	}
	if got := capture.Values("basket"); len(got) != 2 || got[0] != 3 {
		t.Errorf("baskets are %v", got)
	}
}
