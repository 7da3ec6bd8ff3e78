# frozen_string_literal: true

# Tests must not depend on the machine they run on.
ENV.delete_if { |name, _| name.start_with?("STATSD_", "DD_", "DATADOG_") }
ENV["STATSD_ENV"] = "test"

$LOAD_PATH.unshift(File.expand_path("../lib", __dir__))

# A warning that comes from our own files is a failure.
module FailOnWarning
  ROOT = File.expand_path("..", __dir__)

  def warn(message, *, **)
    raise "warning: #{message}" if message.include?(ROOT)

    super
  end
end
Warning.singleton_class.prepend(FailOnWarning)

require "minitest/autorun"
require "stringio"
require "tmpdir"
require "timeout"
require "statsd-instrument"

StatsD.logger = Logger.new(File::NULL)

expected = ENV.fetch("WEIR_EXPECT_NATIVE", nil)
unless expected.nil? || StatsD::Instrument::NATIVE == (expected == "1")
  abort "this run must #{expected == "1" ? "" : "not "}use the native extension, but NATIVE is " \
        "#{StatsD::Instrument::NATIVE.inspect}"
end

# Helpers of most tests: servers that keep received packets, and waiting without sleeping blindly.
module Support
  # Seconds; only a failure takes as long, however busy the machine.
  DEADLINE = 60

  FORKS = Process.respond_to?(:fork) && RUBY_ENGINE == "ruby"

  def self.now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  # The seed of random numbers: the same each time, unless WEIR_SEED is a number, or "random".
  def self.seed
    text = ENV.fetch("WEIR_SEED", "1")
    text == "random" ? Random.new_seed % (2**32) : Integer(text, 10)
  end

  # Polls until the block is truthy.
  def wait_until(what = "condition", seconds: DEADLINE)
    deadline = Support.now + seconds
    until (result = yield)
      flunk("waited #{seconds} s for #{what}") if Support.now > deadline

      Thread.pass
      sleep(0.002)
    end
    result
  end

  # Ends the suite when one test takes longer than any of them should, and says where everybody stood: a test that hangs
  # says nothing by itself.
  module Watchdog
    LIMIT = 300

    class << self
      def watch(name)
        @name = name
        @since = Support.now
        @thread = Thread.new { run } unless @thread&.alive?
      end

      private

      def run
        sleep(1) while Support.now - @since < LIMIT
        stands = Thread.list.map { |thread| [thread.inspect, *thread.backtrace].join("\n  ") }
        $stderr.write("\n#{@name} has been running for #{LIMIT} s\n#{stands.join("\n")}\n")
        exit!(1)
      end
    end
  end

  def before_setup
    super
    Watchdog.watch("#{self.class}##{name}")
  end

  # A server on a socket. A thread reads packets as they come.
  class Server
    attr_reader :packets

    def initialize(socket)
      @socket = socket
      @packets = Queue.new
      @kept = []
      @lock = Mutex.new
      @thread = Thread.new { receive }
    end

    def lines
      packets_so_far.flat_map { |packet| packet.split("\n") }
    end

    def packets_so_far
      @lock.synchronize { @kept.dup }
    end

    # Sum of all values of a counter, sampled values not scaled.
    def total(name)
      lines.sum { |line| line.start_with?("#{name}:") ? line[/:(-?[\d.]+)\|c/, 1].to_f : 0 }.then do |sum|
        sum == sum.to_i ? sum.to_i : sum
      end
    end

    # Number of samples of a packed type.
    def samples(name)
      lines.sum { |line| line.start_with?("#{name}:") ? line.split("|").first.count(":") : 0 }
    end

    def close
      @closed = true
      # On JRuby neither a kill nor a close ends a thread that waits in recv.
      @thread.kill
      @socket.close
      @thread.join(RUBY_ENGINE == "jruby" ? 0.01 : 5)
    end

    private

    def receive
      loop do
        packet = read_packet or break
        @lock.synchronize { @kept << packet }
      end
    rescue IOError, SystemCallError
      nil
    end

    def read_packet
      until @closed
        return @socket.recv_nonblock(65_536) if @socket.wait_readable(0.05)
      end
    rescue IO::WaitReadable
      retry
    end
  end

  class UdpServer < Server
    def initialize(host = "127.0.0.1", port = 0)
      socket = UDPSocket.new
      socket.setsockopt(Socket::SOL_SOCKET, Socket::SO_RCVBUF, 8 << 20)
      socket.bind(host, port)
      super(socket)
    end

    def port
      @socket.addr[1]
    end

    def address
      "#{@socket.addr[3]}:#{port}"
    end
  end

  class UnixServer < Server
    attr_reader :path

    def initialize(path)
      @path = path
      socket = Socket.new(Socket::AF_UNIX, Socket::SOCK_DGRAM)
      socket.bind(Socket.pack_sockaddr_un(path))
      super(socket)
    end
  end

  class StreamServer < Server
    attr_reader :path

    def initialize(path)
      @path = path
      super(UNIXServer.new(path))
    end

    def close
      super
      @peers&.each(&:close)
    end

    private

    def receive
      loop do
        connection = @socket.accept
        (@peers ||= []) << connection
        Thread.new(connection) { |peer| frames(peer) }
      end
    rescue IOError, SystemCallError
      nil
    end

    def frames(peer)
      while (header = peer.read(4))
        packet = peer.read(header.unpack1("V"))
        @lock.synchronize { @kept << packet }
      end
    rescue IOError, SystemCallError
      nil
    end
  end

  # Keeps its messages in order.
  class ListSink
    attr_reader :lines

    def initialize
      @lines = Queue.new
    end

    def sample?(_rate)
      true
    end

    def <<(line)
      @lines << line
      self
    end

    def flush(blocking: false); end

    def to_a
      Array.new(@lines.size) { @lines.pop }
    end
  end

  def udp_server
    @servers ||= []
    @servers << UdpServer.new
    @servers.last
  end

  def unix_path
    @directory ||= Dir.mktmpdir("weir-statsd")
    File.join(@directory, "#{@paths = (@paths || 0) + 1}.sock")
  end

  # A server for tests that want no packet lost. JRuby has no Unix datagram sockets.
  def lossless_server
    RUBY_ENGINE == "jruby" ? udp_server : unix_server
  end

  def unix_server(path = unix_path)
    skip "JRuby has no Unix datagram sockets" if RUBY_ENGINE == "jruby"
    @servers ||= []
    @servers << UnixServer.new(path)
    @servers.last
  end

  def stream_server(path = unix_path)
    @servers ||= []
    @servers << StreamServer.new(path)
    @servers.last
  end

  # A client as in production that flushes on request, and reports nothing about itself: a machine that is busy for ten
  # seconds would have lines that the tests do not expect.
  def network_client(server, **options)
    sink_options = options.slice(:buffer_capacity, :max_packet_size, :overflow)
    sink = StatsD::Instrument::BatchedSink.new(patient_sink(server), **sink_options)
    client = StatsD::Instrument::Client.new(
      sink: sink, aggregation_flush_interval: 3600.0, telemetry: false, **options.except(*sink_options.keys)
    )
    (@clients ||= []) << client
    client
  end

  def address_of(server)
    server.respond_to?(:address) ? server.address : server.path
  end

  # Waits for its server for as long as it takes. The servers are threads of this process, and may get their turn
  # later than an application would wait.
  def patient_sink(server)
    patience = server.is_a?(UdpServer) ? {} : { write_timeout: DEADLINE.to_f }
    scheme = server.is_a?(StreamServer) ? "unix://" : ""
    StatsD::Instrument::Sink.for_addr("#{scheme}#{address_of(server)}", **patience)
  end

  # The address of a UDP socket that nobody reads.
  def deaf_address
    (@deaf ||= []) << UDPSocket.new
    @deaf.last.bind("127.0.0.1", 0)
    "127.0.0.1:#{@deaf.last.addr[1]}"
  end

  # A client that aggregates into a list.
  def list_client(**options)
    sink = ListSink.new
    client = StatsD::Instrument::Client.new(
      sink: sink, enable_aggregation: true, aggregation_flush_interval: 3600.0, **options
    )
    (@clients ||= []) << client
    [client, sink]
  end

  def flushed(client, sink)
    client.force_flush
    sink.to_a
  end

  # Runs Ruby code in its own process and returns its output.
  def ruby(code, env: {}, arguments: [], after: [])
    skip "JRuby from a jar has no command to start" if RUBY_ENGINE == "jruby"
    lib = File.expand_path("../lib", __dir__)
    reader, writer = IO.pipe
    pid = Process.spawn(env, RbConfig.ruby, "-w", "-I#{lib}", *arguments, "-e", code, *after, out: writer,
                                                                                              err: writer)
    writer.close
    output = Timeout.timeout(DEADLINE * 3) { reader.read }
    Process.wait(pid)
    [output, $?]
  ensure
    reader&.close
  end

  SKIPPED = [] # rubocop:disable Style/MutableConstant
  private_constant :SKIPPED

  # `make test` of the repository collects these lines.
  Minitest.after_run do
    puts SKIPPED, "tests skipped: #{SKIPPED.size}"
  end

  def after_teardown
    SKIPPED << "skipped: #{self.class}##{name}: #{failure.message}" if skipped?
    @clients&.each { |client| client.shutdown(0.5) }
    @servers&.each(&:close)
    @deaf&.each(&:close)
    FileUtils.remove_entry(@directory) if @directory
    super
  end
end

class TestCase < Minitest::Test
  include Support
end
