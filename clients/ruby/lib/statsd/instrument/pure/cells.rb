# frozen_string_literal: true

module StatsD
  module Instrument
    # The back end in Ruby; see pure.rb.
    module Pure
      # Integers that fit into a machine word. Others deserve a second look.
      MAX_WORD = (1 << 62) - 1
      MIN_WORD = -MAX_WORD
      private_constant :MAX_WORD, :MIN_WORD

      # Samples wait here for the next flush.
      #
      # A cell has exactly two parties. The *owner* is the one thread that records into it. The *reader*
      # is the holder of the flush lock of the {Aggregator}. Each instance variable is written by one of
      # them only, so neither needs a lock, on any Ruby: totals only ever grow, and the reader remembers
      # how much of them it has already sent. Nothing is reset under the owner's hands.
      #
      # @api private
      class Cell
        # @return [Template]
        attr_accessor :template
        # Owner: the tags the table finds the cell by.
        attr_accessor :tags
        # @return [Table, nil] nil for a handle, which watches over itself
        attr_reader :table
        # Reader: flushes in a row without a sample.
        attr_accessor :idle
        # Reader: nobody used the cell for long; the owner may forget it.
        attr_accessor :expired
        # Owner: the cell is out of the table and gets no more samples.
        attr_accessor :removed
        # The {Aggregator::Core} that is asked to flush the cell when it holds many values.
        attr_writer :core

        # @return [Boolean] whether all threads may record into one cell
        def self.shared?
          false
        end

        def initialize(template, table, core = nil)
          @template = template
          @table = table
          @core = core
          @owner = nil
          @idle = 0
          @expired = false
          @removed = false
        end

        # @!method put(value)
        #   Owner: records one sample.
        #   @return [Boolean] false if the value cannot be sent

        # @!method reset
        #   Forgets all samples.

        # Opens the fast path of a handle for a thread, or closes it.
        # @param thread [Thread, nil]
        def own(thread)
          @owner = thread
        end

        # Reader: lets the samples that come be added to bins of a sketch, or stay as they are. Here they always stay.
        # @param _table [String, nil] {Columns::Keys::Table#packed}
        def fill(_table); end

        # Reader.
        # @return [Integer] samples that were added to bins since the last call
        def binned
          0
        end

        # Reader.
        # @return [Object, nil] what {Columns::Sketch#add_bins} takes, of which the cell is empty then; nil if it was
        def take_bins; end

        # @return [Boolean] whether no more samples can come; ask before taking the last ones
        def abandoned?
          @removed || (@table ? @table.abandoned? : false)
        end
      end

      # Sums. Increments by one, by far the most frequent, touch a single variable.
      # @api private
      class CounterCell < Cell
        def initialize(*)
          super
          reset
        end

        def reset
          @ones = @sum = @hits = @taken_sum = @taken_hits = 0
        end

        # Owner.
        # @return [Boolean] false if the value is not a finite number
        def put(value)
          if value == 1
            @ones += 1
            return true
          end

          unless Integer === value && value <= MAX_WORD && value >= MIN_WORD
            value = Wire.exact(value)
            return false unless value
          end

          @hits += 1
          @sum += value
          true
        end

        # Reader.
        # @return [Array(Integer, Numeric)] samples and their sum since the last call
        def take
          ones = @ones
          sum = @sum + ones
          hits = @hits + ones
          taken = [hits - @taken_hits, sum - @taken_sum]
          @taken_hits = hits
          @taken_sum = sum
          taken
        end
      end

      # The last value, and when it was set: of several threads the latest wins.
      # @api private
      class GaugeCell < Cell
        attr_reader :value, :stamp

        def initialize(*)
          super
          reset
        end

        def reset
          @value = nil
          @stamp = @hits = @taken_hits = 0
        end

        # Owner.
        # @return [Boolean] false if the value is not a finite number
        def put(value)
          # A finite float less itself is zero; asking it costs a method call.
          unless (Integer === value && value <= MAX_WORD && value >= MIN_WORD) ||
                 (Float === value && value - value == 0.0)
            value = Wire.number(value)
            return false unless value
          end
          @value = value
          @stamp = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
          @hits += 1
          true
        end

        # Reader. The count is read first: a value set in between is sent twice rather than never.
        # @return [Integer] samples since the last call
        def take
          hits = @hits
          taken = hits - @taken_hits
          @taken_hits = hits
          taken
        end
      end

      # A queue between owner and reader, in rings that are used again and again. A ring that is full
      # is followed by one twice as long, so that a steady load stays with one ring and allocates nothing.
      # @api private
      class QueueCell < Cell
        # Length of the first ring. Must be a power of two, as every length here.
        FIRST_RING = 8

        # One ring and its place in the stream of positions.
        class Ring
          # @return [Array] the values
          attr_reader :slots
          # Owner: position after the last value of a ring that has a successor.
          attr_accessor :finish
          # Owner: the ring that follows.
          attr_accessor :successor

          def initialize(length)
            @slots = Array.new(length)
            @finish = nil
            @successor = nil
          end
        end

        def initialize(*)
          super
          reset
        end

        def reset
          @ring = @reader_ring = Ring.new(FIRST_RING)
          @slots = @ring.slots
          @mask = FIRST_RING - 1
          # The first value asks how many may wait, which may be less than the ring holds.
          @limit = 0
          @written = 0
          @read = 0
          @pushing = false
          @aside = Queue.new
        end

        # Owner. A signal handler may interrupt a push anywhere; its own values are put aside.
        # @param value [Object] anything but nil
        def push(value)
          return @aside << value if @pushing

          begin
            @pushing = true
            make_room if @written >= @limit
            @slots[@written & @mask] = value
            @written += 1
          ensure
            @pushing = false
          end
        end

        # Reader.
        # @return [Array] the values since the last call, oldest first
        def take
          written = @written
          values = []
          position = @read
          while position < written
            ring = @reader_ring
            if ring.finish && position >= ring.finish
              @reader_ring = ring.successor
              next
            end
            # As many at once as follow each other: up to the end of the ring or of its part in the stream.
            slots = ring.slots
            at = position & (slots.length - 1)
            count = [ring.finish || written, written, position + slots.length - at].min - position
            part = slots[at, count]
            # Without a memory barrier the count may become visible before a value: next time, then.
            missing = part.index(nil) unless part.all?
            part = part.first(missing) if missing
            slots.fill(nil, at, part.length)
            values.concat(part)
            position += part.length
            break if missing
          end
          @read = position
          values << @aside.pop until @aside.empty?
          values
        end

        private

        # The ring is as full as the owner last knew, or there are enough values to send them now.
        def make_room
          max = @core.max_values
          @core.flush_cell(self) if @written - @read >= max
          limit = @read + @slots.length
          # Room that the reader frees bit by bit is not worth the question at every value.
          if limit - @written >= @slots.length / 2
            @limit = limit
          else
            lengthen
          end
          # While a flush that is just running keeps the cell from being flushed, it grows.
          enough = @written - @read >= max ? @written + max : @read + max
          @limit = enough if enough < @limit
        end

        def lengthen
          ring = Ring.new(@slots.length * 2)
          @ring.successor = ring
          @ring.finish = @written
          @ring = ring
          @slots = ring.slots
          @mask = @slots.length - 1
          @limit = @written + @slots.length
        end
      end

      # Samples of a histogram, distribution or timing.
      # @api private
      class SampleCell < QueueCell
        # Owner.
        # @return [Boolean] false if the value is not a finite number
        def put(value)
          unless (Integer === value && value <= MAX_WORD && value >= MIN_WORD) ||
                 (Float === value && value - value == 0.0)
            value = Wire.number(value)
            return false unless value
          end
          push(value)
          true
        end
      end

      # Members of a set. The owner leaves out members it has added since the last flush; the reader drops
      # duplicates of several threads.
      # @api private
      class SetCell < QueueCell
        # Members remembered for leaving out repetitions. More than this are sent again, which is harmless.
        REMEMBERED = 4_096

        def reset
          super
          @round = @seen_round = 0
          @seen = {}
        end

        # Owner.
        # @return [Boolean] false if nothing is left of the member
        def put(value)
          value = Wire.member(value) unless String === value || Integer === value || Symbol === value
          if @seen_round != @round || @seen.size >= REMEMBERED
            @seen_round = @round
            @seen.clear
          end
          return true if @seen.key?(value)

          member = value && Wire.member(value)
          return false unless member

          push(member)
          @seen[value] = true
        end

        # Reader. The round ends before the members are taken: members that the owner leaves out because of the
        # old round are already in the queue.
        def take
          @round += 1
          super
        end
      end
    end
  end
end
