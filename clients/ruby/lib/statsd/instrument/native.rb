# frozen_string_literal: true

require "statsd/instrument/native/contexts"

module StatsD
  module Instrument
    # The back end in C: contexts are found, and cells written, in one step under the global interpreter lock. So all
    # threads share one set of cells.
    # @api private
    module Native
      # Members of sets are kept in Ruby, each thread its own.
      SetCell = Pure::SetCell

      # The common part of these cells and {Pure::Cell}.
      class Cell
        # @return [Boolean] whether all threads may record into one cell
        def self.shared?
          true
        end

        # Opens the fast path of a handle, or closes it.
        # @param thread [Thread, nil]
        def own(thread)
          self.bound = !thread.nil?
        end
      end
    end
  end
end
