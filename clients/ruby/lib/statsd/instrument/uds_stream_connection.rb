# frozen_string_literal: true

module StatsD
  module Instrument
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
