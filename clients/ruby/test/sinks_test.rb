# frozen_string_literal: true

require_relative "test_helper"

class SinksTest < TestCase
  def test_udp_sends_each_message_at_once
    server = udp_server
    sink = StatsD::Instrument::Sink.for_addr(server.address)
    assert_same sink, sink << "a:1|c"
    wait_until("the message") { server.lines == ["a:1|c"] }
    assert_equal({ packets_sent: 1, bytes_sent: 5, metrics: 1 },
                 sink.telemetry.to_h.slice(:packets_sent, :bytes_sent, :metrics))
  end

  def test_addresses
    check = lambda do |address, type, place|
      connection = StatsD::Instrument::Sink.for_addr(address).connection
      assert_instance_of type, connection, address
      assert_equal place, connection.host ? [connection.host, connection.port] : connection.socket_path, address
    end
    udp = StatsD::Instrument::UdpConnection
    check.call("h:1", udp, ["h", 1])
    check.call("udp://h:1", udp, ["h", 1])
    check.call("udp://h", udp, ["h", 8125])
    check.call("[::1]:9", udp, ["::1", 9])
    check.call("/a/b", StatsD::Instrument::UdsConnection, "/a/b")
    check.call("unixgram:///a", StatsD::Instrument::UdsConnection, "/a")
    check.call("unix:///a", StatsD::Instrument::UdsStreamConnection, "/a")
    check.call("unixstream:///a", StatsD::Instrument::UdsStreamConnection, "/a")
    error = assert_raises(ArgumentError) { StatsD::Instrument::Sink.for_addr("h:x") }
    assert_equal 'not a port in address "h:x": expected a number from 1 to 65535', error.message
    assert_raises(ArgumentError) { StatsD::Instrument::Sink.for_addr("h:70000") }
  end

  def test_ipv6
    receiver = UDPSocket.new(Socket::AF_INET6)
    begin
      receiver.bind("::1", 0)
    rescue SystemCallError
      skip "no IPv6 on this machine"
    end
    StatsD::Instrument::Sink.for_addr("[::1]:#{receiver.addr[1]}") << "a:1|c"
    assert receiver.wait_readable(DEADLINE)
    assert_equal "a:1|c", receiver.recv(100)
  ensure
    receiver.close
  end

  def test_unix_datagrams
    server = unix_server
    client = network_client(server)
    500.times { |index| client.increment("a#{index}", tags: ["x" * 40]) }
    client.flush(sync: true)
    wait_until("500 lines") { server.lines.size == 500 }
    assert_operator server.packets_so_far.map(&:bytesize).max, :>, 1_472
    server.packets_so_far.each { |packet| assert_operator packet.bytesize, :<=, 8_192 }
  end

  def test_unix_streams_frame_their_packets
    server = stream_server
    sink = StatsD::Instrument::BatchedSink.new(patient_sink(server))
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 3600.0, telemetry: false)
    (@clients ||= []) << client
    500.times { |index| client.increment("a#{index}") }
    client.flush(sync: true)
    wait_until("500 lines") { server.lines.size == 500 }
    server.packets_so_far.each { |packet| assert_operator packet.bytesize, :<=, 8_192 }
  end

  def test_a_restarted_unix_server_gets_what_comes_after
    path = unix_path
    first = unix_server(path)
    sink = StatsD::Instrument::Sink.for_addr(path)
    sink << "a:1|c"
    wait_until("the first") { first.lines == ["a:1|c"] }
    first.close
    @servers.delete(first)
    sink << "lost:1|c"
    assert_equal 1, sink.telemetry[:packets_dropped_writer]
    File.unlink(path)
    sink << "lost:1|c"
    assert_equal 2, sink.telemetry[:packets_dropped_writer]
    second = unix_server(path)
    sink << "b:1|c"
    wait_until("the second") { second.lines == ["b:1|c"] }
    assert_equal 2, sink.telemetry[:packets_dropped]
    assert_equal 16, sink.telemetry[:bytes_dropped]
  end

  # Each way an agent's restart looks from here: the socket's file was removed or replaced. One send is enough to
  # notice and to reach the new server, and what nobody took is counted.
  def test_a_send_reaches_the_server_that_took_the_place_of_another
    path = unix_path
    { "one by one" => ->(sink, text) { sink << text }, "together" => ->(sink, text) { sink.send_packets([text] * 3) } }
      .each do |how, send|
      sink = StatsD::Instrument::Sink.for_addr(path)
      first = unix_server(path)
      send.call(sink, "first:1|c")
      size = how == "together" ? 3 : 1
      wait_until("the first server") { first.total("first") == size }
      first.close
      @servers.delete(first)
      File.unlink(path)
      second = unix_server(path)
      send.call(sink, "second:1|c")
      wait_until("the second server") { second.total("second") == size }
      assert_equal 0, sink.telemetry[:packets_dropped], how
      second.close
      @servers.delete(second)
      send.call(sink, "refused:1|c")
      File.unlink(path)
      send.call(sink, "missing:1|c")
      assert_equal 2 * size, sink.telemetry[:packets_dropped_writer], how
      assert_equal 2 * size, sink.telemetry[:packets_sent], how
      third = unix_server(path)
      send.call(sink, "third:1|c")
      wait_until("the third server") { third.total("third") == size }
      assert_equal 2 * size, sink.telemetry[:packets_dropped], how
      third.close
      @servers.delete(third)
      File.unlink(path)
    end
  end

  def test_a_frame_reaches_the_stream_server_that_took_the_place_of_another
    path = unix_path
    sink = StatsD::Instrument::Sink.for_addr("unix://#{path}")
    first = stream_server(path)
    sink << "first:1|c"
    wait_until("the first server") { first.total("first") == 1 }
    first.close
    @servers.delete(first)
    File.unlink(path)
    second = stream_server(path)
    sink << "second:1|c"
    wait_until("the second server") { second.total("second") == 1 }
    assert_equal 0, sink.telemetry[:packets_dropped]
    second.close
    @servers.delete(second)
    sink << "refused:1|c"
    File.unlink(path)
    sink << "missing:1|c"
    assert_equal 2, sink.telemetry[:packets_dropped_writer]
    third = stream_server(path)
    sink << "third:1|c"
    wait_until("the third server") { third.total("third") == 1 }
    assert_equal [3, 2], [sink.telemetry[:packets_sent], sink.telemetry[:packets_dropped]]
  end

  # An upgrade: the new server renames its socket over that of the old one, which goes on reading. No send fails.
  def test_a_send_leaves_a_server_whose_socket_file_was_replaced
    { "one by one" => ->(sink, text) { sink << text },
      "together" => ->(sink, text) { sink.send_packets([text] * 3) } }.each do |how, send|
      size = how == "together" ? 3 : 1
      [["", method(:unix_server)], ["unix://", method(:stream_server)]].each do |scheme, serve|
        path = unix_path
        sink = StatsD::Instrument::Sink.for_addr("#{scheme}#{path}")
        old = serve.call(path)
        3.times do |life|
          send.call(sink, "life#{life}:1|c")
          wait_until("life #{life}") { old.total("life#{life}") == size }
          following = serve.call("#{path}.new")
          File.rename("#{path}.new", path)
          send.call(sink, "after#{life}:1|c")
          wait_until("the server after life #{life}") { following.total("after#{life}") == size }
          assert_equal 0, old.total("after#{life}"), "#{how}, #{old.class}"
          old = following
        end
        assert_equal [6 * size, 0], [sink.telemetry[:packets_sent], sink.telemetry[:packets_dropped]], how
      end
    end
  end

  # A socket file that was removed, or that refuses, is no reason to leave a server that reads.
  def test_a_connection_stays_where_nobody_listens_yet
    [["", method(:unix_server)], ["unix://", method(:stream_server)]].each do |scheme, serve|
      path = unix_path
      sink = StatsD::Instrument::Sink.for_addr("#{scheme}#{path}")
      server = serve.call(path)
      sent = 0
      take = lambda do |what|
        sink << "a:1|c"
        sink.send_packets(["a:1|c"])
        sent += 2
        wait_until(what) { server.total("a") == sent }
      end
      take.call("the server is there")
      File.unlink(path)
      take.call("the file is gone")
      UNIXServer.new(path).close
      take.call("the file is another one and refuses")
      File.unlink(path)
      File.write(path, "")
      take.call("the file is no socket")
      assert_equal 0, sink.telemetry[:packets_dropped]
    end
  end

  # The old server still exists and no longer reads: the kernel reports no error, only a full queue.
  def test_a_new_socket_in_the_place_of_a_full_one_is_noticed
    path, = deaf_unix_socket
    sink = StatsD::Instrument::Sink.for_addr(path, write_timeout: 0.05)
    sink << "a:1|c" until sink.telemetry[:packets_dropped].positive?
    File.unlink(path)
    server = unix_server(path)
    2.times { sink << "b:1|c" }
    sink.send_packets(["b:1|c"] * 3)
    wait_until("the new server") { server.total("b") == 5 }
    assert_equal 1, sink.telemetry[:packets_dropped]

    path, = deaf_unix_socket
    sink = StatsD::Instrument::Sink.for_addr(path, write_timeout: 0.05)
    capacity = 0
    capacity += 1 while sink.telemetry[:packets_dropped].zero? && (sink << "a:1|c")
    File.unlink(path)
    deaf = Socket.new(Socket::AF_UNIX, Socket::SOCK_DGRAM).tap { |one| one.bind(Socket.pack_sockaddr_un(path)) }
    (@deaf ||= []) << deaf
    (capacity - 1).times { sink << "a:1|c" }
    # The connection is to a socket that is full, and a third one has taken its place.
    File.unlink(path)
    third = unix_server(path)
    sink << "c:1|c"
    wait_until("the third server") { third.total("c") == 1 }
    assert_equal 1, sink.telemetry[:packets_dropped]
  end

  def test_a_restarted_stream_server_gets_what_comes_after
    path = unix_path
    first = stream_server(path)
    sink = StatsD::Instrument::Sink.for_addr("unix://#{path}")
    sink << "a:1|c"
    wait_until("the first") { first.lines == ["a:1|c"] }
    first.close
    @servers.delete(first)
    File.unlink(path)
    sink << "lost:1|c"
    second = stream_server(path)
    wait_until("the second") do
      sink << "b:1|c"
      second.lines.include?("b:1|c")
    end
  end

  def test_a_refused_udp_socket_neither_raises_nor_stops
    skip "there is one loopback address" unless RUBY_PLATFORM.include?("linux")
    # Ports of this address are given to this process alone.
    host = [127, 1 + (Process.pid >> 16), (Process.pid >> 8) & 255, Process.pid & 255].join(".")
    server = Support::UdpServer.new(host)
    port = server.port
    sink = StatsD::Instrument::Sink.for_addr(server.address)
    server.close
    5.times { sink << "lost:1|c" }
    again = Support::UdpServer.new(host, port)
    (@servers ||= []) << again
    wait_until("the new server") do
      sink << "b:1|c"
      again.lines.include?("b:1|c")
    end
  end

  def test_a_unix_server_that_does_not_read_costs_a_bounded_wait
    skip "JRuby has no Unix datagram sockets" if RUBY_ENGINE == "jruby"
    path = unix_path
    socket = Socket.new(Socket::AF_UNIX, Socket::SOCK_DGRAM)
    socket.bind(Socket.pack_sockaddr_un(path))
    sink = StatsD::Instrument::Sink.new(StatsD::Instrument::UdsConnection.new(path, write_timeout: 0.02))
    sink << "a:1|c" until sink.telemetry[:packets_dropped_writer].positive? || sink.telemetry[:packets_sent] > 10_000
    assert_equal 1, sink.telemetry[:packets_dropped_writer]
  ensure
    socket&.close
  end

  # The address of a Unix datagram socket that nobody reads, and the socket.
  def deaf_unix_socket
    skip "JRuby has no Unix datagram sockets" if RUBY_ENGINE == "jruby"
    path = unix_path
    socket = Socket.new(Socket::AF_UNIX, Socket::SOCK_DGRAM)
    socket.bind(Socket.pack_sockaddr_un(path))
    (@deaf ||= []) << socket
    [path, socket]
  end

  def test_a_server_that_stands_still_is_waited_for_once
    path, socket = deaf_unix_socket
    sink = StatsD::Instrument::Sink.for_addr(path, write_timeout: 1.0)
    began = Support.now
    sink << "a:1|c" until sink.telemetry[:packets_dropped_writer] >= 50
    sink.send_packets(["b:1|c"] * 50)
    assert_equal 100, sink.telemetry[:packets_dropped_writer]
    assert_operator Support.now - began, :<, 50
    # The queued messages are read. Then there is room, and the client waits for the next stuck server again.
    sent = sink.telemetry[:packets_sent]
    sent.times { assert_equal "a:1|c", socket.recv_nonblock(100) }
    sink << "c:1|c"
    assert_equal sent + 1, sink.telemetry[:packets_sent]
    assert_equal "c:1|c", socket.recv_nonblock(100)
  end

  def test_shutdown_waits_for_a_server_that_stands_still_no_longer_than_told
    path, = deaf_unix_socket
    inner = StatsD::Instrument::Sink.for_addr(path, write_timeout: 2.0)
    sink = StatsD::Instrument::BatchedSink.new(inner, max_packet_size: 10)
    100.times { sink << "a:1|c" }
    began = Support.now
    sink.shutdown(0.1)
    wait_until("what was under way") { sink.telemetry[:packets_sent] + sink.telemetry[:packets_dropped] == 100 }
    assert_operator Support.now - began, :<, DEADLINE
    assert_equal 100, sink.telemetry[:metrics]
  end

  def test_patience
    patience = StatsD::Instrument::Patience.new(5.0)
    assert_in_delta 5.0, patience.seconds
    patience.lose
    assert_in_delta 0.0, patience.seconds
    patience.regain
    assert_in_delta 5.0, patience.seconds
    patience.end_within(100)
    assert_in_delta 5.0, patience.seconds
    patience.end_within(0)
    assert_in_delta 0.0, patience.seconds
  end

  def test_messages_longer_than_a_packet_are_counted
    server = udp_server
    client = network_client(server, enable_aggregation: false)
    client.event("title", "x" * 2_000)
    client.increment("a")
    client.flush(sync: true)
    wait_until("the other message") { server.lines == ["a:1|c"] }
    assert_equal 1, client.telemetry[:dropped_oversize]
    sync = StatsD::Instrument::Sink.for_addr(server.address)
    sync << ("x" * 1_473)
    assert_equal 1, sync.telemetry[:dropped_oversize]
  end

  def test_messages_that_exactly_fill_packets
    server = udp_server
    sink = StatsD::Instrument::BatchedSink.for_addr(server.address, max_packet_size: 11)
    4.times { sink << "a:1|c" }
    sink << "b:12345|c|#"
    sink.flush(blocking: true)
    wait_until("all lines") { server.lines.size == 5 }
    server.packets_so_far.each { |packet| assert_operator packet.bytesize, :<=, 11 }
    assert_includes server.lines, "b:12345|c|#"
  ensure
    sink.shutdown
  end

  def test_bytes_and_text_share_packets
    server = udp_server
    sink = StatsD::Instrument::BatchedSink.for_addr(server.address)
    sink << "a\u00fc:1|c" << "b\xc3\xbc:1|c".b << "c\u00fc:1|c"
    sink.shutdown
    wait_until("all lines") { server.lines.size == 3 }
    assert_equal ["a\u00fc:1|c".b, "b\xc3\xbc:1|c".b, "c\u00fc:1|c".b], server.lines.map(&:b)
  end

  def test_a_full_queue_makes_the_caller_send
    server = lossless_server
    sink = StatsD::Instrument::BatchedSink.new(patient_sink(server), buffer_capacity: 1)
    1_000.times { sink << "a:1|c" }
    sink.flush(blocking: true)
    wait_until("all of them") { server.total("a") == 1_000 }
    assert_equal 0, sink.telemetry[:packets_dropped]
    assert_equal 1_000, sink.telemetry[:metrics]
  ensure
    sink.shutdown
  end

  def test_a_full_queue_can_drop_and_count
    server = udp_server
    gate = Mutex.new
    slow = StatsD::Instrument::Sink.for_addr(server.address)
    entered = Queue.new
    slow.define_singleton_method(:send_packet) do |packet|
      entered << packet
      gate.synchronize { super(packet) }
    end
    sink = StatsD::Instrument::BatchedSink.new(slow, buffer_capacity: 10, overflow: :drop)
    gate.synchronize do
      sink << "a:1|c"
      # With the first message the thread waits at the gate; ten of the others find room.
      entered.pop
      99.times { sink << "a:1|c" }
    end
    sink.flush(blocking: true)
    dropped = sink.telemetry[:packets_dropped_queue]
    assert_equal 89, dropped
    wait_until("what was not dropped") { server.total("a") == 100 - dropped }
    assert_equal dropped * 5, sink.telemetry[:bytes_dropped_queue]
    assert_equal dropped, sink.telemetry[:packets_dropped]
  ensure
    sink.shutdown
  end

  def test_wrong_options
    inner = StatsD::Instrument::Sink.for_addr(udp_server.address)
    error = assert_raises(ArgumentError) { StatsD::Instrument::BatchedSink.new(inner, overflow: :wait) }
    assert_equal "overflow must be one of [:sync, :drop], not :wait", error.message
    assert_raises(ArgumentError) { StatsD::Instrument::BatchedSink.new(inner, buffer_capacity: 0) }
  end

  def test_messages_after_shutdown_are_sent_by_the_caller
    server = udp_server
    sink = StatsD::Instrument::BatchedSink.for_addr(server.address)
    sink.shutdown
    sink << "a:1|c"
    wait_until("the message") { server.lines == ["a:1|c"] }
  end

  def test_a_killed_thread_is_replaced
    server = udp_server
    client = network_client(server)
    Thread.list.select { |thread| thread.name == "statsd-dispatcher" }.each { |thread| thread.kill.join }
    client.increment("a")
    client.force_flush
    wait_until("the message") { server.total("a") == 1 }
  end

  def test_threads_are_marked_as_fork_safe
    client = network_client(udp_server)
    client.increment("a")
    threads = Thread.list.select { |thread| thread.name&.start_with?("statsd-") }
    refute_empty threads
    threads.each { |thread| assert thread.thread_variable_get(:fork_safe), thread.inspect }
  end

  def test_statistics_about_batching
    server = udp_server
    sink = StatsD::Instrument::BatchedSink.for_addr(server.address, statistics_interval: 1000)
    3.times { sink << "a:1|c" }
    sink.flush(blocking: true)
    statistics = sink.instance_variable_get(:@dispatcher).instance_variable_get(:@statistics)
    datagrams = StatsD.singleton_client.capture { statistics.maybe_flush!(force: true) }
    names = %w[synchronous_sends batched_sends avg_buffer_length avg_batched_packet_size avg_batch_length]
    assert_equal(names.map { |name| "statsd_instrument.batched_udp_sink.#{name}" }, datagrams.map(&:name))
    assert_operator datagrams[1].value, :>=, 1
    assert_empty(StatsD.singleton_client.capture { statistics.maybe_flush! })
  ensure
    sink.shutdown
  end

  def test_log_null_and_capture
    log = StringIO.new
    sink = StatsD::Instrument::LogSink.new(Logger.new(log, formatter: ->(*, message) { "#{message}\n" }))
    sink << "a:1|c\n"
    assert_equal "[StatsD] a:1|c\n", log.string
    null = StatsD::Instrument::NullSink.new
    assert_same null, null << "a:1|c"
    capture = StatsD::Instrument::CaptureSink.new(parent: null)
    capture << "a:1|c"
    assert_equal ["a"], capture.datagrams.map(&:name)
    capture.clear
    assert_empty capture.datagrams
    [sink, null, capture].each do |one|
      assert one.sample?(0)
      one.flush(blocking: false)
    end
  end

  def test_drops_are_logged_once_in_a_while
    log = StringIO.new
    before = StatsD.logger
    StatsD.logger = Logger.new(log, level: Logger::WARN)
    sink = StatsD::Instrument::Sink.for_addr("unix://#{unix_path}")
    10.times { sink << "a:1|c" }
    assert_equal 1, log.string.lines.size, log.string
    assert_match(/a packet of 5 bytes was dropped: Errno::ENOENT/, log.string)
    assert_equal 10, sink.telemetry[:packets_dropped]
  ensure
    StatsD.logger = before
  end
end

class HostResolverTest < TestCase
  def test_a_name_is_followed_without_waiting_for_it
    old_server = udp_server
    new_server = udp_server
    answers = Queue.new
    answers << Addrinfo.udp("127.0.0.1", old_server.port)
    lookup = lambda do |_host, _port|
      answer = answers.pop
      raise answer if answer.is_a?(Exception)

      answer
    end
    resolver = StatsD::Instrument::HostResolver.new("agent", 1, refresh_interval: 0.001, lookup: lookup)
    sink = StatsD::Instrument::Sink.new(StatsD::Instrument::UdpConnection.new("agent", 1, resolver: resolver))
    sink << "a:1|c"
    # The lookup hangs, which no packet notices.
    wait_until("a lookup in the background") do
      sink << "a:1|c"
      answers.num_waiting.positive?
    end
    answers << SocketError.new("no answer")
    sink << "a:1|c"
    wait_until("another lookup") do
      sink << "a:1|c"
      answers.num_waiting.positive?
    end
    assert_equal 0, sink.telemetry[:packets_dropped]
    answers << Addrinfo.udp("127.0.0.1", new_server.port)
    wait_until("packets at the new address") do
      sink << "b:1|c"
      new_server.lines.include?("b:1|c")
    end
    wait_until("packets at the old address") { old_server.total("a") >= 2 }
  end

  def test_localhost_may_be_one_of_the_two_loopback_addresses
    first, server = port_of_both
    first.connect("127.0.0.1", 9)
    connection = StatsD::Instrument::UdpConnection.new("LocalHost.", server.local_address.ip_port)
    sink = StatsD::Instrument::Sink.new(connection)
    wait_until("a packet at the second address") do
      sink << "a:1|c"
      server.wait_readable(0.01)
    end
    refused = sink.telemetry[:packets_refused]
    assert_operator refused, :<=, 2
    server.recv(10)
    sink << "b:1|c"
    assert server.wait_readable(DEADLINE)
    assert_equal refused, sink.telemetry[:packets_refused]
  ensure
    [first, server].compact.each(&:close)
  end

  # A port of both addresses that refuses: its sockets take packets of one other port alone.
  def refusing_port
    port_of_both.each { |socket| socket.connect(socket.local_address.ip_address, 9) }
  end

  # A socket at each address, with the same port.
  def port_of_both
    first = held("127.0.0.1", 0)
    [first, held("::1", first.local_address.ip_port)]
  rescue Errno::EADDRINUSE
    retry
  rescue SystemCallError
    skip "this machine has no IPv6"
  end

  def held(address, port)
    socket = UDPSocket.new(Addrinfo.ip(address).afamily)
    socket.bind(address, port)
    # Before, the port might be one that others share.
    socket.setsockopt(:SOCKET, :REUSEPORT, true)
    socket
  end

  # A socket at a port that is held.
  def beside(address, port)
    socket = UDPSocket.new(Addrinfo.ip(address).afamily)
    socket.setsockopt(:SOCKET, :REUSEPORT, true)
    socket.bind(address, port)
    socket
  end

  def test_a_server_that_comes_back_at_localhost_is_found_after_a_packet
    skip "how a system refuses datagrams differs" unless RUBY_PLATFORM.include?("linux")
    held = refusing_port
    port = held.first.local_address.ip_port
    sink = StatsD::Instrument::Sink.new(StatsD::Instrument::UdpConnection.new("localhost", port))
    send = lambda do |line|
      sink << line
      # Longer than a pause between two addresses.
      sleep(0.02)
      nil
    end
    ["127.0.0.1", "::1"].each do |address|
      5.times { send.call("nobody:1|c") }
      refused = sink.telemetry[:packets_refused]
      assert_operator refused, :>, 0
      server = beside(address, port)
      wait_until("a packet at #{address}") { send.call("a:1|c") || server.wait_readable(0) }
      # One was under way before, and one went to the other address.
      assert_operator sink.telemetry[:packets_refused], :<=, refused + 2, address
      server.close
    end
  ensure
    held&.each(&:close)
  end

  def test_localhost_is_127_0_0_1_without_a_lookup
    server = udp_server
    sink = StatsD::Instrument::Sink.for_addr("localhost:#{server.port}")
    sink << "a:1|c"
    wait_until("the packet") { server.lines.include?("a:1|c") }
    refute_predicate StatsD::Instrument::HostResolver.new("localhost", 1), :refreshing?
  end

  def test_addresses_are_never_looked_up_again
    refute_predicate StatsD::Instrument::HostResolver.new("127.0.0.1", 1), :refreshing?
    refute_predicate StatsD::Instrument::HostResolver.new("::1", 1), :refreshing?
    refute_predicate StatsD::Instrument::HostResolver.new("agent", 1, refresh_interval: 0), :refreshing?
    assert_predicate StatsD::Instrument::HostResolver.new("agent", 1), :refreshing?
  end
end
