# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # The answer to a request. The status is 0 if there was none; the text says what was wrong then.
      # @api private
      Answer = Struct.new(:status, :text, :duplicate, :retry_after, keyword_init: true) do
        def accepted?
          status / 100 == 2
        end

        # @return [String] for the log
        def fault
          return text if status.zero?

          "the agent answers #{status} to columns#{": #{text}" unless text.to_s.empty?}"
        end
      end

      # Makes requests of HTTP/1.1, each on a connection of its own: there is one every few seconds, and a connection
      # that the agent has just closed cannot be mistaken for an agent that has failed.
      # @api private
      class Endpoint
        HTTP = "http://"
        UNIX = "http+unix://"
        # Seconds for a connection, and for a request. An agent with a state directory answers after its next
        # checkpoint.
        CONNECT_TIMEOUT = 1.0
        TIMEOUT = 10.0
        # Bytes of an answer that are read.
        ANSWER_MAX = 65_536
        # Seconds between two looks for the end of all requests.
        SLICE = 0.2
        # As in "Thu, 26 Nov 2026 12:00:00 GMT".
        DATE = /\A[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d:\d\d:\d\d) GMT\z/
        private_constant :SLICE, :DATE

        class << self
          # @return [Boolean] whether an address is one of an endpoint for columns
          def address?(text)
            text.to_s.start_with?(HTTP, UNIX)
          end

          # @return [String] the address for datagrams beside an endpoint: the agent's default port on the same host,
          #   unless the environment names another
          def datagram_address(text, env = {})
            host = text.start_with?(HTTP) ? new(text).host : "127.0.0.1"
            host = env.fetch("DD_AGENT_HOST", host)
            host = "[#{host}]" if host.include?(":") && !host.start_with?("[")
            "#{host}:#{env.fetch("DD_DOGSTATSD_PORT", "8125")}"
          end
        end

        # @return [String, nil] nil for a socket
        attr_reader :host

        # @param address [String] `http://HOST:PORT` or `http+unix://PATH`
        # @param local [String, nil] container id
        # @param external [String, nil] value of `DD_EXTERNAL_ENV`
        # @raise [ArgumentError] if it is none
        def initialize(address, local: nil, external: nil)
          @ends = nil
          @socket_path = nil
          @path = ""
          parse(address.to_s)
          lines = ["Host: #{@socket_path ? "localhost" : "#{@authority}:#{@port}"}", "User-Agent: weir-ruby/#{VERSION}",
                   "Content-Type: application/x-protobuf", "Connection: close"]
          lines << "x-dsd-ld: #{local}" if local
          lines << "x-dsd-ed: #{external}" if external
          @lines = lines.map { |line| line.delete("\r\n") }
          renew
        end

        # From now on this is another client.
        def renew
          id = Random.urandom(16).unpack1("H*")
          @ends = nil
          @head = [*@lines, "x-weir-client: #{id}"].map { |line| "#{line}\r\n" }.join.freeze
        end

        # Ends every request at a moment.
        # @param moment [Float] of the monotonic clock
        def hurry(moment)
          @ends = moment
        end

        # Sends a payload. Without a number it only looks whether somebody takes columns.
        # @return [Answer]
        def post(path, body, number, oldest)
          deadline = now + (number ? TIMEOUT : 2 * CONNECT_TIMEOUT)
          socket = connect
          begin
            exchange(socket, request(path, body, number, oldest), deadline)
          ensure
            socket.close
          end
        rescue SystemCallError, SocketError, IOError, ArgumentError => e
          Answer.new(status: 0, text: "columns: #{e.class}: #{e.message}")
        end

        private

        def parse(text)
          if text.start_with?(UNIX) && text.length > UNIX.length
            @socket_path = text.delete_prefix(UNIX)
            return
          end
          found = %r{\Ahttp://(?<host>\[[^\]@/?#]+\]|[^:\[@/?#]+)(?::(?<port>\d+))?(?<path>/[^?#]*)?\z}.match(text)
          @port = Integer(found[:port] || "8125", 10) if found
          unless found && @port.between?(1, 65_535)
            raise ArgumentError, "not an address: #{text.inspect}; expected http://HOST:PORT or http+unix://PATH"
          end

          @authority = found[:host]
          @host = @authority.delete("[]")
          @path = found[:path].to_s.delete_suffix("/")
        end

        def now
          Process.clock_gettime(Process::CLOCK_MONOTONIC)
        end

        def connect
          if @socket_path
            UNIXSocket.new(@socket_path)
          else
            Socket.tcp(@host, @port, connect_timeout: CONNECT_TIMEOUT)
          end
        end

        def request(path, body, number, oldest)
          text = "POST #{@path}#{path} HTTP/1.1\r\n#{@head}"
          text << "x-weir-sequence: #{number}\r\nx-weir-oldest: #{oldest}\r\n" if number
          text << "Content-Length: #{body.bytesize}\r\n\r\n"
          text.b << body
        end

        # An agent may refuse a payload before it has read it.
        def exchange(socket, bytes, deadline)
          failed = write(socket, bytes, deadline)
          begin
            read(socket, deadline)
          rescue SystemCallError, IOError
            raise failed || $!
          end
        end

        # @return [SystemCallError, nil] what failed
        def write(socket, bytes, deadline)
          until bytes.empty?
            written = socket.write_nonblock(bytes, exception: false)
            if written == :wait_writable
              wait(deadline) { |seconds| socket.wait_writable(seconds) }
            else
              bytes = bytes.byteslice(written..)
            end
          end
        rescue Errno::EPIPE, Errno::ECONNRESET => e
          e
        end

        # Waits a little.
        def wait(deadline)
          ends = @ends
          deadline = ends if ends && ends < deadline
          left = deadline - now
          raise Errno::ETIMEDOUT, "no answer" if left <= 0

          yield [left, SLICE].min
        end

        def read(socket, deadline)
          text = String.new(encoding: Encoding::BINARY)
          loop do
            answer = answer_in(text) and return answer
            part = socket.read_nonblock(16_384, exception: false)
            case part
            when :wait_readable then wait(deadline) { |seconds| socket.wait_readable(seconds) }
            when nil then return answer_in(text, ended: true) || raise(EOFError, "the agent closed the connection")
            else text << part
            end
            raise IOError, "the answer is too long" if text.bytesize > ANSWER_MAX
          end
        end

        # @return [Answer, nil] nil as long as something is missing
        def answer_in(text, ended: false)
          head, body = text.split("\r\n\r\n", 2)
          return unless body

          first, *fields = head.split("\r\n")
          status = first.to_s[%r{\AHTTP/1\.\d ([1-9]\d\d)(?: |\z)}, 1].to_i
          raise IOError, "#{first.inspect} is no answer of HTTP/1.1" if status.zero?
          return answer_in(body, ended: ended) if status < 200

          headers = fields.to_h { |field| field.split(":", 2).then { |name, value| [name.downcase, value.to_s.strip] } }
          missing = status / 100 != 2 && body.bytesize < [headers["content-length"].to_i, 512].min
          return if missing && !ended

          Answer.new(status: status, text: status / 100 == 2 ? nil : Wire.utf8(body.byteslice(0, 512)).strip,
                     duplicate: headers.key?("x-weir-duplicate"), retry_after: seconds(headers["retry-after"]))
        end

        # Understands seconds and dates.
        def seconds(text)
          return if text.nil?
          return text.to_f if text.match?(/\A\d{1,9}\z/)

          day, month, year, time = DATE.match(text)&.captures
          day && [Time.utc(year, month, day, *time.split(":")) - Time.now, 0.0].max
        rescue ArgumentError
          nil
        end
      end
    end
  end
end
