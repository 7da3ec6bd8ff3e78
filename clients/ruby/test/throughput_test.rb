# frozen_string_literal: true

require_relative "test_helper"
require "open3"
require "rbconfig"

# Both passes would start the same processes.
return if StatsD::Instrument::NATIVE

# The script that measures what several threads get through.
class ThroughputTest < Minitest::Test
  SCRIPT = File.expand_path("../bench/throughput.rb", __dir__)

  def run_script(*arguments)
    Open3.capture3(RbConfig.ruby, SCRIPT, *arguments)
  end

  def test_a_row_for_each_combination_and_everything_arrives
    output, error, status = run_script("--series", "0,3", "--threads", "1,2", "--iterations", "20", "--no-aggregate")
    assert status.success?, error
    rows = output.lines.grep(/\A\| weir \|/).map { |line| line.split("|").map(&:strip) }
    assert_equal [%w[0 1 20], %w[0 2 20], %w[3 1 20], %w[3 2 20]], rows.map { |row| row[3..5] }
    assert_equal ["100.0 %"], rows.map { |row| row[8] }.uniq
  end

  def test_what_is_no_number_is_refused
    ["--threads=0", "--series=-1", "--iterations=many"].each do |argument|
      _, error, status = run_script(argument)
      refute status.success?
      assert_includes error, "series are numbers from 0"
    end
  end
end
