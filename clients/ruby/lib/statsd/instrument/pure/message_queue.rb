# frozen_string_literal: true

module StatsD
  module Instrument
    module Pure
      # A bounded queue of messages that are joined into packets when they are taken. Adding neither waits nor raises,
      # so that signal handlers can do it. Only one thread at a time may take.
      # @api private
      class MessageQueue
        # A finished packet. Its messages were counted when they were aggregated.
        class Packet < String
        end

        # Packets taken at once.
        BATCH = 32

        # @param capacity [Integer] messages
        # @param max_packet_size [Integer] bytes
        def initialize(capacity, max_packet_size)
          @capacity = capacity
          @max_packet_size = max_packet_size
          clear
        end

        # @return [Boolean, nil] true: taken; nil: full or closed; false: longer than a packet
        def push(message)
          return false if message.bytesize > @max_packet_size

          begin
            @messages.push(message, true)
          rescue ThreadError, ClosedQueueError
            return
          end
          @bell.empty? ? ring : true
        end

        # The same for a finished packet.
        def push_packet(packet)
          push(Packet.new(packet))
        end

        # @return [Array, nil] packets, messages in each, how many of them are messages, events and checks that are not
        #   counted yet, and how many were waiting; nil when there was nothing
        def take
          waiting = @messages.size
          message = next_message or return
          packets = []
          counts = []
          @uncounted = @events = @checks = 0
          while message && packets.size < BATCH
            packet, count, message = fill(message)
            packets << packet
            counts << count
          end
          @first = message
          [packets, counts, @uncounted, @events, @checks, waiting]
        end

        # @return [Integer] messages that wait
        def length
          @messages.size + (@first ? 1 : 0)
        end

        # Waits until something comes or the queue is closed.
        def park
          @bell.pop
        end

        # Nothing more is taken.
        def close
          @messages.close
          ring
        end

        def clear
          @messages = SizedQueue.new(@capacity)
          # Holds an entry from the first message until a thread has taken it.
          @bell = SizedQueue.new(1)
          @first = nil
        end

        private

        def ring
          @bell.push(true, true)
        rescue ThreadError
          # Somebody else was quicker.
          true
        end

        def next_message
          if @first
            message = @first
            @first = nil
            return message
          end
          @messages.pop(true) unless @messages.empty?
        rescue ThreadError
          nil
        end

        # @return [Array(String, Integer, String)] a packet, messages in it, and the one that did not fit any more
        def fill(message)
          note(message)
          following = next_message
          # A message that is alone needs no room for others.
          return [message.b, 1, following] unless following && fits?(message, following)

          packet = String.new(capacity: @max_packet_size)
          append(packet, message)
          count = 1
          while following && fits?(packet, following)
            note(following)
            append(packet << "\n", following)
            count += 1
            following = next_message
          end
          [packet, count, following]
        end

        def fits?(packet, message)
          packet.bytesize + 1 + message.bytesize <= @max_packet_size
        end

        # Packets are bytes: messages in different encodings must not meet as text.
        def append(packet, message)
          packet << (message.ascii_only? ? message : message.b)
        end

        def note(message)
          return if message.is_a?(Packet)

          @uncounted += 1
          return unless message.getbyte(0) == 0x5f # an underscore

          if message.start_with?("_e{")
            @events += 1
          elsif message.start_with?("_sc|")
            @checks += 1
          end
        end
      end
    end
  end
end
