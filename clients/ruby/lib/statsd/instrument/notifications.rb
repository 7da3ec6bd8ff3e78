# frozen_string_literal: true

require "statsd-instrument"
require "statsd/instrument/limited_values"

module StatsD
  module Instrument
    # Metrics of what Rails reports through `ActiveSupport::Notifications`. Times are distributions in milliseconds:
    #
    # - `rails.request`, `rails.request.db`, `rails.request.view`: `controller`, `action`, `status`;
    # - `rails.job`: `class`, `queue`; and the counter `rails.job.failed`;
    # - `rails.sql`, without what the query cache answered: `operation` (`select`, `insert`, ...), `name` (`User Load`);
    #   and the counter `rails.sql.failed`;
    # - `rails.cache`: `operation` (`read`, `write`, ...), `store`, and `hit` of reads.
    #
    # No tag has text of a statement, a key or a path, and each tag has at most {LIMITS} values; further ones become
    # `other`.
    #
    # @example
    #   require "statsd/instrument/notifications"
    #   StatsD::Instrument::Notifications.subscribe
    class Notifications
      # Different values of a tag.
      LIMITS = { controller: 300, action: 300, status: 60, class: 500, queue: 100, name: 500, store: 20 }.freeze
      # The operations of statements; others become `other`.
      OPERATIONS = %w[select insert update delete begin commit rollback savepoint release with explain].freeze
      # The events of a cache, with the name of the operation.
      CACHE = %w[read read_multi write write_multi delete delete_multi increment decrement generate exist? fetch_hit]
              .freeze
      # The groups of events, with their names.
      EVENTS = {
        requests: ["process_action.action_controller"], jobs: ["perform.active_job"], sql: ["sql.active_record"],
        cache: CACHE.map { |operation| "cache_#{operation}.active_support" }
      }.freeze
      # The first word of a statement, after comments.
      FIRST_WORD = %r{\A(?:\s+|\(|/\*.*?\*/|--[^\n]*\n)*+([a-z]+)}im
      # Characters of a statement that are looked at.
      HEAD = 1_000
      private_constant :OPERATIONS, :CACHE, :FIRST_WORD, :HEAD

      class << self
        # @param events [Array<Symbol>] keys of {EVENTS}
        # @param client [Client, nil] nil: {StatsD.singleton_client} at the time of the event
        # @return [Notifications]
        # @raise [ArgumentError] if there is no such group of events
        def subscribe(events: EVENTS.keys, client: nil)
          new(events, client)
        end
      end

      # @api private
      def initialize(events, client)
        unknown = events - EVENTS.keys
        raise ArgumentError, "no such events: #{unknown.inspect}; use #{EVENTS.keys.inspect}" unless unknown.empty?

        @client = client
        @values = LIMITS.transform_values { |limit| LimitedValues.new(limit) }
        @subscriptions = events.flat_map do |group|
          EVENTS[group].map do |name|
            ActiveSupport::Notifications.subscribe(name) { |event| safely(group, event) }
          end
        end
      end

      # Ends the subscription.
      # @return [void]
      def unsubscribe
        @subscriptions.each { |subscription| ActiveSupport::Notifications.unsubscribe(subscription) }
        @subscriptions = []
      end

      private

      # An error raised here would be one of the statement or the request of the application.
      def safely(group, event)
        client = @client || StatsD.singleton_client
        case group
        when :requests then request(client, event.payload, event.duration)
        when :jobs then job(client, event.payload, event.duration)
        when :sql then sql(client, event.payload, event.duration)
        else cache(client, event.name, event.payload, event.duration)
        end
      rescue StandardError => e
        StatsD.logger.warn { "[#{self.class.name}] #{event.name}: #{e.class}: #{e.message[/\A.*/]}" }
      end

      def request(client, payload, duration)
        tags = tags(controller: payload[:controller], action: payload[:action], status: status(payload))
        time(client, "rails.request", duration, tags)
        time(client, "rails.request.db", payload[:db_runtime], tags)
        time(client, "rails.request.view", payload[:view_runtime], tags)
      end

      # The payload has no status where an exception ended the action.
      def status(payload)
        return payload[:status] if payload[:status]

        name = payload[:exception]&.first
        return 500 unless name && defined?(ActionDispatch::ExceptionWrapper)

        ActionDispatch::ExceptionWrapper.status_code_for_exception(name)
      end

      def job(client, payload, duration)
        job = payload[:job]
        tags = tags(class: job.class.name, queue: job.queue_name)
        time(client, "rails.job", duration, tags)
        client.increment("rails.job.failed", tags: tags) if failed?(payload)
      end

      def sql(client, payload, duration)
        return if payload[:cached] || payload[:name] == "SCHEMA"

        tags = tags(name: payload[:name])
        tags[:operation] = operation(payload[:sql])
        time(client, "rails.sql", duration, tags)
        client.increment("rails.sql.failed", tags: tags) if failed?(payload)
      end

      def operation(statement)
        word = statement.to_s[0, HEAD].scrub[FIRST_WORD, 1]&.downcase
        OPERATIONS.include?(word) ? word : LimitedValues::OTHER
      end

      def cache(client, name, payload, duration)
        operation = name.delete_prefix("cache_").delete_suffix(".active_support").delete_suffix("?")
        tags = tags(store: payload[:store])
        tags[:operation] = operation
        tags[:hit] = payload[:hit] ? true : false if operation == "read"
        time(client, "rails.cache", duration, tags)
      end

      def failed?(payload)
        payload.key?(:exception) || payload.key?(:exception_object)
      end

      def tags(values)
        values.to_h { |key, value| [key, @values[key][value]] }
      end

      # The clock counts nanoseconds; digits beyond are noise.
      def time(client, name, duration, tags)
        client.distribution(name, duration.round(6), tags: tags) if duration
      end
    end
  end
end
