# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # Windows and payloads that are not accepted yet. The lock of {Columns} guards it.
      # @api private
      class Held
        # @return [Integer] bytes
        attr_reader :bytes
        # @return [Integer] the last place in the order of windows
        attr_reader :serial

        def initialize
          # Payloads have numbers, in their order; windows do not, and are later.
          @payloads = []
          @windows = []
          @bytes = @last = @serial = 0
        end

        def empty?
          @payloads.empty? && @windows.empty?
        end

        # @return [Boolean] whether a window up to this place waits
        def waits_for?(serial)
          [@payloads.first, @windows.first].compact.any? { |first| first.serial <= serial }
        end

        # @param window [Window] closed
        def add(window)
          window.serial = @serial += 1
          @windows << window
          @bytes += window.bytes
        end

        # A window gets its numbers here, when it is about to be sent, and cannot be merged from then on: the agent
        # applies a number once, so that new content under an old number would be lost if the agent has applied it, and
        # old content under a new number would be doubled.
        # @return [Window::Payload, nil] the one to send
        def first
          while @payloads.empty? && !@windows.empty?
            window = @windows.shift
            @bytes -= window.bytes
            window.encode.each do |payload|
              payload.number = @last += 1
              payload.serial = window.serial
              @payloads << payload
              @bytes += payload.body.bytesize
            end
          end
          @payloads.first
        end

        # @return [Integer] the smallest number that may be sent again
        def oldest
          @payloads.empty? ? @last + 1 : @payloads.first.number
        end

        # @return [Boolean] whether the payload was still there
        def remove(payload)
          index = @payloads.index { |one| one.equal?(payload) }
          return false unless index

          @payloads.delete_at(index)
          @bytes -= payload.body.bytesize
          true
        end

        # Merges windows, and then drops the oldest, until all fit. A payload that is being sent stays, and so does the
        # last window: a client with more series than the limit has room for works as long as the agent does.
        # @return [Array(Integer, Integer, Integer)] windows merged, windows or payloads dropped, and points dropped
        def shrink(limit, sending)
          merged = dropped = lost = 0
          while @bytes > limit
            if merge_pair(limit)
              merged += 1
              next
            end
            points = drop(sending) or break
            dropped += 1
            lost += points
          end
          [merged, dropped, lost]
        end

        # @return [Array(Integer, Integer)] windows and payloads, and points, that were there
        def clear
          dropped = [@payloads.size + @windows.size, @payloads.sum(&:points) + @windows.sum(&:size)]
          @payloads = []
          @windows = []
          @bytes = 0
          dropped
        end

        private

        # Merges the two neighbours that are the shortest together, the earlier ones first.
        def merge_pair(limit)
          return if @windows.size < 2

          best = (0...(@windows.size - 1)).min_by { |index| [@windows[index + 1].end - @windows[index].at, index] }
          pair = @windows[best, 2]
          merged = pair[0].merge(pair[1])
          return if merged.bytes > limit

          @bytes += merged.bytes - pair.sum(&:bytes)
          @windows[best, 2] = [merged]
        end

        def drop(sending)
          payload = @payloads.find { |one| !one.equal?(sending) }
          if payload
            remove(payload)
            return payload.points
          end
          return if @windows.size < 2

          window = @windows.shift
          @bytes -= window.bytes
          window.size
        end
      end
    end
  end
end
