# frozen_string_literal: true

require_relative "test_helper"

# Exact totals at a real receiver, whatever the application does to the client.
class StressTest < TestCase
  def test_eight_threads_over_a_socket
    server = lossless_server
    sink = StatsD::Instrument::BatchedSink.new(patient_sink(server))
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 0.02, telemetry: false)
    (@clients ||= []) << client
    handle = client.counter("handle")
    samples = client.distribution_handle("samples")
    rounds = 3_000
    Array.new(8) do |index|
      Thread.new do
        rounds.times do |round|
          client.increment("plain")
          client.increment("tagged", 2, tags: { thread: index % 3 })
          client.increment("literal", tags: ["round:#{round % 7}"])
          client.distribution("dist", round)
          handle.increment
          samples.record(round)
          client.gauge("gauge", round)
        end
      end
    end.each(&:join)
    client.flush(sync: true)
    wait_until("all packets") { server.packets_so_far.size == client.telemetry[:packets_sent] }
    assert_equal 8 * rounds, server.samples("samples")
    assert_equal 8 * rounds, server.total("plain")
    assert_equal 16 * rounds, server.total("tagged")
    assert_equal 8 * rounds, server.total("literal")
    assert_equal 8 * rounds, server.total("handle")
    assert_equal 8 * rounds, server.samples("dist")
    assert_equal 7 * 8 * rounds, client.telemetry[:metrics]
    assert_equal 0, client.telemetry[:packets_dropped]
  end

  def test_threads_that_come_and_go
    server = lossless_server
    sink = StatsD::Instrument::BatchedSink.new(patient_sink(server))
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 0.005, telemetry: false)
    (@clients ||= []) << client
    handle = client.counter("handle")
    40.times do
      Array.new(5) do
        Thread.new do
          20.times { client.increment("a") }
          handle.increment
        end
      end.each(&:join)
    end
    client.flush(sync: true)
    wait_until("all of them") { server.total("a") == 4_000 && server.total("handle") == 200 }
    wait_until("cells of ended threads to go") do
      client.force_flush
      client.aggregating_core.instance_variable_get(:@live) <= 2
    end
  end

  def test_capturing_again_and_again_loses_and_doubles_nothing
    server = lossless_server
    sink = StatsD::Instrument::BatchedSink.new(patient_sink(server))
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 0.005, telemetry: false)
    (@clients ||= []) << client
    handle = client.counter("handle")
    running = true
    workers = Array.new(3) do
      Thread.new do
        count = 0
        while running
          client.increment("a")
          handle.increment
          count += 1
          Thread.pass
        end
        count
      end
    end
    50.times { client.capture { Thread.pass } }
    running = false
    expected = workers.sum(&:value)
    client.flush(sync: true)
    wait_until("all of them") { server.total("a") >= expected && server.total("handle") >= expected }
    assert_equal expected, server.total("a")
    assert_equal expected, server.total("handle")
  end

  def test_calls_from_signal_handlers
    skip "signals reach the JVM first" if RUBY_ENGINE == "jruby"
    server = lossless_server
    sink = StatsD::Instrument::BatchedSink.new(patient_sink(server))
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 0.005, telemetry: false)
    (@clients ||= []) << client
    handle = client.counter("handle")
    handled = 0
    before = Signal.trap("USR1") do
      client.increment("a")
      client.increment("fresh#{handled}")
      client.distribution("d", 1.5)
      client.gauge("g", handled)
      client.set("s", handled)
      client.event("t", "x")
      handle.increment
      handled += 1
    end
    # Another process sends the signals: a thread would have to wait for its turn.
    sender = Process.spawn("for i in $(seq 60); do kill -USR1 #{Process.pid}; sleep 0.002; done")
    outside = 0
    until Process.wait(sender, Process::WNOHANG)
      100.times do
        client.increment("a")
        client.distribution("d", 2.5)
        handle.increment
      end
      outside += 100
    end
    assert_predicate $?, :success?
    client.flush(sync: true)
    assert_operator handled, :>, 0
    wait_until("all packets") { server.packets_so_far.size == client.telemetry[:packets_sent] }
    %w[a handle].each { |name| assert_equal handled + outside, server.total(name), name }
    assert_equal handled + outside, server.samples("d")
    assert_equal handled, server.lines.count { |line| line.start_with?("_e{") }
    assert_equal handled, (0...handled).sum { |index| server.total("fresh#{index}") }
  ensure
    Signal.trap("USR1", before || "DEFAULT")
  end

  def test_flushing_in_a_signal_handler
    skip "signals reach the JVM first" if RUBY_ENGINE == "jruby"
    server = lossless_server
    client = network_client(server)
    done = false
    before = Signal.trap("USR1") do
      client.increment("a")
      client.force_flush
      done = true
    end
    Process.kill("USR1", Process.pid)
    wait_until("the handler") { done }
    wait_until("the message") { server.total("a") == 1 }
  ensure
    Signal.trap("USR1", before || "DEFAULT")
  end
end

class ForkTest < TestCase
  def setup
    skip "no fork here" unless Support::FORKS
  end

  # A prefork server: the parent has recorded something and not sent it, eight children record with
  # five threads each and exit, and the parent goes on. In a process of its own, whose heap is small.
  def test_eight_children_of_a_parent_with_unsent_metrics
    server = lossless_server
    code = <<~RUBY
      require "statsd-instrument"
      sink = StatsD::Instrument::BatchedSink.new(StatsD::Instrument::Sink.for_addr(ARGV[0], write_timeout: 60.0))
      client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 3600.0)
      handle = client.counter("handle")
      compiled = Class.new(StatsD::Instrument::CompiledMetric::Counter) do
        define(name: "compiled", tags: { k: Integer })
      end
      StatsD.singleton_client = client
      record = proc do
        client.increment("a", tags: ["x"])
        client.increment("parent_name")
        client.distribution("d", 1.5)
        handle.increment
        compiled.increment(k: 1)
      end
      10.times(&record)
      children = Array.new(8) do
        fork do
          Array.new(5) { Thread.new { 100.times(&record) } }.each(&:join)
          client.flush(sync: true)
          100.times(&record)
          client.shutdown(60)
          exit!(0)
        end
      end
      children.each { |pid| abort("a child failed") unless Process.wait2(pid).last.success? }
      10.times(&record)
      client.flush(sync: true)
    RUBY
    output, status = ruby(code, env: { "STATSD_ENV" => "test" }, after: [address_of(server)])
    assert_predicate status, :success?, output
    assert_empty output
    expected = (8 * 600) + 20
    names = %w[a parent_name handle compiled]
    wait_until("all of them") do
      names.all? { |name| server.total(name) >= expected } && server.samples("d") >= expected
    end
    names.each { |name| assert_equal expected, server.total(name), name }
    assert_equal expected, server.samples("d")
  end

  def test_a_child_resends_nothing_that_its_parent_queued
    server = udp_server
    sink = StatsD::Instrument::Sink.for_addr(server.address)
    gate = Mutex.new
    sink.define_singleton_method(:send_packet) { |packet| gate.synchronize { super(packet) } }
    batched = StatsD::Instrument::BatchedSink.new(sink)
    gate.lock
    100.times { batched << "a:1|c" }
    pid = fork do
      gate.unlock
      batched << "child:1|c"
      batched.shutdown
      exit!(0)
    end
    Process.wait(pid)
    gate.unlock
    batched.shutdown
    wait_until("all of them") { server.total("a") == 100 }
    assert_equal 1, server.total("child")
  end

  def test_exit_sends_the_rest
    server = udp_server
    code = <<~RUBY
      require "statsd-instrument"
      at_exit { StatsD.increment("registered.before") }
      HANDLE = StatsD.counter("handle")
      3.times { StatsD.increment("a"); HANDLE.increment }
      StatsD.singleton_client.clone_with_options(prefix: "clone").increment("a")
      at_exit { StatsD.increment("registered.after"); HANDLE.increment }
      Thread.new { StatsD.increment("thread") }.join
    RUBY
    output, status = ruby(code, env: { "STATSD_ENV" => "production", "STATSD_ADDR" => server.address })
    assert_predicate status, :success?, output
    assert_empty output
    wait_until("all of them") { server.total("handle") == 4 }
    assert_equal [3, 1, 1, 1, 1], %w[a clone.a registered.before registered.after thread].map { |name|
                                    server.total(name)
                                  }
  end

  def test_exit_of_a_forked_child_sends_its_own
    server = udp_server
    code = <<~RUBY
      require "statsd-instrument"
      StatsD.increment("parent")
      pid = fork { StatsD.increment("child") }
      Process.wait(pid)
    RUBY
    output, status = ruby(code, env: { "STATSD_ENV" => "production", "STATSD_ADDR" => server.address })
    assert_predicate status, :success?, output
    wait_until("both") { server.total("parent") == 1 && server.total("child") == 1 }
  end

  def test_a_daemon_keeps_what_was_recorded_before
    server = udp_server
    code = <<~RUBY
      require "statsd-instrument"
      StatsD.increment("before")
      Process.daemon(true)
      StatsD.increment("after")
      StatsD.singleton_client.flush(sync: true)
    RUBY
    _output, status = ruby(code, env: { "STATSD_ENV" => "production", "STATSD_ADDR" => server.address })
    assert_predicate status, :success?
    wait_until("both") { server.total("before") == 1 && server.total("after") == 1 }
  end

  def test_termination_by_a_signal_handler_that_exits
    server = udp_server
    code = <<~RUBY
      require "statsd-instrument"
      Signal.trap("TERM") { StatsD.increment("handler"); exit }
      StatsD.increment("a")
      Process.kill("TERM", Process.pid)
      sleep
    RUBY
    output, = ruby(code, env: { "STATSD_ENV" => "production", "STATSD_ADDR" => server.address })
    assert_empty output
    wait_until("both") { server.total("a") == 1 && server.total("handler") == 1 }
  end
end
