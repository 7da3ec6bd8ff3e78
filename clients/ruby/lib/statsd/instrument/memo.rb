# frozen_string_literal: true

module StatsD
  module Instrument
    # Remembers a limited number of texts. It is read without a lock by many threads: what is added makes a new Hash.
    # What comes when it is full is not remembered, so that texts that are new each time cost a look-up and no more.
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
  end
end
