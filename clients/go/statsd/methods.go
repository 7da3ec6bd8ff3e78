package statsd

import "time"

func (c *ClientEx) gaugeAt(name string, value float64, tags []string, rate float64, t time.Time,
	card Cardinality) error {
	if !finite(value) {
		return c.core.refuse(ErrInvalidValue)
	}
	var tmp [32]byte
	return c.timestamped(kindGauge, name, appendFloat(tmp[:0], value), tags, rate, t, card)
}

func (c *ClientEx) countAt(name string, value int64, tags []string, rate float64, t time.Time, card Cardinality) error {
	var tmp [24]byte
	return c.timestamped(kindCount, name, appendInt(tmp[:0], value), tags, rate, t, card)
}

// Gauge sends the value of something at this moment. With aggregation, which is the default, the last value before a
// flush is sent, and rate has no effect.
func (c *Client) Gauge(name string, value float64, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.gauge(name, value, tags, rate, c.clientEx.scope.card)
}

// GaugeWithTimestamp sends the value of something at a given second. It is never aggregated, neither here nor in the
// agent. A time that is zero or not after 1970 gives [InvalidTimestamp].
func (c *Client) GaugeWithTimestamp(name string, value float64, tags []string, rate float64,
	timestamp time.Time) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.gaugeAt(name, value, tags, rate, timestamp, c.clientEx.scope.card)
}

// Count adds to a counter. With aggregation, which is the default, the sum is sent at each flush, and rate has no
// effect.
func (c *Client) Count(name string, value int64, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.count(name, value, tags, rate, c.clientEx.scope.card)
}

// CountWithTimestamp adds to a counter at a given second. It is never aggregated, neither here nor in the agent. A
// time that is zero or not after 1970 gives [InvalidTimestamp].
func (c *Client) CountWithTimestamp(name string, value int64, tags []string, rate float64, timestamp time.Time) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.countAt(name, value, tags, rate, timestamp, c.clientEx.scope.card)
}

// Histogram sends a value whose distribution each agent summarises.
func (c *Client) Histogram(name string, value float64, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.sample(kindHistogram, name, value, tags, rate, c.clientEx.scope.card)
}

// Distribution sends a value whose distribution is summarised over all hosts.
func (c *Client) Distribution(name string, value float64, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.sample(kindDistribution, name, value, tags, rate, c.clientEx.scope.card)
}

// Decr subtracts one from a counter.
func (c *Client) Decr(name string, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.count(name, -1, tags, rate, c.clientEx.scope.card)
}

// Incr adds one to a counter.
func (c *Client) Incr(name string, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.count(name, 1, tags, rate, c.clientEx.scope.card)
}

// Set counts the distinct values. With aggregation, which is the default, each value is sent once per flush, and rate
// has no effect.
func (c *Client) Set(name string, value string, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.set(name, value, tags, rate, c.clientEx.scope.card)
}

// Timing sends a duration, in milliseconds with six decimals.
func (c *Client) Timing(name string, value time.Duration, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.sample(kindTiming, name, milliseconds(value), tags, rate, c.clientEx.scope.card)
}

// TimeInMilliseconds sends a duration given in milliseconds, with six decimals.
func (c *Client) TimeInMilliseconds(name string, value float64, tags []string, rate float64) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.sample(kindTiming, name, value, tags, rate, c.clientEx.scope.card)
}

// Event sends an event. It returns an error if [Event.Check] does.
func (c *Client) Event(e *Event) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.event(e, c.clientEx.scope.card)
}

// SimpleEvent sends an event that has only a title and a text.
func (c *Client) SimpleEvent(title, text string) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.event(NewEvent(title, text), c.clientEx.scope.card)
}

// ServiceCheck sends the result of a check. It returns an error if [ServiceCheck.Check] does.
func (c *Client) ServiceCheck(sc *ServiceCheck) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.serviceCheck(sc, c.clientEx.scope.card)
}

// SimpleServiceCheck sends the result of a check that has only a name and a status.
func (c *Client) SimpleServiceCheck(name string, status ServiceCheckStatus) error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.serviceCheck(NewServiceCheck(name, status), c.clientEx.scope.card)
}

// Flush returns when everything accepted before is written or counted as dropped: first aggregated metrics, then
// packets that are not full. Other goroutines may go on sending meanwhile.
func (c *Client) Flush() error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.flush()
}

// Close flushes, closes the transport and stops the client's goroutines. Only the first call does anything. Metrics
// sent while or after it runs may be lost.
func (c *Client) Close() error {
	if c == nil {
		return ErrNoClient
	}
	return c.clientEx.close()
}

// IsClosed says whether Close was called.
func (c *Client) IsClosed() bool {
	if c == nil {
		return true
	}
	return c.clientEx.closed.Load() || c.clientEx.core.isClosed.Load()
}

// GetTelemetry returns the client's counts since its creation, also if it does not send telemetry.
func (c *Client) GetTelemetry() Telemetry {
	if c == nil {
		return Telemetry{}
	}
	return c.clientEx.core.snapshot()
}

// Stats returns counts that [Telemetry] has no place for.
func (c *Client) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	return c.clientEx.core.stats()
}

// GetTransport returns "udp", "uds", "uds-stream", "tcp", "pipe" or "custom". For a "unix://" address it is "uds"
// until the type of the socket is known.
func (c *Client) GetTransport() string {
	if c == nil {
		return ""
	}
	return c.clientEx.core.sender.transport.GetTransportName()
}

// Gauge is [Client.Gauge] with extra parameters.
func (c *ClientEx) Gauge(name string, value float64, tags []string, rate float64, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.gauge(name, value, tags, rate, c.cardinalityOf(parameters))
}

// GaugeWithTimestamp is [Client.GaugeWithTimestamp] with extra parameters.
func (c *ClientEx) GaugeWithTimestamp(name string, value float64, tags []string, rate float64, timestamp time.Time,
	parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.gaugeAt(name, value, tags, rate, timestamp, c.cardinalityOf(parameters))
}

// Count is [Client.Count] with extra parameters.
func (c *ClientEx) Count(name string, value int64, tags []string, rate float64, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.count(name, value, tags, rate, c.cardinalityOf(parameters))
}

// CountWithTimestamp is [Client.CountWithTimestamp] with extra parameters.
func (c *ClientEx) CountWithTimestamp(name string, value int64, tags []string, rate float64, timestamp time.Time,
	parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.countAt(name, value, tags, rate, timestamp, c.cardinalityOf(parameters))
}

// Histogram is [Client.Histogram] with extra parameters.
func (c *ClientEx) Histogram(name string, value float64, tags []string, rate float64, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.sample(kindHistogram, name, value, tags, rate, c.cardinalityOf(parameters))
}

// Distribution is [Client.Distribution] with extra parameters.
func (c *ClientEx) Distribution(name string, value float64, tags []string, rate float64,
	parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.sample(kindDistribution, name, value, tags, rate, c.cardinalityOf(parameters))
}

// Decr is [Client.Decr] with extra parameters.
func (c *ClientEx) Decr(name string, tags []string, rate float64, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.count(name, -1, tags, rate, c.cardinalityOf(parameters))
}

// Incr is [Client.Incr] with extra parameters.
func (c *ClientEx) Incr(name string, tags []string, rate float64, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.count(name, 1, tags, rate, c.cardinalityOf(parameters))
}

// Set is [Client.Set] with extra parameters.
func (c *ClientEx) Set(name string, value string, tags []string, rate float64, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.set(name, value, tags, rate, c.cardinalityOf(parameters))
}

// Timing is [Client.Timing] with extra parameters.
func (c *ClientEx) Timing(name string, value time.Duration, tags []string, rate float64,
	parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.sample(kindTiming, name, milliseconds(value), tags, rate, c.cardinalityOf(parameters))
}

// TimeInMilliseconds is [Client.TimeInMilliseconds] with extra parameters.
func (c *ClientEx) TimeInMilliseconds(name string, value float64, tags []string, rate float64,
	parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.sample(kindTiming, name, value, tags, rate, c.cardinalityOf(parameters))
}

// Event is [Client.Event] with extra parameters.
func (c *ClientEx) Event(e *Event, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.event(e, c.cardinalityOf(parameters))
}

// SimpleEvent is [Client.SimpleEvent] with extra parameters.
func (c *ClientEx) SimpleEvent(title, text string, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.event(NewEvent(title, text), c.cardinalityOf(parameters))
}

// ServiceCheck is [Client.ServiceCheck] with extra parameters.
func (c *ClientEx) ServiceCheck(sc *ServiceCheck, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.serviceCheck(sc, c.cardinalityOf(parameters))
}

// SimpleServiceCheck is [Client.SimpleServiceCheck] with extra parameters.
func (c *ClientEx) SimpleServiceCheck(name string, status ServiceCheckStatus, parameters ...Parameter) error {
	if c == nil {
		return ErrNoClient
	}
	return c.serviceCheck(NewServiceCheck(name, status), c.cardinalityOf(parameters))
}

// Flush is [Client.Flush].
func (c *ClientEx) Flush() error {
	if c == nil {
		return ErrNoClient
	}
	return c.flush()
}

// Close is [Client.Close].
func (c *ClientEx) Close() error {
	if c == nil {
		return ErrNoClient
	}
	return c.close()
}

// IsClosed is [Client.IsClosed].
func (c *ClientEx) IsClosed() bool {
	if c == nil {
		return true
	}
	return c.closed.Load() || c.core.isClosed.Load()
}

// GetTelemetry is [Client.GetTelemetry].
func (c *ClientEx) GetTelemetry() Telemetry {
	if c == nil {
		return Telemetry{}
	}
	return c.core.snapshot()
}

// Stats is [Client.Stats].
func (c *ClientEx) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	return c.core.stats()
}

// GetTransport is [Client.GetTransport].
func (c *ClientEx) GetTransport() string {
	if c == nil {
		return ""
	}
	return c.core.sender.transport.GetTransportName()
}

func (*ClientEx) private() {}
