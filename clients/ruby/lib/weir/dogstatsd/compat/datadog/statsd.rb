# frozen_string_literal: true

# Found by `require "datadog/statsd"` of libraries, once weir/dogstatsd was loaded.
require "weir/dogstatsd"
