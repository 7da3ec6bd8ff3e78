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
  end
end
