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
  # The project has no public home yet. This name can belong to nobody (RFC 2606), and there must be one.
  spec.homepage = "https://weir.invalid/"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir.glob(
    ["lib/**/*.rb", "ext/**/*.{c,h,rb}", "sig/**/*.rbs", "README.md", "CHANGELOG.md", "LICENSE"], base: __dir__
  ).sort
  spec.extra_rdoc_files = ["README.md", "CHANGELOG.md", "LICENSE"]
  spec.extensions = ["ext/weir_statsd/extconf.rb"]
  spec.metadata["rubygems_mfa_required"] = "true"
end
