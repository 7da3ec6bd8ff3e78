# frozen_string_literal: true

module StatsD
  module Instrument
    module Pure
      # The fast path of counter handles. Threads are compared with `==`, which the interpreter does without a call,
      # unlike `equal?`.
      # @api private
      module CounterCalls
        # A call without a value returns before the comparison.
        def increment(value = (if @owner == Thread.current
                                 @ones += 1
                                 return VOID
                               end
                               1))
          if value == 1 && @owner == Thread.current
            @ones += 1
            VOID
          else
            deliver(value)
          end
        end
      end

      # The fast path of gauge handles.
      # @api private
      module GaugeCalls
        def set(value)
          return VOID if @owner == Thread.current && put(value)

          deliver(value)
        end
      end

      # The fast path of sample handles.
      # @api private
      module SampleCalls
        def record(value)
          return VOID if @owner == Thread.current && put(value)

          deliver(value)
        end
      end
    end
  end
end
