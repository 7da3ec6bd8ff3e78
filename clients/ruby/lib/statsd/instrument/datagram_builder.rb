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

    # Messages for a plain StatsD server: no tags, no histograms or distributions, no extra fields.
    class StatsDDatagramBuilder < DatagramBuilder
      unsupported_datagram_types :h, :d, :kv

      protected

      def compile_tags(*)
        raise NotImplementedError, "#{self.class.name} does not support tags"
      end
    end

    # Messages for a DogStatsD server: tags, histograms, distributions, events and service checks.
    class DogStatsDDatagramBuilder < DatagramBuilder
      unsupported_datagram_types :kv

      def initialize(**)
        super
        @check_heads = Memo.new
      end

      SERVICE_CHECK_STATUSES = {
        ok: 0, warning: 1, critical: 2, unknown: 3, "ok" => 0, "warning" => 1, "critical" => 2, "unknown" => 3
      }.freeze
      UNSAFE_MESSAGE = /[|\n]|m:/
      private_constant :SERVICE_CHECK_STATUSES, :UNSAFE_MESSAGE

      class << self
        # (see DatagramBuilder.datagram_class)
        def datagram_class
          DogStatsDDatagram
        end
      end

      # (see DatagramBuilder#latency_metric_type)
      def latency_metric_type
        :d
      end

      # @param title [String] the client's prefix is written before it
      # @param text [String] may span several lines
      # @param timestamp [Time, Integer, nil] when it happened; nil means on arrival
      # @param hostname [String, nil]
      # @param aggregation_key [String, nil] events with the same key are shown together
      # @param priority [String, nil] `"normal"` or `"low"`
      # @param source_type_name [String, nil]
      # @param alert_type [String, nil] `"error"`, `"warning"`, `"info"` or `"success"`
      # @param tags [Hash, Array<String>, String, nil]
      # @return [String] an event message; its two lengths count bytes, as servers expect
      def _e(title, text, timestamp: nil, hostname: nil, aggregation_key: nil, priority: nil,
             source_type_name: nil, alert_type: nil, tags: nil)
        title = Wire.escape_newlines(title)
        title = @prefix + title unless @prefix.empty?
        text = Wire.escape_newlines(text)

        datagram = "_e{#{title.bytesize},#{text.bytesize}}:#{title}|#{text}"
        datagram << "|h:" << Wire.field(hostname) if hostname
        datagram << "|d:" << timestamp.to_i.to_s if timestamp
        datagram << "|k:" << Wire.field(aggregation_key) if aggregation_key
        datagram << "|p:" << Wire.field(priority) if priority
        datagram << "|s:" << Wire.field(source_type_name) if source_type_name
        datagram << "|t:" << Wire.field(alert_type) if alert_type
        append_tags(datagram, tags)
        datagram << @fields if @fields
        datagram
      end

      # @param name [String] name of the check
      # @param status [Symbol, String, Integer] `:ok`, `:warning`, `:critical`, `:unknown` or 0 to 3
      # @param timestamp [Time, Integer, nil] when the check ran; nil means on arrival
      # @param hostname [String, nil]
      # @param tags [Hash, Array<String>, String, nil]
      # @param message [String, nil] may span several lines
      # @return [String] a service check message
      # @raise [KeyError] if the status is none of those listed
      def _sc(name, status, timestamp: nil, hostname: nil, tags: nil, message: nil)
        datagram = "#{check_head(name)}#{SERVICE_CHECK_STATUSES[status] || check_status(status)}"
        datagram << "|h:" << Wire.field(hostname) if hostname
        datagram << "|d:" << timestamp.to_i.to_s if timestamp
        append_tags(datagram, tags)
        datagram << @fields if @fields
        # The message comes last; "m:" inside it is escaped so that nobody can forge a field.
        datagram << "|m:" << check_message(message) if message
        datagram
      end

      private

      # A status that is none of the usual texts and symbols.
      def check_status(status)
        Integer === status ? status : SERVICE_CHECK_STATUSES.fetch(status.to_sym)
      end

      # The same few checks are reported again and again.
      def check_head(name)
        known = @check_heads[name]
        return known if known

        head = "_sc|#{@prefix}#{Wire.name(name)}|"
        String === name ? @check_heads.remember(name, head) : head
      end

      def check_message(message)
        text = Wire.utf8(message)
        return text unless UNSAFE_MESSAGE.match?(text)

        Wire.escape_newlines(text).delete("|").gsub("m:", "m\\:")
      end
    end
  end
end
