# frozen_string_literal: true

# The namespace of dogstatsd-ruby.
module Datadog
  # The API of dogstatsd-ruby 5.7, sent by the client of this gem: calls are aggregated, and a background thread sends
  # the sums every two seconds.
  #
  # Options of a call are a Hash, or a number, which is a sample rate: `:tags` (Array or Hash), `:sample_rate`,
  # `:pre_sampled`, `:cardinality`. No call raises because of its value or of the server.
  #
  # @example
  #   require "weir/dogstatsd"
  #   statsd = Datadog::Statsd.new("localhost", 8125, namespace: "shop", tags: { env: "prod" })
  #   statsd.increment("orders", tags: { plan: "free" })
  #   statsd.close
  class Statsd
    # Raised for messages that fit into no packet, with `buffer_overflowing_stategy: :raise`.
    class Error < StandardError
    end

    # Counts since the last report.
    class Telemetry
      # @param counts [StatsD::Instrument::Telemetry]
      def initialize(counts)
        @counts = counts
      end

      # @!method metrics
      #   @return [Integer] samples that were handed over to the sender; aggregated ones at the flush
      # @!method events
      #   @return [Integer] events
      # @!method service_checks
      #   @return [Integer] service checks
      # @!method bytes_sent
      #   @return [Integer] bytes in packets that were sent
      # @!method bytes_dropped
      #   @return [Integer] bytes in packets that were dropped
      # @!method bytes_dropped_queue
      #   @return [Integer] bytes in those that were dropped because the queue was full
      # @!method bytes_dropped_writer
      #   @return [Integer] bytes in those that the socket refused
      # @!method packets_sent
      #   @return [Integer] packets that were sent
      # @!method packets_dropped
      #   @return [Integer] packets that were dropped
      # @!method packets_dropped_queue
      #   @return [Integer] those that were dropped because the queue was full
      # @!method packets_dropped_writer
      #   @return [Integer] those that the socket refused
      Weir::Dogstatsd::Report::NAMES.each do |name|
        define_method(name) { @counts.pending(name) }
      end

      # @return [Hash{Symbol => Integer}] all counts of this client since its start, those that dogstatsd-ruby has not
      #   included
      def to_h
        @counts.to_h
      end
    end

    # The version of dogstatsd-ruby whose API this is; {StatsD::Instrument::VERSION} is that of this gem.
    VERSION = "5.7.1"

    # Status of a service check.
    OK = 0
    # Status of a service check.
    WARNING = 1
    # Status of a service check.
    CRITICAL = 2
    # Status of a service check.
    UNKNOWN = 3

    # Bytes in the longest packet over UDP.
    UDP_DEFAULT_BUFFER_SIZE = 1_432
    # Bytes in the longest packet to a Unix socket.
    UDS_DEFAULT_BUFFER_SIZE = 8_192
    # Messages in a packet.
    DEFAULT_BUFFER_POOL_SIZE = Float::INFINITY
    # Packets and messages that wait for the background thread, over UDP.
    UDP_DEFAULT_SENDER_QUEUE_SIZE = 2_048
    # Packets and messages that wait for the background thread, to a Unix socket.
    UDS_DEFAULT_SENDER_QUEUE_SIZE = 512
    # Bytes in the longest event.
    MAX_EVENT_SIZE = 8 * 1_024
    # Seconds between reports of the client about itself.
    DEFAULT_TELEMETRY_FLUSH_INTERVAL = 10

    # Type of a counter in a message.
    COUNTER_TYPE = "c"
    # Type of a gauge in a message.
    GAUGE_TYPE = "g"
    # Type of a histogram in a message.
    HISTOGRAM_TYPE = "h"
    # Type of a distribution in a message.
    DISTRIBUTION_TYPE = "d"
    # Type of a timing in a message.
    TIMING_TYPE = "ms"
    # Type of a set in a message.
    SET_TYPE = "s"

    NO_OPTIONS = {}.freeze
    FALSE_WORDS = %w[0 f false].freeze
    private_constant :NO_OPTIONS, :FALSE_WORDS

    class << self
      # Makes a client, yields it and closes it.
      # @return the block's value
      def open(*args, **options)
        client = new(*args, **options)
        yield client
      ensure
        client&.close
      end

      # @return [true] distinguishes this class from that of dogstatsd-ruby
      def weir?
        true
      end
    end

    # @return [String, nil] written before each name of a metric, followed by a dot
    attr_reader :namespace
    # @return [Array<String>] added to every message: those of the environment, then those of the constructor
    attr_reader :tags
    # @return [Float, nil] the rate of calls that name none
    attr_reader :sample_rate
    # @return [Telemetry, nil] nil with `telemetry_enable: false`
    attr_reader :telemetry

    # @param host [String, nil] nil: `DD_DOGSTATSD_URL`, `DD_AGENT_HOST`, then `127.0.0.1`
    # @param port [Integer, nil] nil: `DD_DOGSTATSD_PORT`, then 8125
    # @param socket_path [String, nil] a Unix datagram socket; `DD_DOGSTATSD_SOCKET`
    # @param namespace [String, nil] written before each name of a metric
    # @param tags [Array<String>, Hash, nil] added to every message, after those of `DD_TAGS`, `DD_ENTITY_ID`,
    #   `DD_ENV`, `DD_SERVICE` and `DD_VERSION`, whose keys they replace
    # @param sample_rate [Float, nil] of calls that name none
    # @param buffer_max_payload_size [Integer, nil] bytes in a packet; 1432 over UDP, 8192 to a Unix socket
    # @param buffer_max_pool_size [Integer, nil] messages in a packet. The thread that fills a packet sends it; 1 sends
    #   each call at once.
    # @param buffer_overflowing_stategy [Symbol] `:drop` counts a message that fits into no packet, `:raise` raises
    #   {Error}, except for metrics that are aggregated
    # @param buffer_flush_interval [Numeric, nil] seconds between flushes; 2 unless `single_thread` is set
    # @param sender_queue_size [Integer, nil] packets and messages that wait for the background thread
    # @param logger [Logger, nil] gets each packet (debug) and each failure (error)
    # @param single_thread [Boolean] no background thread: the caller that fills a packet sends it, nothing is
    #   aggregated
    # @param delay_serialization [Boolean] has no effect: calls never write a message
    # @param telemetry_enable [Boolean] whether the client reports about itself
    # @param telemetry_flush_interval [Numeric] seconds between reports
    # @param origin_detection [Boolean] whether messages say which container they come from
    # @param container_id [String, nil] nil: found in `/proc`, unless `origin_detection` is off
    # @param cardinality [String, Symbol, nil] `none`, `low`, `orchestrator` or `high`; `DD_CARDINALITY`
    # @param aggregation [Boolean, nil] an option of this client: false sends each call as a message of its own; nil:
    #   `STATSD_ENABLE_AGGREGATION`, then true
    # @raise [ArgumentError] if tags, addresses, sizes or the cardinality are not as described
    def initialize(host = nil, port = nil, socket_path: nil, namespace: nil, tags: nil, sample_rate: nil,
                   buffer_max_payload_size: nil, buffer_max_pool_size: nil, buffer_overflowing_stategy: :drop,
                   buffer_flush_interval: nil, sender_queue_size: nil, logger: nil, single_thread: false,
                   delay_serialization: false, telemetry_enable: true, # rubocop:disable Lint/UnusedMethodArgument
                   telemetry_flush_interval: DEFAULT_TELEMETRY_FLUSH_INTERVAL, origin_detection: true,
                   container_id: nil, cardinality: nil, aggregation: nil)
      unless tags.nil? || tags.is_a?(Array) || tags.is_a?(Hash)
        raise ArgumentError, "tags must be an Array or a Hash, not #{tags.inspect}"
      end

      environment = StatsD::Instrument::Environment.new(ENV.to_h)
      @address = Weir::Dogstatsd::Address.new(host, port, socket_path)
      @namespace = namespace
      @tags = global_tags(tags, environment).freeze
      @sample_rate = sample_rate
      @max_packet_size = buffer_max_payload_size || default(UDP_DEFAULT_BUFFER_SIZE, UDS_DEFAULT_BUFFER_SIZE)
      unless @max_packet_size.positive?
        raise ArgumentError, "buffer_max_payload_size must be positive, not #{@max_packet_size}"
      end

      pool = buffer_max_pool_size unless buffer_max_pool_size == DEFAULT_BUFFER_POOL_SIZE
      aggregation = environment.aggregation_enabled if aggregation.nil?
      threaded = !single_thread && pool.nil?
      @sink = new_sink(threaded, pool, buffer_overflowing_stategy == :raise, buffer_flush_interval, sender_queue_size,
                       logger)
      detects = detects_origin?(origin_detection)
      options = {
        sink: @sink, prefix: namespace, default_tags: @tags, datagram_builder_class: Weir::Dogstatsd::Builder,
        enable_aggregation: threaded && aggregation != false,
        cardinality: cardinality || environment.cardinality, transport_type: transport_type,
        container_id: container_id || (StatsD::Instrument::OriginDetection.new.container_id if detects),
        external_data: (ENV.fetch("DD_EXTERNAL_ENV", nil) if detects),
        telemetry_interval: telemetry_enable ? telemetry_flush_interval : nil
      }
      options[:aggregation_flush_interval] = buffer_flush_interval if threaded && buffer_flush_interval
      @client = Weir::Dogstatsd::Client.new(**options)
      @telemetry = telemetry_enable ? Telemetry.new(@client.telemetry) : nil
      check_report_size
    end

    # @return [String, nil] nil for a Unix socket
    def host
      @address.host
    end

    # @return [Integer, nil] nil for a Unix socket
    def port
      @address.port
    end

    # @return [String, nil] nil for UDP
    def socket_path
      @address.socket_path
    end

    # @return [Symbol] `:udp` or `:uds`
    def transport_type
      @address.transport_type
    end

    # @param stat [#to_s] name; `::` becomes a dot
    # @param opts [Hash, Numeric] see {Statsd}; `:by` is the amount
    # @return [Object, nil]
    def increment(stat, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      count(stat, opts.fetch(:by, 1), opts)
    end

    # @param (see #increment)
    # @return (see #increment)
    def decrement(stat, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      count(stat, -opts.fetch(:by, 1), opts)
    end

    # @param stat (see #increment)
    # @param count [Numeric] the amount to add
    # @param opts [Hash, Numeric] see {Statsd}
    # @return (see #increment)
    def count(stat, count, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      return @client.increment(stat, count, tags: tags_of(opts)) if plain?(opts)

      sampled(:increment, stat, count, opts)
    end

    # @param stat (see #increment)
    # @param value [Numeric] a finite number
    # @param opts [Hash, Numeric] see {Statsd}; the rate has no effect on aggregated gauges
    # @return (see #increment)
    def gauge(stat, value, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      return @client.gauge(stat, value, tags: tags_of(opts)) if plain?(opts)

      sampled(:gauge, stat, value, opts)
    end

    # @param stat (see #increment)
    # @param value (see #gauge)
    # @param opts [Hash, Numeric] see {Statsd}
    # @return (see #increment)
    def histogram(stat, value, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      return @client.histogram(stat, value, tags: tags_of(opts)) if plain?(opts)

      sampled(:histogram, stat, value, opts)
    end

    # @param (see #histogram)
    # @return (see #increment)
    def distribution(stat, value, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      return @client.distribution(stat, value, tags: tags_of(opts)) if plain?(opts)

      sampled(:distribution, stat, value, opts)
    end

    # @param stat (see #increment)
    # @param milliseconds [Numeric] a finite number
    # @param opts [Hash, Numeric] see {Statsd}
    # @return (see #increment)
    def timing(stat, milliseconds, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      return @client.measure(stat, milliseconds, tags: tags_of(opts)) if plain?(opts)

      sampled(:measure, stat, milliseconds, opts)
    end

    # @param stat (see #increment)
    # @param value [#to_s] the member to count
    # @param opts [Hash, Numeric] see {Statsd}
    # @return (see #increment)
    def set(stat, value, opts = NO_OPTIONS)
      opts = { sample_rate: opts } if opts.is_a?(Numeric)
      return @client.set(stat, value, tags: tags_of(opts)) if plain?(opts)

      sampled(:set, stat, value, opts)
    end

    # Records the duration of the block as a timing, in milliseconds with fractions, also if it raises.
    # @param stat (see #increment)
    # @param opts [Hash, Numeric] see {Statsd}
    # @return the block's value
    def time(stat, opts = NO_OPTIONS)
      start = now
      yield
    ensure
      timing(stat, elapsed(start), opts)
    end

    # Records the duration of the block as a distribution, in milliseconds with fractions, also if it raises.
    # @param (see #time)
    # @return (see #time)
    def distribution_time(stat, opts = NO_OPTIONS)
      start = now
      yield
    ensure
      distribution(stat, elapsed(start), opts)
    end

    # Reports the state of something.
    # @param name [String] the namespace is not written before it
    # @param status [Integer, Symbol, String] 0 to 3, or `:ok`, `:warning`, `:critical`, `:unknown`
    # @param opts [Hash] `:timestamp`, `:hostname`, `:message`, `:tags`, `:cardinality`
    # @return [Object]
    def service_check(name, status, opts = NO_OPTIONS)
      @client.service_check(name, status, timestamp: opts[:timestamp], hostname: opts[:hostname],
                                          message: opts[:message], tags: tags_of(opts), no_prefix: true,
                                          cardinality: opts[:cardinality])
    end

    # Reports something worth reading.
    # @param title [String] the namespace is not written before it
    # @param text [String] may span several lines
    # @param opts [Hash] `:date_happened`, `:hostname`, `:aggregation_key`, `:priority`, `:source_type_name`,
    #   `:alert_type`, `:tags`, `:cardinality`; `:truncate_if_too_long` shortens the text until the event fits into a
    #   packet
    # @return [Object]
    # @raise [RuntimeError] if it is longer than {MAX_EVENT_SIZE}
    def event(title, text, opts = NO_OPTIONS)
      truncate = opts[:truncate_if_too_long]
      limit = truncate ? [MAX_EVENT_SIZE, @max_packet_size].min : MAX_EVENT_SIZE
      @client.send_event(title, text, truncate, limit, opts[:cardinality],
                         timestamp: opts[:date_happened], hostname: opts[:hostname],
                         aggregation_key: opts[:aggregation_key], priority: opts[:priority],
                         source_type_name: opts[:source_type_name], alert_type: opts[:alert_type], tags: tags_of(opts))
    end

    # Yields the client, and sends everything at the end of the block.
    # @return [nil]
    def batch
      yield self
      flush(sync: true)
    end

    # Sends what was recorded.
    # @param flush_telemetry [Boolean] whether to report about the client, too
    # @param sync [Boolean] whether to wait until the last packet was handed to the kernel
    # @return [nil]
    def flush(flush_telemetry: false, sync: false)
      @client.report&.request if flush_telemetry
      @client.flush(sync: sync)
      nil
    end

    # Waits until everything recorded was sent. A client without a thread has nothing to wait for: what does not fill a
    # packet waits for {#flush}.
    # @return [nil]
    def sync_with_outbound_io
      @client.flush(sync: true) if @sink.is_a?(Weir::Dogstatsd::ThreadedSink)
      nil
    end

    # Ends the threads and closes the sockets. Calls that come later are sent at once.
    # @param flush [Boolean] whether to send what was recorded; else it is dropped, and counted
    # @return [nil]
    def close(flush: true)
      @sink.discard_the_rest unless flush
      @client.shutdown
      @sink.close
      nil
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # The clock counts nanoseconds; digits beyond are noise.
    def elapsed(start)
      milliseconds = ((now - start) * 1_000).round(6)
      whole = milliseconds.to_i
      whole == milliseconds ? whole : milliseconds
    end

    # @return [Boolean] whether the call has tags at most
    def plain?(opts)
      @sample_rate.nil? && !opts.key?(:sample_rate) && !opts.key?(:cardinality)
    end

    def tags_of(opts)
      tags = opts[:tags]
      # A key without a value is a tag of its own.
      return tags unless tags.is_a?(Hash) && tags.value?(nil)

      tags.map { |key, value| value.nil? ? key.to_s : "#{key}:#{value}" }
    end

    def sampled(method, stat, value, opts)
      rate = opts[:sample_rate] || @sample_rate || 1
      all = rate == 1 || opts[:pre_sampled] || (method == :gauge && @client.aggregating?)
      return if !all && rand > rate

      @client.public_send(method, stat, value, tags: tags_of(opts), sample_rate: rate, pre_sampled: true,
                                               cardinality: opts[:cardinality])
    end

    def default(udp, uds)
      transport_type == :udp ? udp : uds
    end

    def new_sink(threaded, pool, raises, interval, queue_size, logger)
      connection = @address.connection(@max_packet_size)
      sink = logger ? Weir::Dogstatsd::LoggingSink.new(connection, logger) : StatsD::Instrument::Sink.new(connection)
      unless threaded
        return Weir::Dogstatsd::PacketBuffer.new(sink, max_packet_size: @max_packet_size, max_messages: pool,
                                                       raises: raises, interval: interval)
      end

      capacity = queue_size || default(UDP_DEFAULT_SENDER_QUEUE_SIZE, UDS_DEFAULT_SENDER_QUEUE_SIZE)
      Weir::Dogstatsd::ThreadedSink.new(sink, raises: raises, buffer_capacity: capacity, overflow: :drop,
                                              max_packet_size: @max_packet_size)
    end

    def check_report_size
      size = @client.report&.size
      return if size.nil? || size <= @max_packet_size

      raise ArgumentError, "buffer_max_payload_size must be at least #{size} for the telemetry with its tags, not " \
                           "#{@max_packet_size}; telemetry_enable: false needs less"
    end

    def detects_origin?(wanted)
      word = ENV.fetch("DD_ORIGIN_DETECTION_ENABLED", nil)
      wanted != false && (word.nil? || !FALSE_WORDS.include?(word.downcase))
    end

    # Tags of the constructor replace those of the environment with the same key.
    def global_tags(tags, environment)
      own = tags.is_a?(Hash) ? tags_of({ tags: tags }) : tags || []
      own = StatsD::Instrument::Wire.tag_list(own).reject(&:empty?)
      keys = own.map { |tag| tag[/\A[^:]*/] }
      environment.datadog_tags.reject { |tag| keys.include?(tag[/\A[^:]*/]) } + own
    end
  end
end
