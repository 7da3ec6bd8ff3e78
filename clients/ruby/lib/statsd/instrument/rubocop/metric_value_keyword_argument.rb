# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds the `value` keyword.
      class MetricValueKeywordArgument < Base
        include RuboCop::Cop::StatsD

        MSG = "Pass the value as the second argument."

        def on_send(node)
          add_offense(node) if metric_method?(node) && keyword_argument?(node, :value)
        end
      end
    end
  end
end
