# frozen_string_literal: true

module RuboCop
  module Cop
    # Cops that find calls of older styles of the API. Load them with
    # `require: statsd/instrument/rubocop` in `.rubocop.yml`.
    module StatsD
      METRIC_METHODS = %i[
        increment decrement gauge measure timing set histogram distribution key_value
      ].freeze
      METAPROGRAMMING_METHODS = %i[
        statsd_measure statsd_distribution statsd_count_success statsd_count_if statsd_count
      ].freeze
      SINGLETON_CONFIGURATION_METHODS = %i[
        backend backend= prefix prefix= default_tags default_tags= default_sample_rate default_sample_rate=
      ].freeze

      private

      def statsd_receiver?(node)
        receiver = node.receiver
        receiver&.const_type? && receiver.const_name == "StatsD"
      end

      def metric_method?(node)
        statsd_receiver?(node) && METRIC_METHODS.include?(node.method_name)
      end

      def metaprogramming_method?(node)
        METAPROGRAMMING_METHODS.include?(node.method_name)
      end

      def singleton_configuration_method?(node)
        statsd_receiver?(node) && SINGLETON_CONFIGURATION_METHODS.include?(node.method_name)
      end

      # @return [Array<Node>] the arguments without a block that is passed on
      def value_arguments(node)
        node.arguments.reject(&:block_pass_type?)
      end

      def keyword_argument?(node, name)
        last = value_arguments(node).last
        return false unless last&.hash_type?

        last.pairs.any? { |pair| pair.key.sym_type? && pair.key.value == name }
      end
    end
  end
end

require_relative "rubocop/measure_as_dist_argument"
require_relative "rubocop/metaprogramming_positional_arguments"
require_relative "rubocop/metric_prefix_argument"
require_relative "rubocop/metric_return_value"
require_relative "rubocop/metric_value_keyword_argument"
require_relative "rubocop/positional_arguments"
require_relative "rubocop/singleton_configuration"
require_relative "rubocop/splat_arguments"
