# frozen_string_literal: true

# The name applications already require; see {StatsD::Instrument}.
require "statsd/instrument"
