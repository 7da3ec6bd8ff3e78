# frozen_string_literal: true

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
  end
end
