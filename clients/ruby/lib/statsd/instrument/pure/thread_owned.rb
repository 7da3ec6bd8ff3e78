# frozen_string_literal: true

module StatsD
  module Instrument
    module Pure
      # Objects of one thread, which pass to another when that one has ended: a server with a thread for each request
      # would otherwise fill the memory with cells that nobody uses any more.
      #
      # Two parties want it then: a new thread, to use it again, and the reader, to drop its cells. The lock is held
      # for a moment only, and nobody waits for it.
      # @api private
      module ThreadOwned
        # @return [Thread, nil]
        attr_reader :owner

        # @param thread [Thread, nil]
        def own_by(thread)
          @owner = thread
          @retired = false
          @claim = Mutex.new
        end

        # @param thread [Thread] the new owner
        # @return [Boolean] whether it may be used from now on
        def take_over(thread)
          return false unless ended? && @claim.try_lock

          begin
            return false unless ended?

            change_owner(thread)
            true
          ensure
            @claim.unlock
          end
        end

        # Reader.
        # @return [Boolean] whether no thread uses it or ever will
        def retire
          return true if @retired
          return false unless ended? && @claim.try_lock

          begin
            @retired = ended?
          ensure
            @claim.unlock
          end
        end

        # @return [Boolean]
        def retired?
          @retired
        end

        private

        def ended?
          !@retired && !@owner.alive?
        end

        def change_owner(thread)
          @owner = thread
        end
      end

      # The objects of one kind of all threads, found without a lock from any thread and from signal handlers.
      #
      # Each change replaces a frozen Hash. Two threads that change it at the same moment may lose one entry: that
      # thread makes another one at its next call, and samples recorded into the first are flushed too.
      # @api private
      class PerThread
        # Number of objects of ended threads that are kept for reuse.
        SPARE = 64

        def initialize
          clear
        end

        def clear
          @entries = {}.compare_by_identity.freeze
        end

        # @return [ThreadOwned, nil]
        def [](thread)
          @entries[thread]
        end

        # @return [ThreadOwned] one of an ended thread for which the block is truthy, or nil
        def reuse(thread)
          found = @entries.each_value.find { |entry| yield(entry) && entry.take_over(thread) }
          store(thread, found) if found
        end

        # @return [ThreadOwned] the entry
        def store(thread, entry)
          entries = {}.compare_by_identity
          spare = 0
          @entries.each_value do |kept|
            next if kept.retired? || (!kept.owner.alive? && (spare += 1) > SPARE)

            entries[kept.owner] = kept
          end
          entries[thread] = entry
          @entries = entries.freeze
          entry
        end
      end
    end
  end
end
