# frozen_string_literal: true

require_relative "test_helper"

class AggregationTest < TestCase
  def check(*expected, **options)
    client, sink = list_client(**options)
    yield client
    assert_equal expected.sort, flushed(client, sink).sort
  end

  def test_each_type
    check("c:6|c", "g:3|g", "h:1:2|h", "d:1:2.5|d", "ms:4:5|ms", "s:u|s", "s:v|s") do |client|
      3.times { client.increment("c", 2) }
      [1, 2, 3].each { |value| client.gauge("g", value) }
      [1, 2].each { |value| client.histogram("h", value) }
      [1, 2.5].each { |value| client.distribution("d", value) }
      [4, 5].each { |value| client.measure("ms", value) }
      %w[u v u].each { |value| client.set("s", value) }
    end
  end

  def test_contexts_live_on_and_send_only_what_is_new
    client, sink = list_client
    client.increment("a", 2)
    client.gauge("g", 1)
    client.set("s", "u")
    assert_equal ["a:2|c", "g:1|g", "s:u|s"], flushed(client, sink).sort
    assert_empty flushed(client, sink)
    client.increment("a", 3)
    client.gauge("g", 1)
    client.set("s", "u")
    assert_equal ["a:3|c", "g:1|g", "s:u|s"], flushed(client, sink).sort
  end

  def test_tags_in_any_order_and_form_are_one_context
    check("a:7|c|#x:1,y:2") do |client|
      client.increment("a", tags: { x: 1, y: 2 })
      client.increment("a", tags: { "y" => "2", "x" => "1" })
      client.increment("a", tags: ["y:2", "x:1"])
      client.increment("a", tags: ["x:1", "y:2"].freeze)
      client.increment("a", tags: "y:2,x:1")
      client.increment("a", tags: %i[y:2 x:1])
      client.increment("a", tags: [Class.new { def to_s = "y:2" }.new, "x:1"])
    end
  end

  def test_what_makes_contexts_different
    check("a:1|c", "a:1|c|#x", "a:1|c|@0.5", "p.a:1|c", "a:1|c|card:low", "a:1|g", prefix: nil) do |client|
      client.increment("a")
      client.increment("a", tags: ["x"])
      client.increment("a", sample_rate: 0.5)
      client.clone_with_options(prefix: "p").increment("a")
      client.increment("a", cardinality: "low")
      client.gauge("a", 1)
    end
  end

  def test_no_prefix
    check("p.a:1|c", "a:1|c", prefix: "p") do |client|
      client.increment("a")
      client.increment("a", no_prefix: true)
    end
  end

  def test_changing_tags_objects_are_read_anew
    tags = ["x:1"]
    check("a:1|c|#x:1", "a:1|c|#x:2", "b:1|c|#k:1", "b:1|c|#k:2") do |client|
      client.increment("a", tags: tags)
      tags[0] = "x:2"
      client.increment("a", tags: tags)
      hash = { k: +"1" }
      client.increment("b", tags: hash)
      hash[:k].replace("2")
      client.increment("b", tags: hash)
    end
  end

  def test_floats_add_up_exactly
    check("a:1|c", "b:0.30000000000000004|c".sub("0.30000000000000004", "0.3")) do |client|
      10.times { client.increment("a", 0.1) }
      client.increment("b", 0.1)
      client.increment("b", 0.2)
    end
  end

  def test_sums_beyond_machine_words
    check("a:#{2**70}|c") do |client|
      client.increment("a", 2**69)
      client.increment("a", 2**69)
    end
  end

  def test_zero_and_negative_sums_are_sent
    check("a:0|c", "b:-3|c") do |client|
      client.increment("a")
      client.decrement("a")
      client.decrement("b", 3)
    end
  end

  def test_values_that_cannot_be_sent_are_counted_and_change_nothing
    client, sink = list_client
    [nil, "x", Float::NAN, Float::INFINITY, Object.new].each do |value|
      client.increment("c", value)
      client.gauge("g", value)
      client.distribution("d", value)
    end
    client.increment("c", 2)
    client.gauge("g", 3)
    client.gauge("g", Float::NAN)
    client.distribution("d", 4)
    assert_equal ["c:2|c", "d:4|d", "g:3|g"], flushed(client, sink).sort
    assert_equal 5 + 6 + 5, client.telemetry[:dropped_invalid]
    assert_equal 3, client.telemetry[:metrics]
  end

  def test_text_numbers_count_as_numbers
    check("c:3|c", "g:1.5|g", "d:2|d") do |client|
      client.increment("c", "3")
      client.gauge("g", "1.5")
      client.distribution("d", "2")
    end
  end

  def test_empty_names_are_dropped
    check do |client|
      client.increment("")
      client.gauge("", 1)
    end
  end

  def test_gauges_of_several_threads_end_with_the_latest
    client, sink = list_client
    client.gauge("g", 1)
    Thread.new { client.gauge("g", 2) }.join
    assert_equal ["g:2|g"], flushed(client, sink)
    client.gauge("g", 3)
    assert_equal ["g:3|g"], flushed(client, sink)
  end

  def test_threads_are_merged_into_one_line
    client, sink = list_client
    Array.new(4) do
      Thread.new do
        100.times do |index|
          client.increment("a")
          client.distribution("d", index)
          client.set("s", index % 3)
        end
      end
    end.each(&:join)
    lines = flushed(client, sink)
    assert_includes lines, "a:400|c"
    assert_equal 3, lines.count { |line| line.start_with?("s:") }
    assert_equal 1, lines.count { |line| line.start_with?("a:") }
    values = lines.grep(/\Ad:/).flat_map { |line| line[/:(.*)\|d/, 1].split(":") }
    assert_equal 400, values.size
  end

  def test_cells_of_ended_threads_are_sent_and_forgotten
    client, sink = list_client
    5.times { Thread.new { client.increment("a", 2) }.join }
    assert_equal ["a:10|c"], flushed(client, sink)
    2.times { flushed(client, sink) }
    # Native cells belong to all threads.
    assert_equal StatsD::Instrument::NATIVE ? 1 : 0, contexts(client).size
  end

  def test_packed_values_of_an_unbounded_stream
    client, sink = list_client(aggregation_max_context_size: 100)
    10_000.times { |value| client.distribution("d", value) }
    lines = flushed(client, sink)
    assert_equal (0...10_000).map(&:to_s), lines.flat_map { |line| line[/:(.*)\|d/, 1].split(":") }
    # Rings are used again: what waits is never much more than the limit.
    assert_operator lines.map { |line| line.count(":") }.max, :<=, 256
  end

  def test_packets_have_as_many_values_as_were_asked_for
    [1, 3, 5, 8, 12, 100].each do |asked|
      client, sink = list_client(aggregation_max_context_size: asked)
      handle = client.distribution_handle("h")
      (3 * asked).times do |value|
        client.distribution("d", value)
        handle.record(value)
      end
      counts = flushed(client, sink).map { |line| line.count(":") - line.count("#") }
      assert_equal [asked] * 6, counts, "#{asked} asked"
    end
  end

  def test_max_contexts_is_a_cap_with_an_exact_way_around
    client, sink = list_client(aggregation_max_contexts: 10)
    2.times { 30.times { |index| client.increment("a#{index}") } }
    direct = sink.to_a
    assert_equal 40, direct.size
    assert_equal 40, client.telemetry[:overflowed]
    assert_equal Array.new(10) { |index| "a#{index}:2|c" }, flushed(client, sink).sort
  end

  def test_idle_contexts_expire_and_come_back
    client, sink = list_client(aggregation_flush_interval: 100.0)
    client.increment("old", tags: ["t"])
    client.increment("keep")
    5.times do
      client.increment("keep")
      flushed(client, sink)
    end
    client.increment("new") # the owner sweeps when it makes a new context
    2.times { flushed(client, sink) }
    assert_equal %w[keep new], contexts(client).keys.map { |key| key[/\w+/] }.sort
    client.increment("old", tags: ["t"])
    assert_equal ["old:1|c|#t"], flushed(client, sink)
  end

  def test_clones_share_threads_and_keep_every_option
    client, = list_client(aggregation_max_context_size: 7, aggregation_max_contexts: 9)
    clone = client.clone_with_options(prefix: "x")
    assert_same client.aggregating_core, clone.aggregating_core
    other = client.clone_with_options(sink: Support::ListSink.new)
    refute_same client.aggregating_core, other.aggregating_core
    assert_equal 7, other.aggregating_core.max_values
    other.shutdown
  end

  def test_the_thread_flushes_by_itself
    client, sink = list_client
    client.shutdown
    client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: true, aggregation_flush_interval: 0.01)
    (@clients << client)
    client.increment("a")
    wait_until("a flush") { sink.lines.size == 1 }
    client.increment("a", 4)
    wait_until("another flush") { sink.lines.size == 2 }
    assert_equal ["a:1|c", "a:4|c"], sink.to_a
  end

  def test_shutdown_sends_the_rest_and_later_calls_go_at_once
    client, sink = list_client
    client.increment("a", 2)
    handle = client.counter("h")
    handle.increment
    client.shutdown
    assert_equal ["a:2|c", "h:1|c"], sink.to_a.sort
    client.increment("a")
    handle.increment
    assert_equal ["a:1|c", "h:1|c"], sink.to_a
    refute_predicate client, :aggregating?
  end

  def test_capturing_shows_each_call_and_keeps_the_rest
    client, sink = list_client
    client.increment("a", 5)
    captured = client.capture { 2.times { client.increment("a") } }
    assert_equal ["a:1|c", "a:1|c"], captured.map(&:source)
    client.increment("a", 6)
    assert_equal ["a:1|c", "a:1|c", "a:11|c"], flushed(client, sink)
  end

  def test_aggregation_is_on_exactly_when_messages_are_batched
    server = udp_server
    assert_predicate network_client(server), :aggregating?
    sinks = [StatsD::Instrument::NullSink.new, StatsD::Instrument::LogSink.new(StatsD.logger), Support::ListSink.new,
             StatsD::Instrument::Sink.for_addr(server.address)]
    sinks.each { |sink| refute_predicate StatsD::Instrument::Client.new(sink: sink), :aggregating? }
  end

  def test_the_flush_thread_survives_a_sink_that_raises
    sink = Support::ListSink.new
    failures = Queue.new
    sink.define_singleton_method(:<<) do |line|
      if failures.size < 2
        failures << line
        raise "no room"
      end
      super(line)
    end
    client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: true, aggregation_flush_interval: 0.01)
    (@clients = [client])
    wait_until("a line after two failures") do
      client.increment("a")
      sink.lines.size.positive?
    end
  end

  def test_threads_end_when_nobody_uses_the_client_any_more
    name = "statsd-aggregator"
    before = Thread.list.count { |thread| thread.name == name }
    sink = Support::ListSink.new
    make_and_forget = lambda do
      client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: true, aggregation_flush_interval: 3600.0)
      client.increment("a")
      nil
    end
    skip "JRuby collects when it likes" if RUBY_ENGINE == "jruby"
    20.times { make_and_forget.call }
    wait_until("finalizers") do
      GC.start
      # One may be kept by a stale reference on the stack.
      Thread.list.count { |thread| thread.name == name } <= before + 2 && sink.lines.size >= 18
    end
  end

  private

  def contexts(client)
    client.aggregating_core.instance_variable_get(:@contexts)
  end
end

# An aggregator without a client, with the arguments and methods it has in statsd-instrument.
class AggregatorTest < TestCase
  Aggregator = StatsD::Instrument::Aggregator
  Builder = StatsD::Instrument::DogStatsDDatagramBuilder

  def aggregator(prefix: "app", tags: ["d"], **options)
    @sink = ListSink.new
    made = Aggregator.new(@sink, Builder, prefix, tags, flush_interval: 3600.0, **options)
    (@made ||= []) << made
    made
  end

  def teardown
    @made&.each { |one| one.core.shutdown(0.5) }
    super
  end

  def test_every_method
    one = aggregator
    2.times { one.increment("c", 2, tags: { b: 1, a: 2 }) }
    one.increment("c", 1, tags: %w[a:2 b:1])
    one.increment("sampled", 3, sample_rate: 0.5)
    one.increment("c", no_prefix: true)
    [1, 7].each { |value| one.gauge("g", value) }
    [1, 2.5].each { |value| one.aggregate_timing("t", value) }
    one.aggregate_timing("t", 3, type: :ms, sample_rate: 0.1)
    one.aggregate_timing("t", 4, type: :h, tags: ["x"], no_prefix: true)
    assert_empty @sink.to_a
    one.flush
    assert_equal ["app.c:5|c|#d,a:2,b:1", "app.g:7|g|#d", "app.sampled:3|c|@0.5|#d", "app.t:1:2.5|d|#d",
                  "app.t:3|ms|@0.1|#d", "c:1|c|#d", "t:4|h|#d,x"], @sink.to_a.sort
  end

  def test_a_full_context_is_sent_at_once
    one = aggregator(prefix: nil, tags: nil, max_values: 250)
    255.times { one.aggregate_timing("t", 1) }
    assert_equal ["t#{":1" * 250}|d"], @sink.to_a
    one.flush
    assert_equal ["t:1:1:1:1:1|d"], @sink.to_a
  end

  def test_what_is_left_when_nobody_uses_it_any_more_is_sent
    one = aggregator(prefix: nil, tags: nil)
    one.increment("c")
    Aggregator.finalize(one.core).call
    assert_equal ["c:1|c"], @sink.to_a
    one.increment("c")
    assert_equal ["c:1|c"], @sink.to_a, "afterwards nobody would send it"
  end

  def test_in_a_signal_handler_samples_are_sent_at_once
    skip "signals reach the JVM first" if RUBY_ENGINE == "jruby"
    one = aggregator(prefix: nil, tags: nil)
    done = false
    before = Signal.trap("USR1") do
      one.increment("c")
      done = true
    end
    Process.kill("USR1", Process.pid)
    wait_until("the handler") { done }
    assert_equal ["c:1|c"], @sink.to_a
  ensure
    Signal.trap("USR1", before || "DEFAULT")
  end

  def test_wrong_arguments
    assert_raises(ArgumentError) { aggregator(flush_interval: 0) }
    assert_raises(ArgumentError) { aggregator(max_values: 0) }
    assert_raises(KeyError) { aggregator.aggregate_timing("t", 1, type: :c) }
  end
end
