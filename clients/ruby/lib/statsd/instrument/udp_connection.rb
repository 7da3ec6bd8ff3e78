# frozen_string_literal: true

module StatsD
  module Instrument
    # Sends packets over UDP.
    class UdpConnection
      include ConnectionBehavior

      # Largest payload that crosses an Ethernet link in one piece.
      DEFAULT_MAX_PACKET_SIZE = 1_472

      # Seconds between two sockets that are opened after a refusal: each leaves an entry in tables of connections.
      REOPEN_PAUSE = 1.0
      # The same for localhost, where there are no such tables: a server that comes back at the other address is found
      # after one packet.
      TURN_PAUSE = 0.01
      # A full queue of the kernel empties by itself: it leads to the network, not to the server.
      FOREVER = -1
      private_constant :REOPEN_PAUSE, :TURN_PAUSE, :FOREVER

      # @return [String]
      attr_reader :host
      # @return [Integer]
      attr_reader :port

      # @param host [String] name or address; a name is looked up at the first send
      # @param port [Integer]
      # @param max_packet_size [Integer] bytes
      # @param dns_refresh_interval [Float] seconds between lookups of a name; 0 looks it up once
      # @param resolver [HostResolver] for tests
      def initialize(host, port, max_packet_size: DEFAULT_MAX_PACKET_SIZE,
                     dns_refresh_interval: HostResolver::DEFAULT_REFRESH_INTERVAL,
                     resolver: HostResolver.new(host, port, refresh_interval: dns_refresh_interval))
        @host = host
        @port = port
        @max_packet_size = max_packet_size
        @resolver = resolver
        @socket = nil
        @connected_to = nil
        @reopen_after = 0.0
      end

      # @param message [String] one packet
      # @return [void]
      # @raise [SystemCallError, SocketError]
      def send_datagram(message)
        socket.send(message, 0)
      end

      if Backend.respond_to?(:send_packets)
        # @param packets [Array<String>]
        # @param from [Integer] index of the first
        # @return [Array(Integer, SystemCallError, Integer)] packets sent, the error of the next one or nil, and how
        #   many of the packets sent were refused
        # @api private
        def send_datagrams(packets, from)
          sent, error, refused = Backend.send_packets(socket.fileno, packets, from, FOREVER)
          refused += leave if refused.positive? && reopen?
          [sent, error_of(error), refused]
        end
      end

      # @return [Boolean] whether the error is about an earlier packet: the server's host or a firewall refused it, and
      #   the kernel says so at the next call
      # @api private
      def refused?(error)
        case error
        when Errno::ECONNREFUSED, Errno::EHOSTUNREACH then true
        else false
        end
      end

      # A table of connections (conntrack on a Kubernetes node) may lead this source port to a server that has ended, as
      # long as packets keep the entry alive. So a refusal leads to a socket with another port, now and then.
      # @return [Boolean] whether to go on with the same socket
      # @api private
      def usable_after?(error)
        refused?(error) && !reopen?
      end

      # (see ConnectionBehavior#type)
      def type
        :udp
      end

      # @return [Integer] file descriptor of the connected socket
      # @api private
      def fileno
        socket.fileno
      end

      private

      def reopen?
        now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        return false if now < @reopen_after

        @reopen_after = now + (@resolver.turn ? TURN_PAUSE : REOPEN_PAUSE)
        true
      end

      # Closes the socket.
      # @return [Integer] 1 if the kernel still had the refusal of a packet to report, otherwise 0
      def leave
        pending = @socket.getsockopt(Socket::SOL_SOCKET, Socket::SO_ERROR).int
        close
        refused?(error_of(pending)) ? 1 : 0
      end

      def socket
        address = @resolver.address
        close if @socket && !address.equal?(@connected_to)
        @socket ||= begin
          opened = UDPSocket.new(address.afamily)
          raise_send_buffer(opened)
          opened.connect(address.ip_address, address.ip_port)
          @connected_to = address
          opened
        end
      end
    end
  end
end
