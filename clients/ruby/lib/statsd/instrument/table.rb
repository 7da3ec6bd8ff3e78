# frozen_string_literal: true

require "weakref"

module StatsD
  module Instrument
    # What one thread remembers about the contexts it records for one client: from the arguments of a
    # call straight to a cell, or to an emitter when calls are not aggregated.
    #
    # Only its thread touches the maps, so they need no lock. Other threads reach the cells through
    # the {Aggregator}, which every new cell is announced to.
    # @api private
    class Table
      TYPES = %i[c g ms h d s].freeze
      private_constant :TYPES

      # Entries by tags, for one name.
      class TagMap
        # The entry used last. Comparing tags costs a third of hashing them, and the same call site
        # tends to come with the same tags.
        # @return [Cell, Emitter]
        attr_reader :recent

        # @param entry [Cell, Emitter] the first
        def initialize(tags, entry)
          @pinned = {}.compare_by_identity
          @content = {}
          store(tags, entry)
        end

        # @return [Cell, Emitter, nil]
        def [](tags)
          entry = @pinned[tags] || @content[tags]
          @recent = entry if entry
          entry
        end

        # @param tags [Object] must be {Wire.stable?}
        def store(tags, entry)
          if Wire.deeply_frozen?(tags)
            # Tags that can never change are found by identity. The same content may come in ever new
            # objects; a few of them are enough.
            @pinned[tags] = entry if @pinned.size < @content.size + 8
          else
            tags = Wire.frozen_copy(tags)
          end
          @content[tags] = entry
          entry.tags = tags
          @recent = entry
        end

        def delete_if(&block)
          @pinned.delete_if { |_, entry| block.call(entry) }
          @content.delete_if { |_, entry| block.call(entry) }
          @recent = @content.each_value.first
        end

        def empty?
          @content.empty?
        end
      end

      # One type of metric: entries by name, and by name and tags.
      class Shelf
        # @return [Hash{String => Object}] contexts without tags
        attr_reader :plain
        # @return [Hash{String => TagMap}] contexts with tags
        attr_reader :tagged

        def initialize
          @plain = {}
          @tagged = {}
        end

        # @return [Object, nil]
        def [](name, tags)
          return @plain[name] unless tags

          map = @tagged[name]
          return unless map

          recent = map.recent
          recent.tags.eql?(tags) ? recent : map[tags]
        end

        # @param tags [Object, nil] must be {Wire.stable?}
        def store(name, tags, entry)
          return @plain[name] = entry unless tags

          map = @tagged[name]
          map ? map.store(tags, entry) : @tagged[name] = TagMap.new(tags, entry)
          entry
        end

        def delete_if(&block)
          @plain.delete_if { |_, entry| block.call(entry) }
          @tagged.delete_if do |_, map|
            map.delete_if(&block)
            map.empty?
          end
        end
      end

      # @return [Thread, nil] the thread that may use the table
      attr_reader :owner
      # Reader of the cells: some have expired.
      attr_accessor :sweep
      # Maps of calls with nothing but a name and tags, for the fast paths.
      attr_reader :plain_counters, :tagged_counters, :plain_gauges, :tagged_gauges, :plain_timings, :tagged_timings,
                  :plain_histograms, :tagged_histograms, :plain_distributions, :tagged_distributions
      # @return [Hash{Object => Cell}] cells this thread uses for handles that another thread owns
      attr_reader :handles

      # @return [Integer] entries made so far
      attr_accessor :size

      # @param owner [Thread, nil] nil for a table that every call misses
      # @param client [Client, nil] the cells are abandoned when it is gone
      def initialize(owner, client = nil)
        @owner = owner
        # Weak references keep their books in a class variable, which other Ractors cannot read. Clients live as long
        # as those do.
        @client = client && Ractors.main? ? WeakRef.new(client) : nil
        @sweep = false
        @size = 0
        @shelves = new_shelves
        @variants = {}
        @handles = {}.compare_by_identity
        @skips = {}
        @plain_counters, @tagged_counters = maps(:c)
        @plain_gauges, @tagged_gauges = maps(:g)
        @plain_timings, @tagged_timings = maps(:ms)
        @plain_histograms, @tagged_histograms = maps(:h)
        @plain_distributions, @tagged_distributions = maps(:d)
      end

      # @param variant [Object, nil] what else tells contexts apart: rate, prefix, cardinality
      # @return [Shelf] cells
      def shelf(type, variant)
        return @shelves[type] if variant.nil?

        (@variants[variant] ||= new_shelves)[type]
      end

      # Draws how many calls to leave out until the next one counts, instead of a random number for
      # each call. Both give every call the same independent chance.
      # @param rate [Float] from 0 to 1
      # @return [Boolean] whether this call counts
      def sample?(rate)
        skip = @skips[rate] || draw(rate)
        if skip.zero?
          @skips[rate] = draw(rate)
          true
        else
          @skips[rate] = skip - 1
          false
        end
      end

      # Forgets cells that the reader has marked.
      def sweep_expired
        @sweep = false
        leave = lambda do |cell|
          cell.removed = true if cell.expired
          cell.removed
        end
        @shelves.each_value { |shelf| shelf.delete_if(&leave) }
        @variants.each_value { |shelves| shelves.each_value { |shelf| shelf.delete_if(&leave) } }
        @handles.delete_if { |_, cell| leave.call(cell) }
      end

      # @return [Boolean] whether nobody can record here any more
      def abandoned?
        !@owner.alive? || (!@client.nil? && !@client.weakref_alive?)
      end

      private

      def new_shelves
        TYPES.to_h { |type| [type, Shelf.new] }
      end

      def maps(type)
        shelf = @shelves[type]
        [shelf.plain, shelf.tagged]
      end

      def draw(rate)
        return 0 if rate >= 1

        denominator = Math.log(1.0 - rate)
        # A rate this close to 0 means never.
        return 1 << 62 if denominator.zero?

        (Math.log(1.0 - Kernel.rand) / denominator).floor
      end
    end
  end
end
