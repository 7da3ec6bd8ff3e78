# frozen_string_literal: true

require "json"
require "net/http"
require "open3"

# The real agent: the binary named by WEIR_BIN, which the Makefile sets.
module Agent
  module_function

  def binary
    path = ENV.fetch("WEIR_BIN") { raise "WEIR_BIN must name the weir binary; `make test` sets it" }
    raise "WEIR_BIN=#{path} is not an executable file" unless File.executable?(path)

    path
  end

  # @return [Array<Hash>] the agent's parse of one packet
  def parse(packet)
    output, error, status = Open3.capture3(binary, "parse", "-", stdin_data: packet, binmode: true)
    raise "weir parse failed: #{error}" unless status.success?

    JSON.parse(output.force_encoding(Encoding::UTF_8))
  end

  # A running agent that prints its points.
  class Process
    attr_reader :points

    def initialize(*arguments)
      @points = []
      @stdin, @stdout, @stderr, @wait = Open3.popen3(Agent.binary, "run", "--output", "stdout", *arguments)
      @stdin.close
      @log = +""
      @readers = [
        Thread.new { @stdout.each_line { |line| @points << JSON.parse(line) } },
        Thread.new { @stderr.each_line { |line| @log << line } }
      ]
    end

    def running?
      @wait.alive?
    end

    def log
      @log.dup
    end

    # Host and port of the admin server, once it is known.
    def admin
      log[%r{admin on http://(\S+)}, 1]
    end

    # Ends it as an operator would: it reads the remaining packets, flushes and exits.
    def stop
      ::Process.kill("TERM", @wait.pid)
      Timeout.timeout(60) { @wait.value }
      @readers.each(&:join)
      [@stdout, @stderr].each(&:close)
      @wait.value
    end

    # Sum over all points of a counter, whatever their tags.
    def total(metric)
      points.sum { |point| point["metric"] == metric ? counted(point) : 0 }.round
    end

    # Number of samples of a distribution.
    def samples(metric)
      points.sum { |point| point["metric"] == metric ? point["cnt"].to_i : 0 }
    end

    private

    def counted(point)
      point["type"] == "rate" ? point["value"] * point["interval"] : point["value"]
    end
  end
end
