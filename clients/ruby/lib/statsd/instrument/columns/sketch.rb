# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # A distribution of one window: how many values each bin has, and count, sum and extremes. Two of them merge
      # without loss. Keys, limits and collapsing are the agent's, bin for bin.
      # @api private
      class Sketch
        # Before a sketch at rest has only keys that are not negative.
        OFFSET = 32_768
        private_constant :OFFSET

        class << self
          # Counts the lowest bins in the lowest of the highest {Keys::BINS_MAX}.
          # @param bins [Array<Array(Integer, Integer)>] in the order of their keys
          # @return [Array<Array(Integer, Integer)>]
          def collapse(bins)
            excess = bins.size - Keys::BINS_MAX
            return bins unless excess.positive?

            kept = bins.drop(excess)
            kept[0] = [kept[0][0], kept[0][1] + bins.first(excess).sum(&:last)]
            kept
          end
        end

        attr_reader :count, :sum, :min, :max

        # @param keys [Keys::Table]
        def initialize(keys)
          @keys = keys
          # The extension reads these variables by their names, and writes them.
          @table = keys.packed
          @count = 0
          @sum = 0.0
          @min = Float::INFINITY
          @max = -Float::INFINITY
          @counts = Hash.new(0)
          @packed = nil
        end

        # @param value [Float] finite
        # @param times [Integer]
        # @return [void]
        def add(value, times = 1)
          return if times.zero?

          @count += times
          @sum += value * times
          @min = value if value < @min
          @max = value if value > @max
          @counts[@keys.key(value)] += times
          collapse if @counts.size > 2 * Keys::BINS_MAX
        end

        # @param values [Array<Float>] finite
        # @return [void]
        def add_each(values)
          sum = @sum
          counts = @counts
          keys = @keys
          values.each do |value|
            sum += value
            counts[keys.key(value)] += 1
          end
          @sum = sum
          low, high = values.minmax
          @min = low if low && low < @min
          @max = high if high && high > @max
          @count += values.size
          collapse if counts.size > 2 * Keys::BINS_MAX
        end

        # @return [Array<Array(Integer, Integer)>] keys and counts in the order of the keys
        def bins
          return unpack if @packed

          self.class.collapse(@counts.sort)
        end

        # The bins as they are sent: a count beyond 32 bits is several, the rest first.
        # @yieldparam key [Integer]
        # @yieldparam count [Integer]
        def each_part
          bins.each do |key, count|
            full, rest = count.divmod(0xFFFF_FFFF)
            yield key, rest if rest.positive?
            full.times { yield key, 0xFFFF_FFFF }
          end
        end

        # Nothing is added any more, so the bins may take little memory.
        # @return [self]
        def rest
          return self if @packed

          before = -OFFSET
          numbers = bins.flat_map do |key, count|
            step = key - before
            before = key
            [step, count]
          end
          @packed = numbers.pack("w*")
          @counts = nil
          self
        end

        # @return [Integer] bytes, as long as it is at rest
        def bytes
          @packed.bytesize
        end

        # @param other [Sketch] recorded later; both are at rest
        # @return [Sketch] at rest, with the values of both
        def merge(other)
          merged = Sketch.new(@keys)
          merged.take_over(self)
          merged.take_over(other)
          merged.rest
        end

        protected

        def take_over(sketch)
          @count += sketch.count
          @sum += sketch.sum
          @min = [@min, sketch.min].min
          @max = [@max, sketch.max].max
          sketch.bins.each { |key, count| @counts[key] += count }
        end

        private

        def collapse
          @counts = Hash.new(0).merge!(self.class.collapse(@counts.sort).to_h)
        end

        def unpack
          key = -OFFSET
          @packed.unpack("w*").each_slice(2).map { |step, count| [key += step, count] }
        end
      end
    end
  end
end
