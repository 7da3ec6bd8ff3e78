# frozen_string_literal: true

module StatsD
  module Instrument
    # Takes the lines of a flush and joins them into packets that are never longer than agreed.
    # @api private
    class PacketWriter
      # @return [Integer] lines written so far
      attr_reader :lines

      # @param max_packet_size [Integer] bytes
      # @param telemetry [Telemetry]
      # @yieldparam packet [String] one packet; the receiver may keep it
      def initialize(max_packet_size, telemetry, &send)
        @max = max_packet_size
        @telemetry = telemetry
        @send = send
        @packet = new_packet
        @lines = 0
      end

      # @param text [String] one value, or several joined with `:`
      # @return [void]
      def line(template, text)
        head = template.head_bytes
        tail = template.tail_bytes
        text = text.b unless text.ascii_only?
        until fits?(head, text, tail)
          # A message that is too long for the rest of this packet may fit into the next.
          unless @packet.empty? || head.bytesize + text.bytesize + tail.bytesize > @max
            finish
            next
          end
          text = part(head, text, tail) or return
        end
        append(head, text, tail)
      end

      # Adds a finished message, which counts as no sample.
      # @param text [String] with a newline nowhere
      # @return [void]
      def message(text)
        return @telemetry.count(:dropped_oversize) if text.bytesize > @max

        finish unless @packet.empty? || @packet.bytesize + 1 + text.bytesize <= @max
        @packet << "\n" unless @packet.empty?
        @packet << text.b
      end

      # Counts samples whose sum no server can read.
      # @return [Integer] samples sent
      def refuse(samples)
        @telemetry.count(:dropped_invalid, samples)
        0
      end

      # Sends the packet begun, if any.
      # @return [void]
      def finish
        return if @packet.empty?

        packet = @packet
        @packet = new_packet
        hand_over(packet)
      end

      private

      # Sinks of the library do not raise; if another sink raises, only its message is lost.
      def hand_over(packet)
        @send.call(packet)
      rescue StandardError => e
        @telemetry.dropped(:writer, packet.bytesize)
        StatsD.logger.error { "[#{self.class.name}] sending failed: #{e.class}: #{e.message}" }
      end

      def new_packet
        String.new(capacity: @max, encoding: Encoding::BINARY)
      end

      def room(head, tail)
        used = @packet.empty? ? 0 : @packet.bytesize + 1
        @max - used - head.bytesize - tail.bytesize
      end

      def fits?(head, text, tail)
        text.bytesize <= room(head, tail)
      end

      def append(head, text, tail)
        @packet << "\n" unless @packet.empty?
        @packet << head << text << tail
        @lines += 1
      end

      # Writes as many values as fit and ends the packet.
      # @return [String, nil] the values that are left
      def part(head, text, tail)
        space = room(head, tail)
        # Members of sets are never packed; a colon in them is text.
        cut = space.positive? && tail.getbyte(1) != 0x73 ? text.rindex(":", space) : nil
        if cut
          append(head, text.byteslice(0, cut), tail)
          finish
          return text.byteslice((cut + 1)..)
        end
        unless @packet.empty?
          finish
          return text
        end

        skip_value(text, tail)
      end

      # Not even one value fits into an empty packet.
      def skip_value(text, tail)
        @telemetry.count(:dropped_oversize)
        colon = tail.getbyte(1) == 0x73 ? nil : text.index(":")
        colon && text.byteslice((colon + 1)..)
      end
    end

    # Hands the lines of a flush on one by one, for sinks that know nothing of packets.
    # @api private
    class LineWriter
      # Bytes in a line with several values.
      MAX_LINE_SIZE = 8_192

      def initialize(sink, telemetry)
        @writer = PacketWriter.new(MAX_LINE_SIZE, telemetry) do |line|
          sink << line.force_encoding(Encoding::UTF_8)
        end
      end

      def line(template, text)
        @writer.line(template, text)
        @writer.finish
      end

      # (see PacketWriter#message)
      def message(text)
        @writer.message(text)
        @writer.finish
      end

      # (see PacketWriter#refuse)
      def refuse(samples)
        @writer.refuse(samples)
      end

      # @return [Integer] lines written so far
      def lines
        @writer.lines
      end

      def finish; end
    end
  end
end
