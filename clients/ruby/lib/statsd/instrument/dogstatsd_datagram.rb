# frozen_string_literal: true

module StatsD
  module Instrument
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
