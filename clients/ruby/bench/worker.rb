# frozen_string_literal: true

# Measures single calls of one implementation and prints the result as JSON. Started by bench/table.rb, one
# process for each implementation, because both define the module StatsD.
#
# The cases after "of the peer's own" are the blocks of statsd-instrument's own benchmarks: `send_metrics` of
# benchmark/send-metrics-to-*, and test/benchmark/metrics.rb.
#
#   ruby bench/worker.rb IMPLEMENTATION LIB_DIRECTORY CALLS

require "json"
require "socket"

implementation, lib, calls = ARGV
CALLS = Integer(calls)
$LOAD_PATH.unshift(lib)

TAGS_ARRAY = ["shop:1", "region:us-east", "env:production", "pod:22", "kind:web"].freeze
TAGS_ARRAY_OPEN = TAGS_ARRAY.map(&:dup)
TAGS_HASH = { shop: "1", region: "us-east", env: "production", pod: "22", kind: "web" }
TAGS_HASH_FROZEN = TAGS_HASH.dup.freeze
TAGS_TWO = { shop: "1", region: "us-east" }
TAG_ONE = { something: "a value" }
# Calls that take long are measured this many times fewer.
SLOW = 10

# Accepts and forgets, so that only the client is measured.
class DiscardingSink
  def sample?(_rate)
    true
  end

  def <<(_datagram)
    self
  end

  def flush(blocking: false); end
end

RECEIVER = UDPSocket.new
RECEIVER.bind("127.0.0.1", 0)
PORT = RECEIVER.addr[1]

# A case is a name, the code of one call, and the code that empties the client between measurements.
def statsd_cases
  # Not loaded before now: both implementations are called statsd-instrument.
  require "statsd-instrument"
  StatsD.logger = Logger.new(File::NULL)
  $aggregating = StatsD::Instrument::Client.new(
    sink: DiscardingSink.new, enable_aggregation: true, aggregation_flush_interval: 3600.0,
    aggregation_max_context_size: CALLS * 10
  )
  $batched_sink = StatsD::Instrument::BatchedSink.new(
    StatsD::Instrument::Sink.for_addr("127.0.0.1:#{PORT}"), buffer_capacity: CALLS * 4
  )
  $batched = StatsD::Instrument::Client.new(sink: $batched_sink, enable_aggregation: false)
  StatsD.singleton_client = $aggregating
  define_compiled_metrics
  define_peers_clients
  drain = "$aggregating.force_flush"
  flush = "$batched_sink.flush(blocking: false)"
  static = "STATIC.increment"
  if $aggregating.respond_to?(:counter)
    Object.const_set(:HANDLE, $aggregating.counter("bench.handle", tags: TAGS_HASH))
    handle = "HANDLE.increment"
  end
  [
    ["aggregated increment, no tags", '$aggregating.increment("bench.counter")', drain],
    ["aggregated increment, 5-tag Array", '$aggregating.increment("bench.counter", tags: TAGS_ARRAY_OPEN)', drain],
    ["aggregated increment, 5-tag Hash", '$aggregating.increment("bench.counter", tags: TAGS_HASH)', drain],
    ["aggregated increment, frozen 5-tag Hash", '$aggregating.increment("bench.frozen", tags: TAGS_HASH_FROZEN)',
     drain],
    ["aggregated increment, 2-tag Hash literal",
     '$aggregating.increment("bench.counter", tags: { shop: 1, region: "us" })', drain],
    ["aggregated increment through StatsD, 5-tag Hash", 'StatsD.increment("bench.counter", tags: TAGS_HASH)', drain],
    ["aggregated gauge, 2 tags", '$aggregating.gauge("bench.gauge", 12.5, tags: TAGS_TWO)', drain],
    ["aggregated distribution, 5-tag Hash", '$aggregating.distribution("bench.dist", 12.5, tags: TAGS_HASH)', drain],
    ["aggregated measure with block", '$aggregating.measure("bench.measure") { nil }', drain],
    ["handle (peer: compiled static counter)", handle || static, drain],
    ["compiled static counter", static, drain],
    ["compiled counter, 2 dynamic tags", 'DYNAMIC.increment(shop: 1, region: "us")', drain],
    ["compiled distribution, 2 dynamic tags", 'DYNAMIC_D.distribution(3.5, shop: 1, region: "us")', drain],
    ["batched increment, no tags", '$batched.increment("bench.counter")', flush],
    ["batched increment, 5-tag Hash", '$batched.increment("bench.counter", tags: TAGS_HASH)', flush],
    ["batched increment and a flush",
     '$batched.increment("bench.counter"); $batched_sink.flush(blocking: false)', flush, SLOW],
    ["batched timed block with a tag and a flush",
     '$batched.measure("bench.time", tags: TAG_ONE) { 1111 }; $batched_sink.flush(blocking: false)', flush, SLOW],
    # Of the peer's own.
    ["send_metrics, UDP batched", "send_metrics($batched)", flush, SLOW],
    ["send_metrics, UDP, one packet each", "send_metrics($unbatched)", "nil", SLOW],
    ["send_metrics, UDP aggregated", "send_metrics($udp_aggregating)", "$udp_aggregating.force_flush", SLOW],
    ["send_metrics to a log at /dev/null", "send_metrics($logging)", "nil", SLOW],
    ["metrics.rb: increment, sink that discards", '$null.increment("GoogleBase.insert", 10)', "nil"],
    ["metrics.rb: measure", '$null.measure("helper_function") { helper_function }', "nil"],
    ["metrics.rb: gauge", '$null.gauge("GoogleBase.insert", 12)', "nil"],
    ["metrics.rb: set", '$null.set("GoogleBase.customers", "12345", sample_rate: 1.0)', "nil"],
    ["metrics.rb: event", '$null.event("Event Title", "12345")', "nil"],
    ["metrics.rb: service check", '$null.service_check("shipit.redis_connection", "ok")', "nil"],
    ["service check, 5-tag Hash", '$null.service_check("shipit.redis_connection", "ok", tags: TAGS_HASH)', "nil"]
  ]
end

# The block of the peer's benchmarks.
def send_metrics(client)
  client.increment("StatsD.increment", 10)
  client.measure("StatsD.measure") { 1 + 1 }
  client.gauge("StatsD.gauge", 12.0, tags: ["foo:bar", "quc"])
  client.set("StatsD.set", "value", tags: { foo: "bar", baz: "quc" })
  client.event("StasD.event", "12345")
  client.service_check("StatsD.service_check", "ok")
end

def helper_function
  a = 10
  a += a
  a -= a
  a * a
end

def define_peers_clients
  address = "127.0.0.1:#{PORT}"
  unbatched = StatsD::Instrument::Sink.for_addr(address)
  $unbatched = StatsD::Instrument::Client.new(sink: unbatched, enable_aggregation: false)
  batched = StatsD::Instrument::BatchedSink.new(StatsD::Instrument::Sink.for_addr(address), buffer_capacity: CALLS * 4)
  $udp_aggregating = StatsD::Instrument::Client.new(sink: batched, enable_aggregation: true)
  log = StatsD::Instrument::LogSink.new(Logger.new(File::NULL))
  $logging = StatsD::Instrument::Client.new(sink: log, enable_aggregation: false)
  $null = StatsD::Instrument::Client.new(sink: DiscardingSink.new, enable_aggregation: false)
end

def define_compiled_metrics
  compiled = StatsD::Instrument::CompiledMetric
  Object.const_set(:STATIC, Class.new(compiled::Counter) { define(name: "bench.static", static_tags: TAGS_HASH) })
  tags = { shop: Integer, region: String }
  Object.const_set(:DYNAMIC, Class.new(compiled::Counter) { define(name: "bench.dynamic", tags: tags) })
  Object.const_set(:DYNAMIC_D, Class.new(compiled::Distribution) { define(name: "bench.dynamic_d", tags: tags) })
end

def dogstatsd_cases
  require "datadog/statsd"
  $client = Datadog::Statsd.new("127.0.0.1", PORT, telemetry_enable: false, origin_detection: false)
  flush = "$client.flush(sync: true)"
  [
    ["batched increment, no tags", '$client.increment("bench.counter")', flush],
    ["batched increment, 5-tag Hash", '$client.increment("bench.counter", tags: TAGS_HASH)', flush],
    ["batched increment and a flush", '$client.increment("bench.counter"); $client.flush(sync: true)', flush,
     SLOW],
    ["batched timed block with a tag and a flush",
     '$client.time("bench.time", tags: TAG_ONE) { 1111 }; $client.flush(sync: true)', flush, SLOW]
  ]
end

# A method for each case, so that calls are written out as in an application.
def define_case(index, code, finish)
  eval(<<~RUBY, TOPLEVEL_BINDING, __FILE__, __LINE__ + 1) # rubocop:disable Security/Eval
    # frozen_string_literal: true
    def case_#{index}(calls)
      index = 0
      while index < calls
        #{code}
        index += 1
      end
    end

    def finish_#{index}
      #{finish}
    end
  RUBY
end

def objects_per_call(index)
  send("case_#{index}", 1)
  before = GC.stat(:total_allocated_objects)
  send("case_#{index}", 500)
  ((GC.stat(:total_allocated_objects) - before) / 500.0).floor
end

def nanoseconds_per_call(index, calls)
  clock = Process::CLOCK_THREAD_CPUTIME_ID
  started = Process.clock_gettime(clock, :nanosecond)
  send("case_#{index}", calls)
  (Process.clock_gettime(clock, :nanosecond) - started) / calls.to_f
end

cases = implementation == "dogstatsd" ? dogstatsd_cases : statsd_cases
result = cases.each_with_index.to_h do |(name, code, finish, slow), index|
  define_case(index, code, finish)
  calls = CALLS / (slow || 1)
  nanoseconds_per_call(index, calls)
  send("finish_#{index}")
  objects = objects_per_call(index)
  send("finish_#{index}")
  best = Array.new(3) do
    GC.start
    time = nanoseconds_per_call(index, calls)
    send("finish_#{index}")
    time
  end.min
  [name, { nanoseconds: best, objects: objects }]
end
native = defined?(StatsD::Instrument::NATIVE) ? StatsD::Instrument::NATIVE : false
puts JSON.generate(cases: result, native: native)
$stdout.flush
# No handlers at exit: unsent messages are of no interest.
exit!(0)
