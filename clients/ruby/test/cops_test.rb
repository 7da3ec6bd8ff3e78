# frozen_string_literal: true

require_relative "test_helper"

return if RUBY_ENGINE == "jruby" # RuboCop is for the developer's machine
# Both passes would start the same processes.
return if StatsD::Instrument::NATIVE

require "open3"
require "json"

class CopsTest < TestCase
  BAD = {
    "MeasureAsDistArgument" => ["StatsD.measure('a', as_dist: true) { b }", "statsd_measure :a, 'a', as_dist: true"],
    "MetaprogrammingPositionalArguments" => ["statsd_count :a, 'a', 1.0", "statsd_count_if(:a, 'a', 1, ['x'], &b)"],
    "MetricPrefixArgument" => ["StatsD.increment('a', prefix: 'b')", "statsd_count :a, 'a', prefix: 'b'"],
    "MetricReturnValue" => ["a = StatsD.increment('a')", "[StatsD.gauge('a', 1)]", "return StatsD.increment('a')",
                            "{ a: StatsD.increment('a') }", "b(StatsD.increment('a'))"],
    "MetricValueKeywordArgument" => ["StatsD.increment('a', value: 1)"],
    "PositionalArguments" => ["StatsD.increment('a', 1, 0.5)", "StatsD.gauge('a', 1, rate)",
                              "StatsD.gauge('a', 1, RATE, ['x'])", "StatsD.measure('a', 1, nil, a: 1, &b)"],
    "SingletonConfiguration" => ["StatsD.prefix = 'a'", "StatsD.backend"],
    "SplatArguments" => ["StatsD.increment(*a)"]
  }.freeze

  GOOD = <<~RUBY
    StatsD.increment('a', 1, sample_rate: 0.5, tags: ['x'])
    StatsD.measure('a') { b }
    c = StatsD.measure('a', &b)
    c = StatsD.measure('a') { b }
    statsd_count :a, 'a', tags: ['x']
    statsd_count_if(:a, 'a', &b)
    Other.prefix = 'a'
    Other.increment(*a)
    StatsD.distribution('a', 1, tags: { as_dist: true })
  RUBY

  CORRECTIONS = {
    "StatsD.increment('a', 1, 0.5)" => "StatsD.increment('a', 1, sample_rate: 0.5)",
    "StatsD.increment('a', 1, 0.5, ['x'])" => "StatsD.increment('a', 1, sample_rate: 0.5, tags: ['x'])",
    "StatsD.increment('a', 1, nil, k: 1)" => "StatsD.increment('a', 1, tags: { k: 1 })",
    "StatsD.measure('a', 1, nil, { k: 1 }, &b)" => "StatsD.measure('a', 1, tags: { k: 1 }, &b)",
    "StatsD.increment('a', 1, 0.5, tags: ['a'])" => "StatsD.increment('a', 1, sample_rate: 0.5, tags: ['a'])",
    "StatsD.increment('a', 1, nil, tags: ['a'], no_prefix: true)" =>
      "StatsD.increment('a', 1, tags: ['a'], no_prefix: true)",
    "StatsD.increment('a', 1, 0.5, ['b'], no_prefix: true)" =>
      "StatsD.increment('a', 1, sample_rate: 0.5, tags: ['b'], no_prefix: true)",
    "StatsD.increment('a', 1, 0.5, { tags: ['a'] })" =>
      "StatsD.increment('a', 1, sample_rate: 0.5, tags: { tags: ['a'] })",
    "StatsD.increment('a', 1, 0.5, shop: 1, tags: 2)" =>
      "StatsD.increment('a', 1, sample_rate: 0.5, tags: { shop: 1, tags: 2 })",
    "StatsD.increment('a', 1, 0.5, **options)" => "StatsD.increment('a', 1, sample_rate: 0.5, **options)",
    "StatsD.gauge('a', 1, nil)" => "StatsD.gauge('a', 1)",
    "StatsD.gauge('a', 1, nil, nil)" => "StatsD.gauge('a', 1)",
    "StatsD.gauge('a', 1, RATE, ['x'])" => "StatsD.gauge('a', 1, RATE, ['x'])"
  }.freeze

  # RuboCop takes seconds to start, so it looks at everything once.
  def rubocop(directory)
    File.write(File.join(directory, ".rubocop.yml"), "AllCops:\n  DisabledByDefault: true\n  NewCops: disable\n")
    output, = Open3.capture2e(
      "rubocop", "--cache", "false", "--require", File.expand_path("../lib/statsd/instrument/rubocop.rb", __dir__),
      "--only", BAD.keys.map { |name| "StatsD/#{name}" }.join(","), "--format", "json", "-A", ".",
      chdir: directory
    )
    JSON.parse(output[/^\{.*\}$/] || flunk(output))["files"].to_h do |file|
      [file["path"], file["offenses"].map { |one| one["cop_name"] }]
    end
  end

  def test_offenses_and_corrections
    Dir.mktmpdir do |directory|
      write = ->(name, code) { File.write(File.join(directory, name), "#{code}\n") }
      write.call("good.rb", GOOD)
      BAD.each { |cop, codes| codes.each_with_index { |code, index| write.call("#{cop}_#{index}.rb", code) } }
      CORRECTIONS.each_key.with_index { |code, index| write.call("before_#{index}.rb", code) }
      offenses = rubocop(directory)

      assert_empty offenses["good.rb"]
      BAD.each do |cop, codes|
        codes.each_with_index { |code, index| assert_includes offenses["#{cop}_#{index}.rb"], "StatsD/#{cop}", code }
      end
      after = CORRECTIONS.size.times.map { |index| File.read(File.join(directory, "before_#{index}.rb")).chomp }
      assert_equal CORRECTIONS.values, after
    end
  end
end
