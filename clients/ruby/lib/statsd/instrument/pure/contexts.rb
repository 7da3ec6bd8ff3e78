# frozen_string_literal: true

require "weakref"

module StatsD
  module Instrument
    module Pure
      # The contexts of one client: from the arguments of a call to a cell, or to an emitter when calls are not
      # aggregated.
      # @api private
      class Contexts
        # The contexts of one type. Remembers the thread that came last: most calls are of the same thread as the one
        # before.
        class ContextMap
          def initialize(contexts, type, variant)
            @contexts = contexts
            @type = type
            @variant = variant
            @recent = ThreadContextMap.new(nil)
          end

          # Records one sample.
          # @return [Boolean, nil] false: the value cannot be sent; nil: there is no such context yet
          def put(name, tags, value)
            own = @recent
            own = of_thread unless own.owner == Thread.current
            if tags
              tagged = own.tagged[name] or return
              entry = tagged.recent
              entry = tagged[tags] unless entry.tags.eql?(tags)
            else
              entry = own.plain[name]
            end
            entry&.put(value)
          end

          # @param tags [Object, nil] must be {Wire.stable?}
          # @return [Cell, Emitter] the entry
          def store(name, tags, entry)
            of_thread.store(name, tags, entry)
          end

          private

          def of_thread
            @recent = @contexts.table.map_of(@type, @variant)
          end
        end

        # @param client [Client]
        def initialize(client, **)
          # Weak references keep their books in a class variable, which other Ractors cannot read. Clients live as long
          # as those do.
          @client = Ractors.main? ? WeakRef.new(client) : nil
          @tables = PerThread.new
          @maps = {}.freeze
        end

        # @param variant [Object, nil] further parts of a context's identity: rate, prefix, cardinality
        # @return [ContextMap]
        def map_of(type, variant)
          maps = @maps[variant] || add_variant(variant)
          maps[type]
        end

        # @return [Table] of the calling thread
        def table
          thread = Thread.current
          @tables[thread] || @tables.reuse(thread) { true } || @tables.store(thread, Table.new(thread, @client))
        end

        # Forgets contexts that nobody has used for long.
        def sweep
          table.sweep_expired
        end

        # @param core [Aggregator::Core]
        # @return [Cell]
        def add_cell(map, name, tags, template, core)
          cell = core.new_cell(template, table)
          map.store(name, tags, cell)
          core.announce(cell)
          cell
        end

        # @return [Emitter]
        def add_emitter(map, name, tags, template, sink)
          table.make_room_for_emitter
          map.store(name, tags, Emitter.new(template, sink))
        end

        private

        # Replaces the whole Hash, so that threads can read it without a lock.
        def add_variant(variant)
          maps = %i[c g ms h d s].to_h { |type| [type, ContextMap.new(self, type, variant)] }
          @maps = @maps.merge(variant => maps).freeze
          maps
        end
      end
    end
  end
end
