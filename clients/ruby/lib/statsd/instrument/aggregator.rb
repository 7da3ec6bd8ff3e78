# frozen_string_literal: true

module StatsD
  module Instrument
    # Collects the cells of all threads and sends what is in them every few seconds: counters summed,
    # gauges at their last value, samples packed into as few lines as fit, sets without repetitions.
    #
    # Threads record into cells of their own (see {Cell}) and announce a new cell through a queue, so
    # recording takes no lock and is allowed in signal handlers. Clients that share a sink and differ
    # in prefix or tags share an aggregator.
    # @api private
    class Aggregator
      # Samples of one context that are sent without waiting for the next flush.
      DEFAULT_MAX_CONTEXT_SIZE = 250
      # Seconds between flushes.
      DEFAULT_FLUSH_INTERVAL = 2.0
      # Cells that may live at once, all threads together. Samples of further contexts are sent one by
      # one and counted as overflowed.
      DEFAULT_MAX_CONTEXTS = 20_000
      # Seconds without a sample after which a context is forgotten.
      IDLE_EXPIRY = 300.0

      class << self
        # Runs when no client is left, and at the exit of the process.
        def finalize(core)
          proc { core.finalize }
        end
      end

      # @return [Core]
      attr_reader :core

      def initialize(sink, **options)
        @core = Core.new(sink, **options)
        ObjectSpace.define_finalizer(self, self.class.finalize(@core)) if Ractors.main?
      end

      # One context, with the cells that threads keep for it.
      class Context
        attr_reader :template, :cells

        def initialize(template)
          @template = template
          @cells = []
        end

        # @param writer [#line]
        # @return [Integer] samples sent
        def flush(writer)
          case @template.type
          when :c then flush_counter(writer)
          when :g then flush_gauge(writer)
          when :s then flush_set(writer)
          else flush_samples(writer)
          end
        end

        private

        def flush_counter(writer)
          hits = 0
          sum = 0
          @cells.each do |cell|
            cell_hits, cell_sum = cell.take
            hits += cell_hits
            sum += cell_sum
            cell.idle = cell_hits.zero? ? cell.idle + 1 : 0
          end
          return 0 if hits.zero? && sum.zero?

          text = Wire.sum(sum) or return 0
          writer.line(@template, text)
          hits
        end

        def flush_gauge(writer)
          hits = 0
          latest = nil
          @cells.each do |cell|
            cell_hits = cell.take
            hits += cell_hits
            cell.idle = cell_hits.zero? ? cell.idle + 1 : 0
            latest = cell if latest.nil? || cell.stamp >= latest.stamp
          end
          return 0 if hits.zero?

          writer.line(@template, latest.value.to_s)
          hits
        end

        def flush_set(writer)
          members = gather
          members.uniq.each { |member| writer.line(@template, member) }
          members.size
        end

        def flush_samples(writer)
          values = gather
          packed = PACKER.pack(values)
          writer.line(@template, packed) if packed
          values.size
        end

        def gather
          return take(@cells.first) if @cells.size == 1

          @cells.flat_map { |cell| take(cell) }
        end

        def take(cell)
          values = cell.take
          cell.idle = values.empty? ? cell.idle + 1 : 0
          values
        end
      end

      # The state and the flush thread. Clients hold the {Aggregator}, the thread holds this, so that
      # the thread ends when the last client is gone.
      class Core
        # @return [Telemetry]
        attr_reader :telemetry
        # @return [Object] where messages go
        attr_reader :sink
        # @return [Integer] values of one context that are sent at once
        attr_reader :max_values
        # @return [Float] seconds between flushes
        attr_reader :flush_interval

        def initialize(sink, flush_interval: DEFAULT_FLUSH_INTERVAL, max_values: DEFAULT_MAX_CONTEXT_SIZE,
                       max_contexts: DEFAULT_MAX_CONTEXTS, telemetry: nil, report: nil)
          raise ArgumentError, "flush_interval must be positive, not #{flush_interval}" unless flush_interval.positive?
          raise ArgumentError, "max_values must be positive, not #{max_values}" unless max_values.positive?

          @sink = sink
          @flush_interval = flush_interval
          @idle_limit = IDLE_EXPIRY / flush_interval
          @max_values = max_values
          @max_contexts = max_contexts
          @telemetry = telemetry || Telemetry.new
          @report = report
          @stopping = false
          @clients = WeakSet.new
          reset
          ForkTracker.track(self)
        end

        # @param client [#detach] told when nothing is aggregated any more
        def attach(client)
          @clients.add(client)
        end

        # Announces a new cell. Lock-free, allowed everywhere.
        def announce(cell)
          @births << cell
          start unless @thread
        end

        # @return [Boolean] whether the limit of live cells is reached
        def full?
          @live + @births.size >= @max_contexts
        end

        # @return [Boolean] whether samples recorded now will be sent
        def running?
          !@stopping
        end

        # Sends everything recorded so far to the sink.
        # @return [void]
        def flush
          @flush_lock.synchronize { flush_locked }
        rescue ThreadError
          # A signal handler may not lock, but a thread started by it may.
          Background.start("statsd-flush-now") { flush }&.join(1)
        end

        # Sends the values of one cell, unless a flush is just running.
        def flush_cell(cell)
          return unless @flush_lock.try_lock

          begin
            writer = new_writer
            context = Context.new(cell.template)
            context.cells << cell
            @telemetry.count(:metrics, context.flush(writer))
            writer.finish
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
          @clients.to_a.each(&:detach)
          thread = @thread
          wake_until_ended(thread, wait) if thread&.alive? && thread != Thread.current
          flush
        end

        # @see Aggregator.finalize
        def finalize
          @stopping = true
          if @thread&.alive?
            # The thread makes the last flush. A finalizer can interrupt any code, so it must not wait.
            wake(@thread)
          else
            flush
          end
        end

        # Starts the flush thread if it is not there.
        def ensure_running
          start unless @thread&.alive?
        end

        def after_fork
          @telemetry = Telemetry.new unless @sink.respond_to?(:telemetry)
          reset
        end

        def after_daemon
          start if @thread
        end

        # Moves a handle's unsent samples out before the handle starts to write another context.
        def settle(cell)
          @flush_lock.synchronize do
            writer = new_writer
            adopt_births
            @contexts.each_value { |context| context.flush(writer) if context.cells.include?(cell) }
            drop_cell(cell)
            writer.finish
          end
        end

        private

        # What the parent of a fork has not sent stays the parent's.
        def reset
          @births = Queue.new
          @contexts = {}
          @live = 0
          @flush_lock = Mutex.new
          @thread = nil
        end

        def start
          @thread = Background.start("statsd-aggregator") { run } unless @stopping
        end

        def run
          until @stopping
            sleep(@flush_interval)
            begin
              flush
            rescue StandardError => e
              StatsD.logger.error { "[#{self.class.name}] flushing failed: #{e.class}: #{e.message}" }
            end
          end
          flush
        end

        def wake_until_ended(thread, wait)
          deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + wait
          until thread.join(0.01)
            wake(thread)
            break if Process.clock_gettime(Process::CLOCK_MONOTONIC) >= deadline
          end
        end

        def wake(thread)
          thread.wakeup
        rescue ThreadError
          nil
        end

        def flush_locked
          adopt_births
          writer = new_writer
          telemetry = @telemetry
          samples = 0
          @contexts.each_value do |context|
            gone = nil
            context.cells.each do |cell|
              (gone ||= []) << cell if (cell.removed || cell.idle.positive?) && cell.abandoned?
            end
            samples += context.flush(writer)
            gone ? bury(context, gone) : expire(context)
          end
          @contexts.delete_if { |_, context| context.cells.empty? }
          telemetry.count(:metrics, samples) if samples.positive?
          @report&.each_message { |message| @sink << message }
          writer.finish
          telemetry.count(:aggregated_context, writer.lines) if writer.lines.positive?
        end

        def adopt_births
          until @births.empty?
            cell = @births.pop(true)
            context = @contexts[cell.template.key] ||= Context.new(cell.template)
            context.cells << cell
            @live += 1
          end
        rescue ThreadError
          # Somebody else took the last one; only signal handlers during a flush can do that.
          nil
        end

        # The cells got their last sample before the flush that has just been made.
        def bury(context, gone)
          gone.each { |cell| @live -= 1 if context.cells.delete(cell) }
        end

        def expire(context)
          context.cells.each do |cell|
            cell.expired = cell.idle > @idle_limit
            cell.table.sweep = true if cell.expired && cell.table
          end
        end

        def drop_cell(cell)
          @contexts.each_value { |context| @live -= 1 if context.cells.delete(cell) }
          @contexts.delete_if { |_, context| context.cells.empty? }
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
