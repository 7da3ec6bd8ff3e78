# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds sample rates and tags passed as the third and fourth argument. Literals are corrected;
      # the value of a variable or a call is known only to its author.
      class PositionalArguments < Base
        extend AutoCorrector
        include RuboCop::Cop::StatsD

        MSG = "Pass sample rate and tags to StatsD metric methods as keywords."

        LITERALS = %i[int float nil].freeze
        UNKNOWN = %i[send const lvar splat].freeze
        KEYWORDS = %i[sample_rate tags no_prefix client pre_sampled cardinality timestamp by].freeze

        def on_send(node)
          return unless metric_method?(node)

          rate = value_arguments(node)[2]
          return unless rate && (LITERALS + UNKNOWN).include?(rate.type)

          add_offense(node) { |corrector| write_keywords(corrector, node) }
        end

        private

        def write_keywords(corrector, node)
          _name, value, rate, *others = value_arguments(node)
          return unless LITERALS.include?(rate.type)

          keywords = []
          keywords << "sample_rate: #{rate.source}" unless rate.nil_type?
          others.each { |other| keywords << keyword_of(other) unless other.nil_type? }
          to = (others.last || rate).source_range
          corrector.replace(value.source_range.join(to), [value.source, *keywords].join(", "))
        end

        def keyword_of(argument)
          return "tags: #{argument.source}" unless argument.hash_type? && !argument.braces?

          # A Hash without braces is the keywords, or else it was the tags, because it came last.
          keywords?(argument) ? argument.source : "tags: { #{argument.source} }"
        end

        def keywords?(hash)
          hash.children.all? do |child|
            child.kwsplat_type? || (child.key.sym_type? && KEYWORDS.include?(child.key.value))
          end
        end
      end
    end
  end
end
