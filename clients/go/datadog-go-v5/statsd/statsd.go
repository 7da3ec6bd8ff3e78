// Package statsd is package github.com/weir-dev/weir/clients/go/statsd under the import path of datadog-go, for
// programs whose libraries import that path: a replace directive puts this module in the place of datadog-go for all of
// them.
package statsd

import (
	"context"
	"io"
	"net/netip"
	"time"

	weir "github.com/weir-dev/weir/clients/go/statsd"
)

// The types of package github.com/weir-dev/weir/clients/go/statsd.
type (
	Cardinality            = weir.Cardinality
	Client                 = weir.Client
	ClientDirect           = weir.ClientDirect
	ClientDirectInterface  = weir.ClientDirectInterface
	ClientEx               = weir.ClientEx
	ClientInterface        = weir.ClientInterface
	ClientInterfaceEx      = weir.ClientInterfaceEx
	ColumnsStats           = weir.ColumnsStats
	Counter                = weir.Counter
	CounterInterface       = weir.CounterInterface
	CounterVec             = weir.CounterVec
	Distribution           = weir.Distribution
	DistributionVec        = weir.DistributionVec
	ErrorColumnsDropped    = weir.ErrorColumnsDropped
	ErrorHandler           = weir.ErrorHandler
	ErrorInputChannelFull  = weir.ErrorInputChannelFull
	ErrorSenderChannelFull = weir.ErrorSenderChannelFull
	Event                  = weir.Event
	EventAlertType         = weir.EventAlertType
	EventPriority          = weir.EventPriority
	FloatCounter           = weir.FloatCounter
	FloatCounterInterface  = weir.FloatCounterInterface
	FloatCounterVec        = weir.FloatCounterVec
	Gauge                  = weir.Gauge
	GaugeInterface         = weir.GaugeInterface
	GaugeVec               = weir.GaugeVec
	HandleInterface        = weir.HandleInterface
	Histogram              = weir.Histogram
	HistogramVec           = weir.HistogramVec
	MessageTooLongError    = weir.MessageTooLongError
	NoOpClient             = weir.NoOpClient
	NoOpClientDirect       = weir.NoOpClientDirect
	ObserverInterface      = weir.ObserverInterface
	Option                 = weir.Option
	Options                = weir.Options
	Parameter              = weir.Parameter
	ServiceCheck           = weir.ServiceCheck
	ServiceCheckStatus     = weir.ServiceCheckStatus
	Set                    = weir.Set
	SetInterface           = weir.SetInterface
	SetVec                 = weir.SetVec
	Stats                  = weir.Stats
	Tag                    = weir.Tag
	Telemetry              = weir.Telemetry
	Timing                 = weir.Timing
	TimingInterface        = weir.TimingInterface
	TimingVec              = weir.TimingVec
	Transport              = weir.Transport
)

// Its constants.
const (
	CardinalityHigh            = weir.CardinalityHigh
	CardinalityLow             = weir.CardinalityLow
	CardinalityNone            = weir.CardinalityNone
	CardinalityNotSet          = weir.CardinalityNotSet
	CardinalityOrchestrator    = weir.CardinalityOrchestrator
	Critical                   = weir.Critical
	DefaultMaxAgentPayloadSize = weir.DefaultMaxAgentPayloadSize
	DefaultColumnarBytes       = weir.DefaultColumnarBytes
	DefaultUDPBufferPoolSize   = weir.DefaultUDPBufferPoolSize
	DefaultUDSBufferPoolSize   = weir.DefaultUDSBufferPoolSize
	ErrEmptyName               = weir.ErrEmptyName
	ErrInvalidValue            = weir.ErrInvalidValue
	ErrNoClient                = weir.ErrNoClient
	ErrNotPlain                = weir.ErrNotPlain
	Error                      = weir.Error
	Info                       = weir.Info
	InvalidTimestamp           = weir.InvalidTimestamp
	Low                        = weir.Low
	MaxUDPPayloadSize          = weir.MaxUDPPayloadSize
	Normal                     = weir.Normal
	Ok                         = weir.Ok
	OptimalUDPPayloadSize      = weir.OptimalUDPPayloadSize
	Success                    = weir.Success
	UnixAddressDatagramPrefix  = weir.UnixAddressDatagramPrefix
	UnixAddressPrefix          = weir.UnixAddressPrefix
	UnixAddressStreamPrefix    = weir.UnixAddressStreamPrefix
	Unknown                    = weir.Unknown
	Warn                       = weir.Warn
	Warning                    = weir.Warning
	WindowsPipeAddressPrefix   = weir.WindowsPipeAddressPrefix
)

// Its variables.
var (
	AddressPrefixes = weir.AddressPrefixes
	ErrNoAddress    = weir.ErrNoAddress
	ErrNoColumns    = weir.ErrNoColumns
	ErrNoDatagrams  = weir.ErrNoDatagrams
)

// BoolTag calls [weir.BoolTag].
func BoolTag(key string, value bool) Tag {
	return weir.BoolTag(key, value)
}

// CloneWithExtraOptions calls [weir.CloneWithExtraOptions].
func CloneWithExtraOptions(c *Client, options ...Option) (*Client, error) {
	return weir.CloneWithExtraOptions(c, options...)
}

// CloneWithExtraOptionsEx calls [weir.CloneWithExtraOptionsEx].
func CloneWithExtraOptionsEx(c *ClientEx, options ...Option) (*ClientEx, error) {
	return weir.CloneWithExtraOptionsEx(c, options...)
}

// Int64Tag calls [weir.Int64Tag].
func Int64Tag(key string, value int64) Tag {
	return weir.Int64Tag(key, value)
}

// IntTag calls [weir.IntTag].
func IntTag(key string, value int) Tag {
	return weir.IntTag(key, value)
}

// LoggingErrorHandler calls [weir.LoggingErrorHandler].
func LoggingErrorHandler(err error) {
	weir.LoggingErrorHandler(err)
}

// New calls [weir.New].
func New(addr string, options ...Option) (*Client, error) {
	return weir.New(addr, options...)
}

// NewDirect calls [weir.NewDirect].
func NewDirect(addr string, options ...Option) (*ClientDirect, error) {
	return weir.NewDirect(addr, options...)
}

// NewDirectWithWriter calls [weir.NewDirectWithWriter].
func NewDirectWithWriter(writer io.WriteCloser, options ...Option) (*ClientDirect, error) {
	return weir.NewDirectWithWriter(writer, options...)
}

// NewEvent calls [weir.NewEvent].
func NewEvent(title string, text string) *Event {
	return weir.NewEvent(title, text)
}

// NewEx calls [weir.NewEx].
func NewEx(addr string, options ...Option) (*ClientEx, error) {
	return weir.NewEx(addr, options...)
}

// NewServiceCheck calls [weir.NewServiceCheck].
func NewServiceCheck(name string, status ServiceCheckStatus) *ServiceCheck {
	return weir.NewServiceCheck(name, status)
}

// NewWithWriter calls [weir.NewWithWriter].
func NewWithWriter(w io.WriteCloser, options ...Option) (*Client, error) {
	return weir.NewWithWriter(w, options...)
}

// NewWithWriterEx calls [weir.NewWithWriterEx].
func NewWithWriterEx(w io.WriteCloser, options ...Option) (*ClientEx, error) {
	return weir.NewWithWriterEx(w, options...)
}

// StringTag calls [weir.StringTag].
func StringTag(key string, value string) Tag {
	return weir.StringTag(key, value)
}

// Strings calls [weir.Strings].
func Strings(tags ...Tag) []string {
	return weir.Strings(tags...)
}

// WithAggregationInterval calls [weir.WithAggregationInterval].
func WithAggregationInterval(interval time.Duration) Option {
	return weir.WithAggregationInterval(interval)
}

// WithAggregatorShardCount calls [weir.WithAggregatorShardCount].
func WithAggregatorShardCount(shardCount int) Option {
	return weir.WithAggregatorShardCount(shardCount)
}

// WithBufferFlushInterval calls [weir.WithBufferFlushInterval].
func WithBufferFlushInterval(bufferFlushInterval time.Duration) Option {
	return weir.WithBufferFlushInterval(bufferFlushInterval)
}

// WithBufferPoolSize calls [weir.WithBufferPoolSize].
func WithBufferPoolSize(bufferPoolSize int) Option {
	return weir.WithBufferPoolSize(bufferPoolSize)
}

// WithCardinality calls [weir.WithCardinality].
func WithCardinality(card Cardinality) Option {
	return weir.WithCardinality(card)
}

// WithChannelMode calls [weir.WithChannelMode].
func WithChannelMode() Option {
	return weir.WithChannelMode()
}

// WithChannelModeBufferSize calls [weir.WithChannelModeBufferSize].
func WithChannelModeBufferSize(bufferSize int) Option {
	return weir.WithChannelModeBufferSize(bufferSize)
}

// WithChannelModeErrorsWhenFull calls [weir.WithChannelModeErrorsWhenFull].
func WithChannelModeErrorsWhenFull() Option {
	return weir.WithChannelModeErrorsWhenFull()
}

// WithClientSideAggregation calls [weir.WithClientSideAggregation].
func WithClientSideAggregation() Option {
	return weir.WithClientSideAggregation()
}

// WithColumnar calls [weir.WithColumnar].
func WithColumnar(address ...string) Option {
	return weir.WithColumnar(address...)
}

// WithColumnarBytes calls [weir.WithColumnarBytes].
func WithColumnarBytes(n int) Option {
	return weir.WithColumnarBytes(n)
}

// WithConnectTimeout calls [weir.WithConnectTimeout].
func WithConnectTimeout(connectTimeout time.Duration) Option {
	return weir.WithConnectTimeout(connectTimeout)
}

// WithContainerID calls [weir.WithContainerID].
func WithContainerID(id string) Option {
	return weir.WithContainerID(id)
}

// WithContextIdleTime calls [weir.WithContextIdleTime].
func WithContextIdleTime(d time.Duration) Option {
	return weir.WithContextIdleTime(d)
}

// WithDatagramAddress calls [weir.WithDatagramAddress].
func WithDatagramAddress(addr string) Option {
	return weir.WithDatagramAddress(addr)
}

// WithErrorHandler calls [weir.WithErrorHandler].
func WithErrorHandler(errorHandler ErrorHandler) Option {
	return weir.WithErrorHandler(errorHandler)
}

// WithExtendedClientSideAggregation calls [weir.WithExtendedClientSideAggregation].
func WithExtendedClientSideAggregation() Option {
	return weir.WithExtendedClientSideAggregation()
}

// WithMaxBytesPerPayload calls [weir.WithMaxBytesPerPayload].
func WithMaxBytesPerPayload(MaxBytesPerPayload int) Option {
	return weir.WithMaxBytesPerPayload(MaxBytesPerPayload)
}

// WithMaxContexts calls [weir.WithMaxContexts].
func WithMaxContexts(n int) Option {
	return weir.WithMaxContexts(n)
}

// WithMaxMessagesPerPayload calls [weir.WithMaxMessagesPerPayload].
func WithMaxMessagesPerPayload(maxMessagesPerPayload int) Option {
	return weir.WithMaxMessagesPerPayload(maxMessagesPerPayload)
}

// WithMaxSamplesPerContext calls [weir.WithMaxSamplesPerContext].
func WithMaxSamplesPerContext(maxSamplesPerDistribution int) Option {
	return weir.WithMaxSamplesPerContext(maxSamplesPerDistribution)
}

// WithMutexMode calls [weir.WithMutexMode].
func WithMutexMode() Option {
	return weir.WithMutexMode()
}

// WithNamespace calls [weir.WithNamespace].
func WithNamespace(namespace string) Option {
	return weir.WithNamespace(namespace)
}

// WithOriginDetection calls [weir.WithOriginDetection].
func WithOriginDetection() Option {
	return weir.WithOriginDetection()
}

// WithPlainStatsD calls [weir.WithPlainStatsD].
func WithPlainStatsD() Option {
	return weir.WithPlainStatsD()
}

// WithResolveInterval calls [weir.WithResolveInterval].
func WithResolveInterval(d time.Duration) Option {
	return weir.WithResolveInterval(d)
}

// WithResolver calls [weir.WithResolver].
func WithResolver(lookup func(ctx context.Context, host string) ([]netip.Addr, error)) Option {
	return weir.WithResolver(lookup)
}

// WithSenderQueueSize calls [weir.WithSenderQueueSize].
func WithSenderQueueSize(senderQueueSize int) Option {
	return weir.WithSenderQueueSize(senderQueueSize)
}

// WithTags calls [weir.WithTags].
func WithTags(tags []string) Option {
	return weir.WithTags(tags)
}

// WithTelemetryAddr calls [weir.WithTelemetryAddr].
func WithTelemetryAddr(addr string) Option {
	return weir.WithTelemetryAddr(addr)
}

// WithTelemetryClientName calls [weir.WithTelemetryClientName].
func WithTelemetryClientName(name string) Option {
	return weir.WithTelemetryClientName(name)
}

// WithTimingsAsDistributions calls [weir.WithTimingsAsDistributions].
func WithTimingsAsDistributions() Option {
	return weir.WithTimingsAsDistributions()
}

// WithWorkersCount calls [weir.WithWorkersCount].
func WithWorkersCount(workersCount int) Option {
	return weir.WithWorkersCount(workersCount)
}

// WithWriteTimeout calls [weir.WithWriteTimeout].
func WithWriteTimeout(writeTimeout time.Duration) Option {
	return weir.WithWriteTimeout(writeTimeout)
}

// WithoutChannelModeErrorsWhenFull calls [weir.WithoutChannelModeErrorsWhenFull].
func WithoutChannelModeErrorsWhenFull() Option {
	return weir.WithoutChannelModeErrorsWhenFull()
}

// WithoutClientSideAggregation calls [weir.WithoutClientSideAggregation].
func WithoutClientSideAggregation() Option {
	return weir.WithoutClientSideAggregation()
}

// WithoutDatagrams calls [weir.WithoutDatagrams].
func WithoutDatagrams() Option {
	return weir.WithoutDatagrams()
}

// WithoutEnvTags calls [weir.WithoutEnvTags].
func WithoutEnvTags() Option {
	return weir.WithoutEnvTags()
}

// WithoutOriginDetection calls [weir.WithoutOriginDetection].
func WithoutOriginDetection() Option {
	return weir.WithoutOriginDetection()
}

// WithoutTelemetry calls [weir.WithoutTelemetry].
func WithoutTelemetry() Option {
	return weir.WithoutTelemetry()
}
