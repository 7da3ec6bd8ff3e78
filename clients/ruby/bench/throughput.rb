# frozen_string_literal: true

require "json"
require "open3"
require "optparse"
require "socket"
require "tempfile"
require_relative "implementations"

# Throughput of several threads with one client: the peer's own benchmark, with its errors corrected. All
# rounds are made that are counted, the final flush is inside the time, and the receiver is another process (this one)
# and counts what arrives, because speed without delivery is void.
#
# As a script it prints a table, a row for every combination of the listed values:
#
#   ruby bench/throughput.rb [--series 0,1,10] [--threads 1,5] [--iterations 6000] [--[no-]aggregate] [--yjit]
#                            [--statsd-instrument TREE] [--dogstatsd TREE]
#
# With --profile it prints, for each row, the methods in which the sending threads spend their CPU time. That needs
# stackprof (Debian's ruby-stackprof).
module Throughput
  # Series per metric that each iteration sends to; with none it sends one without a tag of its own.
  Load = Struct.new(:threads, :iterations, :series) do
    def calls
      threads * iterations * [series, 1].max
    end
  end
  LOAD = Load.new(5, 6_000, 0).freeze
  # Each call adds this to the counter.
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
      @received = @waits = @seen = 0
      Thread.new { loop { count(@socket.recv(65_536)) } }
    end

    # Waits until everything is read that was sent before: packets stay in order.
    def wait_for_all
      @waits += 1
      sender = UDPSocket.new
      until @seen == @waits
        sender.send("wait:#{@waits}", 0, "127.0.0.1", @socket.addr[1])
        sleep(0.01)
      end
      sender.close
    end

    private

    def count(packet)
      @seen = packet.delete_prefix("wait:").to_i if packet.start_with?("wait:")
      packet.scan(/^StatsD\.increment:(\d+)\|c/) { |(value)| @received += value.to_i }
    end
  end

  module_function

  # @return [Result]
  def run(receiver, implementation, flags, aggregate, load = LOAD, profile: nil)
    receiver.wait_for_all
    receiver.received = 0
    output, error, status = Open3.capture3(
      implementation.env, RbConfig.ruby, *flags, File.join(__dir__, "throughput_worker.rb"), implementation.kind,
      implementation.lib, receiver.address, aggregate.to_s, *load.to_a.map(&:to_s), *profile
    )
    raise "#{implementation.name} failed: #{error}" unless status.success?

    receiver.wait_for_all
    wall, cpu = output.lines.last.split.map { |seconds| Float(seconds) }
    calls = load.calls
    Result.new(calls * 3 / wall, calls * 3 / cpu, receiver.received / (calls * INCREMENT).to_f)
  end

  # The table of a sweep.
  class Sweep
    def initialize(implementations, options)
      @implementations = implementations
      @options = options
      @receiver = Receiver.new
    end

    def print
      return profiles if @options[:profile]

      puts "| client | aggregates | series | threads | iterations | calls/s | calls/s of CPU | arrived |"
      puts "| --- | --- | --- | --- | --- | --- | --- | --- |"
      loads.each do |load|
        @implementations.in_turn(0) do |one|
          @options[:aggregate].each { |aggregate| row(one, aggregate, load) }
        end
      end
    end

    private

    # Methods with less than this share of the samples are left out.
    LEAST_SHARE = 0.02
    private_constant :LEAST_SHARE

    def profiles
      loads.each do |load|
        @implementations.in_turn(0) do |one|
          @options[:aggregate].each { |aggregate| profile(one, aggregate, load) }
        end
      end
    end

    def profile(one, aggregate, load)
      return if aggregate && one.name == Implementations::OTHER # has none

      Tempfile.create("profile") do |file|
        Throughput.run(@receiver, one, @options[:flags], aggregate, load, profile: file.path)
        shares(one, aggregate, load, JSON.parse(file.read))
      end
    end

    def shares(one, aggregate, load, running)
      all = running.values.sum
      puts format("\n%s, %s, %d series, %d threads: %d samples\n\n", one.name,
                  aggregate ? "aggregating" : "not aggregating", load.series, load.threads, all)
      puts "| method | CPU time |", "| --- | --- |"
      shown = running.sort_by { |method, samples| [-samples, method] }
      shown = shown.take_while { |_, samples| samples >= all * LEAST_SHARE }
      shown.each { |method, samples| puts format("| `%s` | %.0f %% |", method, 100.0 * samples / all) }
    end

    def loads
      @options[:series].product(@options[:threads], @options[:iterations]).map do |series, threads, iterations|
        Load.new(threads, iterations, series)
      end
    end

    def row(one, aggregate, load)
      return if aggregate && one.name == Implementations::OTHER # has none

      result = Throughput.run(@receiver, one, @options[:flags], aggregate, load)
      puts format("| %s | %s | %d | %d | %d | %d | %d | %.1f %% |", one.name, aggregate ? "yes" : "no", load.series,
                  load.threads, load.iterations, result.per_second, result.per_cpu_second, result.arrived * 100)
    end
  end

  def numbers(least)
    lambda do |list|
      list.map { |text| Integer(text, 10) }.each do |number|
        raise ArgumentError, "#{number} is below #{least}" if number < least
      end
    end
  end

  def main(arguments)
    options = { series: [LOAD.series], threads: [LOAD.threads], iterations: [LOAD.iterations],
                aggregate: [true, false], flags: [], profile: false }
    trees = {}
    OptionParser.new do |parser|
      parser.on("--series LIST", Array) { |list| options[:series] = numbers(0).call(list) }
      parser.on("--threads LIST", Array) { |list| options[:threads] = numbers(1).call(list) }
      parser.on("--iterations LIST", Array) { |list| options[:iterations] = numbers(1).call(list) }
      parser.on("--[no-]aggregate") { |aggregate| options[:aggregate] = [aggregate] }
      parser.on("--profile") { options[:profile] = true }
      parser.on("--yjit") { options[:flags] = ["--yjit"] }
      parser.on("--statsd-instrument TREE") { |tree| trees[Implementations::PEER] = tree }
      parser.on("--dogstatsd TREE") { |tree| trees[Implementations::OTHER] = tree }
    end.parse!(arguments)
    Sweep.new(Implementations.new(trees), options).print
  rescue ArgumentError, OptionParser::ParseError => e
    abort "throughput: #{e.message}; series are numbers from 0, threads and iterations from 1, with commas between them"
  end
end

Throughput.main(ARGV) if $PROGRAM_NAME == __FILE__
