# frozen_string_literal: true

module StatsD
  module Instrument
    # The longest time that a server that does not read may block senders. The connections of all threads share it,
    # because they lead to the same server.
    #
    # Waiting once for a server that is stuck is enough: from then on packets that do not fit are dropped at once, until
    # something could be written again. Without this a full queue in front of it would cost a timeout per packet.
    # @api private
    class Patience
      # @param seconds [Float] longest wait of one write
      def initialize(seconds)
        @seconds = seconds
        @lost = false
        @deadline = nil
      end

      # @return [Float] longest wait of the next write
      def seconds
        return 0.0 if @lost
        return @seconds unless @deadline

        left = @deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
        left.clamp(0.0, @seconds)
      end

      # A write waited and did not succeed.
      def lose
        @lost = true
      end

      # A write succeeded.
      def regain
        @lost = false
      end

      # The client shuts down: all writes together may wait this long from now on, and none later.
      def end_within(seconds)
        @deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      end
    end
  end
end
