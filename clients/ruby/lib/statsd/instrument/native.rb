# frozen_string_literal: true

require "weakref"

module StatsD
  module Instrument
    # The back end in C: contexts are found, and cells written, in one step under the global interpreter lock. So all
    # threads share one set of cells.
    # @api private
    module Native
      # Members of sets are kept in Ruby, each thread its own.
      SetCell = Pure::SetCell

      # The common part of these cells and {Pure::Cell}.
      class Cell
        # @return [Boolean] whether all threads may record into one cell
        def self.shared?
          true
        end

        # Only samples have bins.
        # @see Pure::Cell#fill
        def fill(_table); end

        # @see Pure::Cell#take_bins
        def take_bins; end

        # Opens the fast path of a handle, or closes it.
        # @param thread [Thread, nil]
        def own(thread)
          self.bound = !thread.nil?
        end
      end

      # The contexts of one client, as {Pure::Contexts}.
      # @api private
      class Contexts
        # Emitters that are remembered.
        MAX_EMITTERS = 4_096

        # Kinds of {ContextMap} for the types of metrics.
        KINDS = { c: "c", g: "g", ms: "m", h: "m", d: "m" }.transform_values(&:ord).freeze
        private_constant :KINDS

        # Reader of the cells, through their table: some have expired.
        attr_writer :sweep

        # @param emitters [Boolean] whether values are sent at once instead of kept in cells
        def initialize(client, emitters:)
          @client = Ractors.main? ? WeakRef.new(client) : nil
          @emitters = emitters
          @sweep = false
          @size = 0
          @of_threads = Pure::Contexts.new(client)
          @variants = { nil => new_maps }.freeze
        end

        # @return [ContextMap]
        def map_of(type, variant)
          return @of_threads.map_of(type, variant) if type == :s

          (@variants[variant] || add_variant(variant))[type]
        end

        # @return [Pure::Table] of the calling thread
        def table
          @of_threads.table
        end

        # Forgets contexts that nobody has used for long.
        def sweep
          @of_threads.sweep
          return unless @sweep

          @sweep = false
          @variants.each_value { |maps| maps.each_value(&:sweep) }
        end

        # @return [Cell]
        def add_cell(map, name, tags, template, core)
          return @of_threads.add_cell(map, name, tags, template, core) if template.type == :s

          cell = core.new_cell(template, self)
          # Another thread may have been quicker, or the tags cannot be remembered.
          kept = map.store(name, tags, cell)
          core.announce(cell) if kept.nil? || kept.equal?(cell)
          kept || cell
        end

        # @return [Emitter]
        def add_emitter(map, name, tags, template, sink)
          return @of_threads.add_emitter(map, name, tags, template, sink) if template.type == :s

          @variants.each_value { |maps| maps.each_value(&:clear) } if ((@size += 1) % MAX_EMITTERS).zero?
          queue = sink.instance_of?(BatchedSink)
          emitter = queue ? Emitter.new(template, sink.dispatcher) : Pure::Emitter.new(template, sink)
          map.store(name, tags, emitter) || emitter
        end

        # Reader.
        # @return [Boolean] whether nobody can record here any more
        def abandoned?
          !@client.nil? && !@client.weakref_alive?
        end

        private

        # Replaces the whole Hash: other threads may be going through it.
        def add_variant(variant)
          maps = new_maps
          @variants = @variants.merge(variant => maps).freeze
          maps
        end

        def new_maps
          KINDS.transform_values { |kind| ContextMap.new(@emitters ? "e".ord : kind) }
        end
      end
    end
  end
end
