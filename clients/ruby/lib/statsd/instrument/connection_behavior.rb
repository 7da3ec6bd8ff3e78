# frozen_string_literal: true

module StatsD
  module Instrument
    # The common part of the connections: a socket opened at the first send, a write that gives up
    # after a while, and packets that are never longer than agreed.
    #
    # A connection belongs to one thread. {Sink} makes one for each thread that sends.
    module ConnectionBehavior
      # Seconds a full Unix socket may keep the sending thread waiting, once until the server reads again.
      DEFAULT_WRITE_TIMEOUT = 1.0

      # @return [Integer] bytes in the longest packet
      attr_reader :max_packet_size

      # @return [void]
      def close
        @socket&.close
      rescue IOError, SystemCallError => e
        StatsD.logger.debug do
          "[#{self.class.name}] closing the socket failed: #{e.class}: #{e.message}"
        end
      ensure
        @socket = nil
      end

      # From now on all sends together may wait for the server this long, and none later.
      # @param seconds [Numeric]
      # @return [void]
      # @api private
      def end_within(seconds)
        @patience&.end_within(seconds)
      end

      # Forgets the socket without touching it: after a fork it belongs to the parent.
      # @return [void]
      # @api private
      def abandon
        @socket = nil
      end

      # @return [Integer] bytes the kernel accepts in one packet; opens the socket
      def send_buffer_size
        socket.getsockopt(Socket::SOL_SOCKET, Socket::SO_SNDBUF).int
      end

      # @return [Symbol] name of the transport, as used in metric names
      def type
        raise NotImplementedError, "#{self.class} must implement #type"
      end

      # @return [ConnectionBehavior] an unconnected connection to the same place, for another thread
      # @api private
      def for_another_thread
        copy = dup
        copy.abandon
        copy
      end

      private

      # @param number [Integer] of an error of the system; 0 is none
      # @return [SystemCallError, nil]
      def error_of(number)
        SystemCallError.new(nil, number) unless number.zero?
      end

      def raise_send_buffer(socket)
        return socket if socket.getsockopt(Socket::SOL_SOCKET, Socket::SO_SNDBUF).int >= @max_packet_size

        socket.setsockopt(Socket::SOL_SOCKET, Socket::SO_SNDBUF, @max_packet_size)
        allowed = socket.getsockopt(Socket::SOL_SOCKET, Socket::SO_SNDBUF).int
        if allowed < @max_packet_size
          StatsD.logger.warn do
            "[#{self.class.name}] packets may be #{@max_packet_size} bytes long, " \
              "but this system allows a send buffer of #{allowed} bytes"
          end
        end
        socket
      end

      def write_some(socket, bytes)
        socket.sendmsg_nonblock(bytes, 0, exception: false)
      end

      # Writes all bytes or raises. {Patience} decides how long to wait for a server that does not read.
      def write_within_timeout(socket, bytes)
        deadline = nil
        until bytes.empty?
          written = write_some(socket, bytes)
          if written == :wait_writable
            deadline ||= Process.clock_gettime(Process::CLOCK_MONOTONIC) + @patience.seconds
            left = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
            give_up if left <= 0 || !socket.wait_writable(left)
          else
            @patience.regain
            return if written == bytes.bytesize

            bytes = bytes.byteslice(written..)
          end
        end
      end

      def give_up
        @patience.lose
        raise Errno::ETIMEDOUT, "server does not read"
      end
    end

    # The longest time that a server that does not read may block senders. The connections of all threads share it,
    # because they lead to the same server.
    #
    # Waiting once for a server that is stuck is enough: from then on packets that do not fit are dropped at once, until
    # something could be written again. Without this a full queue in front of it would cost a timeout per packet.
    # @api private
    class Patience
      # @param seconds [Float] longest wait of one write
      def initialize(seconds)
        @seconds = seconds
        @lost = false
        @deadline = nil
      end

      # @return [Float] longest wait of the next write
      def seconds
        return 0.0 if @lost
        return @seconds unless @deadline

        left = @deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
        left.clamp(0.0, @seconds)
      end

      # A write waited and did not succeed.
      def lose
        @lost = true
      end

      # A write succeeded.
      def regain
        @lost = false
      end

      # The client shuts down: all writes together may wait this long from now on, and none later.
      def end_within(seconds)
        @deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
      end
    end
  end
end
