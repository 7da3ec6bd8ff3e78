# frozen_string_literal: true

module StatsD
  module Instrument
    # Metrics as classes: name, fixed tags and the keys of varying tags are declared once, and the
    # class gets a method with one keyword for each varying tag. Samples go to the client that is
    # {StatsD.singleton_client} when they are recorded.
    #
    # @example
    #   class CheckoutCompleted < StatsD::Instrument::CompiledMetric::Counter
    #     define(name: "checkout.completed", static_tags: { service: "web" }, tags: { shop_id: Integer })
    #   end
    #
    #   CheckoutCompleted.increment(shop_id: 42)
    #   CheckoutCompleted.increment(3, shop_id: 42)
    class CompiledMetric
      # A metric class was defined twice, not at all, or on the wrong class.
      class DefinitionError < StandardError; end

      # Combinations of varying tags that a metric remembers in each thread. Further ones work, but cost
      # as much as an ordinary call.
      DEFAULT_MAX_TAG_COMBINATION_CACHE_SIZE = 5_000

      # The types that the value of a varying tag may have.
      TAG_TYPES = [String, Integer, Float, Symbol, :Boolean].freeze
      private_constant :TAG_TYPES

      # The cells of one thread, in Hashes nested by the values of the varying tags.
      # @api private
      class Combinations
        include Pure::ThreadOwned

        # @return [Client, nil]
        attr_reader :client
        # @return [Hash]
        attr_reader :root
        # Reader of the cells: some have expired.
        attr_accessor :sweep
        # @return [Integer] cells
        attr_reader :size

        def initialize(owner, client, core)
          own_by(owner)
          @client = client
          @core = core
          @root = {}
          @size = 0
          @sweep = false
        end

        # @return [Boolean] whether cells made for the client and core are kept here
        def for?(client, core)
          @client.equal?(client) && @core.equal?(core)
        end

        def fetch(values)
          values.reduce(@root) { |level, value| level && level[value] }
        end

        def store(values, cell)
          *path, last = values
          level = path.reduce(@root) { |nested, value| nested[value] ||= {} }
          level[last] = cell
          @size += 1
        end

        def abandoned?
          retire
        end

        def sweep_expired
          return unless @sweep

          @sweep = false
          sweep_level(@root)
        end

        private

        def sweep_level(level)
          level.delete_if do |_, entry|
            if entry.is_a?(Hash)
              sweep_level(entry).empty?
            elsif entry.expired
              @size -= 1
              entry.removed = true
            end
          end
        end
      end

      NOBODYS = Combinations.new(nil, nil, nil)
      private_constant :NOBODYS

      class << self
        # Declares the metric. Must be called exactly once, on a subclass of one of the metric types.
        #
        # @param name [String]
        # @param static_tags [Hash, Array<String>] tags every sample has
        # @param tags [Hash{Symbol => Class, Symbol}] keys of varying tags, and what their values are:
        #   String, Integer, Float, Symbol or `:Boolean`; nil is allowed for all
        # @param no_prefix [Boolean] whether to leave the client's prefix out
        # @param sample_rate [Float, nil] nil: the default of the client
        # @param max_cache_size [Integer] combinations of varying tags remembered in each thread
        # @return [Class] self
        # @raise [DefinitionError] if the class is not such a subclass or already declared
        # @raise [ArgumentError] if a tag is declared as something else
        def define(name:, static_tags: {}, tags: {}, no_prefix: false, sample_rate: nil,
                   max_cache_size: DEFAULT_MAX_TAG_COMBINATION_CACHE_SIZE)
          check_definition(tags)
          @name = Wire.name(name).freeze
          @static_tags = Wire.frozen_copy(static_tags)
          @tag_keys = tags.keys.map { |key| Wire.tag(key).freeze }.freeze
          @no_prefix = no_prefix
          @defined_rate = sample_rate
          @max_cache_size = max_cache_size
          @combinations = NOBODYS
          @tables = Pure::PerThread.new
          @overflow_reported = false
          @defined = true
          Handles.follow(self)
          ForkTracker.track(self)
          tags.empty? ? define_static_method : define_dynamic_method(tags.keys)
          self
        end

        # @return [String, nil] the name as it is sent, without the prefix; nil before {define}
        def metric_name
          @name
        end

        # @return [Float] the rate samples are drawn at
        # @raise [DefinitionError] before {define}
        def sample_rate
          unless @defined
            raise DefinitionError, "Every CompiledMetric subclass needs to call `define` before accessing " \
                                   "its sample_rate."
          end

          @defined_rate || StatsD.singleton_client.default_sample_rate
        end

        # @param sample_rate [Float] from 0 to 1
        # @return [Boolean] whether a call with that rate counts
        def sample?(sample_rate)
          StatsD.singleton_client.counts?(sample_rate)
        end

        # @return [String] the type as it is sent
        def type
          raise NotImplementedError, "#{self} must implement .type"
        end

        # @return [Symbol] the method that {define} gives the class
        def method_name
          raise NotImplementedError, "#{self} must implement .method_name"
        end

        # @return [Numeric, nil] the value when a call names none; nil makes it a required argument
        def default_value
          raise NotImplementedError, "#{self} must implement .default_value"
        end

        # @return [Boolean] whether a block may be timed instead of giving a value
        def allow_measuring_latency
          false
        end

        # @api private
        def unbind
          @combinations = NOBODYS
        end

        # @api private
        def after_fork
          @tables.clear
          unbind
        end

        # @api private
        def after_daemon; end

        private

        # Sets the type of a subclass, and gives it the method that {define} will replace.
        def metric_type(type, method_name, default_value: nil, allow_measuring_latency: false)
          define_singleton_method(:type) { type }
          define_singleton_method(:method_name) { method_name }
          define_singleton_method(:default_value) { default_value }
          define_singleton_method(:allow_measuring_latency) { allow_measuring_latency }
          define_singleton_method(method_name) do |*, **|
            raise DefinitionError, "Every CompiledMetric subclass needs to call `define` before first invocation of " \
                                   "#{method_name}."
          end
        end

        def check_definition(tags)
          if equal?(CompiledMetric) || superclass.equal?(CompiledMetric)
            raise DefinitionError, "`define` must be called on a subclass of #{self}, for example " \
                                   "`class MyMetric < #{self}; define(...); end`"
          end
          if @defined
            raise DefinitionError, "`define` has already been called on #{self}; each metric needs a class of its own"
          end

          tags.each_value do |declared|
            next if TAG_TYPES.include?(declared)

            raise ArgumentError, "a tag cannot be declared as #{declared.inspect}; " \
                                 "use String, Integer, Float, Symbol or :Boolean"
          end
        end

        # The beginning of the generated methods, for types that can time a block.
        def timing_source(call)
          return "" unless allow_measuring_latency

          <<~RUBY
            if block_given?
              __start__ = Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond)
              begin
                return yield
              ensure
                __value__ = (Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond) - __start__).round(6)
                #{call}
              end
            end
          RUBY
        end

        def define_static_method
          @handle = new_handle
          recorder = { c: "increment", g: "set", s: "add" }.fetch(type.to_sym, "record")
          call = "@handle.#{recorder}(__value__)"
          call = "sample?(@defined_rate) ? #{call} : VOID" if draws?
          value = default_value.nil? ? "__value__" : "__value__ = #{default_value.inspect}"
          instance_eval(<<~RUBY, __FILE__, __LINE__ + 1)
            def self.#{method_name}(#{value})
              #{timing_source(call)}
              #{call}
            end
          RUBY
        end

        def new_handle
          options = { tags: @static_tags.empty? ? nil : @static_tags, no_prefix: @no_prefix,
                      sample_rate: @defined_rate, pre_sampled: draws? }
          case type
          when "c" then Handles::Counter.new(@name, **options)
          when "g" then Handles::Gauge.new(@name, **options)
          when "s" then Handles::Set.new(@name, **options)
          else Handles::Samples.new(type.to_sym, @name, **options)
          end
        end

        # @return [Boolean] whether the metric draws by itself which calls count
        def draws?
          !@defined_rate.nil? && @defined_rate < 1 && type != "g"
        end

        # The keywords are the tags. Looking a combination up costs one Hash access for each.
        def define_dynamic_method(keys)
          return define_free_method(keys) unless keys.all? { |key| readable?(key) }

          value = default_value.nil? ? "__value__" : "__value__ = #{default_value.inspect}"
          *path, last = keys
          lookup = path.map { |key| "__node__ = __node__[#{key}] if __node__" }
          lookup << "__node__ = __node__[#{last}] if __node__"
          instance_eval(<<~RUBY, __FILE__, __LINE__ + 1)
            def self.#{method_name}(#{value}, #{keys.map { |key| "#{key}:" }.join(", ")})
              #{timing_source("record_combination(__value__, [#{keys.join(", ")}])")}
              __combinations__ = @combinations
              if __combinations__.owner == Thread.current
                __node__ = __combinations__.root
                #{lookup.join("\n    ")}
                if __node__
                  __node__.put(__value__) || refuse(__value__)
                  return VOID
                end
              end
              record_combination(__value__, [#{keys.join(", ")}])
            end
          RUBY
        end

        # For tags whose keys cannot be names of variables.
        def define_free_method(keys)
          value = default_value.nil? ? "__value__" : "__value__ = #{default_value.inspect}"
          @free_keys = keys.map(&:to_sym).freeze
          instance_eval(<<~RUBY, __FILE__, __LINE__ + 1)
            def self.#{method_name}(#{value}, **__tags__)
              __values__ = values_of(__tags__)
              #{timing_source("record_combination(__value__, __values__)")}
              record_combination(__value__, __values__)
            end
          RUBY
        end

        def values_of(tags)
          missing = @free_keys - tags.keys
          unknown = tags.keys - @free_keys
          raise ArgumentError, "missing keywords: #{missing.join(", ")}" unless missing.empty?
          raise ArgumentError, "unknown keywords: #{unknown.join(", ")}" unless unknown.empty?

          tags.values_at(*@free_keys)
        end

        def readable?(key)
          key.match?(/\A[a-z_][A-Za-z0-9_]*\z/) && !RESERVED_WORDS.include?(key.to_s) && !key.start_with?("__")
        end

        RESERVED_WORDS = %w[
          __ENCODING__ __LINE__ __FILE__ BEGIN END alias and begin break case class def defined? do else elsif end
          ensure false for if in module next nil not or redo rescue retry return self super then true undef unless
          until when while yield
        ].freeze
        private_constant :RESERVED_WORDS

        def refuse(value)
          StatsD.singleton_client.refuse(@name, value)
        end

        # Everything the fast path does not cover.
        def record_combination(value, tag_values)
          client = StatsD.singleton_client
          gauge = type == "g"
          mode = client.mode
          # The last value of a gauge counts, so none is left out.
          return VOID unless (gauge && mode.core) ||
                             (draws? ? sample?(@defined_rate) : client.counts?(@defined_rate, mode))

          cell = combination_cell(client, mode, tag_values) if mode.core
          return cell.put(value) ? VOID : refuse(value) if cell

          client.public_send(CLIENT_METHODS.fetch(type), @name, value,
                             tags: all_tags(tag_values), sample_rate: @defined_rate,
                             no_prefix: @no_prefix, pre_sampled: true)
        end

        CLIENT_METHODS = { "c" => :increment, "g" => :gauge, "ms" => :measure, "h" => :histogram,
                           "d" => :distribution, "s" => :set }.freeze
        private_constant :CLIENT_METHODS

        def all_tags(tag_values)
          tags = Wire.tag_list(@static_tags)
          @tag_keys.each_with_index { |key, index| tags << "#{key}:#{tag_values[index]}" }
          tags
        end

        def combination_cell(client, mode, tag_values)
          core = mode.core
          combinations = current_combinations(client, mode)
          cell = combinations.fetch(tag_values)
          return cell if cell

          combinations.sweep_expired
          if combinations.size >= @max_cache_size
            report_overflow
            return
          end
          # Two NaNs are never equal, so each would look new.
          return if core.full? || tag_values.any? { |value| value.is_a?(Float) && value.nan? }

          rate = type == "g" ? @defined_rate : client.resolve_rate(@defined_rate)
          template = client.template(type.to_sym, @name, all_tags(tag_values),
                                     sample_rate: rate, no_prefix: @no_prefix, sorted: true)
          return unless template

          cell = core.new_cell(template, combinations)
          combinations.store(tag_values, cell)
          core.announce(cell)
          cell
        end

        def current_combinations(client, mode)
          thread = Thread.current
          core = mode.core
          combinations = @tables[thread]
          unless combinations&.for?(client, core)
            combinations = @tables.reuse(thread) { |other| other.for?(client, core) } ||
                           @tables.store(thread, Combinations.new(thread, client, core))
            client.bind(self)
          end
          open_fast_path(client, mode, combinations)
          combinations
        end

        # As {Handles::Binding#open_fast_path}.
        def open_fast_path(client, mode, combinations)
          return unless type == "g" || client.resolve_rate(@defined_rate).nil?

          @combinations = combinations
          unbind unless mode.equal?(StatsD.singleton_client.mode)
        end

        def report_overflow
          return if @overflow_reported

          @overflow_reported = true
          StatsD.increment("statsd_instrument.compiled_metric.cache_exceeded_total",
                           tags: { metric_name: @name, max_size: @max_cache_size })
        end
      end

      # A counter: `increment(value = 1, **tags)`.
      class Counter < CompiledMetric
        metric_type "c", :increment, default_value: 1
      end

      # A gauge: `gauge(value, **tags)`.
      class Gauge < CompiledMetric
        metric_type "g", :gauge
      end

      # A distribution: `distribution(value, **tags)` or `distribution(**tags) { work }`.
      class Distribution < CompiledMetric
        metric_type "d", :distribution, default_value: 0, allow_measuring_latency: true
      end

      # A histogram: `histogram(value, **tags)` or `histogram(**tags) { work }`.
      class Histogram < CompiledMetric
        metric_type "h", :histogram, default_value: 0, allow_measuring_latency: true
      end

      # A timing in milliseconds: `measure(value, **tags)` or `measure(**tags) { work }`.
      class Timing < CompiledMetric
        metric_type "ms", :measure, default_value: 0, allow_measuring_latency: true
      end

      # A set: `set(value, **tags)`.
      class Set < CompiledMetric
        metric_type "s", :set
      end
    end
  end
end
