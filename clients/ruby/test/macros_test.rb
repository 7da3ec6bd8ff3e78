# frozen_string_literal: true

require_relative "test_helper"

class MacrosTest < TestCase
  class Base
    extend StatsD::Instrument

    def work(*args, key: nil, &block)
      raise ArgumentError, "no" if args.first == :raise
      return yield(key) if block

      args.first == :false ? false : args.first # rubocop:disable Lint/BooleanSymbol
    end

    protected

    def guarded; end

    private

    def hidden; end
  end

  def setup
    @class = Class.new(Base)
  end

  def emitted(&block)
    StatsD.singleton_client.capture(&block)
  end

  def check(*expected, &block)
    assert_equal expected, emitted(&block).map(&:source)
  end

  def test_count
    @class.statsd_count :work, "A::b", tags: { t: 1 }
    check("A.b:1|c|#t:1") { assert_equal 1, @class.new.work(1) }
    check("A.b:1|c|#t:1") { assert_raises(ArgumentError) { @class.new.work(:raise) } }
    @class.statsd_remove_count :work, "A::b"
    check { @class.new.work(1) }
  end

  def test_count_if
    @class.statsd_count_if :work, "a"
    check("a:1|c") { @class.new.work(1) }
    check { @class.new.work(nil) }
    check { assert_raises(ArgumentError) { @class.new.work(:raise) } }
    @class.statsd_remove_count_if :work, "a"
    @class.statsd_count_if(:work, "b") { |result| result == 2 || raise("not two") }
    check("b:1|c") { @class.new.work(2) }
    check { assert_equal 3, @class.new.work(3) }
  end

  def test_count_success
    @class.statsd_count_success :work, "a", tag_error_class: true, tags: ["t"]
    check("a.success:1|c|#t") { @class.new.work(1) }
    check("a.success:1|c|#t") { assert_nil @class.new.work(nil) }
    check("a.failure:1|c|#t") { assert_equal false, @class.new.work(:false) } # rubocop:disable Lint/BooleanSymbol
    check("a.failure:1|c|#t,error_class:ArgumentError") { assert_raises(ArgumentError) { @class.new.work(:raise) } }
    @class.statsd_remove_count_success :work, "a"
    @class.statsd_count_success(:work, "b") { |result| result == 2 || (raise "no" if result == 3) }
    check("b.success:1|c") { @class.new.work(2) }
    check("b.failure:1|c") { assert_equal 3, @class.new.work(3) }
  end

  def test_times
    @class.statsd_measure :work, "m"
    @class.statsd_distribution :work, "d", sample_rate: 0.5
    datagrams = emitted { assert_equal 1, @class.new.work(1) }
    assert_equal [["m", :ms, 1.0], ["d", :d, 0.5]], datagrams.map { |d| [d.name, d.type, d.sample_rate] }
    assert_equal %w[m d], emitted { assert_raises(ArgumentError) { @class.new.work(:raise) } }.map(&:name)
    @class.statsd_remove_measure :work, "m"
    @class.statsd_remove_distribution :work, "d"
    check { @class.new.work(1) }
  rescue Minitest::Assertion
    raise
  end

  def test_names_and_tags_may_be_computed
    @class.statsd_count :work, ->(object, args) { "#{object.class.superclass.name}.#{args.first}" },
                        tags: ->(_object, args) { ["first:#{args.first}"] }
    check("MacrosTest.Base.7:1|c|#first:7") { @class.new.work(7) }
  end

  def test_arguments_keywords_and_blocks_arrive
    @class.statsd_measure :work, "m"
    object = @class.new
    emitted do
      assert_equal 5, object.work(1, key: 5) { |key| key }
      assert_equal({ "a" => 1 }, object.work({ "a" => 1 }))
    end
  end

  def test_visibility_is_kept
    @class.statsd_count :hidden, "h"
    @class.statsd_count :guarded, "g"
    assert_includes @class.private_instance_methods, :hidden
    assert_includes @class.protected_instance_methods, :guarded
    check("h:1|c") { @class.new.send(:hidden) }
    @class.statsd_remove_count :hidden, "h"
    assert_includes @class.private_instance_methods, :hidden
  end

  def test_wrong_use
    @class.statsd_count :work, "a"
    assert_raises(ArgumentError) { @class.statsd_count :work, "a" }
    assert_raises(ArgumentError) { @class.statsd_count :missing, "a" }
    @class.statsd_count :hidden, "h"
    assert_raises(ArgumentError) { @class.statsd_count :hidden, "h" }
  end

  def test_several_macros_and_subclasses
    @class.statsd_count :work, "a"
    @class.statsd_count :work, "b"
    child = Class.new(@class)
    child.statsd_count :work, "c"
    assert_equal %w[a b c], emitted { child.new.work(1) }.map(&:name).sort
    assert_equal %w[a b], emitted { @class.new.work(1) }.map(&:name).sort
  end

  def test_singleton_methods_and_modules
    klass = Class.new do
      def self.call = :called
      singleton_class.extend StatsD::Instrument
      singleton_class.statsd_count :call, "s"
    end
    check("s:1|c") { assert_equal :called, klass.call }
  end

  def test_an_own_client
    client, sink = list_client(prefix: "own")
    @class.statsd_count :work, "a", client: client, no_prefix: true
    @class.statsd_measure :work, "m", client: client
    @class.new.work(1)
    assert_equal %w[a own.m], flushed(client, sink).map { |line| line[/[\w.]+/] }.sort
  end

  def test_macros_without_a_client_use_the_current_one
    @class.statsd_count :work, "a"
    before = StatsD.singleton_client
    client, sink = list_client
    @class.new.work(1)
    StatsD.singleton_client = client
    @class.new.work(1)
    assert_equal ["a:1|c"], flushed(client, sink)
  ensure
    StatsD.singleton_client = before
  end

  def test_durations
    assert_kind_of Float, StatsD::Instrument.duration { nil }
    assert_kind_of Float, StatsD::Instrument.current_timestamp
  end
end
