# frozen_string_literal: true

require "statsd/instrument/pure/cells"
require "statsd/instrument/pure/emitter"
require "statsd/instrument/pure/thread_owned"
require "statsd/instrument/pure/table"
require "statsd/instrument/pure/contexts"
require "statsd/instrument/pure/calls"
require "statsd/instrument/pure/message_queue"

module StatsD
  module Instrument
    # The back end in Ruby, for every Ruby.
    #
    # Each thread has a table of its own with cells that only it writes to, so that recording takes no lock with or
    # without a global interpreter lock, and is allowed in signal handlers.
    # @api private
    module Pure
      class << self
        # (see Wire.pack)
        def pack(values)
          Wire.pack(values)
        end
      end
    end
  end
end
