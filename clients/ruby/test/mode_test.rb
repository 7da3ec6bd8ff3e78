# frozen_string_literal: true

require_relative "test_helper"
require_relative "interruptions"

return if RUBY_ENGINE == "jruby" # no events for lines there

# A client changes the way it handles calls while threads are in the middle of calls: capturing begins or ends, the
# client shuts down. Each test makes one call again and again, and lets another thread make the change at the first step
# of the library's code, then at the second, until the call is over before its turn comes. A call that is interrupted
# must be sent once, and the calls after it must follow the new way.
class ModeTest < TestCase
  include Interruptions

  # Another thread that captures, between two moments that the test chooses.
  class Capturing
    attr_reader :sink

    def initialize(client)
      @sink = client.capture_sink
      @begin = Queue.new
      @finish = Queue.new
      @done = Queue.new
      @thread = Thread.new do
        @begin.pop
        client.with_capture_sink(@sink) do
          @done << true
          @finish.pop
        end
        @done << true
      end
    end

    def enter
      @begin << true
      @done.pop
    end

    def leave
      @finish << true
      @done.pop
      @thread.join
    end

    def seen?(text)
      @sink.datagrams.any? { |datagram| datagram.source.start_with?(text) }
    end
  end

  def new_client(kind, list)
    sink = kind == :custom ? list : StatsD::Instrument::BatchedSink.new(list)
    StatsD::Instrument::Client.new(
      sink: sink, enable_aggregation: kind != :direct, aggregation_flush_interval: 3600.0
    )
  end

  # Kinds of calls: each takes the client and a name, and returns a lambda that makes one call.
  CALLS = {
    "increment" => ->(client, name) { -> { client.increment(name) } },
    "increment with tags" => ->(client, name) { -> { client.increment(name, tags: { "b" => 1, "a" => 2 }) } },
    "increment with a rate" => ->(client, name) { -> { client.increment(name, sample_rate: ALMOST_ONE) } },
    "increment without prefix" => ->(client, name) { -> { client.increment(name, no_prefix: true) } },
    "gauge" => ->(client, name) { -> { client.gauge(name, 1, sample_rate: 1.0) } },
    "distribution" => ->(client, name) { -> { client.distribution(name, 1) } },
    "set" => ->(client, name) { -> { client.set(name, Object.new.object_id) } },
    "block" => ->(client, name) { -> { client.measure(name) { nil } } },
    "event" => ->(client, name) { -> { client.event(name, "text") } },
    "counter handle" => ->(client, name) { client.counter(name).method(:increment) },
    "sampled handle" => ->(client, name) { client.counter(name, sample_rate: ALMOST_ONE).method(:increment) },
    "gauge handle" => lambda { |client, name|
      handle = client.gauge_handle(name)
      -> { handle.set(1) }
    },
    "sample handle" => lambda { |client, name|
      handle = client.distribution_handle(name)
      -> { handle.record(1) }
    },
    "set handle" => lambda { |client, name|
      handle = client.set_handle(name)
      -> { handle.add(Object.new.object_id) }
    },
    "handle of another thread" => lambda { |client, name|
      handle = client.counter(name)
      Thread.new { handle.increment(0) }.join
      -> { handle.increment }
    },
    "handle that knows its thread" => lambda { |client, name|
      handle = client.counter(name)
      handle.increment(0)
      -> { handle.increment }
    },
    "compiled metric" => lambda { |_client, name|
      metric = Class.new(StatsD::Instrument::CompiledMetric::Counter) { define(name: name, tags: { k: Integer }) }
      -> { metric.increment(k: 1) }
    },
    "compiled metric without tags" => lambda { |_client, name|
      metric = Class.new(StatsD::Instrument::CompiledMetric::Counter) { define(name: name) }
      -> { metric.increment }
    }
  }.freeze

  def check_arrived(expected, client, list, name)
    client.flush(sync: true)
    counted = arrived(list, name)
    assert_equal expected, counted unless counted == Float::INFINITY
  end

  def check_captured(expected, capturing, what, name)
    text = what == "event" ? "_e{#{name.bytesize},4}:#{name}" : name
    assert_equal expected, capturing.seen?(text), "captured"
    capturing.sink.clear
  end

  # For the other sinks, those calls that take a way of their own there.
  FEW = ["increment", "increment with a rate", "block", "event", "counter handle", "compiled metric"].freeze

  def each_call(kinds)
    with_events do
      kinds.each do |kind|
        CALLS.each { |what, maker| yield(kind, what, maker) if kind == :batched || FEW.include?(what) }
      end
    end
  end

  # @yield [client, list, call, step, name, what]
  def each_case(kinds = %i[batched custom direct])
    before = StatsD.singleton_client
    each_call(kinds) do |kind, what, maker|
      every_step do |step|
        list = ListSink.new
        client = new_client(kind, list)
        StatsD.singleton_client = client
        yield(client, list, maker.call(client, "name"), step, "name", what)
      rescue StandardError, Minitest::Assertion => e
        raise e, "#{kind}, #{what}: #{e.message}", e.backtrace
      ensure
        client.shutdown
      end
    end
  ensure
    StatsD.singleton_client = before
  end

  def test_capturing_begins_during_a_call
    each_case do |client, list, call, step, name, what|
      capturing = Capturing.new(client)
      reached = interrupted(step, capturing.method(:enter)) { call.call }
      capturing.enter unless reached
      capturing.sink.clear
      call.call
      check_captured(true, capturing, what, name)
      capturing.leave
      call.call
      check_captured(false, capturing, what, name)
      check_arrived(3, client, list, name)
      reached
    end
  end

  def test_capturing_ends_during_a_call
    each_case do |client, list, call, step, name, what|
      capturing = Capturing.new(client)
      capturing.enter
      reached = interrupted(step, capturing.method(:leave)) { call.call }
      capturing.leave unless reached
      capturing.sink.clear
      2.times { call.call }
      check_captured(false, capturing, what, name)
      check_arrived(3, client, list, name)
      reached
    end
  end

  def test_capturing_begins_and_ends_during_a_call
    each_case(%i[batched]) do |client, list, call, step, name, what|
      capturing = Capturing.new(client)
      change = lambda do
        capturing.enter
        capturing.leave
      end
      reached = interrupted(step, change) { call.call }
      change.call unless reached
      capturing.sink.clear
      2.times { call.call }
      check_captured(false, capturing, what, name)
      check_arrived(3, client, list, name)
      reached
    end
  end

  def test_aggregation_ends_during_a_call
    each_case do |client, list, call, step, name|
      core = client.aggregating_core
      stop = lambda do
        # The first half of a shutdown; the rest waits for threads.
        core&.instance_variable_set(:@stopping, true)
        client.refresh_mode
      end
      reached = interrupted(step, stop) { call.call }
      stop.call unless reached
      check_arrived(1, client, list, name)
      call.call
      client.sink.flush(blocking: true)
      # Nobody flushes any more, so the message must be on its way.
      counted = arrived(list, name)
      assert_equal 1, counted unless counted == Float::INFINITY
      reached
    end
  end

  def test_threads_capture_at_the_same_time
    client, list = list_client
    first = Capturing.new(client)
    second = Capturing.new(client)
    first.enter
    second.enter
    first.leave
    client.increment("a")
    assert second.seen?("a:")
    second.leave
    client.increment("a")
    assert_equal 1, second.sink.datagrams.size
    assert_empty first.sink.datagrams
    assert_equal ["a:1|c", "a:1|c"], flushed(client, list)
    assert_same list, client.sink
  end
end
