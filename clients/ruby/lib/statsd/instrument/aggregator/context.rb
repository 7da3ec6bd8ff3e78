# frozen_string_literal: true

module StatsD
  module Instrument
    class Aggregator
      # One context, with the cells that threads keep for it.
      # @api private
      class Context
        attr_reader :template, :cells

        def initialize(template)
          @template = template
          @cells = []
          @taken = 0
        end

        # Whatever goes wrong concerns this context alone: the samples of others have been taken, too, and are nowhere
        # else.
        # @param writer [#line]
        # @param window [Columns::Window, nil] takes the values if they go as columns
        # @return [Integer] samples sent
        def flush(writer, window = nil)
          @taken = 0
          case @template.type
          when :c then flush_counter(writer, window)
          when :g then flush_gauge(writer, window)
          when :s then flush_set(writer)
          else flush_samples(writer, window)
          end
        rescue StandardError => e
          StatsD.logger.error { "[#{self.class.name}] flushing #{@template.head} failed: #{e.class}: #{e.message}" }
          writer.refuse(@taken)
        end

        # Lets cells add their samples to bins, for as long as these go as columns.
        # @param window [Columns::Window, nil]
        def fill(window)
          table = window&.table(@template)
          @cells.each { |cell| cell.fill(table) }
        end

        # Takes the bins out of the cells.
        # @param cells [Array<Cell>]
        # @yieldreturn [Columns::Window] gets them
        def collect(cells = @cells)
          cells.each do |cell|
            bins = cell.take_bins
            yield.add_bins(@template, bins) if bins
          end
        end

        private

        def flush_counter(writer, window)
          hits = 0
          sum = 0
          @cells.each do |cell|
            cell_hits, cell_sum = cell.take
            hits += cell_hits
            sum += cell_sum
            cell.idle = cell_hits.zero? ? cell.idle + 1 : 0
          end
          return 0 if hits.zero? && sum.zero?

          @taken = hits
          return window.count(@template, sum) ? hits : writer.refuse(hits) if window

          text = Wire.sum(sum) or return writer.refuse(hits)
          writer.line(@template, text)
          hits
        end

        def flush_gauge(writer, window)
          hits = 0
          latest = nil
          @cells.each do |cell|
            cell_hits = cell.take
            hits += cell_hits
            cell.idle = cell_hits.zero? ? cell.idle + 1 : 0
            latest = cell if latest.nil? || cell.stamp >= latest.stamp
          end
          return 0 if hits.zero?

          @taken = hits
          window ? window.gauge(@template, latest.value) : writer.line(@template, latest.value.to_s)
          hits
        end

        def flush_set(writer)
          members = gather
          members.uniq.each { |member| writer.line(@template, member) }
          members.size
        end

        def flush_samples(writer, window)
          fill(window)
          values = gather
          binned = @cells.sum { |cell| binned(cell) }
          if window
            window.samples(@template, values) unless values.empty?
            return values.size + binned
          end

          packed = Backend.pack(values)
          writer.line(@template, packed) if packed
          values.size + binned
        end

        def gather
          return take(@cells.first) if @cells.size == 1

          @cells.flat_map { |cell| take(cell) }
        end

        def take(cell)
          values = cell.take
          @taken += values.size
          cell.idle = values.empty? ? cell.idle + 1 : 0
          values
        end

        # Samples that will be in the window.
        def binned(cell)
          count = cell.binned
          cell.idle = 0 if count.positive?
          count
        end
      end
    end
  end
end
