# frozen_string_literal: true

module StatsD
  module Instrument
    # Accepts everything and keeps nothing. The sink of the `test` environment.
    class NullSink
      def sample?(_sample_rate)
        true
      end

      # Takes one message.
      # @return [self]
      def <<(_datagram)
        self
      end

      # Sends everything that it has taken.
      # @return [void]
      def flush(blocking: false)
        # Nothing is ever held back.
      end
    end
  end
end
