package statsd

import (
	"context"
	"fmt"
	"log"
	"math"
	"net/netip"
	"strings"
	"time"
)

// Options is the sum of the options of a constructor. Its zero value is of no use; the constructors make it.
type Options struct {
	namespace             string
	tags                  []string
	maxBytesPerPayload    int
	maxMessagesPerPayload int
	bufferPoolSize        int
	bufferFlushInterval   time.Duration
	workersCount          int
	senderQueueSize       int
	writeTimeout          time.Duration
	connectTimeout        time.Duration
	telemetry             bool
	telemetryAddr         string
	telemetryName         string
	channelMode           bool
	channelModeBufferSize int
	channelModeErrors     bool
	aggregation           bool
	extendedAggregation   bool
	aggregationInterval   time.Duration
	maxSamplesPerContext  int
	maxContexts           int
	contextIdleTime       time.Duration
	originDetection       bool
	containerID           string
	cardinality           Cardinality
	errorHandler          ErrorHandler
	envTags               bool
	plain                 bool
	resolveInterval       time.Duration
	resolver              func(ctx context.Context, host string) ([]netip.Addr, error)
	columnar              bool
	columnarAddr          string
	columnarBytes         int
	untilWindowEnds       func(now time.Time) time.Duration
	datagramAddr          string
	withoutDatagrams      bool
	timingsAsDistribution bool
}

// Option changes one setting of a client. A constructor returns the first error of its options.
type Option func(*Options) error

func defaultOptions() *Options {
	return &Options{
		maxMessagesPerPayload: math.MaxInt32,
		bufferFlushInterval:   100 * time.Millisecond,
		workersCount:          32,
		writeTimeout:          100 * time.Millisecond,
		connectTimeout:        time.Second,
		telemetry:             true,
		telemetryName:         "weir-go",
		channelModeBufferSize: 4096,
		aggregation:           true,
		aggregationInterval:   2 * time.Second,
		maxSamplesPerContext:  -1,
		maxContexts:           1 << 18,
		contextIdleTime:       5 * time.Minute,
		originDetection:       true,
		envTags:               true,
		resolveInterval:       30 * time.Second,
		columnarBytes:         DefaultColumnarBytes,
		untilWindowEnds:       untilNextWindow,
	}
}

func resolveOptions(options []Option) (*Options, error) {
	o := defaultOptions()
	for _, option := range options {
		if option == nil {
			continue
		}
		if err := option(o); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// set makes an option that cannot fail.
func set(change func(*Options)) Option {
	return func(o *Options) error {
		change(o)
		return nil
	}
}

// WithNamespace puts a prefix before the name of every metric, with a dot between them if the prefix does not end in
// one. Names of events and service checks do not get it. Default: none.
func WithNamespace(namespace string) Option {
	return set(func(o *Options) { o.namespace = withDot(namespace) })
}

func withDot(namespace string) string {
	if strings.HasSuffix(namespace, ".") {
		return namespace
	}
	return namespace + "."
}

// WithTags sets tags for every metric, event and service check. They are written before the tags of a call. Default:
// none.
func WithTags(tags []string) Option {
	own := cloneAll(tags)
	return set(func(o *Options) { o.tags = own })
}

// WithMaxMessagesPerPayload limits the messages in a packet. With 1 every message is a packet. Default: no limit.
func WithMaxMessagesPerPayload(maxMessagesPerPayload int) Option {
	return set(func(o *Options) { o.maxMessagesPerPayload = maxMessagesPerPayload })
}

// WithMaxBytesPerPayload limits the size of a packet in bytes, the newline after its last message included. A longer
// message gives a [MessageTooLongError]. Default, also for 0: 8192 for Unix sockets, 1432 otherwise. To raise it,
// raise the agent's buffer first.
func WithMaxBytesPerPayload(MaxBytesPerPayload int) Option {
	return set(func(o *Options) { o.maxBytesPerPayload = MaxBytesPerPayload })
}

// WithBufferPoolSize limits the number of packet buffers kept for reuse. They are made when needed, not up front.
// Default, also for 0: 512 for Unix sockets, 2048 otherwise.
func WithBufferPoolSize(bufferPoolSize int) Option {
	return set(func(o *Options) { o.bufferPoolSize = bufferPoolSize })
}

// WithBufferFlushInterval limits the time that a packet waits to be filled. Default, also for 0: 100 ms.
func WithBufferFlushInterval(bufferFlushInterval time.Duration) Option {
	return set(func(o *Options) { o.bufferFlushInterval = bufferFlushInterval })
}

// WithWorkersCount sets the number of packets that goroutines can fill concurrently with metrics that are not
// aggregated. Default: 32; they take memory only while in use.
func WithWorkersCount(workersCount int) Option {
	return func(o *Options) error {
		if workersCount < 1 {
			return fmt.Errorf("workersCount must be a positive integer")
		}
		o.workersCount = workersCount
		return nil
	}
}

// WithSenderQueueSize limits the number of full packets that wait to be sent. Beyond it packets are dropped and
// counted. Default, also for 0: 512 for Unix sockets, 2048 otherwise.
func WithSenderQueueSize(senderQueueSize int) Option {
	return set(func(o *Options) { o.senderQueueSize = senderQueueSize })
}

// WithWriteTimeout limits how long one packet may take to write to a Unix socket, TCP connection or named pipe before
// it is dropped. Default: 100 ms.
func WithWriteTimeout(writeTimeout time.Duration) Option {
	return set(func(o *Options) { o.writeTimeout = writeTimeout })
}

// WithConnectTimeout limits how long connecting may take, how long a frame that is partly written to a stream may take
// before the connection is given up, and how long packets wait for the first answer of a name lookup. Default: 1 s.
func WithConnectTimeout(connectTimeout time.Duration) Option {
	return set(func(o *Options) { o.connectTimeout = connectTimeout })
}

// WithChannelMode hands metrics that are not aggregated to background goroutines, and drops them, counted, when too
// many wait. Aggregated metrics never wait for anything, so they are added at once in this mode too.
func WithChannelMode() Option { return set(func(o *Options) { o.channelMode = true }) }

// WithMutexMode writes metrics that are not aggregated into packets in the calling goroutine. This is the default and
// faster.
func WithMutexMode() Option { return set(func(o *Options) { o.channelMode = false }) }

// WithChannelModeBufferSize limits the number of messages that wait at each worker in channel mode. Default: 4096.
func WithChannelModeBufferSize(bufferSize int) Option {
	return set(func(o *Options) { o.channelModeBufferSize = bufferSize })
}

// WithChannelModeErrorsWhenFull makes calls return an [ErrorInputChannelFull] when channel mode drops their metric.
func WithChannelModeErrorsWhenFull() Option {
	return set(func(o *Options) { o.channelModeErrors = true })
}

// WithoutChannelModeErrorsWhenFull makes calls return nil when channel mode drops their metric. This is the default.
func WithoutChannelModeErrorsWhenFull() Option {
	return set(func(o *Options) { o.channelModeErrors = false })
}

// WithErrorHandler sets the function that receives errors without a caller to return to. Default: nothing.
func WithErrorHandler(errorHandler ErrorHandler) Option {
	return set(func(o *Options) { o.errorHandler = errorHandler })
}

// WithAggregationInterval sets the interval of flushes of aggregated metrics. It should divide the agent's interval of
// 10 s, or graphs look uneven. Default, also for 0: 2 s.
func WithAggregationInterval(interval time.Duration) Option {
	return set(func(o *Options) { o.aggregationInterval = interval })
}

// WithAggregatorShardCount is accepted for compatibility. Contexts are found without locks, so there is nothing to
// shard.
func WithAggregatorShardCount(shardCount int) Option {
	return func(*Options) error {
		if shardCount < 1 {
			return fmt.Errorf("shardCount must be a positive integer")
		}
		return nil
	}
}

// WithClientSideAggregation sums counters and keeps the last value of gauges and the distinct members of sets between
// flushes. This is the default. The rate argument of these three has no effect then.
func WithClientSideAggregation() Option { return set(func(o *Options) { o.aggregation = true }) }

// WithoutClientSideAggregation sends every call as a message of its own.
func WithoutClientSideAggregation() Option {
	return set(func(o *Options) { o.aggregation, o.extendedAggregation = false, false })
}

// WithExtendedClientSideAggregation also collects the values of histograms, distributions and timings between flushes
// and packs them into few messages, without losing any. It needs an agent that understands packed values (Datadog 7.25
// or 6.25 and later, weir).
func WithExtendedClientSideAggregation() Option {
	return set(func(o *Options) { o.aggregation, o.extendedAggregation = true, true })
}

// WithMaxSamplesPerContext keeps a random choice of at most this many values per context and flush, and sends the
// share kept as the sample rate. It matters together with [WithExtendedClientSideAggregation]. Default: no limit;
// values are never dropped.
func WithMaxSamplesPerContext(maxSamplesPerDistribution int) Option {
	return set(func(o *Options) { o.aggregation, o.maxSamplesPerContext = true, maxSamplesPerDistribution })
}

// WithoutTelemetry stops the client from sending metrics about itself. [Client.GetTelemetry] works all the same.
func WithoutTelemetry() Option { return set(func(o *Options) { o.telemetry = false }) }

// WithTelemetryAddr sends the client's metrics about itself to another address. Default: with the others.
func WithTelemetryAddr(addr string) Option { return set(func(o *Options) { o.telemetryAddr = addr }) }

// WithoutOriginDetection leaves out the fields that tell the agent which container metrics come from. An id given with
// [WithContainerID] is still sent.
func WithoutOriginDetection() Option { return set(func(o *Options) { o.originDetection = false }) }

// WithOriginDetection adds fields that tell the agent which container metrics come from. This is the default;
// DD_ORIGIN_DETECTION_ENABLED=false turns it off.
func WithOriginDetection() Option { return set(func(o *Options) { o.originDetection = true }) }

// WithContainerID sets the container id instead of detecting it. It is a setting of this client alone.
func WithContainerID(id string) Option { return set(func(o *Options) { o.containerID = id }) }

// WithCardinality sets how specific the tags are that the agent adds. Default: DD_CARDINALITY, then
// DATADOG_CARDINALITY, then the agent's choice.
func WithCardinality(card Cardinality) Option {
	return func(o *Options) error {
		if !card.isValid() {
			return fmt.Errorf("invalid cardinality %d", card)
		}
		o.cardinality = card
		return nil
	}
}

// The options from here on are not in the client of Datadog.

// WithMaxContexts limits the contexts kept for aggregation. Metrics of further contexts are sent without being
// aggregated, and counted as Overflow in [Stats]. Default, also for 0: 262144.
func WithMaxContexts(n int) Option {
	return func(o *Options) error {
		if n < 0 {
			return fmt.Errorf("statsd: the limit of contexts must not be negative, it is %d", n)
		}
		if n == 0 {
			n = 1 << 18
		}
		o.maxContexts = n
		return nil
	}
}

// WithContextIdleTime sets the time that a context is kept without new values, so that using it again costs nothing.
// If there are more than 16384 contexts, those idle for two flushes go at once, unless most of them return. Default:
// 5 minutes.
func WithContextIdleTime(d time.Duration) Option {
	return set(func(o *Options) { o.contextIdleTime = d })
}

// WithTelemetryClientName sets the tag client:NAME of the client's metrics about itself. Default: weir-go. With "go"
// dashboards made for the client of Datadog keep working.
func WithTelemetryClientName(name string) Option {
	return set(func(o *Options) { o.telemetryName = name })
}

// WithoutEnvTags ignores the tags in the environment variable DD_TAGS.
func WithoutEnvTags() Option { return set(func(o *Options) { o.envTags = false }) }

// WithPlainStatsD sends nothing that servers of plain StatsD stumble over: no origin, cardinality and timestamp
// sections, one value per message, and a negative gauge as a zero followed by a decrease. Events, service checks and
// timestamps return [ErrNotPlain]. Tags are still written.
func WithPlainStatsD() Option { return set(func(o *Options) { o.plain = true }) }

// WithResolveInterval sets the interval at which the name in a UDP or TCP address is looked up again.
// The lookup runs in the background, and the last good address is kept while it fails. A UDP socket is opened again as
// often, also to an address without a name: an address translation on the way that leads to an agent that has ended (a
// conntrack entry of a node) belongs to the source port, and lasts as long as packets come from it. Zero looks up once
// and keeps the socket. Default: 30 seconds.
func WithResolveInterval(d time.Duration) Option {
	return set(func(o *Options) { o.resolveInterval = d })
}

// WithResolver sets the function that looks up names. Default: the resolver of the net package.
func WithResolver(lookup func(ctx context.Context, host string) ([]netip.Addr, error)) Option {
	return set(func(o *Options) { o.resolver = lookup })
}

// WithColumnar sends counts, gauges and distributions as columns over HTTP, aggregated in this process over the agent's
// windows of 10 s; distributions are sketches. Everything else goes as datagrams to the client's address. Each window
// is kept until the agent has accepted it, and counts once. Without an address the endpoint is at the host and port of
// the client's address, or at the socket dsd-http.sock beside its Unix socket. An agent without the endpoint gets
// datagrams, see [ErrNoColumns].
func WithColumnar(address ...string) Option {
	return func(o *Options) error {
		o.columnar = true
		if len(address) == 0 {
			return nil
		}
		if o.columnarAddr = address[0]; len(address) > 1 || !isColumnsAddress(o.columnarAddr) {
			return fmt.Errorf("statsd: address %q is not http://HOST:PORT or http+unix://PATH", address)
		}
		return nil
	}
}

// WithColumnarBytes limits the memory for windows that the agent has not accepted. Beyond it windows are merged into
// wider ones, and then the oldest are dropped; both are counted. Default, also for 0: 4 MiB.
func WithColumnarBytes(n int) Option {
	return func(o *Options) error {
		if n < 0 {
			return fmt.Errorf("statsd: the limit of bytes must not be negative, it is %d", n)
		}
		o.columnarBytes = orDefault(n, DefaultColumnarBytes)
		return nil
	}
}

// WithDatagramAddress sets the address for what does not go as columns, for a client whose address is an endpoint for
// columns.
func WithDatagramAddress(addr string) Option { return set(func(o *Options) { o.datagramAddr = addr }) }

// WithoutDatagrams sends no datagrams. Metrics that do not go as columns (sets, histograms, events, service checks,
// timestamps, timings without [WithTimingsAsDistributions]) are dropped and counted, and so is everything while the
// agent does not take columns.
func WithoutDatagrams() Option { return set(func(o *Options) { o.withoutDatagrams = true }) }

// WithTimingsAsDistributions sends timings as distributions, in milliseconds, so that they can go as columns: they are
// summarised over all hosts then, and not by each agent.
func WithTimingsAsDistributions() Option {
	return set(func(o *Options) { o.timingsAsDistribution = true })
}

// LoggingErrorHandler is an [ErrorHandler] that writes to the standard logger.
func LoggingErrorHandler(err error) {
	switch e := err.(type) {
	case *ErrorInputChannelFull:
		log.Printf("statsd: %s: %v dropped with %d messages waiting, see WithChannelModeBufferSize", e.Msg, e.Metric,
			e.ChannelSize)
	case *ErrorSenderChannelFull:
		log.Printf("statsd: %s: %d messages dropped with %d packets waiting, see WithSenderQueueSize", e.Msg,
			e.LostElements, e.ChannelSize)
	default:
		log.Printf("statsd: %v", err)
	}
}
