package statsd

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// OptimalUDPPayloadSize is the default packet size, in bytes, over UDP: it fits an Ethernet frame of 1500 bytes with
// room for the headers of tunnels, so a packet is not fragmented on the way.
const OptimalUDPPayloadSize = 1432

// MaxUDPPayloadSize is the largest packet, in bytes, that fits a UDP datagram with the largest IP header.
const MaxUDPPayloadSize = 65467

// DefaultUDPBufferPoolSize is the number of packet buffers kept for reuse, and of packets that may wait, over UDP.
const DefaultUDPBufferPoolSize = 2048

// DefaultUDSBufferPoolSize is the number of packet buffers kept for reuse, and of packets that may wait, over Unix
// sockets.
const DefaultUDSBufferPoolSize = 512

// DefaultMaxAgentPayloadSize is the default packet size, in bytes, over Unix sockets: the default receive buffer of
// agents.
const DefaultMaxAgentPayloadSize = 8192

// UnixAddressPrefix starts the address of a Unix socket whose type, datagram or stream, is found out when connecting.
const UnixAddressPrefix = "unix://"

// UnixAddressDatagramPrefix starts the address of a Unix datagram socket.
const UnixAddressDatagramPrefix = "unixgram://"

// UnixAddressStreamPrefix starts the address of a Unix stream socket.
const UnixAddressStreamPrefix = "unixstream://"

// WindowsPipeAddressPrefix starts the address of a Windows named pipe.
const WindowsPipeAddressPrefix = `\\.\pipe\`

// AddressPrefixes lists the prefixes that say which transport an address means. An address without one is a UDP
// address.
var AddressPrefixes = []string{UnixAddressPrefix, UnixAddressDatagramPrefix, UnixAddressStreamPrefix,
	WindowsPipeAddressPrefix}

type noClientErr string

func (e noClientErr) Error() string { return string(e) }

// ErrNoClient is returned by the methods of a nil client.
const ErrNoClient = noClientErr("statsd client is nil")

type invalidTimestampErr string

func (e invalidTimestampErr) Error() string { return string(e) }

// InvalidTimestamp is returned when the time of a timestamped metric is zero or not after 1970.
const InvalidTimestamp = invalidTimestampErr("invalid timestamp")

// MessageTooLongError is returned for a message that does not fit a packet, see [WithMaxBytesPerPayload].
type MessageTooLongError struct{}

func (MessageTooLongError) Error() string {
	return "message too long. See 'WithMaxBytesPerPayload' documentation."
}

type invalidValueErr string

func (e invalidValueErr) Error() string { return string(e) }

// Errors for metrics an agent would refuse. They are not sent; [Stats] counts them as Invalid.
const (
	// ErrInvalidValue is returned for a value that is not finite and for an empty set member.
	ErrInvalidValue = invalidValueErr("statsd: value must be finite, and a set member must not be empty")
	// ErrEmptyName is returned for a metric without a name.
	ErrEmptyName = invalidValueErr("statsd: metric name is empty")
	// ErrNotPlain is returned for metrics that plain StatsD cannot express, see [WithPlainStatsD].
	ErrNotPlain = invalidValueErr("statsd: events, service checks and timestamps do not exist in plain StatsD")
)

// ErrorInputChannelFull is returned and given to the error handler when channel mode drops a metric.
type ErrorInputChannelFull struct {
	// Metric describes the dropped metric.
	Metric metric
	// ChannelSize is the number of waiting messages.
	ChannelSize int
	Msg         string
}

func (e ErrorInputChannelFull) Error() string { return e.Msg }

// ErrorSenderChannelFull is given to the error handler when a packet is dropped because too many wait to be sent.
type ErrorSenderChannelFull struct {
	// LostElements is the number of messages in the packet.
	LostElements int
	// ChannelSize is the number of waiting packets.
	ChannelSize int
	Msg         string
}

func (e *ErrorSenderChannelFull) Error() string { return e.Msg }

// metric describes a message in errors.
type metric struct {
	kind kind
	name string
	tags []string
}

func newMetric(k kind, name string, tags []string) metric {
	m := metric{kind: k, name: strings.Clone(name)}
	for _, t := range tags {
		m.tags = append(m.tags, strings.Clone(t))
	}
	return m
}

func (m metric) String() string {
	return fmt.Sprintf("%s %s %v", kindName[m.kind], m.name, m.tags)
}

// ErrorHandler is called with errors that have no caller to return to. It may be called from several goroutines and
// from inside a metric call; it may use the client.
type ErrorHandler func(error)

// Parameter is an extra argument of the methods of [ClientEx]. [Cardinality] is the only one understood; others are
// ignored.
type Parameter interface{}

// Cardinality says how specific the tags are that the agent adds from the sender's origin.
type Cardinality int

const (
	// CardinalityNotSet leaves the choice to the agent.
	CardinalityNotSet Cardinality = iota
	// CardinalityNone asks for no origin tags.
	CardinalityNone
	// CardinalityLow asks for tags with few values, such as the host or the cluster.
	CardinalityLow
	// CardinalityOrchestrator adds tags of the size of pods or tasks.
	CardinalityOrchestrator
	// CardinalityHigh adds tags of the size of containers or requests.
	CardinalityHigh
)

func (c Cardinality) isValid() bool { return c >= CardinalityNotSet && c <= CardinalityHigh }

// String returns the word used on the wire, empty when not set.
func (c Cardinality) String() string {
	switch c {
	case CardinalityNone:
		return "none"
	case CardinalityLow:
		return "low"
	case CardinalityOrchestrator:
		return "orchestrator"
	case CardinalityHigh:
		return "high"
	}
	return ""
}

func parseCardinality(word string) Cardinality {
	word = strings.ToLower(word)
	for c := CardinalityNone; c <= CardinalityHigh; c++ {
		if c.String() == word {
			return c
		}
	}
	return CardinalityNotSet
}

func cardinalityFromEnvironment() Cardinality {
	for _, key := range []string{"DD_CARDINALITY", "DATADOG_CARDINALITY"} {
		if c := parseCardinality(os.Getenv(key)); c != CardinalityNotSet {
			return c
		}
	}
	return CardinalityNotSet
}

func (c *ClientEx) cardinalityOf(parameters []Parameter) Cardinality {
	for _, p := range parameters {
		if card, ok := p.(Cardinality); ok && card.isValid() {
			return card
		}
	}
	return c.scope.card
}

// Transport writes packets. One call of Write is one packet.
type Transport interface {
	io.WriteCloser

	// GetTransportName returns "udp", "uds", "uds-stream", "tcp", "pipe" or "custom".
	GetTransportName() string
}

// ClientInterfaceEx is [ClientInterface] with extra parameters. It cannot be implemented elsewhere, so it may grow.
type ClientInterfaceEx interface {
	Gauge(name string, value float64, tags []string, rate float64, parameters ...Parameter) error
	GaugeWithTimestamp(name string, value float64, tags []string, rate float64, timestamp time.Time,
		parameters ...Parameter) error
	Count(name string, value int64, tags []string, rate float64, parameters ...Parameter) error
	CountWithTimestamp(name string, value int64, tags []string, rate float64, timestamp time.Time,
		parameters ...Parameter) error
	Histogram(name string, value float64, tags []string, rate float64, parameters ...Parameter) error
	Distribution(name string, value float64, tags []string, rate float64, parameters ...Parameter) error
	Decr(name string, tags []string, rate float64, parameters ...Parameter) error
	Incr(name string, tags []string, rate float64, parameters ...Parameter) error
	Set(name string, value string, tags []string, rate float64, parameters ...Parameter) error
	Timing(name string, value time.Duration, tags []string, rate float64, parameters ...Parameter) error
	TimeInMilliseconds(name string, value float64, tags []string, rate float64, parameters ...Parameter) error
	Event(e *Event, parameters ...Parameter) error
	SimpleEvent(title, text string, parameters ...Parameter) error
	ServiceCheck(sc *ServiceCheck, parameters ...Parameter) error
	SimpleServiceCheck(name string, status ServiceCheckStatus, parameters ...Parameter) error
	Close() error
	Flush() error
	IsClosed() bool
	GetTelemetry() Telemetry

	private()
}

// EventAlertType is the severity of an event.
type EventAlertType string

// The severities of events. An event without one is an Info.
const (
	Info    EventAlertType = "info"
	Error   EventAlertType = "error"
	Warning EventAlertType = "warning"
	Success EventAlertType = "success"
)

// EventPriority is the priority of an event.
type EventPriority string

// The priorities of events. An event without one is Normal.
const (
	Normal EventPriority = "normal"
	Low    EventPriority = "low"
)

// Event is an entry in the event stream.
type Event struct {
	// Title is required.
	Title string
	// Text may have several lines.
	Text string
	// Timestamp is the time of receipt when zero.
	Timestamp time.Time
	// Hostname defaults to the agent's.
	Hostname string
	// AggregationKey groups events that belong together.
	AggregationKey string
	// Priority is Normal when empty.
	Priority EventPriority
	// SourceTypeName says what kind of system the event is from.
	SourceTypeName string
	// AlertType is Info when empty.
	AlertType EventAlertType
	Tags      []string
}

// NewEvent returns an event with a title and a text.
func NewEvent(title, text string) *Event { return &Event{Title: title, Text: text} }

// Check returns an error if the agent would refuse the event.
func (e *Event) Check() error {
	if e == nil || e.Title == "" {
		return fmt.Errorf("statsd.Event title is required")
	}
	return nil
}

// ServiceCheckStatus is the result of a service check.
type ServiceCheckStatus byte

// The results of service checks.
const (
	Ok       ServiceCheckStatus = 0
	Warn     ServiceCheckStatus = 1
	Critical ServiceCheckStatus = 2
	Unknown  ServiceCheckStatus = 3
)

// ServiceCheck is the state of something that is checked.
type ServiceCheck struct {
	// Name is required.
	Name   string
	Status ServiceCheckStatus
	// Timestamp is the time of receipt when zero.
	Timestamp time.Time
	// Hostname defaults to the agent's.
	Hostname string
	// Message describes the state.
	Message string
	Tags    []string
}

// NewServiceCheck returns a service check with a name and a status.
func NewServiceCheck(name string, status ServiceCheckStatus) *ServiceCheck {
	return &ServiceCheck{Name: name, Status: status}
}

// Check returns an error if the agent would refuse the service check.
func (sc *ServiceCheck) Check() error {
	if sc == nil || sc.Name == "" {
		return fmt.Errorf("statsd.ServiceCheck name is required")
	}
	if sc.Status > Unknown {
		return fmt.Errorf("statsd.ServiceCheck status has invalid value")
	}
	return nil
}
