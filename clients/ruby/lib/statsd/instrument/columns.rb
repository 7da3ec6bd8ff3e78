# frozen_string_literal: true

module StatsD
  module Instrument
    # Sends counts, gauges and distributions to the HTTP listener of an agent, once per window: a counter is a sum, a
    # gauge its last value, and a distribution a sketch with the same bins as if the agent had read every sample.
    #
    # A thread of its own makes the requests, one at a time. A window is a payload with a number once it is about to be
    # sent; a payload is repeated with the same number and the same bytes until the agent accepts it, and the agent
    # applies each number once.
    #
    # The flush lock of {Aggregator::Core} guards the window that is being filled, and a lock of this object the rest.
    class Columns
      # Seconds in a window: the agent's buckets. Windows begin at multiples of it.
      WINDOW = 10
      # Bytes of windows that the agent has not accepted yet.
      DEFAULT_MAX_BYTES = 4 << 20
      # Seconds that a process which ends spends on failures.
      PATIENCE = 5.0

      # Seconds of the pause after a failure, which doubles, and its limits: for an agent that was there, for one that
      # was not, and for what the agent asks for.
      RETRY_FIRST = 0.25
      RETRY_MAX = 30.0
      ABSENT_PAUSE = 60.0
      RETRY_AFTER_MAX = 300.0
      # Seconds in which nothing happens unless somebody wakes the thread.
      IDLE = 3600.0
      # Answers that say that there is no endpoint, and that a payload will never be accepted.
      MISSING = [404, 405, 501].freeze
      REFUSED = [400, 413, 415, 422].freeze
      NO_ROOM = "too many windows wait, see STATSD_COLUMNS_MAX_BYTES"
      private_constant :RETRY_FIRST, :RETRY_MAX, :ABSENT_PAUSE, :RETRY_AFTER_MAX, :IDLE, :MISSING, :REFUSED, :NO_ROOM

      # @param endpoint [Endpoint]
      # @param max_bytes [Integer] memory for windows that the agent has not accepted yet
      # @param telemetry [Telemetry]
      # @raise [ArgumentError] if there would be no memory
      def initialize(endpoint, telemetry:, max_bytes: DEFAULT_MAX_BYTES)
        raise ArgumentError, "columns_max_bytes must be positive, not #{max_bytes}" unless max_bytes.positive?

        @endpoint = endpoint
        @max_bytes = max_bytes
        @keys = Keys.table
        reset(telemetry)
      end

      # @return [Boolean] whether counts, gauges and distributions go as columns now
      def active?
        @state == :present
      end

      # @return [Integer] bytes that wait to be accepted
      def held_bytes
        @lock.synchronize { @held.bytes }
      end

      # @return [Boolean] whether it is not known yet if the agent takes columns; nothing is given out meanwhile
      # @api private
      def unknown?
        @state == :unknown
      end

      # @return [Window] the one that is being filled
      # @api private
      def window
        @building ||= Window.new(@keys)
      end

      # @return [Boolean] whether the window should be closed
      # @api private
      def ended?
        @building && window_of(now_of_day) != @opened
      end

      # @return [Float] seconds to the end of the window
      # @api private
      def until_end
        now = Process.clock_gettime(Process::CLOCK_REALTIME)
        [WINDOW - (now % WINDOW), 0.001].max
      end

      # Closes the window: it covers the time since the last one was closed. One that began in the future, because the
      # clock was set back, is moved to now.
      # @api private
      def seal(now = now_of_day)
        # Between the two, the window exists only here.
        Background.uninterrupted { close_window(window_of(now)) }
        # A thread that is started there could not be interrupted either.
        ensure_running if @thread
      end

      # Returns when it is known whether the agent takes columns.
      # @api private
      def settle
        return unless unknown?

        @lock.synchronize do
          deadline = clock + (3 * Endpoint::CONNECT_TIMEOUT)
          while unknown?
            # A thread that does not get its turn will find out later.
            return @state = :absent if clock > deadline || @closing || !ensure_running

            @change.wait(@lock, 0.1)
          end
        end
      end

      # Returns when all windows closed before are accepted or dropped, or a request that began after the call has
      # failed. It does not shorten a pause that the agent asked for.
      # @api private
      def flush
        @lock.synchronize do
          last = @held.serial
          begun = @begun
          while active? && @failed <= begun && @held.waits_for?(last)
            return if @retry_at > clock && !@may_hurry
            return if !ensure_running || @thread.equal?(Thread.current)

            @hurry = true
            poke
            @change.wait(@lock, 0.5)
          end
        end
      end

      # Sends what waits for as long as the agent accepts something within the patience, and drops and counts the rest.
      # @param patience [Numeric] seconds
      # @api private
      def close(patience = PATIENCE)
        @lock.synchronize do
          @patience = patience
          @close_at = clock + patience
          @retry_at = 0.0
          @endpoint.hurry(@close_at)
          ensure_running
          @closing = true
          poke
        end
        return run unless @thread&.alive? && !@thread.equal?(Thread.current)

        # A look-up of a name knows no end.
        nil until @thread.join(0.1) || clock > @close_at + (2 * Endpoint::CONNECT_TIMEOUT)
      end

      # Starts the thread if it is not there.
      # @return [Boolean] whether it is there
      # @api private
      def ensure_running
        return true if @thread&.alive?
        return false if @closing

        @thread = Background.start("statsd-columns") { run }
        !@thread.nil?
      end

      # A child is a new client: what its parent had is its parent's.
      # @api private
      def after_fork(telemetry)
        @endpoint.renew
        reset(telemetry)
      end

      # The same client goes on without its threads.
      # @api private
      def after_daemon
        @lock = Mutex.new
        @wake = ConditionVariable.new
        @change = ConditionVariable.new
        ensure_running if @thread
      end

      private

      def reset(telemetry)
        @telemetry = telemetry
        @lock = Mutex.new
        @wake = ConditionVariable.new
        @change = ConditionVariable.new
        @held = Held.new
        @state = :unknown
        @thread = @building = @sending = @last_fault = nil
        @opened = window_of(now_of_day)
        # Requests have numbers, so that a flush knows which failed after it began.
        @begun = @failed = @failures = 0
        @retry_at = @close_at = 0.0
        @patience = PATIENCE
        @may_hurry = @hurry = @closing = @reported = @poked = false
      end

      def now_of_day
        Process.clock_gettime(Process::CLOCK_REALTIME, :second)
      end

      def window_of(seconds)
        seconds / WINDOW * WINDOW
      end

      def clock
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      def close_window(current)
        at = [@opened, current].min
        @opened = current
        window = @building
        @building = nil
        return unless window

        window.close(at, [current, at + WINDOW].max)
        keep(window) if window.size.positive?
      end

      def keep(window)
        lost = @lock.synchronize do
          @held.add(window)
          merged, dropped, points = @held.shrink(@max_bytes, @sending)
          count(columns_windows: 1, columns_merged: merged, columns_dropped: dropped, columns_points_dropped: points)
          poke
          points
        end
        report_lost(lost, NO_ROOM) if lost.positive?
      end

      def poke
        @poked = true
        @wake.signal
      end

      # Sends payloads until the client is closed.
      def run
        @sending = nil
        loop do
          # A window that becomes payloads exists only there.
          payload, path, pause = Background.uninterrupted { next_step }
          if path
            try(payload, path)
          elsif pause
            sleep_for(pause)
          else
            return
          end
        rescue StandardError => e
          StatsD.logger.error { "[#{self.class.name}] sending failed: #{e.class}: #{e.message}" }
          sleep(RETRY_FIRST)
        end
      end

      def sleep_for(seconds)
        @lock.synchronize do
          @wake.wait(@lock, seconds) unless @poked
          @poked = false
        end
      end

      # @return [Array(Window::Payload, String, Float)] the payload to send and its path; there is no payload when the
      #   client only looks for the endpoint, and no path when there is nothing to send before a pause, or at all
      def next_step
        lost = @lock.synchronize do
          return step unless @closing && (@state == :absent || (active? && @held.empty?) || clock >= @close_at)

          abandon
        end
        report_lost(lost, @last_fault || "the agent does not take columns") if lost.positive?
        nil
      end

      def step
        wait = @hurry && @may_hurry ? 0.0 : @retry_at - clock
        return [nil, nil, IDLE] if active? && @held.empty?
        return [nil, nil, [wait, 0.001].max] if wait.positive?
        return [nil, "/series"] unless active?

        @hurry = false
        @sending = @held.first
        [@sending, @sending.path]
      end

      # Drops all that waits, at the end of the client. What is recorded later goes as datagrams.
      # @return [Integer] points
      def abandon
        @state = :absent
        dropped, points = @held.clear
        count(columns_dropped: dropped, columns_points_dropped: points)
        @change.broadcast
        points
      end

      # Makes one request.
      def try(payload, path)
        request = oldest = nil
        @lock.synchronize do
          request = @begun += 1
          oldest = @held.oldest
          if payload
            count(columns_retries: 1) if payload.tried
            payload.tried = true
          end
        end
        answer = @endpoint.post(path, payload ? payload.body : "", payload&.number, oldest)
        report = @lock.synchronize do
          @sending = nil
          report = judge(payload, answer)
          @failed = request unless answer.accepted?
          @change.broadcast
          report
        end
        StatsD.logger.warn { "[#{self.class.name}] #{report}" } if report
      end

      # Draws the consequences of an answer.
      # @return [String, nil] what to report
      def judge(payload, answer)
        if answer.accepted?
          found
          accepted(payload, answer) if payload
          nil
        elsif MISSING.include?(answer.status) || (answer.status.zero? && !active?)
          missing(answer)
        elsif REFUSED.include?(answer.status)
          found
          refused(payload, answer) if payload
        else
          failed(answer)
        end
      end

      def accepted(payload, answer)
        return unless @held.remove(payload)

        if @closing
          @close_at = clock + @patience
          @endpoint.hurry(@close_at)
        end
        count(columns_payloads_sent: 1, columns_bytes_sent: payload.body.bytesize, columns_points_sent: payload.points,
              columns_duplicates: answer.duplicate ? 1 : 0)
      end

      def refused(payload, answer)
        return unless @held.remove(payload)

        count(columns_refused: 1, columns_points_dropped: payload.points)
        "#{payload.points} points dropped: #{answer.fault}"
      end

      def failed(answer)
        present unless answer.status.zero?
        count(columns_failures: 1)
        later(answer, RETRY_MAX)
        first = @last_fault.nil?
        @last_fault = answer.fault
        @last_fault if first
      end

      # Notes that the agent does not take columns. Nobody may be there yet, so after a failed connection the client
      # looks again soon, and less and less often.
      def missing(answer)
        count(columns_absent: 1)
        @state = :absent
        if answer.status.zero?
          later(answer, ABSENT_PAUSE)
        else
          @failures = 0
          @retry_at = clock + ABSENT_PAUSE
        end
        @may_hurry = false
        return if @reported

        @reported = true
        "the agent does not take columns, datagrams are sent instead: #{answer.fault}"
      end

      # The agent takes columns and answers.
      def found
        present
        @failures = 0
        @retry_at = 0.0
        @last_fault = nil
      end

      def present
        @state = :present
        @reported = false
      end

      # Sets the time of the next request: after a pause that doubles, with jitter, or after the one that the agent
      # asked for.
      def later(answer, limit)
        pause = [RETRY_FIRST * (2**[@failures, 10].min), limit].min
        @failures += 1
        pause = (pause / 2) + (rand * pause / 2)
        @may_hurry = true
        if answer.retry_after&.positive?
          pause = [answer.retry_after, RETRY_AFTER_MAX].min
          @may_hurry = false
        end
        pause = [pause, RETRY_FIRST].min if @closing
        @retry_at = clock + pause
      end

      def count(**amounts)
        amounts.each { |name, amount| @telemetry.count(name, amount) if amount.positive? }
      end

      def report_lost(points, reason)
        StatsD.logger.error { "[#{self.class.name}] #{points} points dropped: #{reason}" }
      end
    end
  end
end

require "statsd/instrument/columns/keys"
require "statsd/instrument/columns/varints"
require "statsd/instrument/columns/sketch"
require "statsd/instrument/columns/payload"
require "statsd/instrument/columns/window"
require "statsd/instrument/columns/held"
require "statsd/instrument/columns/endpoint"
