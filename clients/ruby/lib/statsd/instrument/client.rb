# frozen_string_literal: true

module StatsD
  module Instrument
    # Emits metrics, events and service checks.
    #
    # `StatsD.increment` and its siblings are calls to {StatsD.singleton_client}. Make further clients
    # with {#clone_with_options}: they share the sink and the aggregation of the original, so one per
    # component of an application costs little.
    #
    # Counters, gauges, sets, timings, histograms and distributions are aggregated when the sink is a
    # {BatchedSink}, unless told otherwise. Everything else goes straight to the sink.
    #
    # @note Metric methods never raise because of the value or the server. A sample without a name or
    #   with a value that is not a finite number is dropped and counted in {#telemetry}.
    class Client
      class << self
        # Makes a client from environment variables.
        # @param env [Environment]
        # @param options [Hash] replaces what the environment says; see {#initialize}
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
        # @return what the block returns
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

      # @return [Class] what writes the messages
      attr_reader :datagram_builder_class
      # @return [Mode] what a call reads once
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
      # @param datagram_builder_class [Class] what writes them; replaces `implementation`
      # @param enable_aggregation [Boolean, nil] nil: when the sink is a {BatchedSink}
      # @param aggregation_flush_interval [Float] seconds between flushes
      # @param aggregation_max_context_size [Integer] samples of one context sent without waiting
      # @param aggregation_max_contexts [Integer] contexts per thread that may live at once, all threads together
      # @param container_id [String, nil] sent with every message for origin detection
      # @param external_data [String, nil] value of `DD_EXTERNAL_ENV`, sent with every message
      # @param cardinality [String, Symbol, nil] one of {CARDINALITIES}
      # @param telemetry [Boolean] whether the client reports about itself every ten seconds
      # @raise [NotImplementedError] if there is no such implementation
      # @raise [ArgumentError] if the cardinality is unknown
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
        telemetry: false,
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
        @aggregation_options = {
          flush_interval: aggregation_flush_interval,
          max_values: aggregation_max_context_size,
          max_contexts: aggregation_max_contexts
        }
        @telemetry_enabled = telemetry

        @implied_rate = default_sample_rate && default_sample_rate < 1 ? default_sample_rate : nil
        @builders = {}.freeze
        @handles = WeakSet.new
        @aggregator = aggregator || new_aggregator
        @own_telemetry = Telemetry.new unless @aggregator || sink.respond_to?(:telemetry)
        @aggregator&.core&.attach(self)
        enter_mode
        ForkTracker.track(self)
      end

      # @!group Metrics

      # Counts something.
      #
      # @param name [String] without `:`, `|` and `@`, which become `_`
      # @param value [Integer, Float] how much to add
      # @param sample_rate [Float, nil] 0.0 to 1.0: the share of calls that is sent; the server scales the sum up
      # @param tags [Hash, Array<String>, String, Symbol, nil] never modified; `|`, `,` and newlines are removed
      # @param no_prefix [Boolean] whether to leave the client's prefix out
      # @param by [Integer, Float, nil] replaces `value`
      # @param pre_sampled [Boolean] the caller has drawn already: send always, mention the rate
      # @param cardinality [String, Symbol, nil] one of {CARDINALITIES}
      # @param timestamp [Time, Integer, nil] when it was counted; such counts are not aggregated
      # @return [Object] {VOID}
      def increment(name, value = 1, sample_rate: nil, tags: nil, no_prefix: false, by: nil, pre_sampled: false,
                    cardinality: nil, timestamp: nil)
        unless sample_rate || no_prefix || by || cardinality || timestamp
          done = @counters.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        if timestamp
          return stamped(:c, name, by || value, tags, no_prefix, cardinality, timestamp, pre_sampled && sample_rate)
        end

        record(:c, name, by || value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      # Counts backwards.
      #
      # @param name (see #increment)
      # @param value [Integer, Float] how much to subtract
      # @param by [Integer, Float, nil] replaces `value`
      # @param options (see #increment)
      # @return (see #increment)
      def decrement(name, value = 1, by: nil, **options)
        increment(name, -(by || value), **options)
      end

      # Counts any amount; {#increment} with the amount required.
      #
      # @param name (see #increment)
      # @param value (see #increment)
      # @param options (see #increment)
      # @return (see #increment)
      def count(name, value, **options)
        increment(name, value, **options)
      end

      # Records the current value of something; the next value replaces it.
      #
      # @param name (see #increment)
      # @param value [Numeric] a finite number
      # @param sample_rate [Float, nil] has no effect when the client aggregates
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @param pre_sampled (see #increment)
      # @param cardinality (see #increment)
      # @param timestamp [Time, Integer, nil] when it was measured; such values are not aggregated
      # @return (see #increment)
      def gauge(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil,
                timestamp: nil)
        unless no_prefix || cardinality || timestamp || (sample_rate && !@mode.core)
          done = @gauges.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        return stamped(:g, name, value, tags, no_prefix, cardinality, timestamp, nil) if timestamp

        record(:g, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      # Records a duration in milliseconds, or how long the block takes.
      #
      # @param name (see #increment)
      # @param value [Numeric, nil] milliseconds; ignored when a block is given
      # @param sample_rate (see #increment)
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @param pre_sampled (see #increment)
      # @param cardinality (see #increment)
      # @yield the work to time; it is timed, too, when it raises
      # @return what the block returns, or {VOID}
      def measure(name, value = nil, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false,
                  cardinality: nil, &block)
        if block_given?
          return time_block(:ms, name, sample_rate, tags, no_prefix, pre_sampled, cardinality, &block)
        end

        unless sample_rate || no_prefix || cardinality
          done = @timings.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        record(:ms, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      # Records a value whose distribution is computed over all servers, or how long the block takes
      # in milliseconds.
      #
      # @param name (see #increment)
      # @param value [Numeric, nil] ignored when a block is given
      # @param sample_rate (see #increment)
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @param pre_sampled (see #increment)
      # @param cardinality (see #increment)
      # @yield (see #measure)
      # @return (see #measure)
      # @raise [NotImplementedError] if the implementation has no distributions
      def distribution(name, value = nil, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false,
                       cardinality: nil, &block)
        if block_given?
          return time_block(:d, name, sample_rate, tags, no_prefix, pre_sampled, cardinality, &block)
        end

        unless sample_rate || no_prefix || cardinality
          done = @distributions.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        record(:d, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      # Records a value whose distribution is computed by the agent of this host.
      #
      # @param name (see #increment)
      # @param value [Numeric] a finite number
      # @param sample_rate (see #increment)
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @param pre_sampled (see #increment)
      # @param cardinality (see #increment)
      # @return (see #increment)
      # @raise [NotImplementedError] if the implementation has no histograms
      def histogram(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil)
        unless sample_rate || no_prefix || cardinality
          done = @histograms.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        record(:h, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      # Counts distinct values.
      #
      # @param name (see #increment)
      # @param value [#to_s] the member to count; `|` and newlines are removed
      # @param sample_rate (see #increment)
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @param pre_sampled (see #increment)
      # @param cardinality (see #increment)
      # @return (see #increment)
      def set(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil)
        unless sample_rate || no_prefix || cardinality
          done = @sets.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        record(:s, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      # Records how long the block takes, in milliseconds with fractions.
      #
      # @param name (see #increment)
      # @param metric_type [Symbol, nil] `:ms`, `:d` or `:h`; nil: `:d` for DogStatsD, `:ms` for StatsD
      # @param sample_rate (see #increment)
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @yield (see #measure)
      # @return what the block returns
      def latency(name, sample_rate: nil, tags: nil, metric_type: nil, no_prefix: false, &block)
        metric_type ||= datagram_builder(no_prefix: no_prefix).latency_metric_type
        time_block(metric_type, name, sample_rate, tags, no_prefix, false, nil, &block)
      end

      # Records a duration in milliseconds; {#measure} with the value required.
      # @return (see #increment)
      def timing(name, value, **options)
        measure(name, value, **options)
      end

      # Records how long the block takes as a timing; fractions of a millisecond are kept.
      # @return what the block returns
      def time(name, **options, &block)
        raise LocalJumpError, "time needs a block" unless block

        measure(name, **options, &block)
      end

      # Records how long the block takes as a distribution; fractions of a millisecond are kept.
      # @return what the block returns
      def distribution_time(name, **options, &block)
        raise LocalJumpError, "distribution_time needs a block" unless block

        distribution(name, **options, &block)
      end

      # @!endgroup

      # @!group Events and checks

      # Reports something worth reading.
      #
      # @param title [String] the prefix is written before it
      # @param text [String] may span several lines
      # @param timestamp [Time, Integer, nil] nil means on arrival
      # @param hostname [String, nil]
      # @param aggregation_key [String, nil] events with the same key are shown together
      # @param priority [String, nil] `"normal"` or `"low"`
      # @param source_type_name [String, nil]
      # @param alert_type [String, nil] `"error"`, `"warning"`, `"info"` or `"success"`
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @param cardinality (see #increment)
      # @return (see #increment)
      # @raise [NoMethodError] if the implementation has no events
      def event(title, text, timestamp: nil, hostname: nil, aggregation_key: nil, priority: nil,
                source_type_name: nil, alert_type: nil, tags: nil, no_prefix: false, cardinality: nil)
        return refuse(title, text) if title.nil? || title.to_s.empty?

        emit(datagram_builder(no_prefix: no_prefix, cardinality: cardinality)._e(
               title, text,
               timestamp: timestamp, hostname: hostname, tags: tags, aggregation_key: aggregation_key,
               priority: priority, source_type_name: source_type_name, alert_type: alert_type
             ))
      end

      # Reports the state of something.
      #
      # @param name [String] the prefix is written before it
      # @param status [Symbol, String, Integer] `:ok`, `:warning`, `:critical`, `:unknown` or 0 to 3
      # @param timestamp [Time, Integer, nil] nil means on arrival
      # @param hostname [String, nil]
      # @param tags (see #increment)
      # @param message [String, nil] may span several lines
      # @param no_prefix (see #increment)
      # @param cardinality (see #increment)
      # @return (see #increment)
      # @raise [KeyError] if the status is none of those listed
      def service_check(name, status, timestamp: nil, hostname: nil, tags: nil, message: nil, no_prefix: false,
                        cardinality: nil)
        return refuse(name, status) if name.to_s.empty? || (status.is_a?(Integer) && !status.between?(0, 3))

        emit(datagram_builder(no_prefix: no_prefix, cardinality: cardinality)._sc(
               name, status,
               timestamp: timestamp, hostname: hostname, tags: tags, message: message
             ))
      end

      # @!endgroup

      # @!group Handles

      # @param name (see #increment)
      # @param tags (see #increment)
      # @param sample_rate (see #increment)
      # @param no_prefix (see #increment)
      # @return [Handles::Counter] bound to one context of this client: the cheapest way to count
      def counter(name, tags: nil, sample_rate: nil, no_prefix: false)
        Handles::Counter.new(name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
      end

      # @param (see #counter)
      # @return [Handles::Gauge]
      def gauge_handle(name, tags: nil, no_prefix: false)
        Handles::Gauge.new(name, tags: tags, no_prefix: no_prefix, client: self)
      end

      # @param (see #counter)
      # @return [Handles::Samples]
      def timer(name, tags: nil, sample_rate: nil, no_prefix: false)
        Handles::Samples.new(:ms, name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
      end

      # @param (see #counter)
      # @return [Handles::Samples]
      def histogram_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
        Handles::Samples.new(:h, name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
      end

      # @param (see #counter)
      # @return [Handles::Samples]
      def distribution_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
        Handles::Samples.new(:d, name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
      end

      # @param (see #counter)
      # @return [Handles::Set]
      def set_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
        Handles::Set.new(name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
      end

      # @!endgroup

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
        @aggregator.core.flush if aggregates_into?(sink)
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

      # Sends what is left and ends the background threads of this client and of its clones. Metrics
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

      # @return [Telemetry] what the client accepted, sent and dropped
      def telemetry
        @own_telemetry || (@own_sink.respond_to?(:telemetry) ? @own_sink : @aggregator.core).telemetry
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
      # @return what the block returns
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
      # @return what the block returns
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

      # Stops aggregating for good.
      # @api private
      def detach
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

      # @return [Float, nil] the rate a call is sampled at; nil when every call counts
      # @api private
      def resolve_rate(sample_rate)
        rate = sample_rate || @implied_rate
        rate if rate && rate < 1
      end

      # @param sample_rate [Float, nil] as {#resolve_rate} returns it
      # @return [Template, nil] nil if the name is empty
      # @api private
      def template(type, name, tags, sample_rate: nil, no_prefix: false, cardinality: nil, sorted: false)
        if sorted && tags
          tags = Wire.tag_list(tags).reject(&:empty?).sort
          tags = nil if tags.empty?
        end
        template = Template.build(
          datagram_builder(no_prefix: no_prefix, cardinality: cardinality), type, name, sample_rate, tags
        )
        template unless template.nameless?
      end

      # @param mode [Mode]
      # @return [Boolean] whether a call with that rate counts
      # @api private
      def counts?(sample_rate, mode = @mode)
        return true if sample_rate.nil? && @implied_rate.nil?

        rate = resolve_rate(sample_rate)
        rate.nil? || mode.sample?(rate)
      end

      # Sends one value of a context at once.
      # @return [Object] {VOID}
      # @api private
      def emit_value(template, value, mode)
        return refuse("", value) if template.nil? || template.nameless?

        text = template.type == :s ? Wire.member(value) : Wire.number(value)
        text ? emit(template.datagram(text), mode) : refuse(template.head, value)
      end

      # Counts a sample that cannot be sent.
      # @return [Object] {VOID}
      # @api private
      def refuse(name, value)
        telemetry.count(:dropped_invalid)
        StatsD.logger.debug { "[#{self.class.name}] dropped #{name.inspect} with value #{value.inspect}" }
        VOID
      end

      protected

      # @return [DatagramBuilder]
      def datagram_builder(no_prefix:, cardinality: nil)
        key = cardinality ? [no_prefix, cardinality] : no_prefix
        @builders[key] || remember_builder(key, new_builder(no_prefix, cardinality))
      end

      def emit(datagram, mode = @mode)
        mode.sink << datagram
        VOID
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

      def new_builder(no_prefix, cardinality)
        options = { prefix: no_prefix ? nil : @prefix, default_tags: @default_tags }
        fields = fields(check_cardinality(cardinality) || @cardinality)
        options[:fields] = fields if fields
        @datagram_builder_class.new(**options)
      end

      # Replaces the whole Hash, so that threads can read it without a lock.
      def remember_builder(key, builder)
        @builders = @builders.merge(key => builder).freeze
        builder
      end

      # A plain StatsD server knows none of these and may drop the whole message.
      def fields(cardinality)
        return if @datagram_builder_class <= StatsDDatagramBuilder

        text = +""
        text << "|c:#{@container_id}" if @container_id
        text << "|e:#{@external_data}" if @external_data
        text << "|card:#{cardinality}" if cardinality
        text.freeze unless text.empty?
      end

      def new_aggregator
        return unless wants_aggregation? || @telemetry_enabled

        shared = @own_sink.telemetry if @own_sink.respond_to?(:telemetry)
        report = telemetry_report(shared) if @telemetry_enabled && shared
        aggregator = Aggregator.new(@own_sink, @datagram_builder_class, @prefix, @default_tags, **@aggregation_options,
                                    telemetry: shared, report: report)
        aggregator.core.ensure_running if report
        aggregator
      end

      def telemetry_report(telemetry)
        tags = [
          Wire.tags(@default_tags),
          "client:weir-ruby",
          "client_version:#{VERSION}",
          "client_transport:#{@own_sink.respond_to?(:connection) ? @own_sink.connection.type : "custom"}"
        ]
        TelemetryReport.new(telemetry, tags: tags.compact.join(","), fields: fields(@cardinality))
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
      # decides once more.
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
        @enable_aggregation.nil? ? @own_sink.is_a?(BatchedSink) : @enable_aggregation
      end

      # @return [Backend::Contexts, nil] nil when every call is a message that nobody remembers
      def contexts_for(sink, core)
        if core
          @cells ||= Backend::Contexts.new(self, emitters: false)
        elsif Mode.remembering?(sink)
          @emitters ||= Backend::Contexts.new(self, emitters: true)
        end
      end

      # The short ways are kept here as well, where reading them takes no call. Each of them is complete in itself: a
      # call reads one of them once, and does not care what the mode is by then.
      def use(mode)
        @mode = mode
        @counters, @gauges, @timings, @histograms, @distributions, @sets = mode.short_ways.values
      end

      # Everything a fast path does not cover.
      def record(type, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        mode = @mode
        gauge = type == :g && mode.core
        return VOID unless gauge || pre_sampled || counts?(sample_rate, mode)

        rate = gauge ? nil : resolve_rate(sample_rate)
        if mode.contexts
          done = put(mode, type, name, value, tags, rate, no_prefix, cardinality)
          return VOID if done
          return refuse(name, value) if done == false
        end
        send_now(mode, type, name, value, rate, tags, no_prefix, cardinality)
      end

      # @return [Boolean, nil] false if the value cannot be sent, nil if its context is not remembered: there are too
      #   many, or it has no name
      def put(mode, type, name, value, tags, rate, no_prefix, cardinality)
        shelf = mode.contexts.shelf(type, no_prefix || cardinality ? [rate, no_prefix, cardinality] : rate)
        done = shelf.put(name, tags, value)
        return done unless done.nil?

        name = name.to_s unless name.is_a?(String) || name.is_a?(Symbol)
        key = tags.nil? || Wire.stable?(tags) ? tags : Wire.tags(tags, sort: mode.core)
        done = shelf.put(name, key, value)
        return done unless done.nil?

        add_context(mode, shelf, type, name, key, tags, rate, no_prefix, cardinality)&.put(value)
      end

      # @return [Cell, Emitter, nil]
      def add_context(mode, shelf, type, name, key, tags, rate, no_prefix, cardinality)
        contexts = mode.contexts
        contexts.sweep
        core = mode.core
        if core&.full?
          telemetry.count(:overflowed)
          return
        end
        template = template(type, name, tags, sample_rate: rate, no_prefix: no_prefix, cardinality: cardinality,
                                              sorted: core)
        return unless template
        return contexts.add_cell(shelf, name, key, template, core) if core

        contexts.add_emitter(shelf, name, key, template, mode.sink)
      end

      # One message, for sinks that want to see each call and for contexts that are not remembered.
      def send_now(mode, type, name, value, rate, tags, no_prefix, cardinality)
        text = type == :s ? Wire.member(value) : Wire.number(value)
        return refuse(name, value) if text.nil? || name.to_s.empty?

        # The builder gets the object itself: an application's own may want more than its text.
        text = value if value.is_a?(Numeric) && type != :s
        builder = datagram_builder(no_prefix: no_prefix, cardinality: cardinality)
        emit(builder.public_send(type, name, text, rate, tags), mode)
      end

      # Counts and gauges that say when they were taken. They are never sampled here; the caller may have done so.
      def stamped(type, name, value, tags, no_prefix, cardinality, timestamp, rate)
        seconds = timestamp.to_i
        text = Wire.number(value)
        return refuse(name, value) if text.nil? || name.to_s.empty? || seconds <= 0

        builder = datagram_builder(no_prefix: no_prefix, cardinality: cardinality)
        datagram = builder.public_send(type, name, text, rate || nil, tags)
        datagram << "|T#{seconds}" unless builder.is_a?(StatsDDatagramBuilder)
        emit(datagram)
      end

      def time_block(type, name, sample_rate, tags, no_prefix, pre_sampled, cardinality)
        return yield unless pre_sampled || counts?(sample_rate)

        start = Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond)
        begin
          yield
        ensure
          # The clock counts nanoseconds; digits beyond are noise that takes long to print.
          elapsed = (Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond) - start).round(6)
          done = @mode.short_ways[type].put(name, tags, elapsed) unless sample_rate || no_prefix || cardinality
          record(type, name, elapsed, sample_rate, tags, no_prefix, true, cardinality) unless done
        end
      end
    end
  end
end
