# frozen_string_literal: true

module StatsD
  module Instrument
    class Client
      # Events and service checks of a client. They are never aggregated.
      module Events
        # Reports something worth reading.
        #
        # @param title [String] the prefix is written before it
        # @param text [String] may span several lines
        # @param timestamp [Time, Integer, nil] nil means on arrival
        # @param hostname [String, nil]
        # @param aggregation_key [String, nil] events with the same key are shown together
        # @param priority [String, nil] `"normal"` or `"low"`
        # @param source_type_name [String, nil]
        # @param alert_type [String, nil] `"error"`, `"warning"`, `"info"` or `"success"`
        # @param tags (see Metrics#increment)
        # @param no_prefix (see Metrics#increment)
        # @param cardinality (see Metrics#increment)
        # @return (see Metrics#increment)
        # @raise [NoMethodError] if the implementation has no events
        def event(title, text, timestamp: nil, hostname: nil, aggregation_key: nil, priority: nil,
                  source_type_name: nil, alert_type: nil, tags: nil, no_prefix: false, cardinality: nil)
          return refuse(title, text) if title.nil? || title.to_s.empty?

          builder = no_prefix || cardinality ? nil : @plain_builder
          builder ||= datagram_builder(no_prefix: no_prefix, cardinality: cardinality)
          @mode.sink << builder._e(
            title, text,
            timestamp: timestamp, hostname: hostname, tags: tags, aggregation_key: aggregation_key,
            priority: priority, source_type_name: source_type_name, alert_type: alert_type
          )
          VOID
        end

        # Reports the state of something.
        #
        # @param name [String] the prefix is written before it
        # @param status [Symbol, String, Integer] `:ok`, `:warning`, `:critical`, `:unknown` or 0 to 3
        # @param timestamp [Time, Integer, nil] nil means on arrival
        # @param hostname [String, nil]
        # @param tags (see Metrics#increment)
        # @param message [String, nil] may span several lines
        # @param no_prefix (see Metrics#increment)
        # @param cardinality (see Metrics#increment)
        # @return (see Metrics#increment)
        # @raise [KeyError] if the status is none of those listed
        def service_check(name, status, timestamp: nil, hostname: nil, tags: nil, message: nil, no_prefix: false,
                          cardinality: nil)
          return refuse(name, status) if name.to_s.empty? || (Integer === status && !status.between?(0, 3))

          builder = no_prefix || cardinality ? nil : @plain_builder
          builder ||= datagram_builder(no_prefix: no_prefix, cardinality: cardinality)
          @mode.sink << builder._sc(
            name, status, timestamp: timestamp, hostname: hostname, tags: tags, message: message
          )
          VOID
        end
      end
    end
  end
end
