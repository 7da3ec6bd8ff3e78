# frozen_string_literal: true

module StatsD
  module Instrument
    # Minitest assertions about the metrics a block emits. Works with every test framework that has
    # `assert`, `flunk` and `pass`.
    #
    # Names are given without the client's prefix. Tags match when the expected ones are among the
    # actual ones. An exception inside the block fails the test; catch expected ones inside the block.
    #
    # @example
    #   class SignUpTest < Minitest::Test
    #     include StatsD::Instrument::Assertions
    #
    #     def test_counts_sign_ups
    #       assert_statsd_increment("sign_ups", tags: { plan: "free" }) { sign_up }
    #     end
    #   end
    module Assertions
      include Helpers

      # @param metric_names [Array<String>] names that must not occur; none: no metric at all
      # @param datagrams [Array<Datagram>, nil] looked at instead of running a block
      # @param client [Client, nil] nil: {StatsD.singleton_client}
      # @param no_prefix [Boolean] whether the names are complete
      # @return [void]
      # @raise [LocalJumpError] without block and datagrams
      def assert_no_statsd_calls(*metric_names, datagrams: nil, client: nil, no_prefix: false, &block)
        client ||= StatsD.singleton_client
        datagrams ||= datagrams_of_block(__method__, client, &block)

        unless metric_names.empty?
          names = no_prefix ? metric_names : metric_names.map { |name| prefixed_name(name, client) }
          datagrams = datagrams.select { |datagram| names.include?(datagram.name) }
        end
        assert(datagrams.empty?, "No StatsD calls for metric #{datagrams.map(&:name).join(", ")} expected.")
      end

      # @!method assert_statsd_increment(metric_name, value = nil, datagrams: nil, client: nil, **options, &block)
      #   @param metric_name [String]
      #   @param value [Object, nil] nil matches every value
      #   @param datagrams [Array<Datagram>, nil] looked at instead of running a block
      #   @param client [Client, nil] nil: {StatsD.singleton_client}
      #   @param options [Hash] `times`, `sample_rate`, `tags`, `no_prefix`; see {Expectation#initialize}
      #   @return [void]
      # @!method assert_statsd_measure(metric_name, value = nil, datagrams: nil, client: nil, **options, &block)
      #   Like {#assert_statsd_increment}, for another type.
      # @!method assert_statsd_gauge(metric_name, value = nil, datagrams: nil, client: nil, **options, &block)
      #   Like {#assert_statsd_increment}, for another type.
      # @!method assert_statsd_histogram(metric_name, value = nil, datagrams: nil, client: nil, **options, &block)
      #   Like {#assert_statsd_increment}, for another type.
      # @!method assert_statsd_distribution(metric_name, value = nil, datagrams: nil, client: nil, **options, &block)
      #   Like {#assert_statsd_increment}, for another type.
      # @!method assert_statsd_set(metric_name, value = nil, datagrams: nil, client: nil, **options, &block)
      #   Like {#assert_statsd_increment}, for another type.
      # Written as text: Minitest takes the first frame of a method called `assert...` for the assertion, and the one
      # before for the line of the test. The frame of a method made of a block has another name.
      %w[increment measure gauge histogram distribution set].each do |type|
        class_eval(<<~RUBY, __FILE__, __LINE__ + 1)
          def assert_statsd_#{type}(metric_name, value = nil, datagrams: nil, client: nil, **options, &block)
            expectation = Expectation.#{type}(metric_name, value, client: client, **options)
            assert_statsd_expectations(expectation, datagrams: datagrams, client: client, &block)
          end
        RUBY
      end

      # @param expectations [Expectation, Array<Expectation>] each must be met as often as it says
      # @param datagrams [Array<Datagram>, nil] looked at instead of running a block
      # @param client [Client, nil] nil: {StatsD.singleton_client}
      # @return [void]
      # @raise [LocalJumpError] without block and datagrams
      def assert_statsd_expectations(expectations, datagrams: nil, client: nil, &block)
        left = datagrams ? datagrams.dup : datagrams_of_block(__method__, client || StatsD.singleton_client, &block)
        Array(expectations).each { |expectation| left = check_expectation(expectation, left) }
        pass
      end
      alias assert_statsd_calls assert_statsd_expectations
      alias assert_statsd_expectation assert_statsd_expectations

      private

      # @return [Array<Datagram>] those the expectation did not use up
      def check_expectation(expectation, datagrams)
        candidates = datagrams.select do |datagram|
          datagram.type == expectation.type && datagram.name == expectation.name
        end
        if candidates.empty? && expectation.times.positive?
          flunk("No StatsD calls for metric #{expectation.name} of type #{expectation.type} were made.")
        end

        matching = candidates.select { |datagram| expectation.matches(datagram) }
        if matching.size > expectation.times
          flunk("Unexpected StatsD call; number of times this metric was expected exceeded: #{expectation.inspect}")
        elsif matching.size < expectation.times
          flunk("Metric expected #{expectation.times} times but seen #{matching.size} times: " \
                "#{expectation.inspect}.\nCaptured metrics with the same key: #{candidates}")
        end
        datagrams.reject { |datagram| matching.any? { |used| used.equal?(datagram) } }
      end

      def prefixed_name(name, client)
        return Helpers.prefix_metric(name, client: client) unless Helpers.prefixed_metric?(name, client: client)

        warn("`assert_no_statsd_calls` will prefix metrics by default. `#{name}` skipped due to existing prefix.")
        name
      end

      def datagrams_of_block(method, client, &block)
        raise LocalJumpError, "#{method} needs a block" unless block

        capture_statsd_datagrams(client: client, &block)
      rescue LocalJumpError
        raise
      rescue StandardError => e
        flunk(<<~MESSAGE)
          An exception occurred in the block provided to the StatsD assertion.

          #{e.class.name}: #{e.message}
          \t#{(e.backtrace || []).join("\n\t")}

          If this exception is expected, catch it inside the block, for example with `assert_raises`.
        MESSAGE
      end
    end
  end
end
