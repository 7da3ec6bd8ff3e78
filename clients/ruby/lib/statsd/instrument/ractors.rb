# frozen_string_literal: true

module StatsD
  module Instrument
    # Ractors share no objects, so each has clients of its own, made in it. What a process has once belongs to
    # the main one: forks, exits, and handles that follow {StatsD.singleton_client}.
    # @api private
    module Ractors
      # The error that Ruby raises when a Ractor uses an object of another.
      ISOLATION_ERROR = defined?(::Ractor::IsolationError) ? ::Ractor::IsolationError : Class.new(StandardError)

      class << self
        # @return [Boolean] whether the caller runs where all programs start
        def main?
          !defined?(::Ractor) || ::Ractor.current.equal?(::Ractor.main)
        end

        # @return [Client] of the calling Ractor, where it is not the main one
        # @raise [RuntimeError] if it has none
        def client
          ::Ractor.current[:statsd_client] ||
            raise("this Ractor has no StatsD client; give it one with " \
                  "`StatsD.singleton_client = StatsD::Instrument::Client.new(...)` and shut it down at the end")
        end

        # @param client [Client, nil]
        def client=(client)
          ::Ractor.current[:statsd_client] = client
        end

        # @return [Logger]
        def logger
          ::Ractor.current[:statsd_logger] ||= Logger.new($stderr)
        end

        # @param logger [Logger]
        def logger=(logger)
          ::Ractor.current[:statsd_logger] = logger
        end
      end
    end
  end
end
