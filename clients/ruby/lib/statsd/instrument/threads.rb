# frozen_string_literal: true

module StatsD
  module Instrument
    # Threads of the library: named, quiet at exit, and marked so that servers which warn about
    # threads started before a fork know that these cope with it.
    # @api private
    module Background
      NEVER = { Object => :never }.freeze
      private_constant :NEVER

      module_function

      # @return [Thread, nil] nil when the interpreter is shutting down and starts no more threads
      def start(name, priority: 0, &block)
        thread = Thread.new(&block)
        thread.name = name
        thread.priority = priority unless priority.zero?
        thread.report_on_exception = true
        thread.thread_variable_set(:fork_safe, true)
        thread[:fork_safe] = true
        thread
      rescue ThreadError
        nil
      end

      # Runs the block to its end even if somebody kills the thread meanwhile. The interpreter does that with all
      # threads when the process exits, and messages they have taken out of a queue or a cell would be lost.
      # @return the block's value
      def uninterrupted
        # Passing the block on would make an object for each call.
        Thread.handle_interrupt(NEVER) { yield } # rubocop:disable Style/ExplicitBlockArgument
      end
    end

    # Ractors share no objects, so each has clients of its own, made in it. What a process has once belongs to
    # the main one: forks, exits, and handles that follow {StatsD.singleton_client}.
    # @api private
    module Ractors
      # The error that Ruby raises when a Ractor uses an object of another.
      ISOLATION_ERROR = defined?(::Ractor::IsolationError) ? ::Ractor::IsolationError : Class.new(StandardError)

      class << self
        # @return [Boolean] whether the caller runs where all programs start
        def main?
          !defined?(::Ractor) || ::Ractor.current.equal?(::Ractor.main)
        end

        # @return [Client] of the calling Ractor, where it is not the main one
        # @raise [RuntimeError] if it has none
        def client
          ::Ractor.current[:statsd_client] ||
            raise("this Ractor has no StatsD client; give it one with " \
                  "`StatsD.singleton_client = StatsD::Instrument::Client.new(...)` and shut it down at the end")
        end

        # @param client [Client, nil]
        def client=(client)
          ::Ractor.current[:statsd_client] = client
        end

        # @return [Logger]
        def logger
          ::Ractor.current[:statsd_logger] ||= Logger.new($stderr)
        end

        # @param logger [Logger]
        def logger=(logger)
          ::Ractor.current[:statsd_logger] = logger
        end
      end
    end

    # Notifies long-lived objects that the process forked, so that a child neither resends what its
    # parent had buffered nor waits for threads that stayed behind. Metric calls themselves never
    # look at the process id.
    # @api private
    module ForkTracker
      @tracked = WeakSet.new

      class << self
        # @param object [#after_fork, #after_daemon] kept alive by others
        def track(object)
          @tracked.add(object) if Ractors.main?
        end

        # In the child of a fork: everything buffered belongs to the parent.
        def after_fork
          @tracked.to_a.each(&:after_fork)
        end

        # Sends everything while the threads are there. Where finalizers run last of all, on CRuby, they send what
        # handlers emit that were registered earlier; elsewhere such messages are sent at once.
        def at_exit
          finalizers = RUBY_ENGINE == "ruby"
          tracked = @tracked.to_a
          tracked.grep(Aggregator::Core).each(&(finalizers ? :at_exit : :shutdown))
          tracked.each { |object| object.before_exit if object.respond_to?(:before_exit) }
          tracked.grep(BatchedSink::Dispatcher).each(&(finalizers ? :flush : :shutdown))
        end

        # In a process that became a daemon: the parent has ended without sending anything, so the
        # buffered messages are still ours, but the threads have ended.
        def after_daemon
          @tracked.to_a.each(&:after_daemon)
        end
      end

      # Every way of forking in Ruby ends here, `Process.daemon` excepted.
      module Hook
        def _fork
          pid = super
          ForkTracker.after_fork if pid.zero?
          pid
        end

        def daemon(...)
          result = super
          ForkTracker.after_daemon
          result
        end
      end

      Process.singleton_class.prepend(Hook) if Process.respond_to?(:_fork)
      Kernel.at_exit { ForkTracker.at_exit }
    end
  end
end
