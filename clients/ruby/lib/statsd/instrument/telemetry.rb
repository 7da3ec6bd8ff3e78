# frozen_string_literal: true

module StatsD
  module Instrument
    # The client's own counts: messages taken, packets sent, and everything that was dropped with
    # the reason. Always counted; sent to the server by {TelemetryReport}.
    class Telemetry
      # The counters, with their meaning.
      COUNTERS = {
        metrics: "samples accepted, aggregated ones included",
        events: "events accepted",
        service_checks: "service checks accepted",
        aggregated_context: "messages written by aggregation",
        packets_sent: "packets handed to the kernel, but for those that it reports as refused",
        bytes_sent: "bytes in them",
        packets_dropped: "packets that were lost, for any reason",
        bytes_dropped: "bytes in them",
        packets_dropped_queue: "packets dropped because the queue was full",
        bytes_dropped_queue: "bytes in them",
        packets_dropped_writer: "packets dropped because the socket or the server's host refused them",
        bytes_dropped_writer: "bytes in them",
        packets_refused: "those of them that the kernel took and the server's host refused",
        dropped_oversize: "messages longer than a packet may be",
        dropped_invalid: "samples without a name or with a value that is not a finite number",
        overflowed: "samples sent one by one because the limit of live contexts was reached",
        columns_windows: "windows of columns that were closed, empty ones not included",
        columns_payloads_sent: "payloads of columns that the agent accepted",
        columns_bytes_sent: "bytes in them",
        columns_points_sent: "counts, gauges and distributions in them, each of one window",
        columns_duplicates: "those of the payloads that the agent had accepted before, unknown to the client",
        columns_retries: "requests that repeated a payload",
        columns_failures: "requests without an answer, or with a refusal for now",
        columns_merged: "windows that became part of a wider one for lack of room",
        columns_dropped: "windows and payloads dropped for lack of room, or at the end of the client",
        columns_refused: "payloads dropped because the agent found them wrong",
        columns_points_dropped: "counts, gauges and distributions in what was dropped or refused",
        columns_absent: "requests that found no endpoint for columns"
      }.freeze

      def initialize
        @mutex = Mutex.new
        @counts = Hash.new(0)
        @reported = {}.freeze
      end

      # @return [Hash{Symbol => Integer}] all counters since the client was made
      def to_h
        counts = synchronize { @counts.dup }
        COUNTERS.keys.to_h { |name| [name, counts[name]] }
      end

      # @param name [Symbol] one of {COUNTERS}
      # @return [Integer] the count since the last report
      # @api private
      def pending(name)
        synchronize { @counts[name] - @reported.fetch(name, 0) }
      end

      # The counts since the last call of any client: clients that share a sink share its counters.
      # @return [Hash{Symbol => Integer}]
      # @api private
      def unreported
        synchronize do
          before = @reported
          @reported = @counts.dup.freeze
          COUNTERS.keys.to_h { |name| [name, @reported.fetch(name, 0) - before.fetch(name, 0)] }
        end
      end

      # @param name [Symbol] one of {COUNTERS}
      # @return [Integer]
      def [](name)
        synchronize { @counts[name] }
      end

      # @api private
      def count(name, amount = 1)
        synchronize { @counts[name] += amount }
      end

      # @api private
      def sent(bytes, packets = 1)
        synchronize do
          @counts[:packets_sent] += packets
          @counts[:bytes_sent] += bytes
        end
      end

      # @api private
      # @param messages [Integer] number of accepted messages; most are metrics
      def accepted(messages, events = 0, service_checks = 0)
        synchronize do
          @counts[:metrics] += messages - events - service_checks
          @counts[:events] += events if events.positive?
          @counts[:service_checks] += service_checks if service_checks.positive?
        end
      end

      # @api private
      # @param message [String] one message, or several of one kind
      def accepted_message(message)
        count(kind(message))
      end

      # A message that is a packet of its own. The lock is taken once, and without a block.
      # @api private
      def sent_message(message, bytes)
        kind = kind(message)
        locked = lock
        counts = @counts
        counts[kind] += 1
        counts[:packets_sent] += 1
        counts[:bytes_sent] += bytes
      ensure
        @mutex.unlock if locked
      end

      # @api private
      # @param reason [Symbol] `:queue` or `:writer`
      def dropped(reason, bytes)
        synchronize do
          @counts[:packets_dropped] += 1
          @counts[:bytes_dropped] += bytes
          @counts[:"packets_dropped_#{reason}"] += 1
          @counts[:"bytes_dropped_#{reason}"] += bytes
        end
      end

      # The server's host refused packets.
      # @api private
      def refused(packets, bytes)
        synchronize do
          @counts[:packets_refused] += packets
          @counts[:packets_dropped] += packets
          @counts[:packets_dropped_writer] += packets
          @counts[:bytes_dropped] += bytes
          @counts[:bytes_dropped_writer] += bytes
        end
      end

      # @api private
      def after_fork
        @mutex = Mutex.new
        @counts = Hash.new(0)
        @reported = {}.freeze
      end

      private

      def kind(message)
        return :metrics unless message.getbyte(0) == 0x5f # an underscore
        return :events if message.start_with?("_e{")

        message.start_with?("_sc|") ? :service_checks : :metrics
      end

      # A signal handler may not lock. It runs on top of another frame of the main thread, so the
      # worst that can happen without the lock is one count lost.
      def synchronize
        locked = lock
        yield
      ensure
        @mutex.unlock if locked
      end

      def lock
        @mutex.lock
      rescue ThreadError
        nil
      end
    end

    # Writes the difference of a {Telemetry} since the last report as metrics.
    # @api private
    class TelemetryReport
      PREFIX = "datadog.dogstatsd.client."
      COLUMNS = Telemetry::COUNTERS.keys.grep(/\Acolumns_/).freeze
      REPORTED =
        (Telemetry::COUNTERS.keys - %i[packets_refused dropped_oversize dropped_invalid overflowed] - COLUMNS).freeze
      private_constant :PREFIX, :COLUMNS, :REPORTED

      # @param telemetry [Telemetry]
      # @param tags [String] text of the tags of every message, without the leading `#`
      # @param fields [String, nil] text after the tags
      # @param columns [Boolean] whether the client sends columns
      # @param interval [Float] seconds between reports
      # @param names [Array<Symbol>] the counters that are reported, in this order
      def initialize(telemetry, tags:, fields: nil, columns: false, interval: 10.0,
                     names: columns ? REPORTED + COLUMNS : REPORTED)
        @telemetry = telemetry
        @names = names
        @suffix = "|c|##{tags}#{fields}"
        @interval = interval
        @due = now + interval
      end

      # @yieldparam message [String]
      # @return [Boolean] whether a report was due
      def each_message(force: false)
        return false unless force || due?

        @due = now + @interval
        counts = @telemetry.unreported
        @names.each { |name| yield "#{PREFIX}#{name}:#{counts[name]}#{@suffix}" }
        true
      end

      # @return [Boolean]
      def due?
        now >= @due
      end

      # Asks for a report with the next flush.
      # @return [void]
      def request
        @due = -Float::INFINITY
      end

      private

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
