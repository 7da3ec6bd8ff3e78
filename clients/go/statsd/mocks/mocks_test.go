package mock_statsd

import (
	"errors"
	"testing"

	"github.com/golang/mock/gomock"
	"github.com/weir-dev/weir/clients/go/statsd"
)

var (
	_ statsd.ClientInterface       = (*MockClientInterface)(nil)
	_ statsd.ClientDirectInterface = (*MockClientDirectInterface)(nil)
)

func TestDoubles(t *testing.T) {
	ctrl := gomock.NewController(t)
	c := NewMockClientInterface(ctrl)
	want := errors.New("from the double")
	c.EXPECT().Count("n", int64(1), []string{"a:1"}, 1.0).Return(want)
	if err := c.Count("n", 1, []string{"a:1"}, 1); err != want {
		t.Errorf("Count returns %v", err)
	}
	d := NewMockClientDirectInterface(ctrl)
	d.EXPECT().DistributionSamples("d", []float64{1, 2}, gomock.Nil(), 0.5)
	if err := d.DistributionSamples("d", []float64{1, 2}, nil, 0.5); err != nil {
		t.Errorf("DistributionSamples returns %v", err)
	}
}
