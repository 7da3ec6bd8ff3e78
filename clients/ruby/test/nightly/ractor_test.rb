# frozen_string_literal: true

require_relative "../test_helper"
require_relative "../columns_receiver"

return unless defined?(Ractor)

# Each Ractor has a client of its own. In processes of their own, because a process with Ractors behaves differently.
class RactorTest < TestCase
  ATTEMPTS = 3

  # The block gives the address of the server, once for each attempt.
  def in_ruby(code)
    output = status = nil
    ATTEMPTS.times do
      address = block_given? ? yield : "127.0.0.1:1"
      output, status = ruby(code, env: { "STATSD_ENV" => "production", "STATSD_ADDR" => address },
                                  arguments: ["-W:no-experimental"])
      break unless interpreter_crashed?(output, status)
    end
    assert_predicate status, :success?, output
    output
  end

  # Ractors are experimental: Ruby 3.1.2 itself crashes with them, about once in sixty runs on a busy machine, while it
  # marks objects, or the C library finds its heap damaged and aborts. In pure Ruby nothing else can have done it; a
  # crash with the extension on the stack is no such thing.
  def interpreter_crashed?(output, status)
    return Signal.list.values_at("ABRT", "SEGV", "BUS").include?(status.termsig) unless StatsD::Instrument::NATIVE

    output.include?("[BUG]") && !output[/^-- C level backtrace.*?\n\n/m].to_s.include?("weir_statsd_native")
  end

  def test_ractors_with_clients_of_their_own
    server = nil
    in_ruby(<<~RUBY) { (server = udp_server).address }
      require "statsd-instrument"
      ractors = Array.new(4) do |number|
        Ractor.new(ENV["STATSD_ADDR"], number) do |address, number|
          sink = StatsD::Instrument::BatchedSink.for_addr(address)
          StatsD::Instrument::Client.open(sink: sink, prefix: "r", aggregation_flush_interval: 0.01) do |client|
            StatsD.singleton_client = client
            handle = client.counter("handle", tags: { number: number })
            2_000.times do |round|
              client.increment("a", tags: { round: round % 3 })
              client.distribution("d", round) if round % 20 == 0
              client.gauge("g", round + 0.5)
              handle.increment
            end
            StatsD.increment("module", 2)
            StatsD.measure("block", tags: ["t"]) { nil }
            StatsD.event("title", "text")
            client.with_options(prefix: "clone") { |clone| clone.increment("a") }
            client.flush(sync: true)
          end
          :done
        end
      end
      2_000.times { StatsD.increment("main") }
      exit(1) unless ractors.map(&:take) == [:done] * 4
    RUBY
    wait_until("all of them") do
      server.total("r.a") == 8_000 && server.total("r.handle") == 8_000 && server.samples("r.d") == 400 &&
        server.total("main") == 2_000 && server.total("clone.a") == 4 && server.total("r.module") >= 8 &&
        server.samples("r.block") >= 4 && server.lines.grep(/\A_e/).size >= 4
    end
    assert_equal [8, 4, 4], [server.total("r.module"), server.samples("r.block"),
                             server.lines.grep(/\A_e\{7,4\}:r\.title\|text/).size]
  end

  def test_columns_of_ractors
    receiver = nil
    in_ruby(<<~RUBY) { (receiver = ColumnsReceiver.new).address }
      require "statsd-instrument"
      ractors = Array.new(3) do
        Ractor.new(ENV["STATSD_ADDR"]) do |address|
          sink = StatsD::Instrument::BatchedSink.for_addr(address)
          StatsD::Instrument::Client.open(sink: sink) do |client|
            500.times do |round|
              client.increment("a")
              client.distribution("d", round)
            end
            client.flush
          end
          :done
        end
      end
      exit(1) unless ractors.map(&:take) == [:done] * 3
    RUBY
    assert_equal [1_500, 1_500], [receiver.total("a"), receiver.samples("d")]
    assert_equal 3, receiver.payloads.map(&:client).uniq.size
  ensure
    receiver&.close
  end

  def test_without_a_client_the_error_says_what_to_do
    output = in_ruby(<<~RUBY)
      require "statsd-instrument"
      StatsD.increment("main")
      messages = [
        Ractor.new { StatsD.increment("a") rescue $!.message },
        Ractor.new { StatsD.event("a", "b") rescue $!.message },
        Ractor.new { StatsD.singleton_client rescue $!.message }
      ].map(&:take)
      puts messages
    RUBY
    assert_equal 3, output.lines.size, output
    output.each_line { |line| assert_match(/no StatsD client; give it one with `StatsD.singleton_client = /, line) }
  end

  def test_handles_of_the_main_ractor_stay_there
    output = in_ruby(<<~RUBY)
      require "statsd-instrument"
      HANDLE = StatsD.counter("a")
      puts(Ractor.new { HANDLE.increment rescue $!.class }.take)
    RUBY
    assert_equal "Ractor::IsolationError\n", output
  end
end
