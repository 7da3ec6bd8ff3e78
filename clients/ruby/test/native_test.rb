# frozen_string_literal: true

require_relative "test_helper"

return unless StatsD::Instrument::NATIVE

# Internal differences of the native code. All other tests show that its results are the same.
class NativeTest < TestCase
  Native = StatsD::Instrument::Native
  Wire = StatsD::Instrument::Wire

  def test_what_is_no_finite_number_is_left_out
    assert_nil Native.pack([Float::NAN, Float::INFINITY, -Float::INFINITY, 10**400, -10**308])
    assert_equal "1:2.5:3", Native.pack([Float::NAN, 1, Float::INFINITY, 2.5, "3", "x", nil])
  end

  def test_text_is_what_ruby_prints_for_common_numbers
    [0, 7, -7, 12.5, -12.5, 0.0, 100.0, 0.25, 123.456, 1_000_000.0].each do |number|
      assert_equal number.to_s, Native.pack([number])
    end
  end

  def map
    @map ||= Native::ContextMap.new("c".ord)
  end

  def cell
    Native::CounterCell.new(nil, nil)
  end

  def test_contexts_are_told_apart_by_content
    contexts = [
      ["a", nil], ["a", []], ["a", {}], %w[a t], ["a", :t], ["a", ["t"]], ["a", [:t]], ["a", %w[t u]], ["a", %w[u t]],
      ["a", { t: 1 }], ["a", { t: "1" }], ["a", { "t" => 1 }], ["a", { t: nil }], ["a", { t: 1, u: 2 }],
      ["a", { u: 2, t: 1 }], ["a", %w[tu]], ["b", ["t"]], [:a, ["t"]], ["a", ["\u00fc"]], ["a", ["\u00fc".b]]
    ]
    cells = contexts.map { |name, tags| [name, tags, cell] }
    stored = cells.map { |name, tags, one| map.store(name, tags, one) }
    again = cells.map { |name, tags, _| map.store(name.dup, tags.dup, cell) }
    assert_equal cells.map(&:last), stored
    assert_equal cells.map(&:last), again
    cells.each_with_index { |(name, tags, _), index| assert map.put(name, tags, index) }
    assert_equal((0...contexts.size).to_a, cells.map { |_, _, one| one.take.last })
    assert_equal contexts.size, map.length
  end

  def test_what_is_kept_cannot_be_changed_from_outside
    name = +"name"
    tags = [+"a"]
    kept = map.store(name, tags, cell)
    name << "!"
    tags[0] << "!"
    assert_nil map.put(name, tags, 1)
    assert map.put("name", ["a"], 1)
    assert_equal [1, 1], kept.take
  end

  def test_tags_that_are_not_plain_are_not_remembered
    [[Object.new], { a: [] }, Object.new, 5, [1e-300]].each do |tags|
      assert_nil map.store("a", tags, cell)
      assert_nil map.put("a", tags, 1)
    end
  end

  # Values that differ in their highest bits only, which a multiplication alone never brings down to the bits that
  # choose the bucket.
  def test_nobody_can_choose_tags_that_share_a_bucket
    count = 4_096
    crafted = {
      "Integers" => ->(i) { i << 45 },
      "negative Integers" => ->(i) { -(i << 45) - 1 },
      "Floats" => ->(i) { [(3 << 60) | ((i + 1) << 42)].pack("Q").unpack1("D") },
      "Symbols" => ->(i) { :"symbol#{i}" },
      "Strings" => ->(i) { [i << 45].pack("q") }
    }
    crafted.each do |what, value|
      [->(tag) { [tag] }, ->(tag) { { k: tag } }, ->(tag) { { tag => 1 } }, ->(tag) { [tag, "b"] }].each do |tags|
        map = Native::ContextMap.new("c".ord)
        count.times { |i| map.store("a", tags.call(value.call(i)), cell) }
        assert_equal count, map.length, what
        # At random there are 7 or 8; 20 come once in billions of runs.
        assert_operator map.longest_bucket, :<=, 20, what
      end
    end
  end

  def test_contexts_with_another_rate_come_while_old_ones_are_forgotten
    client, = list_client
    contexts = Native::Contexts.new(client, emitters: false)
    contexts.sweep = true
    sweeps = 0
    trace = TracePoint.new(:b_call) do |event|
      next unless event.method_id == :sweep && Thread.current == Thread.main

      sweeps += 1
      Thread.new { contexts.map_of(:c, sweeps / 100.0) }.join
    end
    trace.enable { contexts.sweep }
    assert_operator sweeps, :>, 0
  end

  def test_many_contexts_and_the_collector
    all = Array.new(3_000) do |index|
      tags = { "k#{index}" => "v#{index}" }
      [tags, map.store("name#{index % 7}", tags, cell)]
    end
    GC.start
    all.each_with_index { |(tags, _), index| assert map.put("name#{index % 7}", tags.to_a.to_h, index) }
    GC.start
    all.each_with_index { |(_, one), index| assert_equal [1, index], one.take }
  end

  # In a process of its own, where the collector has little to look at.
  def test_under_constant_collection
    code = <<~RUBY
      require "statsd-instrument"
      include StatsD::Instrument
      map = Native::ContextMap.new("c".ord)
      cell = -> { Native::CounterCell.new(nil, nil) }
      GC.stress = true
      6.times { |index| map.store("n\#{index}", { "a" => "x\#{index}", b: index }, cell.call) }
      put = Array.new(6) { |index| map.put("n\#{index}", { "a" => "x\#{index}", b: index }, 2**62) }
      samples = Native::SampleCell.new(nil, nil)
      20.times { |index| samples.put(index + 0.5) }
      taken = samples.take
      sums = cell.call
      8.times { |index| sums.put(index + 0.5) }
      sum = sums.take
      GC.stress = false
      p put.uniq, taken == Array.new(20) { |index| index + 0.5 }, Native.pack(taken.first(2)), sum
    RUBY
    output, = ruby(code, env: { "STATSD_ENV" => "test" })
    assert_equal "[true]\ntrue\n\"0.5:1.5\"\n[8, (32/1)]\n", output[0, 2_000]
  end

  # In a process of its own: with each allocation the collector looks at everything the tests before have left, and runs
  # their finalizers.
  def test_everything_while_each_allocation_collects
    code = <<~RUBY
      require "statsd-instrument"
      lines = []
      sink = Object.new
      sink.define_singleton_method(:sample?) { |_rate| true }
      sink.define_singleton_method(:<<) { |line| lines << line.dup }
      sink.define_singleton_method(:flush) { |blocking: false| }
      client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: true, aggregation_flush_interval: 3600.0)
      handles = [client.counter("hc", tags: { a: 1 }), client.gauge_handle("hg"), client.distribution_handle("hd")]
      work = proc do |round|
        client.increment("c", tags: { "k" => "v\#{round}", b: round })
        client.increment("c", 2**62, tags: ["x:\#{round}"])
        client.gauge("g", round + 0.5)
        client.distribution("d", round + 0.25, tags: "t:\#{round}")
        client.set("s", "member\#{round}")
        handles[0].increment
        handles[1].set(round)
        handles[2].record(round * 1.5)
      end
      work.call(0)
      GC.stress = true
      3.times(&work)
      client.force_flush
      GC.stress = false
      puts lines
    RUBY
    output, = ruby(code, env: { "STATSD_ENV" => "test" })
    lines = output.lines(chomp: true)
    assert_includes lines, "hc:4|c|#a:1"
    assert_equal 4, lines.sum { |line| line.start_with?("hd:") ? line.count(":") : 0 }
    { 0 => 2, 1 => 1, 2 => 1 }.each { |round, count| assert_includes lines, "c:#{count}|c|#b:#{round},k:v#{round}" }
    3.times { |round| assert_includes lines, "s:member#{round}|s" }
  end

  def test_sums_leave_the_machine_word_exactly
    one = cell
    3.times { one.put((2**62) - 1) }
    one.put(2**80)
    one.put(0.5)
    assert_equal [5, (3 * ((2**62) - 1)) + (2**80) + 0.5r], one.take
    assert_equal [0, 0], one.take
  end

  def test_a_full_cell_asks_for_a_flush
    core = Struct.new(:max_values, :asked) do
      def flush_cell(cell)
        self.asked += 1
        cell.take if asked > 1
      end
    end.new(4, 0)
    samples = Native::SampleCell.new(nil, nil, core)
    7.times { |index| samples.put(index) }
    # Nothing was taken at four, so it asks again at eight.
    assert_equal 1, core.asked
    samples.put(7)
    assert_equal [2, []], [core.asked, samples.take]
  end

  def test_the_queue_joins_messages_into_packets
    queue = Native::MessageQueue.new(6, 10)
    assert_nil queue.take
    %w[abcd efgh ij].each { |message| assert queue.push(message) }
    assert queue.push_packet("k\nl")
    assert_equal [false, true], [queue.push("x" * 11), queue.push("x" * 10)]
    assert queue.push("_e{1,1}")
    assert_nil queue.push("full")
    assert_equal 6, queue.length
    packets, items, messages, events, checks, waiting = queue.take
    assert_equal ["abcd\nefgh", "ij\nk\nl", "x" * 10, "_e{1,1}"], packets
    assert_equal [[2, 2, 1, 1], 5, 1, 0, 6], [items, messages, events, checks, waiting]
    assert_equal [0, nil], [queue.length, queue.take]
    assert queue.push("_sc|a|0")
    assert_equal [1, 0, 1], queue.take[2, 3]
    queue.push("gone")
    queue.clear
    assert_equal [0, nil], [queue.length, queue.take]
    queue.close
    assert_nil queue.push("closed")
    assert_predicate queue, :closed?
  end

  def test_a_queue_wakes_the_thread_that_waits
    queue = Native::MessageQueue.new(10, 100)
    taken = Queue.new
    thread = Thread.new { 3.times { queue.park && (taken << queue.take&.first) } }
    wait_until("the thread to sleep") { thread.status == "sleep" }
    queue.push("a")
    assert_equal ["a"], taken.pop
    queue.wake
    assert_nil taken.pop
    # A call that comes before the thread sleeps is not lost.
    queue.push("b")
    assert_equal ["b"], taken.pop
    thread.join
  end

  def test_many_packets_at_once
    server = unix_server
    sink = patient_sink(server)
    packets = Array.new(100) { |index| "a:#{index}|c" }
    sink.send_packets(packets)
    wait_until("all of them") { server.packets_so_far.size == 100 }
    assert_equal packets, server.packets_so_far
    assert_equal [100, packets.sum(&:bytesize)], [sink.telemetry[:packets_sent], sink.telemetry[:bytes_sent]]
  end

  def test_packets_the_kernel_refuses_are_dropped_one_by_one
    server = udp_server
    sink = StatsD::Instrument::Sink.for_addr(server.address)
    sink.send_packets(["a:1|c", "x" * 70_000, "b:1|c"])
    wait_until("the others") { server.lines.sort == ["a:1|c", "b:1|c"] }
    assert_equal [2, 1], [sink.telemetry[:packets_sent], sink.telemetry[:packets_dropped_writer]]
  end

  # Other threads go on while the kernel makes the sending thread wait.
  def test_sending_lets_other_threads_run
    receiver = Socket.new(Socket::AF_UNIX, Socket::SOCK_DGRAM)
    receiver.bind(Socket.pack_sockaddr_un(path = unix_path))
    connection = StatsD::Instrument::UdsConnection.new(path, write_timeout: DEADLINE.to_f)
    total = 64
    packets = Array.new(total) { "a:1|c#{"x" * 4_000}" }
    sender = Thread.new do
      position = 0
      position += connection.send_datagrams(packets, position).first while position < total
      position
    end
    # The kernel queues few datagrams; the rest waits for us, and we are allowed to run.
    total.times { assert_equal packets.first, receiver.recv(8_192) }
    assert_equal total, sender.value
    connection.close
    timeout = StatsD::Instrument::UdsConnection.new(path, write_timeout: 0.05)
    result = [1]
    result = timeout.send_datagrams(packets, 0) until result.first.zero?
    assert_equal [0, Errno::ETIMEDOUT.new, 0], result
  ensure
    timeout&.close
    receiver&.close
  end

  def test_an_emitter_writes_what_ruby_writes
    sink = StatsD::Instrument::BatchedSink.for_addr(unix_server.path, overflow: :drop)
    Thread.list.select { |thread| thread.name == "statsd-dispatcher" }.each { |thread| thread.kill.join }
    template = StatsD::Instrument::Template.new(:g, "a\u00fc:", "|g|#t:1")
    emitter = Native::Emitter.new(template, sink.dispatcher)
    values = [1, -5, 2.5, -0.25, 2**70, 1e30, 1e-9, 10.0, 3r, "7"]
    values.each { |value| assert emitter.put(value), value.inspect }
    [nil, Float::NAN, Object.new, "x"].each { |value| refute emitter.put(value), value.inspect }
    lines = sink.dispatcher.queue.take.first.join("\n").split("\n")
    expected = values.map { |value| "a\u00fc:#{Wire.number(value)}|g|#t:1".b }
    assert_equal expected, lines
  ensure
    sink&.shutdown
  end

  def test_arguments_of_the_wrong_kind
    assert_raises(TypeError) { Native.pack("x") }
    assert_raises(ArgumentError) { Native::CounterCell.new }
    assert_raises(TypeError) { map.store("a", nil, Object.new) }
    assert_raises(ArgumentError) { Native::MessageQueue.new(0, 1) }
    assert_raises(ArgumentError) { Native::Emitter.allocate.put(1) }
    assert_raises(TypeError) { Native.send_packets(0, [nil], 0, 1) }
    assert_equal [0, 0, 0], Native.send_packets(0, ["a"], 1, 1)
    assert_equal [0, Errno::EBADF::Errno, 0], Native.send_packets(-1, ["a"], 0, 1)
  end

  def sketch_state(sketch)
    [sketch.count, sketch.min, sketch.max, sketch.rest.bins]
  end

  def test_sketches_are_those_of_ruby
    columns = StatsD::Instrument::Columns
    random = Random.new(Support.seed)
    bounds = columns::Keys.table.bounds
    values = Array.new(3_000) { (random.rand - 0.4) * (10.0**random.rand(-12..18)) }
    values.concat(bounds, bounds.map(&:prev_float), bounds.map(&:-@), [0, 5, -7, 0.0, -0.0])
    values.shuffle!(random: random)
    # Each number of values has another range of bins, and above some thousands more than a sketch may have.
    [0, 1, 2, 9, 300, values.size].each do |count|
      mine, of_ruby = Array.new(2) { columns::Sketch.new(columns::Keys.table) }
      values.first(count).each_slice(250) do |part|
        bins, left = Native.bins(columns::Keys.table.packed, part)
        mine.add_bins(bins) if bins
        mine.add_each(left) if left
        part.each { |value| of_ruby.add(value.to_f) }
      end
      assert_equal count, mine.count
      assert_in_delta 1, mine.sum / of_ruby.sum, 1e-6 if count > 1
      assert_equal sketch_state(of_ruby), sketch_state(mine)
    end
  end

  def test_ruby_adds_what_bins_do_not_take
    table = StatsD::Instrument::Columns::Keys.table.packed
    odd = ["3", 10**30, 1e300, Float::NAN]
    assert_equal [nil, odd], Native.bins(table, odd)
    assert_equal [nil, nil], Native.bins(table, [])
    bins, left = Native.bins(table, odd.dup.insert(1, 2.0))
    assert_equal odd, left
    assert_equal [1, "\xCE\x15".b, "\x01"], bins.encode
    assert_equal [[1, 2.0], { 1383 => 1 }], [[bins.count, bins.sum], bins.counts]
    bins.release
    assert_equal [[0, "", ""], 1], [bins.encode, bins.count]
    assert_raises(ArgumentError) { Native.bins("x".b.freeze, []) }
    assert_raises(ArgumentError) { Native.bins(table.dup, []) }
    assert_raises(TypeError) { Native::SampleCell.new(nil, nil).fill(Object.new) }
    assert_raises(TypeError) { Native::Bins.new }
  end

  # Samples of a cell, as `take` and `take_bins` return them, with the number of those in bins.
  def taken(cell)
    [cell.take, cell.binned, cell.take_bins&.counts]
  end

  def test_cells_add_samples_to_bins_when_they_are_told
    table = StatsD::Instrument::Columns::Keys.table.packed
    cell = Native::SampleCell.new(nil, nil)
    [1, "3", 1.0].each { |value| cell.put(value) }
    # Samples that were kept go to bins as well, but for what bins do not take.
    cell.fill(table)
    cell.put(-1)
    assert_equal [["3"], 3, { 1338 => 2, -1338 => 1 }], taken(cell)
    assert_equal [[], 0, nil], taken(cell)
    # A range of before that has no place for the new value.
    [1e9, 1e-9, 1e9].each { |value| cell.put(value) }
    assert_equal [[], 3, { 2675 => 2, 1 => 1 }], taken(cell)
    cell.put(5)
    assert_equal [[], 1], [cell.take, cell.binned]
    cell.put(5)
    cell.fill(nil)
    cell.put(6)
    assert_equal [[5, 6], 0], [cell.take, cell.binned]
    assert_equal [1442], cell.take_bins.counts.keys
    cell.fill(table)
    cell.put(7)
    cell.take
    cell.reset
    cell.put(8)
    assert_equal [[8], 0, nil], taken(cell)
  end

  def test_cells_ask_for_a_flush_only_for_what_bins_do_not_take
    asked = 0
    core = Object.new
    core.define_singleton_method(:max_values) { 4 }
    core.define_singleton_method(:flush_cell) { |_| asked += 1 }
    cell = Native::SampleCell.new(nil, nil, core)
    cell.fill(StatsD::Instrument::Columns::Keys.table.packed)
    100.times { |value| cell.put(value) }
    assert_equal 0, asked
    assert_equal [[], 100], [cell.take, cell.binned]
    4.times { cell.put("1") }
    assert_equal 1, asked
  end
end
