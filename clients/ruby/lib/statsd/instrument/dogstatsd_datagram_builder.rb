# frozen_string_literal: true

module StatsD
  module Instrument
    # Messages for a DogStatsD server: tags, histograms, distributions, events and service checks.
    class DogStatsDDatagramBuilder < DatagramBuilder
      unsupported_datagram_types :kv

      def initialize(**)
        super
        @check_heads = Memo.new
      end

      SERVICE_CHECK_STATUSES = {
        ok: 0, warning: 1, critical: 2, unknown: 3, "ok" => 0, "warning" => 1, "critical" => 2, "unknown" => 3
      }.freeze
      UNSAFE_MESSAGE = /[|\n]|m:/
      private_constant :SERVICE_CHECK_STATUSES, :UNSAFE_MESSAGE

      class << self
        # (see DatagramBuilder.datagram_class)
        def datagram_class
          DogStatsDDatagram
        end
      end

      # (see DatagramBuilder#latency_metric_type)
      def latency_metric_type
        :d
      end

      # @param title [String] the client's prefix is written before it
      # @param text [String] may span several lines
      # @param timestamp [Time, Integer, nil] when it happened; nil means on arrival
      # @param hostname [String, nil]
      # @param aggregation_key [String, nil] events with the same key are shown together
      # @param priority [String, nil] `"normal"` or `"low"`
      # @param source_type_name [String, nil]
      # @param alert_type [String, nil] `"error"`, `"warning"`, `"info"` or `"success"`
      # @param tags [Hash, Array<String>, String, nil]
      # @return [String] an event message; its two lengths count bytes, as servers expect
      def _e(title, text, timestamp: nil, hostname: nil, aggregation_key: nil, priority: nil,
             source_type_name: nil, alert_type: nil, tags: nil)
        title = Wire.escape_newlines(title)
        title = @prefix + title unless @prefix.empty?
        text = Wire.escape_newlines(text)

        datagram = "_e{#{title.bytesize},#{text.bytesize}}:#{title}|#{text}"
        datagram << "|h:" << Wire.field(hostname) if hostname
        datagram << "|d:" << timestamp.to_i.to_s if timestamp
        datagram << "|k:" << Wire.field(aggregation_key) if aggregation_key
        datagram << "|p:" << Wire.field(priority) if priority
        datagram << "|s:" << Wire.field(source_type_name) if source_type_name
        datagram << "|t:" << Wire.field(alert_type) if alert_type
        append_tags(datagram, tags)
        datagram << @fields if @fields
        datagram
      end

      # @param name [String] name of the check
      # @param status [Symbol, String, Integer] `:ok`, `:warning`, `:critical`, `:unknown` or 0 to 3
      # @param timestamp [Time, Integer, nil] when the check ran; nil means on arrival
      # @param hostname [String, nil]
      # @param tags [Hash, Array<String>, String, nil]
      # @param message [String, nil] may span several lines
      # @return [String] a service check message
      # @raise [KeyError] if the status is none of those listed
      def _sc(name, status, timestamp: nil, hostname: nil, tags: nil, message: nil)
        datagram = "#{check_head(name)}#{SERVICE_CHECK_STATUSES[status] || check_status(status)}"
        datagram << "|h:" << Wire.field(hostname) if hostname
        datagram << "|d:" << timestamp.to_i.to_s if timestamp
        append_tags(datagram, tags)
        datagram << @fields if @fields
        # The message comes last; "m:" inside it is escaped so that nobody can forge a field.
        datagram << "|m:" << check_message(message) if message
        datagram
      end

      private

      # A status that is none of the usual texts and symbols.
      def check_status(status)
        Integer === status ? status : SERVICE_CHECK_STATUSES.fetch(status.to_sym)
      end

      # The same few checks are reported again and again.
      def check_head(name)
        known = @check_heads[name]
        return known if known

        head = "_sc|#{@prefix}#{Wire.name(name)}|"
        String === name ? @check_heads.remember(name, head) : head
      end

      def check_message(message)
        text = Wire.utf8(message)
        return text unless UNSAFE_MESSAGE.match?(text)

        Wire.escape_newlines(text).delete("|").gsub("m:", "m\\:")
      end
    end
  end
end
