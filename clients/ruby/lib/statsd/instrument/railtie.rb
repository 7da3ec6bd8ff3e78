# frozen_string_literal: true

module StatsD
  module Instrument
    # Inside Rails the library logs to the logger of Rails.
    class Railtie < Rails::Railtie
      initializer "statsd-instrument.use_rails_logger" do
        ::StatsD.logger = Rails.logger
      end
    end
  end
end
