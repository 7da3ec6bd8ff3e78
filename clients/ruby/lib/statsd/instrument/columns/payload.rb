# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # Collects series into columns: one protobuf message whose fields are columns over all series, as Datadog's intake
      # takes it since version 3. Text is in dictionaries; references to them, keys of bins and times are differences to
      # the one before.
      # @api private
      class PayloadWriter
        # Fields of the message MetricData.
        NAMES = 1
        TAGS = 2
        TAG_SETS = 3
        TYPES = 10
        NAME_REFS = 11
        TAG_SET_REFS = 12
        RESOURCE_REFS = 13
        INTERVALS = 14
        POINT_COUNTS = 15
        TIMES = 16
        INTEGERS = 17
        FLOATS = 18
        DOUBLES = 19
        BIN_COUNTS = 20
        BIN_KEYS = 21
        BIN_SIZES = 22
        SOURCE_REFS = 23
        ORIGIN_REFS = 24
        METRIC_DATA = 3
        WIRE_BYTES = 2

        # Types of metrics and of their values.
        COUNT = 1
        GAUGE = 3
        SKETCH = 4
        ZERO = 0
        INTEGER = 0x10
        FLOAT = 0x20
        DOUBLE = 0x30

        INTEGER_MAX = 2.0**48
        SERIES_MAX = 10_000
        BYTES_MAX = 1 << 20
        # About what a series takes without its text and bins.
        POINT_BYTES = 24
        CARDINALITY_TAG = "dd.internal.card:"

        # @return [Integer]
        attr_reader :series

        def initialize
          @columns = Array.new(ORIGIN_REFS + 1) { String.new(encoding: Encoding::BINARY) }
          @before = Array.new(ORIGIN_REFS + 1, 0)
          @names = {}
          @tags = {}
          @tag_sets = {}
          @series = @bytes = 0
        end

        # @return [Boolean] whether the payload has as much as one should have
        def full?
          @series >= SERIES_MAX || @bytes >= BYTES_MAX
        end

        # @param identity [Identity]
        # @param value [Float] finite
        def count(identity, value, time, width)
          point(identity, COUNT, value, time, width)
        end

        # (see #count)
        def gauge(identity, value, time, width)
          point(identity, GAUGE, value, time, width)
        end

        # @param sketch [Sketch] at rest
        def sketch(identity, sketch, time, width)
          values = [sketch.sum, sketch.min, sketch.max]
          type = value_type(values)
          start(identity, SKETCH | type, time, width)
          values(type, values)
          signed(INTEGERS, sketch.count)
          unsigned(BIN_COUNTS, sketch.parts)
          @columns[BIN_KEYS] << sketch.steps
          @columns[BIN_SIZES] << sketch.sizes
          @bytes += sketch.bytes
        end

        # @return [String] the message
        def encode
          # The same for all series.
          [RESOURCE_REFS, SOURCE_REFS, ORIGIN_REFS].each { |field| @columns[field] << ("\0" * @series) }
          @columns[POINT_COUNTS] << ("\1" * @series)
          data = String.new(encoding: Encoding::BINARY)
          @columns.each_with_index { |column, field| append_field(data, field, column) unless column.empty? }
          append_field(String.new(encoding: Encoding::BINARY), METRIC_DATA, data)
        end

        private

        def point(identity, metric_type, value, time, width)
          type = value_type([value])
          start(identity, metric_type | type, time, width)
          values(type, [value])
        end

        def start(identity, type, time, width)
          @series += 1
          @bytes += POINT_BYTES
          unsigned(TYPES, type)
          delta(NAME_REFS, entry(NAMES, @names, identity.name))
          delta(TAG_SET_REFS, tag_set(identity))
          unsigned(INTERVALS, width)
          delta(TIMES, time)
        end

        # The smallest type that holds all values exactly.
        def value_type(values)
          if values.all? { |value| value.zero? && !negative_zero?(value) }
            ZERO
          elsif values.all? { |value| value.abs <= INTEGER_MAX && value.to_i == value && !negative_zero?(value) }
            INTEGER
          elsif values.all? { |value| [value].pack("e").unpack1("e") == value }
            FLOAT
          else
            DOUBLE
          end
        end

        def negative_zero?(value)
          value.zero? && (1.0 / value).negative?
        end

        def values(type, values)
          case type
          when INTEGER then values.each { |value| signed(INTEGERS, value.to_i) }
          when FLOAT then @columns[FLOATS] << values.pack("e*")
          when DOUBLE then @columns[DOUBLES] << values.pack("E*")
          end
        end

        # @return [Integer] the index of a set of tags; their order and repetitions mean nothing
        def tag_set(identity)
          known = @tag_sets[identity.tag_key]
          return known if known

          indexes = identity.tags.to_s.split(",").reject(&:empty?).map { |tag| entry(TAGS, @tags, tag) }
          indexes << entry(TAGS, @tags, CARDINALITY_TAG + identity.cardinality) if identity.cardinality
          return 0 if indexes.empty?

          indexes = indexes.uniq.sort
          signed(TAG_SETS, indexes.size)
          before = 0
          indexes.each do |index|
            signed(TAG_SETS, index - before)
            before = index
          end
          @tag_sets[identity.tag_key] = @tag_sets.size + 1
        end

        # @return [Integer] the index of a text in a dictionary, which it enters if it is new
        def entry(field, dictionary, text)
          dictionary[text] ||= begin
            unsigned(field, text.bytesize)
            @bytes += text.bytesize
            @columns[field] << text.b
            dictionary.size + 1
          end
        end

        def delta(field, value)
          signed(field, value - @before[field])
          @before[field] = value
        end

        def signed(field, value)
          unsigned(field, value.negative? ? (-value << 1) - 1 : value << 1)
        end

        def unsigned(field, value)
          return Varints.add(@columns[field], value) if value > 0x7F

          @columns[field] << value
        end

        def append_field(bytes, field, content)
          Varints.add(bytes, (field << 3) | WIRE_BYTES)
          Varints.add(bytes, content.bytesize)
          bytes << content
        end
      end
    end
  end
end
