# frozen_string_literal: true

require "statsd/instrument/pure/cells"
require "statsd/instrument/pure/emitter"
require "statsd/instrument/pure/thread_owned"
require "statsd/instrument/pure/table"
require "statsd/instrument/pure/contexts"
require "statsd/instrument/pure/calls"
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

        # Adds samples to a sketch in a quicker way than {Columns::Sketch#add_each}. Here is none.
        # @param values [Array] as for {pack}
        # @return [Array, nil] the values that it has not added
        def sketch(_sketch, values)
          values
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
    end
  end
end
