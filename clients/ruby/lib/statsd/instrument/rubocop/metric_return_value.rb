# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds uses of a metric method's return value. Methods that are given a block return its value, so
      # a block that is passed on makes it fine; a block that is written out changes the parent.
      class MetricReturnValue < Base
        include RuboCop::Cop::StatsD

        MSG = "StatsD metric methods return nothing useful."

        USES = %i[lvasgn array pair send return yield].freeze

        def on_send(node)
          return if !metric_method?(node) || node.arguments.last&.block_pass_type?

          add_offense(node.parent) if USES.include?(node.parent&.type)
        end
      end
    end
  end
end
