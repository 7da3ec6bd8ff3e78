# frozen_string_literal: true

require "statsd/instrument/aggregator/context"
require "statsd/instrument/aggregator/core"

module StatsD
  module Instrument
    # Collects samples and sends them every few seconds: counters summed, gauges at their last value, samples packed
    # into as few lines as fit, sets without repetitions. Clients that share a sink and differ in prefix or tags share
    # an aggregator.
    #
    # It can be used without a client, too:
    #
    # @example
    #   aggregator = StatsD::Instrument::Aggregator.new(sink, StatsD::Instrument::DogStatsDDatagramBuilder, "app", [])
    #   aggregator.increment("jobs", 1, tags: { queue: "mail" })
    #   aggregator.flush
    class Aggregator
      # Samples of one context that are sent without waiting for the next flush.
      DEFAULT_MAX_CONTEXT_SIZE = 250
      # Seconds between flushes.
      DEFAULT_FLUSH_INTERVAL = 2.0
      # Cells that may live at once, all threads together. Samples of further contexts are sent one by
      # one and counted as overflowed.
      DEFAULT_MAX_CONTEXTS = 20_000

      class << self
        # @param core [Core]
        # @return [Proc] runs when no client is left, and at the exit of the process
        # @api private
        def finalize(core)
          proc { core.finalize }
        end
      end

      # @return [Core]
      # @api private
      attr_reader :core

      # @param sink [#<<] where messages go
      # @param datagram_builder_class [Class] writes them
      # @param prefix [String, nil] written before each name, followed by a dot
      # @param default_tags [Hash, Array<String>, String, nil] added to every message
      # @param options [Hash] `flush_interval`, `max_values`, `max_contexts`; see {Core#initialize}
      # @raise [ArgumentError] if one of these is not positive
      def initialize(sink, datagram_builder_class, prefix, default_tags, **options)
        @core = Core.new(sink, **options)
        @client_options = {
          sink: sink, datagram_builder_class: datagram_builder_class, prefix: prefix, default_tags: default_tags
        }
        # Tests of applications look at these two, by the names the API has had for long.
        @finalizer = @aggregation_state = @core
        @flush_thread = nil
        ObjectSpace.define_finalizer(self, self.class.finalize(@core)) if Ractors.main?
      end

      # @param name [String]
      # @param value [Numeric] the amount to add
      # @param tags [Hash, Array<String>, String, nil]
      # @param no_prefix [Boolean] whether to leave the prefix out
      # @param sample_rate [Float] the share of calls that is counted: the caller has drawn already
      # @return [void]
      def increment(name, value = 1, tags: [], no_prefix: false, sample_rate: 1.0)
        record(:increment, name, value, tags: tags, no_prefix: no_prefix, sample_rate: sample_rate)
      end

      # @param name (see #increment)
      # @param value [Numeric]
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @return [void]
      def gauge(name, value, tags: [], no_prefix: false)
        record(:gauge, name, value, tags: tags, no_prefix: no_prefix)
      end

      # @param type [Symbol] `:d`, `:ms` or `:h`
      # @param name (see #increment)
      # @param value [Numeric]
      # @param tags (see #increment)
      # @param no_prefix (see #increment)
      # @param sample_rate (see #increment)
      # @return [void]
      def aggregate_timing(name, value, tags: [], no_prefix: false, type: :d, sample_rate: 1.0)
        method = { d: :distribution, ms: :measure, h: :histogram }.fetch(type)
        record(method, name, value, tags: tags, no_prefix: no_prefix, sample_rate: sample_rate)
      end

      # Sends everything recorded so far to the sink.
      # @return [void]
      def flush
        @core.flush
      end

      private

      def record(method, name, value, **options)
        client = thread_healthcheck ? aggregating_client : direct_client
        client.public_send(method, name, value, pre_sampled: true, **options)
      end

      # @return [Boolean] whether samples recorded now will be sent later
      def thread_healthcheck
        # Nobody can say from inside a signal handler whether the flush thread will come.
        Mutex.new.synchronize { @flush_thread = @core.ensure_running }
        @core.running?
      rescue ThreadError
        StatsD.logger.debug { "[#{self.class.name}] In trap context, falling back to direct writes" }
        false
      end

      def aggregating_client
        @aggregating_client ||= Client.new(enable_aggregation: true, aggregator: self, **@client_options)
      end

      def direct_client
        @direct_client ||= Client.new(enable_aggregation: false, **@client_options)
      end
    end
  end
end
