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

      # Finds `as_dist: true`, which made `measure` record a distribution.
      class MeasureAsDistArgument < Base
        include RuboCop::Cop::StatsD

        MSG = "Call `distribution` (or `statsd_distribution`) instead of passing `as_dist`."

        def on_send(node)
          measures = (metric_method?(node) && node.method_name == :measure) || node.method_name == :statsd_measure
          add_offense(node) if measures && keyword_argument?(node, :as_dist)
        end
      end

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

      # Finds the `prefix` keyword.
      class MetricPrefixArgument < Base
        include RuboCop::Cop::StatsD

        MSG = "Write the prefix into the name, with `no_prefix: true` if it replaces the client's."

        def on_send(node)
          return unless metric_method?(node) || metaprogramming_method?(node)

          add_offense(node) if keyword_argument?(node, :prefix)
        end
      end

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

      # Finds the `value` keyword.
      class MetricValueKeywordArgument < Base
        include RuboCop::Cop::StatsD

        MSG = "Pass the value as the second argument."

        def on_send(node)
          add_offense(node) if metric_method?(node) && keyword_argument?(node, :value)
        end
      end

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

      # Finds configuration of the StatsD module itself.
      class SingletonConfiguration < Base
        include RuboCop::Cop::StatsD

        MSG = "Configure StatsD with environment variables, or assign a client to `StatsD.singleton_client`."

        def on_send(node)
          add_offense(node) if singleton_configuration_method?(node)
        end
      end

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
