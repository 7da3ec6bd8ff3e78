# frozen_string_literal: true

module StatsD
  module Instrument
    # One message as it goes over the wire, read back into its parts. Test helpers and
    # {Client#capture} return these.
    #
    # Two datagrams are equal when their text is equal; a datagram also equals its text.
    class Datagram
      # @return [String] the message as it was written
      attr_reader :source

      # @param source [String] one message, with or without its final newline
      def initialize(source)
        @source = source
      end

      # @return [Float] the rate the message was sampled at, 1.0 when it names none
      def sample_rate
        rate = parts[:sample_rate]
        rate ? Float(rate) : 1.0
      end

      # @return [Symbol] `:c`, `:g`, `:ms`, `:s`, `:h` or `:d`
      def type
        parts[:type]
      end

      # @return [String]
      def name
        parts[:name]
      end

      # @return [Integer, Float, String, Array<Float>] an array when the message packs several values
      def value
        @value ||= convert_value
      end

      # @return [Array<String>, nil]
      def tags
        @tags ||= parts[:tags]&.split(",")
      end

      # @return [String, nil] container id or cgroup inode sent for origin detection
      def container_id
        parts[:container_id]
      end

      # @return [String, nil] external data sent for origin detection
      def external_data
        parts[:external_data]
      end

      # @return [String, nil] requested tag cardinality
      def cardinality
        parts[:cardinality]
      end

      # @return [Integer, nil] seconds since the epoch, for counts and gauges sent with a timestamp
      def unix_timestamp
        parts[:unix_timestamp]&.to_i
      end

      # @return [String]
      def inspect
        "#<#{self.class.name}:\"#{@source}\">"
      end

      # @return [Integer] equal for equal messages
      def hash
        source.hash
      end

      # @return [Boolean] whether the other is the same message, as a datagram or as text
      def eql?(other)
        case other
        when Datagram then source == other.source
        when String then source == other
        else false
        end
      end

      alias == eql?

      private

      METRIC_TYPES = %w[c g ms s h d].freeze
      private_constant :METRIC_TYPES

      # Sections by their first characters; longer prefixes come first.
      SECTIONS = {
        "card:" => :cardinality,
        "c:" => :container_id,
        "e:" => :external_data,
        "@" => :sample_rate,
        "#" => :tags,
        "T" => :unix_timestamp
      }.freeze
      private_constant :SECTIONS

      def parts
        @parts ||= parse(@source.chomp)
      end

      def parse(line)
        head, type, *sections = line.split("|", -1)
        name, separator, value = head.to_s.partition(":")
        invalid! if separator.empty? || name.empty? || value.empty?
        invalid! if name.include?("@") || !METRIC_TYPES.include?(type)

        found = { name: name, value: value, type: type.to_sym }
        sections.each { |section| read_section(section, SECTIONS, found) }
        found
      end

      def read_section(section, known, found)
        prefix, key = known.find { |start, _| section.start_with?(start) }
        invalid! if key.nil? || section.size == prefix.size

        found[key] = section[prefix.size..]
      end

      def convert_value
        text = parts[:value]
        case type
        when :s then text
        when :c then whole?(text) ? Integer(text, 10) : numbers(text)
        else numbers(text)
        end
      end

      def whole?(text)
        text.match?(/\A[+-]?\d+\z/)
      end

      def numbers(text)
        text.include?(":") ? text.split(":").map { |one| Float(one) } : Float(text)
      end

      def invalid!
        raise ArgumentError, "not a StatsD message: #{@source.inspect}; expected name:value|type with optional sections"
      end
    end
  end
end
