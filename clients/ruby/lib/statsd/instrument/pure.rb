# frozen_string_literal: true

require "statsd/instrument/pure/cells"
require "statsd/instrument/pure/thread_owned"
require "statsd/instrument/pure/table"
require "statsd/instrument/pure/contexts"
require "statsd/instrument/pure/message_queue"

module StatsD
  module Instrument
    # The back end in Ruby, for every Ruby.
    #
    # Each thread has a table of its own with cells that only it writes to, so that recording takes no lock with or
    # without a global interpreter lock, and is allowed in signal handlers.
    # @api private
    module Pure
      # Below this limit a Float has room for six decimals.
      MILLIONTHS_LIMIT = 1e9
      private_constant :MILLIONTHS_LIMIT

      class << self
        # @param values [Array] samples that {SampleCell#put} has let in: finite numbers, which need no second look
        # @return [String, nil] samples joined with `:`, or nil when there are none
        def pack(values)
          return if values.empty?

          # Joining numbers asks each of them first whether it is a String or an Array.
          millionths(values) || values.map(&:to_s).join(":")
        end

        # Adds samples to bins in a quicker way than {Columns::Sketch#add_each}. Here is none.
        # @param values [Array] as for {pack}
        # @return [Array(Object, Array)] what {Columns::Sketch#add_bins} takes, and the values that are left to add; nil
        #   if there are none
        def bins(_table, values)
          [nil, values]
        end

        private

        # The time of a block is a whole number of nanoseconds, in milliseconds. Float#to_s searches for the shortest
        # text, which takes three times as long as writing such a number as two integers.
        #
        # @return [String, nil] nil if a value has more than six decimals, or too many end in zeros
        def millionths(values)
          parts = []
          short = 0
          values.each do |value|
            return nil unless Float === value && value >= 0.0 && value < MILLIONTHS_LIMIT

            count = (value * 1e6).round
            # Division gives the nearest Float, and so does reading the text.
            return nil unless count / 1e6 == value

            parts << (count / 1_000_000) << (count % 1_000_000)
            short += 1 if (count % 1000).zero?
          end
          return if short * 8 > values.size

          # The arguments of `format` would have to fit on the stack.
          "%d.%06d#{":%d.%06d" * (values.size - 1)}" % parts # rubocop:disable Style/FormatString
        end
      end

      # Stands where a cell would when calls are not aggregated, and sends each value at once.
      # @api private
      class Emitter
        # Sinks that take the same message again and again.
        WRITTEN_AHEAD = %w[BatchedSink Sink NullSink LogSink].map { |name| "StatsD::Instrument::#{name}" }.freeze
        private_constant :WRITTEN_AHEAD

        # @return [Template]
        attr_reader :template
        # @return [Object] the tags the table finds the emitter by
        attr_accessor :tags

        def initialize(template, sink)
          @template = template
          @head = template.head
          @tail = template.tail
          @set = template.type == :s
          # Third-party sinks may modify their argument.
          @one = template.datagram(1).freeze if WRITTEN_AHEAD.include?(sink.class.name)
          # One method less on the way of each call.
          @sink = sink.instance_of?(BatchedSink) ? sink.dispatcher : sink
        end

        # @return [Boolean] false if the value cannot be sent
        def put(value)
          # Most counters count one at a time; their message is always the same.
          if @one && value == 1 && Integer === value
            @sink << @one
            return true
          end
          unless (Integer === value && value <= MAX_WORD && value >= MIN_WORD) ||
                 (Float === value && value - value == 0.0 && !@set)
            value = @set ? Wire.member(value) : Wire.number(value)
            return false unless value
          end
          @sink << "#{@head}#{value}#{@tail}"
          true
        end
      end

      # The fast path of counter handles. Threads are compared with `==`, which the interpreter does without a call,
      # unlike `equal?`.
      # @api private
      module CounterCalls
        # A call without a value returns before the comparison.
        def increment(value = (if @owner == Thread.current
                                 @ones += 1
                                 return VOID
                               end
                               1))
          if value == 1 && @owner == Thread.current
            @ones += 1
            VOID
          else
            deliver(value)
          end
        end
      end

      # The fast path of gauge handles.
      # @api private
      module GaugeCalls
        def set(value)
          return VOID if @owner == Thread.current && put(value)

          deliver(value)
        end
      end

      # The fast path of sample handles.
      # @api private
      module SampleCalls
        def record(value)
          return VOID if @owner == Thread.current && put(value)

          deliver(value)
        end
      end
    end
  end
end
