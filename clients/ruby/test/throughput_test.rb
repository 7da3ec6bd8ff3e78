# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"
require "tmpdir"

# Both passes would start the same processes.
return if StatsD::Instrument::NATIVE

# The script that measures what several threads get through.
class ThroughputTest < Minitest::Test
  SCRIPT = File.expand_path("../bench/throughput.rb", __dir__)

  def run_script(*arguments, env: {})
    Open3.capture3(env, RbConfig.ruby, SCRIPT, *arguments)
  end

  def test_a_row_for_each_combination_and_everything_arrives
    output, error, status = run_script("--series", "0,3", "--threads", "1,2", "--iterations", "20", "--no-aggregate")
    assert status.success?, error
    rows = output.lines.grep(/\A\| weir \|/).map { |line| line.split("|").map(&:strip) }
    assert_equal [%w[0 1 20], %w[0 2 20], %w[3 1 20], %w[3 2 20]], rows.map { |row| row[3..5] }
    assert_equal ["100.0 %"], rows.map { |row| row[8] }.uniq
  end

  # Answers as stackprof does: three samples of a method that a sending thread called, one of another thread.
  STACKPROF = <<~RUBY.freeze
    module StackProf
      def self.start(**) = nil
      def self.stop = nil

      def self.results
        sender = File.expand_path("../bench/throughput_worker.rb", #{__dir__.inspect})
        { frames: { 1 => { name: "block in <main>", file: sender }, 2 => { name: "String#to_s", file: "<cfunc>" } },
          raw: [2, 1, 2, 3, 1, 2, 1] }
      end
    end
  RUBY

  def test_a_profile_has_the_methods_of_the_sending_threads
    Dir.mktmpdir do |folder|
      File.write(File.join(folder, "stackprof.rb"), STACKPROF)
      output, error, status = run_script("--profile", "--iterations", "20", "--aggregate", env: { "RUBYLIB" => folder })
      assert status.success?, error
      assert_includes output, "weir, aggregating, 0 series, 5 threads: 4 samples"
      assert_includes output, "| `String#to_s` | 75 % |\n| `(other threads)` | 25 % |\n"
    end
  end

  def test_what_is_no_number_is_refused
    ["--threads=0", "--series=-1", "--iterations=many"].each do |argument|
      _, error, status = run_script(argument)
      refute status.success?
      assert_includes error, "series are numbers from 0"
    end
  end
end
