# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds macros with more positional arguments than method and name.
      class MetaprogrammingPositionalArguments < Base
        include RuboCop::Cop::StatsD

        MSG = "Pass everything but method and name to StatsD macros as keywords."

        def on_send(node)
          return unless metaprogramming_method?(node)

          options = value_arguments(node).drop(2)
          add_offense(node) unless options.empty? || (options.one? && options.first.hash_type?)
        end
      end
    end
  end
end
