# frozen_string_literal: true

module StatsD
  module Instrument
    class BatchedSink
      # Owns the queue and the background thread.
      #
      # Only one thread at a time takes packets out of the queue and sends them. So whatever is sent was recorded after
      # what was sent before it, whether the background thread sends, a thread that flushes, or one that found the queue
      # full: a gauge never goes back to an older value.
      # @api private
      class Dispatcher
        def initialize(sink, buffer_capacity, thread_priority, max_packet_size, statistics_interval, overflow,
                       telemetry)
          @sink = sink
          @thread_priority = thread_priority
          @max_packet_size = max_packet_size
          @overflow = overflow
          @telemetry = telemetry
          @sends_batches = sink.is_a?(Sink) && sink.method(:send_packet).owner.equal?(Sink)
          @interrupted = false
          @statistics = DispatcherStats.new(statistics_interval, sink.connection.type) if statistics_interval.positive?
          @queue = Backend::MessageQueue.new(buffer_capacity, max_packet_size)
          @sending = Mutex.new
          @dispatcher_thread = nil
          start
          ForkTracker.track(self)
        end

        # @return [Backend::MessageQueue]
        attr_reader :queue

        def <<(datagram)
          case @queue.push(datagram)
          when nil then overflow(datagram)
          when false then drop_oversize(datagram)
          end
          self
        end

        # Takes a finished packet, whose messages were counted before.
        def push_packet(packet)
          @queue.push_packet(packet) || send_after_the_others(packet, counted: true) { @queue.push_packet(packet) }
          ensure_running
        end

        # @param wait [Numeric] seconds the background thread gets
        def shutdown(wait = 2)
          @sink.end_within(wait) if @sink.respond_to?(:end_within)
          stop
          thread = @dispatcher_thread
          thread.join(wait) if thread&.alive? && thread != Thread.current
          flush
        end

        # Sends the queue, after the messages that the background thread has already taken.
        def flush
          send_all
        rescue ThreadError
          # A signal handler may not lock, but a thread started by it may.
          send_in_background&.join(1)
        end

        # A finalizer can interrupt any code, so it must not wait for anything.
        # @see BatchedSink.finalize
        def finalize
          stop
          # A thread that is alive sends the rest before it ends.
          return if @dispatcher_thread&.alive? || @queue.length.zero?
          return send_in_background if @sending.locked?

          send_all
        rescue ThreadError
          # The collector runs finalizers where signal handlers run, too, which may not lock.
          send_in_background
        end

        # Starts the thread again if something killed it.
        def ensure_running
          start unless @interrupted || @dispatcher_thread&.alive?
        end

        # Queued messages belong to the parent; the child starts empty.
        def after_fork
          @sending = Mutex.new
          @queue.clear
          @queue.close if @interrupted
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

        def stop
          @interrupted = true
          @queue.close
        end

        def send_in_background
          Background.start("statsd-flush-now") { send_all }
        end

        def dispatch
          until @interrupted
            begin
              @queue.park
              send_all
            rescue StandardError => e
              StatsD.logger.error { "[#{self.class.name}] sending failed: #{e.class}: #{e.message}" }
            end
          end
          send_all
        end

        def send_all
          # Others get their turn between two batches.
          Thread.pass while in_turn { send_batch } && @queue.length.positive?
        end

        # Until they are sent, messages taken from the queue exist only here.
        def in_turn
          @sending.synchronize { Background.uninterrupted { yield } } # rubocop:disable Style/ExplicitBlockArgument
        end

        # The queue has no room, or is closed.
        def overflow(datagram)
          ensure_running
          if @overflow == :drop && !@interrupted
            @telemetry.dropped(:queue, datagram.bytesize)
          else
            @statistics&.increment_synchronous_sends
            send_after_the_others(datagram) { @queue.push(datagram) }
          end
        end

        # The caller makes room by sending the oldest messages.
        # @yield puts the message into the queue
        def send_after_the_others(message, counted: false)
          in_turn do
            send_batch
            next if yield

            nil while send_batch
            send_now(message, counted)
          end
        rescue ThreadError
          # A signal handler may not lock; nor may a sink that reports about itself while it sends.
          send_now(message, counted)
        end

        def send_now(message, counted)
          @telemetry.accepted_message(message) unless counted
          send_packet(message)
        end

        # @return [Boolean, nil] whether there was something
        def send_batch
          packets, counts, messages, events, checks, waiting = @queue.take
          return unless packets

          @telemetry.accepted(messages, events, checks) if messages.positive?
          @sends_batches ? @sink.send_packets(packets) : packets.each { |packet| send_packet(packet) }
          report(packets, counts, waiting) if @statistics
          true
        end

        def report(packets, counts, waiting)
          packets.zip(counts) do |packet, count|
            @statistics.increment_batched_sends(waiting, packet.bytesize, count)
            waiting -= count
          end
          @statistics.maybe_flush!
        end

        def drop_oversize(datagram)
          @telemetry.count(:dropped_oversize)
          StatsD.logger.warn do
            "[#{self.class.name}] a message of #{datagram.bytesize} bytes was dropped: " \
              "packets end at #{@max_packet_size} bytes"
          end
        end

        def send_packet(packet)
          @sink.respond_to?(:send_packet) ? @sink.send_packet(packet) : @sink << packet
        rescue StandardError => e
          # Sinks of the library do not raise; if another sink raises, its message is lost.
          @telemetry.dropped(:writer, packet.bytesize)
          StatsD.logger.error { "[#{self.class.name}] sending failed: #{e.class}: #{e.message}" }
        end
      end

      # Statistics of batching, sent as metrics of the application.
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
    end
  end
end
