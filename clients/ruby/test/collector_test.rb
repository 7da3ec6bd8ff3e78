# frozen_string_literal: true

require_relative "test_helper"

# Objects that the client keeps must survive the garbage collector, and released ones must be collected.
class CollectorTest < TestCase
  Client = StatsD::Instrument::Client

  def collect_garbage
    return GC.start unless RUBY_ENGINE == "jruby"

    # There GC.start is only a hint that is not taken.
    require "java"
    Java::JavaLang::System.gc
  end

  # A forked child called `after_fork` of a client that the collector had condemned and not yet swept, and whose
  # aggregator was already gone. Weak maps of Ruby 3.1 hand such objects out when their values are not the keys
  # themselves; in processes of their own because the interpreter then crashes.
  def test_condemned_clients_are_not_met_again
    code = <<~RUBY
      require "statsd-instrument"
      include StatsD::Instrument
      sink = NullSink.new
      make = lambda do
        Array.new(150) do
          client = Client.new(sink: sink, enable_aggregation: true, aggregation_flush_interval: 3600.0)
          client.aggregating_core.shutdown(1)
          nil
        end
      end
      rest = []
      40.times do
        make.call
        GC.start(immediate_sweep: false)
        20.times { rest << Object.new << "x" * 30 }
        ForkTracker.after_fork
        rest.clear
      end
      puts "survived"
    RUBY
    output, = ruby(code, env: { "STATSD_ENV" => "test" })
    assert_equal "survived\n", output[0, 2_000]
  end

  def test_a_weak_set_has_no_condemned_objects
    code = <<~RUBY
      require "statsd-instrument"
      Thing = Struct.new(:part)
      kept = Array.new(5) { |index| Thing.new("part \#{index}") }
      set = StatsD::Instrument::WeakSet.new
      kept.each { |thing| set.add(thing) }
      rest = []
      200.times do
        200.times { set.add(Thing.new(["part"])) }
        GC.start(immediate_sweep: false)
        20.times { rest << Object.new << "x" * 30 << [1, 2, 3, 4] }
        set.to_a.each { |thing| thing.part.size }
        rest.clear
      end
      p (kept - set.to_a).size
    RUBY
    output, = ruby(code, env: { "STATSD_ENV" => "test" })
    assert_equal "0\n", output[0, 2_000]
  end

  def test_a_weak_set_forgets
    set = StatsD::Instrument::WeakSet.new
    100.times { set.add(Object.new) }
    kept = Object.new
    2.times { set.add(kept) }
    wait_until("the collector") do
      collect_garbage
      set.to_a.size < 20
    end
    assert_includes set.to_a, kept
    assert_equal set.to_a.size, set.to_a.uniq.size
  end

  # In a process of its own, where the collector has little to look at: each fork collects and compacts its whole heap.
  def test_many_forks_of_a_process_that_makes_and_drops_clients
    skip "no fork here" unless Support::FORKS
    server = lossless_server
    code = <<~RUBY
      require "statsd-instrument"
      include StatsD::Instrument
      make = lambda do |sink|
        Client.new(sink: sink, enable_aggregation: true, aggregation_flush_interval: 3600.0).increment("a")
      end
      batched = BatchedSink.new(Sink.for_addr(ARGV[0], write_timeout: 60.0))
      client = Client.new(sink: batched, aggregation_flush_interval: 3600.0)
      handle = client.counter("handle")
      sink = NullSink.new
      Integer(ARGV[1]).times do |round|
        10.times { make.call(sink) }
        client.increment("a", tags: { round: round % 5 })
        GC.start(immediate_sweep: false) if round.even?
        pid = fork do
          GC.compact if round % 8 == 7 && GC.respond_to?(:compact)
          client.increment("a", tags: { round: round % 5 })
          client.distribution("d", round)
          handle.increment
          GC.start
          client.shutdown(60)
          exit!(0)
        end
        abort("fork \#{round} failed") unless Process.wait2(pid).last.success?
      end
      client.flush(sync: true)
    RUBY
    forks = 40
    output, status = ruby(code, env: { "STATSD_ENV" => "test" }, after: [address_of(server), forks.to_s])
    assert_predicate status, :success?, output
    assert_empty output
    wait_until("all of them") do
      server.total("a") >= 2 * forks && server.total("handle") >= forks && server.samples("d") >= forks
    end
    assert_equal [2 * forks, forks, forks], [server.total("a"), server.total("handle"), server.samples("d")]
  end

  # Clients that are dropped leave finalizers; one that waits for a thread stops whatever it has interrupted.
  def test_finalizers_wait_for_nothing
    code = <<~RUBY
      require "statsd-instrument"
      StatsD.logger = Logger.new(File::NULL)
      waited = []
      watch = Module.new { define_method(:join) { |*a| waited << caller.first(12) && super(*a) } }
      Thread.prepend(watch)
      20.times do
        sink = StatsD::Instrument::BatchedSink.for_addr("127.0.0.1:9")
        2.times { StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 3600.0).increment("a") }
      end
      before = Thread.list.size
      20.times { GC.start; Array.new(100) { Object.new }; Thread.pass }
      deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 60
      sleep(0.01) until Thread.list.size < before - 20 || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
      p Thread.list.size < before - 20, waited
    RUBY
    output, = ruby(code, env: { "STATSD_ENV" => "test" })
    assert_equal "true\n[]\n", output[0, 2_000]
  end

  # The collector may run finalizers where a signal handler would run, and a lock cannot be taken there.
  def test_finalizers_send_the_rest_where_nothing_can_be_locked
    skip "signals reach the JVM first" if RUBY_ENGINE == "jruby"
    list = ListSink.new
    sink = StatsD::Instrument::BatchedSink.new(list)
    dispatcher = sink.dispatcher
    dispatcher.instance_variable_get(:@dispatcher_thread).kill.join
    sink << "a:1|c"
    result = nil
    before = Signal.trap("USR1") do
      dispatcher.finalize
      result = :done
    rescue ThreadError => e
      result = e
    end
    Process.kill("USR1", Process.pid)
    wait_until("the handler") { result }
    assert_equal :done, result
    wait_until("the message") { list.lines.size == 1 }
  ensure
    Signal.trap("USR1", before || "DEFAULT") if RUBY_ENGINE == "ruby"
  end

  # In a process of its own: extensions of test tools do not survive having their objects moved.
  def test_cells_survive_compaction
    skip "no compaction here" unless GC.respond_to?(:compact) && RUBY_ENGINE == "ruby"
    code = <<~RUBY
      require "statsd-instrument"
      lines = []
      sink = Object.new
      sink.define_singleton_method(:sample?) { |_rate| true }
      sink.define_singleton_method(:<<) { |line| lines << line.dup }
      sink.define_singleton_method(:flush) { |blocking: false| }
      client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: true, aggregation_flush_interval: 3600.0)
      handle = client.timer("t")
      5.times do |round|
        50.times do |index|
          client.increment("c", tags: { "k\#{index}" => "v" })
          client.increment("e", tags: ["k:\#{index}", "short"])
          handle.record(index + 0.5)
        end
        GC.verify_compaction_references(toward: :empty, double_heap: true) if round == 2
        GC.compact
      end
      client.force_flush
      50.times do |index|
        raise "c\#{index}" unless lines.include?("c:5|c|#k\#{index}:v")
        raise "e\#{index}" unless lines.include?("e:5|c|#k:\#{index},short")
      end
      p lines.sum { |line| line.start_with?("t:") ? line.split("|").first.count(":") : 0 }
    RUBY
    output, = ruby(code, env: { "STATSD_ENV" => "test" })
    assert_equal "250\n", output[0, 2_000]
  end
end
