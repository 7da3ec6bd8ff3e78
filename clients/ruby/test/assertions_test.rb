# frozen_string_literal: true

require_relative "test_helper"

class AssertionsTest < TestCase
  # A test case as an application would write it, to watch its assertions fail.
  class Example < Minitest::Test
    include StatsD::Instrument::Assertions

    def self.runnable_methods = []
  end

  def setup
    @example = Example.new(:none)
  end

  def fails(including = "", &block)
    error = assert_raises(Minitest::Assertion) { @example.instance_exec(&block) }
    assert_includes error.message, including
  end

  def passes(&block)
    @example.instance_exec(&block)
  end

  def test_each_type
    { increment: 1, gauge: 2.5, measure: 3, histogram: 4, distribution: 5, set: "u" }.each do |type, value|
      passes { public_send(:"assert_statsd_#{type}", "a", value) { StatsD.public_send(type, "a", value) } }
      passes { public_send(:"assert_statsd_#{type}", "a") { StatsD.public_send(type, "a", value) } }
      fails("No StatsD calls for metric a") { public_send(:"assert_statsd_#{type}", "a") { nil } }
      fails { public_send(:"assert_statsd_#{type}", "a", 77) { StatsD.public_send(type, "a", value) } }
      fails { public_send(:"assert_statsd_#{type}", "a") { StatsD.public_send(type, "b", value) } }
    end
  end

  def test_times
    passes { assert_statsd_increment("a", times: 2) { 2.times { StatsD.increment("a") } } }
    fails("Metric expected 2 times but seen 1") { assert_statsd_increment("a", times: 2) { StatsD.increment("a") } }
    fails("exceeded") { assert_statsd_increment("a") { 2.times { StatsD.increment("a") } } }
    passes { assert_statsd_increment("a", times: 0) { nil } }
    fails("exceeded") { assert_statsd_increment("a", times: 0) { StatsD.increment("a") } }
    passes do
      assert_statsd_increment("a", 2) do
        StatsD.increment("a", 2)
        StatsD.increment("a", 3)
      end
    end
  end

  def test_tags_and_rates
    passes { assert_statsd_increment("a", tags: ["x"]) { StatsD.increment("a", tags: %w[y x]) } }
    passes { assert_statsd_increment("a", tags: { k: "a|b" }) { StatsD.increment("a", tags: { k: "a|b", l: 1 }) } }
    fails { assert_statsd_increment("a", tags: ["x"]) { StatsD.increment("a", tags: ["y"]) } }
    fails { assert_statsd_increment("a", tags: ["x"]) { StatsD.increment("a") } }
    passes { assert_statsd_increment("a", sample_rate: 0.5) { StatsD.increment("a", sample_rate: 0.5) } }
    fails { assert_statsd_increment("a", sample_rate: 0.5) { StatsD.increment("a") } }
  end

  def test_prefixes
    before = StatsD.singleton_client
    StatsD.singleton_client = StatsD::Instrument::Client.new(prefix: "p")
    passes { assert_statsd_increment("a") { StatsD.increment("a") } }
    passes { assert_statsd_increment("p.a", no_prefix: true) { StatsD.increment("a") } }
    fails { assert_statsd_increment("p.a") { StatsD.increment("a") } }
    fails { assert_no_statsd_calls("a") { StatsD.increment("a") } }
    passes { assert_no_statsd_calls("p.a", no_prefix: true) { StatsD.increment("b") } }
    fails("p.a") { assert_no_statsd_calls("p.a", no_prefix: true) { StatsD.increment("a") } }
    @example.define_singleton_method(:warn) { |message| (@warnings ||= []) << message }
    fails { assert_no_statsd_calls("p.a") { StatsD.increment("a") } }
    assert_equal 1, @example.instance_variable_get(:@warnings).size
  ensure
    StatsD.singleton_client = before
  end

  # Failures pointed at the library, not at the line of the test.
  def test_failures_name_the_line_of_the_test
    %i[increment measure gauge histogram distribution set].each do |type|
      line = __LINE__ + 1
      error = assert_raises(Minitest::Assertion) { @example.public_send(:"assert_statsd_#{type}", "a", 1) { nil } }
      assert_equal "#{__FILE__}:#{line}", error.location, type
    end
    line = __LINE__ + 1
    error = assert_raises(Minitest::Assertion) { @example.assert_no_statsd_calls { StatsD.increment("a") } }
    assert_equal "#{__FILE__}:#{line}", error.location
    expected = StatsD::Instrument::Expectation.increment("a")
    line = __LINE__ + 1
    error = assert_raises(Minitest::Assertion) { @example.assert_statsd_expectations([expected]) { nil } }
    assert_equal "#{__FILE__}:#{line}", error.location
  end

  def test_other_clients
    client = StatsD::Instrument::Client.new(prefix: "own")
    passes { assert_statsd_gauge("a", 1, client: client) { client.gauge("a", 1) } }
    passes { assert_no_statsd_calls(client: client) { StatsD.increment("a") } }
    fails { assert_no_statsd_calls("a", client: client) { client.increment("a") } }
  end

  def test_no_calls
    passes { assert_no_statsd_calls { nil } }
    passes { assert_no_statsd_calls("a", "b") { StatsD.increment("c") } }
    fails("a, b") do
      assert_no_statsd_calls do
        StatsD.increment("a")
        StatsD.gauge("b", 1)
      end
    end
  end

  def test_blocks_are_needed
    assert_raises(LocalJumpError) { @example.assert_statsd_increment("a") }
    assert_raises(LocalJumpError) { @example.assert_no_statsd_calls }
  end

  def test_datagrams_instead_of_a_block
    datagrams = @example.capture_statsd_calls { StatsD.increment("a") }
    passes { assert_statsd_increment("a", datagrams: datagrams) }
    fails { assert_no_statsd_calls("a", datagrams: datagrams) }
  end

  def test_exceptions_fail_the_test_unless_caught_inside
    fails("RuntimeError: oh") { assert_statsd_increment("a") { raise "oh" } }
    fails("oh") { assert_no_statsd_calls { raise "oh" } }
    passes do
      assert_statsd_increment("a") do
        assert_raises(RuntimeError) do
          StatsD.increment("a")
          raise "oh"
        end
      end
    end
    # An assertion that fails inside is reported as itself.
    fails("inner") { assert_statsd_increment("a") { flunk("inner") } }
  end

  def test_nesting
    passes do
      assert_statsd_increment("a", times: 2) do
        StatsD.increment("a")
        assert_statsd_increment("a") { StatsD.increment("a") }
      end
    end
  end

  def test_several_expectations
    first = StatsD::Instrument::Expectation.increment("a", 1)
    second = StatsD::Instrument::Expectation.increment("a", 2, tags: ["x"])
    both = proc do
      StatsD.increment("a", 2, tags: ["x"])
      StatsD.increment("a", 1)
    end
    passes { assert_statsd_expectations([first, second], &both) }
    fails { assert_statsd_expectations([first, second]) { StatsD.increment("a", 1) } }
    assert_equal "a:2|c|#x", second.to_s
    assert_equal '#<StatsD::Instrument::Expectation:"a:1|c">', first.inspect
    assert_equal "a:<anything>|g (expected 3 times)", StatsD::Instrument::Expectation.gauge("a", times: 3).to_s
    assert_same StatsD::Instrument::Expectation, StatsD::Instrument::MetricExpectation
  end

  def test_helpers
    helpers = StatsD::Instrument::Helpers
    tags = ["a"].freeze
    assert_equal ["a", "k:v"], helpers.add_tag(tags, :k, "v")
    assert_equal({ a: 1, k: "v" }, helpers.add_tag({ a: 1 }.freeze, :k, "v"))
    assert_equal "a,k:v", helpers.add_tag("a", :k, "v")
    assert_equal "k:v", helpers.add_tag("", :k, "v")
    assert_equal({ k: "v" }, helpers.add_tag(nil, :k, "v"))
    assert_raises(ArgumentError) { helpers.add_tag(1, :k, "v") }
  end
end
