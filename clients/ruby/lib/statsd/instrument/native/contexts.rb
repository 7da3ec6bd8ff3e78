# frozen_string_literal: true

require "weakref"

module StatsD
  module Instrument
    module Native
      # The contexts of one client, as {Pure::Contexts}.
      # @api private
      class Contexts
        # Emitters that are remembered.
        MAX_EMITTERS = 4_096

        # Kinds of {Shelf} for the types of metrics.
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
          @variants = { nil => new_shelves }
        end

        # @return [Shelf]
        def shelf(type, variant)
          return @of_threads.shelf(type, variant) if type == :s

          (@variants[variant] ||= new_shelves)[type]
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
          @variants.each_value { |shelves| shelves.each_value(&:sweep) }
        end

        # @return [Cell]
        def add_cell(shelf, name, tags, template, core)
          return @of_threads.add_cell(shelf, name, tags, template, core) if template.type == :s

          cell = core.new_cell(template, self)
          # Another thread may have been quicker, or the tags cannot be remembered.
          kept = shelf.store(name, tags, cell)
          core.announce(cell) if kept.nil? || kept.equal?(cell)
          kept || cell
        end

        # @return [Emitter]
        def add_emitter(shelf, name, tags, template, sink)
          return @of_threads.add_emitter(shelf, name, tags, template, sink) if template.type == :s

          @variants.each_value { |shelves| shelves.each_value(&:clear) } if ((@size += 1) % MAX_EMITTERS).zero?
          queue = sink.instance_of?(BatchedSink)
          emitter = queue ? Emitter.new(template, sink.dispatcher) : Pure::Emitter.new(template, sink)
          shelf.store(name, tags, emitter) || emitter
        end

        # Reader.
        # @return [Boolean] whether nobody can record here any more
        def abandoned?
          !@client.nil? && !@client.weakref_alive?
        end

        private

        def new_shelves
          KINDS.transform_values { |kind| Shelf.new(@emitters ? "e".ord : kind) }
        end
      end
    end
  end
end
