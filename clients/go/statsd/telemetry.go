package statsd

import (
	"math"
	"strconv"
	"time"
)

const telemetryInterval = 10 * time.Second

// version is the version of this client, sent with its telemetry.
const version = "0.1.0"

// Telemetry has the counts of a client since its creation. Children share the counts of the client they come from.
//
// Metrics are counted per call, before sampling and aggregation. A gauge set through a [Gauge] is counted once per
// flush: the values set in between were never more than a store to memory.
type Telemetry struct {
	// TotalMetrics is the sum of the six that follow.
	TotalMetrics             uint64
	TotalMetricsGauge        uint64
	TotalMetricsCount        uint64
	TotalMetricsHistogram    uint64
	TotalMetricsDistribution uint64
	TotalMetricsSet          uint64
	TotalMetricsTiming       uint64
	TotalEvents              uint64
	TotalServiceChecks       uint64

	// TotalDroppedOnReceive counts messages dropped because the inputs of channel mode were full.
	TotalDroppedOnReceive uint64

	// TotalPayloadsSent counts packets written. Whether a UDP packet arrived is not known, unless the system tells
	// that nobody listens.
	TotalPayloadsSent uint64
	// TotalPayloadsDropped is the sum of the two that follow.
	TotalPayloadsDropped uint64
	// TotalPayloadsDroppedWriter counts packets that could not be written: timeout, error, nobody there. Over UDP the
	// system tells that nobody listens when the next packet is written: that one is sent again, and counted here in
	// place of the one lost.
	TotalPayloadsDroppedWriter uint64
	// TotalPayloadsDroppedQueueFull counts packets dropped because too many waited to be written.
	TotalPayloadsDroppedQueueFull uint64

	// The same in bytes.
	TotalBytesSent             uint64
	TotalBytesDropped          uint64
	TotalBytesDroppedWriter    uint64
	TotalBytesDroppedQueueFull uint64

	// AggregationNbContext counts contexts that were flushed, each once per flush; it is the sum of the six that
	// follow.
	AggregationNbContext             uint64
	AggregationNbContextGauge        uint64
	AggregationNbContextCount        uint64
	AggregationNbContextSet          uint64
	AggregationNbContextHistogram    uint64
	AggregationNbContextDistribution uint64
	AggregationNbContextTiming       uint64
}

// Stats counts what [Telemetry] has no place for.
type Stats struct {
	// Contexts is the number of contexts that are kept for aggregation now.
	Contexts uint64
	// Overflow counts calls whose context was not kept because of [WithMaxContexts]. They were sent without being
	// aggregated.
	Overflow uint64
	// Invalid counts calls that were refused: no name, no finite value, no set member.
	Invalid uint64
	// TooLong counts messages that did not fit a packet. They were not sent.
	TooLong uint64
	// SampledOut counts calls left out because of their sample rate.
	SampledOut uint64
	// Columns counts what went as columns, see [WithColumnar].
	Columns ColumnsStats
}

// snapshot adds up the counts of the client's parts, each under its own lock. No count ever goes back.
func (c *core) snapshot() (t Telemetry) {
	var calls [kindLimit]uint64
	var flushed [kindLimit]uint64
	c.tableMu.Lock()
	c.countMu.Lock()
	calls, flushed = c.totals, c.flushed
	for _, x := range c.live {
		switch x.kind {
		case kindCount:
			_, n := unpackCell(x.cell.Load())
			calls[x.kind] += n + x.spilled() + x.lanes.Load().waiting()
		case kindGauge:
			n := x.more.Load().calls.Load()
			if n == 0 && x.cell.Load() != gaugeEmpty {
				n = 1
			}
			calls[x.kind] += n
		default:
			x.mu.Lock()
			m := x.more.Load()
			calls[x.kind] += m.spilledCalls.Load() + m.seen + m.sketched + x.lanes.Load().waiting()
			x.mu.Unlock()
		}
	}
	c.countMu.Unlock()
	c.tableMu.Unlock()
	for k := range calls {
		calls[k] += c.sampledOut[k].Load()
	}
	for i := range c.workers {
		w := &c.workers[i]
		w.mu.Lock()
		for k, n := range w.tally {
			calls[k] += n
		}
		w.mu.Unlock()
	}
	for i := range c.inboxes {
		in := &c.inboxes[i]
		in.mu.Lock()
		for k, n := range in.tally {
			calls[k] += n
		}
		t.TotalDroppedOnReceive += in.lost
		in.mu.Unlock()
	}
	t.TotalMetricsGauge = calls[kindGauge] + calls[kindGaugeDelta]
	t.TotalMetricsCount = calls[kindCount] + calls[kindFloatCount]
	t.TotalMetricsHistogram = calls[kindHistogram]
	t.TotalMetricsDistribution = calls[kindDistribution]
	t.TotalMetricsSet = calls[kindSet]
	t.TotalMetricsTiming = calls[kindTiming]
	t.TotalEvents = calls[kindEvent]
	t.TotalServiceChecks = calls[kindServiceCheck]
	t.TotalMetrics = t.TotalMetricsGauge + t.TotalMetricsCount + t.TotalMetricsHistogram + t.TotalMetricsDistribution +
		t.TotalMetricsSet + t.TotalMetricsTiming

	s, q := c.sender, c.out.queue
	t.TotalPayloadsSent = s.sentPackets.Load()
	t.TotalBytesSent = s.sentBytes.Load()
	t.TotalPayloadsDroppedWriter = s.droppedPackets.Load()
	t.TotalBytesDroppedWriter = s.droppedBytes.Load()
	q.mu.Lock()
	t.TotalPayloadsDroppedQueueFull = q.droppedPackets
	t.TotalBytesDroppedQueueFull = q.droppedBytes
	q.mu.Unlock()
	t.TotalPayloadsDropped = t.TotalPayloadsDroppedWriter + t.TotalPayloadsDroppedQueueFull
	t.TotalBytesDropped = t.TotalBytesDroppedWriter + t.TotalBytesDroppedQueueFull

	t.AggregationNbContextGauge = flushed[kindGauge]
	t.AggregationNbContextCount = flushed[kindCount] + flushed[kindFloatCount]
	t.AggregationNbContextSet = flushed[kindSet]
	t.AggregationNbContextHistogram = flushed[kindHistogram]
	t.AggregationNbContextDistribution = flushed[kindDistribution]
	t.AggregationNbContextTiming = flushed[kindTiming]
	t.AggregationNbContext = t.AggregationNbContextGauge + t.AggregationNbContextCount + t.AggregationNbContextSet +
		t.AggregationNbContextHistogram + t.AggregationNbContextDistribution + t.AggregationNbContextTiming
	return t
}

func (c *core) stats() Stats {
	c.tableMu.Lock()
	contexts := len(c.live)
	c.tableMu.Unlock()
	s := Stats{
		Contexts: uint64(contexts), Overflow: c.overflow.Load(), Invalid: c.invalid.Load(), TooLong: c.oversized.Load(),
	}
	for k := range c.sampledOut {
		s.SampledOut += c.sampledOut[k].Load()
	}
	s.Columns = c.columns.snapshot()
	return s
}

// telemetry sends what has changed in the snapshot. It is used by the clock only.
type telemetry struct {
	core   *core
	scope  *scope
	worker *worker
	// sender is set if the telemetry has an address of its own.
	sender *sender
	last   Telemetry
	// lastColumns are the counts of columns at the last report.
	lastColumns ColumnsStats
	name        string
	// container is sent with telemetry too; the external environment is not.
	container string
}

type telemetryLine struct {
	name     string
	byType   string
	now, was uint64
}

const telemetryPrefix = "datadog.dogstatsd.client."

func (t *telemetry) report() {
	now := t.core.snapshot()
	was := t.last
	t.last = now
	lines := []telemetryLine{
		{"metrics", "", now.TotalMetrics, was.TotalMetrics},
		{"metrics_by_type", "gauge", now.TotalMetricsGauge, was.TotalMetricsGauge},
		{"metrics_by_type", "count", now.TotalMetricsCount, was.TotalMetricsCount},
		{"metrics_by_type", "histogram", now.TotalMetricsHistogram, was.TotalMetricsHistogram},
		{"metrics_by_type", "distribution", now.TotalMetricsDistribution, was.TotalMetricsDistribution},
		{"metrics_by_type", "set", now.TotalMetricsSet, was.TotalMetricsSet},
		{"metrics_by_type", "timing", now.TotalMetricsTiming, was.TotalMetricsTiming},
		{"events", "", now.TotalEvents, was.TotalEvents},
		{"service_checks", "", now.TotalServiceChecks, was.TotalServiceChecks},
		{"metric_dropped_on_receive", "", now.TotalDroppedOnReceive, was.TotalDroppedOnReceive},
		{"packets_sent", "", now.TotalPayloadsSent, was.TotalPayloadsSent},
		{"packets_dropped", "", now.TotalPayloadsDropped, was.TotalPayloadsDropped},
		{"packets_dropped_queue", "", now.TotalPayloadsDroppedQueueFull, was.TotalPayloadsDroppedQueueFull},
		{"packets_dropped_writer", "", now.TotalPayloadsDroppedWriter, was.TotalPayloadsDroppedWriter},
		{"bytes_dropped", "", now.TotalBytesDropped, was.TotalBytesDropped},
		{"bytes_sent", "", now.TotalBytesSent, was.TotalBytesSent},
		{"bytes_dropped_queue", "", now.TotalBytesDroppedQueueFull, was.TotalBytesDroppedQueueFull},
		{"bytes_dropped_writer", "", now.TotalBytesDroppedWriter, was.TotalBytesDroppedWriter},
	}
	if t.core.aggregate {
		lines = append(lines,
			telemetryLine{"aggregated_context", "", now.AggregationNbContext, was.AggregationNbContext},
			telemetryLine{"aggregated_context_by_type", "gauge", now.AggregationNbContextGauge,
				was.AggregationNbContextGauge},
			telemetryLine{"aggregated_context_by_type", "set", now.AggregationNbContextSet,
				was.AggregationNbContextSet},
			telemetryLine{"aggregated_context_by_type", "count", now.AggregationNbContextCount,
				was.AggregationNbContextCount},
			telemetryLine{"aggregated_context_by_type", "histogram", now.AggregationNbContextHistogram,
				was.AggregationNbContextHistogram},
			telemetryLine{"aggregated_context_by_type", "distribution", now.AggregationNbContextDistribution,
				was.AggregationNbContextDistribution},
			telemetryLine{"aggregated_context_by_type", "timing", now.AggregationNbContextTiming,
				was.AggregationNbContextTiming},
		)
	}
	if t.core.columns != nil {
		lines = append(lines, t.columnLines()...)
	}
	tags := appendTags(nil, t.scope.hasTags, t.scope.tagText, []string{
		"client:" + t.name, "client_version:" + version, "client_transport:" +
			t.core.sender.transport.GetTransportName(),
	})
	w := t.worker
	w.mu.Lock()
	for _, l := range lines {
		b := append(w.begin(), telemetryPrefix...)
		b = append(b, l.name...)
		b = append(b, ':')
		b = strconv.AppendUint(b, min(l.now-l.was, math.MaxInt64), 10)
		b = append(b, "|c"...)
		b = append(b, tags...)
		if l.byType != "" {
			b = append(b, ",metrics_type:"...)
			b = append(b, l.byType...)
		}
		b = append(b, t.container...)
		b = appendCardinality(b, t.scope.card)
		t.core.countLost(w.commit(append(b, '\n')))
	}
	if t.sender != nil {
		w.send()
	}
	t.core.unlock(w)
}

func (t *telemetry) columnLines() []telemetryLine {
	now, was := t.core.columns.snapshot(), t.lastColumns
	t.lastColumns = now
	return []telemetryLine{
		{"columns_windows", "", now.Windows, was.Windows},
		{"columns_payloads_sent", "", now.Payloads, was.Payloads},
		{"columns_bytes_sent", "", now.Bytes, was.Bytes},
		{"columns_points_sent", "", now.Points, was.Points},
		{"columns_duplicates", "", now.Duplicates, was.Duplicates},
		{"columns_retries", "", now.Retries, was.Retries},
		{"columns_failures", "", now.Failures, was.Failures},
		{"columns_merged", "", now.Merged, was.Merged},
		{"columns_dropped", "", now.Dropped, was.Dropped},
		{"columns_refused", "", now.Refused, was.Refused},
		{"columns_points_dropped", "", now.DroppedPoints, was.DroppedPoints},
		{"columns_absent", "", now.Absent, was.Absent},
	}
}

func (t *telemetry) close() {
	if t.sender != nil {
		_ = t.sender.close()
	}
}
