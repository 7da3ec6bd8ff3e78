# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds sample rates and tags passed as the third and fourth argument. Literals are corrected;
      # what a variable or a call holds, only its author knows.
      class PositionalArguments < Base
        extend AutoCorrector
        include RuboCop::Cop::StatsD

        MSG = "Pass sample rate and tags to StatsD metric methods as keywords."

        LITERALS = %i[int float nil].freeze
        UNKNOWN = %i[send const lvar splat].freeze

        def on_send(node)
          return unless metric_method?(node)

          rate = value_arguments(node)[2]
          return unless rate && (LITERALS + UNKNOWN).include?(rate.type)

          add_offense(node) { |corrector| write_keywords(corrector, node) }
        end

        private

        def write_keywords(corrector, node)
          _name, value, rate, tags = value_arguments(node)
          return unless LITERALS.include?(rate.type)

          keywords = []
          keywords << "sample_rate: #{rate.source}" unless rate.nil_type?
          keywords << "tags: #{braced(tags)}" unless tags.nil? || tags.nil_type?
          from = value.source_range
          to = (tags || rate).source_range
          corrector.replace(from.join(to), [value.source, *keywords].join(", "))
        end

        # A Hash without braces was an argument of its own only because it came last.
        def braced(tags)
          tags.hash_type? && !tags.braces? ? "{ #{tags.source} }" : tags.source
        end
      end
    end
  end
end
