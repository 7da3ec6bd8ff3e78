# frozen_string_literal: true

# What a call costs the thread that makes it, next to other clients, as ratios.
#
#   ruby bench/calls.rb [--statsd-instrument TREE] [--dogstatsd TREE] [--rounds 3] [--calls 20000] [--write README.md]
#
# A tree is a checkout of the other client; without it, its column stays empty. Implementations run in
# processes of their own, in turns (A B B A), with and without YJIT. A figure is the thread's CPU time:
# the best of three measurements in a process, the median over processes. The spread is that of the
# ratios of neighbouring processes.

require "json"
require "open3"
require "optparse"

options = { rounds: 3, calls: 20_000 }
OptionParser.new do |parser|
  parser.on("--statsd-instrument TREE") { |tree| options[:statsd_instrument] = tree }
  parser.on("--dogstatsd TREE") { |tree| options[:dogstatsd] = tree }
  parser.on("--rounds NUMBER", Integer) { |number| options[:rounds] = number }
  parser.on("--calls NUMBER", Integer) { |number| options[:calls] = number }
  parser.on("--write FILE") { |file| options[:write] = file }
end.parse!

IMPLEMENTATIONS = { "weir" => [File.expand_path("../lib", __dir__), {}] }
if File.exist?(File.expand_path("../lib/statsd/instrument/weir_statsd_native.so", __dir__))
  IMPLEMENTATIONS["weir, native"] = IMPLEMENTATIONS["weir"]
end
IMPLEMENTATIONS["weir"] = [IMPLEMENTATIONS["weir"].first, { "WEIR_PURE_RUBY" => "1" }]
%i[statsd_instrument dogstatsd].each do |peer|
  tree = options[peer]
  name = peer.to_s.tr("_", "-")
  if tree && File.directory?(File.join(tree, "lib"))
    IMPLEMENTATIONS[name] = [File.join(tree, "lib"), {}]
  else
    warn "#{name}: #{tree ? "no lib directory in #{tree}" : "no tree given"}, skipped"
  end
end

def run(name, jit, calls)
  lib, env = IMPLEMENTATIONS.fetch(name)
  kind = name.start_with?("weir") ? "weir" : name
  output, error, status = Open3.capture3(env, RbConfig.ruby, *jit, File.join(__dir__, "worker.rb"), kind, lib,
                                         calls.to_s)
  raise "#{name} failed: #{error}" unless status.success?

  result = JSON.parse(output.lines.last)
  raise "#{name}: the native extension did not load" if name == "weir, native" && !result["native"]

  result["cases"]
end

def median(values)
  sorted = values.sort
  (sorted[(sorted.size - 1) / 2] + sorted[sorted.size / 2]) / 2.0
end

def measure(jit, options)
  runs = Hash.new { |hash, name| hash[name] = [] }
  options[:rounds].times do |round|
    names = round.even? ? IMPLEMENTATIONS.keys : IMPLEMENTATIONS.keys.reverse
    names.each { |name| runs[name] << run(name, jit, options[:calls]) }
  end
  runs
end

def ratio(ours, theirs, name)
  ratios = ours.zip(theirs).map { |a, b| b.dig(name, "nanoseconds") / a.dig(name, "nanoseconds") }
  format("%.1fx (%.1f-%.1f)", median(ratios), ratios.min, ratios.max)
end

def cell(runs, implementation, name)
  found = runs[implementation].filter_map { |run| run[name] }
  return "" if found.empty?

  format("%d ns, %d obj", median(found.map { |one| one["nanoseconds"] }).round, found.first["objects"])
end

def table(title, runs)
  names = runs["weir"].first.keys
  peers = IMPLEMENTATIONS.keys - ["weir"]
  compared = "statsd-instrument / weir#{" / native" if native?}"
  lines = ["**#{title}**", "", "| call | weir | #{peers.join(" | ")} | #{compared} |",
           "| --- |#{" --- |" * (peers.size + 2)}"]
  names.each do |name|
    ratios = %w[weir weir,\ native].filter_map do |ours|
      next unless runs.key?(ours) && runs.key?("statsd-instrument") && runs["statsd-instrument"].first.key?(name)

      ratio(runs[ours], runs["statsd-instrument"], name)
    end
    cells = (["weir"] + peers).map { |implementation| cell(runs, implementation, name) }
    lines << "| #{name} | #{cells.join(" | ")} | #{ratios.join(" / ")} |"
  end
  lines.join("\n")
end

def native?
  IMPLEMENTATIONS.key?("weir, native")
end

commit = `git -C #{__dir__} rev-parse --short HEAD 2>/dev/null`.strip
cpu = File.foreach("/proc/cpuinfo").grep(/model name/).first.to_s.split(":").last.to_s.strip
report = [
  "Ruby #{RUBY_VERSION}, #{RUBY_PLATFORM}, #{cpu}; commit #{commit}; #{options[:rounds]} rounds of " \
  "#{options[:calls]} calls. Only the ratios mean anything elsewhere.", "",
  table("Interpreter", measure([], options)), "", table("YJIT", measure(["--yjit"], options))
].join("\n")

puts report
if options[:write]
  text = File.read(options[:write])
  marks = /(<!-- calls: begin -->\n).*(<!-- calls: end -->)/m
  raise "#{options[:write]} has no marks for the table" unless text.match?(marks)

  File.write(options[:write], text.sub(marks) { "#{Regexp.last_match(1)}#{report}\n#{Regexp.last_match(2)}" })
end
