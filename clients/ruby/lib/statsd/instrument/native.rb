# frozen_string_literal: true

module StatsD
  module Instrument
    # Whether the native extension does the work: only where it was compiled and the environment variable
    # `WEIR_NATIVE` asks for it. Under load a fork has met a client whose parts the collector had taken,
    # with the extension and never without it; until that is understood nobody gets it unasked.
    NATIVE = begin
      wanted = ["", "0"].include?(ENV.fetch("WEIR_PURE_RUBY", "")) && ENV.fetch("WEIR_NATIVE", "") == "1"
      if RUBY_ENGINE != "ruby" || !wanted
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
