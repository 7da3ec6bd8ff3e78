# frozen_string_literal: true

require "statsd-instrument"
require "statsd/instrument/limited_values"

module StatsD
  module Instrument
    # Counts and times the requests of a Rack application:
    #
    # - `rack.requests`, a counter;
    # - `rack.request.time`, a distribution in milliseconds, until the application has returned the response, whose body
    #   may be written later.
    #
    # Tags: `method` (the methods of HTTP, else `other`), `status` (`2xx`; `5xx` if the application raises), and `route`
    # if a block names it. Paths are never tags: they would make a context for each record of the application.
    #
    # @example
    #   require "statsd/instrument/rack"
    #   use StatsD::Instrument::RackMetrics
    # @example with routes
    #   use(StatsD::Instrument::RackMetrics) { |env| env["sinatra.route"] }
    class RackMetrics
      # The methods that are tags.
      METHODS = %w[GET HEAD POST PUT PATCH DELETE OPTIONS TRACE CONNECT].to_h { |name| [name, name] }.freeze
      # The classes of status codes.
      STATUSES = %w[unknown 1xx 2xx 3xx 4xx 5xx].freeze
      private_constant :METHODS, :STATUSES

      # @param app [#call]
      # @param client [Client, nil] nil: {StatsD.singleton_client} at the time of the request
      # @param prefix [String] before the names
      # @param tags [Hash, nil] added to both metrics
      # @param max_routes [Integer] different routes; further ones become `other`
      # @yieldparam env [Hash] of the request, after the application
      # @yieldreturn [#to_s, nil] the route as the application declares it, such as `/users/:id`; nil becomes `unknown`
      def initialize(app, client: nil, prefix: "rack", tags: nil, max_routes: 200, &route)
        @app = app
        @client = client
        @count = "#{prefix}.requests"
        @time = "#{prefix}.request.time"
        @tags = (tags || {}).freeze
        @route = route
        @routes = LimitedValues.new(max_routes)
      end

      # @param env [Hash]
      # @return [Array] the application's response
      def call(env)
        start = now
        status = 500
        response = @app.call(env)
        status = response[0]
        response
      ensure
        record(env, status, (now - start).round(6))
      end

      private

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC, :float_millisecond)
      end

      def record(env, status, milliseconds)
        method = METHODS.fetch(env["REQUEST_METHOD"], LimitedValues::OTHER)
        tags = @tags.merge(method: method, status: status_of(status))
        tags[:route] = route_of(env) if @route
        client = @client || StatsD.singleton_client
        client.increment(@count, tags: tags)
        client.distribution(@time, milliseconds, tags: tags)
      end

      def status_of(status)
        hundreds = status.to_i / 100
        hundreds.between?(1, 5) ? STATUSES[hundreds] : STATUSES[0]
      end

      # An error of the block must not become one of the request.
      def route_of(env)
        @routes[@route.call(env)]
      rescue StandardError => e
        StatsD.logger.warn { "[#{self.class.name}] the block for the route raised #{e.class}: #{e.message[/\A.*/]}" }
        LimitedValues::UNKNOWN
      end
    end
  end
end
