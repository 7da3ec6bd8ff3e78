# frozen_string_literal: true

module StatsD
  module Instrument
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
