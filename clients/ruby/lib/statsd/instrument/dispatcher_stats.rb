# frozen_string_literal: true

module StatsD
  module Instrument
    class BatchedSink
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
