# frozen_string_literal: true

module StatsD
  module Instrument
    module Pure
      # Entries by tags, for one name.
      # @api private
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

      # The contexts of one type of one thread, by name, and by name and tags.
      # @api private
      class ThreadContextMap
        # @return [Thread, nil]
        attr_accessor :owner
        # @return [Hash{String => Object}] contexts without tags
        attr_reader :plain
        # @return [Hash{String => TagMap}] contexts with tags
        attr_reader :tagged

        def initialize(owner)
          @owner = owner
          @plain = {}
          @tagged = {}
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

        def clear
          @plain.clear
          @tagged.clear
        end
      end

      # The memory of one thread about the contexts it records for one client. Only its thread touches the maps, so
      # they need no lock. The flush reaches the cells through the {Aggregator}, which every new cell is announced to.
      # @api private
      class Table
        include ThreadOwned

        # Emitters one thread remembers.
        MAX_EMITTERS = 4_096

        # Reader of the cells: some have expired.
        attr_accessor :sweep
        # @return [Hash{Object => Cell}] cells this thread uses for handles that another thread owns
        attr_reader :handles

        # @param owner [Thread]
        # @param client [WeakRef, nil] the cells are abandoned when it was collected
        def initialize(owner, client)
          own_by(owner)
          @client = client
          @sweep = false
          @maps = {}
          @handles = {}.compare_by_identity
          @skips = {}
          @emitters = 0
        end

        # @param variant [Object, nil] further parts of a context's identity: rate, prefix, cardinality
        # @return [ThreadContextMap]
        def map_of(type, variant)
          maps = @maps[variant] ||= {}
          maps[type] ||= ThreadContextMap.new(@owner)
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
          return unless @sweep

          @sweep = false
          leave = lambda do |cell|
            cell.removed = true if cell.expired
            cell.removed
          end
          each_map { |map| map.delete_if(&leave) }
          @handles.delete_if { |_, cell| leave.call(cell) }
        end

        # Emitters hold nothing that could be lost: a thread with too many begins again.
        def make_room_for_emitter
          @emitters += 1
          return if @emitters <= MAX_EMITTERS

          each_map(&:clear)
          @emitters = 1
        end

        # Reader.
        # @return [Boolean] whether nobody can record here any more
        def abandoned?
          (!@client.nil? && !@client.weakref_alive?) || retire
        end

        private

        def each_map(&block)
          @maps.each_value { |maps| maps.each_value(&block) }
        end

        def change_owner(thread)
          each_map { |map| map.owner = thread }
          super
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
end
