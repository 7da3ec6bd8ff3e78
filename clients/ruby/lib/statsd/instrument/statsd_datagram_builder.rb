# frozen_string_literal: true

module StatsD
  module Instrument
    # Messages for a plain StatsD server: no tags, no histograms or distributions, no extra fields.
    class StatsDDatagramBuilder < DatagramBuilder
      unsupported_datagram_types :h, :d, :kv

      protected

      def compile_tags(*)
        raise NotImplementedError, "#{self.class.name} does not support tags"
      end
    end
  end
end
