# frozen_string_literal: true

module StatsD
  module Instrument
    # A client's current handling of calls: the destination of messages, and whether samples wait for the next flush.
    #
    # Capturing, a shutdown and a fork change all of it at once. So it is one frozen object: a call reads it once and
    # passes it on, and never sees a mixture of the old and the new mode.
    # @api private
    class Mode
      # Takes the place of the contexts of a type when each call must take the long way.
      module NoContexts
        def self.put(_name, _tags, _value); end
      end
      private_constant :NoContexts

      class << self
        # @return [Boolean] whether the sink sends messages over a network
        def network?(sink)
          sink.is_a?(BatchedSink) || sink.is_a?(Sink)
        end
      end

      # @return [#sample?, #<<, #flush] where messages go
      attr_reader :sink
      # @return [Aggregator::Core, nil] where cells are announced; nil when calls are not aggregated
      attr_reader :core
      # @return [Backend::Contexts, nil] nil when every call is a message that nobody remembers
      attr_reader :contexts
      # @return [Hash{Symbol => #put}] for each type the first target of a call without options
      attr_reader :short_ways

      # @param implied_rate [Float, nil] the rate of calls that name none, when it is below 1
      def initialize(sink, core, contexts, implied_rate)
        @sink = sink
        @core = core
        @contexts = contexts
        # Sinks of others decide themselves what to sample and may look at every message.
        @draws_itself = Mode.network?(sink) && [BatchedSink, Sink].include?(sink.method(:sample?).owner)
        # A client with a rate of its own has no short way: each call must draw. Gauges are not sampled when they are
        # aggregated.
        @short_ways = %i[c g ms h d s].to_h do |type|
          short = contexts && (implied_rate.nil? || (type == :g && core))
          [type, short ? contexts.map_of(type, nil) : NoContexts]
        end.freeze
        freeze
      end

      # @param rate [Float]
      # @return [Boolean] whether a call with that rate counts
      def sample?(rate)
        @draws_itself ? @contexts.table.sample?(rate) : @sink.sample?(rate)
      end

      # @return [Boolean] whether the mode was made for that
      def for?(sink, core)
        @sink.equal?(sink) && @core.equal?(core)
      end
    end
  end
end
