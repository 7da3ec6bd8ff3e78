# frozen_string_literal: true

module StatsD
  module Instrument
    module Pure
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
    end
  end
end
