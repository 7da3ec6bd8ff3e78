# frozen_string_literal: true

module StatsD
  module Instrument
    # Test helpers besides the assertions and matchers.
    module Helpers
      # @param client [Client, nil] nil: {StatsD.singleton_client}
      # @yield emits metrics
      # @return [Array<Datagram>] one for each call during the block
      def capture_statsd_datagrams(client: nil, &block)
        (client || StatsD.singleton_client).capture(&block)
      end
      alias capture_statsd_calls capture_statsd_datagrams

      class << self
        # @param tags [Hash, Array, String, nil] not modified
        # @return [Hash, Array, String] the tags and one more
        # @raise [ArgumentError] for anything else
        def add_tag(tags, key, value)
          case tags
          when nil then { key => value }
          when Hash then tags.merge(key => value)
          when Array then tags + ["#{key}:#{value}"]
          when String then tags.empty? ? "#{key}:#{value}" : "#{tags},#{key}:#{value}"
          else raise ArgumentError, "tags must be a Hash, an Array or a String, not #{tags.class}"
          end
        end

        # @return [String] the name as the client will send it
        def prefix_metric(metric_name, client: nil)
          prefix = (client || StatsD.singleton_client)&.prefix
          prefix ? "#{prefix}.#{metric_name}" : metric_name
        end

        # @return [Boolean]
        def prefixed_metric?(metric_name, client: nil)
          prefix = (client || StatsD.singleton_client)&.prefix
          !prefix.nil? && metric_name.start_with?("#{prefix}.")
        end
      end
    end
  end
end
