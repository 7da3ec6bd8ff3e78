# frozen_string_literal: true

require_relative "test_helper"
require_relative "columns_receiver"

# Clients that send columns, with a receiver that answers as it is told.
class ColumnsTest < TestCase
  include StatsD::Instrument

  ColumnsReceiver.be_waited_for(DEADLINE.to_f)

  def receiver(socket = nil, &answer)
    (@receivers ||= []) << (socket ? ColumnsReceiver.new(socket, &answer) : ColumnsReceiver.new(&answer))
    @receivers.last
  end

  def after_teardown
    # Clients end first: they send what is left.
    @clients&.each { |client| client.shutdown(0.5) }
    @receivers&.each(&:close)
    @nobody&.each(&:close)
    super
  end

  # A client of columns and datagrams whose windows end when the test says so, not with the clock.
  def columns_client(address, server = udp_server, **options)
    without_clock(network_client(server, columns: address, **options))
  end

  # Its thread would also send what goes as datagrams at the end of each window, and with it a part of a sum.
  def without_clock(client)
    client.columns.define_singleton_method(:ended?) { false }
    client.columns.define_singleton_method(:until_end) { Float::INFINITY }
    client
  end

  # A client whose windows end with each flush of its thread.
  def hasty_client(address)
    client = network_client(udp_server, columns: address, aggregation_flush_interval: 0.01)
    client.columns.define_singleton_method(:ended?) { !@building.nil? }
    client
  end

  # Is taken for an agent that has never been there.
  def nobody
    # It does not listen, and nobody else can.
    socket = Socket.new(:INET, :STREAM)
    socket.bind(Addrinfo.tcp("127.0.0.1", 0))
    (@nobody ||= []) << socket
    "http://127.0.0.1:#{socket.local_address.ip_port}"
  end

  def logged
    text = StringIO.new
    before = StatsD.logger
    StatsD.logger = Logger.new(text)
    yield text
  ensure
    StatsD.logger = before
  end

  def counts(client)
    client.telemetry.to_h.select { |name, count| name.to_s.start_with?("columns_") && count.positive? }
          .transform_keys { |name| name.to_s.delete_prefix("columns_").to_sym }
  end

  # Makes the next request due.
  def hurry(client)
    columns = client.columns
    columns.instance_variable_get(:@lock).synchronize do
      columns.instance_variable_set(:@retry_at, 0.0)
      columns.send(:poke)
    end
  end

  def values(rows)
    rows.map { |row| [row.type, row.name, row.tags.sort, row.type == "sketch" ? row.samples : row.value] }.sort
  end

  def record(client)
    3.times { client.increment("count", 2, tags: { a: 1 }) }
    client.increment("count", 1, tags: { a: 1 }, cardinality: :low)
    client.increment("sampled", 2, sample_rate: 0.5, pre_sampled: true)
    client.gauge("gauge", 1)
    client.gauge("gauge", 2.5)
    600.times { |value| client.distribution("dist", value, tags: %w[b a]) }
    5.times { client.distribution("tenfold", 7, sample_rate: 0.4, pre_sampled: true) }
  end

  ROWS = [
    ["count", "count", ["a:1"], 6.0], ["count", "count", ["a:1", "dd.internal.card:low"], 1.0],
    ["count", "sampled", [], 4.0], ["gauge", "gauge", [], 2.5],
    ["sketch", "dist", %w[a b], 600], ["sketch", "tenfold", [], 12]
  ].freeze

  def test_counters_gauges_and_distributions_are_columns
    receiver = receiver()
    server = udp_server
    client = columns_client(receiver.address, server, container_id: "ci-1", external_data: "it-false")
    record(client)
    client.measure("timing", 4)
    client.histogram("histogram", 5)
    client.set("set", "x")
    client.event("title", "text")
    client.gauge("stamped", 5, timestamp: 1_700_000_000)
    client.flush(sync: true)
    wait_until("datagrams") { server.lines.size == 5 }
    assert_equal %w[_e histogram set stamped timing], server.lines.map { |line| line[/\A\w+/] }.sort
    assert_equal ROWS, values(receiver.rows)
    assert_equal [1, 2], receiver.payloads.map(&:number)
    assert_equal %w[/series /series /sketches], receiver.requests.map(&:path)
    headers = receiver.payloads.last.headers
    assert_match(/\A\h{32}\z/, headers["x-weir-client"])
    assert_equal %w[ci-1 it-false 2], headers.values_at("x-dsd-ld", "x-dsd-ed", "x-weir-oldest")
    assert_equal [nil, "0"], receiver.requests.first.headers.values_at("x-weir-sequence", "content-length")
    bytes = receiver.payloads.sum { |one| one.body.bytesize }
    assert_equal({ windows: 1, payloads_sent: 2, points_sent: 6, bytes_sent: bytes }, counts(client))
    assert_equal 616, client.telemetry[:metrics]
    assert_equal 0, client.columns.held_bytes
  end

  def test_a_window_is_ten_seconds_and_a_late_one_is_wider
    receiver = receiver()
    # The first window begins with the client.
    now = Process.clock_gettime(Process::CLOCK_REALTIME, :second)
    client = columns_client(receiver.address)
    columns = client.columns
    client.increment("now")
    client.gauge("level", 1)
    client.flush
    # The next window began when that one ended.
    client.increment("late")
    client.gauge("level", 2)
    client.aggregating_core.send(:tick)
    columns.seal((now / 10 * 10) + 47)
    columns.flush
    rows = receiver.rows.to_h { |row| [[row.name, row.value], [row.at, row.interval]] }
    start = rows.fetch(["now", 1.0])[0]
    assert_equal [0, 10], [start % 10, rows.fetch(["now", 1.0])[1]]
    assert_includes [now / 10 * 10, (now / 10 * 10) + 10], start
    at, interval = rows.fetch(["late", 1.0])
    assert_equal (now / 10 * 10) + 40, at + interval
    assert_equal [(now / 10 * 10) + 30, 10], rows.fetch(["level", 2.0])
    assert_operator Columns.instance_method(:until_end).bind_call(columns), :<=, 10
  end

  def test_the_thread_sends_a_window_that_has_ended
    receiver = receiver()
    client = hasty_client(receiver.address)
    client.increment("count", 3)
    wait_until("the window") { receiver.total("count") == 3 }
  end

  def test_a_payload_is_repeated_until_it_is_accepted
    answers = [200, 503, nil, "HTTP/1.1 500 X\r\nContent-Length: 1\r\n\r\nx", "no answer of HTTP",
               "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nx-weir-duplicate: 1\r\n\r\n"]
    receiver = receiver { answers.size > 1 ? answers.shift : answers.first }
    client = columns_client(receiver.address)
    client.increment("count")
    logged do |log|
      client.flush
      # Later windows wait, and have no number yet.
      client.increment("count", 2)
      10.times { client.flush }
      assert_equal 1, log.string.lines.size, log.string
      assert_match(/the agent answers 503/, log.string)
    end
    payloads = receiver.payloads
    first = payloads.take_while { |one| one.number == 1 }
    assert_equal 5, first.size
    assert_equal 1, first.map { |one| [one.body, one.client, one.headers["x-weir-oldest"]] }.uniq.size
    assert_equal [[2, "2"]], payloads.drop(5).map { |one| [one.number, one.headers["x-weir-oldest"]] }
    assert_equal 3, receiver.total("count")
    assert_equal [4, 4, 2], counts(client).values_at(:retries, :failures, :duplicates)
  end

  def test_without_the_endpoint_everything_goes_as_datagrams
    status = 404
    receiver = receiver { status }
    server = udp_server
    client = columns_client(receiver.address, server)
    logged do |log|
      record(client)
      client.flush(sync: true)
      wait_until("datagrams") { server.samples("dist") == 600 }
      assert_equal [6, 1], [server.lines.grep(/\Acount:6\|c/).size * 6, server.lines.grep(/\Acount:1\|c/).size]
      2.times do
        # Counted with its answer, which sets the time of the next one: when only the request is there, it is too
        # early to hurry again.
        looks = counts(client)[:absent]
        hurry(client)
        wait_until("another look") { counts(client)[:absent] > looks }
      end
      assert_equal 1, log.string.scan("datagrams are sent instead").size
    end
    assert_empty receiver.payloads
    pause = client.columns.instance_variable_get(:@retry_at) - Support.now
    assert_operator pause, :>, 30, "it looks again every minute"
    refute_predicate client.columns, :active?
    status = 200
    hurry(client)
    wait_until("columns") { client.columns.active? }
    client.increment("count", 5)
    client.flush
    assert_equal 5, receiver.total("count")
    # A window that waits when the endpoint goes away is sent when it is back.
    status = 501
    client.increment("count", 6)
    client.flush
    assert_equal 5, receiver.total("count")
    client.increment("as.datagram", 7)
    client.flush(sync: true)
    wait_until("datagrams") { server.total("as.datagram") == 7 }
    status = 200
    hurry(client)
    wait_until("what waited") { receiver.total("count") == 11 }
    assert_equal [0, 0], [server.total("count") - 7, receiver.total("as.datagram")]
  end

  # After the first window, samples go to bins in the cells.
  def test_each_window_has_the_samples_of_its_time
    receiver = receiver()
    client = columns_client(receiver.address)
    handle = client.distribution_handle("handle")
    [1, 300, 1, 700].each_with_index do |count, round|
      count.times do |value|
        handle.record(value)
        client.distribution("name", -value, tags: { round: round % 2 })
      end
      client.distribution("name", 10**30, tags: { round: round % 2 })
      client.distribution("sampled", 2, sample_rate: 0.25, pre_sampled: true)
      client.aggregating_core.send(:tick) if round.odd?
      client.flush
    end
    samples = receiver.rows.group_by(&:name).transform_values { |rows| rows.map(&:samples) }
    assert_equal({ "handle" => [1, 300, 1, 700], "name" => [2, 301, 2, 701], "sampled" => [4] * 4 }, samples)
    assert_equal [0.0, 44_850.0, 0.0, 244_650.0], receiver.rows.select { |row| row.name == "handle" }.map(&:total)
    assert_equal 1_002 + 1_006 + 4, client.telemetry[:metrics]
    assert_equal 4, client.telemetry[:columns_windows]
  end

  def test_samples_in_bins_wait_for_an_endpoint_that_goes_and_later_ones_do_not
    status = 200
    receiver = receiver { status }
    server = udp_server
    client = columns_client(receiver.address, server)
    handle = client.distribution_handle("dist")
    2.times do
      handle.record(1)
      client.flush
    end
    handle.record(2)
    client.aggregating_core.send(:tick)
    handle.record(4)
    status = 404
    logged { client.flush }
    refute_predicate client.columns, :active?
    handle.record(8)
    client.flush(sync: true)
    wait_until("a datagram") { server.lines.any? { |line| line.start_with?("dist:8|d") } }
    status = 200
    hurry(client)
    wait_until("what waited") { receiver.sum("dist") == 8 }
    handle.record(16)
    client.flush
    assert_equal [24, 1], [receiver.sum("dist"), server.samples("dist")]
  end

  def test_a_handle_that_changes_its_client_leaves_its_samples_with_the_old_one
    receivers = Array.new(2) { receiver }
    clients = receivers.map { |one| columns_client(one.address) }
    before = StatsD.singleton_client
    handle = StatsD.distribution_handle("dist")
    [clients, clients.reverse].each do |turn|
      turn.each do |client|
        StatsD.singleton_client = client
        handle.record(1)
        client.flush
        handle.record(10)
      end
    end
    clients.each(&:flush)
    assert_equal [22, 22], receivers.map { |one| one.sum("dist") }
  ensure
    StatsD.singleton_client = before
  end

  def test_nobody_there_means_datagrams_and_another_look_soon
    server = udp_server
    client = columns_client(nobody, server)
    client.increment("count", 4)
    client.flush(sync: true)
    wait_until("datagrams") { server.total("count") == 4 }
    assert_equal [:absent], counts(client).keys
    # Each look that found nobody doubles the pause before the next one.
    looks, retry_at = client.columns.instance_variable_get(:@lock).synchronize do
      [counts(client)[:absent], client.columns.instance_variable_get(:@retry_at)]
    end
    assert_operator retry_at - Support.now, :<=, 0.25 * (2**(looks - 1))
  end

  def test_an_agent_that_was_there_is_waited_for
    # Another process could be given a port while nobody listens there.
    path = unix_path
    receiver = receiver(UNIXServer.new(path))
    server = udp_server
    client = columns_client("http+unix://#{path}", server)
    client.increment("count")
    client.flush
    receiver.close
    @receivers.clear
    client.increment("count", 2)
    client.flush(sync: true)
    assert_predicate client.columns, :active?
    assert_operator client.columns.held_bytes, :>, 0
    File.unlink(path)
    again = receiver(UNIXServer.new(path))
    wait_until("what waited") { again.total("count") == 2 }
    assert_equal [receiver.payloads.first.client], again.payloads.map(&:client)
    assert_equal 0, server.total("count")
  end

  def test_a_wrong_payload_is_dropped_and_counted
    wrong = "HTTP/1.1 400 X\r\nContent-Length: 9\r\n\r\nbad bytes"
    receiver = receiver { |request| request.path == "/sketches" ? wrong : 200 }
    client = columns_client(receiver.address)
    logged do |log|
      client.increment("count")
      client.distribution("dist", 1)
      client.flush
      wait_until("a line") { log.string.match?(/1 points dropped: the agent answers 400 to columns: bad bytes/) }
    end
    assert_equal({ windows: 1, payloads_sent: 1, points_sent: 1, refused: 1, points_dropped: 1 },
                 counts(client).except(:bytes_sent))
    assert_equal 0, client.columns.held_bytes
  end

  def test_a_pause_that_the_agent_asks_for_is_kept
    receiver = receiver { |request| request.number ? "HTTP/1.1 503 X\r\nRetry-After: 200\r\n\r\n" : 200 }
    client = columns_client(receiver.address)
    client.increment("count")
    3.times { client.flush }
    assert_equal 1, receiver.payloads.size
    assert_in_delta 200, client.columns.instance_variable_get(:@retry_at) - Support.now, 60
    endpoint = Columns::Endpoint.new("http://a")
    later = (Time.now + 100).utc.strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert_in_delta 100, endpoint.send(:seconds, later), 30
    others = ["x", "Thu, 99 Nov 2026 12:00:00 GMT", "0"].map { |text| endpoint.send(:seconds, text) }
    assert_equal [nil, nil, 0.0], others
  end

  def test_windows_beyond_the_limit_are_merged_and_then_dropped
    receiver = receiver { |request| request.number ? 503 : 200 }
    client = columns_client(receiver.address, columns_max_bytes: 4_000)
    window = lambda do |name, value|
      client.increment(name, value)
      client.gauge("level", value)
      client.distribution("dist", value)
      client.flush
    end
    20.times { |round| window.call("count", round) }
    counts = counts(client)
    assert_operator counts[:merged], :>, 5
    assert_nil counts[:dropped]
    assert_operator client.columns.held_bytes, :<=, 4_000
    # The first window has a number, and keeps its bytes.
    assert_equal [1], receiver.payloads.map(&:number).uniq
    assert_equal 1, receiver.payloads.map(&:body).uniq.size
    # Names that are all different do not merge into less.
    20.times { |round| window.call("other.#{round}.#{"x" * 200}", 1) }
    counts = counts(client)
    assert_operator counts[:dropped], :>, 0
    assert_operator counts[:points_dropped], :>, 0
    assert_operator client.columns.held_bytes, :<=, 4_000
  end

  def test_merged_windows_lose_nothing_but_resolution
    status = 503
    receiver = receiver { |request| request.number ? status : 200 }
    client = columns_client(receiver.address, columns_max_bytes: 3_000)
    30.times do |round|
      client.increment("count", round)
      client.gauge("level", round)
      client.distribution("dist", round)
      client.flush
    end
    status = 200
    hurry(client)
    wait_until("all windows") { client.columns.held_bytes.zero? }
    assert_operator counts(client)[:merged], :>, 0
    assert_equal [435.0, 30], [receiver.total("count"), receiver.samples("dist")]
    assert_equal 29.0, receiver.rows.select { |row| row.name == "level" }.last.value
    assert_equal 435.0, receiver.rows.select { |row| row.type == "sketch" }.sum(&:total)
  end

  # The receiver keeps the client waiting for an answer. Calls go on, and their cells are emptied into the window.
  def test_calls_do_not_wait_for_a_request
    asked = Queue.new
    go = Queue.new
    receiver = receiver do |request|
      if request.number == 1
        asked << true
        go.pop
      end
      200
    end
    client = columns_client(receiver.address)
    client.increment("count")
    flusher = Thread.new { client.flush }
    asked.pop
    handle = client.distribution_handle("dist")
    2_000.times do |value|
      client.distribution("dist", value)
      client.increment("count")
      client.gauge("level", value)
      handle.record(1)
    end
    assert_equal 1, receiver.requests.size, "the request is over"
    go << true
    flusher.join
    client.flush
    assert_equal [2_001.0, 4_000], [receiver.total("count"), receiver.samples("dist")]
  end

  # An exception that another thread raises, as Timeout does, arrives while the window is closed.
  def test_an_interrupted_flush_loses_nothing
    receiver = receiver()
    client = columns_client(receiver.address)
    client.increment("count", 3)
    closing = Queue.new
    go = Queue.new
    window = client.columns.window
    window.define_singleton_method(:close) do |*times|
      closing << true
      go.pop
      super(*times)
    end
    flusher = Thread.new do
      client.flush
    rescue Interrupt
      :interrupted
    end
    flusher.report_on_exception = false
    closing.pop
    flusher.raise(Interrupt)
    go << true
    assert_equal :interrupted, flusher.value
    client.flush
    assert_equal 3, receiver.total("count")
  end

  def test_many_threads
    random = Random.new(Support.seed)
    receiver = receiver { random.rand < 0.3 ? 503 : 200 }
    client = hasty_client(receiver.address)
    Array.new(6) do
      Thread.new do
        1_000.times do |round|
          client.increment("count")
          client.distribution("dist", round)
          client.flush if (round % 300).zero?
        end
      end
    end.each(&:join)
    wait_until("everything") do
      client.flush
      client.columns.held_bytes.zero?
    end
    assert_equal [6_000.0, 6_000], [receiver.total("count"), receiver.samples("dist")]
    assert_nil counts(client)[:points_dropped]
  end

  def test_closing_sends_what_waits_and_counts_what_it_drops
    receiver = receiver()
    server = udp_server
    client = columns_client(receiver.address, server)
    record(client)
    thread = client.columns.instance_variable_get(:@thread)
    assert_predicate thread, :alive?
    client.shutdown(DEADLINE)
    assert_equal ROWS, values(receiver.rows)
    refute_predicate thread, :alive?
    client.increment("after", 2)
    client.flush(sync: true)
    wait_until("a datagram") { server.total("after") == 2 }
  end

  def test_closing_sends_samples_in_bins_and_keeps_no_later_ones
    receiver = receiver()
    server = udp_server
    client = columns_client(receiver.address, server)
    handle = client.distribution_handle("dist")
    client.flush
    3.times do |value|
      handle.record(value)
      client.flush if value.zero?
    end
    client.shutdown(DEADLINE)
    assert_equal 3, receiver.samples("dist")
    handle.record(7)
    client.flush(sync: true)
    wait_until("a datagram") { server.samples("dist") == 1 }
    assert_equal 3, receiver.samples("dist")
  end

  def test_closing_gives_an_agent_that_fails_its_patience_and_no_more
    asked = Queue.new
    hung = Queue.new
    receiver = receiver do |request|
      next 200 unless request.number

      asked << true
      hung.pop
    end
    client = columns_client(receiver.address)
    client.increment("count")
    client.distribution("dist", 1)
    began = Support.now
    # The request is under way before the end: a thread that gets its turn after the patience would not begin it.
    client.aggregating_core.send(:flush_now)
    asked.pop
    logged do |log|
      client.shutdown(0.3)
      assert_match(/2 points dropped/, log.string)
    end
    assert_operator Support.now - began, :<, Columns::Endpoint::TIMEOUT
    assert_equal({ windows: 1, failures: 1, dropped: 2, points_dropped: 2 }, counts(client).except(:retries))
    hung.close
  end

  def test_a_signal_handler_may_flush
    skip "signals reach the JVM first" if RUBY_ENGINE == "jruby"
    receiver = receiver()
    client = columns_client(receiver.address)
    handled = false
    before = Signal.trap("USR1") do
      client.increment("count", 2)
      client.flush
      handled = true
    end
    client.increment("count")
    Process.kill("USR1", Process.pid)
    wait_until("the handler") { handled }
    client.flush
    wait_until("the window") { receiver.total("count") == 3 }
  ensure
    Signal.trap("USR1", before) if before
  end

  def test_a_unix_socket
    path = unix_path
    receiver = receiver(UNIXServer.new(path))
    client = columns_client("http+unix://#{path}")
    record(client)
    client.flush
    assert_equal ROWS, values(receiver.rows)
  end

  def test_a_sink_by_its_address
    receiver = receiver()
    sink = BatchedSink.for_addr(receiver.address)
    assert_equal ["127.0.0.1", 8125], [sink.host, sink.port]
    client = without_clock(Client.new(sink: sink, telemetry: false))
    (@clients ||= []) << client
    clone = client.clone_with_options(prefix: "clone")
    client.increment("a")
    clone.increment("b")
    client.flush
    assert_equal %w[a clone.b], receiver.rows.map(&:name).sort
    assert_same client.columns, clone.columns
    assert_equal 1, receiver.payloads.size
  end

  def test_addresses
    %w[http:// http://h:0 http://h:99999 http://u@h http://h?x https://h http+unix:// h:1].each do |text|
      assert_raises(ArgumentError, text) { Columns::Endpoint.new(text) }
    end
    assert_equal "::1", Columns::Endpoint.new("http://[::1]:9/x/").host
    assert_equal "[::1]:8125", Columns::Endpoint.datagram_address("http://[::1]:9")
    assert_equal "h:8125", Columns::Endpoint.datagram_address("http://h:9")
    assert_equal "agent:8125", Columns::Endpoint.datagram_address("http+unix:///x", { "DD_AGENT_HOST" => "agent" })
    assert_raises(ArgumentError) { Client.new(columns: "http://h", enable_aggregation: false) }
    assert_raises(ArgumentError) { Client.new(columns: "http://h", implementation: "statsd") }
    assert_raises(ArgumentError) { Client.new(columns: "http://h", columns_max_bytes: 0) }
    assert_nil list_client[0].columns
  end

  def test_a_host_name_and_a_path
    receiver = receiver()
    client = columns_client("http://localhost:#{receiver.port}/base/")
    client.increment("a")
    client.flush
    assert_equal ["/base/series"] * 2, receiver.requests.map(&:path)
    assert_equal "localhost:#{receiver.port}", receiver.requests.first.headers["host"]
  end

  def test_the_report_has_the_counts_of_columns
    receiver = receiver()
    client = columns_client(receiver.address, telemetry: true)
    client.increment("a")
    client.flush
    lines = []
    client.aggregating_core.instance_variable_get(:@report).each_message(force: true) { |line| lines << line }
    assert_includes lines.map { |line| line[/\A[^|]+/] }, "datadog.dogstatsd.client.columns_points_sent:1"
    assert_equal 24, lines.size
  end

  def test_sums_that_are_no_float_are_counted
    receiver = receiver()
    client = columns_client(receiver.address)
    2.times { client.increment("large", (2**1024) - 1) }
    client.increment("sampled", 1.5e308, sample_rate: 0.1, pre_sampled: true)
    client.increment("a")
    client.flush
    assert_equal ["a"], receiver.rows.map(&:name)
    assert_equal 3, client.telemetry[:dropped_invalid]
  end

  def test_a_fork_is_a_new_client
    skip "no fork" unless Support::FORKS
    receiver = receiver()
    client = columns_client(receiver.address)
    handle = client.distribution_handle("handle")
    # Samples in bins stay with the parent, too.
    record = lambda do |value|
      client.increment("count", value)
      handle.record(value)
      client.distribution("name", value)
    end
    record.call(1)
    client.flush
    record.call(10)
    client.aggregating_core.send(:tick)
    pid = fork do
      record.call(100)
      client.flush
      exit!(client.columns.held_bytes.zero? ? 0 : 1)
    end
    assert_predicate Process.wait2(pid)[1], :success?
    client.flush
    assert_equal [111] * 3, [receiver.total("count"), receiver.sum("handle"), receiver.sum("name")]
    assert_equal [2, 2], [receiver.payloads.map(&:client).uniq.size, receiver.payloads.count { |one| one.number == 1 }]
    assert_equal [[1, 2], [1, 2, 3, 4]], receiver.payloads.group_by(&:client).values.map { |of| of.map(&:number) }.sort
  end

  # Runs Ruby code in its own process, where clients are as patient as here.
  def ruby(code, **options)
    super(code, arguments: ["-r", File.expand_path("columns_receiver.rb", __dir__)], **options)
  end

  EXIT = <<~RUBY
    at_exit { StatsD.increment("late", 3) }
    require "statsd-instrument"
    ColumnsReceiver.be_waited_for(60.0)
    300.times { |value| StatsD.distribution("dist", value) }
    StatsD.increment("count", 2)
    fork { StatsD.increment("count", 5) } if Process.respond_to?(:fork)
    Process.wait
  RUBY

  # A sample that is recorded after the end of columns goes as a datagram.
  def test_a_normal_exit_sends_everything
    receiver = receiver()
    server = udp_server
    output, status = ruby(EXIT, env: { "STATSD_ENV" => "production", "STATSD_ADDR" => server.address,
                                       "STATSD_COLUMNS" => receiver.address, "STATSD_TELEMETRY" => "0" })
    assert_predicate status, :success?, output
    assert_empty output
    wait_until("datagrams") { server.total("late") == 3 * 2 }
    assert_equal [7, 300], [receiver.total("count"), receiver.samples("dist")]
    assert_equal 2, receiver.payloads.map(&:client).uniq.size
  end

  def test_an_exit_without_an_agent_sends_datagrams
    server = udp_server
    output, status = ruby(EXIT, env: { "STATSD_ENV" => "production", "STATSD_ADDR" => server.address,
                                       "STATSD_COLUMNS" => nobody, "STATSD_TELEMETRY" => "0" })
    assert_predicate status, :success?, output
    wait_until("datagrams") do
      [server.total("count"), server.samples("dist"), server.total("late")] == [7, 300, 6]
    end
  end

  def test_a_daemon_goes_on
    skip "no fork" unless Support::FORKS
    receiver = receiver()
    output, status = ruby(<<~RUBY, env: { "STATSD_ENV" => "production", "STATSD_COLUMNS" => receiver.address })
      require "statsd-instrument"
      ColumnsReceiver.be_waited_for(60.0)
      StatsD.increment("count", 2)
      StatsD.singleton_client.flush
      StatsD.increment("count", 3)
      Process.daemon(true, true)
      StatsD.increment("count", 4)
    RUBY
    assert_predicate status, :success?, output
    wait_until("all of it") { receiver.total("count") == 9 }
    assert_equal 1, receiver.payloads.map(&:client).uniq.size
  end

  def test_clients_that_nobody_holds_send_what_they_have
    receiver = receiver()
    make = lambda do
      sink = BatchedSink.for_addr(receiver.address)
      Client.new(sink: sink, telemetry: false, aggregation_flush_interval: 3600.0).increment("count", 3)
    end
    Thread.new { make.call }.join
    wait_until("the window") do
      GC.start
      receiver.total("count") == 3
    end
  end
end
