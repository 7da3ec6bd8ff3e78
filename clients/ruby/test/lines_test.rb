# frozen_string_literal: true

require_relative "test_helper"
require_relative "agent"

# Every line the client produces, from any arguments, is accepted by the real agent.
# `ruby test/lines_test.rb --seconds 60` goes on for a minute.
class LinesTest < TestCase
  SECONDS = ARGV.include?("--seconds") ? Float(ARGV.slice!(ARGV.index("--seconds"), 2).last) : 0

  TEXTS = [
    "", "a", "a.b_c", "|", ":", ",", "#", "@", "\n", "\r", "\r\n", "\\n", "a|b:c,d#e@f\ng", "_e{1,2}:", "_e{", "_sc",
    "_sc|a",
    "\u00fc", "\u{1f600}", "\xff", "a\xffb", "\xff\xfe".b, "\u00fc".encode("UTF-16LE"), "\u00fc".encode("ISO-8859-1"),
    "\u0000", "x" * 300, " ", "T1", "@0.5", "c:1", "card:low", "m:x", "|m:x", "host:h", "1:2:3"
  ].freeze
  NUMBERS = [0, 1, -1, 2**70, -2**40, 0.0, -0.0, 1.5, -2.25, 1e-9, 1e300, 5e-324, Float::MAX, Float::NAN,
             Float::INFINITY, -Float::INFINITY, nil, true, "3", "x", "1e5", "", Rational(1, 3), Object.new].freeze
  RATES = [nil, nil, nil, 1.0, 1, 0.5, 0.001, 2.0].freeze

  def text(random)
    return TEXTS.sample(random: random) if random.rand < 0.7

    Array.new(1 + random.rand(3)) { TEXTS.sample(random: random).b }.join.force_encoding(Encoding::UTF_8)
  end

  def tag_value(random)
    random.rand < 0.6 ? text(random) : [1, nil, true, :sym, 2.5, Float::NAN, Object, -7].sample(random: random)
  end

  def tags(random)
    case random.rand(7)
    when 0, 1 then nil
    when 2 then Array.new(random.rand(4)) { tag_value(random) }
    when 3 then Array.new(random.rand(4)) { [tag_value(random), tag_value(random)] }.to_h.freeze
    when 4 then text(random)
    when 5 then :a_symbol
    else { a: text(random), "b" => 1 }
    end
  end

  def emit(client, random)
    options = { tags: tags(random), no_prefix: random.rand < 0.1 }
    options[:cardinality] = %w[none low orchestrator high].sample(random: random) if random.rand < 0.1
    name = text(random)
    number = NUMBERS.sample(random: random)
    case random.rand(9)
    when 0 then client.increment(name, number, sample_rate: RATES.sample(random: random), **options)
    when 1 then client.gauge(name, number, **options)
    when 2 then client.measure(name, number, sample_rate: RATES.sample(random: random), **options)
    when 3 then client.histogram(name, number, **options)
    when 4 then client.distribution(name, number, sample_rate: RATES.sample(random: random), **options)
    when 5 then client.set(name, [text(random), number].sample(random: random), **options)
    when 6 then client.gauge(name, number, timestamp: [Time.now, 0, -5, 1_700_000_000].sample(random: random),
                                           **options)
    when 7
      client.event(name, text(random), hostname: text(random), aggregation_key: text(random),
                                       priority: %w[low normal].sample(random: random), alert_type: "error",
                                       source_type_name: text(random), timestamp: 5, **options)
    else
      client.service_check(name, %i[ok warning critical unknown].sample(random: random),
                           message: text(random), hostname: text(random), timestamp: Time.at(5), **options)
    end
  end

  def clients(sink)
    common = { sink: sink, aggregation_flush_interval: 3600.0, external_data: "it-false,cn-a|b", container_id: "in-5" }
    [
      StatsD::Instrument::Client.new(enable_aggregation: true, prefix: "p:r|e\n", default_tags: { "d|" => "e,f" },
                                     **common),
      StatsD::Instrument::Client.new(enable_aggregation: false, default_tags: ["x|y"], cardinality: "low", **common),
      StatsD::Instrument::Client.new(enable_aggregation: true, **common)
    ]
  end

  # Catches every message on its way to the socket, so that the queue's packing takes part.
  class KeepingConnection
    attr_reader :packets

    def initialize = @packets = Queue.new
    def max_packet_size = 1_472
    def send_datagram(packet) = @packets << packet.dup
    def close; end
    def type = :kept
    def host = nil
    def port = nil
  end

  def check(seed, calls)
    random = Random.new(seed)
    connection = KeepingConnection.new
    sink = StatsD::Instrument::BatchedSink.new(StatsD::Instrument::Sink.new(connection))
    all = clients(sink)
    calls.times { emit(all.sample(random: random), random) }
    all.each { |client| client.flush(sync: true) }
    packets = Array.new(connection.packets.size) { connection.packets.pop }
    refute_empty packets, "seed #{seed}"
    packets.each { |packet| assert_operator packet.bytesize, :<=, 1_472, "seed #{seed}" }
    verify(packets, seed)
  ensure
    all&.each(&:shutdown)
  end

  # The agent reads lines, so packets can be judged together.
  def verify(packets, seed)
    lines = packets.flat_map { |packet| packet.b.split("\n".b) }
    results = Agent.parse(lines.join("\n"))
    assert_equal lines.size, results.size, "seed #{seed}"
    lines.zip(results) do |line, result|
      refute result.key?("error"), "seed #{seed}: #{line.inspect} is rejected: #{result["error"]}"
    end
  end

  def test_every_line_is_accepted
    rounds = 0
    deadline = Support.now + SECONDS
    loop do
      check((Support.seed + rounds) % (2**32), 400)
      rounds += 1
      break if rounds >= 6 && Support.now >= deadline
    end
  end
end
