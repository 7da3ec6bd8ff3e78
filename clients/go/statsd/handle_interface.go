package statsd

import "time"

// HandleInterface makes handles: [Client] and [NoOpClient]. It does not grow. The handles themselves are
// structs, so that a call through one is a few instructions; where they must be replaced by doubles, keep them as
// [CounterInterface] and the like.
type HandleInterface interface {
	NewCounter(name string, tags ...string) *Counter
	NewFloatCounter(name string, tags ...string) *FloatCounter
	NewGauge(name string, tags ...string) *Gauge
	NewHistogram(name string, tags ...string) *Histogram
	NewDistribution(name string, tags ...string) *Distribution
	NewTiming(name string, tags ...string) *Timing
	NewSet(name string, tags ...string) *Set

	NewCounterVec(name string, labels ...string) *CounterVec
	NewFloatCounterVec(name string, labels ...string) *FloatCounterVec
	NewGaugeVec(name string, labels ...string) *GaugeVec
	NewHistogramVec(name string, labels ...string) *HistogramVec
	NewDistributionVec(name string, labels ...string) *DistributionVec
	NewTimingVec(name string, labels ...string) *TimingVec
	NewSetVec(name string, labels ...string) *SetVec
}

// CounterInterface has the methods of a [Counter]. As with all handles, a nil *Counter does nothing.
type CounterInterface interface {
	Inc()
	Add(n int64)
}

// FloatCounterInterface has the methods of a [FloatCounter].
type FloatCounterInterface interface{ Add(v float64) }

// GaugeInterface has the methods of a [Gauge].
type GaugeInterface interface {
	Set(v float64)
	Add(v float64)
}

// ObserverInterface has the methods of a [Histogram] and of a [Distribution].
type ObserverInterface interface{ Observe(v float64) }

// TimingInterface has the methods of a [Timing].
type TimingInterface interface {
	Observe(d time.Duration)
	Since(start time.Time)
}

// SetInterface has the methods of a [Set].
type SetInterface interface{ Add(member string) }

var (
	_ HandleInterface       = (*Client)(nil)
	_ HandleInterface       = (*NoOpClient)(nil)
	_ CounterInterface      = (*Counter)(nil)
	_ FloatCounterInterface = (*FloatCounter)(nil)
	_ GaugeInterface        = (*Gauge)(nil)
	_ ObserverInterface     = (*Histogram)(nil)
	_ ObserverInterface     = (*Distribution)(nil)
	_ TimingInterface       = (*Timing)(nil)
	_ SetInterface          = (*Set)(nil)
)

// nobody is the client behind the handles of a [NoOpClient].
var nobody *Client

// NewCounter returns a handle that does nothing.
func (*NoOpClient) NewCounter(string, ...string) *Counter { return nil }

// NewFloatCounter returns a handle that does nothing.
func (*NoOpClient) NewFloatCounter(string, ...string) *FloatCounter { return nil }

// NewGauge returns a handle that does nothing.
func (*NoOpClient) NewGauge(string, ...string) *Gauge { return nil }

// NewHistogram returns a handle that does nothing.
func (*NoOpClient) NewHistogram(string, ...string) *Histogram { return nil }

// NewDistribution returns a handle that does nothing.
func (*NoOpClient) NewDistribution(string, ...string) *Distribution { return nil }

// NewTiming returns a handle that does nothing.
func (*NoOpClient) NewTiming(string, ...string) *Timing { return nil }

// NewSet returns a handle that does nothing.
func (*NoOpClient) NewSet(string, ...string) *Set { return nil }

// NewCounterVec returns a family whose handles do nothing.
func (*NoOpClient) NewCounterVec(name string, labels ...string) *CounterVec {
	return nobody.NewCounterVec(name, labels...)
}

// NewFloatCounterVec returns a family whose handles do nothing.
func (*NoOpClient) NewFloatCounterVec(name string, labels ...string) *FloatCounterVec {
	return nobody.NewFloatCounterVec(name, labels...)
}

// NewGaugeVec returns a family whose handles do nothing.
func (*NoOpClient) NewGaugeVec(name string, labels ...string) *GaugeVec {
	return nobody.NewGaugeVec(name, labels...)
}

// NewHistogramVec returns a family whose handles do nothing.
func (*NoOpClient) NewHistogramVec(name string, labels ...string) *HistogramVec {
	return nobody.NewHistogramVec(name, labels...)
}

// NewDistributionVec returns a family whose handles do nothing.
func (*NoOpClient) NewDistributionVec(name string, labels ...string) *DistributionVec {
	return nobody.NewDistributionVec(name, labels...)
}

// NewTimingVec returns a family whose handles do nothing.
func (*NoOpClient) NewTimingVec(name string, labels ...string) *TimingVec {
	return nobody.NewTimingVec(name, labels...)
}

// NewSetVec returns a family whose handles do nothing.
func (*NoOpClient) NewSetVec(name string, labels ...string) *SetVec {
	return nobody.NewSetVec(name, labels...)
}
