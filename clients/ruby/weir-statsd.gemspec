# frozen_string_literal: true

require_relative "lib/statsd/instrument/version"

Gem::Specification.new do |spec|
  spec.name = "weir-statsd"
  spec.version = StatsD::Instrument::VERSION
  spec.summary = "StatsD client that aggregates per thread, without locks on the way of a call"
  spec.description = "The StatsD API of statsd-instrument with aggregation that makes calls cheaper: counters, " \
                     "gauges, sets and packed samples, handles, compiled metrics, macros, test helpers."
  spec.license = "Apache-2.0"
  spec.authors = ["The weir authors"]
  spec.homepage = "https://github.com/weir-dev/weir"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir.glob(
    ["lib/**/*.rb", "ext/**/*.{c,h,rb}", "sig/**/*.rbs", "README.md", "CHANGELOG.md", "LICENSE"], base: __dir__
  ).sort
  spec.extra_rdoc_files = ["README.md", "CHANGELOG.md", "LICENSE"]
  spec.extensions = ["ext/weir_statsd/extconf.rb"]
  spec.metadata = {
    "source_code_uri" => "#{spec.homepage}/tree/main/clients/ruby",
    "changelog_uri" => "#{spec.homepage}/blob/main/clients/ruby/CHANGELOG.md",
    "documentation_uri" => "#{spec.homepage}/blob/main/clients/ruby/README.md",
    "bug_tracker_uri" => "#{spec.homepage}/issues",
    "rubygems_mfa_required" => "true"
  }
end
