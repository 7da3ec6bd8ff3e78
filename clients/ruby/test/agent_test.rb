# frozen_string_literal: true

require_relative "test_helper"
require_relative "agent"

# The client against the real agent: what was recorded is what the agent reports.
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
    assert_equal [50], sets.map { |point| point["value"].round }.uniq
    tags = agent.points.find { |point| point["metric"] == "ruby.dist" }["tags"]
    assert_equal %w[a:2 b:1], tags.sort
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
end
