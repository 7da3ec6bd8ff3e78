# frozen_string_literal: true

require_relative "test_helper"

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
