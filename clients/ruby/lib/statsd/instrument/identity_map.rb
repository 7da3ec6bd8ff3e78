# frozen_string_literal: true

module StatsD
  module Instrument
    # One value per thread, read without a lock from any thread and from signal handlers.
    #
    # Each change replaces a frozen Hash. Two threads that change it at the same moment may lose one
    # entry; callers only store objects that they can make again.
    # @api private
    class IdentityMap
      def initialize
        clear
      end

      # @return [Object, nil] the object stored for the thread
      def [](thread)
        @entries[thread]
      end

      # Entries of threads that ended are forgotten here.
      def []=(thread, value)
        entries = {}.compare_by_identity
        @entries.each { |key, kept| entries[key] = kept if key.alive? }
        entries[thread] = value
        @entries = entries.freeze
      end

      def values
        @entries.values
      end

      def clear
        @entries = {}.compare_by_identity.freeze
      end
    end
  end
end
