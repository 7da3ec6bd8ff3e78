# frozen_string_literal: true

module StatsD
  module Instrument
    # The text rules of the protocol: what may stand in a name, a tag, a value or a field, and what
    # happens to bytes that may not. Nothing here knows about clients, sinks or sockets.
    #
    # Every method accepts any object and never modifies its argument. Text is returned as valid
    # UTF-8, because a server rejects a message that is not.
    # @api private
    module Wire
      # One look-up less than by its full name, for each name and tag.
      UTF8 = Encoding::UTF_8
      private_constant :UTF8

      # Stands in for bytes that are not UTF-8.
      REPLACEMENT = "?"

      # `_e{` opens an event, so it cannot open a metric name.
      UNSAFE_NAME = /[:|@\n]|\A_e\{/
      UNSAFE_TAG = /[|,\n]/
      UNSAFE_TAG_TEXT = /[|#\n]/
      UNSAFE_FIELD = /[|\n]/
      # Short enough, exponent included, to be a finite float.
      NUMBER = /\A(?=.{1,200}\z)[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?\z/
      # Servers read numbers as floats, which end below 2 to the power of 1024, a number of 309 digits.
      MAX_BITS = 1024
      # Arrays in Arrays of tags.
      MAX_NESTING = 3
      private_constant :MAX_NESTING, :UNSAFE_NAME, :UNSAFE_TAG, :UNSAFE_TAG_TEXT, :UNSAFE_FIELD, :NUMBER, :MAX_BITS

      # Objects whose text cannot change while their `hash` stays the same. Only tags made of these
      # may serve as a memo key. Floats are left out: two NaNs are never equal, so each would be new.
      STABLE_TAG_CLASSES = [String, Symbol, Integer, NilClass, TrueClass, FalseClass].freeze

      module_function

      # @param object [#to_s]
      # @return [String] valid UTF-8; the same object when it already is
      def utf8(object)
        text = object.to_s
        encoding = text.encoding
        if UTF8.equal?(encoding) || encoding == Encoding::US_ASCII
          text.valid_encoding? ? text : text.dup.force_encoding(Encoding::UTF_8).scrub(REPLACEMENT)
        elsif encoding == Encoding::BINARY
          text = text.dup.force_encoding(Encoding::UTF_8)
          text.valid_encoding? ? text : text.scrub(REPLACEMENT)
        else
          text.encode(Encoding::UTF_8, invalid: :replace, undef: :replace, replace: REPLACEMENT)
        end
      end

      # @return [String] the name with `:`, `|`, `@` and newlines turned into `_`
      def name(object)
        text = String === object && UTF8.equal?(object.encoding) && object.valid_encoding? ? object : utf8(object)
        return text unless UNSAFE_NAME.match?(text)

        text.tr(":|@\n", "_").sub(/\A_e\{/, "_e_")
      end

      # @return [String] one tag without the characters that separate tags and fields
      def tag(object)
        text = utf8(object)
        UNSAFE_TAG.match?(text) ? text.delete("|,\n") : text
      end

      # @return [String] the value of a field such as a host name
      def field(object)
        text = String === object && UTF8.equal?(object.encoding) && object.valid_encoding? ? object : utf8(object)
        UNSAFE_FIELD.match?(text) ? text.delete("|\n") : text
      end

      # @return [String] event text with its newlines escaped, so that it stays on one line
      def escape_newlines(object)
        text = String === object && UTF8.equal?(object.encoding) && object.valid_encoding? ? object : utf8(object)
        text.include?("\n") ? text.gsub("\n", "\\n") : text
      end

      # @param tags [Hash, Array, String, Symbol, nil]
      # @param sort [Boolean] whether equal sets of tags must give equal text
      # @return [String, nil] tags separated by commas, or nil when there are none
      def tags(tags, sort: false)
        return if tags.nil?

        text = plain_tags(tags) unless sort
        return text if text

        list = tag_list(tags)
        list.reject!(&:empty?)
        return if list.empty?

        list.sort! if sort
        list.join(",")
      end

      # @return [String, nil] decimal text of a finite number, or nil for everything else
      def number(value)
        case value
        when Integer then value.to_s if value.bit_length < MAX_BITS
        when Float then value.to_s if value.finite?
        when String then value if NUMBER.match?(value)
        when nil, true, false then nil
        else other_number(value)
        end
      end

      # @return [String, nil] a member of a set, or nil when nothing is left of it
      def member(value)
        text = field(value)
        text unless text.empty?
      end

      # Sums of floats drift; sums of rationals do not, and one float is exactly one rational.
      # @return [Integer, Rational, nil] the exact value, or nil if it is not a finite number
      def exact(value)
        case value
        when Integer then value if value.bit_length < MAX_BITS
        when Rational then value if value.to_f.finite?
        else
          text = number(value)
          text && Rational(text)
        end
      end

      # @param sum [Integer, Rational]
      # @return [String, nil] nil if no float is as large
      def sum(sum)
        sum = sum.numerator if Rational === sum && sum.denominator == 1
        Integer === sum ? number(sum) : number(sum.to_f)
      end

      # @return [Boolean] whether the object may be the key of a memo: no element can change its text
      #   without changing its hash
      def stable?(tags)
        case tags
        when String, Symbol then true
        when Array then tags.all? { |tag| stable_element?(tag) }
        when Hash
          !tags.compare_by_identity? && tags.all? { |key, value| stable_element?(key) && stable_element?(value) }
        else false
        end
      end

      # @param tags [Hash, Array, String, Symbol] for which {stable?} holds
      # @return [Hash, Array, String, Symbol] an equal object that nobody else can modify
      def frozen_copy(tags)
        case tags
        when Hash
          copy = {}
          tags.each { |key, value| copy[frozen_element(key)] = frozen_element(value) }
          copy.freeze
        when Array then tags.map { |tag| frozen_element(tag) }.freeze
        else frozen_element(tags)
        end
      end

      # @return [Boolean] whether neither the object nor anything in it can change any more
      def deeply_frozen?(tags)
        return false unless tags.frozen?

        case tags
        when Hash then tags.all? { |key, value| key.frozen? && value.frozen? }
        when Array then tags.all?(&:frozen?)
        else true
        end
      end

      # Joins tags that need no care, which most do not, and looks at all of them at once.
      # @return [String, nil] nil when they have to be looked at one by one
      # @api private
      def plain_tags(tags)
        if Hash === tags
          tags = tags.map { |key, value| "#{key}:#{value}" }
        elsif !(Array === tags && tags.all?(String)) || tags.include?("")
          return
        end
        text = tags.join(",")
        text if UTF8.equal?(text.encoding) && text.valid_encoding? && !UNSAFE_FIELD.match?(text) &&
                text.count(",") == tags.size - 1
      rescue Encoding::CompatibilityError
        nil
      end

      # @api private
      def tag_list(tags)
        case tags
        when Hash then tags.map { |key, value| "#{tag(key)}:#{tag(value)}" }
        when String, Symbol
          text = utf8(tags)
          text = text.delete("\n").tr("|#", "_") if UNSAFE_TAG_TEXT.match?(text)
          text.split(",")
        else
          # Tags of tags are taken as what their author meant. An end, because an Array can contain itself.
          Array(tags).flatten(MAX_NESTING).flat_map { |one| Hash === one ? tag_list(one) : tag(one) }
        end
      end

      # @api private
      def other_number(value)
        return unless value.respond_to?(:to_f)
        return if value.respond_to?(:real?) && !value.real?

        float = value.to_f
        return unless float.finite?

        whole = value.respond_to?(:to_i) ? value.to_i : nil
        whole == value ? number(whole) : float.to_s
      rescue StandardError
        nil
      end

      # @api private
      def stable_element?(element)
        STABLE_TAG_CLASSES.include?(element.class)
      end

      # @api private
      def frozen_element(element)
        element.is_a?(String) && !element.frozen? ? element.dup.freeze : element
      end
    end
  end
end
