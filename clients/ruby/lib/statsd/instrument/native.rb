# frozen_string_literal: true

module StatsD
  module Instrument
    # Whether the native extension does the work: wherever it was compiled, unless the environment variable
    # `WEIR_PURE_RUBY` refuses it. Everything works without it.
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
