# frozen_string_literal: true

module StatsD
  module Instrument
    class BatchedSink
      # A {Dispatcher} whose queue joins messages into packets as they come, and which hands many packets to the
      # kernel at once, without the interpreter lock.
      # @api private
      class NativeDispatcher < Dispatcher
        # @return [Native::Queue]
        attr_reader :queue

        def initialize(sink, buffer_capacity, _thread_priority, max_packet_size, *)
          @queue = Native::Queue.new(buffer_capacity, max_packet_size)
          @barriers = Queue.new
          @many = sink.is_a?(Sink) && sink.method(:send_packet).owner.equal?(Sink)
          super
        end

        def <<(datagram)
          case @queue.push(datagram)
          when nil then overflow(datagram)
          when false then drop_oversize(datagram)
          end
          self
        end

        def push_packet(packet)
          @queue.push_packet(packet) || send_now(Packet.new(packet))
          ensure_running
        end

        def shutdown(wait = 2)
          @interrupted = true
          @sink.end_within(wait) if @sink.respond_to?(:end_within)
          @queue.close
          thread = @dispatcher_thread
          thread.join(wait) if thread&.alive? && thread != Thread.current
          drain
        end

        def flush(blocking:)
          drain
          return unless blocking && @dispatcher_thread&.alive?
          return if @queue.parked?

          barrier = Barrier.new
          @barriers << barrier
          @queue.wake
          barrier.wait(5)
        rescue ThreadError
          # A signal handler may not wait; what could be sent from here is sent.
          nil
        end

        def after_fork
          @barriers = Queue.new
          @queue.clear
          @dispatcher_thread = nil
          start unless @interrupted
        end

        private

        # The caller makes room by sending what is in front, many packets at once.
        def overflow(datagram)
          ensure_running
          return super if @interrupted || @overflow == :drop

          @statistics&.increment_synchronous_sends
          send_batch
          send_now(datagram) unless @queue.push(datagram)
        end

        def new_buffer; end

        def dispatch
          until @interrupted
            begin
              next if send_batch

              pass_barriers
              @queue.park
            rescue StandardError => e
              StatsD.logger.error { "[#{self.class.name}] sending failed: #{e.class}: #{e.message}" }
            end
          end
          drain
          pass_barriers
        end

        def drain
          nil while send_batch
        end

        # Nothing queued before these is on its way any more.
        def pass_barriers
          @barriers.pop(true).pass until @barriers.empty?
        rescue ThreadError
          # Somebody else took the last one.
          nil
        end

        # @return [Boolean, nil] whether there was something
        def send_batch
          packets, items, messages, events, checks, waiting = @queue.take
          return unless packets

          begin
            @many ? @sink.send_packets(packets) : packets.each { |packet| send_packet(packet) }
          ensure
            @telemetry.accepted(messages, events, checks) if messages.positive?
          end
          report(packets, items, waiting) if @statistics
          true
        end

        def report(packets, items, waiting)
          packets.zip(items) do |packet, count|
            @statistics.increment_batched_sends(waiting, packet.bytesize, count)
            waiting -= count
          end
          @statistics.maybe_flush!
        end
      end
    end
  end
end
