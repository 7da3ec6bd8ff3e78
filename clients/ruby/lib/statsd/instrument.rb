# frozen_string_literal: true

require "logger"
require "socket"

# Emits metrics through {StatsD.singleton_client}, which is made from environment variables when it
# is first used.
#
# @example
#   StatsD.increment("sign_ups", tags: { plan: "free" })
#   StatsD.measure("render") { render }
#
# @see StatsD::Instrument::Client the metric methods
# @see StatsD::Instrument macros that instrument existing methods
module StatsD
  # Extend a class with this module to instrument its methods.
  #
  # The name of a metric may be a String, in which `::` becomes `.`, or something callable that gets
  # the object and the arguments of the call and returns the name. Tags may be callable, too.
  # Visibility, keyword arguments and blocks of the methods stay as they are.
  #
  # @example
  #   class GoogleSearch
  #     extend StatsD::Instrument
  #     statsd_measure :search, "search.time"
  #     statsd_count_success :search, "search", tag_error_class: true
  #   end
  module Instrument
    # The return value of metric methods: frozen and truthy, and good for nothing else.
    VOID = Class.new do
      def inspect
        "StatsD::Instrument::VOID"
      end
    end.new.freeze

    class << self
      # @api private
      def generate_metric_name(name, callee, *args)
        (name.respond_to?(:call) ? name.call(callee, args) : name).gsub("::", ".")
      end

      # @api private
      def generate_tags(tags, callee, *args)
        tags.respond_to?(:call) ? tags.call(callee, args) : tags
      end

      # @deprecated Use `Process.clock_gettime(Process::CLOCK_MONOTONIC)`.
      # @return [Float] seconds
      def current_timestamp
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      # @deprecated Use {Client#measure} or take the time yourself.
      # @return [Float] seconds the block took
      def duration
        start = current_timestamp
        yield
        current_timestamp - start
      end
    end

    # Records the duration of each call of the method, as a timing.
    #
    # @param method [Symbol] an instance method of this class
    # @param name [String, #call] name of the metric
    # @param sample_rate [Float, nil] see {Client#increment}
    # @param tags [Hash, Array<String>, #call, nil] see {Client#increment}
    # @param no_prefix [Boolean] see {Client#increment}
    # @param client [Client, nil] nil: {StatsD.singleton_client} at the time of the call
    # @return [void]
    # @raise [ArgumentError] if there is no such method, or it is instrumented with that name already
    def statsd_measure(method, name, sample_rate: nil, tags: nil, no_prefix: false, client: nil)
      statsd_time(:measure, method, name, sample_rate: sample_rate, tags: tags, no_prefix: no_prefix, client: client)
    end

    # Records the duration of each call of the method, as a distribution.
    #
    # @param method (see #statsd_measure)
    # @param name (see #statsd_measure)
    # @param options the keywords of {#statsd_measure}
    # @return (see #statsd_measure)
    # @raise (see #statsd_measure)
    def statsd_distribution(method, name, **options)
      statsd_time(:distribution, method, name, **options)
    end

    # Counts each call of the method, before it runs.
    #
    # @param (see #statsd_measure)
    # @return (see #statsd_measure)
    # @raise (see #statsd_measure)
    def statsd_count(method, name, sample_rate: nil, tags: nil, no_prefix: false, client: nil)
      statsd_instrument(method, name, :count) do
        define_method(method) do |*args, &block|
          (client || StatsD.singleton_client).increment(
            Instrument.generate_metric_name(name, self, *args),
            sample_rate: sample_rate, tags: Instrument.generate_tags(tags, self, *args), no_prefix: no_prefix
          )
          super(*args, &block)
        end
      end
    end

    # Counts the calls that succeed: that return something truthy, or for which the block does.
    #
    # @param (see #statsd_measure)
    # @yieldparam result the method's return value
    # @yieldreturn [Boolean] whether to count; an exception means no
    # @return (see #statsd_measure)
    # @raise (see #statsd_measure)
    def statsd_count_if(method, name, sample_rate: nil, tags: nil, no_prefix: false, client: nil, &judge)
      statsd_instrument(method, name, :count_if) do
        define_method(method) do |*args, &block|
          result = super(*args, &block)
          if Instrument.successful?(result, judge)
            (client || StatsD.singleton_client).increment(
              Instrument.generate_metric_name(name, self, *args),
              sample_rate: sample_rate, tags: Instrument.generate_tags(tags, self, *args), no_prefix: no_prefix
            )
          end
          result
        end
      end
    end

    # Counts each call under the name with `.success` or `.failure` added. A call fails when it raises
    # or returns false; a block can decide differently.
    #
    # @param (see #statsd_measure)
    # @param tag_error_class [Boolean] whether failures get a tag `error_class` when the method raised
    # @yieldparam result the method's return value
    # @yieldreturn [Boolean] whether that is a success; an exception means no
    # @return (see #statsd_measure)
    # @raise (see #statsd_measure)
    def statsd_count_success(method, name, sample_rate: nil, tags: nil, no_prefix: false, client: nil,
                             tag_error_class: false, &judge)
      statsd_instrument(method, name, :count_success) do
        define_method(method) do |*args, &block|
          # A method left by `throw` or `return` from a block has not failed.
          outcome = "success"
          error = nil
          begin
            result = super(*args, &block)
            outcome = "failure" if Instrument.failed?(result, judge)
            result
          rescue StandardError => e
            error = e
            outcome = "failure"
            raise
          ensure
            all_tags = Instrument.generate_tags(tags, self, *args)
            all_tags = Helpers.add_tag(all_tags, :error_class, error.class.name) if tag_error_class && error
            (client || StatsD.singleton_client).increment(
              "#{Instrument.generate_metric_name(name, self, *args)}.#{outcome}",
              sample_rate: sample_rate, tags: all_tags, no_prefix: no_prefix
            )
          end
        end
      end
    end

    # @!method statsd_remove_count(method, name)
    #   Undoes the macro of the same name.
    #   @param method [Symbol]
    #   @param name [String, #call] as given to the macro
    #   @return [void]
    # @!method statsd_remove_count_if(method, name)
    #   Undoes the macro of the same name.
    # @!method statsd_remove_count_success(method, name)
    #   Undoes the macro of the same name.
    # @!method statsd_remove_measure(method, name)
    #   Undoes the macro of the same name.
    # @!method statsd_remove_distribution(method, name)
    #   Undoes the macro of the same name.
    %i[count count_if count_success measure distribution].each do |action|
      define_method(:"statsd_remove_#{action}") do |method, name|
        statsd_module(method, name, action).send(:remove_method, method)
      end
    end

    # @return [Hash{Array => Module}] the modules the macros have prepended, by method, name and macro
    # @api private
    def statsd_instrumentations
      if defined?(@statsd_instrumentations)
        @statsd_instrumentations
      elsif respond_to?(:superclass) && superclass.respond_to?(:statsd_instrumentations)
        superclass.statsd_instrumentations
      else
        @statsd_instrumentations = {}
      end
    end

    class << self
      # @api private
      def successful?(result, judge)
        judge ? judge.call(result) : result
      rescue StandardError
        false
      end

      # @api private
      def failed?(result, judge)
        verdict = judge ? judge.call(result) : result
        verdict == false
      rescue StandardError
        true
      end
    end

    private

    def statsd_time(action, method, name, sample_rate: nil, tags: nil, no_prefix: false, client: nil)
      statsd_instrument(method, name, action) do
        define_method(method) do |*args, &block|
          (client || StatsD.singleton_client).public_send(
            action, Instrument.generate_metric_name(name, self, *args),
            sample_rate: sample_rate, tags: Instrument.generate_tags(tags, self, *args), no_prefix: no_prefix
          ) { super(*args, &block) }
        end
      end
    end

    # Puts a wrapper into a module of its own in front of the class, so that `super` finds the method
    # and the wrapper can be taken out again.
    def statsd_instrument(method, name, action, &definition)
      wrapper = statsd_module(method, name, action)
      if wrapper.method_defined?(method) || wrapper.private_method_defined?(method)
        raise ArgumentError, "Already instrumented #{method} for #{self.name}"
      end
      unless method_defined?(method) || private_method_defined?(method)
        raise ArgumentError, "could not find method #{method} for #{self.name}"
      end

      visibility = statsd_visibility(method)
      wrapper.module_eval(&definition)
      wrapper.send(visibility, method)
      wrapper.send(:ruby2_keywords, method)
      prepend(wrapper) unless self < wrapper
    end

    def statsd_module(method, name, action)
      key = [method, name, action]
      statsd_instrumentations[key] || begin
        wrapper = Module.new
        wrapper.define_singleton_method(:inspect) { "StatsD_Instrument_#{method}_for_#{action}_with_#{name}" }
        # A copy: the Hash may be the one of a superclass.
        @statsd_instrumentations = statsd_instrumentations.merge(key => wrapper)
        wrapper
      end
    end

    def statsd_visibility(method)
      return :private if private_method_defined?(method)

      protected_method_defined?(method) ? :protected : :public
    end
  end

  class << self
    # @return [Logger] where the library reports its own trouble
    def logger
      @logger
    rescue Instrument::Ractors::ISOLATION_ERROR
      Instrument::Ractors.logger
    end

    # @param logger [Logger]
    def logger=(logger)
      if Instrument::Ractors.main?
        @logger = logger
      else
        Instrument::Ractors.logger = logger
      end
    end

    # @return [Instrument::Client] the receiver of this module's methods; a Ractor other than the main one has
    #   none until it sets its own
    def singleton_client
      @singleton_client ||= Instrument::Environment.current.client
    rescue Instrument::Ractors::ISOLATION_ERROR
      Instrument::Ractors.client
    end

    # @param client [Instrument::Client, nil] nil: made from the environment at the next use
    def singleton_client=(client)
      if Instrument::Ractors.main?
        # Tests of applications put an aggregator of their own into a client, and then make it the singleton.
        client.refresh_mode if client.is_a?(Instrument::Client)
        @singleton_client = client
        Instrument::Handles.client_changed
      else
        Instrument::Ractors.client = client
      end
    end

    # @!method increment(name, value = 1, **options)
    #   Calls {StatsD::Instrument::Client#increment} of {singleton_client}.
    # @!method decrement(name, value = 1, **options)
    #   Calls {StatsD::Instrument::Client#decrement} of {singleton_client}.
    # @!method count(name, value, **options)
    #   Calls {StatsD::Instrument::Client#count} of {singleton_client}.
    # @!method gauge(name, value, **options)
    #   Calls {StatsD::Instrument::Client#gauge} of {singleton_client}.
    # @!method set(name, value, **options)
    #   Calls {StatsD::Instrument::Client#set} of {singleton_client}.
    # @!method measure(name, value = nil, **options, &block)
    #   Calls {StatsD::Instrument::Client#measure} of {singleton_client}.
    # @!method timing(name, value, **options)
    #   Calls {StatsD::Instrument::Client#timing} of {singleton_client}.
    # @!method time(name, **options, &block)
    #   Calls {StatsD::Instrument::Client#time} of {singleton_client}.
    # @!method histogram(name, value, **options)
    #   Calls {StatsD::Instrument::Client#histogram} of {singleton_client}.
    # @!method distribution(name, value = nil, **options, &block)
    #   Calls {StatsD::Instrument::Client#distribution} of {singleton_client}.
    # @!method distribution_time(name, **options, &block)
    #   Calls {StatsD::Instrument::Client#distribution_time} of {singleton_client}.
    # @!method event(title, text, **options)
    #   Calls {StatsD::Instrument::Client#event} of {singleton_client}.
    # @!method service_check(name, status, **options)
    #   Calls {StatsD::Instrument::Client#service_check} of {singleton_client}.
    # The usual keywords are passed on one by one: forwarding them all as `...` costs a Hash for each
    # call. The rare ones take a second path, so that stand-ins for a client need not know them.
    {
      increment: ["value = 1", %w[by pre_sampled cardinality timestamp]],
      gauge: ["value", %w[pre_sampled cardinality timestamp]],
      set: ["value", %w[pre_sampled cardinality]],
      histogram: ["value", %w[pre_sampled cardinality]],
      measure: ["value = nil", %w[pre_sampled cardinality]],
      distribution: ["value = nil", %w[pre_sampled cardinality]]
    }.each do |method, (value, rare)|
      block = value == "value = nil" ? ", &block" : ""
      usual = "name, value, sample_rate: sample_rate, tags: tags, no_prefix: no_prefix"
      class_eval(<<~RUBY, __FILE__, __LINE__ + 1)
        def #{method}(name, #{value}, sample_rate: nil, tags: nil, no_prefix: false,
                      #{rare.map { |key| "#{key}: nil" }.join(", ")}#{block})
          # Only outside the main Ractor does this raise.
          client = begin
            @singleton_client || singleton_client
          rescue Instrument::Ractors::ISOLATION_ERROR
            Instrument::Ractors.client
          end
          if #{rare.join(" || ")}
            client.#{method}(#{usual}, #{rare.map { |key| "#{key}: #{key}" }.join(", ")}#{block})
          else
            client.#{method}(#{usual}#{block})
          end
        end
      RUBY
    end

    # @!method counter(name, tags: nil, sample_rate: nil, no_prefix: false)
    #   @return [StatsD::Instrument::Handles::Counter] follows {StatsD.singleton_client}
    # @!method gauge_handle(name, tags: nil, no_prefix: false)
    #   @return [StatsD::Instrument::Handles::Gauge] follows {StatsD.singleton_client}
    # @!method set_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
    #   @return [StatsD::Instrument::Handles::Set] follows {StatsD.singleton_client}
    { counter: :Counter, gauge_handle: :Gauge, set_handle: :Set }.each do |method, handle|
      define_method(method) { |name, **options| Instrument::Handles.const_get(handle).new(name, **options) }
    end

    # @!method timer(name, tags: nil, sample_rate: nil, no_prefix: false)
    #   @return [StatsD::Instrument::Handles::Samples] follows {StatsD.singleton_client}
    # @!method histogram_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
    #   @return [StatsD::Instrument::Handles::Samples] follows {StatsD.singleton_client}
    # @!method distribution_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
    #   @return [StatsD::Instrument::Handles::Samples] follows {StatsD.singleton_client}
    { timer: :ms, histogram_handle: :h, distribution_handle: :d }.each do |method, type|
      define_method(method) { |name, **options| Instrument::Handles::Samples.new(type, name, **options) }
    end

    %i[decrement count timing time distribution_time event service_check].each do |method|
      class_eval(<<~RUBY, __FILE__, __LINE__ + 1)
        def #{method}(...)
          singleton_client.#{method}(...)
        end
      RUBY
    end

    private

    def extended(klass)
      klass.statsd_instrumentations
    end
  end
end

require "statsd/instrument/version"
require "statsd/instrument/wire"
require "statsd/instrument/backend"
require "statsd/instrument/collections"
require "statsd/instrument/threads"
require "statsd/instrument/telemetry"
require "statsd/instrument/datagram"
require "statsd/instrument/datagram_builder"
require "statsd/instrument/connection_behavior"
require "statsd/instrument/host_resolver"
require "statsd/instrument/udp_connection"
require "statsd/instrument/uds_connection"
require "statsd/instrument/sink"
require "statsd/instrument/batched_sink"
require "statsd/instrument/dispatcher"
require "statsd/instrument/template"
require "statsd/instrument/writers"
require "statsd/instrument/columns"
require "statsd/instrument/aggregator"
require "statsd/instrument/origin_detection"
require "statsd/instrument/handles"
require "statsd/instrument/mode"
require "statsd/instrument/client"
require "statsd/instrument/environment"
require "statsd/instrument/helpers"
require "statsd/instrument/assertions"
require "statsd/instrument/expectation"
require "statsd/instrument/compiled_metric"
require "statsd/instrument/matchers" if defined?(RSpec)
require "statsd/instrument/railtie" if defined?(Rails::Railtie)
require "statsd/instrument/strict" if ENV["STATSD_STRICT_MODE"]
