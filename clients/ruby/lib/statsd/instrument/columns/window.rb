# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # Name, tags and cardinality of a context, and the rate of its samples, read from the text of its lines.
      # @api private
      class Identity
        attr_reader :name, :tags, :cardinality, :rate
        # @return [String] equal for equal series, and for equal tags and cardinality
        attr_reader :key, :tag_key

        # @param template [Template]
        def initialize(template)
          @name = template.head.delete_suffix(":").freeze
          @tags = @cardinality = @rate = nil
          template.tail.split("|").drop(2).each { |field| read(field) }
          @tag_key = "#{@tags}|#{@cardinality}".freeze
          @key = "#{@name}|#{@tag_key}".freeze
          @left = 0.0
        end

        # Returns how many values one sample stands for, in whole numbers, as the agent does: the fraction is left over
        # for the next.
        # @return [Integer]
        def weight
          due = (1.0 / @rate) + @left
          whole = due.floor
          @left = due - whole
          whole
        end

        private

        def read(field)
          case field.getbyte(0)
          when 0x40 then @rate = rate_in(field) # at sign
          when 0x23 then @tags = field.byteslice(1..) # number sign
          else @cardinality = field.delete_prefix("card:") if field.start_with?("card:")
          end
        end

        def rate_in(field)
          rate = Float(field.byteslice(1..), exception: false) || 1.0
          rate if rate.positive? && rate < 1
        end
      end

      # Counts, gauges and distributions between two moments. It has a number only when it is a payload.
      # @api private
      class Window
        # A count or a gauge. The time is that of a gauge: of windows that are merged, the last value stays.
        Point = Struct.new(:identity, :value, :at)
        # A part of a window as it is sent, again and again with the same number until it is accepted.
        Payload = Struct.new(:path, :body, :points, :number, :serial, :tried)

        # Bytes of points without their text.
        POINT_BYTES = 160
        SKETCH_BYTES = 240

        # Seconds, since 1970: when it began and ended.
        attr_accessor :at, :end
        # @return [Integer] the place of its oldest part in the order of windows
        attr_accessor :serial
        # @return [Hash{String => Point}]
        attr_reader :counts, :gauges
        # @return [Hash{String => Array(Identity, Sketch)}]
        attr_reader :sketches

        # @param keys [Keys::Table]
        def initialize(keys)
          @keys = keys
          @counts = {}
          @gauges = {}
          @sketches = {}
          @at = @end = @serial = 0
          @bytes = nil
        end

        # @return [Boolean] false if the sum is no finite number
        def count(template, sum)
          identity = template.identity
          sum = sum.to_f / identity.rate if identity.rate
          return false unless sum.to_f.finite?

          point = @counts[identity.key] ||= Point.new(identity, 0)
          point.value += sum
          true
        end

        def gauge(template, value)
          identity = template.identity
          (@gauges[identity.key] ||= Point.new(identity)).value = float(value)
        end

        # @param values [Array] as cells of samples have them
        def samples(template, values)
          identity = template.identity
          sketch = sketch(identity)
          if identity.rate
            floats(values).each { |value| sketch.add(value, identity.weight) }
          else
            bins, left = Backend.bins(@keys.packed, values)
            sketch.add_bins(bins) if bins
            sketch.add_each(floats(left)) if left
          end
        end

        # @return [String, nil] the table with which cells may add samples to bins of their own; nil if these stand for
        #   more than one value
        def table(template)
          @keys.packed unless template.identity.rate
        end

        # @param bins [Object] of a cell
        def add_bins(template, bins)
          sketch(template.identity).add_bins(bins)
        end

        # @return [Integer] points
        def size
          @counts.size + @gauges.size + @sketches.size
        end

        # Nothing is added any more.
        # @return [self]
        def close(start, ending)
          @at = start
          @end = ending
          @sketches.delete_if { |_, (_, sketch)| sketch.count.zero? }
          @sketches.each_value { |_, sketch| sketch.rest }
          @gauges.each_value { |point| point.at ||= ending - WINDOW }
          self
        end

        # @return [Integer] memory, once it is closed
        def bytes
          @bytes ||= (@counts.values + @gauges.values).sum { |point| POINT_BYTES + point.identity.key.bytesize } +
                     @sketches.each_value.sum do |identity, sketch|
                       SKETCH_BYTES + identity.key.bytesize + sketch.bytes
                     end
        end

        # @param later [Window]
        # @return [Window] what is in both
        def merge(later)
          merged = Window.new(@keys)
          merged.take_over(self)
          merged.take_over(later)
          merged.serial = @serial
          merged.close([@at, later.at].min, [@end, later.end].max)
        end

        # @return [Array<Payload>] without numbers
        def encode
          width = @end - @at
          series = @counts.each_value.map { |point| [:count, point.identity, point.value.to_f, @at, width] }
          @gauges.each_value { |point| series << [:gauge, point.identity, point.value, point.at, WINDOW] }
          sketches = @sketches.each_value.map { |identity, sketch| [:sketch, identity, sketch, @at, width] }
          payloads("/series", series) + payloads("/sketches", sketches)
        end

        protected

        def take_over(window)
          window.counts.each { |key, point| (@counts[key] ||= Point.new(point.identity, 0)).value += point.value }
          window.gauges.each { |key, point| @gauges[key] = point.dup }
          window.sketches.each do |key, (identity, sketch)|
            mine = @sketches[key]
            @sketches[key] = [identity, mine ? mine[1].merge(sketch) : sketch]
          end
        end

        private

        def sketch(identity)
          (@sketches[identity.key] ||= [identity, Sketch.new(@keys)])[1]
        end

        def payloads(path, series)
          payloads = []
          until series.empty?
            writer = PayloadWriter.new
            writer.public_send(*series.shift) until series.empty? || writer.full?
            payloads << Payload.new(path, writer.encode, writer.series)
          end
          payloads
        end

        # Integers may be larger than any float.
        def floats(values)
          return values if values.all?(Float)

          values.map { |value| float(value) }.select(&:finite?)
        end

        # @param value [Integer, Float, String] a number that {Wire.number} has let in
        def float(value)
          return value if Float === value
          return value.to_f unless String === value

          value.sub(/\.(?=\z|[eE])/, "").to_f
        end
      end
    end
  end
end
