# frozen_string_literal: true

require_relative "test_helper"

class WireTest < TestCase
  Wire = StatsD::Instrument::Wire

  def check_name(expected, name)
    assert_equal expected, Wire.name(name), name.inspect
    assert_predicate Wire.name(name), :valid_encoding?
  end

  def check_tags(expected, tags, **options)
    if expected.nil?
      assert_nil Wire.tags(tags, **options), tags.inspect
    else
      assert_equal expected, Wire.tags(tags, **options), tags.inspect
    end
  end

  def test_names
    check_name "a.b", "a.b"
    check_name "a_b_c_d_e", "a:b|c@d\ne"
    check_name "sym", :sym
    check_name "StatsD::Instrument".tr(":", "_"), StatsD::Instrument
    check_name "caf\u00e9", "caf\u00e9"
    check_name "caf\u00e9", "caf\u00e9".b
    check_name "caf\u00e9", "caf\u00e9".encode("ISO-8859-1")
    check_name "a?b", "a\xffb"
    check_name "a?b", "a\xffb".b
    check_name "_e_1,1}_x", "_e{1,1}:x"
  end

  def test_tags
    check_tags nil, nil
    check_tags nil, []
    check_tags nil, {}
    check_tags nil, ""
    check_tags nil, ["|", ","]
    check_tags "a:1,b:2", { a: 1, "b" => "2" }
    check_tags "a:", { a: nil }
    check_tags "b,a", %w[b a]
    check_tags "a,b", %w[b a], sort: true
    check_tags "a,b", "a,b"
    check_tags "a_b_c", "a|b#c"
    check_tags "ab", "a\nb"
    check_tags "sym", :sym
    check_tags "xy,z#", ["x|y", "z#,\n"]
    check_tags "k1:v1", { "k|1" => "v,1" }
    check_tags "a?b", ["a\xffb"]
    check_tags "a:\u00fc", { a: "\u00fc".encode("UTF-16LE") }
    check_tags "a", ["a"].freeze
    check_tags "1,true", [1, true]
  end

  # Each was one tag, in the form for programmers.
  def test_tags_in_tags
    check_tags "a,b,c", ["a", ["b", ["c"]]]
    check_tags "a,b:1,c:2", ["a", { b: 1, "c" => 2 }]
    check_tags "a,b:1", ["a", [], [{ b: 1 }], {}]
    check_tags "a,b", [["b", "|"], "a"], sort: true
    recursive = ["a"]
    recursive << recursive
    assert_equal %w[a a a a], Wire.tag_list(recursive).first(4)
    [{ enable_aggregation: true }, { enable_aggregation: false }].each do |options|
      client, sink = list_client(**options)
      tags = ["z", ["b"], { c: 1 }]
      2.times { client.increment("n", tags: tags) }
      client.counter("n", tags: tags).increment
      expected = options[:enable_aggregation] ? ["n:3|c|#b,c:1,z"] : (["n:1|c|#z,b,c:1"] * 3)
      assert_equal expected, flushed(client, sink)
      client.event("t", "x", tags: tags)
      assert_equal ["_e{1,1}:t|x|#z,b,c:1"], sink.to_a
    end
  end

  def test_numbers
    { 1 => "1", -2 => "-2", 1.5 => "1.5", 1e300 => "1.0e+300", "3.5" => "3.5", "-.5e3" => "-.5e3",
      Rational(1, 4) => "0.25", Rational(4, 2) => "2", Complex(1, 0) => nil, nil => nil, true => nil,
      "abc" => nil, "1 " => nil, "0x10" => nil, "1_000" => nil, "" => nil, Object.new => nil,
      Float::NAN => nil, Float::INFINITY => nil, -Float::INFINITY => nil, 10**40 => (10**40).to_s,
      10**400 => nil, "1e400" => nil }.each do |value, text|
      if text.nil?
        assert_nil Wire.number(value), value.inspect
      else
        assert_equal text, Wire.number(value), value.inspect
      end
    end
  end

  def test_sums_of_floats_are_exact
    sum = Array.new(10) { Wire.exact(0.1) }.sum
    assert_equal "1", Wire.sum(sum)
    assert_equal "0.3", Wire.sum(Wire.exact(0.1) + Wire.exact(0.2))
    assert_equal "3", Wire.sum(3r)
    assert_equal "7", Wire.sum(7)
  end

  def test_only_tags_that_cannot_change_secretly_are_memo_keys
    assert Wire.stable?({ a: "b", "c" => 1, d: nil, e: true })
    assert Wire.stable?(["a", :b])
    assert Wire.stable?("a")
    refute Wire.stable?([Object.new])
    refute Wire.stable?({ a: 1.0 })
    refute Wire.stable?({}.compare_by_identity)
  end

  def test_members_of_sets
    assert_equal "ab", Wire.member("a|b\n")
    assert_equal "12", Wire.member(12)
    assert_nil Wire.member("")
    assert_nil Wire.member(nil)
    assert_nil Wire.member("|")
  end
end

# The text of many samples in one line.
class PackingTest < TestCase
  Backend = StatsD::Instrument::Backend

  # Text may differ, the numbers may not.
  def check(values)
    text = Backend.pack(values)
    assert_equal values.map { |one| Float(one) }, text.split(":").map { |one| Float(one) }, values.inspect
    refute_match(/[^0-9.:eE+-]/, text)
    text
  end

  def test_numbers_read_back_as_they_were
    random = Random.new(seed = Support.seed)
    assert_nil Backend.pack([])
    check([0, -1, 1, 2**61, -2**61, 2**62, -2**62, 2**70])
    check([0.0, -0.0, 0.1, -0.5, 1e-6, 5e-7, 4e-7, 1e-7, 999_999_999.999999, 1e9, 1e15, 1e16, 1e300, 5e-324])
    floats = Array.new(3_000) { random.rand * (10**random.rand(-10..20)) * [1, -1].sample(random: random) }
    rounded = floats.map { |float| float.round(random.rand(0..8)) }
    check(floats)
    check(rounded)
    rounded.first(300).each { |float| check([float]) }
    rounded.map(&:abs).each_slice(7) { |some| check(some) }
  rescue Minitest::Assertion
    warn "seed #{seed}"
    raise
  end

  def test_times_of_blocks_read_back_as_they_were
    random = Random.new(seed = Support.seed)
    [1e-6, 1.0, 1e3, 1e9].each do |longest|
      # A clock's milliseconds, of a machine that has run for a year.
      times = Array.new(2_000) do
        start = random.rand(3.2e10)
        ((start + random.rand(longest)) - start).round(6)
      end
      times.each_slice(250) { |some| check(some) }
    end
    check(Array.new(200_000) { |index| (index / 1e6).round(6) })
  rescue Minitest::Assertion
    warn "seed #{seed}"
    raise
  end

  def test_short_numbers_stay_short
    halves = Array.new(100) { |index| index + 0.5 }
    assert_equal halves.join(":").size, check(halves).size
    assert_equal "0.000123:12.5:7.000001", check([0.000123, 12.5, 7.000001])
  end
end
