# frozen_string_literal: true

module StatsD
  module Instrument
    # Writes each message to a logger. The sink of the `development` environment.
    class LogSink
      # @return [Logger]
      attr_reader :logger
      # @return [Integer] a severity of `Logger`
      attr_reader :severity

      def initialize(logger, severity: Logger::DEBUG)
        @logger = logger
        @severity = severity
      end

      def sample?(_sample_rate)
        true
      end

      # Takes one message.
      # @return [self]
      def <<(datagram)
        logger.add(severity, "[StatsD] #{datagram.chomp}")
        self
      end

      # Sends everything that it has taken.
      # @return [void]
      def flush(blocking: false)
        # A logger writes at once.
      end
    end
  end
end
