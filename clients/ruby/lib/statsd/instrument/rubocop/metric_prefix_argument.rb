# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds the `prefix` keyword.
      class MetricPrefixArgument < Base
        include RuboCop::Cop::StatsD

        MSG = "Write the prefix into the name, with `no_prefix: true` if it replaces the client's."

        def on_send(node)
          return unless metric_method?(node) || metaprogramming_method?(node)

          add_offense(node) if keyword_argument?(node, :prefix)
        end
      end
    end
  end
end
