# frozen_string_literal: true

require_relative "test_helper"
require_relative "agent"
require "weir/dogstatsd"

# The client against the real agent: the agent reports exactly the recorded samples.
class AgentTest < TestCase
  def with_agent(*arguments)
    agent = Agent::Process.new("--udp", "0", "--admin", "127.0.0.1:0", *arguments)
    wait_until("the agent") do
      flunk("the agent ended: #{agent.log}") unless agent.running?
      agent.admin && ready?(agent.admin)
    end
    yield agent
  ensure
    agent&.stop if agent&.running?
  end

  def ready?(admin)
    host, port = admin.split(":")
    Net::HTTP.start(host, port.to_i, open_timeout: 1, read_timeout: 1) { |http| http.get("/ready").code == "200" }
  rescue SystemCallError, Timeout::Error, EOFError
    false
  end

  # A sink that waits for an agent on a busy machine.
  def patient(address)
    StatsD::Instrument::Sink.for_addr(address, write_timeout: DEADLINE.to_f)
  end

  def record(client)
    handle = client.counter("ruby.handle", tags: ["h:1"])
    Array.new(8) do |index|
      Thread.new do
        500.times do |round|
          client.increment("ruby.counter", 2, tags: { thread: index })
          client.distribution("ruby.dist", round, tags: ["b:1", "a:2"])
          client.histogram("ruby.histogram", 5)
          client.gauge("ruby.gauge", 7)
          client.set("ruby.set", round % 50)
          handle.increment
        end
      end
    end.each(&:join)
    client.flush(sync: true)
  end

  def check_totals(agent)
    assert_predicate agent.stop, :success?, agent.log
    assert_equal 8_000, agent.total("ruby.counter")
    assert_equal 4_000, agent.total("ruby.handle")
    assert_equal 4_000, agent.samples("ruby.dist")
    assert_equal 4_000, agent.total("ruby.histogram.count")
    gauges = agent.points.select { |point| point["metric"] == "ruby.gauge" }
    assert_equal [7], gauges.map { |point| point["value"] }.uniq
    sets = agent.points.select { |point| point["metric"] == "ruby.set" }
    # Of each bucket.
    sizes = sets.map { |point| point["value"].round }
    assert_operator sizes.sum, :>=, 50, sizes
    assert_operator sizes.max, :<=, 50, sizes
    tags = agent.points.find { |point| point["metric"] == "ruby.dist" }["tags"]
    assert_equal %w[a:2 b:1], tags.sort
  end

  def start_agent(*arguments)
    agent = Agent::Process.new("--udp", "0", "--admin", "127.0.0.1:0", *arguments)
    (@agents ||= []) << agent
    wait_until("the agent") { agent.admin && ready?(agent.admin) }
    agent
  end

  def after_teardown
    @agents&.each { |agent| agent.stop if agent.running? }
    super
  end

  def check_end(agent, totals)
    assert_predicate agent.stop, :success?, agent.log
    names = totals.keys | agent.points.map { |point| point["metric"] }.grep(/\Alife\./)
    assert_equal totals, names.to_h { |name| [name, agent.total(name)] }
  end

  # Replaced while it still runs, stopped, gone, and back at the same path. One send reaches the agent that is there.
  def check_restarts(flag, scheme)
    path = unix_path
    sink = StatsD::Instrument::BatchedSink.new(patient("#{scheme}://#{path}"))
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 3600.0, telemetry: false)
    (@clients ||= []) << client
    send = lambda do |name|
      client.increment(name)
      client.flush(sync: true)
    end
    send.call("life.before")
    first = start_agent(flag, path)
    send.call("life.first")
    second = start_agent(flag, "#{path}.new")
    File.rename("#{path}.new", path)
    send.call("life.second")
    check_end(first, "life.first" => 1)
    send.call("life.third")
    check_end(second, "life.second" => 1, "life.third" => 1)
    FileUtils.rm_f(path)
    2.times { send.call("life.nobody") }
    third = start_agent(flag, path)
    send.call("life.fourth")
    check_end(third, "life.fourth" => 1)
    assert_equal [4, 3, 3], client.telemetry.to_h.values_at(:packets_sent, :packets_dropped, :packets_dropped_writer)
  end

  def test_restarts_of_the_agent_at_a_unix_datagram_socket
    skip "JRuby has no Unix datagram sockets" if RUBY_ENGINE == "jruby"
    check_restarts("--uds", "unixgram")
  end

  def test_restarts_of_the_agent_at_a_unix_stream_socket
    check_restarts("--uds-stream", "unix")
  end

  def test_unix_datagrams
    skip "JRuby has no Unix datagram sockets" if RUBY_ENGINE == "jruby"
    path = unix_path
    with_agent("--uds", path) do |agent|
      sink = StatsD::Instrument::BatchedSink.new(patient("unixgram://#{path}"))
      client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 0.05)
      (@clients ||= []) << client
      record(client)
      assert_equal 0, client.telemetry[:packets_dropped]
      check_totals(agent)
    end
  end

  def test_unix_streams
    path = unix_path
    with_agent("--uds-stream", path) do |agent|
      sink = StatsD::Instrument::BatchedSink.new(patient("unix://#{path}"))
      client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 0.05)
      (@clients ||= []) << client
      record(client)
      assert_equal 0, client.telemetry[:packets_dropped]
      check_totals(agent)
    end
  end

  def test_the_api_of_dogstatsd_ruby
    skip "JRuby has no Unix datagram sockets" if RUBY_ENGINE == "jruby"
    path = unix_path
    with_agent("--uds", path) do |agent|
      Datadog::Statsd.open(socket_path: path, tags: ["t:1"], origin_detection: false) do |client|
        Array.new(4) { Thread.new { 250.times { client.increment("facade.counter", by: 2) } } }.each(&:join)
        100.times { |value| client.distribution("facade.dist", value) }
      end
      Datadog::Statsd.open(socket_path: path, single_thread: true, origin_detection: false) do |client|
        300.times { client.count("facade.counter", 3, tags: { t: 1 }) }
      end
      assert_predicate agent.stop, :success?, agent.log
      assert_equal 2_900, agent.total("facade.counter")
      assert_equal 100, agent.samples("facade.dist")
      counts = agent.points.select { |point| point["metric"] == "facade.counter" }
      assert_equal [["t:1"]], counts.map { |point| point["tags"] }.uniq
    end
  end
end
