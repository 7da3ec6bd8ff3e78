# frozen_string_literal: true

# Lets something happen at a chosen step of the library's code, and at each step in turn.
module Interruptions
  LIB = File.expand_path("../lib", __dir__)

  # A rate that takes the path of sampled calls and leaves out one call in 2^53. Of the thousands of calls of these
  # tests none may be missing, and a rate of 0.999999 leaves one out now and then.
  ALMOST_ONE = 1.0.prev_float

  # Runs the block, and the change when the block reaches that step.
  # @return [Boolean] whether it did
  def interrupted(step, change)
    # Finalizers would be steps of the call, too, and signals wait for their end.
    GC.disable
    @left = step
    @change = change
    @interrupted_thread = Thread.current
    yield
    @left <= 0
  ensure
    @interrupted_thread = nil
    GC.enable
  end

  # Switching the events on and off walks through the whole heap, so they are on for all rounds. Events of C calls would
  # be finer steps, but Ruby makes a method call of every addition from then on, for the rest of the process. Then a
  # signal handler gets between the reading and the writing of a sum, which it otherwise never does.
  def with_events(&block)
    TracePoint.new(:line) do |event|
      if @interrupted_thread == Thread.current && event.path.start_with?(LIB)
        @left -= 1
        @change.call if @left.zero?
      end
    end.enable(&block)
  end

  # @param least [Integer] steps there must be; a call of a native handle is one
  # @yield [step] one round; its result says whether the step was reached
  def every_step(least = 3)
    step = 1
    step += 1 while yield(step)
    assert_operator step, :>=, least, "the call was not interrupted"
  rescue StandardError, Minitest::Assertion => e
    raise e, "step #{step}: #{e.message}", e.backtrace
  end

  # Number of received calls with that name. Of gauges only the last value counts, so any number is right.
  def arrived(list, name)
    list.to_a.flat_map { |packet| packet.split("\n") }.sum do |line|
      next line.include?(":#{name}|") ? 1 : 0 if line.start_with?("_e{")

      line.start_with?("#{name}:") ? count_line(line) : 0
    end
  end

  def count_line(line)
    case line
    when /\|c/ then line[/:(\d+)/, 1].to_i
    when /\|s/ then 1
    when /\|g/ then Float::INFINITY
    else line.split("|").first.count(":")
    end
  end
end
