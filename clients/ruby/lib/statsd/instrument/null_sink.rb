# frozen_string_literal: true

module StatsD
  module Instrument
    # Accepts everything and keeps nothing. The sink of the `test` environment.
    class NullSink
      def sample?(_sample_rate)
        true
      end

      def <<(_datagram)
        self
      end

      def flush(blocking: false)
        # Nothing is ever held back.
      end
    end
  end
end
