# frozen_string_literal: true

require_relative "test_helper"

class CompiledMetricTest < TestCase
  Compiled = StatsD::Instrument::CompiledMetric

  def setup
    @before = StatsD.singleton_client
    @client, @sink = list_client(prefix: "p", default_tags: ["d"])
    StatsD.singleton_client = @client
  end

  def teardown
    StatsD.singleton_client = @before
  end

  def metric(base, **options)
    Class.new(base) { define(**options) }
  end

  def lines
    flushed(@client, @sink).sort
  end

  def test_static
    counter = metric(Compiled::Counter, name: "c|x", static_tags: { s: "a|b" })
    3.times { counter.increment }
    counter.increment(5)
    metric(Compiled::Gauge, name: "g", no_prefix: true).gauge(2)
    metric(Compiled::Distribution, name: "d").distribution(3)
    metric(Compiled::Histogram, name: "h").histogram(4)
    metric(Compiled::Timing, name: "t").measure(5)
    metric(Compiled::Set, name: "s").set("u")
    assert_equal ["g:2|g|#d", "p.c_x:8|c|#d,s:ab", "p.d:3|d|#d", "p.h:4|h|#d", "p.s:u|s|#d", "p.t:5|ms|#d"], lines
    assert_equal "c_x", counter.metric_name
    assert_equal 1.0, counter.sample_rate
  end

  def test_dynamic
    counter = metric(Compiled::Counter, name: "c", static_tags: { s: 1 },
                                        tags: { id: Integer, "k|ey": String, on: :Boolean })
    2.times { counter.increment(id: 1, "k|ey": "a,b", on: true) }
    counter.increment(3, id: 2, "k|ey": nil, on: false)
    assert_equal ["p.c:2|c|#d,id:1,key:ab,on:true,s:1", "p.c:3|c|#d,id:2,key:,on:false,s:1"], lines
    assert_raises(ArgumentError) { counter.increment(id: 1) }
    assert_raises(ArgumentError) { counter.increment(id: 1, "k|ey": "a", on: true, more: 1) }
  end

  def test_every_type_with_dynamic_tags
    tags = { k: Symbol }
    metric(Compiled::Gauge, name: "g", tags: tags).gauge(2, k: :a)
    metric(Compiled::Distribution, name: "d", tags: tags).distribution(3, k: :a)
    metric(Compiled::Histogram, name: "h", tags: tags).histogram(4, k: :a)
    metric(Compiled::Timing, name: "t", tags: tags).measure(5, k: :a)
    set = metric(Compiled::Set, name: "s", tags: tags)
    %w[u u v].each { |member| set.set(member, k: :a) }
    assert_equal %w[d:3|d g:2|g h:4|h s:u|s s:v|s t:5|ms].map { |line| "p.#{line}|#d,k:a" }, lines
  end

  def test_keys_that_are_words_of_the_language_or_of_the_generated_code
    counter = metric(Compiled::Counter, name: "c", tags: { if: Integer, value: Integer, Upper: Integer })
    2.times { counter.increment(if: 1, value: 2, Upper: 3) }
    assert_equal ["p.c:2|c|#d,Upper:3,if:1,value:2"], lines
  end

  def test_blocks_are_timed
    static = metric(Compiled::Distribution, name: "s")
    dynamic = metric(Compiled::Histogram, name: "d", tags: { k: Integer })
    assert_equal :v, static.distribution { :v }
    assert_equal :v, dynamic.histogram(k: 1) { :v }
    assert_raises(RuntimeError) { dynamic.histogram(k: 1) { raise "no" } }
    found = lines
    assert_match(/\Ap\.d:[\d.e-]+:[\d.e-]+\|h/, found[0])
    assert_match(/\Ap\.s:[\d.e-]+\|d/, found[1])
  end

  def test_each_call_is_seen_while_capturing
    counter = metric(Compiled::Counter, name: "c", static_tags: { s: 1 }, tags: { b: Integer, a: Integer })
    counter.increment(b: 1, a: 2)
    datagrams = @client.capture { 2.times { counter.increment(b: 1, a: 2) } }
    assert_equal ["p.c:1|c|#d,s:1,b:1,a:2"] * 2, datagrams.map(&:source)
    @sink.to_a
    counter.increment(b: 1, a: 2)
    assert_equal ["p.c:2|c|#d,a:2,b:1,s:1"], lines
  end

  def test_sample_rates
    counter = metric(Compiled::Counter, name: "c", tags: { k: Integer }, sample_rate: 0.5)
    2.times { counter.increment(k: 1) }
    assert_equal ["p.c:2|c|@0.5|#d,k:1"], lines
    assert_equal 0.5, counter.sample_rate
  end

  def test_more_combinations_than_remembered
    counter = metric(Compiled::Counter, name: "c", tags: { k: Integer }, max_cache_size: 3)
    2.times { 5.times { |index| counter.increment(k: index) } }
    assert_equal (0...5).map { |index| "p.c:2|c|#d,k:#{index}" } +
                 ["p.statsd_instrument.compiled_metric.cache_exceeded_total:1|c|#d,max_size:3,metric_name:c"], lines
  end

  def test_threads
    counter = metric(Compiled::Counter, name: "c", tags: { k: Integer })
    Array.new(4) { |index| Thread.new { 200.times { counter.increment(k: index % 2) } } }.each(&:join)
    assert_equal ["p.c:400|c|#d,k:0", "p.c:400|c|#d,k:1"], lines
  end

  def test_values_that_are_no_numbers
    counter = metric(Compiled::Counter, name: "c", tags: { k: Float })
    counter.increment("x", k: 1.0)
    2.times { counter.increment(k: Float::NAN) }
    assert_equal 1, @client.telemetry[:dropped_invalid]
    assert_equal ["p.c:2|c|#d,k:NaN"], lines
  end

  def test_misuse
    [Compiled, Compiled::Counter, Compiled::Gauge, Compiled::Distribution].each do |base|
      assert_raises(Compiled::DefinitionError) { base.define(name: "x") }
    end
    counter = metric(Compiled::Counter, name: "c")
    assert_raises(Compiled::DefinitionError) { counter.define(name: "c") }
    undefined = Class.new(Compiled::Counter)
    assert_raises(Compiled::DefinitionError) { undefined.increment }
    assert_raises(Compiled::DefinitionError) { undefined.sample_rate }
    assert_nil undefined.metric_name
    assert_raises(ArgumentError) { metric(Compiled::Counter, name: "c", tags: { k: Hash }) }
  end
end
