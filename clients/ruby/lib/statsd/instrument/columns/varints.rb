# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # Integers that are not negative, seven bits to a byte, the lowest first.
      # @api private
      module Varints
        class << self
          # @param bytes [String] gets the integer at its end
          def add(bytes, value)
            while value > 0x7F
              bytes << ((value & 0x7F) | 0x80)
              value >>= 7
            end
            bytes << value
          end

          # Most of them are less than 128: each is a byte then.
          # @param values [Array<Integer>]
          # @return [String]
          def write(values)
            first, *others = values
            bytes = String.new(encoding: Encoding::BINARY)
            add(bytes, first) if first
            return bytes << others.pack("C*") if others.empty? || others.max <= 0x7F

            others.each { |value| add(bytes, value) }
            bytes
          end

          # @param bytes [String]
          # @return [Array<Integer>]
          def read(bytes)
            values = []
            value = shift = 0
            bytes.each_byte do |byte|
              value |= (byte & 0x7F) << shift
              shift += 7
              next if byte > 0x7F

              values << value
              value = shift = 0
            end
            values
          end
        end
      end
    end
  end
end
