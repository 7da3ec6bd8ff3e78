# frozen_string_literal: true

module StatsD
  module Instrument
    # The values of a tag that comes from outside. After so many different ones, each new one becomes {OTHER}, so that
    # the contexts stay few whatever a caller sends.
    # @api private
    class LimitedValues
      # Takes the place of further values.
      OTHER = "other"
      # Takes the place of a missing value.
      UNKNOWN = "unknown"

      # @param limit [Integer] different values
      def initialize(limit)
        raise ArgumentError, "the limit of values must be positive, not #{limit.inspect}" unless limit.positive?

        @limit = limit
        @lock = Mutex.new
        @known = {}.freeze
      end

      # @param value [#to_s, nil]
      # @return [String]
      def [](value)
        return UNKNOWN if value.nil?

        @known[value] || remember(value, value.to_s)
      end

      private

      # Replaces the whole Hash, so that threads can read it without a lock.
      def remember(value, text)
        return UNKNOWN if text.empty?

        @lock.synchronize do
          return @known[value] || OTHER if @known.size >= @limit

          key = value.frozen? ? value : value.dup.freeze
          @known = @known.merge(key => text.dup.freeze).freeze
        end
        text
      rescue ThreadError
        # A signal handler may not lock.
        OTHER
      end
    end
  end
end
