# frozen_string_literal: true

require_relative "test_helper"

return if RUBY_ENGINE == "jruby" # the JVM does not count objects

# Objects per call are exact numbers: none may go up.
class AllocationsTest < TestCase
  TAGS_ARRAY = ["a:1", "b:2", "c:3", "d:4", "e:5"] # rubocop:disable Style/MutableConstant
  TAGS_HASH = { a: "1", b: "2", c: "3", d: "4", e: "5" } # rubocop:disable Style/MutableConstant
  TAGS_FROZEN = { a: "1", b: "2" }.freeze

  def objects(calls = 1_000, &block)
    # Rings reach their final length and caches fill.
    3.times { block.call(calls) }
    # Threads that other tests have left may allocate at the same time, which only adds.
    Array.new(5) { allocated { block.call(calls) } }.min / calls.to_f
  end

  # Without the collector, which runs finalizers of what other tests have left.
  def allocated
    GC.disable
    before = GC.stat(:total_allocated_objects)
    yield
    GC.stat(:total_allocated_objects) - before
  ensure
    GC.enable
  end

  # The handful that counting itself and a rare flush cost do not matter.
  def check(expected, what, &block)
    assert_in_delta expected, objects(&block), 0.02, what
  end

  def test_aggregated_calls_allocate_nothing
    client, = list_client(aggregation_max_context_size: 100_000)
    before = StatsD.singleton_client
    StatsD.singleton_client = client
    check(0, "increment") { |n| n.times { client.increment("a") } }
    check(0, "increment by 5") { |n| n.times { client.increment("a", 5) } }
    check(0, "tags Array") { |n| n.times { client.increment("a", tags: TAGS_ARRAY) } }
    check(0, "tags Hash") { |n| n.times { client.increment("a", tags: TAGS_HASH) } }
    check(0, "frozen tags") { |n| n.times { client.increment("a", tags: TAGS_FROZEN) } }
    check(0, "sample rate") { |n| n.times { client.increment("a", sample_rate: 0.5, tags: TAGS_HASH) } }
    check(0, "gauge") { |n| n.times { client.gauge("g", 1.5, tags: TAGS_HASH) } }
    check(0, "set") { |n| n.times { |i| client.set("s", i % 10, tags: TAGS_HASH) } }
    check(0, "through the module") { |n| n.times { StatsD.increment("a", tags: TAGS_HASH) } }
    check(1, "tags written at the call") { |n| n.times { client.increment("a", tags: { a: "1", b: "2" }) } }
    handle = client.counter("h", tags: TAGS_HASH)
    check(0, "handle") { |n| n.times { handle.increment } }
    gauge = client.gauge_handle("gh")
    check(0, "gauge handle") { |n| n.times { gauge.set(2.5) } }
  ensure
    StatsD.singleton_client = before
  end

  def test_samples_allocate_nothing_between_flushes
    client, = list_client(aggregation_max_context_size: 1 << 20)
    handle = client.distribution_handle("h")
    record = lambda do |n|
      n.times do
        client.distribution("d", 1.5, tags: TAGS_HASH)
        client.measure("m", 2.5)
        handle.record(3)
      end
    end
    4.times do
      record.call(1_000)
      client.force_flush
    end
    # The rings are long enough now; only the flush itself makes objects.
    counts = Array.new(5) do
      allocated { record.call(1_000) }.tap { client.force_flush }
    end
    assert_operator counts.min, :<=, 20, counts.inspect
  end

  def test_blocks
    client, = list_client(aggregation_max_context_size: 1 << 20)
    6.times do
      2_000.times { client.measure("m", tags: TAGS_HASH) { nil } }
      client.force_flush
    end
    assert_operator objects(300) { |n| n.times { client.measure("m", tags: TAGS_HASH) { nil } } }, :<=, 1.1
  end

  def test_compiled_metrics
    client, = list_client
    before = StatsD.singleton_client
    StatsD.singleton_client = client
    static = Class.new(StatsD::Instrument::CompiledMetric::Counter) { define(name: "s", static_tags: TAGS_HASH) }
    dynamic = Class.new(StatsD::Instrument::CompiledMetric::Counter) do
      define(name: "d", tags: { k: Integer, l: String })
    end
    check(0, "static") { |n| n.times { static.increment } }
    check(0, "dynamic") { |n| n.times { dynamic.increment(k: 1, l: "x") } }
  ensure
    StatsD.singleton_client = before
  end

  def test_calls_that_are_not_aggregated_make_at_most_one_message
    sink = StatsD::Instrument::BatchedSink.for_addr(deaf_address, buffer_capacity: 100_000)
    client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: false)
    message = StatsD::Instrument::NATIVE ? 0 : 1
    # The dispatcher would make packets meanwhile.
    Thread.list.select { |thread| thread.name == "statsd-dispatcher" }.each { |thread| thread.kill.join }
    check(0, "increment") { |n| n.times { client.increment("a") } }
    check(0, "tags") { |n| n.times { client.increment("a", tags: TAGS_HASH) } }
    check(message, "increment by more") { |n| n.times { client.increment("a", 5) } }
    check(message, "gauge") { |n| n.times { client.gauge("g", 5, tags: TAGS_HASH) } }
  ensure
    sink.shutdown
  end

  # The numbers that dogstatsd-ruby 5.7 asserts in its own tests, telemetry counted as here: a call, and a flush that
  # waits until the message was handed to the kernel.
  def test_a_call_and_a_flush_that_waits
    sink = StatsD::Instrument::BatchedSink.for_addr(deaf_address)
    client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: false, prefix: "sample_ns",
                                            default_tags: %w[abc def])
    (@clients ||= []) << client
    # The dispatcher may or may not have taken a message by now; without a dispatcher the caller sends.
    Thread.list.select { |thread| thread.name == "statsd-dispatcher" }.each { |thread| thread.kill.join }
    tags = { something: "a value" }
    { "increment" => [18, proc { client.increment("foobar") }],
      "increment with tags" => [26, proc { client.increment("foobar", tags: tags) }],
      "time" => [17, proc { client.time("foobar") { 1111 } }],
      "time with tags" => [25, proc { client.time("foobar", tags: tags) { 1111 } }],
      "event" => [21, proc { client.event("foobar", "happening") }],
      "service check" => [16, proc { client.service_check("foobar", "ok") }] }.each do |what, (limit, call)|
      counted = objects(200) do |n|
        n.times do
          call.call
          client.flush(sync: true)
        end
      end
      assert_operator counted, :<=, limit, what
    end
  end

  def test_flushing_idle_contexts_costs_a_constant
    client, = list_client
    measure = lambda do |contexts|
      contexts.times { |index| client.increment("a#{index}") }
      2.times { client.force_flush }
      Array.new(5) { allocated { client.force_flush } }.min
    end
    few = measure.call(10)
    many = measure.call(500)
    # One small Array for the values of a cell.
    assert_operator many - few, :<=, 490 * 1.05
  end
end
