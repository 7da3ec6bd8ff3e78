package statsd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
)

// Client sends metrics, events and service checks. All its methods may be called from several goroutines.
type Client struct {
	clientEx *ClientEx
}

// ClientEx is a [Client] whose methods take extra parameters.
type ClientEx struct {
	core  *core
	scope *scope
	// address and options are the settings of a clone; a client made from a writer has no address.
	address string
	options []Option
	// parent is set for children.
	parent *ClientEx
	closed atomic.Bool
}

var (
	_ ClientInterface   = (*Client)(nil)
	_ ClientInterfaceEx = (*ClientEx)(nil)
)

// New returns a client that sends to an address:
//
//   - "host:port" or "host" (port 8125), also with "udp://" before it: UDP. A name is looked up in the background,
//     again and again until it is found, and later at intervals to follow changes.
//   - "unix://PATH": the Unix socket at that path, datagram or stream.
//   - "unixgram://PATH", "unixstream://PATH": a Unix socket of that type.
//   - "tcp://host:port": TCP with frames as on a Unix stream socket.
//   - "\\.\pipe\NAME": a named pipe on Windows.
//   - "http://host:port", "http+unix://PATH": columns, see [WithColumnar]; datagrams go to DD_AGENT_HOST and
//     DD_DOGSTATSD_PORT, or else to port 8125 of the same host, or to [WithDatagramAddress].
//   - "": DD_DOGSTATSD_URL, or DD_AGENT_HOST and DD_DOGSTATSD_PORT.
//
// New does not wait for the agent and does not fail when it is not there. It returns an error if there is no address
// or if an address or an option cannot be valid.
func New(addr string, options ...Option) (*Client, error) {
	return wrap(NewEx(addr, options...))
}

// NewWithWriter returns a client that writes packets to w, each with one call, and closes it.
func NewWithWriter(w io.WriteCloser, options ...Option) (*Client, error) {
	return wrap(NewWithWriterEx(w, options...))
}

// CloneWithExtraOptions returns a new, independent client with the address and options of c and then more options. It
// returns an error for a client made from a writer. To change only prefix and tags, [Client.Child] is cheaper.
func CloneWithExtraOptions(c *Client, options ...Option) (*Client, error) {
	if c == nil {
		return nil, ErrNoClient
	}
	return wrap(CloneWithExtraOptionsEx(c.clientEx, options...))
}

func wrap(c *ClientEx, err error) (*Client, error) {
	if err != nil {
		return nil, err
	}
	return &Client{c}, nil
}

// NewEx is [New] for a [ClientEx].
func NewEx(addr string, options ...Option) (*ClientEx, error) {
	o, err := resolveOptions(options)
	if err != nil {
		return nil, err
	}
	addr = resolveAddress(addr)
	datagrams, err := o.columnarAddresses(addr)
	if err != nil {
		return nil, err
	}
	var t Transport = noDatagrams{}
	unix := false
	if !o.withoutDatagrams {
		if t, unix, err = newTransport(datagrams, o); err != nil {
			return nil, err
		}
	}
	c, err := newClient(t, unix, o)
	if err != nil {
		return nil, err
	}
	c.address = addr
	c.options = append([]Option(nil), options...)
	return c, nil
}

// NewWithWriterEx is [NewWithWriter] for a [ClientEx].
func NewWithWriterEx(w io.WriteCloser, options ...Option) (*ClientEx, error) {
	if w == nil {
		return nil, fmt.Errorf("statsd: the writer is nil")
	}
	o, err := resolveOptions(options)
	if err != nil {
		return nil, err
	}
	if o.columnar && o.columnarAddr == "" {
		return nil, fmt.Errorf("statsd: WithColumnar needs the address of the endpoint beside a writer")
	}
	return newClient(customTransport{w}, false, o)
}

// CloneWithExtraOptionsEx is [CloneWithExtraOptions] for a [ClientEx].
func CloneWithExtraOptionsEx(c *ClientEx, options ...Option) (*ClientEx, error) {
	if c == nil {
		return nil, ErrNoClient
	}
	if c.address == "" {
		return nil, fmt.Errorf("can't clone client with no addrOption")
	}
	return NewEx(c.address, append(append([]Option(nil), c.options...), options...)...)
}

func orDefault(n, fallback int) int {
	if n <= 0 {
		return fallback
	}
	return n
}

func newClient(t Transport, unix bool, o *Options) (*ClientEx, error) {
	packetBytes, poolSize := OptimalUDPPayloadSize, DefaultUDPBufferPoolSize
	if unix {
		packetBytes, poolSize = DefaultMaxAgentPayloadSize, DefaultUDSBufferPoolSize
	}
	if o.bufferFlushInterval <= 0 {
		o.bufferFlushInterval = 100 * time.Millisecond
	}
	if o.aggregationInterval <= 0 {
		o.aggregationInterval = 2 * time.Second
	}
	packed := o.extendedAggregation
	c := &core{
		aggregate:     o.aggregation || packed || o.maxSamplesPerContext > 0 || o.columnar,
		extended:      packed,
		plain:         o.plain,
		channelErrors: o.channelModeErrors,
		maxSamples:    max(o.maxSamplesPerContext, 0),
		maxContexts:   o.maxContexts,
		idleFlushes:   uint32(max(o.contextIdleTime/o.aggregationInterval, 1)),
		columnIdle:    uint32(max(o.contextIdleTime/(windowSeconds*time.Second), 1)),
		errorHandler:  o.errorHandler,
		flushInterval: o.bufferFlushInterval,
		interval:      o.aggregationInterval,
		wake:          make(chan struct{}, 1),
		stop:          make(chan struct{}),
	}
	c.table.Store(newTable(firstTable))
	c.memo.Store(newMemo(firstMemo))
	c.out.set(o, packetBytes, poolSize)
	c.out.kick = c.kick
	c.workers = make([]worker, o.workersCount)
	for i := range c.workers {
		c.workers[i].out = &c.out
	}
	c.collector.out = &c.out
	c.collector.hold = true

	card := o.cardinality
	if card == CardinalityNotSet {
		card = cardinalityFromEnvironment()
	}
	container, external := originSections(o)
	if c.plain {
		card, container, external = CardinalityNotSet, "", ""
	}
	if err := c.startColumns(o, container, external); err != nil {
		_ = t.Close()
		return nil, err
	}
	tags := append(append([]string(nil), o.tags...), environmentTags(o)...)
	s := c.newScope(o.namespace, tags, container+external, card)

	if o.telemetry && (!o.withoutDatagrams || o.telemetryAddr != "") {
		c.telemetry = &telemetry{core: c, scope: s, name: o.telemetryName, container: container, worker: &c.workers[0]}
		if o.telemetryAddr != "" {
			if err := c.telemetry.sendTo(o); err != nil {
				_ = t.Close()
				return nil, err
			}
		}
	}
	c.sender = newSender(t, &c.out, c.handle)
	if c.columns != nil {
		go c.columns.run()
		c.columns.settleWithin(firstAnswer)
	}
	if o.channelMode {
		c.startInboxes(max(o.channelModeBufferSize, 1))
	}
	c.stopped.Add(1)
	go c.clock()
	return &ClientEx{core: c, scope: s}, nil
}

func (out *output) set(o *Options, packetBytes, poolSize int) {
	out.maxBytes = orDefault(o.maxBytesPerPayload, packetBytes)
	out.maxMessages = max(o.maxMessagesPerPayload, 1)
	out.pool = pool{max: orDefault(o.bufferPoolSize, poolSize), maxBytes: out.maxBytes}
	out.queue = newQueue(orDefault(o.senderQueueSize, poolSize))
}

// sendTo gives the telemetry a sender of its own, with the sizes that suit its transport.
func (t *telemetry) sendTo(o *Options) error {
	transport, unix, err := newTransport(resolveAddress(o.telemetryAddr), o)
	if err != nil {
		return fmt.Errorf("statsd: telemetry address: %w", err)
	}
	packetBytes, poolSize := OptimalUDPPayloadSize, DefaultUDPBufferPoolSize
	if unix {
		packetBytes, poolSize = DefaultMaxAgentPayloadSize, DefaultUDSBufferPoolSize
	}
	out := &output{}
	out.set(o, packetBytes, poolSize)
	t.worker = &worker{out: out}
	t.sender = newSender(transport, out, t.core.handle)
	return nil
}

func (c *core) newScope(namespace string, global []string, suffix string, card Cardinality) *scope {
	c.tableMu.Lock()
	c.scopes++
	id := c.scopes
	c.tableMu.Unlock()
	s := &scope{core: c, id: id, namespace: namespace, tags: global, hasTags: len(global) > 0, suffix: suffix,
		card: card}
	s.prefix = string(appendName(nil, namespace))
	s.tagText = string(appendTagList(nil, global))
	return s
}

// Child returns a client that adds a prefix and tags to what c adds, and shares everything else with it: transport,
// packets, counts. It costs a few hundred bytes. Each child has contexts of its own, so make it once and keep it. The
// prefix gets a dot if it does not end in one; with an empty prefix names stay as they are. Closing a child flushes;
// closing c closes its children.
func (c *Client) Child(prefix string, tags ...string) *Client {
	if c == nil {
		return nil
	}
	parent := c.clientEx
	s := parent.scope
	namespace := s.namespace
	if prefix != "" {
		namespace += withDot(prefix)
	}
	all := append(append(make([]string, 0, len(s.tags)+len(tags)), s.tags...), cloneAll(tags)...)
	return &Client{&ClientEx{
		core:   parent.core,
		scope:  parent.core.newScope(namespace, all, s.suffix, s.card),
		parent: parent,
	}}
}

// Client returns the client without extra parameters on the same connection.
func (c *ClientEx) Client() *Client {
	if c == nil {
		return nil
	}
	return &Client{c}
}

// Ex returns the client with extra parameters on the same connection.
func (c *Client) Ex() *ClientEx {
	if c == nil {
		return nil
	}
	return c.clientEx
}

func (c *ClientEx) count(name string, value int64, tags []string, rate float64, card Cardinality) error {
	if c.core.aggregate {
		if x := c.scope.lookup(c.scope.key(kindCount, card), name, tags); x != nil && x.usable {
			x.addCount(value)
			return nil
		} else if x != nil {
			return c.core.unusable(x)
		}
		c.core.overflow.Add(1)
		rate = 1
	}
	var tmp [24]byte
	return c.scope.send(kindCount, name, appendInt(tmp[:0], value), tags, extras{rate: rate, card: card})
}

func (c *ClientEx) gauge(name string, value float64, tags []string, rate float64, card Cardinality) error {
	if !finite(value) {
		return c.core.refuse(ErrInvalidValue)
	}
	if c.core.aggregate {
		if x := c.scope.lookup(c.scope.key(kindGauge, card), name, tags); x != nil && x.usable {
			x.more.Load().calls.Add(1)
			x.setGauge(value)
			return nil
		} else if x != nil {
			return c.core.unusable(x)
		}
		c.core.overflow.Add(1)
		rate = 1
	}
	return c.scope.sendGauge(name, value, tags, extras{rate: rate, card: card})
}

func (c *ClientEx) set(name string, value string, tags []string, rate float64, card Cardinality) error {
	if value == "" {
		return c.core.refuse(ErrInvalidValue)
	}
	if c.core.aggregate {
		if x := c.scope.lookup(c.scope.key(kindSet, card), name, tags); x != nil && x.usable {
			return x.addMember(value)
		} else if x != nil {
			return c.core.unusable(x)
		}
		c.core.overflow.Add(1)
		rate = 1
	}
	var tmp [64]byte
	return c.scope.send(kindSet, name, appendSetValue(tmp[:0], value), tags, extras{rate: rate, card: card})
}

// sample adds a value of a kind that is packed with extended aggregation.
func (c *ClientEx) sample(k kind, name string, value float64, tags []string, rate float64, card Cardinality) error {
	if !finite(value) {
		return c.core.refuse(ErrInvalidValue)
	}
	k = c.core.sentAs(k)
	if c.core.extended || c.core.isColumn(k) {
		key := c.scope.key(k, card)
		if rate < 1 {
			if !keep(rate) {
				c.core.sampledOut[k].Add(1)
				return nil
			}
			key = key.sampled(rate)
		}
		if x := c.scope.lookup(key, name, tags); x != nil && x.usable {
			x.observe(value)
			return nil
		} else if x != nil {
			return c.core.unusable(x)
		}
		c.core.overflow.Add(1)
		return c.sendSampled(k, name, value, tags, rate, card)
	}
	var tmp [32]byte
	return c.scope.send(k, name, appendValue(tmp[:0], k, value), tags, extras{rate: rate, card: card})
}

// sendSampled sends a value whose rate has been applied.
func (c *ClientEx) sendSampled(k kind, name string, value float64, tags []string, rate float64,
	card Cardinality) error {
	return c.distributionSamples(k, name, []float64{value}, tags, rate, card)
}

func (c *ClientEx) distributionSamples(k kind, name string, values []float64, tags []string, rate float64,
	card Cardinality) error {
	if name == "" && c.scope.prefix == "" {
		return c.core.refuse(ErrEmptyName)
	}
	for i, v := range values {
		if !finite(v) {
			return c.core.refuse(fmt.Errorf("statsd: value %d of %q: %w", i, strings.Clone(name), ErrInvalidValue))
		}
	}
	key := c.scope.key(k, card)
	if rate < 1 && rate > 0 {
		key = key.sampled(rate)
	}
	x := c.scope.newSeries(key, name, tags)
	w := c.core.lock(k, name)
	w.tally[k] += uint64(len(values))
	lost := w.packed(x, values, key.rate)
	c.core.unlock(w)
	if lost > 0 {
		c.core.oversized.Add(uint64(lost))
		return MessageTooLongError{}
	}
	return nil
}

// unusable returns the reason why the metrics of a series cannot be sent.
func (c *core) unusable(x *series) error {
	if x.name == "" && x.scope.prefix == "" {
		return c.refuse(ErrEmptyName)
	}
	return c.tooLong()
}

func (c *ClientEx) timestamped(k kind, name string, value []byte, tags []string, rate float64, t time.Time,
	card Cardinality) error {
	if t.IsZero() || t.Unix() <= 0 {
		return InvalidTimestamp
	}
	if c.core.plain {
		return c.core.refuse(ErrNotPlain)
	}
	return c.scope.send(k, name, value, tags, extras{rate: rate, timestamp: t.Unix(), card: card})
}

// floatCount adds to a counter of floats.
func (c *ClientEx) floatCount(name string, value float64, tags []string, rate float64) error {
	if !finite(value) {
		return c.core.refuse(ErrInvalidValue)
	}
	card := c.scope.card
	if c.core.aggregate {
		if x := c.scope.lookup(c.scope.key(kindFloatCount, card), name, tags); x != nil && x.usable {
			x.addFloatCount(value)
			return nil
		} else if x != nil {
			return c.core.unusable(x)
		}
		c.core.overflow.Add(1)
		rate = 1
	}
	var tmp [32]byte
	return c.scope.send(kindFloatCount, name, appendFloat(tmp[:0], value), tags, extras{rate: rate, card: card})
}

func (c *ClientEx) event(e *Event, card Cardinality) error {
	if c.core.plain {
		return c.core.refuse(ErrNotPlain)
	}
	if err := e.Check(); err != nil {
		return c.core.refuse(err)
	}
	w := c.core.lock(kindEvent, e.Title)
	w.tally[kindEvent]++
	b := appendEvent(w.begin(), e)
	b = appendTags(b, c.scope.hasTags, c.scope.tagText, e.Tags)
	return c.finish(w, b, card)
}

func (c *ClientEx) serviceCheck(sc *ServiceCheck, card Cardinality) error {
	if c.core.plain {
		return c.core.refuse(ErrNotPlain)
	}
	if err := sc.Check(); err != nil {
		return c.core.refuse(err)
	}
	w := c.core.lock(kindServiceCheck, sc.Name)
	w.tally[kindServiceCheck]++
	b := appendServiceCheckHead(w.begin(), sc)
	b = appendTags(b, c.scope.hasTags, c.scope.tagText, sc.Tags)
	b = appendServiceCheckMessage(b, sc.Message)
	return c.finish(w, b, card)
}

func (c *ClientEx) finish(w *worker, b []byte, card Cardinality) error {
	b = append(b, c.scope.suffix...)
	b = appendCardinality(b, card)
	err := w.commit(append(b, '\n'))
	c.core.unlock(w)
	if err != nil {
		c.core.oversized.Add(1)
	}
	return err
}

func (c *ClientEx) flush() error {
	c.core.flush()
	return nil
}

func (c *ClientEx) close() error {
	if c.parent != nil {
		if !c.closed.Swap(true) && !c.core.isClosed.Load() {
			return c.flush()
		}
		return nil
	}
	return c.core.close()
}

// milliseconds converts as the client of Datadog does, because the text of the value depends on it.
func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// FlushContext is [Client.Flush] that returns the error of ctx if that ends first. What was accepted before is sent all
// the same.
func (c *Client) FlushContext(ctx context.Context) error { return within(ctx, c.Flush) }

// CloseContext is [Client.Close] that returns the error of ctx if that ends first. The client goes on closing, for as
// long as Close would.
func (c *Client) CloseContext(ctx context.Context) error { return within(ctx, c.Close) }

// within waits for work, but not longer than ctx allows.
func within(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ClientDirect is a [Client] that also sends values which the caller has collected and sampled.
type ClientDirect struct {
	*Client
}

var (
	_ ClientDirectInterface = (*ClientDirect)(nil)
	_ ClientInterface       = (*ClientDirect)(nil)
)

// NewDirect is [New] for a [ClientDirect].
func NewDirect(addr string, options ...Option) (*ClientDirect, error) {
	c, err := New(addr, options...)
	if err != nil {
		return nil, err
	}
	return &ClientDirect{c}, nil
}

// NewDirectWithWriter is [NewWithWriter] for a [ClientDirect].
func NewDirectWithWriter(writer io.WriteCloser, options ...Option) (*ClientDirect, error) {
	c, err := NewWithWriter(writer, options...)
	if err != nil {
		return nil, err
	}
	return &ClientDirect{c}, nil
}

// DistributionSamples sends values of a distribution, packed into few messages and without being aggregated. The rate
// says how they were sampled; nothing is left out because of it. One value that is not finite refuses them all.
func (c *ClientDirect) DistributionSamples(name string, values []float64, tags []string, rate float64) error {
	if c == nil || c.Client == nil {
		return ErrNoClient
	}
	if done, err := c.clientEx.sketchSamples(name, values, tags, rate, c.clientEx.scope.card); done {
		return err
	}
	return c.clientEx.distributionSamples(kindDistribution, name, values, tags, rate, c.clientEx.scope.card)
}
