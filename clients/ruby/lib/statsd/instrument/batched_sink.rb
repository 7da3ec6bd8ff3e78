# frozen_string_literal: true

module StatsD
  module Instrument
    # Puts messages into a bounded queue; one background thread joins them into packets and sends
    # them through a {Sink}. The sink of the `production` and `staging` environments.
    #
    # A packet is never longer than `max_packet_size`. When the queue is full, `overflow` decides: the
    # calling thread sends the message itself (`:sync`), or the message is dropped and counted (`:drop`).
    class BatchedSink
      # Messages the queue holds.
      DEFAULT_BUFFER_CAPACITY = 5_000
      # Priority of the background thread.
      DEFAULT_THREAD_PRIORITY = 100
      # Bytes in a packet, when the sink does not say.
      DEFAULT_MAX_PACKET_SIZE = UdpConnection::DEFAULT_MAX_PACKET_SIZE
      # Seconds between reports about batching; 0 turns them off.
      DEFAULT_STATISTICS_INTERVAL = 0
      # The possible reactions to a full queue.
      OVERFLOW_POLICIES = %i[sync drop].freeze

      class << self
        # @param addr [String] see {Sink.for_addr}; or `http://host:port` or `http+unix:///path` of an agent that takes
        #   columns. What is no column goes to its default port for datagrams, unless `DD_AGENT_HOST` or
        #   `DD_DOGSTATSD_PORT` says otherwise.
        # @return [BatchedSink]
        def for_addr(addr, **options)
          return new(Sink.for_addr(addr), **options) unless Columns::Endpoint.address?(addr)

          datagrams = Columns::Endpoint.datagram_address(addr, Ractors.main? ? ENV : {})
          new(Sink.for_addr(datagrams), columns_address: addr, **options)
        end

        # @api private
        def finalize(dispatcher)
          proc { dispatcher.finalize }
        end
      end

      # @return [Integer] bytes in the longest packet
      attr_reader :max_packet_size
      # @return [String, nil] where clients with this sink send columns
      attr_reader :columns_address

      # @param sink [Sink] sends the packets
      # @param thread_priority [Integer] of the background thread
      # @param buffer_capacity [Integer] messages the queue holds
      # @param max_packet_size [Integer, nil] bytes; nil asks the sink
      # @param statistics_interval [Numeric] seconds between reports about batching; 0 for none
      # @param overflow [Symbol] `:sync` or `:drop`, see above
      # @param columns_address [String, nil] where clients with this sink send columns
      # @raise [ArgumentError] if the capacity is not positive or the policy unknown
      def initialize(sink, thread_priority: DEFAULT_THREAD_PRIORITY, buffer_capacity: DEFAULT_BUFFER_CAPACITY,
                     max_packet_size: nil, statistics_interval: DEFAULT_STATISTICS_INTERVAL, overflow: :sync,
                     columns_address: nil)
        unless OVERFLOW_POLICIES.include?(overflow)
          raise ArgumentError, "overflow must be one of #{OVERFLOW_POLICIES.inspect}, not #{overflow.inspect}"
        end
        raise ArgumentError, "buffer_capacity must be positive, not #{buffer_capacity}" unless buffer_capacity.positive?

        @sink = sink
        @columns_address = columns_address
        @max_packet_size = max_packet_size || (sink.max_packet_size if sink.respond_to?(:max_packet_size)) ||
                           DEFAULT_MAX_PACKET_SIZE
        @dispatcher = Dispatcher.new(
          sink, buffer_capacity, thread_priority, @max_packet_size, statistics_interval, overflow, telemetry
        )
        # Finalizers of other Ractors would run in the main one, which must not touch their objects.
        ObjectSpace.define_finalizer(self, self.class.finalize(@dispatcher)) if Ractors.main?
      end

      # @return [Telemetry]
      def telemetry
        @telemetry ||= @sink.respond_to?(:telemetry) ? @sink.telemetry : Telemetry.new
      end

      # (see Sink#sample?)
      def sample?(sample_rate)
        sample_rate == 1.0 || rand < sample_rate
      end

      # @param datagram [String] a message
      # @return [self]
      def <<(datagram)
        @dispatcher << datagram
        self
      end

      # @return [Dispatcher]
      # @api private
      attr_reader :dispatcher

      # @return [String, nil]
      def host
        @sink.host
      end

      # @return [Integer, nil]
      def port
        @sink.port
      end

      # @return [#send_datagram, nil] the connection of the calling thread; nil if the sink has none
      def connection
        @sink.connection if @sink.respond_to?(:connection)
      end

      # Sends the queued messages and ends the background thread. Later messages are sent
      # by the calling thread.
      # @param wait [Numeric] seconds the thread gets to finish
      # @return [void]
      def shutdown(wait = 2)
        @dispatcher.shutdown(wait)
      end

      # Sends the queued messages, and waits for those the background thread had already taken: the first recorded
      # is sent first.
      # @param blocking [Boolean] makes no difference
      # @return [void]
      def flush(blocking: false) # rubocop:disable Lint/UnusedMethodArgument
        @dispatcher.flush
      end

      # Takes a finished packet of several messages. Never drops it for lack of room: aggregation runs
      # in the background, where waiting costs nobody.
      # @api private
      def push_packet(packet)
        @dispatcher.push_packet(packet)
      end
    end
  end
end
