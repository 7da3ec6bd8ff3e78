# frozen_string_literal: true

module Weir
  # Parts of {Datadog::Statsd}.
  module Dogstatsd
    # Messages with the names that dogstatsd-ruby sends.
    # @api private
    class Builder < StatsD::Instrument::DogStatsDDatagramBuilder
      protected

      # Names of classes are separated with dots.
      def generate_generic_datagram(name, ...)
        text = name.to_s
        super(text.include?("::") ? text.gsub("::", ".") : text, ...)
      end

      private

      # The agent decides about a status that the client does not know.
      def check_status(status)
        Integer === status ? status : StatsD::Instrument::Wire.field(status)
      end
    end
  end
end
