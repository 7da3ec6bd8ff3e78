# frozen_string_literal: true

module Weir
  # Parts of {Datadog::Statsd}.
  module Dogstatsd
    # Sends through a background thread: the usual mode.
    # @api private
    class ThreadedSink < StatsD::Instrument::BatchedSink
      # @param raises [Boolean] whether a message longer than a packet raises {Datadog::Statsd::Error}
      def initialize(sink, raises:, **options)
        super(sink, **options)
        @raises = raises
        @discards = false
      end

      # @param message [String]
      # @return [self]
      # @raise [Datadog::Statsd::Error]
      def <<(message)
        return discard(message) if @discards

        Dogstatsd.check_size(message, max_packet_size) if @raises
        super
      end

      # @param packet [String]
      def push_packet(packet)
        @discards ? discard(packet) : super
      end

      # @return [void]
      def close
        @discards = false
        @sink.close
      end

      # Until the end of {#close} messages are dropped, and counted.
      # @return [void]
      def discard_the_rest
        @discards = true
      end

      private

      def discard(message)
        telemetry.dropped(:queue, message.bytesize)
        self
      end
    end

    # Joins messages into packets in the calling thread, and sends a packet when it is full: the mode without threads.
    # @api private
    class PacketBuffer
      # @return [Integer] bytes in the longest packet
      attr_reader :max_packet_size
      # @return [#each_message, nil] reports about the client
      attr_accessor :report

      # @param sink [StatsD::Instrument::Sink]
      # @param max_packet_size [Integer] bytes
      # @param max_messages [Integer, nil] messages in a packet
      # @param raises [Boolean] whether a message longer than a packet raises {Datadog::Statsd::Error}
      # @param interval [Numeric, nil] seconds between flushes of a thread; nil for no thread
      def initialize(sink, max_packet_size:, max_messages:, raises:, interval:)
        @sink = sink
        @max_packet_size = max_packet_size
        @max_messages = max_messages || Float::INFINITY
        @raises = raises
        @interval = interval
        clear
        start
        StatsD::Instrument::ForkTracker.track(self)
      end

      # @return [StatsD::Instrument::Telemetry]
      def telemetry
        @sink.telemetry
      end

      # @return [#type] the connection of the calling thread
      def connection
        @sink.connection
      end

      # (see StatsD::Instrument::Sink#sample?)
      def sample?(sample_rate)
        @sink.sample?(sample_rate)
      end

      # @param message [String]
      # @return [self]
      # @raise [Datadog::Statsd::Error]
      def <<(message)
        Dogstatsd.check_size(message, @max_packet_size) if @raises
        return drop(message) if message.bytesize > @max_packet_size

        telemetry.accepted_message(message)
        @lock.synchronize do
          append(message)
          @report&.each_message { |text| append(text) }
        end
        self
      rescue ThreadError
        # A signal handler may not lock.
        @sink.send_packet(message)
        self
      end

      # Sends the packet begun.
      # @return [void]
      def flush(blocking: false) # rubocop:disable Lint/UnusedMethodArgument
        @lock.synchronize do
          @report&.each_message { |text| append(text) } if @report&.requested?
          hand_over
        end
      rescue ThreadError
        # The interrupted code of the same thread has the packet.
        nil
      end
      alias before_exit flush

      # Sends the packet begun and ends the thread.
      # @return [void]
      def shutdown(_wait = nil)
        @interval = nil
        @thread&.wakeup if @thread&.alive?
        flush
      end

      # @return [void]
      def close
        @sink.close
      end

      # Drops the packet begun, and counts it.
      # @return [void]
      def discard_the_rest
        @lock.synchronize do
          telemetry.dropped(:queue, @packet.bytesize) unless @packet.empty?
          @packet.clear
          @count = 0
        end
      end

      # The packet belongs to the parent.
      def after_fork
        clear
        start
      end

      # The threads have ended, the packet is still ours.
      def after_daemon
        start
      end

      private

      def clear
        @lock = Mutex.new
        @packet = String.new(capacity: @max_packet_size, encoding: Encoding::BINARY)
        @count = 0
      end

      def start
        return unless @interval

        @thread = StatsD::Instrument::Background.start("dogstatsd-flush") do
          while (seconds = @interval)
            sleep(seconds)
            flush
          end
        end
      end

      def append(message)
        hand_over unless @packet.empty? || @packet.bytesize + 1 + message.bytesize <= @max_packet_size
        @packet << "\n" unless @packet.empty?
        @packet << message.b
        @count += 1
        hand_over if @count >= @max_messages
      end

      # Until it is sent, the packet exists only here.
      def hand_over
        return if @packet.empty?

        packet = @packet.dup
        @packet.clear
        @count = 0
        StatsD::Instrument::Background.uninterrupted { @sink.send_packet(packet) }
      end

      def drop(message)
        telemetry.count(:dropped_oversize)
        StatsD.logger.warn { "[#{self.class.name}] a message of #{message.bytesize} bytes fits into no packet" }
        self
      end
    end

    # Writes each packet to the log of its owner.
    # @api private
    class LoggingSink < StatsD::Instrument::Sink
      def initialize(connection, logger)
        super(connection)
        @logger = logger
      end

      # @param packet [String]
      def send_packet(packet)
        @logger.debug { "Statsd: #{packet}" }
        super
      end

      # @param message [String]
      def <<(message)
        @logger.debug { "Statsd: #{message}" }
        super
      end

      private

      def drop(packet, error)
        @logger.error { "Statsd: #{error.class}: #{error.message}" }
        super
      end
    end

    class << self
      # @raise [Datadog::Statsd::Error] if the message is longer than a packet
      def check_size(message, limit)
        return if message.bytesize <= limit

        raise Datadog::Statsd::Error, "a message of #{message.bytesize} bytes fits into no packet of #{limit} bytes"
      end
    end
  end
end
