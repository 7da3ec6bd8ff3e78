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
    GC.start
    before = GC.stat(:total_allocated_objects)
    block.call(calls)
    (GC.stat(:total_allocated_objects) - before) / calls.to_f
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
    before = GC.stat(:total_allocated_objects)
    record.call(1_000)
    assert_operator GC.stat(:total_allocated_objects) - before, :<=, 20
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

  def test_calls_that_are_not_aggregated_make_one_message
    sink = Class.new(StatsD::Instrument::BatchedSink) do
      def <<(_datagram) = self
    end.for_addr(udp_server.address)
    client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: false)
    check(1, "increment") { |n| n.times { client.increment("a") } }
    check(1, "tags") { |n| n.times { client.increment("a", tags: TAGS_HASH) } }
    check(1, "gauge") { |n| n.times { client.gauge("g", 5, tags: TAGS_HASH) } }
  ensure
    sink.shutdown
  end

  def test_flushing_idle_contexts_costs_a_constant
    client, = list_client
    measure = lambda do |contexts|
      contexts.times { |index| client.increment("a#{index}") }
      2.times { client.force_flush }
      before = GC.stat(:total_allocated_objects)
      client.force_flush
      GC.stat(:total_allocated_objects) - before
    end
    few = measure.call(10)
    many = measure.call(500)
    # One small Array for what a cell gives.
    assert_operator many - few, :<=, 490 * 1.05
  end
end
