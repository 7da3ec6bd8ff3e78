# frozen_string_literal: true

module StatsD
  module Instrument
    class Aggregator
      # The state and the flush thread. Clients hold the {Aggregator}, the thread holds this, so that
      # the thread ends when the last client was collected.
      #
      # Threads record into cells and announce a new cell through a queue, so recording takes no lock and is allowed in
      # signal handlers.
      # @api private
      class Core
        # Seconds without a sample after which a context is forgotten.
        IDLE_EXPIRY = 300.0
        # Types that go as columns to an agent that takes them.
        COLUMN_TYPES = %i[c g d].freeze
        # Says that values stay where they are, because it is not known yet whether the agent takes columns.
        LATER = Object.new.freeze
        private_constant :COLUMN_TYPES, :LATER

        # @return [Telemetry]
        attr_reader :telemetry
        # @return [Object] where messages go
        attr_reader :sink
        # @return [Integer] values of one context that are sent at once
        attr_reader :max_values
        # @return [Float] seconds between flushes
        attr_reader :flush_interval
        # @return [Columns, nil]
        attr_reader :columns

        # @param flush_interval [Float] seconds between flushes
        # @param max_values [Integer] samples of one context sent without waiting
        # @param max_contexts [Integer] cells that may live at once
        # @param columns [Columns, nil] takes counters, gauges and distributions
        def initialize(sink, flush_interval: DEFAULT_FLUSH_INTERVAL, max_values: DEFAULT_MAX_CONTEXT_SIZE,
                       max_contexts: DEFAULT_MAX_CONTEXTS, telemetry: nil, report: nil, columns: nil)
          raise ArgumentError, "flush_interval must be positive, not #{flush_interval}" unless flush_interval.positive?
          raise ArgumentError, "max_values must be positive, not #{max_values}" unless max_values.positive?

          @sink = sink
          @flush_interval = flush_interval
          @columns = columns
          @idle_limit = IDLE_EXPIRY / (columns ? [flush_interval, Columns::WINDOW].min : flush_interval)
          @max_values = max_values
          @max_contexts = max_contexts
          @telemetry = telemetry || Telemetry.new
          @report = report
          @stopping = false
          @clients = WeakSet.new
          reset
          ForkTracker.track(self)
        end

        # @param client [#refresh_mode] notified when nothing is aggregated any more
        def attach(client)
          @clients.add(client)
        end

        # @return [Cell] that can be announced
        def new_cell(template, table)
          kind = case template.type
                 when :c then Backend::CounterCell
                 when :g then Backend::GaugeCell
                 when :s then Backend::SetCell
                 else Backend::SampleCell
                 end
          kind.new(template, table, self)
        end

        # Announces a new cell. Lock-free, allowed everywhere.
        def announce(cell)
          @new_cells << cell
          start unless @thread
        end

        # @return [Boolean] whether the limit of live cells is reached
        def full?
          @live + @new_cells.size >= @max_contexts
        end

        # @return [Boolean] whether samples recorded now will be sent
        def running?
          !@stopping
        end

        # Sends everything recorded so far to the sink. Columns are sent when the call returns, or their request failed.
        # @return [void]
        def flush
          flush_now
          @columns&.flush
        rescue ThreadError
          # A signal handler may not lock, but a thread started by it may.
          Background.start("statsd-flush-now") { flush }&.join(1)
        end

        # Sends the values of one cell, unless a flush is just running.
        def flush_cell(cell)
          return unless @flush_lock.try_lock

          begin
            Background.uninterrupted do
              window = window_for(cell.template)
              next if LATER.equal?(window)

              writer = new_writer
              context = Context.new(cell.template)
              context.cells << cell
              @telemetry.count(:metrics, context.flush(writer, window))
              writer.finish
            end
          ensure
            @flush_lock.unlock
          end
        rescue ThreadError
          # Interrupted a flush of the same thread; the cell grows instead.
          nil
        end

        # Ends the flush thread after a last flush. From here on clients send each message by itself.
        # @param wait [Numeric] seconds the thread gets
        # @return [void]
        def shutdown(wait = 2)
          @stopping = true
          @clients.to_a.each(&:refresh_mode)
          thread = @thread
          wake_until_ended(thread, wait) if thread&.alive? && thread != Thread.current
          end_columns(wait)
          flush
        end

        # Sends everything before the process ends. What is recorded later goes as datagrams.
        def at_exit
          end_columns(Columns::PATIENCE)
          flush
        end

        # A finalizer can interrupt any code, so it must not wait for anything.
        # @see Aggregator.finalize
        def finalize
          @stopping = true
          # Columns need a thread that may lock and wait.
          if @columns && !@columns_ended
            Background.start("statsd-flush-now") { at_exit }
            wake(@thread) if @thread
            return
          end

          if @flush_lock.try_lock
            begin
              flush_locked
            ensure
              @flush_lock.unlock
            end
          elsif !@thread&.alive?
            Background.start("statsd-flush-now") { flush }
          end
          # The thread makes a last flush before it ends.
          wake(@thread) if @thread
        end

        # Starts the flush thread if it is not there.
        # @return [Thread, nil]
        def ensure_running
          start unless @thread&.alive?
          @thread
        end

        def after_fork
          @telemetry = Telemetry.new unless @sink.respond_to?(:telemetry)
          @columns&.after_fork(@telemetry)
          reset
        end

        def after_daemon
          @columns&.after_daemon
          start if @thread
        end

        # Sends the contents of a cell and empties it: a handle needs it for another context.
        def release(cell)
          @flush_lock.synchronize do
            writer = new_writer
            take_new_cells
            @contexts.each_value do |context|
              next unless context.cells.include?(cell)

              window = window_for(context.template)
              context.flush(writer, LATER.equal?(window) ? nil : window)
              cell.fill(nil)
              collect(context, [cell])
              @live -= 1 if context.cells.delete(cell)
            end
            @contexts.delete_if { |_, context| context.cells.empty? }
            writer.finish
          end
        end

        private

        # After a fork, unsent samples of the parent stay with the parent.
        def reset
          @new_cells = Queue.new
          @contexts = {}
          @live = 0
          @flush_lock = Mutex.new
          @thread = nil
          @columns_ended = false
        end

        def start
          return if @stopping

          @columns&.ensure_running
          @thread = Background.start("statsd-aggregator") { run }
        end

        def run
          until @stopping
            sleep(@columns ? [@flush_interval, @columns.until_end].min : @flush_interval)
            begin
              tick
            rescue StandardError => e
              StatsD.logger.error { "[#{self.class.name}] flushing failed: #{e.class}: #{e.message}" }
            end
          end
          tick
        end

        # Nobody waits for columns here, which have a thread of their own.
        def tick
          @flush_lock.synchronize do
            flush_locked
            seal if @columns&.ended?
          end
        end

        def flush_now
          @columns&.settle
          @flush_lock.synchronize do
            flush_locked
            seal if @columns
          end
        end

        # Ends the window.
        def seal
          # Until they are in the window, bins taken from the cells exist only here.
          Background.uninterrupted do
            @contexts.each_value do |context|
              next unless context.template.type == :d

              window = window_for(context.template)
              context.fill(LATER.equal?(window) ? nil : window)
              collect(context)
            end
          end
          @columns.seal
        end

        def collect(context, cells = context.cells)
          context.collect(cells) { @columns.window }
        end

        # Everything recorded so far is part of the last window, and nothing later.
        def end_columns(patience)
          return if @columns.nil? || @columns_ended

          @columns.settle
          @flush_lock.synchronize do
            flush_locked
            @columns_ended = true
            seal
          end
          @columns.close(patience)
        rescue ThreadError
          # As for a flush.
          Background.start("statsd-flush-now") { end_columns(patience) }&.join(patience)
        end

        # @return [Columns::Window, Object, nil] what takes the values of a context; nil if they go as datagrams
        def window_for(template)
          return if @columns.nil? || @columns_ended || !COLUMN_TYPES.include?(template.type)

          if @columns.active?
            @columns.window
          elsif @columns.unknown?
            LATER
          end
        end

        def wake_until_ended(thread, wait)
          deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + wait
          loop do
            # It may be awake, and about to sleep.
            wake(thread)
            break if thread.join(0.01) || Process.clock_gettime(Process::CLOCK_MONOTONIC) >= deadline
          end
        end

        def wake(thread)
          thread.wakeup
        rescue ThreadError
          nil
        end

        # Until they are sent, samples taken from the cells exist only here.
        def flush_locked
          Background.uninterrupted do
            take_new_cells
            writer = new_writer
            samples = @contexts.each_value.sum { |context| flush_context(context, writer) }
            @contexts.delete_if { |_, context| context.cells.empty? }
            @telemetry.count(:metrics, samples) if samples.positive?
            @telemetry.count(:aggregated_context, writer.lines) if writer.lines.positive?
            # In the packet of the last samples, if there is room.
            @report&.each_message { |message| writer.message(message) }
            writer.finish
          end
        end

        # @return [Integer] samples sent
        def flush_context(context, writer)
          window = window_for(context.template)
          return 0 if LATER.equal?(window)

          # Ask whether a cell gets no more samples before taking the last of them.
          abandoned = nil
          context.cells.each do |cell|
            (abandoned ||= []) << cell if (cell.removed || cell.idle.positive?) && cell.abandoned?
          end
          samples = context.flush(writer, window)
          collect(context, abandoned) if abandoned
          abandoned&.each { |cell| @live -= 1 if context.cells.delete(cell) }
          expire_idle(context)
          samples
        end

        def take_new_cells
          until @new_cells.empty?
            cell = @new_cells.pop(true)
            context = @contexts[cell.template.key] ||= Context.new(cell.template)
            context.cells << cell
            @live += 1
          end
        rescue ThreadError
          # Somebody else took the last one; only signal handlers during a flush can do that.
          nil
        end

        def expire_idle(context)
          context.cells.each do |cell|
            cell.expired = cell.idle > @idle_limit
            cell.table.sweep = true if cell.expired && cell.table
          end
        end

        def new_writer
          if @sink.respond_to?(:push_packet)
            PacketWriter.new(@sink.max_packet_size, @telemetry) { |packet| @sink.push_packet(packet) }
          elsif @sink.is_a?(Sink) && @sink.max_packet_size
            PacketWriter.new(@sink.max_packet_size, @telemetry) { |packet| @sink.send_packet(packet) }
          else
            LineWriter.new(@sink, @telemetry)
          end
        end
      end
    end
  end
end
