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

      if Backend.respond_to?(:send_packets)
        # (see UdpConnection#send_datagrams)
        # @api private
        def send_datagrams(packets, from)
          sent, error = Backend.send_packets(socket.fileno, packets, from, (@patience.seconds * 1_000).ceil)
          @patience.regain if sent.positive?
          @patience.lose if error == Errno::ETIMEDOUT::Errno
          # A Unix socket reports a failure at once.
          [sent, error_of(error), 0]
        end
      end

      # @return [Boolean] whether another socket has taken the place of the one this is connected to
      # @api private
      def replaced?
        now = @socket && place
        !now.nil? && now != @connected_to
      end

      # Leaves a server that another one has taken the place of: the old one may go on reading for a while, or hang, and
      # no error tells. If nobody listens at the new socket yet, the connection stays.
      # @return [void]
      # @api private
      def renew
        return unless replaced?

        old = @socket
        place = @connected_to
        @socket = nil
        begin
          socket
          old.close
        rescue SystemCallError
          @socket = old
          @connected_to = place
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
        @socket ||= begin
          @connected_to = place
          open_socket.tap { |opened| raise_send_buffer(opened) }
        end
      end

      # @return [Array(Integer, Integer), nil] device and inode of the server's socket; nil where it has none
      def place
        found = File.stat(@socket_path)
        [found.dev, found.ino]
      rescue SystemCallError, ArgumentError
        nil
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

    # Sends packets to a Unix stream socket, each as a frame: its length in four bytes, least
    # significant first, then the packet.
    class UdsStreamConnection < UdsConnection
      # @param message [String] one packet
      # @return [void]
      # @raise [SystemCallError] after which the connection must be closed: a frame may be half written
      def send_datagram(message)
        write_within_timeout(socket, [message.bytesize, message].pack("Va*"))
      end

      # Frames may go out in pieces, so each is written by itself.
      undef_method :send_datagrams if method_defined?(:send_datagrams)

      # (see ConnectionBehavior#type)
      def type
        :uds_stream
      end

      private

      def open_socket
        UNIXSocket.new(@socket_path)
      end

      def write_some(socket, bytes)
        socket.write_nonblock(bytes, exception: false)
      end
    end
  end
end
