# frozen_string_literal: true

require_relative "test_helper"
require_relative "agent"

# The client sends the protocol cases that all languages share, and the agent and the client's
# own reader read it back.
class VectorsTest < TestCase
  Wire = StatsD::Instrument::Wire
  PATH = File.expand_path("../../../tests/vectors/protocol.jsonl", __dir__)
  METHODS = { "c" => :increment, "g" => :gauge, "ms" => :measure, "h" => :histogram, "d" => :distribution,
              "s" => :set }.freeze
  EVENT = { "ts" => :timestamp, "host" => :hostname, "agg_key" => :aggregation_key, "priority" => :priority,
            "source" => :source_type_name, "alert_type" => :alert_type, "tags" => :tags, "card" => :cardinality }.freeze
  CHECK = { "ts" => :timestamp, "host" => :hostname, "message" => :message, "tags" => :tags,
            "card" => :cardinality }.freeze

  def setup
    skip "the repository's vectors are not here" unless File.exist?(PATH)
  end

  # Messages as the vectors describe them, without the client's own options.
  def described
    all = File.foreach(PATH).flat_map { |line| JSON.parse(line).fetch("expect", []) }
    all.select { |one| one["kind"] }.map do |one|
      # A cardinality that no server knows is refused by the client.
      known = StatsD::Instrument::Client::CARDINALITIES.include?(one["card"])
      one.except("local", "external", *("card" unless known))
    end
  end

  # The client keeps out what would break a message.
  def cleaned(message)
    message = message.merge("name" => Wire.name(message["name"])) if message.key?("name")
    message = message.merge("tags" => message["tags"].map { |tag| Wire.tag(tag) }) if message["tags"]
    message.delete("tags") if message["tags"] && message["tags"].empty?
    message
  end

  def list_client(aggregation)
    sink = ListSink.new
    client = StatsD::Instrument::Client.new(sink: sink, enable_aggregation: aggregation,
                                            aggregation_flush_interval: 3600.0, aggregation_max_context_size: 100_000)
    (@clients ||= []) << client
    [client, sink]
  end

  def options_of(message)
    options = { tags: message["tags"], cardinality: message["card"] }.compact
    options.merge!(sample_rate: message["rate"], pre_sampled: true) if message["rate"]&.between?(0, 1)
    options[:timestamp] = message["ts"] if message["ts"] && %w[c g].include?(message["type"])
    options
  end

  def emit(client, message)
    case message["kind"]
    when "metric"
      values_of(message).each do |value|
        client.public_send(METHODS.fetch(message["type"]), message["name"], value, **options_of(message))
      end
    when "event"
      client.event(message["title"], message["text"], **renamed(message, EVENT))
    else
      client.service_check(message["name"], message["status"], **renamed(message, CHECK))
    end
  end

  def values_of(message)
    message["set"] ? [message["set"]] : message["values"]
  end

  def renamed(message, names)
    names.filter_map { |key, option| [option, message[key]] if message.key?(key) }.to_h
  end

  # One message for each value.
  def split(message)
    return [message] unless message["values"]

    message["values"].map { |value| message.merge("values" => [value]) }
  end

  def test_the_agent_reads_what_the_vectors_describe
    client, sink = list_client(false)
    expected = described.each { |message| emit(client, message) }.flat_map { |message| split(cleaned(message)) }
    lines = sink.to_a
    assert_operator lines.size, :>, 200
    assert_equal expected.size, lines.size
    read = Agent.parse(lines.join("\n"))
    lines.each_index { |index| assert_equal expected[index], read[index], lines[index] }
  end

  def test_the_agent_reads_the_same_through_aggregation
    metrics = described.select { |message| message["kind"] == "metric" && !message["ts"] }
    assert_operator metrics.size, :>, 100
    lines = metrics.flat_map do |message|
      client, sink = list_client(true)
      emit(client, message)
      flushed(client, sink)
    end
    assert_equal metrics.size, lines.size
    Agent.parse(lines.join("\n")).zip(metrics, lines) do |read, message, line|
      assert_equal in_order(aggregated(message)), in_order(read), line
    end
  end

  def aggregated(message)
    message = cleaned(message)
    case message["type"]
    when "c" then message.merge("values" => [message["values"].sum])
    when "g" then message.merge("values" => message["values"].last(1)).except("rate")
    else message
    end
  end

  # Equal sets of tags are one context, whatever their order.
  def in_order(message)
    message["tags"] ? message.merge("tags" => message["tags"].sort) : message
  end

  def test_the_reader_of_the_test_helpers_reads_them
    client = StatsD::Instrument::Client.new
    described.each do |message|
      client.capture { emit(client, message) }.zip(split(cleaned(message))) do |datagram, expected|
        assert_equal expected["name"] || expected["title"], datagram.name
        assert_equal expected.fetch("tags", []), datagram.tags.to_a
        next unless expected["kind"] == "metric"

        assert_equal expected["type"], datagram.type.to_s
        assert_equal values_of(expected).first, datagram.value
        assert_equal expected.fetch("rate", 1.0), datagram.sample_rate
        assert_equal expected["ts"].to_i, datagram.unix_timestamp.to_i
      end
    end
  end
end
