# frozen_string_literal: true

# A service that only reports metrics: an example of each kind.
#
#   STATSD_ADDR=unixgram:///var/run/weir.sock ruby -I lib examples/shop.rb 30
ENV["STATSD_ENV"] ||= "production"
ENV["STATSD_PREFIX"] ||= "shop"
ENV["STATSD_DEFAULT_TAGS"] ||= "lang:ruby"
ENV["STATSD_AGGREGATION_INTERVAL"] ||= "1"
require "statsd-instrument"

# Orders. Handles send frequent metrics without a lookup.
class Shop
  COUNTRIES = %w[at ch de].freeze
  PLANS = %w[free pro].freeze

  def initialize
    @value = StatsD.distribution_handle("order.value", tags: { currency: "eur" })
    @queue = StatsD.gauge_handle("queue.length")
    @length = 0
  end

  def order
    country = COUNTRIES.sample
    StatsD.increment("orders", tags: { country: country, plan: PLANS.sample })
    @length = [0, @length + rand(-1..1)].max
    @queue.set(@length)
    @value.record(20 - (15 * Math.log(1 - rand)))
    StatsD.set("visitors", "visitor-#{rand(500)}", tags: { country: country })
    StatsD.measure("request.time", rand * 60)
  end
end

now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
seconds = Float(ARGV.fetch(0, "30"))
StatsD.event("Deployed the Ruby shop", "It runs for #{seconds} s", tags: { version: 1 })
shop = Shop.new
ends = now.call + seconds
%w[INT TERM].each { |signal| trap(signal) { ends = now.call } }
while now.call < ends
  shop.order
  sleep(0.005)
end
StatsD.service_check("open", :ok)
client = StatsD.singleton_client
client.shutdown
metrics, packets, dropped = client.telemetry.to_h.values_at(:metrics, :packets_sent, :packets_dropped)
puts "Ruby: #{metrics} metrics in #{packets} packets, #{dropped} packets dropped"
