# frozen_string_literal: true

ENV["STATSD_ENV"] = "test"
require "statsd-instrument"

RSpec.describe StatsD::Instrument::Matchers do
  include described_class

  {
    increment: [:c, 2], gauge: [:g, 2.5], measure: [:ms, 3.0], histogram: [:h, 4.0], distribution: [:d, 5.0],
    set: [:s, "u"]
  }.each do |type, (_, value)|
    matcher = :"trigger_statsd_#{type}"

    it "sees #{type}" do
      emit = -> { StatsD.public_send(type, "a", value, tags: ["x", "k:1"], sample_rate: 0.5) }
      expect { emit.call }.to public_send(matcher, "a")
      expect { emit.call }.to public_send(matcher, "a", value: value, sample_rate: 0.5, tags: ["x", "k:1"])
      expect { emit.call }.to public_send(matcher, "a", tags: include("k:1"), times: 1)
      expect { emit.call }.to public_send(matcher, "a", value: anything)
      expect { emit.call }.not_to public_send(matcher, "b")
      expect { emit.call }.not_to public_send(matcher, "a", tags: ["y"])
      expect { nil }.not_to public_send(matcher, "a")
    end
  end

  it "combines" do
    expect do
      StatsD.increment("a")
      StatsD.gauge("b", 1)
    end.to trigger_statsd_increment("a").and trigger_statsd_gauge("b", value: 1)
  end

  it "takes matchers for values" do
    expect { StatsD.gauge("a", 5) }.to trigger_statsd_gauge("a", value: a_value_between(4, 6))
    expect { StatsD.gauge("a", 5) }.not_to trigger_statsd_gauge("a", value: a_value < 5)
    expect { StatsD.gauge("a", 5, tags: { k: 1 }) }.to trigger_statsd_gauge("a", tags: { k: 1 })
  end

  it "says what is wrong" do
    failure = lambda do |matcher, &block|
      expect { expect(&block).to matcher }.to raise_error(RSpec::Expectations::ExpectationNotMetError) do |error|
        return error.message
      end
    end
    expect(failure.call(trigger_statsd_increment("a")) { nil }).to eq "No StatsD calls for metric a were made."
  end

  it "counts" do
    matcher = trigger_statsd_increment("a", times: 2)
    expect(matcher.matches?(-> { StatsD.increment("a") })).to be false
    expect(matcher.failure_message).to include "Expected 2, got 1"
    matcher = trigger_statsd_increment("a", value: 3)
    expect(matcher.matches?(-> { StatsD.increment("a") })).to be false
    expect(matcher.failure_message).to include "captured metric values: 1"
    expect { StatsD.increment("a") }.not_to matcher
    expect(trigger_statsd_increment("a").description).to eq "trigger a statsd call for metric a"
  end
end
