# frozen_string_literal: true

module StatsD
  module Instrument
    class Client
      # Makes handles that stay with the client.
      module HandleMakers
        # @param name (see Metrics#increment)
        # @param tags (see Metrics#increment)
        # @param sample_rate (see Metrics#increment)
        # @param no_prefix (see Metrics#increment)
        # @return [Handles::Counter] bound to one context of this client: the cheapest way to count
        def counter(name, tags: nil, sample_rate: nil, no_prefix: false)
          Handles::Counter.new(name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
        end

        # @param (see #counter)
        # @return [Handles::Gauge]
        def gauge_handle(name, tags: nil, no_prefix: false)
          Handles::Gauge.new(name, tags: tags, no_prefix: no_prefix, client: self)
        end

        # @param (see #counter)
        # @return [Handles::Samples]
        def timer(name, tags: nil, sample_rate: nil, no_prefix: false)
          Handles::Samples.new(:ms, name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
        end

        # @param (see #counter)
        # @return [Handles::Samples]
        def histogram_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
          Handles::Samples.new(:h, name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
        end

        # @param (see #counter)
        # @return [Handles::Samples]
        def distribution_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
          Handles::Samples.new(:d, name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
        end

        # @param (see #counter)
        # @return [Handles::Set]
        def set_handle(name, tags: nil, sample_rate: nil, no_prefix: false)
          Handles::Set.new(name, tags: tags, sample_rate: sample_rate, no_prefix: no_prefix, client: self)
        end
      end
    end
  end
end
