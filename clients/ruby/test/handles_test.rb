# frozen_string_literal: true

require_relative "test_helper"

class HandlesTest < TestCase
  def test_each_type
    client, sink = list_client(prefix: "p")
    counter = client.counter("c", tags: { b: 1, a: 2 })
    gauge = client.gauge_handle("g")
    timer = client.timer("t", no_prefix: true)
    histogram = client.histogram_handle("h")
    distribution = client.distribution_handle("d", tags: ["x"])
    set = client.set_handle("s")
    3.times { counter.increment }
    counter.increment(4)
    counter.decrement(2)
    [1, 2.5].each { |value| gauge.set(value) }
    [1, 2].each { |value| timer.record(value) }
    histogram.record(7)
    assert_equal :v, distribution.time { :v }
    %w[u u v].each { |value| set.add(value) }
    lines = flushed(client, sink).sort
    assert_equal ["p.c:5|c|#a:2,b:1", "p.g:2.5|g", "p.h:7|h", "p.s:u|s", "p.s:v|s", "t:1:2|ms"],
                 lines.grep_v(/\Ap\.d/)
    assert_match(/\Ap\.d:[\d.e-]+\|d\|#x\z/, lines.grep(/\Ap\.d/).first)
    assert_empty flushed(client, sink)
  end

  def test_a_handle_and_a_call_share_a_context
    client, sink = list_client
    handle = client.counter("a", tags: ["x"])
    handle.increment
    client.increment("a", tags: ["x"])
    assert_equal ["a:2|c|#x"], flushed(client, sink)
  end

  def test_handles_of_the_module_follow_the_singleton_client
    before = StatsD.singleton_client
    first, first_sink = list_client(prefix: "first")
    second, second_sink = list_client(prefix: "second")
    handles = [StatsD.counter("c"), StatsD.distribution_handle("d"), StatsD.set_handle("s"), StatsD.gauge_handle("g"),
               StatsD.timer("t"), StatsD.histogram_handle("h")]
    use = lambda do |value|
      handles[0].increment(value)
      handles[0].increment
      handles[1].record(value)
      handles[2].add(value)
      handles[3].set(value)
      handles[4].record(value)
      handles[5].record(value)
    end
    StatsD.singleton_client = first
    use.call(1)
    StatsD.singleton_client = second
    use.call(2)
    StatsD.singleton_client = first
    use.call(3)
    assert_equal %w[c:4|c c:2|c d:1|d d:3|d g:1|g g:3|g h:1|h h:3|h s:1|s s:3|s t:1|ms t:3|ms]
      .map { |line| "first.#{line}" }.sort, flushed(first, first_sink).sort
    assert_equal %w[c:3|c d:2|d g:2|g h:2|h s:2|s t:2|ms].map { |line| "second.#{line}" },
                 flushed(second, second_sink).sort
  ensure
    StatsD.singleton_client = before
  end

  def test_handles_are_seen_by_test_helpers
    before = StatsD.singleton_client
    client, = list_client
    StatsD.singleton_client = client
    handle = StatsD.counter("a", tags: %w[z y])
    handle.increment
    datagrams = client.capture { 2.times { handle.increment } }
    assert_equal ["a:1|c|#z,y"] * 2, datagrams.map(&:source)
  ensure
    StatsD.singleton_client = before
  end

  def test_sampled_handles
    client, sink = list_client
    handle = client.counter("a", sample_rate: 0.5)
    2.times { handle.increment }
    samples = client.distribution_handle("d", sample_rate: 0.5)
    samples.record(1)
    # A sink of others decides about sampling; this one takes all.
    assert_equal ["a:2|c|@0.5", "d:1|d|@0.5"], flushed(client, sink).sort
  end

  def test_several_threads_use_one_handle
    client, sink = list_client
    handle = client.counter("a")
    set = client.set_handle("s")
    gauge = client.gauge_handle("g")
    handle.increment
    gauge.set(1)
    Array.new(3) do |index|
      Thread.new do
        500.times { handle.increment }
        set.add(index)
        set.add("same")
      end
    end.each(&:join)
    Thread.new { gauge.set(9) }.join
    assert_equal ["a:1501|c", "g:9|g", "s:0|s", "s:1|s", "s:2|s", "s:same|s"], flushed(client, sink).sort
  end

  def test_values_that_cannot_be_sent
    client, sink = list_client
    client.counter("c").increment("x")
    client.gauge_handle("g").set(nil)
    client.distribution_handle("d").record("x")
    client.set_handle("s").add("")
    client.counter("").increment
    assert_empty flushed(client, sink)
    assert_equal 5, client.telemetry[:dropped_invalid]
  end

  def test_tags_of_a_handle_cannot_change
    client, sink = list_client
    tags = [+"a"]
    handle = client.counter("c", tags: tags)
    tags[0] << "b"
    tags << "c"
    handle.increment
    assert_equal ["c:1|c|#a"], flushed(client, sink)
  end
end
