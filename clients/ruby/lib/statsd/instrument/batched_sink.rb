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
      # What a full queue can mean.
      OVERFLOW_POLICIES = %i[sync drop].freeze

      class << self
        # @param addr [String] see {Sink.for_addr}
        # @return [BatchedSink]
        def for_addr(addr, **options)
          new(Sink.for_addr(addr), **options)
        end

        # @api private
        def finalize(dispatcher)
          proc { dispatcher.shutdown }
        end
      end

      # @return [Integer] bytes in the longest packet
      attr_reader :max_packet_size

      # @param sink [Sink] what sends the packets
      # @param thread_priority [Integer] of the background thread
      # @param buffer_capacity [Integer] messages the queue holds
      # @param max_packet_size [Integer, nil] bytes; nil asks the sink
      # @param statistics_interval [Numeric] seconds between reports about batching; 0 for none
      # @param overflow [Symbol] `:sync` or `:drop`, see above
      # @raise [ArgumentError] if the capacity is not positive or the policy unknown
      def initialize(sink, thread_priority: DEFAULT_THREAD_PRIORITY, buffer_capacity: DEFAULT_BUFFER_CAPACITY,
                     max_packet_size: nil, statistics_interval: DEFAULT_STATISTICS_INTERVAL, overflow: :sync)
        unless OVERFLOW_POLICIES.include?(overflow)
          raise ArgumentError, "overflow must be one of #{OVERFLOW_POLICIES.inspect}, not #{overflow.inspect}"
        end
        raise ArgumentError, "buffer_capacity must be positive, not #{buffer_capacity}" unless buffer_capacity.positive?

        @sink = sink
        @max_packet_size = max_packet_size || (sink.max_packet_size if sink.respond_to?(:max_packet_size)) ||
                           DEFAULT_MAX_PACKET_SIZE
        @dispatcher = Dispatcher.new(
          sink, buffer_capacity, thread_priority, @max_packet_size, statistics_interval, overflow, telemetry
        )
        ObjectSpace.define_finalizer(self, self.class.finalize(@dispatcher))
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

      # @return [String, nil]
      def host
        @sink.host
      end

      # @return [Integer, nil]
      def port
        @sink.port
      end

      # @return [#send_datagram] the connection of the calling thread
      def connection
        @sink.connection
      end

      # Sends what is in the queue and ends the background thread. Messages that come later are sent
      # by the calling thread.
      # @param wait [Numeric] seconds the thread gets to finish
      # @return [void]
      def shutdown(wait = 2)
        @dispatcher.shutdown(wait)
      end

      # @param blocking [Boolean] false: send what is queued from here and return. true: also wait until
      #   what the background thread had already taken is sent.
      # @return [void]
      def flush(blocking: false)
        @dispatcher.flush(blocking: blocking)
      end

      # Takes a finished packet of several messages. Never drops it for lack of room: aggregation runs
      # in the background, where waiting costs nobody.
      # @api private
      def push_packet(packet)
        @dispatcher.push_packet(packet)
      end

      # A bounded queue whose operations neither block nor raise, so that signal handlers can use it.
      # @api private
      class Buffer < SizedQueue
        # @return [Object, nil] nil when there was no room
        def push_nonblock(item)
          push(item, true)
        rescue ThreadError, ClosedQueueError
          nil
        end

        # @return [Object, nil] nil when there was nothing
        def pop_nonblock
          pop(true)
        rescue ThreadError
          nil
        end

        def inspect
          "<#{self.class.name}:#{object_id} capacity=#{max} size=#{size}>"
        end
      end

      # A finished packet in the queue. Its messages were counted when they were aggregated.
      # @api private
      class Packet < String
      end

      # How well batching works, as metrics of the application.
      # @api private
      class DispatcherStats
        def initialize(interval, type)
          @interval = interval
          @prefix = "statsd_instrument.batched_#{type}_sink."
          @mutex = Mutex.new
          @since = now
          reset
        end

        # Sends by a calling thread because the queue was full: raise the capacity if this is not rare.
        def increment_synchronous_sends
          @mutex.synchronize { @synchronous_sends += 1 }
        end

        # @param buffer_length [Integer] messages waiting when the packet was begun
        # @param packet_size [Integer] bytes in the packet
        # @param batch_length [Integer] messages in the packet
        def increment_batched_sends(buffer_length, packet_size, batch_length)
          @mutex.synchronize do
            @batched_sends += 1
            @avg_buffer_length += (buffer_length - @avg_buffer_length) / @batched_sends
            @avg_batched_packet_size += (packet_size - @avg_batched_packet_size) / @batched_sends
            @avg_batch_length += (batch_length - @avg_batch_length) / @batched_sends
          end
        end

        # Emits and resets the numbers when the interval is over.
        # @return [void]
        def maybe_flush!(force: false)
          return unless force || now - @since >= @interval

          synchronous_sends, batched_sends, *averages = @mutex.synchronize { reset }
          StatsD.increment("#{@prefix}synchronous_sends", synchronous_sends)
          StatsD.increment("#{@prefix}batched_sends", batched_sends)
          %w[avg_buffer_length avg_batched_packet_size avg_batch_length].zip(averages) do |name, value|
            StatsD.gauge("#{@prefix}#{name}", value)
          end
        end

        private

        def reset
          before = [@synchronous_sends, @batched_sends, @avg_buffer_length, @avg_batched_packet_size, @avg_batch_length]
          @synchronous_sends = @batched_sends = 0
          @avg_buffer_length = @avg_batched_packet_size = @avg_batch_length = 0
          @since = now
          before
        end

        def now
          Process.clock_gettime(Process::CLOCK_MONOTONIC)
        end
      end

      # Owns the queue and the background thread.
      # @api private
      class Dispatcher
        NEWLINE = "\n"
        private_constant :NEWLINE

        # Asks the background thread to say when everything queued before it is sent.
        class Barrier
          def initialize
            @mutex = Mutex.new
            @passed = ConditionVariable.new
            @done = false
          end

          def pass
            @mutex.synchronize do
              @done = true
              @passed.broadcast
            end
          end

          # @return [Boolean] whether it was passed in time
          def wait(seconds)
            deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
            @mutex.synchronize do
              until @done
                left = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
                return false if left <= 0

                @passed.wait(@mutex, left)
              end
            end
            true
          end
        end
        private_constant :Barrier

        def initialize(sink, buffer_capacity, thread_priority, max_packet_size, statistics_interval, overflow,
                       telemetry)
          @sink = sink
          @buffer_capacity = buffer_capacity
          @thread_priority = thread_priority
          @max_packet_size = max_packet_size
          @overflow = overflow
          @telemetry = telemetry
          @whole_packets = sink.respond_to?(:send_packet)
          @interrupted = false
          @statistics = DispatcherStats.new(statistics_interval, sink.connection.type) if statistics_interval.positive?
          @buffer = Buffer.new(buffer_capacity)
          @dispatcher_thread = nil
          start
          ForkTracker.track(self)
        end

        def <<(datagram)
          if datagram.bytesize > @max_packet_size
            drop_oversize(datagram)
          else
            begin
              @buffer.push(datagram, true)
            rescue ThreadError, ClosedQueueError
              overflow(datagram)
            end
          end
          self
        end

        def push_packet(packet)
          packet = Packet.new(packet)
          @buffer.push_nonblock(packet) || send_now(packet)
          ensure_running
        end

        def shutdown(wait = 2)
          @interrupted = true
          @buffer.close
          thread = @dispatcher_thread
          thread.join(wait) if thread&.alive? && thread != Thread.current
          drain
        end

        def flush(blocking:)
          drain
          return unless blocking && @dispatcher_thread&.alive?

          barrier = Barrier.new
          barrier.wait(5) if @buffer.push_nonblock(barrier)
        rescue ThreadError
          # A signal handler may not wait; what could be sent from here is sent.
          nil
        end

        # Starts the thread again if something killed it.
        def ensure_running
          start unless @interrupted || @dispatcher_thread&.alive?
        end

        # What is queued belongs to the parent; the child starts empty.
        def after_fork
          @buffer = Buffer.new(@buffer_capacity)
          @buffer.close if @interrupted
          @dispatcher_thread = nil
          start unless @interrupted
        end

        def after_daemon
          start unless @interrupted
        end

        private

        def start
          @dispatcher_thread = Background.start("statsd-dispatcher", priority: @thread_priority) { dispatch }
        end

        def overflow(datagram)
          ensure_running
          if @overflow == :drop && !@buffer.closed?
            @telemetry.dropped(:queue, datagram.bytesize)
          else
            @statistics&.increment_synchronous_sends
            send_now(datagram)
          end
        end

        def send_now(message)
          send_packet(message)
          @telemetry.accepted(1) unless message.is_a?(Packet)
        end

        def drop_oversize(datagram)
          @telemetry.count(:dropped_oversize)
          StatsD.logger.warn do
            "[#{self.class.name}] a message of #{datagram.bytesize} bytes was dropped: " \
              "packets end at #{@max_packet_size} bytes"
          end
        end

        def dispatch
          until @interrupted
            begin
              buffer = @buffer
              first = buffer.pop
              send_batch(buffer, first) if first
            rescue StandardError => e
              StatsD.logger.error { "[#{self.class.name}] sending failed: #{e.class}: #{e.message}" }
            end
          end
          drain
        end

        def drain
          buffer = @buffer
          while (first = buffer.pop_nonblock)
            send_batch(buffer, first)
          end
        end

        # Sends the message and as many of those behind it as fit, until the queue is empty.
        def send_batch(buffer, message)
          packet = String.new(capacity: @max_packet_size)
          tally = [0, 0, 0]
          while message
            if message.is_a?(Barrier)
              message.pass
              message = buffer.pop_nonblock
              next
            end
            waiting = buffer.length + 1
            packet.clear
            append(packet, message, tally)
            count = 1
            while (message = buffer.pop_nonblock)
              break if message.is_a?(Barrier) || packet.bytesize + 1 + message.bytesize > @max_packet_size

              append(packet << NEWLINE, message, tally)
              count += 1
            end
            send_packet(packet)
            @statistics&.increment_batched_sends(waiting, packet.bytesize, count)
            @statistics&.maybe_flush!
          end
        ensure
          @telemetry.accepted(*tally) unless tally.nil? || tally.first.zero?
        end

        # Packets are bytes: messages in different encodings must not meet as text.
        def append(packet, message, tally)
          packet << (message.ascii_only? ? message : message.b)
          return if message.is_a?(Packet)

          tally[0] += 1
          if message.start_with?("_e{")
            tally[1] += 1
          elsif message.start_with?("_sc|")
            tally[2] += 1
          end
        end

        def send_packet(packet)
          @whole_packets ? @sink.send_packet(packet) : @sink << packet
        end
      end
    end
  end
end
