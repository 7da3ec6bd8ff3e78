# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds arguments passed on with a splat, which hides whether they are positional.
      class SplatArguments < Base
        include RuboCop::Cop::StatsD

        MSG = "Write the arguments of StatsD metric methods out."

        def on_send(node)
          add_offense(node) if metric_method?(node) && node.arguments.any?(&:splat_type?)
        end
      end
    end
  end
end
