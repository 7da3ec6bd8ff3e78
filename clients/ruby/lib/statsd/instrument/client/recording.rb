# frozen_string_literal: true

module StatsD
  module Instrument
    class Client
      # The general path from a call to a sample in a cell, or to a message in the sink, for calls that the fast
      # paths of {Metrics} and of handles do not cover.
      # @api private
      module Recording
        # @return [Float, nil] the rate a call is sampled at; nil when every call counts
        # @api private
        def resolve_rate(sample_rate)
          rate = sample_rate || @implied_rate
          rate if rate && rate < 1
        end

        # @param sample_rate [Float, nil] as {#resolve_rate} returns it
        # @return [Template, nil] nil if the name is empty
        # @api private
        def template(type, name, tags, sample_rate: nil, no_prefix: false, cardinality: nil, sorted: false)
          if sorted && tags
            tags = Wire.tag_list(tags).reject(&:empty?).sort
            tags = nil if tags.empty?
          end
          template = Template.build(
            datagram_builder(no_prefix: no_prefix, cardinality: cardinality), type, name, sample_rate, tags
          )
          template unless template.nameless?
        end

        # @param mode [Mode]
        # @return [Boolean] whether a call with that rate counts
        # @api private
        def counts?(sample_rate, mode = @mode)
          return true if sample_rate.nil? && @implied_rate.nil?

          rate = resolve_rate(sample_rate)
          rate.nil? || mode.sample?(rate)
        end

        # Sends one value of a context at once.
        # @return [Object] {VOID}
        # @api private
        def emit_value(template, value, mode)
          return refuse("", value) if template.nil? || template.nameless?

          text = template.type == :s ? Wire.member(value) : Wire.number(value)
          text ? emit(template.datagram(text), mode) : refuse(template.head, value)
        end

        # Counts a sample that cannot be sent.
        # @return [Object] {VOID}
        # @api private
        def refuse(name, value)
          telemetry.count(:dropped_invalid)
          StatsD.logger.debug { "[#{self.class.name}] dropped #{name.inspect} with value #{value.inspect}" }
          VOID
        end

        protected

        # @return [DatagramBuilder]
        def datagram_builder(no_prefix:, cardinality: nil)
          key = cardinality ? [no_prefix, cardinality] : no_prefix
          @builders[key] || remember_builder(key, new_builder(no_prefix, cardinality))
        end

        def emit(datagram, mode = @mode)
          mode.sink << datagram
          VOID
        end

        private

        # Everything a fast path does not cover.
        def record(type, name, value, sample_rate, tags, no_prefix, pre_sampled, cardinality)
          mode = @mode
          gauge = type == :g && mode.core
          return VOID unless gauge || pre_sampled || counts?(sample_rate, mode)

          rate = gauge ? nil : resolve_rate(sample_rate)
          if mode.contexts
            done = put(mode, type, name, value, tags, rate, no_prefix, cardinality)
            return VOID if done
            return refuse(name, value) if done == false
          end
          send_now(mode, type, name, value, rate, tags, no_prefix, cardinality)
        end

        # @return [Boolean, nil] false if the value cannot be sent, nil if its context is not remembered: there are too
        #   many, or it has no name
        def put(mode, type, name, value, tags, rate, no_prefix, cardinality)
          map = mode.contexts.map_of(type, no_prefix || cardinality ? [rate, no_prefix, cardinality] : rate)
          done = map.put(name, tags, value)
          return done unless done.nil?

          name = name.to_s unless name.is_a?(String) || name.is_a?(Symbol)
          key = tags.nil? || Wire.stable?(tags) ? tags : Wire.tags(tags, sort: mode.core)
          done = map.put(name, key, value)
          return done unless done.nil?

          add_context(mode, map, type, name, key, tags, rate, no_prefix, cardinality)&.put(value)
        end

        # @return [Cell, Emitter, nil]
        def add_context(mode, map, type, name, key, tags, rate, no_prefix, cardinality)
          contexts = mode.contexts
          contexts.sweep
          core = mode.core
          if core&.full?
            telemetry.count(:overflowed)
            return
          end
          template = template(type, name, tags, sample_rate: rate, no_prefix: no_prefix, cardinality: cardinality,
                                                sorted: core)
          return unless template
          return contexts.add_cell(map, name, key, template, core) if core

          contexts.add_emitter(map, name, key, template, mode.sink)
        end

        # One message, for sinks that want to see each call and for contexts that are not remembered.
        def send_now(mode, type, name, value, rate, tags, no_prefix, cardinality)
          text = type == :s ? Wire.member(value) : Wire.number(value)
          return refuse(name, value) if text.nil? || name.to_s.empty?

          # The builder gets the object itself: an application's own may want more than its text.
          text = value if value.is_a?(Numeric) && type != :s
          builder = datagram_builder(no_prefix: no_prefix, cardinality: cardinality)
          emit(builder.public_send(type, name, text, rate, tags), mode)
        end

        def new_builder(no_prefix, cardinality)
          options = { prefix: no_prefix ? nil : @prefix, default_tags: @default_tags }
          fields = fields(check_cardinality(cardinality) || @cardinality)
          options[:fields] = fields if fields
          @datagram_builder_class.new(**options)
        end

        # Replaces the whole Hash, so that threads can read it without a lock.
        def remember_builder(key, builder)
          @builders = @builders.merge(key => builder).freeze
          # Read without a look-up by the calls that need it each time.
          @plain_builder = builder if key == false
          builder
        end

        # A plain StatsD server knows none of these and may drop the whole message.
        def fields(cardinality)
          return if @datagram_builder_class <= StatsDDatagramBuilder

          text = +""
          text << "|c:#{@container_id}" if @container_id
          text << "|e:#{@external_data}" if @external_data
          text << "|card:#{cardinality}" if cardinality
          text.freeze unless text.empty?
        end
      end
    end
  end
end
