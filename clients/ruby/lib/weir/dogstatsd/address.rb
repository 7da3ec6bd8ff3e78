# frozen_string_literal: true

# The project's other entry points.
module Weir
  # Parts of {Datadog::Statsd}.
  # @api private
  module Dogstatsd
    # Where messages go: the arguments of the constructor, else the environment, else port 8125 of this machine.
    # @api private
    class Address
      DEFAULT_HOST = "127.0.0.1"
      DEFAULT_PORT = 8125
      # Texts before the address in `DD_DOGSTATSD_URL`, with what follows.
      SCHEMES = { "udp://" => :udp, "unix://" => :uds, "unixgram://" => :uds, "unixstream://" => :stream }.freeze

      # @return [String, nil]
      attr_reader :host
      # @return [Integer, nil]
      attr_reader :port
      # @return [String, nil]
      attr_reader :socket_path

      # @param host [String, nil]
      # @param port [Integer, String, nil]
      # @param socket_path [String, nil]
      # @param env [Hash{String => String}]
      # @raise [ArgumentError] if both kinds of addresses are given, or the URL has another scheme
      def initialize(host, port, socket_path, env = ENV)
        @stream = false
        use(host, port, socket_path, "host or port, and socket_path") ||
          use_url(env["DD_DOGSTATSD_URL"]) ||
          use(env["DD_AGENT_HOST"], env["DD_DOGSTATSD_PORT"]&.to_i, env["DD_DOGSTATSD_SOCKET"],
              "DD_AGENT_HOST or DD_DOGSTATSD_PORT, and DD_DOGSTATSD_SOCKET") ||
          use(DEFAULT_HOST, DEFAULT_PORT, nil, nil)
      end

      # @return [Symbol] `:udp` or `:uds`
      def transport_type
        @socket_path ? :uds : :udp
      end

      # @param max_packet_size [Integer] bytes
      # @return [#send_datagram]
      def connection(max_packet_size)
        options = { max_packet_size: max_packet_size }
        return StatsD::Instrument::UdpConnection.new(@host, Integer(@port), **options) unless @socket_path
        return StatsD::Instrument::UdsStreamConnection.new(@socket_path, **options) if @stream

        StatsD::Instrument::UdsConnection.new(@socket_path, **options)
      end

      private

      # @return [Boolean] whether there is an address
      def use(host, port, socket_path, names)
        raise ArgumentError, "#{names}, are both set; set one of them" if (host || port) && socket_path
        return false unless host || port || socket_path

        @socket_path = socket_path
        @host = socket_path ? nil : host || DEFAULT_HOST
        @port = socket_path ? nil : port || DEFAULT_PORT
        true
      end

      def use_url(url)
        return false if url.nil?

        scheme = SCHEMES.keys.find { |prefix| url.start_with?(prefix) }
        rest = url.delete_prefix(scheme.to_s)
        unless scheme
          raise ArgumentError,
                "DD_DOGSTATSD_URL is #{url.inspect}, but must begin with one of #{SCHEMES.keys.join(", ")}"
        end

        @stream = SCHEMES[scheme] == :stream
        return use(nil, nil, rest, nil) unless scheme == "udp://"

        host, port = StatsD::Instrument::Sink.host_and_port(rest)
        use(host, port, nil, nil)
      end
    end
  end
end
