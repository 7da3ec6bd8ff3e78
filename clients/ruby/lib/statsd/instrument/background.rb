# frozen_string_literal: true

module StatsD
  module Instrument
    # Threads of the library: named, quiet at exit, and marked so that servers which warn about
    # threads started before a fork know that these cope with it.
    # @api private
    module Background
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
    end
  end
end
