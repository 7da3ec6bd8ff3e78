# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds `as_dist: true`, which made `measure` record a distribution.
      class MeasureAsDistArgument < Base
        include RuboCop::Cop::StatsD

        MSG = "Call `distribution` (or `statsd_distribution`) instead of passing `as_dist`."

        def on_send(node)
          measures = (metric_method?(node) && node.method_name == :measure) || node.method_name == :statsd_measure
          add_offense(node) if measures && keyword_argument?(node, :as_dist)
        end
      end
    end
  end
end
