# frozen_string_literal: true

require_relative "test_helper"
require "weir/dogstatsd"

# The API of dogstatsd-ruby on top of the client.
class DogstatsdTest < TestCase
  NO_REPORTS = { telemetry_enable: false, origin_detection: false }.freeze
  TYPES = %i[count gauge histogram distribution timing set].freeze

  def after_teardown
    @statsds&.each(&:close)
    super
  end

  # A client whose lines are read from a server, and which reports nothing about itself.
  def statsd(server = udp_server, **options)
    client = Datadog::Statsd.new("127.0.0.1", server.port, **NO_REPORTS, buffer_flush_interval: 3600, **options)
    (@statsds ||= []) << client
    client
  end

  def single(server = udp_server, **options)
    client = Datadog::Statsd.new("127.0.0.1", server.port, **NO_REPORTS, single_thread: true, **options)
    (@statsds ||= []) << client
    client
  end

  def lines(server, count)
    wait_until("#{count} lines") { server.lines.size >= count }
    server.lines
  end

  def with_env(values)
    before = values.to_h { |name, _| [name, ENV.fetch(name, nil)] }
    values.each { |name, value| ENV[name] = value }
    yield
  ensure
    before.each { |name, value| ENV[name] = value }
  end

  def emit_everything(client)
    client.increment("a")
    client.increment("a", by: 2, tags: { plan: "free" })
    client.decrement("b", tags: %w[x])
    client.count("c", 4)
    client.gauge("d", 1.5)
    client.histogram("e", 5)
    client.distribution("f", 6)
    client.timing("g", 7)
    client.set("h", "member")
    client.service_check("i", Datadog::Statsd::WARNING, message: "slow", hostname: "web")
    client.event("title", "text", alert_type: "success", date_happened: 1_700_000_000)
  end

  EVERYTHING = %w[
    n.a:1|c|#t:1 n.a:2|c|#t:1,plan:free n.b:-1|c|#t:1,x n.c:4|c|#t:1 n.d:1.5|g|#t:1 n.e:5|h|#t:1 n.f:6|d|#t:1
    n.g:7|ms|#t:1 n.h:member|s|#t:1 _sc|i|1|h:web|#t:1|m:slow _e{5,4}:title|text|d:1700000000|t:success|#t:1
  ].freeze

  def test_every_kind_of_message
    [statsd(server = udp_server, namespace: "n", tags: { t: 1 }),
     statsd(server2 = udp_server, namespace: "n", tags: ["t:1"], aggregation: false),
     single(server3 = udp_server, namespace: "n", tags: { "t" => "1" })].zip([server, server2, server3]) do |client, to|
      emit_everything(client)
      client.flush(sync: true)
      assert_equal EVERYTHING.sort, lines(to, EVERYTHING.size).sort
    end
  end

  def test_calls_are_aggregated_unless_told_otherwise
    client = statsd(server = udp_server)
    100.times { client.increment("sum", tags: ["a"]) }
    100.times { |value| client.timing("time", value) }
    client.flush(sync: true)
    assert_equal ["sum:100|c|#a", "time:#{(0..99).to_a.join(":")}|ms"], lines(server, 2).sort
    with_env("STATSD_ENABLE_AGGREGATION" => "false") do
      client = statsd(server = udp_server)
      3.times { client.increment("one") }
      client.flush(sync: true)
      assert_equal ["one:1|c"] * 3, lines(server, 3)
    end
  end

  # The thread of the aggregation flushes by itself; dogstatsd-ruby waits for a full packet.
  def test_what_nobody_flushes_arrives
    client = statsd(server = udp_server, buffer_flush_interval: 0.01)
    client.increment("soon")
    assert_equal ["soon:1|c"], lines(server, 1)
  end

  def test_names_and_tags
    client = single(server = udp_server)
    client.increment(Weir::Dogstatsd::Address)
    client.increment(:symbol, tags: { flag: nil, "k" => :v })
    client.increment("a:b@c|d", tags: ["x|,y"])
    client.flush
    assert_equal ["Weir.Dogstatsd.Address:1|c", "symbol:1|c|#flag,k:v", "a_b_c_d:1|c|#xy"], lines(server, 3)
  end

  def test_sample_rates
    client = single(server = udp_server)
    client.define_singleton_method(:rand) { 0.4 }
    client.increment("drawn", 0.5)
    client.increment("left.out", sample_rate: 0.3)
    client.increment("drawn.before", sample_rate: 0.3, pre_sampled: true)
    client.gauge("gauge", 3, 0.5)
    client.flush
    assert_equal %w[drawn:1|c|@0.5 drawn.before:1|c|@0.3 gauge:3|g|@0.5], lines(server, 3)
    client = statsd(server = udp_server, sample_rate: 0.5)
    client.define_singleton_method(:rand) { 0.4 }
    2.times { client.increment("all") }
    client.gauge("last", 1)
    client.flush(sync: true)
    assert_equal %w[all:2|c|@0.5 last:1|g], lines(server, 2).sort
  end

  def test_blocks_are_timed
    client = statsd(server = udp_server)
    assert_equal 5, client.time("t") { 5 }
    assert_raises(RuntimeError) { client.distribution_time("d", tags: ["a"]) { raise "no" } }
    assert_raises(LocalJumpError) { client.time("none") }
    client.flush(sync: true)
    texts = lines(server, 3).sort
    assert_match(/\Ad:[\d.e-]+\|d\|#a\z/, texts[0])
    assert_match(/\At:[\d.e-]+\|ms\z/, texts[2])
  end

  def test_statuses
    client = single(server = udp_server)
    client.service_check("a", :critical)
    client.service_check("b", "ok")
    client.service_check("c", "grinding")
    client.flush
    assert_equal %w[_sc|a|2 _sc|b|0 _sc|c|grinding], lines(server, 3)
  end

  def test_cardinality_and_origin
    client = single(server = udp_server, cardinality: :low, container_id: "box")
    client.increment("a")
    client.increment("b", cardinality: "high")
    client.event("e", "t", cardinality: :none)
    client.flush
    assert_equal %w[a:1|c|c:box|card:low b:1|c|c:box|card:high _e{1,1}:e|t|c:box|card:none], lines(server, 3)
    assert_raises(ArgumentError) { client.increment("c", cardinality: "all") }
    assert_raises(ArgumentError) { statsd(cardinality: "all") }
    with_env("DD_EXTERNAL_ENV" => "pu-1|", "DD_CARDINALITY" => "orchestrator") do
      client = single(server = udp_server, origin_detection: true, container_id: "box")
      client.increment("a")
      client.flush
      assert_equal ["a:1|c|c:box|e:pu-1|card:orchestrator"], lines(server, 1)
    end
  end

  def test_tags_of_the_environment
    with_env("DD_TAGS" => "team:a,zone", "DD_ENV" => "prod", "DD_SERVICE" => "shop", "DD_VERSION" => "7",
             "DD_ENTITY_ID" => "pod") do
      client = single(server = udp_server, tags: { env: "test", own: 1 })
      expected = %w[dd.internal.entity_id:pod team:a zone service:shop version:7 env:test own:1]
      assert_equal expected, client.tags
      client.increment("a")
      client.flush
      assert_equal ["a:1|c|##{expected.join(",")}"], lines(server, 1)
    end
    assert_empty statsd.tags
    assert_raises(ArgumentError) { statsd(tags: "a:b") }
  end

  def address(*arguments, **env)
    socket_path = arguments.pop if arguments.size == 3
    found = Weir::Dogstatsd::Address.new(*arguments.values_at(0, 1), socket_path, env.transform_keys(&:to_s))
    [found.transport_type, found.host, found.port, found.socket_path].compact
  end

  def test_addresses
    assert_equal [:udp, "127.0.0.1", 8125], address
    assert_equal [:udp, "web", 8125], address("web", DD_DOGSTATSD_PORT: "1")
    assert_equal [:udp, "127.0.0.1", 9], address(nil, 9)
    assert_equal [:uds, "/a"], address(nil, nil, "/a", DD_AGENT_HOST: "other")
    assert_equal [:udp, "agent", 7], address(DD_AGENT_HOST: "agent", DD_DOGSTATSD_PORT: "7")
    assert_equal [:uds, "/b"], address(DD_DOGSTATSD_SOCKET: "/b")
    assert_equal [:udp, "web", 8125], address(DD_DOGSTATSD_URL: "udp://web", DD_AGENT_HOST: "other")
    assert_equal [:udp, "::1", 5], address(DD_DOGSTATSD_URL: "udp://[::1]:5")
    assert_equal [:uds, "/c"], address(DD_DOGSTATSD_URL: "unix:///c")
    assert_raises(ArgumentError) { address("web", 1, "/a") }
    assert_raises(ArgumentError) { address(DD_AGENT_HOST: "a", DD_DOGSTATSD_SOCKET: "/b") }
    assert_raises(ArgumentError) { address(DD_DOGSTATSD_URL: "tcp://a") }
    assert_raises(ArgumentError) { address(DD_DOGSTATSD_URL: "udp://a:b") }
  end

  def test_unix_sockets
    server = unix_server
    client = Datadog::Statsd.new(socket_path: server.path, **NO_REPORTS, single_thread: true)
    assert_equal [:uds, nil, nil, server.path], [client.transport_type, client.host, client.port, client.socket_path]
    client.batch { |same| same.increment("a") }
    assert_equal ["a:1|c"], lines(server, 1)
    stream = stream_server
    with_env("DD_DOGSTATSD_URL" => "unixstream://#{stream.path}") do
      Datadog::Statsd.open(**NO_REPORTS) { |opened| opened.increment("b") }
    end
    assert_equal ["b:1|c"], lines(stream, 1)
  ensure
    client&.close
  end

  def test_packets_of_a_client_without_threads
    before = Thread.list
    client = single(server = udp_server, buffer_max_pool_size: 2)
    5.times { |index| client.increment("m#{index}") }
    client.sync_with_outbound_io
    wait_until("two packets") { server.packets_so_far.size == 2 }
    client.flush
    wait_until("the third") { server.packets_so_far.size == 3 }
    assert_equal ["m0:1|c\nm1:1|c", "m2:1|c\nm3:1|c", "m4:1|c"], server.packets_so_far
    # Threads of earlier tests may end meanwhile.
    assert_equal 1, (Thread.list - before).size, "only the thread of the server"
    client = single(server = udp_server, buffer_max_payload_size: 20)
    3.times { client.increment("counter") }
    client.flush
    assert_equal ["counter:1|c"] * 3, lines(server, 3)
    assert_equal ["counter:1|c"] * 3, server.packets_so_far
  end

  def test_a_pool_of_one_sends_each_call_at_once
    client = statsd(server = udp_server, buffer_max_pool_size: 1)
    client.increment("now")
    assert_equal ["now:1|c"], lines(server, 1)
  end

  def test_a_client_without_threads_flushes_now_and_then_if_told
    client = single(server = udp_server, buffer_flush_interval: 0.01)
    client.increment("later")
    assert_equal ["later:1|c"], lines(server, 1)
  end

  def test_messages_that_fit_into_no_packet
    long = "x" * 50
    [single(buffer_max_payload_size: 40), statsd(buffer_max_payload_size: 40, aggregation: false)].each do |client|
      client.increment(long)
      client.event("title", long)
      client.flush(sync: true)
    end
    [single(buffer_max_payload_size: 40, buffer_overflowing_stategy: :raise),
     statsd(buffer_max_payload_size: 40, buffer_overflowing_stategy: :raise)].each do |client|
      assert_raises(Datadog::Statsd::Error) { client.event("title", long) }
    end
    assert_raises(ArgumentError) { statsd(buffer_max_payload_size: 0) }
  end

  def test_long_events
    client = single(server = udp_server)
    assert_raises(RuntimeError) { client.event("long", "x" * 9000) }
    client.event("long", "line\n" * 3000, truncate_if_too_long: true, tags: ["kept"])
    client.event("wide", "\u00e4" * 3000, truncate_if_too_long: true)
    client.flush
    events = lines(server, 2).map { |line| line.dup.force_encoding(Encoding::UTF_8) }
    events.each do |event|
      assert_predicate event, :valid_encoding?
      assert_operator event.bytesize, :<=, Datadog::Statsd::UDP_DEFAULT_BUFFER_SIZE
      head, text = event.match(/\A_e\{4,(\d+)\}:....\|([^|]*)/)[1..2]
      assert_equal head.to_i, text.bytesize
    end
    assert_operator events[0].bytesize, :>, 1400
    assert_match(/[a-z]\|#kept\z/, events[0].tr("\\n", "n"))
  end

  def test_telemetry
    client = Datadog::Statsd.new("127.0.0.1", (server = udp_server).port, origin_detection: false, tags: ["t:1"],
                                                                          buffer_flush_interval: 3600)
    2.times { client.increment("a") }
    client.flush(sync: true)
    assert_equal [2, 1, "a:2|c|#t:1".bytesize, 0],
                 %i[metrics packets_sent bytes_sent packets_dropped].map { |name| client.telemetry.public_send(name) }
    client.flush(flush_telemetry: true, sync: true)
    assert_equal 0, client.telemetry.metrics
    tags = "|c|#client:ruby,client_version:5.7.1,client_transport:udp,t:1"
    names = %w[metrics:2 events:0 service_checks:0 bytes_sent:10 bytes_dropped:0 bytes_dropped_queue:0
               bytes_dropped_writer:0 packets_sent:1 packets_dropped:0 packets_dropped_queue:0 packets_dropped_writer:0]
    assert_equal names.map { |name| "datadog.dogstatsd.client.#{name}#{tags}" }, lines(server, 12).drop(1)
    assert_equal 2, client.telemetry.to_h[:metrics]
    assert_nil statsd.telemetry
    assert_raises(ArgumentError) { Datadog::Statsd.new(buffer_max_payload_size: 60) }
  ensure
    client&.close
  end

  def test_telemetry_without_aggregation
    options = { telemetry_flush_interval: 3600, telemetry_enable: true }
    [statsd(first = udp_server, aggregation: false, **options), single(second = udp_server, **options)]
      .zip([first, second]) do |client, server|
      client.increment("a")
      client.flush(flush_telemetry: true, sync: true)
      lines(server, 12)
      assert_equal 11, server.lines.grep(/\Adatadog.dogstatsd.client/).size
    end
    client = single(server = udp_server, telemetry_enable: true, telemetry_flush_interval: -1)
    client.increment("a")
    client.flush
    assert_includes lines(server, 12), "datadog.dogstatsd.client.metrics:1|c|#client:ruby,client_version:5.7.1," \
                                       "client_transport:udp"
  end

  def test_close
    [statsd(kept = udp_server), single(kept)].each do |client|
      client.increment("kept")
      client.close
      client.increment("after")
      client.flush
    end
    wait_until("four lines") { kept.lines.tally == { "kept:1|c" => 2, "after:1|c" => 2 } }
    clients = [statsd(server = udp_server, telemetry_enable: true), single(server, telemetry_enable: true)]
    clients.each do |client|
      client.increment("dropped")
      client.close(flush: false)
      assert_equal 1, client.telemetry.to_h[:packets_dropped_queue]
    end
    assert_empty server.lines
    clients.each do |client|
      client.increment("after")
      client.flush
    end
    wait_until("two lines") { server.lines.grep_v(/\Adatadog/) == ["after:1|c"] * 2 }
  end

  def test_forks
    skip "there is no fork" unless FORKS
    [statsd(server = udp_server), single(server)].each_with_index do |client, index|
      client.increment("parent#{index}")
      Process.wait(fork do
        client.increment("child#{index}")
        client.flush(sync: true)
        exit!(0)
      end)
      client.flush(sync: true)
    end
    lines(server, 4)
    assert_equal %w[child0:1|c child1:1|c parent0:1|c parent1:1|c], server.lines.sort
  end

  def test_what_waits_is_sent_at_the_exit
    server = udp_server
    output, status = ruby(<<~RUBY)
      require "weir/dogstatsd"
      options = { telemetry_enable: false, origin_detection: false }
      A = Datadog::Statsd.new("127.0.0.1", #{server.port}, **options)
      B = Datadog::Statsd.new("127.0.0.1", #{server.port}, single_thread: true, **options)
      A.increment("threaded")
      A.event("e", "t")
      B.increment("single")
    RUBY
    assert_predicate status, :success?, output
    assert_equal %w[_e{1,1}:e|t single:1|c threaded:1|c], lines(server, 3).sort
  end

  def test_a_call_makes_no_object_of_its_own
    skip "JRuby does not count objects" if RUBY_ENGINE == "jruby"
    client = statsd(aggregation: true)
    options = { tags: { a: 1 }.freeze }.freeze
    work = lambda do
      client.increment("a")
      client.increment("a", options)
      client.gauge("b", 1, options)
      client.timing("c", 5, options)
    end
    300.times { work.call }
    client.flush(sync: true)
    before = GC.stat(:total_allocated_objects)
    100.times { work.call }
    assert_operator GC.stat(:total_allocated_objects) - before, :<, 100
  end

  def test_libraries_that_load_the_gem_get_this_client
    output, status = ruby('require "weir/dogstatsd"; p require("datadog/statsd"), Datadog::Statsd.weir?, ' \
                          "Datadog::Statsd::VERSION")
    assert_predicate status, :success?, output
    assert_equal %(true\ntrue\n"5.7.1"\n), output
    output, status = ruby('module Datadog; class Statsd; end; end; require "weir/dogstatsd"')
    refute_predicate status, :success?
    assert_match(/must be loaded before datadog.statsd/, output)
  end

  def test_the_code_of_the_page
    page = File.read(File.expand_path("../docs/dogstatsd-ruby.md", __dir__))
    blocks = page.scan(/^```ruby\n(.*?)^```$/m).flatten
    assert_equal 1, blocks.size
    server = udp_server
    output, status = ruby(blocks.join.sub("8125", server.port.to_s), env: { "DD_ORIGIN_DETECTION_ENABLED" => "false" })
    assert_predicate status, :success?, output
    expected = page[/The agent gets `([^`]+)`/, 1]
    assert_includes lines(server, 2), expected
    assert_match(/\Ashop.checkout:[\d.e-]+\|ms\|#env:prod\z/, server.lines.grep(/checkout/).first)
  end
end
