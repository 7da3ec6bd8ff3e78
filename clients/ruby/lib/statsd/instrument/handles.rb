# frozen_string_literal: true

module StatsD
  module Instrument
    # Metrics bound to one context: name and tags are looked up when the handle is made, so that
    # recording is a few instructions. Make a handle once, keep it in a constant, share it freely.
    #
    # A handle made with `StatsD.counter` and its siblings follows {StatsD.singleton_client}; one made
    # with {Client#counter} stays with its client.
    #
    # @example
    #   SIGN_UPS = StatsD.counter("sign_ups", tags: { plan: "free" })
    #   SIGN_UPS.increment
    module Handles
      @following = WeakSet.new

      class << self
        # @api private
        def follow(handle)
          @following.add(handle)
        end

        # The singleton client is another one now.
        # @api private
        def client_changed
          @following.to_a.each(&:unbind)
        end
      end

      # The common part of all handles. A handle is itself the cell of the first thread
      # that uses it; other threads use cells in their tables. The owner is unset whenever something
      # changes that the fast path does not look at: the client, capturing, a fork.
      module Binding
        # @return [String]
        attr_reader :name

        # @api private
        def bind_to(name, tags, sample_rate, no_prefix, client, pre_sampled)
          @name = name
          self.tags = tags.nil? ? nil : Wire.frozen_copy(tags)
          @sample_rate = sample_rate
          @pre_sampled = pre_sampled
          @no_prefix = no_prefix
          @client = client
          forget_binding
          Handles.follow(self) if client.nil?
          ForkTracker.track(self)
        end

        # @return [Client] where samples go
        def client
          @client || StatsD.singleton_client
        end

        # @api private
        def unbind
          own(nil)
        end

        # @api private
        def after_fork
          reset
          forget_binding
        end

        # @api private
        def after_daemon; end

        private

        def forget_binding
          own(nil)
          @home = nil
          @bound_client = nil
          @bound_core = nil
          @direct = nil
          @binding_lock = Mutex.new
        end

        # Everything the fast path does not cover.
        def deliver(value)
          client = self.client
          mode = client.mode
          # The last value of a gauge counts, so none is left out.
          return VOID unless @pre_sampled || (mode.core && type == :g) || client.counts?(@sample_rate, mode)

          cell = cell_for(client, mode) if mode.core
          return client.emit_value(direct_template(client), value, mode) unless cell

          cell.put(value) ? VOID : client.refuse(@name, value)
        end

        def cell_for(client, mode)
          thread = Thread.current
          core = mode.core
          if client.equal?(@bound_client) && core.equal?(@bound_core)
            return other_cell(client, mode) unless thread.equal?(@home) || self.class.shared?

            open_fast_path(client, mode, thread)
            return self
          end
          bind_own_cell(client, core, thread) ? self : other_cell(client, mode)
        end

        def open_fast_path(client, mode, thread)
          # Calls that are sampled must draw each time.
          return unless @pre_sampled || client.resolve_rate(@sample_rate).nil? || type == :g

          own(thread)
          # A thread that changed the mode meanwhile may have looked at the handle too early to close it.
          own(nil) unless mode.equal?(self.client.mode)
        end

        # Makes the calling thread the owner of the handle's own cell.
        # @return [Boolean] false when another thread is just doing so, or there is no room
        def bind_own_cell(client, core, thread)
          return false if core.full? || !@binding_lock.try_lock

          begin
            return false if client.equal?(@bound_client) && core.equal?(@bound_core)

            template = aggregated_template(client) or return false
            @bound_core&.release(self)
            self.template = template
            self.core = core
            @home = thread
            @bound_core = core
            @bound_client = client
            client.bind(self)
            core.announce(self)
            true
          ensure
            @binding_lock.unlock
          end
        rescue ThreadError
          # A signal handler may not lock.
          false
        end

        def other_cell(client, mode)
          core = mode.core
          table = mode.contexts.table
          cell = table.handles[self]
          return cell if cell

          table.sweep_expired
          if core.full?
            client.telemetry.count(:overflowed)
            return
          end
          template = aggregated_template(client) or return
          client.bind(self)
          cell = table.handles[self] = core.new_cell(template, table)
          core.announce(cell)
          cell
        end

        def aggregated_template(client)
          rate = type == :g ? @sample_rate : client.resolve_rate(@sample_rate)
          client.template(type, @name, tags, sample_rate: rate, no_prefix: @no_prefix, sorted: true)
        end

        def direct_template(client)
          kept_client, template = @direct
          return template if client.equal?(kept_client)

          template = client.template(
            type, @name, tags, sample_rate: client.resolve_rate(@sample_rate), no_prefix: @no_prefix
          )
          @direct = [client, template].freeze
          template
        end
      end

      COUNTER_CELL = Backend::CounterCell
      GAUGE_CELL = Backend::GaugeCell
      SAMPLE_CELL = Backend::SampleCell
      SET_CELL = Backend::SetCell
      # Included through a block below: methods of a back end are not for the documentation.
      COUNTER_CALLS = Backend::CounterCalls
      GAUGE_CALLS = Backend::GaugeCalls
      SAMPLE_CALLS = Backend::SampleCalls
      private_constant :COUNTER_CELL, :GAUGE_CELL, :SAMPLE_CELL, :SET_CELL, :COUNTER_CALLS, :GAUGE_CALLS, :SAMPLE_CALLS

      # Counts.
      class Counter < COUNTER_CELL
        include Binding
        class_eval { include COUNTER_CALLS }

        # @param name (see Client::Metrics#increment)
        # @param tags (see Client::Metrics#increment)
        # @param sample_rate (see Client::Metrics#increment)
        # @param no_prefix (see Client::Metrics#increment)
        # @param client [Client, nil] nil follows {StatsD.singleton_client}
        # @param pre_sampled [Boolean] the caller draws: record always, mention the rate
        def initialize(name, tags: nil, sample_rate: nil, no_prefix: false, client: nil, pre_sampled: false)
          super(nil, nil)
          bind_to(name, tags, sample_rate, no_prefix, client, pre_sampled)
        end

        # @!method increment(value = 1)
        #   @param value [Integer, Float] the amount to add
        #   @return [Object] {VOID}

        # @param value [Integer, Float] the amount to subtract
        # @return [Object] {VOID}
        def decrement(value = 1)
          deliver(-value)
        end

        # @return [Symbol]
        def type
          :c
        end
      end

      # Records the current value of something.
      class Gauge < GAUGE_CELL
        include Binding
        class_eval { include GAUGE_CALLS }

        # @param (see Counter#initialize)
        def initialize(name, tags: nil, sample_rate: nil, no_prefix: false, client: nil, pre_sampled: false)
          super(nil, nil)
          bind_to(name, tags, sample_rate, no_prefix, client, pre_sampled)
        end

        # @!method set(value)
        #   @param value [Numeric] a finite number
        #   @return [Object] {VOID}

        # @return [Symbol]
        def type
          :g
        end
      end

      # Records samples of a timing, histogram or distribution.
      class Samples < SAMPLE_CELL
        include Binding
        class_eval { include SAMPLE_CALLS }

        # @return [Symbol] `:ms`, `:h` or `:d`
        attr_reader :type

        # @param type [Symbol] `:ms`, `:h` or `:d`
        # @param (see Counter#initialize)
        def initialize(type, name, tags: nil, sample_rate: nil, no_prefix: false, client: nil, pre_sampled: false)
          @type = type
          super(nil, nil)
          bind_to(name, tags, sample_rate, no_prefix, client, pre_sampled)
        end

        # @!method record(value)
        #   @param value [Numeric] a finite number; milliseconds for a timing
        #   @return [Object] {VOID}

        # Records the duration of the block, in milliseconds.
        # @return the block's value
        def time
          start = Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond)
          begin
            yield
          ensure
            record((Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond) - start).round(6))
          end
        end
        alias measure time
      end

      # Counts distinct values.
      class Set < SET_CELL
        include Binding

        # @param (see Counter#initialize)
        def initialize(name, tags: nil, sample_rate: nil, no_prefix: false, client: nil, pre_sampled: false)
          super(nil, nil)
          bind_to(name, tags, sample_rate, no_prefix, client, pre_sampled)
        end

        # @param value [#to_s] the member to count
        # @return [Object] {VOID}
        def add(value)
          return VOID if @owner == Thread.current && put(value)

          deliver(value)
        end

        # @return [Symbol]
        def type
          :s
        end
      end
    end
  end
end
