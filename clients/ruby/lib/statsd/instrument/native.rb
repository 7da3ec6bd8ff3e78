# frozen_string_literal: true

module StatsD
  module Instrument
    # Whether the native extension does the work: it does when it was compiled, unless the environment
    # variable `WEIR_PURE_RUBY` is set. Both give the same results.
    NATIVE = begin
      if RUBY_ENGINE != "ruby" || !["", "0"].include?(ENV.fetch("WEIR_PURE_RUBY", ""))
        false
      else
        require "statsd/instrument/weir_statsd_native"
        true
      end
    rescue LoadError
      false
    end

    # What writes many numbers as text.
    # @api private
    PACKER = NATIVE ? Native : Wire
  end
end
