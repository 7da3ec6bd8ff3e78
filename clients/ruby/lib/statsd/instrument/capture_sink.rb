# frozen_string_literal: true

module StatsD
  module Instrument
    # Keeps each message as a parsed datagram and hands it on to its parent.
    # @see Client#capture
    class CaptureSink
      # @return [#<<] where messages go after they were kept
      attr_reader :parent
      # @return [Array<Datagram>] everything since the start or the last {#clear}
      attr_reader :datagrams
      # @return [Class] the parser of messages
      attr_reader :datagram_class

      def initialize(parent:, datagram_class: Datagram)
        @parent = parent
        @datagram_class = datagram_class
        @datagrams = []
      end

      # A test wants to see every call, whatever its sample rate.
      def sample?(_sample_rate)
        true
      end

      # Takes one message.
      # @return [self]
      def <<(datagram)
        @datagrams << datagram_class.new(datagram)
        parent << datagram
        self
      end

      # @return [void]
      def clear
        @datagrams.clear
      end

      # Sends everything that it has taken.
      # @return [void]
      def flush(blocking: false)
        @parent.flush(blocking: blocking)
      end
    end
  end
end
