# frozen_string_literal: true

# Calls that five threads with one client make in a second of processor time, all threads and the final
# flush included, next to other clients. The rate by the clock is printed, too.
#
#   ruby bench/throughput.rb [--statsd-instrument TREE] [--dogstatsd TREE] [--rounds 3] [--iterations 6000]
#                            [--series 0] [--yjit]
#
# The receiver is this process and counts what arrives: speed without delivery is void, so the share of
# the counter that arrived is printed beside each figure.

require "open3"
require "optparse"
require "socket"

options = { rounds: 3, iterations: 6_000, series: 0, threads: 5, jit: [] }
OptionParser.new do |parser|
  parser.on("--statsd-instrument TREE") { |tree| options["statsd-instrument"] = tree }
  parser.on("--dogstatsd TREE") { |tree| options["dogstatsd"] = tree }
  parser.on("--rounds NUMBER", Integer) { |number| options[:rounds] = number }
  parser.on("--iterations NUMBER", Integer) { |number| options[:iterations] = number }
  parser.on("--series NUMBER", Integer) { |number| options[:series] = number }
  parser.on("--yjit") { options[:jit] = ["--yjit"] }
end.parse!

RECEIVER = UDPSocket.new
RECEIVER.setsockopt(Socket::SOL_SOCKET, Socket::SO_RCVBUF, 16 << 20)
RECEIVER.bind("127.0.0.1", 0)
ADDRESS = "127.0.0.1:#{RECEIVER.addr[1]}"
$received = 0
Thread.new do
  loop do
    packet = RECEIVER.recv(65_536)
    packet.scan(/^StatsD\.increment:(\d+)\|c/) { |(value)| $received += value.to_i }
  end
end

cases = [["weir, aggregated", "weir", File.expand_path("../lib", __dir__), "true"],
         ["weir, batched", "weir", File.expand_path("../lib", __dir__), "false"]]
if options["statsd-instrument"]
  lib = File.join(options["statsd-instrument"], "lib")
  cases << ["statsd-instrument, aggregated", "statsd-instrument", lib, "true"]
  cases << ["statsd-instrument, batched", "statsd-instrument", lib, "false"]
end
cases << ["dogstatsd, delayed", "dogstatsd", File.join(options["dogstatsd"], "lib"), "false"] if options["dogstatsd"]

# Waits until nothing has arrived for a moment, so that the next run starts with an empty socket.
def settle
  before = nil
  until before == $received
    before = $received
    sleep(0.1)
  end
end

def run(implementation, lib, aggregate, options)
  settle
  $received = 0
  output, error, status = Open3.capture3(
    RbConfig.ruby, *options[:jit], File.join(__dir__, "throughput_worker.rb"), implementation, lib, ADDRESS, aggregate,
    options[:threads].to_s, options[:iterations].to_s, options[:series].to_s
  )
  raise "#{implementation} failed: #{error}" unless status.success?

  settle
  calls = options[:threads] * options[:iterations] * [options[:series], 1].max
  wall, cpu = output.lines.last.split.map { |seconds| Float(seconds) }
  [calls * 3 / cpu, calls * 3 / wall, $received / (calls * 10.0)]
end

results = Hash.new { |hash, name| hash[name] = [] }
options[:rounds].times do |round|
  (round.even? ? cases : cases.reverse).each { |name, *arguments| results[name] << run(*arguments, options) }
end
puts "#{options[:threads]} threads, #{options[:iterations]} iterations, #{options[:series]} series, " \
     "Ruby #{RUBY_VERSION} #{options[:jit].join}"
middle = ->(values) { values.sort[values.size / 2] }
cases.each do |name, *|
  cpu, wall, arrived = results[name].transpose
  puts format("%-30s %9d calls per CPU second (%d to %d), %9d per second, %.1f %% arrived",
              name, middle.call(cpu), cpu.min, cpu.max, middle.call(wall), arrived.min * 100)
end
baseline = results["statsd-instrument, aggregated"].map(&:first)
unless baseline.empty?
  ratios = results["weir, aggregated"].map(&:first).zip(baseline).map { |ours, theirs| ours / theirs }
  puts format("aggregated, weir to statsd-instrument: %.1fx (%.1f-%.1f)", middle.call(ratios), ratios.min, ratios.max)
end
