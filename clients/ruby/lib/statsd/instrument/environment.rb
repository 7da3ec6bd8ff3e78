# frozen_string_literal: true

module StatsD
  module Instrument
    # Turns environment variables into a client. The variables are read from any Hash, so that tests
    # need not touch the process.
    #
    # README.md lists every variable.
    class Environment
      FALSE_WORDS = ["0", "f", "false", "n", "no", "off", ""].freeze
      # Variables that only a process set up the Datadog way has.
      DATADOG_SETUP = %w[DD_DOGSTATSD_URL DD_DOGSTATSD_SOCKET DD_AGENT_HOST DD_EXTERNAL_ENV DD_ENTITY_ID].freeze
      private_constant :FALSE_WORDS, :DATADOG_SETUP

      class << self
        # @return [Environment] of this process
        def current
          @current ||= new(ENV)
        end

        # @deprecated Use `Environment.current.environment`.
        # @return [String]
        def environment
          current.environment
        end

        # Gives {StatsD.logger} its first value, a logger to standard error.
        # @return [void]
        def setup
          StatsD.logger = Logger.new($stderr)
        end
      end

      # @return [Hash{String => String}]
      attr_reader :env

      # @param env [Hash{String => String}]
      def initialize(env)
        @env = env
        warn_about_flush_interval if env.key?("STATSD_FLUSH_INTERVAL")
      end

      # @return [String] `production` and `staging` send, `test` swallows, everything else logs
      def environment
        if env["STATSD_ENV"]
          env["STATSD_ENV"]
        elsif defined?(Rails) && Rails.respond_to?(:env)
          Rails.env.to_s
        else
          env["RAILS_ENV"] || env["RACK_ENV"] || env["ENV"] || "development"
        end
      end

      # @return [String]
      def statsd_implementation
        env.fetch("STATSD_IMPLEMENTATION", "datadog")
      end

      # @return [Float]
      def statsd_sample_rate
        number("STATSD_SAMPLE_RATE", 1.0)
      end

      # @return [String, nil]
      def statsd_prefix
        env["STATSD_PREFIX"]
      end

      # @return [String] `host:port`
      def statsd_addr
        address = env.fetch("STATSD_ADDR") { datadog_addr || "localhost:8125" }
        Columns::Endpoint.address?(address) ? Columns::Endpoint.datagram_address(address, env) : address
      end

      # @return [String, nil] `http://...` or `http+unix://...` address of an agent that takes columns
      def columns_address
        return env["STATSD_COLUMNS"] unless env.fetch("STATSD_COLUMNS", "").empty?

        address = env.fetch("STATSD_ADDR") { env["DD_DOGSTATSD_URL"] }
        address if Columns::Endpoint.address?(address)
      end

      # @return [Integer] bytes
      def columns_max_bytes
        whole_number("STATSD_COLUMNS_MAX_BYTES", Columns::DEFAULT_MAX_BYTES)
      end

      # @return [String] file name or `unix...://` address of a socket; empty for UDP
      def statsd_socket_path
        return env["STATSD_SOCKET_PATH"] if env.key?("STATSD_SOCKET_PATH")
        return "" if env.key?("STATSD_ADDR")

        datadog_socket || ""
      end

      # @return [Array<String>, nil]
      def statsd_default_tags
        env["STATSD_DEFAULT_TAGS"]&.split(",")
      end

      # @return [Array<String>] the tags of `DD_TAGS`, `DD_ENTITY_ID`, `DD_ENV`, `DD_SERVICE` and `DD_VERSION`
      # @api private
      def datadog_tags
        entity_tag + dd_tags
      end

      # @return [Array<String>, nil] the tags of `STATSD_DEFAULT_TAGS`, and those of the `DD_*` variables that
      #   `STATSD_DD_TAGS` asks for
      def client_default_tags
        return statsd_default_tags if statsd_implementation == "statsd"

        tags = (statsd_default_tags || []) + entity_tag
        tags += dd_tags if truthy?(env["STATSD_DD_TAGS"], default: false)
        tags unless tags.empty? && !env.key?("STATSD_DEFAULT_TAGS")
      end

      # @return [Integer] messages; 0 turns batching off
      def statsd_buffer_capacity
        whole_number("STATSD_BUFFER_CAPACITY", BatchedSink::DEFAULT_BUFFER_CAPACITY)
      end

      # @return [Boolean]
      def statsd_batching?
        statsd_buffer_capacity.positive? && number("STATSD_FLUSH_INTERVAL", 1.0).positive?
      end

      # @return [Boolean] whether to send to a Unix socket
      def statsd_uds_send?
        !statsd_socket_path.empty?
      end

      # @return [Integer] bytes
      def statsd_max_packet_size
        unix = statsd_uds_send? || unix_address?
        default = unix ? UdsConnection::DEFAULT_MAX_PACKET_SIZE : UdpConnection::DEFAULT_MAX_PACKET_SIZE
        whole_number("STATSD_MAX_PACKET_SIZE", default)
      end

      # @return [Integer] seconds; 0 turns the statistics off
      def statsd_batch_statistics_interval
        whole_number("STATSD_BATCH_STATISTICS_INTERVAL", BatchedSink::DEFAULT_STATISTICS_INTERVAL)
      end

      # @return [Symbol] `:sync` or `:drop`
      # @raise [ArgumentError] for any other value
      def statsd_queue_overflow
        value = env.fetch("STATSD_QUEUE_OVERFLOW", "sync").to_sym
        return value if BatchedSink::OVERFLOW_POLICIES.include?(value)

        invalid("STATSD_QUEUE_OVERFLOW", "sync or drop")
      end

      # @return [Float] seconds between lookups of the host name; 0 looks it up once
      def statsd_dns_refresh_interval
        number("STATSD_DNS_REFRESH_INTERVAL", HostResolver::DEFAULT_REFRESH_INTERVAL)
      end

      # @return [Boolean, nil] nil leaves it to the client: on when it sends in batches
      def aggregation_enabled
        return unless env.key?("STATSD_ENABLE_AGGREGATION")

        truthy?(env["STATSD_ENABLE_AGGREGATION"], default: true)
      end

      # @return [Boolean]
      def experimental_aggregation_enabled?
        aggregation_enabled || false
      end

      # @return [Float] seconds
      def aggregation_interval
        number("STATSD_AGGREGATION_INTERVAL", Aggregator::DEFAULT_FLUSH_INTERVAL)
      end

      # @return [Integer] samples
      def aggregation_max_context_size
        whole_number("STATSD_AGGREGATION_MAX_CONTEXT_SIZE", Aggregator::DEFAULT_MAX_CONTEXT_SIZE)
      end

      # @return [Integer] contexts
      def aggregation_max_contexts
        whole_number("STATSD_AGGREGATION_MAX_CONTEXTS", Aggregator::DEFAULT_MAX_CONTEXTS)
      end

      # @return [Boolean, nil] whether the client reports about itself; nil where nothing says so
      def telemetry_enabled?
        truthy?(env["STATSD_TELEMETRY"], default: nil)
      end

      # @return [Boolean] whether messages say which container they come from: what
      #   `DD_ORIGIN_DETECTION_ENABLED` says, else whether the process was set up the Datadog way
      def origin_detection?
        return false if statsd_implementation == "statsd"

        set_up = DATADOG_SETUP.any? { |variable| env.key?(variable) }
        truthy?(env["DD_ORIGIN_DETECTION_ENABLED"], default: set_up)
      end

      # @return [String, nil] an unknown value counts as none
      def cardinality
        value = (env["DD_CARDINALITY"] || env["DATADOG_CARDINALITY"])&.downcase
        value if Client::CARDINALITIES.include?(value)
      end

      # @return [Client]
      def client
        Client.from_env(self)
      end

      # @return [Hash] options of {Client#initialize} beyond those of {Client.from_env}
      # @api private
      def client_options
        options = {
          enable_aggregation: aggregation_enabled,
          aggregation_flush_interval: aggregation_interval,
          aggregation_max_context_size: aggregation_max_context_size,
          aggregation_max_contexts: aggregation_max_contexts,
          cardinality: cardinality,
          telemetry: telemetry_enabled?
        }
        if network? && columns_address
          options[:columns] = columns_address
          options[:columns_max_bytes] = columns_max_bytes
        end
        if origin_detection?
          # An entity id names the pod already.
          options[:container_id] = OriginDetection.new.container_id unless env.key?("DD_ENTITY_ID")
          options[:external_data] = env["DD_EXTERNAL_ENV"]
        end
        options
      end

      # @return [#sample?, #<<, #flush]
      def default_sink_for_environment
        return network_sink if network?

        case environment
        when "test" then NullSink.new
        else LogSink.new(StatsD.logger)
        end
      end

      private

      def network?
        %w[production staging].include?(environment)
      end

      def network_sink
        sink = Sink.new(connection)
        return sink unless statsd_batching?

        BatchedSink.new(
          sink,
          buffer_capacity: statsd_buffer_capacity,
          max_packet_size: statsd_max_packet_size,
          statistics_interval: statsd_batch_statistics_interval,
          overflow: statsd_queue_overflow
        )
      end

      def connection
        size = statsd_max_packet_size
        if statsd_uds_send?
          Sink.connection_for(socket_address, max_packet_size: size)
        elsif unix_address?
          Sink.connection_for(statsd_addr, max_packet_size: size)
        else
          host, port = Sink.host_and_port(statsd_addr.sub("udp://", ""))
          UdpConnection.new(host, port, max_packet_size: size, dns_refresh_interval: statsd_dns_refresh_interval)
        end
      end

      def unix_address?
        statsd_addr.match?(%r{\Aunix\w*://})
      end

      def socket_address
        path = statsd_socket_path
        path.include?("://") ? path : "unixgram://#{path}"
      end

      def datadog_addr
        url = env["DD_DOGSTATSD_URL"]
        return url.delete_prefix("udp://") if url&.start_with?("udp://")
        return url if Columns::Endpoint.address?(url)
        return unless env.key?("DD_AGENT_HOST") || env.key?("DD_DOGSTATSD_PORT")

        host = env.fetch("DD_AGENT_HOST", "localhost")
        host = "[#{host}]" if host.include?(":")
        "#{host}:#{env.fetch("DD_DOGSTATSD_PORT", "8125")}"
      end

      # In these variables `unix://` means a datagram socket, as it does for the other clients that
      # read them.
      def datadog_socket
        case (url = env["DD_DOGSTATSD_URL"])
        when nil, %r{\Ahttp(?:\+unix)?://} then env["DD_DOGSTATSD_SOCKET"]
        when %r{\Aunix(?:gram)?://(?<path>.+)} then Regexp.last_match[:path]
        when %r{\Aunixstream://} then url
        end
      end

      # The server takes this one out and adds the tags of the pod it names.
      def entity_tag
        tag_of("DD_ENTITY_ID", "dd.internal.entity_id")
      end

      # Tags from these variables. They are made for tracers and agents; many environments set them.
      def dd_tags
        # Separated by commas or blanks.
        listed = env.fetch("DD_TAGS", "").split(/[,\s]+/).reject(&:empty?)
        listed + tag_of("DD_ENV", "env") + tag_of("DD_SERVICE", "service") + tag_of("DD_VERSION", "version")
      end

      def tag_of(variable, key)
        value = env[variable]
        value.nil? || value.empty? ? [] : ["#{key}:#{value}"]
      end

      def truthy?(value, default:)
        value.nil? ? default : !FALSE_WORDS.include?(value.strip.downcase)
      end

      def number(variable, default)
        return default unless env.key?(variable)

        Float(env[variable], exception: false) || invalid(variable, "a number")
      end

      def whole_number(variable, default)
        return default unless env.key?(variable)

        Integer(env[variable], 10, exception: false) || invalid(variable, "a whole number")
      end

      def invalid(variable, allowed)
        raise ArgumentError, "#{variable} is #{env[variable].inspect}, but must be #{allowed}"
      end

      def warn_about_flush_interval
        value = env["STATSD_FLUSH_INTERVAL"]
        if number("STATSD_FLUSH_INTERVAL", 1.0).zero?
          warn("STATSD_FLUSH_INTERVAL=#{value} is deprecated, please set STATSD_BUFFER_CAPACITY=0 instead.")
        else
          warn("STATSD_FLUSH_INTERVAL=#{value} is deprecated and has no effect, please remove it.")
        end
      end
    end
  end
end

StatsD::Instrument::Environment.setup
