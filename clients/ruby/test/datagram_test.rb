# frozen_string_literal: true

require_relative "test_helper"

class DatagramTest < TestCase
  Datagram = StatsD::Instrument::DogStatsDDatagram

  def check(source, **parts)
    datagram = Datagram.new(source)
    parts.each do |part, expected|
      actual = datagram.public_send(part)
      if expected.nil?
        assert_nil(actual,
                   "#{part} of #{source}")
      else
        assert_equal(expected, actual, "#{part} of #{source}")
      end
    end
  end

  def test_metrics
    check "a:1|c", type: :c, name: "a", value: 1, sample_rate: 1.0, tags: nil
    check "a:1.5|c", value: 1.5
    check "a:1.5|g|@0.5|#x,y:z", type: :g, value: 1.5, sample_rate: 0.5, tags: ["x", "y:z"]
    check "a:1:2.5|d\n", type: :d, value: [1.0, 2.5]
    check "a:x:y|s", type: :s, value: "x:y"
    check "a:1|c|#t|c:in-5|e:it-false|card:low|T1700000000",
          tags: ["t"], container_id: "in-5", external_data: "it-false", cardinality: "low",
          unix_timestamp: 1_700_000_000
  end

  def test_events
    check "_e{1,3}:t|a|b|h:host|d:1700000000|k:key|p:low|s:src|t:error|#x",
          type: :_e, name: "t", value: "a|b", hostname: "host", timestamp: Time.at(1_700_000_000).utc,
          aggregation_key: "key", priority: "low", source_type_name: "src", alert_type: "error", tags: ["x"]
    check "_e{2,6}:\u00fc|a\\nb\u00fc", name: "\u00fc", value: "a\nb\u00fc"
  end

  def test_checks
    check "_sc|n|2|h:host|d:1700000000|#x|m:text",
          type: :_sc, name: "n", value: 2, hostname: "host", message: "text", tags: ["x"]
  end

  def test_what_is_no_message
    ["", "a", "a:1", ":1|c", "a:|c", "a:1|x", "a@b:1|c", "a:1|c|zzz", "a:1|c|#", "_e{9,9}:a|b", "_e{0,1}:|b",
     "_sc|n|x", "_sc||0", "_e{1,1}:a|bx"].each do |source|
      error = assert_raises(ArgumentError, source) { Datagram.new(source).name }
      assert_includes error.message, source.inspect
    end
  end

  def test_equality
    assert_equal Datagram.new("a:1|c"), Datagram.new("a:1|c")
    assert_equal Datagram.new("a:1|c"), "a:1|c"
    refute_equal Datagram.new("a:1|c"), Datagram.new("a:2|c")
    refute_equal Datagram.new("a:1|c"), 1
    assert_equal 1, [Datagram.new("a:1|c"), Datagram.new("a:1|c")].uniq.size
    assert_equal '#<StatsD::Instrument::DogStatsDDatagram:"a:1|c">', Datagram.new("a:1|c").inspect
  end
end
