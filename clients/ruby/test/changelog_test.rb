# frozen_string_literal: true

require_relative "test_helper"

class ChangelogTest < TestCase
  ROOT = File.expand_path("..", __dir__)

  def test_the_changelog_knows_what_comes_next_or_the_version
    headings = File.readlines(File.join(ROOT, "CHANGELOG.md")).grep(/^## /).map { |line| line[3..].strip }
    assert(headings.first == "Unreleased" || headings.first.start_with?(StatsD::Instrument::VERSION), headings.inspect)
  end

  def test_the_gem_packs_only_what_exists
    specification = Gem::Specification.load(File.join(ROOT, "weir-statsd.gemspec"))
    assert_empty specification.runtime_dependencies
    specification.files.each { |file| assert_path_exists File.join(ROOT, file) }
    assert_includes specification.files, "lib/weir-statsd.rb"
  end
end
