package statsd

import "time"

// ClientInterface has the common methods of [Client], [NoOpClient] and the doubles in the mocks module. It does not
// grow: new methods are on [Client] only, so that an implementation elsewhere keeps compiling.
type ClientInterface interface {
	// Gauge sends the value of something at this moment.
	Gauge(name string, value float64, tags []string, rate float64) error
	// GaugeWithTimestamp sends the value of something at a given second. It is never aggregated, neither here nor in
	// the agent.
	GaugeWithTimestamp(name string, value float64, tags []string, rate float64, timestamp time.Time) error
	// Count adds to a counter.
	Count(name string, value int64, tags []string, rate float64) error
	// CountWithTimestamp adds to a counter at a given second. It is never aggregated, neither here nor in the agent.
	CountWithTimestamp(name string, value int64, tags []string, rate float64, timestamp time.Time) error
	// Histogram sends a value whose distribution each agent summarises.
	Histogram(name string, value float64, tags []string, rate float64) error
	// Distribution sends a value whose distribution is summarised over all hosts.
	Distribution(name string, value float64, tags []string, rate float64) error
	// Decr subtracts one from a counter.
	Decr(name string, tags []string, rate float64) error
	// Incr adds one to a counter.
	Incr(name string, tags []string, rate float64) error
	// Set counts the distinct values.
	Set(name string, value string, tags []string, rate float64) error
	// Timing sends a duration.
	Timing(name string, value time.Duration, tags []string, rate float64) error
	// TimeInMilliseconds sends a duration given in milliseconds.
	TimeInMilliseconds(name string, value float64, tags []string, rate float64) error
	// Event sends an event.
	Event(e *Event) error
	// SimpleEvent sends an event that has only a title and a text.
	SimpleEvent(title, text string) error
	// ServiceCheck sends the result of a check.
	ServiceCheck(sc *ServiceCheck) error
	// SimpleServiceCheck sends the result of a check that has only a name and a status.
	SimpleServiceCheck(name string, status ServiceCheckStatus) error
	// Close flushes and closes the transport. Only the first call does anything.
	Close() error
	// Flush returns when all that was accepted before is written or counted as dropped.
	Flush() error
	// IsClosed says whether Close was called.
	IsClosed() bool
	// GetTelemetry returns the client's counts since its creation.
	GetTelemetry() Telemetry
}

// ClientDirectInterface has the methods that [ClientDirect] adds to [ClientInterface].
type ClientDirectInterface interface {
	DistributionSamples(name string, values []float64, tags []string, rate float64) error
}
