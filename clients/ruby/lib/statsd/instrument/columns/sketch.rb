# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # A distribution of one window: how many values each bin has, and count, sum and extremes. Two of them merge
      # without loss. Keys, limits and collapsing are the agent's, bin for bin.
      # @api private
      class Sketch
        # The largest count of a bin as it is sent.
        COUNT_MAX = 0xFFFF_FFFF
        private_constant :COUNT_MAX

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
          @count = 0
          @sum = 0.0
          @min = Float::INFINITY
          @max = -Float::INFINITY
          @counts = Hash.new(0)
          @bins = @steps = @sizes = nil
          @parts = 0
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

        # Takes bins that were filled without a call of Ruby.
        # @param bins [Object] as {Backend} has them; nobody adds to them any more
        # @return [void]
        def add_bins(bins)
          add_extremes(bins)
          # Most sketches have the bins of one cell alone.
          return @bins = bins if @bins.nil? && @counts.empty?

          [@bins, bins].compact.each { |some| add_counts(some.counts) }
          @bins = nil
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

        # At rest.
        # @return [Array<Array(Integer, Integer)>] keys and counts in the order of the keys
        def bins
          key = 0
          Varints.read(@steps).zip(Varints.read(@sizes)).map { |step, count| [key += (step >> 1) ^ -(step & 1), count] }
        end

        # Nothing is added any more. The bins take little memory, and are as a payload has them: a count beyond 32 bits
        # is several of the same key, the rest first.
        # @return [self]
        def rest
          return self if @steps

          encoded = @bins.encode if @bins && @counts.empty?
          @parts, @steps, @sizes = encoded || encode
          @bins&.release
          @bins = @counts = nil
          self
        end

        # At rest: how many parts the bins have.
        # @return [Integer]
        attr_reader :parts
        # At rest: for each the difference of its key to the one before, as a signed integer of the wire.
        # @return [String]
        attr_reader :steps
        # At rest: for each its count.
        # @return [String]
        attr_reader :sizes

        # @return [Integer] bytes, as long as it is at rest
        def bytes
          @steps.bytesize + @sizes.bytesize
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
          add_extremes(sketch)
          add_counts(sketch.bins)
        end

        private

        def collapse
          @counts = Hash.new(0).merge!(self.class.collapse(@counts.sort).to_h)
        end

        # Adds count, sum and extremes.
        def add_extremes(other)
          @count += other.count
          @sum += other.sum
          @min = [@min, other.min].min
          @max = [@max, other.max].max
        end

        def add_counts(counts)
          counts.each { |key, count| @counts[key] += count }
        end

        def encode
          add_counts(@bins.counts) if @bins
          steps, counts = sorted
          steps, counts = divide(steps, counts) if counts.max.to_i > COUNT_MAX
          [steps.size, Varints.write(steps), Varints.write(counts)]
        end

        # Differences between the keys as they are on the wire, and counts.
        def sorted
          collapse if @counts.size > Keys::BINS_MAX
          keys = @counts.keys.sort!
          before = 0
          steps = keys.map do |key|
            step = key - before
            before = key
            step << 1
          end
          # Only the first may be negative.
          steps[0] = (-steps[0]) - 1 if steps[0]&.negative?
          [steps, @counts.values_at(*keys)]
        end

        def divide(steps, counts)
          divided = steps.zip(counts).flat_map do |step, count|
            full, rest = count.divmod(COUNT_MAX)
            sizes = [*(rest if rest.positive?), *Array.new(full, COUNT_MAX)]
            sizes.each_with_index.map { |size, index| [index.zero? ? step : 0, size] }
          end
          divided.transpose
        end
      end
    end
  end
end
