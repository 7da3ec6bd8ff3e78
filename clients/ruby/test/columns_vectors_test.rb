# frozen_string_literal: true

require_relative "test_helper"
require_relative "columns_receiver"
require "json"

# The sketches and payloads of tests/vectors, which the agent and the other clients read, too.
class ColumnsVectorsTest < TestCase
  include StatsD::Instrument

  VECTORS = File.expand_path("../../../tests/vectors", __dir__)
  Keys = Columns::Keys

  def sketch(values = [])
    sketch = Columns::Sketch.new(Keys.table)
    values = values.map(&:to_f)
    bins, left = Backend.bins(Keys.table.packed, values)
    sketch.add_bins(bins) if bins
    sketch.add_each(left) if left
    sketch
  end

  def parts(sketch)
    sketch.rest.bins
  end

  def each_vector
    File.foreach(File.join(VECTORS, "sketches.jsonl")).count { |line| yield JSON.parse(line) }
  end

  def test_sketches_are_the_agents
    seen = each_vector do |vector|
      case vector["id"]
      when "boundaries" then check_boundaries(vector)
      when "keys" then check_keys(vector["keys"])
      when "collapsed" then check_collapsed(vector)
      else check_sketch(vector)
      end
    end
    assert_operator seen, :>=, 11
  end

  def check_boundaries(vector)
    bounds = Keys.table.bounds.drop(1)
    digest = bounds.pack("E*").each_byte.inject(0xcbf29ce484222325) do |hash, byte|
      ((hash ^ byte) * 0x100000001b3) & 0xFFFF_FFFF_FFFF_FFFF
    end
    assert_equal [vector["keys"], vector["fnv1a"]], [bounds.size, format("%016x", digest)]
  end

  def check_keys(pairs)
    assert_operator pairs.size, :>=, 40
    pairs.each do |value, key|
      assert_equal key, Keys.table.key(value.to_f), value
      assert_equal [[key, 1]], parts(sketch([value])), value
    end
  end

  def check_collapsed(vector)
    first, last = vector["each_key"]
    values = (first..last).map do |key|
      key.zero? ? 0.0 : Keys.power(key.abs - Keys::BIAS) * (key <=> 0)
    end
    bins = parts(sketch(values))
    assert_equal vector.values_at("bins_len", "lowest", "highest"), [bins.size, bins.first, bins.last]
  end

  def check_sketch(vector)
    sketch = sketch(vector["values"] || [])
    (vector["weighted"] || []).each { |value, times| sketch.add(value.to_f, times) }
    found = [sketch.count, sketch.sum, sketch.min, sketch.max, parts(sketch)]
    assert_equal vector.values_at("cnt", "sum", "min", "max", "bins"), found, vector["id"]
    assert_equal vector["bins"], parts(sketch.rest), vector["id"]
  end

  def test_sketches_of_many_windows_are_the_sketch_of_all_values
    random = Random.new(Support.seed)
    values = Array.new(5_000) { (random.rand - 0.3) * (10.0**random.rand(-12..30)) }
    merged = values.each_slice(700).map { |part| sketch(part).rest }.inject(:merge)
    one_by_one = Columns::Sketch.new(Keys.table)
    values.each { |value| one_by_one.add(value) }
    assert_equal parts(one_by_one), parts(merged)
    assert_equal [one_by_one.count, one_by_one.min, one_by_one.max], [merged.count, merged.min, merged.max]
    assert_in_delta 1.0, merged.sum / values.sum, 1e-9
  end

  def template(type, name, tags, cardinality = nil)
    fields = "|card:#{cardinality}" if cardinality
    text = tags && "|##{tags.is_a?(Array) ? tags.join(",") : tags}"
    Template.new(type, "#{name}:", "|#{type}#{text}#{fields}")
  end

  # The window of the vectors: each type of value, shared and repeated tags, and bins beyond 32 bits.
  def vector_window(later: 0)
    window = Columns::Window.new(Keys.table)
    add_counts(window, later)
    { "shop.level" => [-2.25, "env:prod"], "shop.huge" => [1e300], "shop.million" => [1e6, "long:" * 40] }
      .each { |name, (value, tags)| window.gauge(template(:g, name, tags), value + later) }
    window.gauge(template(:g, "shop.card", "env:prod", "high"), 7 + later)
    add_sketches(window)
    window
  end

  def add_counts(window, later)
    window.count(template(:c, "shop.orders", "country:ch,b:2,a:1"), 12)
    window.count(template(:c, "shop.orders", "a:1,country:ch,a:1"), -3)
    window.count(template(:c, "shop.zero", "country:ch,b:2,a:1"), 0)
    window.count(template(:c, "shop.integer", "env:prod"), 1 << 48)
    window.count(template(:c, "shop.double", nil), (1 << 48) + 1)
    window.count(template(:c, "shop.größe", "straße:1,second:2"), 1 << 60)
    window.count(template(:c, "shop.float", nil), Rational(1.5) + later)
    window.count(template(:c, "shop.tenth", ",env:prod,"), 0.1 + later)
  end

  def add_sketches(window)
    window.samples(template(:d, "db.time", "env:prod"), [1, 1.0, "10"])
    window.samples(template(:d, "db.time", "env:prod,table:users"), [0.25, 0.5, 1024])
    window.samples(template(:d, "db.signs", nil), [-2.5, 0, 1e-10, 42.1])
    window.samples(template(:d, "db.zero", nil), [0, 0])
    window.samples(template(:d, "db.large", nil), [1e300, 9_007_199_254_740_993])
    spread = Array.new(200) { |index| ((Keys.power(index * 3) * 1000).round / 1000.0) }
    window.samples(template(:d, "db.spread", "env:prod"), spread)
    many = template(:d, "db.many", nil)
    window.samples(many, [])
    { 1.0 => 0xFFFF_FFFF + 3, 2.0 => 2 * 0xFFFF_FFFF }.each do |value, times|
      window.sketches[many.identity.key][1].add(value, times)
    end
  end

  def test_payloads_are_those_of_the_other_clients
    first = vector_window.close(1_700_000_000, 1_700_000_010)
    later = vector_window(later: 1).close(1_700_000_010, 1_700_000_040)
    check_payloads(first, "")
    check_payloads(first.merge(later), "merged-")
  end

  def check_payloads(window, prefix)
    payloads = window.encode
    assert_equal %w[/series /sketches], payloads.map(&:path)
    payloads.each do |payload|
      vector = JSON.parse(File.read(File.join(VECTORS, "columns/#{prefix}#{payload.path.delete("/")}.json")))
      rows = ColumnsReceiver.decode(payload.body)
      assert_equal vector["rows"].size, rows.size
      vector["rows"].zip(rows) { |expected, row| assert_equal as_floats(expected), as_vector(row) }
      assert_equal vector["hex"], payload.body.unpack1("H*")
      assert_equal vector["rows"].size, payload.points
    end
  end

  # JSON may write a float without a fraction, rounded to as many digits as it takes to read it back.
  def as_floats(row)
    row.to_h { |key, value| [key, %w[value sum min max].include?(key) ? value.to_f : value] }
  end

  def as_vector(row)
    head = { "name" => row.name, "tags" => row.tags, "type" => row.type, "interval" => row.interval,
             "timestamp" => row.at }
    return head.merge("value" => row.value) unless row.type == "sketch"

    head.merge("cnt" => row.samples, "sum" => row.total, "min" => row.lowest, "max" => row.highest, "bins" => row.bins)
  end
end
