# frozen_string_literal: true

require "weakref"

module StatsD
  module Instrument
    # What the native extension changes in a {Client}: contexts are found, and cells written, in one step
    # under the global interpreter lock. So all threads share one set of cells.
    # @api private
    module NativeCalls
      # The contexts of one client.
      class Shelves
        # Reader of the cells: some have expired.
        attr_accessor :sweep

        # @return [Integer] contexts
        attr_accessor :size

        # @param emitters [Boolean] whether values are sent at once instead of kept in cells
        def initialize(client, emitters:)
          @client = Ractors.main? ? WeakRef.new(client) : nil
          @emitters = emitters
          @sweep = false
          @size = 0
          @variants = { nil => new_shelves }
        end

        # @return [Native::Shelf]
        def shelf(type, variant)
          (@variants[variant] ||= new_shelves)[type]
        end

        def sweep_expired
          @sweep = false
          @variants.each_value { |shelves| shelves.each_value(&:sweep) }
        end

        def abandoned?
          !@client.nil? && !@client.weakref_alive?
        end

        private

        def new_shelves
          { c: "c", g: "g", ms: "m", h: "m", d: "m" }.transform_values do |kind|
            Native::Shelf.new((@emitters ? "e" : kind).ord)
          end
        end
      end

      # These stand before the methods of {Client} and take the same arguments. Calling `super` with
      # keywords would cost a Hash for each call, so they end as those do.

      def increment(name, value = 1, sample_rate: nil, tags: nil, no_prefix: false, by: nil, pre_sampled: false,
                    cardinality: nil, timestamp: nil)
        if (shelf = @native_counters) && !(sample_rate || no_prefix || by || cardinality || timestamp)
          done = shelf.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        return stamped(:c, name, by || value, tags, no_prefix, cardinality, timestamp) if timestamp

        record(:c, name, by || value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      def gauge(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil,
                timestamp: nil)
        if (shelf = @native_gauges) && !(no_prefix || cardinality || timestamp)
          done = shelf.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        return stamped(:g, name, value, tags, no_prefix, cardinality, timestamp) if timestamp

        record(:g, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      def measure(name, value = nil, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false,
                  cardinality: nil, &block)
        if block_given?
          return time_block(:ms, name, sample_rate, tags, no_prefix, pre_sampled, cardinality, &block)
        end

        if (shelf = @native_timings) && !(sample_rate || no_prefix || cardinality)
          done = shelf.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        record(:ms, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      def histogram(name, value, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false, cardinality: nil)
        if (shelf = @native_histograms) && !(sample_rate || no_prefix || cardinality)
          done = shelf.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        record(:h, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      def distribution(name, value = nil, sample_rate: nil, tags: nil, no_prefix: false, pre_sampled: false,
                       cardinality: nil, &block)
        if block_given?
          return time_block(:d, name, sample_rate, tags, no_prefix, pre_sampled, cardinality, &block)
        end

        if (shelf = @native_distributions) && !(sample_rate || no_prefix || cardinality)
          done = shelf.put(name, tags, value)
          return VOID if done
          return refuse(name, value) if done == false
        end
        record(:d, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
      end

      def after_fork
        @native_cells = @native_emitters = nil
        super
      end

      private

      def enter_mode
        super
        @native_shelves = if @aggregating
                            @native_cells ||= Shelves.new(self, emitters: false)
                          elsif @remembers
                            @native_emitters ||= Shelves.new(self, emitters: true)
                          end
        plain = @native_shelves if @implied_rate.nil?
        @native_counters = plain&.shelf(:c, nil)
        # Gauges are not sampled when they are aggregated.
        @native_gauges = @aggregating ? @native_shelves.shelf(:g, nil) : nil
        @native_timings = plain&.shelf(:ms, nil)
        @native_histograms = plain&.shelf(:h, nil)
        @native_distributions = plain&.shelf(:d, nil)
      end

      def deposit(type, name, value, tags, rate, no_prefix, cardinality)
        # The members of a set are kept in Ruby, each thread its own.
        shelves = @native_shelves
        return super if shelves.nil? || type == :s

        shelf = shelves.shelf(type, variant(rate, no_prefix, cardinality))
        done = shelf.put(name, tags, value)
        return done unless done.nil?

        name = name.to_s unless name.is_a?(String) || name.is_a?(Symbol)
        key = tags.nil? || Wire.stable?(tags) ? tags : Wire.tags(tags, sort: @aggregating)
        done = shelf.put(name, key, value)
        return done unless done.nil?

        new_entry(shelves, shelf, type, name, key, tags, rate, no_prefix, cardinality)&.put(value)
      end

      def deposit_time(type, name, elapsed, tags)
        return false unless @native_timings

        @native_shelves.shelf(type, nil).put(name, tags, elapsed)
      end

      def new_entry(shelves, shelf, type, name, key, tags, rate, no_prefix, cardinality)
        shelves.sweep_expired if shelves.sweep
        core = @aggregator.core if @aggregating
        if core&.full?
          telemetry.count(:overflowed)
          return
        end
        template = template(type, name, tags, sample_rate: rate, no_prefix: no_prefix, cardinality: cardinality,
                                              sorted: @aggregating)
        return unless template

        entry = core ? new_cell(template, shelves) : new_emitter(template, shelves)
        kept = shelf.store(name, key, entry)
        core&.announce(entry) if kept.nil? || kept.equal?(entry)
        kept || entry
      end

      def new_emitter(template, shelves)
        shelves.size += 1
        if shelves.size > Client::MAX_EMITTERS
          @native_emitters = nil
          enter_mode
        end
        if template.type != :s && @sink.instance_of?(BatchedSink)
          Native::Emitter.new(template, @sink.dispatcher)
        else
          Emitter.new(template, @sink)
        end
      end
    end

    Client.prepend(NativeCalls)
  end
end
