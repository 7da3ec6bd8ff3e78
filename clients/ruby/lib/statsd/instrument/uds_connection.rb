# frozen_string_literal: true

module StatsD
  module Instrument
    # Sends packets to a Unix datagram socket. JRuby has none of these; use {UdsStreamConnection} there.
    class UdsConnection
      include ConnectionBehavior

      # The packet size servers expect on Unix sockets.
      DEFAULT_MAX_PACKET_SIZE = 8_192

      # @return [String]
      attr_reader :socket_path

      # @param socket_path [String] file name of the server's socket
      # @param max_packet_size [Integer] bytes
      # @param write_timeout [Float] seconds to wait for a server that does not read, once until it reads again
      def initialize(socket_path, max_packet_size: DEFAULT_MAX_PACKET_SIZE,
                     write_timeout: ConnectionBehavior::DEFAULT_WRITE_TIMEOUT)
        if max_packet_size <= 0
          StatsD.logger.warn do
            "[#{self.class.name}] max_packet_size must be above 0, not #{max_packet_size}; " \
              "using #{DEFAULT_MAX_PACKET_SIZE}"
          end
          max_packet_size = DEFAULT_MAX_PACKET_SIZE
        end
        @socket_path = socket_path
        @max_packet_size = max_packet_size
        @patience = Patience.new(write_timeout)
        @socket = nil
      end

      # @param message [String] one packet
      # @return [void]
      # @raise [SystemCallError]
      def send_datagram(message)
        write_within_timeout(socket, message)
      end

      if NATIVE
        # (see UdpConnection#send_datagrams)
        # @api private
        def send_datagrams(packets, from)
          sent = Native.send_packets(socket.fileno, packets, from, (@patience.seconds * 1_000).ceil)
          if sent.positive?
            @patience.regain
          elsif sent == -Errno::ETIMEDOUT::Errno
            @patience.lose
          end
          sent
        end
      end

      # @return [nil] Unix sockets have no host
      def host
        nil
      end

      # @return [nil] Unix sockets have no port
      def port
        nil
      end

      # (see ConnectionBehavior#type)
      def type
        :uds
      end

      # @return [Integer] file descriptor of the connected socket
      # @api private
      def fileno
        socket.fileno
      end

      private

      def socket
        @socket ||= open_socket.tap { |opened| raise_send_buffer(opened) }
      end

      def open_socket
        opened = Socket.new(Socket::AF_UNIX, Socket::SOCK_DGRAM)
        opened.connect(Socket.pack_sockaddr_un(@socket_path))
        opened
      rescue SystemCallError
        opened&.close
        raise
      end
    end
  end
end
