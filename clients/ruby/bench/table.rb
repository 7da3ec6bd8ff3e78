# frozen_string_literal: true

# Writes the README's figures: the cost of a call for its thread, and the throughput of five threads, next to
# other clients, as ratios, with and without YJIT.
#
#   ruby bench/table.rb [--statsd-instrument TREE] [--dogstatsd TREE] [--rounds 3] [--calls 10000] [--write README.md]
#                       [--seconds 240]
#
# A tree is a checkout of the other client; without it, its column stays empty. Implementations run in processes of
# their own, in turns (A B B A). A figure of a call is the thread's CPU time: the best of three measurements in a
# process, the median over processes. Spreads are of the ratios of neighbouring processes. No round starts that
# would end after the time given.

require "json"
require "open3"
require "optparse"
require_relative "implementations"
require_relative "throughput"

# Runs the workers and keeps their output.
class Measurements
  JITS = { "interpreter" => [], "YJIT" => ["--yjit"] }.freeze

  attr_reader :calls, :throughput, :rounds

  def initialize(implementations, options)
    @implementations = implementations
    @options = options
    @calls = JITS.transform_values { Hash.new { |hash, name| hash[name] = [] } }
    @throughput = JITS.transform_values { Hash.new { |hash, name| hash[name] = [] } }
    @receiver = Throughput::Receiver.new
    @rounds = 0
  end

  def run
    started = now
    @options[:rounds].times do |round|
      before = now
      JITS.each { |jit, flags| one_round(jit, flags, round) }
      @rounds += 1
      break if now - started + (now - before) > @options[:seconds]
    end
    self
  end

  private

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def one_round(jit, flags, round)
    @implementations.in_turn(round) do |one|
      @calls[jit][one.name] << run_calls(one, flags)
      [true, false].each do |aggregate|
        next if aggregate && one.name == Implementations::OTHER # has none

        @throughput[jit][[one.name, aggregate]] << Throughput.run(@receiver, one, flags, aggregate)
      end
    end
  end

  def run_calls(one, flags)
    output, error, status = Open3.capture3(one.env, RbConfig.ruby, *flags, File.join(__dir__, "worker.rb"), one.kind,
                                           one.lib, @options[:calls].to_s)
    raise "#{one.name} failed: #{error}" unless status.success?

    result = JSON.parse(output.lines.last)
    wrong = one.kind == "weir" && result["native"] != (one.name == Implementations::NATIVE)
    raise "#{one.name}: the native extension is #{result["native"] ? "in use" : "not in use"}" if wrong

    result["cases"]
  end
end

# The report, as Markdown.
class Report
  PURE = Implementations::PURE
  NATIVE = Implementations::NATIVE
  PEER = Implementations::PEER
  OTHER = Implementations::OTHER

  # The ratios to statsd-instrument that the client is made for: pure, pure with YJIT, with the extension.
  TARGETS = [
    ["throughput, aggregated", 3, 3, 5],
    ["aggregated increment, 5-tag Hash", 8, 10, 15],
    ["aggregated increment, no tags", 8, 10, 20],
    ["handle (peer: compiled static counter)", 8, 7, 10],
    ["batched increment, no tags", 2, 2, 4],
    ["batched increment, 5-tag Hash", 2, 2, 4]
  ].freeze

  def initialize(measurements, implementations, calls)
    @measurements = measurements
    @names = implementations.names
    @number = calls
  end

  def to_s
    parts = [heading]
    parts << targets if @names.include?(PEER)
    Measurements::JITS.each_key { |jit| parts << calls(jit) << throughput(jit) }
    parts.join("\n\n")
  end

  private

  def heading
    commit = `git -C #{__dir__} rev-parse --short HEAD 2>/dev/null`.strip
    cpu = File.foreach("/proc/cpuinfo").grep(/model name/).first.to_s.split(":").last.to_s.strip
    "Ruby #{RUBY_VERSION}, #{RUBY_PLATFORM}, #{cpu}; commit #{commit}; #{@measurements.rounds} rounds of " \
      "#{@number} calls. Compare only the ratios with other machines."
  end

  def median(values)
    sorted = values.sort
    (sorted[(sorted.size - 1) / 2] + sorted[sorted.size / 2]) / 2.0
  end

  # The peer's cost divided by ours, one figure for each pair of neighbouring processes.
  def ratios(jit, ours, row)
    if row == "throughput, aggregated"
      runs = @measurements.throughput[jit]
      return runs[[ours, true]].zip(runs[[PEER, true]]).map { |a, b| a.per_second / b.per_second }
    end
    runs = @measurements.calls[jit]
    return [] unless runs[PEER].first&.key?(row)

    runs[ours].zip(runs[PEER]).map { |a, b| b.dig(row, "nanoseconds") / a.dig(row, "nanoseconds") }
  end

  def ratio(values)
    format("%.1fx (%.1f-%.1f)", median(values), values.min, values.max)
  end

  def targets
    lines = ["**Against statsd-instrument, with the aims**", "",
             "| row | pure | pure, YJIT | native | native, YJIT |", "| --- |#{" --- |" * 4}"]
    TARGETS.each do |row, pure, jit, native|
      cells = [["interpreter", PURE, pure], ["YJIT", PURE, jit], ["interpreter", NATIVE, native],
               ["YJIT", NATIVE, native]].map do |mode, ours, target|
        next "" unless @names.include?(ours)

        "#{ratio(ratios(mode, ours, row))}, aim #{target}x"
      end
      lines << "| #{row} | #{cells.join(" | ")} |"
    end
    lines.join("\n")
  end

  def calls(jit)
    runs = @measurements.calls[jit]
    compared = [PURE, NATIVE] & @names
    lines = ["**Calls, #{jit}**", "",
             "| call | #{@names.join(" | ")} | #{PEER} / #{compared.join(" / ")} |",
             "| --- |#{" --- |" * (@names.size + 1)}"]
    runs[PURE].first.each_key do |row|
      cells = @names.map { |name| call_cell(runs[name], row) }
      shown = @names.include?(PEER) ? compared.map { |ours| ratio(ratios(jit, ours, row)) } : []
      lines << "| #{row} | #{cells.join(" | ")} | #{shown.join(" / ")} |"
    end
    lines.join("\n")
  end

  def call_cell(runs, row)
    found = runs.filter_map { |run| run[row] }
    return "" if found.empty?

    format("%d ns, %d obj", median(found.map { |one| one["nanoseconds"] }).round, found.first["objects"])
  end

  def throughput(jit)
    runs = @measurements.throughput[jit]
    load = Throughput::LOAD
    lines = ["**Throughput, #{jit}**: #{load.threads} threads, #{load.iterations} times a counter, a timed block and " \
             "a gauge each; the final flush included", "",
             "| client | calls per second | calls per CPU second, all threads | arrived |", "| --- | --- | --- | --- |"]
    runs.each do |(name, aggregate), results|
      kind = aggregate ? "aggregated" : "batched"
      kind = "delayed serialization" if name == OTHER
      lines << format("| %<name>s, %<kind>s | %<wall>d | %<cpu>d | %<arrived>.1f %% |",
                      name: name, kind: kind, wall: median(results.map(&:per_second)),
                      cpu: median(results.map(&:per_cpu_second)), arrived: results.map(&:arrived).min * 100)
    end
    lines.join("\n")
  end
end

options = { rounds: 3, calls: 10_000, seconds: 240 }
trees = {}
OptionParser.new do |parser|
  parser.on("--statsd-instrument TREE") { |tree| trees[Implementations::PEER] = tree }
  parser.on("--dogstatsd TREE") { |tree| trees[Implementations::OTHER] = tree }
  parser.on("--rounds NUMBER", Integer) { |number| options[:rounds] = number }
  parser.on("--calls NUMBER", Integer) { |number| options[:calls] = number }
  parser.on("--seconds NUMBER", Integer) { |number| options[:seconds] = number }
  parser.on("--write FILE") { |file| options[:write] = file }
end.parse!

implementations = Implementations.new(trees)
report = Report.new(Measurements.new(implementations, options).run, implementations, options[:calls]).to_s
puts report
if options[:write]
  text = File.read(options[:write])
  marks = /(<!-- figures: begin -->\n).*(<!-- figures: end -->)/m
  raise "#{options[:write]} has no marks for the figures" unless text.match?(marks)

  File.write(options[:write], text.sub(marks) { "#{Regexp.last_match(1)}#{report}\n#{Regexp.last_match(2)}" })
end
