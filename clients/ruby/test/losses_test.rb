# frozen_string_literal: true

require_relative "test_helper"

# Samples that were lost, doubled or sent in the wrong order, with threads, exits and refused packets.
class LossesTest < TestCase
  # Increments that are no machine words were added by Ruby code between the reading and the writing of the sum. Another
  # thread that ran meanwhile lost or doubled its samples, and so did a flush.
  def test_increments_of_any_type_from_many_threads
    server = lossless_server
    client = StatsD::Instrument::Client.new(
      sink: StatsD::Instrument::BatchedSink.new(patient_sink(server)), aggregation_flush_interval: 0.001,
      telemetry: false
    )
    (@clients ||= []) << client
    handle = client.counter("handle")
    values = [0.5, 1.5r, "1", -0.25, 3]
    rounds = 500
    # Switches threads wherever Ruby code runs.
    random = Random.new(Support.seed)
    trace = TracePoint.new(:line) { Thread.pass if random.rand < 0.02 }
    trace.enable if RUBY_ENGINE == "ruby"
    Array.new(4) do
      Thread.new { rounds.times { |round| [client, handle].each { |one| add(one, values[round % values.size]) } } }
    end.each(&:join)
    trace.disable if trace.enabled?
    client.flush(sync: true)
    wait_until("all packets") { server.packets_so_far.size == client.telemetry[:packets_sent] }
    expected = 4 * (0...rounds).sum { |round| Rational(values[round % values.size].to_r) }
    %w[plain handle].each { |name| assert_equal expected, exact_total(server, name), name }
    assert_equal 2 * 4 * rounds, client.telemetry[:metrics]
  ensure
    trace.disable if trace&.enabled?
  end

  def add(target, value)
    target.is_a?(StatsD::Instrument::Client) ? target.increment("plain", value) : target.increment(value)
  end

  def exact_total(server, name)
    server.lines.sum { |line| line.start_with?("#{name}:") ? Rational(line[/:(-?[\d.]+(?:e[-+]?\d+)?)\|c/, 1]) : 0 }
  end

  # The thread that flushed sent newer values while the background thread still held older ones.
  def test_gauges_never_go_backwards
    random = Random.new(Support.seed)
    trace = TracePoint.new(:line) { Thread.pass if random.rand < 0.01 }
    [true, false].each do |aggregated|
      server = lossless_server
      inner = patient_sink(server)
      client = StatsD::Instrument::Client.new(
        sink: StatsD::Instrument::BatchedSink.new(inner, buffer_capacity: 20, max_packet_size: 60),
        enable_aggregation: aggregated, aggregation_flush_interval: 0.001, telemetry: false
      )
      (@clients ||= []) << client
      trace.enable if RUBY_ENGINE == "ruby"
      1_000.times do |value|
        client.gauge("g", value)
        client.force_flush if (value % 7).zero?
      end
      trace.disable if trace.enabled?
      client.flush(sync: true)
      wait_until("the last value") { server.lines.include?("g:999|g") }
      seen = server.lines.map { |line| line[/\d+/].to_i }
      assert_equal seen.sort, seen, "aggregated: #{aggregated}"
    end
  ensure
    trace.disable if trace&.enabled?
  end

  # The interpreter killed the background threads at exit, with the samples they had taken out of cells and queues.
  EXIT = <<~RUBY
    require "statsd-instrument"
    # The server is a thread of the test, and may get its turn later than an application would wait.
    StatsD::Instrument::ConnectionBehavior.send(:remove_const, :DEFAULT_WRITE_TIMEOUT)
    StatsD::Instrument::ConnectionBehavior.const_set(:DEFAULT_WRITE_TIMEOUT, 60.0)
    work = proc do
      2_000.times do |index|
        StatsD.increment("a", tags: { index: index % 50 })
        StatsD.event("t", "x") if (index % 20).zero?
        StatsD.distribution("d", index)
      end
    end
    work.call
    fork { work.call } if ARGV.include?("prefork")
    Process.waitall if ARGV.include?("prefork")
  RUBY

  def test_a_normal_exit_sends_everything
    5.times { |round| check_exit(round, 1) }
  end

  def test_forked_workers_that_exit_send_everything
    skip "no fork here" unless Support::FORKS
    5.times { |round| check_exit(round, 2, "prefork") }
  end

  def check_exit(round, processes, *arguments)
    server = lossless_server
    env = { "STATSD_ENV" => "production", "STATSD_AGGREGATION_INTERVAL" => "0.001", "STATSD_MAX_PACKET_SIZE" => "60",
            "STATSD_ENABLE_AGGREGATION" => round.even?.to_s,
            # A machine that is busy for ten seconds would have it sent, in messages longer than these packets.
            "STATSD_TELEMETRY" => "false" }
    env[server.respond_to?(:path) ? "STATSD_SOCKET_PATH" : "STATSD_ADDR"] = address_of(server)
    lib = File.expand_path("../lib", __dir__)
    output = IO.popen([env, RbConfig.ruby, "-w", "-I#{lib}", "-e", EXIT, *arguments], err: %i[child out], &:read)
    assert_empty output
    wait_until("all of them") { server.total("a") >= 2_000 * processes && server.samples("d") >= 2_000 * processes }
    assert_equal 2_000 * processes, server.total("a")
    assert_equal 2_000 * processes, server.samples("d")
    assert_equal 100 * processes, server.lines.count { |line| line.start_with?("_e{") }
  end

  # A thread that is killed between taking and sending must not take the packets along.
  def test_a_killed_thread_sends_what_it_has_taken
    server = lossless_server
    inner = patient_sink(server)
    entered = Queue.new
    gate = Queue.new
    inner.define_singleton_method(:send_packet) do |packet|
      entered << true
      gate.pop
      super(packet)
    end
    sink = StatsD::Instrument::BatchedSink.new(inner)
    sink << "a:1|c"
    entered.pop
    thread = Thread.list.reverse.find { |one| one.name == "statsd-dispatcher" && one.status == "sleep" }
    thread.kill
    gate << true
    wait_until("the message") { server.total("a") == 1 }
  ensure
    5.times { gate << true }
    sink&.shutdown
  end

  def test_values_that_are_not_finite_are_counted
    client, sink = list_client
    samples = [client.timer("t"), client.distribution_handle("d"), client.histogram_handle("h")]
    bad = [Float::NAN, Float::INFINITY, -Float::INFINITY, 10**400, -(10**400)]
    bad.each do |value|
      samples.each { |handle| handle.record(value) }
      client.counter("c").increment(value)
      client.gauge_handle("g").set(value)
      %i[measure distribution histogram gauge].each { |method| client.public_send(method, "x", value) }
    end
    assert_equal 9 * bad.size, client.telemetry[:dropped_invalid]
    samples.each { |handle| handle.record(1) }
    bad.each { |value| samples.each { |handle| handle.record(value) } }
    assert_equal 12 * bad.size, client.telemetry[:dropped_invalid]
    assert_equal %w[d:1|d h:1|h t:1|ms], flushed(client, sink).sort
    assert_equal 3, client.telemetry[:metrics]
  end

  def test_sums_that_are_no_float_are_counted
    client, sink = list_client
    3.times { client.increment("c", 10**308) }
    assert_empty flushed(client, sink)
    assert_equal 3, client.telemetry[:dropped_invalid]
    assert_equal 0, client.telemetry[:metrics]
  end

  # A sink of an address that nobody receives at. The socket that keeps the port is connected elsewhere, so that the
  # kernel refuses what others send there.
  def refused_sink
    address = deaf_address
    @deaf.last.connect("127.0.0.1", udp_server.port)
    StatsD::Instrument::Sink.for_addr(address)
  end

  # The kernel tells of a refusal at the next call, if it knows by then.
  def await_refusal(sink)
    socket = UDPSocket.for_fd(sink.connection.fileno)
    socket.autoclose = false
    assert socket.wait_readable(DEADLINE), "no refusal"
  end

  SENDS = {
    "one message" => ->(sink, packet) { sink << packet },
    "one packet" => ->(sink, packet) { sink.send_packet(packet) },
    "one packet of a flush" => ->(sink, packet) { sink.send_packets([packet]) }
  }.freeze
  private_constant :SENDS

  # The kernel reports a refused packet at the next call; the client took that for a broken socket and sent again.
  # The last one cannot be known.
  def test_refused_udp_packets_are_counted
    SENDS.each do |how, send|
      sink = refused_sink
      20.times do |index|
        await_refusal(sink) if index.positive?
        send.call(sink, "a:#{index}|c")
      end
      counted = sink.telemetry.to_h.slice(:packets_sent, :bytes_sent, :packets_refused, :packets_dropped_writer)
      assert_equal({ packets_sent: 1, bytes_sent: 5, packets_refused: 19, packets_dropped_writer: 19 }, counted, how)
      check_sums(sink.telemetry, 20, (10 * 5) + (10 * 6), how)
    end
  end

  # Between two packets of one system call the kernel keeps its reason to stop for itself.
  def test_refused_udp_packets_of_a_batch_are_counted
    sink = refused_sink
    batch = Array.new(70) { |index| "a:#{index}|c" }
    sink.send_packets(batch)
    # Unless it came too late for all of them.
    await_refusal(sink) if sink.telemetry[:packets_refused].zero?
    sink.send_packets(batch)
    assert_operator sink.telemetry[:packets_refused], :>=, 1
    check_sums(sink.telemetry, 140, 2 * batch.sum(&:bytesize), "a batch")
  end

  def test_a_refusal_between_two_packets_of_a_batch_is_counted
    wait_until("a refusal that comes in time") do
      sink = refused_sink
      sink.send_packets(["a:1|c"] * 2)
      sink.telemetry[:packets_refused].positive?
    end
  end

  # Each packet was either sent or dropped.
  def check_sums(telemetry, packets, bytes, how)
    counts = telemetry.to_h
    assert_equal packets, counts[:packets_sent] + counts[:packets_dropped], how
    assert_equal bytes, counts[:bytes_sent] + counts[:bytes_dropped], how
    assert_equal counts[:packets_refused], counts[:packets_dropped], how
    assert_equal counts.values_at(:packets_dropped, :bytes_dropped),
                 counts.values_at(:packets_dropped_writer, :bytes_dropped_writer), how
  end

  # A firewall's refusal has another number. None is at hand here, so the connection is one that says what it was told.
  def test_refusals_of_a_firewall_are_counted
    { Errno::ECONNREFUSED => 2, Errno::EHOSTUNREACH => 2, Errno::ENOBUFS => 0 }.each do |error, refused|
      answers = [nil, error, nil, error, nil]
      connection = StatsD::Instrument::UdpConnection.new("127.0.0.1", 9)
      connection.define_singleton_method(:send_datagram) { |_| (answer = answers.shift) && raise(answer) }
      # Stands for the extension.
      connection.define_singleton_method(:send_datagrams) do |packets, from|
        send_datagram(packets[from])
        [1, nil, 0]
      rescue SystemCallError => e
        [0, e, 0]
      end
      sink = StatsD::Instrument::Sink.new(connection)
      3.times { sink.send_packets(["a:1|c"]) }
      assert_empty answers
      assert_equal [refused, 3 - refused], sink.telemetry.to_h.values_at(:packets_refused, :packets_sent), error
      check_sums(sink.telemetry, 3, 15, error)
    end
  end

  # Late reports can be about packets before the batch.
  def test_a_batch_has_no_more_losses_than_packets
    connection = StatsD::Instrument::UdpConnection.new("127.0.0.1", 9)
    connection.define_singleton_method(:send_datagrams) { |*| [1, nil, 2] }
    sink = StatsD::Instrument::Sink.new(connection)
    sink.send_packets(["a:1|c"])
    check_sums(sink.telemetry, 1, 5, "late")
  end

  # An application that aggregates sends one packet in each flush. Each thread that sends has a socket, and of the last
  # packet of each nobody knows.
  def test_flushes_to_nobody_are_counted
    inner = refused_sink
    threads = Queue.new
    waits = method(:await_refusal)
    inner.define_singleton_method(:send_packets) do |packets|
      super(packets)
      threads << Thread.current
      waits.call(self)
    end
    client = StatsD::Instrument::Client.new(
      sink: StatsD::Instrument::BatchedSink.new(inner), aggregation_flush_interval: 3600.0, telemetry: false
    )
    (@clients ||= []) << client
    20.times do
      client.increment("a")
      client.flush(sync: true)
    end
    senders = Array.new(threads.size) { threads.pop }
    assert_equal [20, 20 - senders.uniq.size], [senders.size, client.telemetry[:packets_dropped]]
    check_sums(client.telemetry, 20, 20 * "a:1|c".bytesize, "flushes")
  end

  # A refusal is a reason for another source port, but not each of them: it would fill the tables of a node.
  def test_refusals_open_a_socket_a_second
    { "one by one" => ->(sink) { sink << "a:1|c" },
      "together" => ->(sink) { sink.send_packets(["a:1|c"] * 3) } }.each do |how, send|
      sink = refused_sink
      start = Support.now
      send.call(sink)
      await_refusal(sink) if sink.telemetry[:packets_refused].zero?
      sockets = Array.new(100) { send.call(sink) && sink.connection.send(:socket) }
      # The first refusal has opened one. All of them are kept here, so none takes the place of another.
      opened = sockets.uniq(&:object_id).size
      assert_operator sink.telemetry[:packets_refused], :>=, 1, how
      assert_operator opened, :<=, 2 + (Support.now - start), how
    end
  end

  # A translation that leads nowhere belongs to the source port.
  def test_a_refusal_opens_a_socket
    SENDS.each do |how, send|
      sink = refused_sink
      send.call(sink, "a:1|c")
      before = sink.connection.send(:socket)
      await_refusal(sink)
      send.call(sink, "a:1|c")
      refute_same before, sink.connection.send(:socket), how
      assert_predicate before, :closed?, how
    end
  end

  # Samples already taken from the other cells used to be lost with the cell that raised.
  def test_a_context_that_fails_takes_no_other_along
    client, sink = list_client
    4.times { |index| client.increment("c#{index}", 7) }
    3.times { client.distribution("d", 5) }
    client.gauge("g", 1)
    core = client.aggregating_core
    core.send(:take_new_cells)
    core.instance_variable_get(:@contexts).each_value do |context|
      template = context.template
      next unless %w[c1: d:].include?(template.head)

      template.define_singleton_method(:head_bytes) { raise TypeError, "broken" }
    end
    assert_equal ["c0:7|c", "c2:7|c", "c3:7|c", "g:1|g"], flushed(client, sink).sort
    assert_equal({ metrics: 4, dropped_invalid: 4 }, client.telemetry.to_h.slice(:metrics, :dropped_invalid))
  end

  # So was what came after a message that an application's own sink did not take.
  def test_a_sink_that_raises_loses_what_it_was_given
    client, sink = list_client
    sink.define_singleton_method(:<<) { |line| line.start_with?("c1") ? raise(IOError, "full") : super(line) }
    4.times { |index| client.increment("c#{index}", 7) }
    assert_equal ["c0:7|c", "c2:7|c", "c3:7|c"], flushed(client, sink).sort
    assert_equal({ packets_dropped: 1, packets_dropped_writer: 1, bytes_dropped: 6 },
                 client.telemetry.to_h.slice(:packets_dropped, :packets_dropped_writer, :bytes_dropped))
    client.increment("c1")
    client.increment("c2")
    assert_equal ["c2:1|c"], flushed(client, sink)
  end

  # A server with a thread for each request made a cell for each thread and context, and most samples bypassed
  # aggregation.
  def test_a_thread_for_each_request_uses_the_cells_of_ended_ones
    client, sink = list_client(aggregation_max_contexts: 50, aggregation_max_context_size: 1_000)
    metric = Class.new(StatsD::Instrument::CompiledMetric::Counter) { define(name: "m", tags: { k: Integer }) }
    before = StatsD.singleton_client
    StatsD.singleton_client = client
    300.times do |request|
      Thread.new do
        client.increment("a", tags: { k: request % 5 })
        client.distribution("d", 1)
        metric.increment(k: request % 5)
      end.join
    end
    assert_equal 0, client.telemetry[:overflowed]
    lines = flushed(client, sink)
    assert_equal 11, lines.size
    assert_equal([300, 300], %w[a m].map { |name| lines.sum { |line| line[/\A#{name}:(\d+)/, 1].to_i } })
  ensure
    StatsD.singleton_client = before
  end
end
