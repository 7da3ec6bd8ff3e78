# frozen_string_literal: true

require_relative "../rubocop" unless defined?(RuboCop::Cop::StatsD)

module RuboCop
  module Cop
    module StatsD
      # Finds configuration of the StatsD module itself.
      class SingletonConfiguration < Base
        include RuboCop::Cop::StatsD

        MSG = "Configure StatsD with environment variables, or assign a client to `StatsD.singleton_client`."

        def on_send(node)
          add_offense(node) if singleton_configuration_method?(node)
        end
      end
    end
  end
end
