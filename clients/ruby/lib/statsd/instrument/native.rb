# frozen_string_literal: true

module StatsD
  module Instrument
    # Whether the native extension does the work. It does when it was compiled, unless the environment
    # variable `WEIR_PURE_RUBY` is set.
    NATIVE = false
  end
end
