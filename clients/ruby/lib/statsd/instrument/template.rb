# frozen_string_literal: true

module StatsD
  module Instrument
    # The unchanging bytes of one context, before and after the value.
    # @api private
    class Template
      # @return [String] prefix, name and colon
      attr_reader :head
      # @return [String] type, rate, tags and fields
      attr_reader :tail
      # @return [String] the same as bytes
      attr_reader :head_bytes, :tail_bytes
      # @return [Symbol] `:c`, `:g`, `:ms`, `:s`, `:h` or `:d`
      attr_reader :type

      # Any builder will do, an application's own included: the bytes around a sample value are those
      # around every value, because a name contains no colon.
      #
      # @param builder [DatagramBuilder]
      # @return [Template]
      def self.build(builder, type, name, sample_rate, tags)
        datagram = builder.public_send(type, name, 0, sample_rate, tags)
        colon = datagram.index(":")
        new(type, datagram[..colon], datagram[datagram.index("|", colon)..])
      end

      def initialize(type, head, tail)
        @type = type
        @head = head.freeze
        @tail = tail.freeze
        @head_bytes = head.b.freeze
        @tail_bytes = tail.b.freeze
      end

      # @return [Columns::Identity]
      def identity
        @identity ||= Columns::Identity.new(self)
      end

      # @return [Boolean] whether the name is empty, which no server accepts
      def nameless?
        @head == ":"
      end

      # @param value [#to_s]
      # @return [String] one message
      def datagram(value)
        "#{@head}#{value}#{@tail}"
      end

      # @return [String] equal for equal contexts
      def key
        "#{@head}#{@tail}"
      end
    end
  end
end
