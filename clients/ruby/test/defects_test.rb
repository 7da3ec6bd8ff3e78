# frozen_string_literal: true

require_relative "test_helper"

# One test for each defect known from clients with the same API.
class DefectsTest < TestCase
  # Sorting the caller's array in place changed the application's data, and a frozen array raised.
  def test_tags_of_the_caller_are_never_modified
    client, sink = list_client
    tags = %w[b a]
    client.increment("a", tags: tags)
    client.increment("a", tags: %w[b a].freeze)
    client.increment("a", tags: { b: 1, a: 2 }.freeze)
    assert_equal %w[b a], tags
    assert_equal ["a:1|c|#a:2,b:1", "a:2|c|#a,b"], flushed(client, sink).sort
  end

  # A packed line was as long as its values made it: 249 values gave 3,994 bytes on a limit of 1,472.
  def test_packed_lines_end_at_the_packet_size
    server = udp_server
    client = network_client(server)
    249.times { |index| client.distribution("dist", index + 0.123456789, tags: ["tag:#{"x" * 50}"]) }
    client.flush(sync: true)
    wait_until("all values") { server.samples("dist") == 249 }
    assert_operator server.packets_so_far.size, :>, 1
    server.packets_so_far.each { |packet| assert_operator packet.bytesize, :<=, 1_472 }
    server.lines.each { |line| assert line.end_with?("|d|#tag:#{"x" * 50}"), line }
  end

  # Lengths were counted in characters, so the server cut the text.
  def test_event_lengths_are_bytes
    client = StatsD::Instrument::Client.new
    event = client.capture { client.event("t\u00fc", "\u00e9\n\u{1f600}") }.first
    assert_equal "_e{3,8}:t\u00fc|\u00e9\\n\u{1f600}", event.source
    assert_equal ["t\u00fc", "\u00e9\n\u{1f600}"], [event.name, event.value]
  end

  # The variable counted as set whatever its value.
  def test_aggregation_can_be_turned_off_by_its_variable
    environment = ->(value) { StatsD::Instrument::Environment.new("STATSD_ENABLE_AGGREGATION" => value) }
    %w[false 0 no off FALSE].each { |value| assert_equal false, environment.call(value).aggregation_enabled, value }
    %w[true 1 yes].each { |value| assert_equal true, environment.call(value).aggregation_enabled, value }
    assert_nil StatsD::Instrument::Environment.new({}).aggregation_enabled
  end

  # The variable was read by nobody, and clones forgot the setting.
  def test_the_maximum_context_size_reaches_client_and_clones
    environment = StatsD::Instrument::Environment.new(
      "STATSD_ENV" => "production", "STATSD_AGGREGATION_MAX_CONTEXT_SIZE" => "5", "STATSD_ADDR" => udp_server.address
    )
    client = environment.client
    (@clients ||= []) << client
    assert_equal 5, client.aggregating_core.max_values
    assert_equal 5, client.clone_with_options(prefix: "x").aggregating_core.max_values
  end

  # All threads shared one connection although each seemed to have its own.
  def test_threads_do_not_share_connections
    sink = StatsD::Instrument::Sink.for_addr(udp_server.address)
    connections = [sink.connection] + Array.new(3) { Thread.new { sink.connection }.value }
    assert_equal 4, connections.uniq(&:object_id).size
    assert_same sink.connection, sink.connection
  end

  # One context reaching its limit sent everything from the calling thread.
  def test_a_full_context_sends_only_itself
    client, sink = list_client(aggregation_max_context_size: 8)
    client.increment("other")
    20.times { |value| client.distribution("d", value) }
    assert_equal ["d"], sink.to_a.map { |line| line[/\A\w+/] }.uniq
    assert_includes flushed(client, sink), "other:1|c"
  end

  # External data kept the character that ends a field.
  def test_external_data_cannot_forge_fields
    assert_equal "ab", StatsD::Instrument::OriginDetection.clean_external_data("a|\u0007b")
    assert_nil StatsD::Instrument::OriginDetection.clean_external_data("|")
    assert_nil StatsD::Instrument::OriginDetection.clean_external_data(nil)
  end

  # Timers were rounded to whole milliseconds.
  def test_timers_are_not_rounded
    client, sink = list_client
    client.distribution_time("t") { nil }
    assert_match(/\At:\d+\.\d+(e-\d+)?\|d\z/, flushed(client, sink).first)
  end

  # A compiled metric kept the client it was defined with.
  def test_compiled_metrics_follow_the_singleton_client
    metric = Class.new(StatsD::Instrument::CompiledMetric::Counter) { define(name: "m", tags: { k: Integer }) }
    before = StatsD.singleton_client
    first, first_sink = list_client(prefix: "first")
    second, second_sink = list_client(prefix: "second")
    StatsD.singleton_client = first
    2.times { metric.increment(k: 1) }
    StatsD.singleton_client = second
    3.times { metric.increment(k: 1) }
    assert_equal ["first.m:2|c|#k:1"], flushed(first, first_sink)
    assert_equal ["second.m:3|c|#k:1"], flushed(second, second_sink)
  ensure
    StatsD.singleton_client = before
  end

  # An unresolvable name failed in the constructor.
  def test_a_client_can_be_made_before_its_server_has_a_name
    environment = StatsD::Instrument::Environment.new(
      "STATSD_ENV" => "production", "STATSD_ADDR" => "no-such-host.invalid:8125"
    )
    client = environment.client
    (@clients ||= []) << client
    client.increment("a")
    client.flush(sync: true)
    assert_equal 1, client.telemetry[:packets_dropped_writer]
  end
end
