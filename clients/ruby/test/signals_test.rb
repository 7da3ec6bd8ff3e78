# frozen_string_literal: true

require_relative "test_helper"
require_relative "interruptions"

return if RUBY_ENGINE == "jruby" # signals reach the JVM first

# A signal arrives at each step of a call in turn, and its handler makes the same call.
class SignalsTest < TestCase
  include Interruptions

  CALLS = {
    "increment" => ->(client) { -> { client.increment("name") } },
    "increment by more" => ->(client) { -> { client.increment("name", 1.0) } },
    "increment with a rate" => ->(client) { -> { client.increment("name", sample_rate: ALMOST_ONE) } },
    "distribution" => ->(client) { -> { client.distribution("name", 1) } },
    "distribution with tags" => ->(client) { -> { client.distribution("name", 1, tags: { "b" => 1 }) } },
    "set" => ->(client) { -> { client.set("name", Object.new.object_id) } },
    "counter handle" => ->(client) { client.counter("name").method(:increment) },
    "sample handle" => lambda { |client|
      handle = client.distribution_handle("name")
      -> { handle.record(1) }
    },
    "compiled metric" => lambda { |_client|
      metric = Class.new(StatsD::Instrument::CompiledMetric::Counter) { define(name: "name", tags: { k: Integer }) }
      -> { metric.increment(k: 1) }
    }
  }.freeze

  # Calls made before, so that rings of samples are new, almost full and full.
  BEFORE = [0, 7, 8, 15].freeze

  def setup
    @singleton = StatsD.singleton_client
    @trap = Signal.trap("USR1") do
      @call.call
      @handled = true
    end
  end

  def teardown
    StatsD.singleton_client = @singleton
    Signal.trap("USR1", @trap || "DEFAULT")
  end

  def signal
    @handled = false
    Process.kill("USR1", Process.pid)
    wait_until("the handler") { @handled }
  end

  def round(step, maker, before)
    list = ListSink.new
    sink = StatsD::Instrument::BatchedSink.new(list)
    client = StatsD::Instrument::Client.new(sink: sink, aggregation_flush_interval: 3600.0)
    StatsD.singleton_client = client
    @call = maker.call(client)
    before.times { @call.call }
    reached = interrupted(step, method(:signal)) { @call.call }
    20.times { @call.call }
    client.flush(sync: true)
    assert_equal before + (reached ? 22 : 21), arrived(list, "name")
    @call.call
    client.flush(sync: true)
    assert_equal 1, arrived(list, "name")
    reached
  ensure
    client&.shutdown
  end

  def test_a_call_in_a_signal_handler_during_the_same_call
    with_events do
      CALLS.each do |what, maker|
        BEFORE.each do |before|
          every_step(1) { |step| round(step, maker, before) }
        rescue StandardError, Minitest::Assertion => e
          raise e, "#{what}, after #{before}: #{e.message}", e.backtrace
        end
      end
    end
  end
end
