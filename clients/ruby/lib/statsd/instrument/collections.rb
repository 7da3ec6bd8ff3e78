# frozen_string_literal: true

require "weakref"

module StatsD
  module Instrument
    # Remembers a limited number of texts. Many threads read it without a lock: each addition makes a new Hash.
    # When it is full, further texts are not remembered, so a text that is new each time costs one look-up.
    # @api private
    class Memo
      # Texts that are remembered.
      LIMIT = 256

      def initialize
        @texts = {}.freeze
      end

      # @return [String, nil]
      def [](key)
        @texts[key]
      end

      # @param key [Object] that nobody changes any more
      # @param text [String]
      # @return [String] the text
      def remember(key, text)
        text = text.dup.freeze unless text.frozen?
        @texts = @texts.merge(key => text).freeze if @texts.size < LIMIT
        text
      end
    end

    if RUBY_ENGINE == "ruby"
      # Weak references to objects: asking for them returns the live ones.
      #
      # Each object is its own value in the map. Before Ruby 3.2 a WeakMap looks only at the value when it
      # decides whether a pair is alive, so a map from objects to `true` hands out objects that the collector
      # has condemned but not yet swept, with parts of them gone (Ruby's bug 18586). Calling a method
      # of one, or merely keeping it, crashes the interpreter.
      # @api private
      class WeakSet
        def initialize
          @map = ObjectSpace::WeakMap.new
        end

        # @return [self]
        def add(object)
          @map[object] = object
          self
        end

        # @return [Array] the objects that are alive, in no particular order
        def to_a
          @map.keys
        end
      end
    else
      # The same for JRuby, where a WeakMap keeps its keys alive.
      # @api private
      class WeakSet
        def initialize
          @references = []
          @limit = 16
          @lock = Mutex.new
        end

        def add(object)
          @lock.synchronize do
            if @references.size >= @limit
              # Looking through all of them each time they have doubled costs each addition a constant.
              @references.select!(&:weakref_alive?)
              @limit = [16, @references.size * 2].max
            end
            @references << WeakRef.new(object)
          end
          self
        end

        def to_a
          alive = @lock.synchronize { @references.dup }.filter_map do |reference|
            reference.__getobj__
          rescue WeakRef::RefError
            nil
          end
          alive.uniq(&:__id__)
        end
      end
    end

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
