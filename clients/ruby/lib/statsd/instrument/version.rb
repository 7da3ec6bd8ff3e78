# frozen_string_literal: true

module StatsD
  module Instrument
    # Version of the `weir-statsd` gem.
    VERSION = "0.1.0"
  end
end
