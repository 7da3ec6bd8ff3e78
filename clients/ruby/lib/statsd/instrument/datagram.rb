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

    # A {Datagram} that can also be an event (`:_e`) or a service check (`:_sc`).
    class DogStatsDDatagram < Datagram
      # @return [String, nil]
      def hostname
        parts[:hostname]
      end

      # @return [Time] when the event happened or the check ran, in UTC
      # @raise [TypeError] if the message carries no time
      def timestamp
        Time.at(Integer(parts[:timestamp])).utc
      end

      # @return [String, nil]
      def aggregation_key
        parts[:aggregation_key]
      end

      # @return [String, nil]
      def source_type_name
        parts[:source_type_name]
      end

      # @return [String, nil] `"normal"` or `"low"`
      def priority
        parts[:priority]
      end

      # @return [String, nil] `"error"`, `"warning"`, `"info"` or `"success"`
      def alert_type
        parts[:alert_type]
      end

      # @return [String, nil] message of a service check
      def message
        parts[:message]
      end

      private

      COMMON_SECTIONS = {
        "card:" => :cardinality,
        "c:" => :container_id,
        "e:" => :external_data,
        "d:" => :timestamp,
        "h:" => :hostname,
        "#" => :tags
      }.freeze
      EVENT_SECTIONS = COMMON_SECTIONS.merge(
        "k:" => :aggregation_key, "p:" => :priority, "s:" => :source_type_name, "t:" => :alert_type
      ).freeze
      CHECK_SECTIONS = COMMON_SECTIONS.merge("m:" => :message).freeze
      EVENT_HEADER = /\A_e\{(\d+),(\d+)\}:/n
      private_constant :COMMON_SECTIONS, :EVENT_SECTIONS, :CHECK_SECTIONS, :EVENT_HEADER

      def parse(line)
        if line.start_with?("_e{")
          parse_event(line)
        elsif line.start_with?("_sc|")
          parse_check(line)
        else
          super
        end
      end

      # Title and text are cut by their lengths in bytes, because both may contain separators.
      def parse_event(line)
        bytes = line.b
        header = EVENT_HEADER.match(bytes) || invalid!
        title_bytes = header[1].to_i
        text_bytes = header[2].to_i
        start = header.end(0)
        rest = start + title_bytes + 1 + text_bytes
        invalid! if title_bytes.zero? || rest > bytes.bytesize || bytes.getbyte(start + title_bytes) != 0x7c

        found = {
          type: :_e,
          name: unescape(line.byteslice(start, title_bytes)),
          value: unescape(line.byteslice(start + title_bytes + 1, text_bytes))
        }
        read_sections(line.byteslice(rest..), EVENT_SECTIONS, found)
      end

      def parse_check(line)
        _, name, status, *sections = line.split("|", -1)
        invalid! if name.to_s.empty? || !status.to_s.match?(/\A[0-9]\z/)

        found = { type: :_sc, name: name, value: Integer(status, 10) }
        sections.each { |section| read_section(section, CHECK_SECTIONS, found) }
        found
      end

      def read_sections(text, known, found)
        return found if text.empty?

        invalid! unless text.start_with?("|")
        text[1..].split("|", -1).each { |section| read_section(section, known, found) }
        found
      end

      def convert_value
        type == :_e || type == :_sc ? parts[:value] : super
      end

      def unescape(text)
        text.gsub("\\n", "\n")
      end
    end
  end
end
