# frozen_string_literal: true

# The API of dogstatsd-ruby 5.7 on top of this client:
#
#     require "weir/dogstatsd"
#     statsd = Datadog::Statsd.new("localhost", 8125)
#     statsd.increment("page.views")
#
# Libraries that load the gem themselves with `require "datadog/statsd"` get this client, too, if it was loaded first.

if defined?(Datadog::Statsd) && !Datadog::Statsd.respond_to?(:weir?)
  raise LoadError, "weir/dogstatsd must be loaded before datadog/statsd; remove dogstatsd-ruby from the Gemfile, or " \
                   "require weir/dogstatsd first"
end

require "statsd-instrument"
require "weir/dogstatsd/address"
require "weir/dogstatsd/sinks"
require "weir/dogstatsd/client"
require "weir/dogstatsd/statsd"

$LOAD_PATH.unshift(File.expand_path("dogstatsd/compat", __dir__))
