# frozen_string_literal: true

module StatsD
  module Instrument
    # Writes metrics as messages. A builder is bound to one prefix and one set of default tags;
    # subclasses decide which types and fields the server understands.
    #
    # Prefix, default tags and trailing fields are written to text once, when the builder is made.
    class DatagramBuilder
      class << self
        # Declares metric types that the implementation does not have.
        # @param types [Array<Symbol>]
        # @return [void]
        def unsupported_datagram_types(*types)
          types.each do |type|
            define_method(type) do |*|
              raise NotImplementedError, "#{self.class.name} does not support metrics of type #{type}"
            end
          end
        end

        # @return [Class] the parser of this builder's messages
        def datagram_class
          Datagram
        end
      end

      # @param prefix [String, nil] written before each name, followed by a dot
      # @param default_tags [Hash, Array<String>, String, nil] written before the tags of a call
      # @param fields [String, nil] text written after the tags of every message
      def initialize(prefix: nil, default_tags: nil, fields: nil)
        @tag_texts = Memo.new
        @prefix = prefix.nil? ? "" : "#{Wire.name(prefix)}.".freeze
        @default_tags = compile_default_tags(default_tags)
        @fields = fields
      end

      # @!method c(name, value, sample_rate, tags)
      #   @return [String] a counter message
      # @!method g(name, value, sample_rate, tags)
      #   @return [String] a gauge message
      # @!method ms(name, value, sample_rate, tags)
      #   @return [String] a timing message, in milliseconds
      # @!method s(name, value, sample_rate, tags)
      #   @return [String] a set message
      # @!method h(name, value, sample_rate, tags)
      #   @return [String] a histogram message
      # @!method d(name, value, sample_rate, tags)
      #   @return [String] a distribution message
      # @!method kv(name, value, sample_rate, tags)
      #   @return [String] a key/value message
      %w[c g ms s h d kv].each do |type|
        # Written as text, because methods made of blocks work only in the Ractor that made them.
        class_eval(<<~RUBY, __FILE__, __LINE__ + 1)
          def #{type}(name, value, sample_rate, tags)
            generate_generic_datagram(name, value, "#{type}", sample_rate, tags)
          end
        RUBY
      end

      # @param values [Array<Numeric>] samples of one context
      # @return [String] one message with all samples
      def timing_value_packed(name, type, values, sample_rate, tags)
        generate_generic_datagram(name, values.join(":"), type, sample_rate, tags)
      end

      # @return [Symbol] the default type of {Client#latency}
      def latency_metric_type
        :ms
      end

      # @param tags [Hash, Array<String>, String, nil]
      # @param buffer [String] appended to
      # @return [String] the buffer with the tags as they are sent
      def normalize_tags(tags, buffer = +"")
        buffer << (compile_tags(tags) || "")
      end

      protected

      def normalize_name(name)
        Wire.name(name)
      end

      def generate_generic_datagram(name, value, type, sample_rate, tags)
        datagram = "#{@prefix}#{Wire.name(name)}:#{type == "s" ? Wire.field(value) : value}|#{type}"
        datagram << "|@#{sample_rate}" if sample_rate && sample_rate < 1
        append_tags(datagram, tags)
        datagram << @fields if @fields
        datagram
      end

      def append_tags(datagram, tags)
        datagram << @default_tags if @default_tags
        return datagram if tags.nil? || tags.empty?

        text = @tag_texts[tags] || tag_text(tags)
        datagram << (@default_tags ? "," : "|#") << text if text
        datagram
      end

      def compile_tags(tags)
        Wire.tags(tags)
      end

      private

      # @return [String, nil]
      def tag_text(tags)
        text = compile_tags(tags)
        text && Wire.stable?(tags) ? @tag_texts.remember(Wire.frozen_copy(tags), text) : text
      end

      def compile_default_tags(tags)
        return if tags.nil? || tags.empty?

        text = compile_tags(tags)
        "|##{text}".freeze if text
      end
    end
  end
end
