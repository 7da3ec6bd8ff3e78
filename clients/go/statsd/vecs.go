package statsd

import "strings"

// CounterVec is a family of counters that differ in the values of labels.
type CounterVec struct{ vec *vec[Counter] }

// NewCounterVec returns the family of counters with this name whose tags are LABEL:VALUE for these labels. Make it once
// and keep it.
func (c *Client) NewCounterVec(name string, labels ...string) *CounterVec {
	name = strings.Clone(name)
	return &CounterVec{newVec(c, labels, func(tags []string) (*Counter, *handle) {
		h := c.NewCounter(name, tags...)
		if h == nil {
			return nil, nil
		}
		return h, &h.handle
	})}
}

// With returns the counter for label values, in the order of the labels. It panics if their number differs from that of
// the labels.
func (v *CounterVec) With(values ...string) *Counter { return v.vec.with(values) }

// FloatCounterVec is a family of float counters that differ in the values of labels.
type FloatCounterVec struct{ vec *vec[FloatCounter] }

// NewFloatCounterVec returns the family of float counters with this name whose tags are LABEL:VALUE for these labels.
// Make it once and keep it.
func (c *Client) NewFloatCounterVec(name string, labels ...string) *FloatCounterVec {
	name = strings.Clone(name)
	return &FloatCounterVec{newVec(c, labels, func(tags []string) (*FloatCounter, *handle) {
		h := c.NewFloatCounter(name, tags...)
		if h == nil {
			return nil, nil
		}
		return h, &h.handle
	})}
}

// With returns the float counter for label values, in the order of the labels. It panics if their number differs from
// that of the labels.
func (v *FloatCounterVec) With(values ...string) *FloatCounter { return v.vec.with(values) }

// GaugeVec is a family of gauges that differ in the values of labels.
type GaugeVec struct{ vec *vec[Gauge] }

// NewGaugeVec returns the family of gauges with this name whose tags are LABEL:VALUE for these labels. Make it once and
// keep it.
func (c *Client) NewGaugeVec(name string, labels ...string) *GaugeVec {
	name = strings.Clone(name)
	return &GaugeVec{newVec(c, labels, func(tags []string) (*Gauge, *handle) {
		h := c.NewGauge(name, tags...)
		if h == nil {
			return nil, nil
		}
		return h, &h.handle
	})}
}

// With returns the gauge for label values, in the order of the labels. It panics if their number differs from that of
// the labels.
func (v *GaugeVec) With(values ...string) *Gauge { return v.vec.with(values) }

// HistogramVec is a family of histograms that differ in the values of labels.
type HistogramVec struct{ vec *vec[Histogram] }

// NewHistogramVec returns the family of histograms with this name whose tags are LABEL:VALUE for these labels. Make it
// once and keep it.
func (c *Client) NewHistogramVec(name string, labels ...string) *HistogramVec {
	name = strings.Clone(name)
	return &HistogramVec{newVec(c, labels, func(tags []string) (*Histogram, *handle) {
		h := c.NewHistogram(name, tags...)
		if h == nil {
			return nil, nil
		}
		return h, &h.handle
	})}
}

// With returns the histogram for label values, in the order of the labels. It panics if their number differs from that
// of the labels.
func (v *HistogramVec) With(values ...string) *Histogram { return v.vec.with(values) }

// DistributionVec is a family of distributions that differ in the values of labels.
type DistributionVec struct{ vec *vec[Distribution] }

// NewDistributionVec returns the family of distributions with this name whose tags are LABEL:VALUE for these labels.
// Make it once and keep it.
func (c *Client) NewDistributionVec(name string, labels ...string) *DistributionVec {
	name = strings.Clone(name)
	return &DistributionVec{newVec(c, labels, func(tags []string) (*Distribution, *handle) {
		h := c.NewDistribution(name, tags...)
		if h == nil {
			return nil, nil
		}
		return h, &h.handle
	})}
}

// With returns the distribution for label values, in the order of the labels. It panics if their number differs from
// that of the labels.
func (v *DistributionVec) With(values ...string) *Distribution { return v.vec.with(values) }

// TimingVec is a family of timings that differ in the values of labels.
type TimingVec struct{ vec *vec[Timing] }

// NewTimingVec returns the family of timings with this name whose tags are LABEL:VALUE for these labels. Make it once
// and keep it.
func (c *Client) NewTimingVec(name string, labels ...string) *TimingVec {
	name = strings.Clone(name)
	return &TimingVec{newVec(c, labels, func(tags []string) (*Timing, *handle) {
		h := c.NewTiming(name, tags...)
		if h == nil {
			return nil, nil
		}
		return h, &h.handle
	})}
}

// With returns the timing for label values, in the order of the labels. It panics if their number differs from that of
// the labels.
func (v *TimingVec) With(values ...string) *Timing { return v.vec.with(values) }

// SetVec is a family of sets that differ in the values of labels.
type SetVec struct{ vec *vec[Set] }

// NewSetVec returns the family of sets with this name whose tags are LABEL:VALUE for these labels. Make it once and
// keep it.
func (c *Client) NewSetVec(name string, labels ...string) *SetVec {
	name = strings.Clone(name)
	return &SetVec{newVec(c, labels, func(tags []string) (*Set, *handle) {
		h := c.NewSet(name, tags...)
		if h == nil {
			return nil, nil
		}
		return h, &h.handle
	})}
}

// With returns the set for label values, in the order of the labels. It panics if their number differs from that of the
// labels.
func (v *SetVec) With(values ...string) *Set { return v.vec.with(values) }
