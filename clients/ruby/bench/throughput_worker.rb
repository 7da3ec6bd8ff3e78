# frozen_string_literal: true

# Sends metrics from several threads through one client and prints the time that took, by the
# clock and in processor time of the whole process, the final flush included. Started by bench/table.rb.
#
#   ruby bench/throughput_worker.rb IMPLEMENTATION LIB ADDRESS AGGREGATE THREADS ITERATIONS SERIES [PROFILE]
#
# PROFILE is a file for samples of the sending threads' CPU time, taken by stackprof: one JSON object with the number of
# samples by method that ran, those of other threads as one.

implementation, lib, address, aggregate, threads, iterations, series, profile = ARGV
$LOAD_PATH.unshift(lib)
threads = Integer(threads)
iterations = Integer(iterations)
series = Integer(series)
require "logger"

if implementation == "dogstatsd"
  require "datadog/statsd"
  host, port = address.split(":")
  client = Datadog::Statsd.new(host, Integer(port), telemetry_enable: false, origin_detection: false,
                                                    delay_serialization: true, sender_queue_size: Float::INFINITY)
  finish = -> { client.close }
else
  require "statsd-instrument"
  StatsD.logger = Logger.new(File::NULL)
  environment = { "STATSD_ENV" => "production", "STATSD_ADDR" => address, "STATSD_IMPLEMENTATION" => "dogstatsd" }
  if implementation == "weir"
    environment["STATSD_ENABLE_AGGREGATION"] = aggregate == "true" ? "true" : "false"
  elsif aggregate == "true"
    environment["STATSD_ENABLE_AGGREGATION"] = "true"
  end
  client = StatsD::Instrument::Environment.new(environment).client
  # The work that every implementation must finish before the clock stops.
  finish = lambda do
    client.force_flush
    client.sink.shutdown
  end
end

# The same three calls for all, written for each API.
send_plain, send_series = if implementation == "dogstatsd"
                            [->(*) {
                               client.increment("StatsD.increment", by: 10)
                               client.time("StatsD.measure") { 1 + 1 }
                               client.gauge("StatsD.gauge", 12.0, tags: ["foo:bar", "quc"])
                             },
                             ->(tags) {
                               client.increment("StatsD.increment", by: 10, tags: tags)
                               client.time("StatsD.measure", tags: tags) { 1 + 1 }
                               client.gauge("StatsD.gauge", 12.0, tags: tags)
                             }]
                          else
                            [->(*) {
                               client.increment("StatsD.increment", 10)
                               client.measure("StatsD.measure") { 1 + 1 }
                               client.gauge("StatsD.gauge", 12.0, tags: ["foo:bar", "quc"])
                             },
                             ->(tags) {
                               client.increment("StatsD.increment", 10, tags: tags)
                               client.measure("StatsD.measure", tags: tags) { 1 + 1 }
                               client.gauge("StatsD.gauge", 12.0, tags: tags)
                             }]
                          end

if profile
  require "json"
  require "stackprof"
  # Microseconds of CPU time between two samples.
  StackProf.start(mode: :cpu, interval: 500, raw: true)
end
cpu_before = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
Array.new(threads) do
  Thread.new do
    iterations.times do
      if series.zero?
        send_plain.call
      else
        series.times { |index| send_series.call(["series:#{index}", "foo:bar", "baz:quc"]) }
      end
    end
  end
end.each(&:join)
StackProf.stop if profile
finish.call
seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
puts "#{seconds} #{Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - cpu_before}"
$stdout.flush
if profile
  results = StackProf.results
  frames = results[:frames]
  raw = results[:raw]
  running = Hash.new(0)
  at = 0
  while at < raw.length
    stack = raw[at + 1, raw[at]].map { |id| frames[id] }
    samples = raw[at + 1 + raw[at]]
    sending = stack.any? { |frame| frame[:file] == __FILE__ }
    running[sending ? stack.last[:name] : "(other threads)"] += samples
    at += raw[at] + 2
  end
  File.write(profile, JSON.generate(running))
end
exit!(0)
