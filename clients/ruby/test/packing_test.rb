# frozen_string_literal: true

require_relative "test_helper"

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
