# frozen_string_literal: true

module StatsD
  module Instrument
    class BatchedSink
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
          @buffer = new_buffer
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
          @sink.end_within(wait) if @sink.respond_to?(:end_within)
          @buffer.close
          thread = @dispatcher_thread
          thread.join(wait) if thread&.alive? && thread != Thread.current
          drain
        end

        def flush(blocking:)
          drain
          return unless blocking && @dispatcher_thread&.alive?
          # It waits for messages, so nothing is on its way.
          return if @buffer.num_waiting.positive?

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
          @buffer = new_buffer
          @buffer.close if @interrupted
          @dispatcher_thread = nil
          start unless @interrupted
        end

        def after_daemon
          start unless @interrupted
        end

        private

        def new_buffer
          Buffer.new(@buffer_capacity)
        end

        def start
          @dispatcher_thread = Background.start("statsd-dispatcher", priority: @thread_priority) { dispatch }
        end

        def overflow(datagram)
          ensure_running
          if @overflow == :drop && !@interrupted
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
