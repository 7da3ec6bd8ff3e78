# frozen_string_literal: true

require "statsd-instrument" unless Object.const_defined?(:StatsD)

module StatsD
  module Instrument
    # Checks the arguments of every call and raises ArgumentError on wrong ones. For development and
    # tests; in production a wrong metric should not take a request down.
    #
    # Load it with `require "statsd/instrument/strict"` or by setting `STATSD_STRICT_MODE`.
    module Strict
      # Checks, then calls {Client#increment}.
      def increment(key, value = 1, sample_rate: nil, tags: nil, **options, &block)
        Strict.refuse_block(:increment, block)
        unless value.is_a?(Integer)
          raise ArgumentError, "The value argument should be an integer, got #{value.inspect}"
        end

        check_call(key, sample_rate, tags)
        super
      end

      %i[gauge histogram].each do |method|
        define_method(method) do |key, value, sample_rate: nil, tags: nil, **options, &block|
          Strict.refuse_block(method, block)
          check_number(value)
          check_call(key, sample_rate, tags)
          super(key, value, sample_rate: sample_rate, tags: tags, **options)
        end
      end

      # Checks, then calls {Client#set}.
      def set(key, value, sample_rate: nil, tags: nil, **options, &block)
        Strict.refuse_block(:set, block)
        check_call(key, sample_rate, tags)
        super
      end

      %i[measure distribution].each do |method|
        define_method(method) do |key, value = nil, sample_rate: nil, tags: nil, **options, &block|
          if block.nil?
            check_number(value)
          elsif !value.nil?
            raise ArgumentError, "The value argument should not be set when providing a block"
          end
          check_call(key, sample_rate, tags)
          super(key, value, sample_rate: sample_rate, tags: tags, **options, &block)
        end
      end

      # Checks, then calls {Client#event}.
      def event(title, text, tags: nil, **options)
        check_call(title, nil, tags)
        super
      end

      # Checks, then calls {Client#service_check}.
      def service_check(name, status, tags: nil, **options)
        check_call(name, nil, tags)
        super
      end

      # @api private
      def self.refuse_block(method, block)
        raise ArgumentError, "StatsD.#{method} does not accept a block" if block
      end

      private

      def check_number(value)
        return if value.is_a?(Numeric)

        raise ArgumentError, "The value argument should be a number, got #{value.inspect}"
      end

      def check_call(name, sample_rate, tags)
        raise TypeError, "The name argument should be a string, got nil" if name.nil?
        raise ArgumentError, "The name argument should not be empty" if name.to_s.empty?

        unless sample_rate.nil? || sample_rate.is_a?(Numeric)
          raise ArgumentError, "The sample_rate argument should be a number, got #{sample_rate.inspect}"
        end

        check_tags(tags)
      end

      def check_tags(tags)
        unless tags.nil? || tags.is_a?(Hash) || tags.is_a?(Array) || tags.is_a?(Proc)
          raise ArgumentError, "The tags argument should be a hash, a proc or an array, got #{tags.inspect}"
        end
        return unless tags.is_a?(Array)

        nested = tags.find { |tag| tag.is_a?(Array) || tag.is_a?(Hash) } or return
        raise ArgumentError, "A tag should be a string, got #{nested.inspect}"
      end
    end

    # The methods of the StatsD module do not pass on blocks that metrics have no use for.
    module StrictModule
      %i[increment gauge histogram set].each do |method|
        define_method(method) do |*arguments, **options, &block|
          Strict.refuse_block(method, block)
          super(*arguments, **options)
        end
      end
    end

    # The same for the macros of {Instrument}.
    module StrictMetaprogramming
      %i[statsd_measure statsd_distribution statsd_count_success statsd_count_if statsd_count].each do |macro|
        define_method(macro) do |method, name, **options, &block|
          unless method.is_a?(Symbol)
            raise ArgumentError, "The method name should be provided as symbol, got #{method.inspect}"
          end
          unless name.is_a?(String) || name.is_a?(Proc)
            raise ArgumentError, "The metric name should be a proc or string, got #{name.inspect}"
          end

          super(method, name, **options, &block)
        end
      end
    end
  end
end

StatsD::Instrument::Client.prepend(StatsD::Instrument::Strict)
StatsD.singleton_class.prepend(StatsD::Instrument::StrictModule)
StatsD::Instrument.prepend(StatsD::Instrument::StrictMetaprogramming)
