# frozen_string_literal: true

module StatsD
  module Instrument
    # Sends each message at once, from the calling thread, as a packet of its own.
    #
    # Every thread has its own connection. After a socket error the connection is opened again and
    # the packet tried again; then it is dropped, counted and logged.
    class Sink
      class << self
        # @param addr [String] `host:port`, `udp://host:port`, `unixgram:///path`, `unix:///path`
        #   (stream) or the file name of a datagram socket
        # @return [Sink]
        def for_addr(addr, **options)
          new(connection_for(addr, **options))
        end

        # @api private
        def connection_for(addr, **options)
          case addr
          when %r{\Aunix(?:stream)?://} then UdsStreamConnection.new(addr.sub(%r{\A\w+://}, ""), **options)
          when %r{\Aunixgram://} then UdsConnection.new(addr.sub("unixgram://", ""), **options)
          when %r{\Audp://} then UdpConnection.new(*host_and_port(addr.sub("udp://", "")), **options)
          when %r{\A/} then UdsConnection.new(addr, **options)
          when /:/ then UdpConnection.new(*host_and_port(addr), **options)
          else UdsConnection.new(addr, **options)
          end
        end

        # @return [Array(String, Integer)]
        # @raise [ArgumentError] if the port is not a number
        # @api private
        def host_and_port(text, default_port: 8125)
          found = /\A\[(?<host>[^\]]+)\](?::(?<port>.*))?\z/.match(text) ||
                  /\A(?<host>[^:]*)(?::(?<port>.*))?\z/.match(text)
          raise ArgumentError, "not an address: #{text.inspect}; expected host:port or [ipv6]:port" unless found

          port = found[:port].nil? ? default_port : Integer(found[:port], 10, exception: false)
          unless port&.between?(1, 65_535)
            raise ArgumentError, "not a port in address #{text.inspect}: expected a number from 1 to 65535"
          end

          [found[:host].empty? ? "localhost" : found[:host], port]
        end
      end

      # Seconds between two log lines about dropped packets.
      DROP_LOG_INTERVAL = 10.0
      private_constant :DROP_LOG_INTERVAL

      # @return [Telemetry] counts of sent and dropped messages
      attr_reader :telemetry

      # @param connection [#send_datagram, #close] the connection of the calling thread
      def initialize(connection = nil)
        @prototype = connection
        @connections = IdentityMap.new
        @connections[Thread.current] = connection if connection
        @telemetry = Telemetry.new
        @next_drop_log = 0
        @max_packet_size = connection.max_packet_size if connection.respond_to?(:max_packet_size)
        @renews = connection.respond_to?(:renew)
        ForkTracker.track(self)
      end

      # @param sample_rate [Float] 0.0 to 1.0
      # @return [Boolean] whether to send a metric with that rate this time
      def sample?(sample_rate)
        sample_rate == 1.0 || rand < sample_rate
      end

      # @param datagram [String] a message, or several joined by newlines
      # @return [self]
      def <<(datagram)
        size = datagram.bytesize
        return drop_oversize(datagram) if @max_packet_size && size > @max_packet_size

        begin
          to = connection
          to.renew if @renews
          to.send_datagram(datagram)
        rescue SocketError, IOError, SystemCallError => e
          @telemetry.accepted_message(datagram)
          send_after_error(datagram, e)
          return self
        end
        @telemetry.sent_message(datagram, size)
        self
      end

      # @param blocking [Boolean] makes no difference: nothing is ever held back
      # @return [void]
      def flush(blocking: false); end

      # @return [Integer, nil] bytes in the longest packet; nil when the connection does not say
      attr_reader :max_packet_size

      # @return [#send_datagram] the connection of the calling thread
      def connection
        thread = Thread.current
        @connections[thread] || (@connections[thread] = new_connection)
      end

      # @return [String] class name of the connection
      def connection_type
        connection.class.name
      end

      # @return [String, nil]
      def host
        connection.host
      end

      # @return [Integer, nil]
      def port
        connection.port
      end

      # Closes the sockets of all threads. A message that comes later opens another.
      # @return [void]
      def close
        @connections.values.each { |connection| connection.close if connection.respond_to?(:close) }
      end

      # Sends one packet, whatever its length.
      # @param packet [String]
      # @return [Boolean] whether it was sent
      # @api private
      def send_packet(packet)
        connection.renew if @renews
        transmit(packet)
      end

      # Sends several packets, with as few system calls as the connection allows.
      # @param packets [Array<String>]
      # @return [void]
      # @api private
      def send_packets(packets)
        connection.renew if @renews
        position = 0
        while position < packets.size
          sent, error = send_at_once(packets, position)
          position += sent
          next if sent.positive? && !error

          error ? send_after_error(packets[position], error) : transmit(packets[position])
          position += 1
        end
      end

      # Limits the waits of all further sends together: after this many seconds none waits for the server.
      # @api private
      def end_within(seconds)
        @prototype.end_within(seconds) if @prototype.respond_to?(:end_within)
      end

      # @api private
      def after_fork
        @telemetry.after_fork
        # The sockets are shared with the parent: closing them here is harmless, using them is not.
        @prototype.abandon if @prototype.respond_to?(:abandon)
        @connections.clear
      end

      # @api private
      def after_daemon; end

      private

      # @return [Boolean] whether the packet was sent
      def transmit(packet)
        connection.send_datagram(packet)
        @telemetry.sent(packet.bytesize)
        true
      rescue SocketError, IOError, SystemCallError => e
        send_after_error(packet, e)
      end

      # Tries again, through a new connection, if that is worth it.
      # @return [Boolean] whether the packet was sent
      def send_after_error(packet, error)
        again = worth_another_try?(error)
        refused = refused?(error)
        reset_connection(error)
        return drop(packet, error) unless again

        connection.send_datagram(packet)
        refused ? count_refused(1, packet.bytesize) : @telemetry.sent(packet.bytesize)
        true
      rescue SocketError, IOError, SystemCallError => e
        reset_connection(e)
        drop(packet, e)
      end

      def reset_connection(error)
        StatsD.logger.debug do
          "[#{self.class.name}] [#{connection.class.name}] " \
            "Resetting connection because of #{error.class}: #{error.message}"
        end
        invalidate_connection unless connection.respond_to?(:usable_after?) && connection.usable_after?(error)
      end

      def new_connection
        @prototype.respond_to?(:for_another_thread) ? @prototype.for_another_thread : @prototype
      end

      def invalidate_connection
        connection&.close
      end

      # @return [Boolean] whether the packet may go out through a new connection
      def worth_another_try?(error)
        return true unless error.is_a?(Errno::ETIMEDOUT)

        # A server that does not read will not read faster for being asked twice. But there may be another one.
        connection.respond_to?(:replaced?) && connection.replaced?
      end

      # @return [Boolean] whether the error is about an earlier packet
      def refused?(error)
        connection.respond_to?(:refused?) && connection.refused?(error)
      end

      # @return [Array(Integer, Exception)] packets sent, and the error of the one after them or nil
      def send_at_once(packets, position)
        connection = self.connection
        return [0, nil] unless connection.respond_to?(:send_datagrams)

        sent, error, refused = connection.send_datagrams(packets, position)
        refused = sent if refused > sent
        bytes = packets[position, sent].sum(&:bytesize)
        if refused.positive?
          lost = packets[position, refused].sum(&:bytesize)
          count_refused(refused, lost)
          bytes -= lost
        end
        @telemetry.sent(bytes, sent - refused) if sent > refused
        [sent, error]
      rescue SocketError, IOError, SystemCallError => e
        [0, e]
      end

      # The kernel reports a refused packet after it was counted as sent. So one of the packets that are sent now counts
      # as dropped instead, and the sum of both numbers stays right.
      def count_refused(packets, bytes)
        @telemetry.refused(packets, bytes)
        log_drop { "nobody receives at #{host}:#{port}; packets refused so far: #{@telemetry[:packets_refused]}" }
      end

      def drop(packet, error)
        @telemetry.dropped(:writer, packet.bytesize)
        log_drop { "a packet of #{packet.bytesize} bytes was dropped: #{error.class}: #{error.message}" }
        false
      end

      def drop_oversize(datagram)
        @telemetry.count(:dropped_oversize)
        log_drop { "a message of #{datagram.bytesize} bytes was dropped: packets end at #{max_packet_size} bytes" }
        self
      end

      # Drops come in bursts; the counters have all of them, the log the first of each interval.
      def log_drop
        now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
        return if now < @next_drop_log

        @next_drop_log = now + DROP_LOG_INTERVAL
        StatsD.logger.warn { "[#{self.class.name}] [#{connection.class.name}] #{yield}" }
      end
    end

    # Accepts everything and keeps nothing. The sink of the `test` environment.
    class NullSink
      def sample?(_sample_rate)
        true
      end

      # Takes one message.
      # @return [self]
      def <<(_datagram)
        self
      end

      # Sends everything that it has taken.
      # @return [void]
      def flush(blocking: false)
        # Nothing is ever held back.
      end
    end

    # Keeps each message as a parsed datagram and hands it on to its parent.
    # @see Client#capture
    class CaptureSink
      # @return [#<<] where messages go after they were kept
      attr_reader :parent
      # @return [Array<Datagram>] everything since the start or the last {#clear}
      attr_reader :datagrams
      # @return [Class] the parser of messages
      attr_reader :datagram_class

      def initialize(parent:, datagram_class: Datagram)
        @parent = parent
        @datagram_class = datagram_class
        @datagrams = []
      end

      # A test wants to see every call, whatever its sample rate.
      def sample?(_sample_rate)
        true
      end

      # Takes one message.
      # @return [self]
      def <<(datagram)
        @datagrams << datagram_class.new(datagram)
        parent << datagram
        self
      end

      # @return [void]
      def clear
        @datagrams.clear
      end

      # Sends everything that it has taken.
      # @return [void]
      def flush(blocking: false)
        @parent.flush(blocking: blocking)
      end
    end

    # Writes each message to a logger. The sink of the `development` environment.
    class LogSink
      # @return [Logger]
      attr_reader :logger
      # @return [Integer] a severity of `Logger`
      attr_reader :severity

      def initialize(logger, severity: Logger::DEBUG)
        @logger = logger
        @severity = severity
      end

      def sample?(_sample_rate)
        true
      end

      # Takes one message.
      # @return [self]
      def <<(datagram)
        logger.add(severity, "[StatsD] #{datagram.chomp}")
        self
      end

      # Sends everything that it has taken.
      # @return [void]
      def flush(blocking: false)
        # A logger writes at once.
      end
    end
  end
end
