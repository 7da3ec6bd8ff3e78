# frozen_string_literal: true

require "set"

module StatsD
  module Instrument
    # The expectations of an assertion: type and name, and optionally value, rate, tags and how
    # often it was emitted.
    class Expectation
      class << self
        # @!method increment(name, value = nil, **options)
        #   @return [Expectation] see {Expectation#initialize}
        # @!method measure(name, value = nil, **options)
        #   @return [Expectation] see {Expectation#initialize}
        # @!method gauge(name, value = nil, **options)
        #   @return [Expectation] see {Expectation#initialize}
        # @!method set(name, value = nil, **options)
        #   @return [Expectation] see {Expectation#initialize}
        # @!method distribution(name, value = nil, **options)
        #   @return [Expectation] see {Expectation#initialize}
        # @!method histogram(name, value = nil, **options)
        #   @return [Expectation] see {Expectation#initialize}
        { increment: :c, measure: :ms, gauge: :g, set: :s, distribution: :d, histogram: :h }.each do |method, type|
          define_method(method) do |name, value = nil, **options|
            new(type: type, name: name, value: value, **options)
          end
        end
      end

      attr_accessor :times, :type, :name, :value, :sample_rate, :tags

      # @param type [Symbol] `:c`, `:ms`, `:g`, `:s`, `:d` or `:h`
      # @param name [String] without the prefix
      # @param client [Client, nil] whose prefix to expect; nil: {StatsD.singleton_client}
      # @param value [Object, nil] nil matches every value
      # @param sample_rate [Float, nil] nil matches every rate
      # @param tags [Hash, Array<String>, nil] tags that must be there; others may be, too
      # @param no_prefix [Boolean] whether to expect the name without prefix
      # @param times [Integer] the expected number of calls
      def initialize(type:, name:, client: nil, value: nil, sample_rate: nil, tags: nil, no_prefix: false, times: 1)
        @type = type
        @name = no_prefix ? name : Helpers.prefix_metric(name, client: client)
        @value = value.nil? ? nil : normalized_value_for_type(type, value)
        @sample_rate = sample_rate
        @tags = tags.nil? ? [] : Wire.tag_list(tags)
        @times = times
      end

      # @return [Object] the value as datagrams of that type carry it
      def normalized_value_for_type(type, value)
        case type
        when :c then value.is_a?(Float) ? value : Integer(value)
        when :g, :h, :d, :kv, :ms then value.is_a?(Array) ? value.map { |one| Float(one) } : Float(value)
        when :s then String(value)
        else value
        end
      end

      # @param actual_metric [Datagram] of the same type and name
      # @return [Boolean]
      def matches(actual_metric)
        return false if sample_rate && sample_rate != actual_metric.sample_rate
        return false if value && value != normalized_value_for_type(actual_metric.type, actual_metric.value)

        (tags - (actual_metric.tags || [])).empty?
      end

      # @return [String]
      def to_s
        text = +"#{name}:#{value || "<anything>"}|#{type}"
        text << "|@#{sample_rate}" if sample_rate
        text << "|#" << tags.join(",") unless tags.empty?
        text << " (expected #{times} times)" if times > 1
        text
      end

      # @return [String]
      def inspect
        "#<#{self.class.name}:\"#{self}\">"
      end
    end

    # The name of earlier releases of the API.
    MetricExpectation = Expectation
  end
end
