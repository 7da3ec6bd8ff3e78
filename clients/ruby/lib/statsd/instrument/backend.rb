# frozen_string_literal: true

module StatsD
  module Instrument
    # Whether the native extension does the work. It does wherever it was compiled, unless the environment variable
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

    require "statsd/instrument/pure"
    require "statsd/instrument/native" if NATIVE

    # The code that does what happens for each call, in pure Ruby ({Pure}) or in C (`Native`). Nothing outside the two
    # asks which of them it is. Both have
    #
    # - `Contexts`: finds the cell or emitter of a call;
    # - `CounterCell`, `GaugeCell`, `SampleCell`, `SetCell`: where samples wait for the next flush;
    # - `CounterCalls`, `GaugeCalls`, `SampleCalls`: the fast paths of handles;
    # - `MessageQueue`: joins messages into packets;
    # - `pack(values)`: many numbers as text;
    # - `bins(table, values)`: adds many numbers to bins for a {Columns::Sketch}, and returns those that are left;
    # - `send_packets(socket, packets, from, timeout)`: hands several packets to the kernel at once. Ruby itself cannot
    #   do that, so {Pure} has none, and connections have no `send_datagrams` then.
    # @api private
    Backend = NATIVE ? Native : Pure
  end
end
