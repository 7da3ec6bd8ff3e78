# frozen_string_literal: true

require "open3"
require "socket"

# What several threads with one client get through: the peer's own throughput benchmark with its faults corrected. All
# rounds are made that are counted, the final flush is inside the time, and the receiver is another process (this one)
# and counts what arrives, because speed without delivery is void.
module Throughput
  THREADS = 5
  ITERATIONS = 6_000
  # Each iteration adds this to the counter.
  INCREMENT = 10

  Result = Struct.new(:per_second, :per_cpu_second, :arrived)

  # Adds up the counter that the workers send.
  class Receiver
    attr_accessor :received
    attr_reader :address

    def initialize
      @socket = UDPSocket.new
      @socket.setsockopt(Socket::SOL_SOCKET, Socket::SO_RCVBUF, 16 << 20)
      @socket.bind("127.0.0.1", 0)
      @address = "127.0.0.1:#{@socket.addr[1]}"
      @received = 0
      Thread.new { loop { count(@socket.recv(65_536)) } }
    end

    # Waits until nothing has arrived for a moment.
    def wait_until_quiet
      before = nil
      until before == @received
        before = @received
        sleep(0.1)
      end
    end

    private

    def count(packet)
      packet.scan(/^StatsD\.increment:(\d+)\|c/) { |(value)| @received += value.to_i }
    end
  end

  module_function

  # @return [Result]
  def run(receiver, implementation, flags, aggregate)
    receiver.wait_until_quiet
    receiver.received = 0
    output, error, status = Open3.capture3(
      implementation.env, RbConfig.ruby, *flags, File.join(__dir__, "throughput_worker.rb"), implementation.kind,
      implementation.lib, receiver.address, aggregate.to_s, THREADS.to_s, ITERATIONS.to_s, "0"
    )
    raise "#{implementation.name} failed: #{error}" unless status.success?

    receiver.wait_until_quiet
    wall, cpu = output.lines.last.split.map { |seconds| Float(seconds) }
    calls = THREADS * ITERATIONS
    Result.new(calls * 3 / wall, calls * 3 / cpu, receiver.received / (calls * INCREMENT).to_f)
  end
end
