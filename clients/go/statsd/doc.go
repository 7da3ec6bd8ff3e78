/*
Package statsd sends metrics, events and service checks to a DogStatsD agent, such as weir or that of Datadog. It has
the API of github.com/DataDog/datadog-go/v5/statsd, and more.

	client, err := statsd.New("127.0.0.1:8125", statsd.WithNamespace("shop"))
	...
	defer client.Close()
	_ = client.Incr("orders", []string{"country:ch"}, 1)

# The path of a metric

By default, counters are summed, gauges keep their last value and sets their distinct members, until they are flushed
every two seconds ([WithAggregationInterval]). Histograms, distributions and timings are sent as they come, or
collected and packed if they go through a handle or with [WithExtendedClientSideAggregation]. Messages are gathered in
packets, which leave when they are full or 100 ms old ([WithBufferFlushInterval]). One goroutine writes them. A call
never waits for the network: when too many packets wait ([WithSenderQueueSize]), packets are dropped and counted
([Client.GetTelemetry], [WithErrorHandler]).

The rate of a call is the share of calls to send; the agent is told, and makes up for it. Counters, gauges and sets
that are aggregated ignore it.

# Handles

A call has to find its context, that is its name and tags. A handle has found it once:

	hits := client.NewCounter("cache.hits", "cache:users")
	hits.Inc()

	requests := client.NewCounterVec("requests", "method", "code")
	requests.With("GET", "200").Inc()

# Columns

A client whose address is http://HOST:PORT or http+unix://PATH, or that has [WithColumnar], sends counts, gauges and
distributions over HTTP: aggregated over windows of 10 s, distributions as sketches, each window once. See
[WithColumnar] and [ColumnsStats].

# Rules for callers

All methods may be used by several goroutines. Tags may be written at the call; they are not kept, so neither a slice
nor the memory behind its strings has to stay as it was. A nil client returns [ErrNoClient] and its handles do
nothing.

Text that would break a line for the agent is changed: in names ':', '|' and newlines become '_', in tags '|' becomes
'_' and newlines are deleted, in label values and typed tags ',' becomes '_', and bytes that are not UTF-8 become '_'.
What an agent would refuse altogether is refused here, with an error: no name, a value that is not finite, an empty
set member, a message longer than a packet.
*/
package statsd
