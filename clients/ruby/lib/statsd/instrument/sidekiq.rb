# frozen_string_literal: true

require "statsd-instrument"
require "statsd/instrument/limited_values"

module StatsD
  module Instrument
    # Counts and times the jobs of Sidekiq. All metrics have the tags `queue` and `class`:
    #
    # - `sidekiq.enqueued`, a counter: jobs that a client put into a queue; `sidekiq.scheduled`: for later;
    # - `sidekiq.queue.time`, a distribution in milliseconds: how long a job waited in its queue;
    # - `sidekiq.job.time`, a distribution in milliseconds: how long it ran, also if it failed;
    # - `sidekiq.jobs`, a counter with `result`: `ok`, `failed`, or `interrupted` by the end of the process;
    # - `sidekiq.failures`, a counter with `error`, the class of the exception.
    #
    # @example
    #   require "statsd/instrument/sidekiq"
    #   StatsD::Instrument::SidekiqMetrics.install
    module SidekiqMetrics
      # Different classes, errors and queues; further ones become `other`.
      LIMITS = { class: 500, error: 200, queue: 100 }.freeze
      # Where a number of milliseconds since 1970 cannot be one of seconds.
      MILLISECONDS = 100_000_000_000
      private_constant :MILLISECONDS

      @values = LIMITS.transform_values { |limit| LimitedValues.new(limit) }

      class << self
        # @return [Client, nil] nil: {StatsD.singleton_client} at the time of the call
        attr_writer :client

        # Adds both to Sidekiq.
        # @param client [Client, nil]
        # @return [void]
        def install(client: nil)
          self.client = client
          ::Sidekiq.configure_client { |config| add(config.method(:client_middleware), ClientMiddleware) }
          ::Sidekiq.configure_server do |config|
            # A server enqueues jobs, too.
            add(config.method(:client_middleware), ClientMiddleware)
            add(config.method(:server_middleware), ServerMiddleware)
          end
        end

        # @return [Client]
        # @api private
        def client
          @client || StatsD.singleton_client
        end

        # @api private
        def tags(job, queue)
          # Active Job puts its class there.
          { queue: @values[:queue][queue], class: @values[:class][job["wrapped"] || job["class"]] }
        end

        # @api private
        def error(exception)
          @values[:error][exception.class.name]
        end

        # @return [Float, nil] milliseconds since the job came into the queue
        # @api private
        def waited(job)
          since = job["enqueued_at"]
          return unless since.is_a?(Numeric)

          # Since version 8 these are milliseconds.
          since /= 1_000.0 if since > MILLISECONDS
          [(Process.clock_gettime(Process::CLOCK_REALTIME) - since) * 1_000, 0].max.round(3)
        end

        private

        def add(middleware, klass)
          middleware.call { |chain| chain.add(klass) }
        end
      end

      # Counts the jobs that a process hands to Sidekiq.
      class ClientMiddleware
        # @param _class [Class, String]
        # @param job [Hash]
        # @param queue [String]
        # @return [Hash, nil] what the next middleware returns; false or nil if it stopped the job
        def call(_class, job, queue, *)
          result = yield
          if result
            SidekiqMetrics.client.increment(
              job["at"] ? "sidekiq.scheduled" : "sidekiq.enqueued", tags: SidekiqMetrics.tags(job, queue)
            )
          end
          result
        end
      end

      # Counts and times the jobs that a process runs.
      class ServerMiddleware
        # @param _instance [Object]
        # @param job [Hash]
        # @param queue [String]
        # @return the job's value
        def call(_instance, job, queue)
          client = SidekiqMetrics.client
          tags = SidekiqMetrics.tags(job, queue)
          waited = SidekiqMetrics.waited(job)
          client.distribution("sidekiq.queue.time", waited, tags: tags) if waited
          result = "interrupted"
          begin
            value = client.distribution("sidekiq.job.time", tags: tags) { yield } # rubocop:disable Style/ExplicitBlockArgument
            result = "ok"
            value
          rescue StandardError => e
            result = "failed"
            client.increment("sidekiq.failures", tags: tags.merge(error: SidekiqMetrics.error(e)))
            raise
          ensure
            client.increment("sidekiq.jobs", tags: tags.merge(result: result))
          end
        end
      end
    end
  end
end
