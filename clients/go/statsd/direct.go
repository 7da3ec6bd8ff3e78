package statsd

import "io"

// ClientDirectInterface has the methods that [ClientDirect] adds to [ClientInterface].
type ClientDirectInterface interface {
	DistributionSamples(name string, values []float64, tags []string, rate float64) error
}

// ClientDirect is a [Client] that also sends values which the caller has collected and sampled.
type ClientDirect struct {
	*Client
}

var (
	_ ClientDirectInterface = (*ClientDirect)(nil)
	_ ClientInterface       = (*ClientDirect)(nil)
)

// NewDirect is [New] for a [ClientDirect].
func NewDirect(addr string, options ...Option) (*ClientDirect, error) {
	c, err := New(addr, options...)
	if err != nil {
		return nil, err
	}
	return &ClientDirect{c}, nil
}

// NewDirectWithWriter is [NewWithWriter] for a [ClientDirect].
func NewDirectWithWriter(writer io.WriteCloser, options ...Option) (*ClientDirect, error) {
	c, err := NewWithWriter(writer, options...)
	if err != nil {
		return nil, err
	}
	return &ClientDirect{c}, nil
}

// DistributionSamples sends values of a distribution, packed into few messages and without being aggregated. The rate
// says how they were sampled; nothing is left out because of it. One value that is not finite refuses them all.
func (c *ClientDirect) DistributionSamples(name string, values []float64, tags []string, rate float64) error {
	if c == nil || c.Client == nil {
		return ErrNoClient
	}
	if done, err := c.clientEx.sketchSamples(name, values, tags, rate, c.clientEx.scope.card); done {
		return err
	}
	return c.clientEx.distributionSamples(kindDistribution, name, values, tags, rate, c.clientEx.scope.card)
}
