# frozen_string_literal: true

module StatsD
  module Instrument
    # Looks a host name up and keeps it fresh. The first lookup happens when the first packet is sent;
    # later ones run in a thread of their own, so that no packet waits for DNS again. While a lookup
    # fails, the last address that worked is kept.
    #
    # `localhost` is not looked up: its server may listen on either loopback address, and on 127.0.0.1 unless it is told
    # otherwise.
    #
    # Shared by all connections to the same server.
    # @api private
    class HostResolver
      # Seconds after which an address is looked up again; 0 turns it off.
      DEFAULT_REFRESH_INTERVAL = 60.0

      LOOPBACKS = ["127.0.0.1", "::1"].freeze
      private_constant :LOOPBACKS

      def initialize(host, port, refresh_interval: DEFAULT_REFRESH_INTERVAL, lookup: nil)
        @host = host
        @port = port
        @refresh_interval = refresh_interval
        @loopbacks = LOOPBACKS if lookup.nil? && host.match?(/\Alocalhost\.?\z/i)
        @lookup = lookup || ->(name, number) { Addrinfo.udp(@loopbacks ? @loopbacks.first : name, number) }
        @address = nil
        @due = nil
        @refresh = nil
      end

      # @return [Addrinfo] the current address
      # @raise [SocketError] if the host was never found
      def address
        return @address || resolve unless @due && now >= @due

        refresh
        @address
      end

      # Takes the other address of `localhost`, because the server is not at this one.
      # @return [Boolean] whether there is another
      def turn
        return false unless @loopbacks

        @loopbacks = @loopbacks.rotate
        resolve
        true
      end

      # @return [Boolean] whether the address may change
      def refreshing?
        @refresh_interval.positive? && !literal?
      end

      private

      def resolve
        found = @lookup.call(@host, @port)
        # JRuby's word for a name that nobody knows.
        raise SocketError, "#{@host} was not found" if found.ip_address == "0.0.0.0" && !literal?

        @address = found
        @due = now + @refresh_interval if refreshing?
        @address
      end

      def refresh
        return if @refresh&.alive?

        @due = now + @refresh_interval
        @refresh = Background.start("statsd-dns") do
          resolve
        rescue SocketError, SystemCallError => e
          StatsD.logger.warn do
            "[#{self.class.name}] looking up #{@host} failed, keeping #{@address.ip_address}: #{e.message}"
          end
        end
      end

      def literal?
        return @literal unless @literal.nil?

        @literal = !@loopbacks.nil? || @host.match?(/\A[\d.]+\z/) || @host.include?(":")
      end

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end
    end
  end
end
