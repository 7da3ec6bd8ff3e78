package statsd

import "time"

// NoOpClient is a client that does nothing.
type NoOpClient struct{}

var _ ClientInterface = (*NoOpClient)(nil)

// Gauge does nothing.
func (*NoOpClient) Gauge(name string, value float64, tags []string, rate float64) error { return nil }

// GaugeWithTimestamp does nothing.
func (*NoOpClient) GaugeWithTimestamp(name string, value float64, tags []string, rate float64,
	timestamp time.Time) error {
	return nil
}

// Count does nothing.
func (*NoOpClient) Count(name string, value int64, tags []string, rate float64) error { return nil }

// CountWithTimestamp does nothing.
func (*NoOpClient) CountWithTimestamp(name string, value int64, tags []string, rate float64,
	timestamp time.Time) error {
	return nil
}

// Histogram does nothing.
func (*NoOpClient) Histogram(name string, value float64, tags []string, rate float64) error {
	return nil
}

// Distribution does nothing.
func (*NoOpClient) Distribution(name string, value float64, tags []string, rate float64) error {
	return nil
}

// Decr does nothing.
func (*NoOpClient) Decr(name string, tags []string, rate float64) error { return nil }

// Incr does nothing.
func (*NoOpClient) Incr(name string, tags []string, rate float64) error { return nil }

// Set does nothing.
func (*NoOpClient) Set(name string, value string, tags []string, rate float64) error { return nil }

// Timing does nothing.
func (*NoOpClient) Timing(name string, value time.Duration, tags []string, rate float64) error {
	return nil
}

// TimeInMilliseconds does nothing.
func (*NoOpClient) TimeInMilliseconds(name string, value float64, tags []string, rate float64) error {
	return nil
}

// Event does nothing.
func (*NoOpClient) Event(e *Event) error { return nil }

// SimpleEvent does nothing.
func (*NoOpClient) SimpleEvent(title, text string) error { return nil }

// ServiceCheck does nothing.
func (*NoOpClient) ServiceCheck(sc *ServiceCheck) error { return nil }

// SimpleServiceCheck does nothing.
func (*NoOpClient) SimpleServiceCheck(name string, status ServiceCheckStatus) error { return nil }

// Close does nothing.
func (*NoOpClient) Close() error { return nil }

// Flush does nothing.
func (*NoOpClient) Flush() error { return nil }

// IsClosed returns false.
func (*NoOpClient) IsClosed() bool { return false }

// GetTelemetry returns zeros.
func (*NoOpClient) GetTelemetry() Telemetry { return Telemetry{} }

// NoOpClientDirect is a [ClientDirect] that does nothing.
type NoOpClientDirect struct{ NoOpClient }

var _ ClientDirectInterface = (*NoOpClientDirect)(nil)

// DistributionSamples does nothing.
func (*NoOpClientDirect) DistributionSamples(name string, values []float64, tags []string, rate float64) error {
	return nil
}
