# frozen_string_literal: true

# The name of the gem, so that Bundler loads it without a `require:` option.
require "statsd/instrument"
