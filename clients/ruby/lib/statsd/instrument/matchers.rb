# frozen_string_literal: true

require "rspec/expectations"

module StatsD
  module Instrument
    # RSpec matchers for the metrics a block emits. Options: `times`, `value`, `sample_rate`, `tags`;
    # each may be a value or an RSpec matcher. Names are complete, prefix included.
    #
    # @example
    #   expect { sign_up }.to trigger_statsd_increment("sign_ups", tags: include("plan:free"), times: 1)
    module Matchers
      # @api private
      class Matcher
        include RSpec::Matchers::Composable
        include Helpers

        # @return [String]
        attr_reader :failure_message

        def initialize(metric_type, metric_name, options = {})
          @metric_type = metric_type
          @metric_name = metric_name
          @options = options
        end

        def matches?(block)
          @failure_message = failure(capture_statsd_calls(&block))
          @failure_message.nil?
        end

        def failure_message_when_negated
          "No StatsD calls for metric #{@metric_name} expected."
        end

        def supports_block_expectations?
          true
        end

        def description
          "trigger a statsd call for metric #{@metric_name}"
        end

        private

        # @return [String, nil] the failure, if any
        def failure(datagrams)
          found = datagrams.select { |datagram| candidate?(datagram) }
          times = @options[:times]
          return "No StatsD calls for metric #{@metric_name} were made." if found.empty?

          if times && times != found.size
            return "The numbers of StatsD calls for metric #{@metric_name} was unexpected. " \
                   "Expected #{times.inspect}, got #{found.size}"
          end

          wrong = %i[sample_rate value tags].find { |aspect| @options[aspect] && !agrees?(aspect, found) }
          wrong && mismatch(wrong, found)
        end

        def candidate?(datagram)
          datagram.type == @metric_type && datagram.name == @metric_name &&
            (@options[:tags].nil? || values_match?(expected_tags, datagram.tags || []))
        end

        def agrees?(aspect, found)
          expected = aspect == :tags ? expected_tags : @options[aspect]
          agreeing = found.count { |datagram| values_match?(expected, datagram.public_send(aspect)) }
          @options[:times] ? agreeing == @options[:times] : agreeing.positive?
        end

        def expected_tags
          tags = @options[:tags]
          tags.is_a?(Hash) ? Wire.tag_list(tags) : tags
        end

        def mismatch(aspect, found)
          how_often = @options[:times] ? "exactly #{@options[:times]} times" : "at least once"
          "expected StatsD #{aspect.inspect} for metric '#{@metric_name}' to be called\n  " \
            "#{how_often} with: #{@options[aspect]}\n  " \
            "captured metric values: #{found.map(&aspect).join(", ")}"
        end
      end

      # @!method trigger_statsd_increment(metric_name, options = {})
      #   @return [Matcher]
      # @!method trigger_statsd_measure(metric_name, options = {})
      #   @return [Matcher]
      # @!method trigger_statsd_gauge(metric_name, options = {})
      #   @return [Matcher]
      # @!method trigger_statsd_set(metric_name, options = {})
      #   @return [Matcher]
      # @!method trigger_statsd_histogram(metric_name, options = {})
      #   @return [Matcher]
      # @!method trigger_statsd_distribution(metric_name, options = {})
      #   @return [Matcher]
      {
        increment: [:c, const_set(:Increment, Class.new(Matcher))],
        measure: [:ms, const_set(:Measure, Class.new(Matcher))],
        gauge: [:g, const_set(:Gauge, Class.new(Matcher))],
        set: [:s, const_set(:Set, Class.new(Matcher))],
        histogram: [:h, const_set(:Histogram, Class.new(Matcher))],
        distribution: [:d, const_set(:Distribution, Class.new(Matcher))]
      }.each do |method, (type, matcher)|
        define_method(:"trigger_statsd_#{method}") do |metric_name, options = {}|
          matcher.new(type, metric_name, options)
        end
      end
    end
  end
end
