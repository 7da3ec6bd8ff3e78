// Columns and the rest of a client: what goes into a window, and when.

package statsd

import (
	"fmt"
	"time"
)

// part says what series a flush is about.
type part uint8

const (
	flushDatagrams part = 1 << iota
	flushColumns
	flushAll = flushDatagrams | flushColumns
)

// idleLimit is the number of flushes that series may be idle, by what flushes them.
type idleLimit struct{ datagrams, columns uint32 }

func (l idleLimit) of(c *core, x *series) uint32 {
	if c.partOf(x.kind) == flushColumns {
		return l.columns
	}
	return l.datagrams
}

// isColumn says whether a kind goes as columns if the agent takes them.
func (c *core) isColumn(k kind) bool {
	return c.columns != nil && (k == kindCount || k == kindGauge || k == kindDistribution || k == kindFloatCount)
}

func (c *core) partOf(k kind) part {
	if c.isColumn(k) {
		return flushColumns
	}
	return flushDatagrams
}

// columnsActive says whether these kinds go as columns now.
func (c *core) columnsActive() bool { return c.columns != nil && c.columns.active() }

// sentAs returns the kind as which values of a kind are sent.
func (c *core) sentAs(k kind) kind {
	if k == kindTiming && c.timingsAsDistribution {
		return kindDistribution
	}
	return k
}

// ticked returns what is flushed at the interval of aggregation. Columns are flushed at the end of their window, and
// nothing as long as it is not known whether the agent takes them.
func (c *core) ticked() part {
	if c.columns == nil || c.columns.presence() == absent {
		return flushAll
	}
	return flushDatagrams
}

// windowEnded returns what is flushed at the end of a window.
func (c *core) windowEnded() part {
	if c.columns.active() {
		return flushColumns
	}
	return 0
}

// untilNextWindow returns the time to the end of the window.
func untilNextWindow(now time.Time) time.Duration {
	const length = windowSeconds * time.Second
	return max(length-time.Duration(now.UnixNano()%int64(length)), time.Millisecond)
}

// sketchValue adds a value with its sample rate to the sketch of a series. The caller holds x.mu.
func (m *store) sketchValue(v, rate float64) {
	if m.sketch == nil {
		m.sketch = newSketch()
	}
	if rate < 1 {
		m.sketch.addSampled(v, rate)
		return
	}
	m.sketch.add(v)
}

// sketchValues adds values without a sample rate. The caller holds x.mu.
func (m *store) sketchValues(values []float64) {
	if m.sketch == nil {
		m.sketch = newSketch()
	}
	m.sketch.addEach(values)
}

// flushValues writes the values of a series of a packed kind. Some may have been collected before it was known that the
// agent takes columns, or before it ceased to. The caller holds x.mu.
func (c *core) flushValues(w *worker, x *series) {
	m := x.more.Load()
	if x.kind == kindDistribution && c.columnsActive() && len(m.values) > 0 {
		values, rate := x.takeValues()
		for _, v := range values {
			m.sketchValue(v, rate)
		}
		m.values = nil
	}
	if m.sketched = 0; m.sketch != nil && m.sketch.count > 0 {
		c.columns.window().addSketch(sketchPoint{x.identity(), m.sketch.take(&c.columns.room)})
	}
	if len(m.values) > 0 {
		values, rate := x.takeValues()
		c.oversized.Add(uint64(w.packed(x, values, rate)))
	}
}

// sketchSamples adds values that the caller has sampled, if they go as columns.
func (c *ClientEx) sketchSamples(name string, values []float64, tags []string, rate float64, card Cardinality) (bool,
	error) {
	if c.core.columns == nil || c.core.columns.presence() == absent || name == "" && c.scope.prefix == "" {
		return false, nil
	}
	for _, v := range values {
		if !finite(v) {
			return false, nil
		}
	}
	key := c.scope.key(kindDistribution, card)
	if rate < 1 && rate > 0 {
		key = key.sampled(rate)
	}
	x := c.scope.lookup(key, name, tags)
	if x == nil || !x.usable {
		return false, nil
	}
	for _, v := range values {
		x.observe(v)
	}
	return true, nil
}

// columnarAddresses sets the address of the endpoint and returns the one for datagrams.
func (o *Options) columnarAddresses(addr string) (datagrams string, err error) {
	switch {
	case isColumnsAddress(addr):
		o.columnar, o.columnarAddr = true, addr
		if datagrams = resolveAddress(o.datagramAddr); o.datagramAddr == "" || isColumnsAddress(datagrams) {
			datagrams = datagramAddress(addr)
		}
		return datagrams, nil
	case o.columnar && o.columnarAddr == "":
		if addr == "" {
			return "", ErrNoAddress
		}
		o.columnarAddr, err = columnsAddress(addr)
	}
	if o.withoutDatagrams && !o.columnar {
		return "", fmt.Errorf("statsd: WithoutDatagrams needs the address of an endpoint for columns")
	}
	return addr, err
}

// startColumns prepares columns if the client has an endpoint for them.
func (c *core) startColumns(o *Options, local, external string) error {
	c.timingsAsDistribution = o.timingsAsDistribution
	if !o.columnar {
		return nil
	}
	if o.plain {
		return fmt.Errorf("statsd: plain StatsD has no columns")
	}
	e, err := newEndpoint(o.columnarAddr, local, external, o)
	if err != nil {
		return err
	}
	c.columns = newColumns(e, o.columnarBytes, c.handle)
	c.untilWindowEnds = o.untilWindowEnds
	return nil
}

// noDatagrams refuses packets.
type noDatagrams struct{}

func (noDatagrams) Write([]byte) (int, error) { return 0, ErrNoDatagrams }
func (noDatagrams) Close() error              { return nil }
func (noDatagrams) GetTransportName() string  { return transportCustom }
