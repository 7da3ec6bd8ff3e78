# frozen_string_literal: true

require_relative "test_helper"

class ClientTest < TestCase
  def setup
    @client = StatsD::Instrument::Client.new
  end

  def check(*expected, client: @client, &block)
    assert_equal expected, client.capture(&block).map(&:source)
  end

  def test_each_call_is_one_message_while_capturing
    check("a:1|c") { @client.increment("a") }
    check("a:3|c|@0.5|#x:1") { @client.increment("a", 3, sample_rate: 0.5, tags: { x: 1 }) }
    check("a:-2|c") { @client.decrement("a", 2) }
    check("a:5|c") { @client.increment("a", by: 5) }
    check("a:-5|c") { @client.decrement("a", by: 5) }
    check("a:7|c") { @client.count("a", 7) }
    check("a:1.5|g") { @client.gauge("a", 1.5) }
    check("a:2|ms") { @client.measure("a", 2) }
    check("a:2|ms") { @client.timing("a", 2) }
    check("a:2.5|h") { @client.histogram("a", 2.5) }
    check("a:2.5|d") { @client.distribution("a", 2.5) }
    check("a:u|s") { @client.set("a", "u") }
    check("a:1|c|T1700000000") { @client.increment("a", timestamp: Time.at(1_700_000_000)) }
    check("a:1|g|T1700000000") { @client.gauge("a", 1, timestamp: 1_700_000_000) }
    check("a:1|c|card:high") { @client.increment("a", cardinality: :high) }
    check("a:1|c|@0.01") { @client.increment("a", sample_rate: 0.01, pre_sampled: true) }
    check("a:1|c", "a:1|c") { 2.times { @client.increment("a") } }
  end

  def test_events_and_checks
    check("_e{1,4}:t|a\\nb|h:h|d:5|k:k|p:low|s:s|t:info|#x") do
      @client.event("t", "a\nb", hostname: "h", timestamp: Time.at(5), aggregation_key: "k", priority: "low",
                                 source_type_name: "s", alert_type: "info", tags: ["x"])
    end
    check("_sc|n|1|h:h|d:5|#x|m:a\\nm\\:b") do
      @client.service_check("n", :warning, hostname: "h", timestamp: 5, tags: "x", message: "a\nm:b")
    end
    assert_raises(KeyError) { @client.service_check("n", :fine) }
    check { @client.service_check("n", 7) }
    check { @client.event("", "text") }
  end

  def test_blocks_are_timed_and_their_value_returned
    datagrams = @client.capture do
      assert_equal :v, @client.measure("a") { :v }
      assert_equal :v, @client.distribution("b") { :v }
      assert_equal :v, @client.time("c") { :v }
      assert_equal :v, @client.distribution_time("d") { :v }
      assert_equal :v, @client.latency("e") { :v }
      assert_equal :v, @client.latency("f", metric_type: :h) { :v }
      assert_raises(RuntimeError) { @client.measure("g") { raise "no" } }
    end
    assert_equal %w[a:ms b:d c:ms d:d e:d f:h g:ms], datagrams.map { |d| "#{d.name}:#{d.type}" }
    datagrams.each { |datagram| assert_operator datagram.value, :>=, 0 }
  end

  def test_timers_keep_fractions
    datagrams = @client.capture { @client.time("a") { Thread.pass } }
    assert_kind_of Float, datagrams.first.value
    refute_equal datagrams.first.value, datagrams.first.value.round
  end

  def test_a_block_runs_although_its_call_is_not_sampled
    sink = Class.new(StatsD::Instrument::NullSink) { def sample?(_rate) = false }.new
    client = StatsD::Instrument::Client.new(sink: sink)
    assert_equal :v, client.measure("a", sample_rate: 0.5) { :v }
    assert_equal :v, client.distribution("a", sample_rate: 0.5) { :v }
    assert_equal :v, client.latency("a", sample_rate: 0.5) { :v }
  end

  def test_prefix_and_default_tags
    client = StatsD::Instrument::Client.new(prefix: "p", default_tags: { d: 1 })
    check("p.a:1|c|#d:1", "a:1|c|#d:1,x", client: client) do
      client.increment("a")
      client.increment("a", tags: ["x"], no_prefix: true)
    end
    check("_e{3,1}:p.t|x|#d:1", "_sc|p.n|0|#d:1", client: client) do
      client.event("t", "x")
      client.service_check("n", :ok)
    end
  end

  def test_clones_differ_only_in_what_is_changed
    client = StatsD::Instrument::Client.new(
      prefix: "p", default_tags: ["d"], default_sample_rate: 0.5, container_id: "id", cardinality: "low"
    )
    check("q.a:1|c|@0.5|#d|c:id|card:low", client: client) do
      client.with_options(prefix: "q") { |clone| clone.increment("a") }
    end
    clone = client.clone_with_options(default_tags: nil, default_sample_rate: nil, prefix: nil, cardinality: nil)
    check("a:1|c|c:id", client: clone) { clone.increment("a") }
  end

  def test_sending_continues_while_capturing
    sink = Support::ListSink.new
    client = StatsD::Instrument::Client.new(sink: sink)
    outer = client.capture do
      client.increment("a")
      inner = client.capture { client.increment("b") }
      assert_equal ["b"], inner.map(&:name)
    end
    assert_equal %w[a b], outer.map(&:name)
    assert_equal ["a:1|c", "b:1|c"], sink.to_a
  end

  def test_fields_are_left_out_for_plain_servers
    client = StatsD::Instrument::Client.new(implementation: "statsd", container_id: "id", cardinality: "low",
                                            external_data: "e")
    check("a:1|c", client: client) { client.increment("a") }
    check("a:1|c", client: client) { client.increment("a", timestamp: 5) }
    assert_raises(NotImplementedError) { client.distribution("a", 1) }
    assert_raises(NotImplementedError) { client.histogram("a", 1) }
    assert_raises(NotImplementedError) { client.increment("a", tags: ["x"]) }
    assert_raises(NoMethodError) { client.event("t", "x") }
    assert_raises(NotImplementedError) { StatsD::Instrument::Client.new(implementation: "nope") }
  end

  def test_external_data_loses_separators
    client = StatsD::Instrument::Client.new(external_data: "it-false,cn-a|pu-b\u0000")
    check("a:1|c|e:it-false,cn-apu-b", client: client) { client.increment("a") }
  end

  def test_unknown_cardinality
    error = assert_raises(ArgumentError) { StatsD::Instrument::Client.new(cardinality: "all") }
    assert_equal 'cardinality must be one of none, low, orchestrator, high, not "all"', error.message
  end

  def test_samples_that_cannot_be_sent_are_counted
    check do
      @client.gauge("a", nil)
      @client.gauge("a", Float::NAN)
      @client.distribution("a", "x")
      @client.increment("")
      @client.set("a", nil)
      @client.gauge("a", 1, timestamp: 0)
    end
    assert_equal 6, @client.telemetry[:dropped_invalid]
  end

  def test_metric_methods_return_a_frozen_truthy_object
    results = [@client.increment("a"), @client.gauge("a", 1), @client.set("a", 1), @client.measure("a", 1),
               @client.event("a", "b"), @client.service_check("a", 0), @client.force_flush]
    assert_equal [StatsD::Instrument::VOID], results.uniq
    assert_predicate StatsD::Instrument::VOID, :frozen?
    assert StatsD::Instrument::VOID
  end

  def test_an_applications_own_builder
    builder = Class.new(StatsD::Instrument::DogStatsDDatagramBuilder) do
      def initialize(prefix: nil, default_tags: nil)
        super
      end

      def c(name, value, sample_rate, tags)
        super("own.#{name}", value, sample_rate, tags)
      end
    end
    client = StatsD::Instrument::Client.new(datagram_builder_class: builder)
    check("own.a:1|c", client: client) { client.increment("a") }
    aggregating, sink = list_client(datagram_builder_class: builder)
    2.times { aggregating.increment("a") }
    assert_equal ["own.a:2|c"], flushed(aggregating, sink)
  end

  def test_open_and_batch
    server = udp_server
    sink = StatsD::Instrument::BatchedSink.for_addr(server.address)
    StatsD::Instrument::Client.open(sink: sink) do |client|
      client.batch { |batch| 3.times { batch.increment("a") } }
      wait_until("the batch") { server.total("a") == 3 }
      client.increment("b")
    end
    wait_until("the rest") { server.total("b") == 1 }
  end

  def test_sampling_sends_the_share_asked_for
    seed = Support.seed
    srand(seed)
    server = udp_server
    client = network_client(server, enable_aggregation: false)
    table = client.mode.contexts.table
    share = Array.new(100_000) { table.sample?(0.2) }.count(true)
    # Six standard deviations: less than one failure in a hundred million runs.
    assert_in_delta 20_000, share, 6 * Math.sqrt(100_000 * 0.2 * 0.8), "seed #{seed}"
    refute table.sample?(0.0)
    assert table.sample?(1.0)
    refute table.sample?(1e-300)
  end

  def test_sampled_calls_say_so
    client, sink = list_client(default_sample_rate: 0.5)
    3.times { client.increment("a") }
    client.increment("a", sample_rate: 1.0)
    client.gauge("g", 1)
    assert_equal ["a:1|c", "a:3|c|@0.5", "g:1|g"], flushed(client, sink).sort
  end

  def test_module_methods_reach_the_singleton_client
    datagrams = StatsD.singleton_client.capture do
      StatsD.increment("a", 2, tags: ["x"])
      StatsD.increment("a", by: 3, cardinality: "low")
      StatsD.decrement("a")
      StatsD.count("a", 4)
      StatsD.gauge("b", 1)
      StatsD.set("c", 1)
      StatsD.measure("d") { nil }
      StatsD.timing("d", 1)
      StatsD.time("d") { nil }
      StatsD.histogram("e", 1)
      StatsD.distribution("f", 1)
      StatsD.distribution_time("f") { nil }
      StatsD.event("g", "h")
      StatsD.service_check("i", :ok)
    end
    assert_equal %w[a a a a b c d d d e f f g i], datagrams.map(&:name)
    assert_equal ["a:2|c|#x", "a:3|c|card:low", "a:-1|c"], datagrams.first(3).map(&:source)
    assert_raises(ArgumentError) { StatsD.gauge("a") }
    assert_raises(ArgumentError) { StatsD.increment("a", 1, { sample_rate: 1 }) }
  end

  def test_stand_ins_for_a_client_get_only_the_usual_keywords
    stand_in = Class.new do
      attr_reader :calls

      def increment(name, value, sample_rate:, tags:, no_prefix:)
        (@calls ||= []) << [name, value, sample_rate, tags, no_prefix]
      end
    end.new
    before = StatsD.singleton_client
    StatsD.singleton_client = stand_in
    StatsD.increment("a", tags: ["x"])
    assert_equal [["a", 1, nil, ["x"], false]], stand_in.calls
  ensure
    StatsD.singleton_client = before
  end
end
