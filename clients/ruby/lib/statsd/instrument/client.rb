# frozen_string_literal: true

require "statsd/instrument/client/metrics"
require "statsd/instrument/client/events"
require "statsd/instrument/client/handle_makers"
require "statsd/instrument/client/recording"

module StatsD
  module Instrument
    # Emits metrics, events and service checks.
    #
    # `StatsD.increment` and its siblings are calls to {StatsD.singleton_client}. Make further clients
    # with {#clone_with_options}: they share the sink and the aggregation of the original, so one per
    # component of an application costs little.
    #
    # Counters, gauges, sets, timings, histograms and distributions are aggregated when the sink is a
    # {BatchedSink}, unless configured otherwise. Everything else goes straight to the sink.
    #
    # @note Metric methods never raise because of the value or the server. A sample without a name or
    #   with a value that is not a finite number is dropped and counted in {#telemetry}.
    class Client
      include Metrics
      include Events
      include HandleMakers
      include Recording

      class << self
        # Makes a client from environment variables.
        # @param env [Environment]
        # @param options [Hash] overrides the environment; see {#initialize}
        # @return [Client]
        def from_env(
          env = Environment.current,
          prefix: env.statsd_prefix,
          default_sample_rate: env.statsd_sample_rate,
          default_tags: env.client_default_tags,
          implementation: env.statsd_implementation,
          sink: env.default_sink_for_environment,
          datagram_builder_class: datagram_builder_class_for_implementation(implementation),
          **options
        )
          new(
            prefix: prefix,
            default_sample_rate: default_sample_rate,
            default_tags: default_tags,
            implementation: implementation,
            sink: sink,
            datagram_builder_class: datagram_builder_class,
            **env.client_options,
            **options
          )
        end

        # Makes a client, yields it and closes it.
        # @return the block's value
        def open(**options)
          client = new(**options)
          yield client
        ensure
          client&.close
        end

        # @param implementation [String, Symbol] `datadog`, `dogstatsd` or `statsd`
        # @return [Class]
        # @raise [NotImplementedError] if there is no such implementation
        # @api private
        def datagram_builder_class_for_implementation(implementation)
          case implementation.to_s
          when "datadog", "dogstatsd" then DogStatsDDatagramBuilder
          when "statsd" then StatsDDatagramBuilder
          else
            raise NotImplementedError,
                  "there is no StatsD implementation named #{implementation.inspect}; use datadog, dogstatsd or statsd"
          end
        end
      end

      # Stands for "as it was" in {#clone_with_options}.
      NO_CHANGE = Object.new.freeze

      # Tag cardinalities a server understands.
      CARDINALITIES = %w[none low orchestrator high].freeze

      # @return [Class] the writer of messages
      attr_reader :datagram_builder_class
      # @return [Mode] the mode, which a call reads once
      # @api private
      attr_reader :mode
      # @return [String, nil] written before each name, followed by a dot
      attr_reader :prefix
      # @return [Hash, Array<String>, String, nil] added to every message
      attr_reader :default_tags
      # @return [String, nil] tag cardinality asked for with every message
      attr_reader :cardinality

      # @return [#sample?, #<<, #flush] where messages go
      def sink
        @mode.sink
      end

      # @return [Float] the rate of calls that name none; 1.0 unless set
      def default_sample_rate
        @default_sample_rate || 1.0
      end

      # @param prefix [String, nil] written before each name, followed by a dot
      # @param default_sample_rate [Float, nil] 0.0 to 1.0; nil means 1.0
      # @param default_tags [Hash, Array<String>, String, nil] added to every message
      # @param implementation [String, Symbol] `datadog`, `dogstatsd` or `statsd`
      # @param sink [#sample?, #<<, #flush] where messages go
      # @param datagram_builder_class [Class] writes them; replaces `implementation`
      # @param enable_aggregation [Boolean, nil] nil: when the sink is a {BatchedSink}
      # @param aggregation_flush_interval [Float] seconds between flushes
      # @param aggregation_max_context_size [Integer] samples of one context sent without waiting
      # @param aggregation_max_contexts [Integer] contexts per thread that may live at once, all threads together
      # @param container_id [String, nil] sent with every message for origin detection
      # @param external_data [String, nil] value of `DD_EXTERNAL_ENV`, sent with every message
      # @param cardinality [String, Symbol, nil] one of {CARDINALITIES}
      # @param telemetry [Boolean, nil] whether the client reports about itself every ten seconds; nil means where
      #   messages are batched and the server knows tags
      # @param columns [String, nil] `http://host:port` or `http+unix:///path` of an agent that takes columns; nil: the
      #   address of the sink, if it has one
      # @param columns_max_bytes [Integer] memory for columns that the agent has not accepted yet
      # @raise [NotImplementedError] if there is no such implementation
      # @raise [ArgumentError] if the cardinality is unknown, or the address of columns is none or cannot be used
      def initialize(
        prefix: nil,
        default_sample_rate: nil,
        default_tags: nil,
        implementation: "datadog",
        sink: NullSink.new,
        datagram_builder_class: self.class.datagram_builder_class_for_implementation(implementation),
        enable_aggregation: nil,
        aggregation_flush_interval: Aggregator::DEFAULT_FLUSH_INTERVAL,
        aggregation_max_context_size: Aggregator::DEFAULT_MAX_CONTEXT_SIZE,
        aggregation_max_contexts: Aggregator::DEFAULT_MAX_CONTEXTS,
        container_id: nil,
        external_data: nil,
        cardinality: nil,
        telemetry: nil,
        columns: nil,
        columns_max_bytes: Columns::DEFAULT_MAX_BYTES,
        aggregator: nil
      )
        @own_sink = sink
        @captures = [].freeze
        @captures_lock = Mutex.new
        @datagram_builder_class = datagram_builder_class
        @prefix = prefix
        @default_tags = default_tags
        @default_sample_rate = default_sample_rate
        @container_id = container_id && Wire.field(container_id)
        @external_data = OriginDetection.clean_external_data(external_data)
        @cardinality = check_cardinality(cardinality)
        @enable_aggregation = enable_aggregation
        @columns_address = columns || (sink.columns_address if sink.respond_to?(:columns_address))
        @columns_max_bytes = columns_max_bytes
        @aggregation_options = {
          flush_interval: aggregation_flush_interval,
          max_values: aggregation_max_context_size,
          max_contexts: aggregation_max_contexts
        }
        @telemetry_enabled = telemetry.nil? ? reports_by_itself? : telemetry

        @implied_rate = default_sample_rate && default_sample_rate < 1 ? default_sample_rate : nil
        @builders = {}.freeze
        @plain_builder = nil
        @handles = WeakSet.new
        @aggregator = aggregator || new_aggregator
        @own_telemetry = Telemetry.new unless @aggregator || sink.respond_to?(:telemetry)
        @aggregator&.core&.attach(self)
        enter_mode
        ForkTracker.track(self)
      end

      # Sends everything recorded and queued so far, without waiting for packets that the background
      # thread is just sending.
      # @return [Object] {VOID}
      def force_flush
        flush
      end

      # Sends everything recorded and queued so far.
      # @param sync [Boolean] whether to wait until the last packet was handed to the kernel
      # @return [Object] {VOID}
      def flush(sync: false)
        sink = @mode.sink
        @aggregator.core.flush if wants_aggregation? && aggregates_into?(sink)
        sink.flush(blocking: sync)
        VOID
      end

      # Yields the client and sends everything at the end of the block.
      # @return [Object] {VOID}
      def batch
        yield self
        flush(sync: true)
      end

      # Waits until everything handed over so far has been sent.
      # @return [Object] {VOID}
      def sync_with_outbound_io
        flush(sync: true)
      end

      # Sends the remaining messages and ends the background threads of this client and of its clones. Metrics
      # that are emitted later are sent at once by the thread that emits them.
      # @param wait [Numeric] seconds the background threads get
      # @return [Object] {VOID}
      def shutdown(wait = 2)
        @aggregator&.core&.shutdown(wait)
        sink = @mode.sink
        sink.respond_to?(:shutdown) ? sink.shutdown(wait) : sink.flush(blocking: true)
        VOID
      end
      alias close shutdown

      # @return [Telemetry] counts of accepted, sent and dropped messages
      def telemetry
        @own_telemetry || (@own_sink.respond_to?(:telemetry) ? @own_sink : @aggregator.core).telemetry
      end

      # @return [Columns, nil] what sends counts, gauges and distributions to an agent that takes columns
      def columns
        @aggregator&.core&.columns
      end

      # @return [Boolean] whether calls are aggregated at the moment
      def aggregating?
        !@mode.core.nil?
      end

      # Makes a client that differs in the options given and shares everything else, the background
      # threads included.
      #
      # @param sink [#sample?, #<<, #flush]
      # @param prefix [String, nil]
      # @param default_sample_rate [Float, nil]
      # @param default_tags [Hash, Array<String>, String, nil]
      # @param datagram_builder_class [Class]
      # @param cardinality [String, Symbol, nil]
      # @return [Client]
      def clone_with_options(sink: NO_CHANGE, prefix: NO_CHANGE, default_sample_rate: NO_CHANGE,
                             default_tags: NO_CHANGE, datagram_builder_class: NO_CHANGE, cardinality: NO_CHANGE)
        current = @mode.sink
        same_sink = NO_CHANGE.equal?(sink) || sink.equal?(current)
        self.class.new(
          sink: changed(sink, current),
          prefix: changed(prefix, @prefix),
          default_sample_rate: changed(default_sample_rate, @default_sample_rate),
          default_tags: changed(default_tags, @default_tags),
          datagram_builder_class: changed(datagram_builder_class, @datagram_builder_class),
          cardinality: changed(cardinality, @cardinality),
          enable_aggregation: @enable_aggregation,
          aggregation_flush_interval: @aggregation_options[:flush_interval],
          aggregation_max_context_size: @aggregation_options[:max_values],
          aggregation_max_contexts: @aggregation_options[:max_contexts],
          container_id: @container_id,
          external_data: @external_data,
          telemetry: @telemetry_enabled && !same_sink,
          aggregator: same_sink && aggregates_into?(current) ? @aggregator : nil
        )
      end

      # Yields a client that differs in the options given.
      # @param (see #clone_with_options)
      # @yieldparam client [Client]
      # @return the block's value
      def with_options(**options)
        yield(clone_with_options(**options))
      end

      # @return [CaptureSink] a sink that hands on to the current one
      def capture_sink
        CaptureSink.new(parent: @mode.sink, datagram_class: datagram_builder_class.datagram_class)
      end

      # Sends everything emitted during the block, by any thread, to another sink. Nothing is
      # aggregated meanwhile, so each call is one message.
      # @param capture_sink [CaptureSink]
      # @return the block's value
      def with_capture_sink(capture_sink)
        change_captures { |captures| captures << capture_sink }
        yield
      ensure
        # Other threads may have begun to capture meanwhile, and may go on.
        change_captures do |captures|
          index = captures.rindex { |sink| sink.equal?(capture_sink) }
          captures.delete_at(index) if index
        end
      end

      # @yield emits metrics
      # @return [Array<Datagram>] one for each call during the block, in order; they are sent, too
      def capture(&block)
        sink = capture_sink
        with_capture_sink(sink, &block)
        sink.datagrams
      end

      # Chooses the mode of calls again, because the aggregation has ended.
      # @api private
      def refresh_mode
        enter_mode
      end

      # @api private
      def after_fork
        @cells = @emitters = nil
        enter_mode
      end

      # @api private
      def after_daemon; end

      # Keeps a handle informed about changes of mode.
      # @api private
      def bind(handle)
        @handles.add(handle)
      end

      # @return [Aggregator::Core, nil] where cells are announced, when calls are aggregated
      # @api private
      def aggregating_core
        @mode.core
      end

      private

      def changed(value, unchanged)
        NO_CHANGE.equal?(value) ? unchanged : value
      end

      def check_cardinality(value)
        return if value.nil?

        text = value.to_s.downcase
        return text if CARDINALITIES.include?(text)

        raise ArgumentError, "cardinality must be one of #{CARDINALITIES.join(", ")}, not #{value.inspect}"
      end

      def new_aggregator
        return unless wants_aggregation? || @telemetry_enabled || @columns_address

        shared = @own_sink.telemetry if @own_sink.respond_to?(:telemetry)
        report = telemetry_report(shared) if @telemetry_enabled && shared
        counts = shared || Telemetry.new
        aggregator = Aggregator.new(@own_sink, @datagram_builder_class, @prefix, @default_tags, **@aggregation_options,
                                    telemetry: counts, report: report, columns: new_columns(counts))
        # With aggregation, the first sample starts the thread: an unused client has no thread.
        aggregator.core.ensure_running if report && !wants_aggregation?
        aggregator
      end

      def new_columns(telemetry)
        return unless @columns_address
        raise ArgumentError, "columns need aggregation" unless wants_aggregation?
        raise ArgumentError, "plain StatsD has no columns" if @datagram_builder_class <= StatsDDatagramBuilder

        endpoint = Columns::Endpoint.new(@columns_address, local: @container_id, external: @external_data)
        Columns.new(endpoint, max_bytes: @columns_max_bytes, telemetry: telemetry)
      end

      def transport
        connection = @own_sink.connection if @own_sink.respond_to?(:connection)
        connection.respond_to?(:type) ? connection.type : "custom"
      end

      def reports_by_itself?
        @own_sink.is_a?(BatchedSink) && !(@datagram_builder_class <= StatsDDatagramBuilder)
      end

      def telemetry_report(telemetry)
        tags = [
          Wire.tags(@default_tags),
          "client:weir-ruby",
          "client_version:#{VERSION}",
          "client_transport:#{transport}"
        ]
        TelemetryReport.new(telemetry, tags: tags.compact.join(","), fields: fields(@cardinality),
                                       columns: !@columns_address.nil?)
      end

      def aggregates_into?(sink)
        @aggregator && sink.equal?(@aggregator.core.sink)
      end

      # @yieldparam captures [Array<CaptureSink>] the sinks that capture; the last one gets the messages
      def change_captures
        @captures_lock.synchronize do
          captures = @captures.dup
          yield captures
          @captures = captures.freeze
        end
        enter_mode
      end

      # Decides how calls are handled from now on, and makes handles look again.
      #
      # Signal handlers do this, too, so it takes no lock. A thread whose decision was overtaken by another change
      # decides again.
      def enter_mode
        sink = core = nil
        until @mode&.for?(sink, core) && sink.equal?(current_sink) && core.equal?(current_core(sink))
          sink = current_sink
          core = current_core(sink)
          use(Mode.new(sink, core, contexts_for(sink, core), @implied_rate))
        end
        @handles.to_a.each(&:unbind)
      end

      def current_sink
        @captures.last || @own_sink
      end

      # @return [Aggregator::Core, nil]
      def current_core(sink)
        @aggregator.core if wants_aggregation? && aggregates_into?(sink) && @aggregator.core.running?
      end

      def wants_aggregation?
        @enable_aggregation.nil? ? @own_sink.is_a?(BatchedSink) || !@columns_address.nil? : @enable_aggregation
      end

      # @return [Backend::Contexts, nil] nil when every call is a message that nobody remembers
      def contexts_for(sink, core)
        if core
          @cells ||= Backend::Contexts.new(self, emitters: false)
        elsif !sink.is_a?(CaptureSink)
          @emitters ||= Backend::Contexts.new(self, emitters: true)
        end
      end

      # The short ways are kept here as well, where reading them takes no call. Each of them is complete in itself: a
      # call reads one of them once, and ignores later changes of the mode.
      def use(mode)
        @mode = mode
        @counters, @gauges, @timings, @histograms, @distributions, @sets = mode.short_ways.values
      end
    end
  end
end
