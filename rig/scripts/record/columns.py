#!/usr/bin/env python3
"""The same samples as datagrams and as columns: what they cost the process that has them, the agent and the way between them.

  rig/scripts/record/columns.py [--rounds 3] [--seconds 20] [--page docs/benchmarks/columns.md]

One process makes distribution samples of 1,000 series at a set rate: in Go with our client and with datadog-go, in Ruby with our client. It
sends them, from the beginning of a window of ten seconds on, over Unix sockets to weir, or to the Datadog Agent's dogstatsd if DOGSTATSD_BIN names it or `dogstatsd` is in PATH. Both agents
deliver to a receiver of this script. WEIR_BIN names a built program, and RECORD_COMMIT its commit; the default is that of `make build`. The rows alternate, in the other
direction every second round. Loopback only; the script ends all its processes.
"""
import argparse
import http.server
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PATIENCE = 60
SERIES = 1000
# Samples a second. The second one is what the slowest of the pairs can take.
HIGH_RATE, LOW_RATE, RUBY_RATE = 1_000_000, 200_000, 150_000
# As many as one core can.
ONE_CORE = 0
# The last bucket of a run ends and is delivered.
SETTLE_SECONDS = 13
# An agent without load, before each run: its cost is not the load's.
IDLE_SECONDS = 3

# weir reads WEIR_ variables as settings, and clients read those of an agent.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "DD_", "STATSD_"))}

GO = """
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	datadog "github.com/DataDog/datadog-go/v5/statsd"
	weir "github.com/weir-dev/weir/clients/go/statsd"
)

type client interface {
	Distribution(name string, value float64, tags []string, rate float64) error
	Close() error
}

func main() {
	kind, address := os.Args[1], os.Args[2]
	rate, _ := strconv.Atoi(os.Args[3])
	seconds, _ := strconv.Atoi(os.Args[4])
	series, _ := strconv.Atoi(os.Args[5])
	var c client
	var err error
	if kind == "nothing" {
		c = nothing{}
	} else if kind == "datadog-go" {
		c, err = datadog.New(address, datadog.WithMaxSamplesPerContext(100000), datadog.WithExtendedClientSideAggregation())
	} else {
		options := []weir.Option{weir.WithExtendedClientSideAggregation()}
		if strings.HasPrefix(address, "http") {
			options = append(options, weir.WithoutDatagrams())
		}
		c, err = weir.New(address, options...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	random := rand.New(rand.NewSource(1))
	names, tags, values := make([]string, series), make([][]string, series), make([]float64, 4096)
	for i := range names {
		names[i] = fmt.Sprintf("checkout.request.duration%d", i)
		tags[i] = []string{"env:prod", "region:eu-west-1", fmt.Sprintf("shard:%d", i%16)}
	}
	// Three decades, with three digits behind the point.
	for i := range values {
		values[i] = math.Round(math.Pow(10, 3*random.Float64())*1000) / 1000
	}
	var handles []*weir.Distribution
	if kind == "handles" {
		for i := range names {
			handles = append(handles, c.(*weir.Client).NewDistribution(names[i], tags[i]...))
		}
	}
	// Windows of the client begin at multiples of 10 s.
	time.Sleep(time.Until(time.Now().Truncate(10 * time.Second).Add(10 * time.Second)))
	before := processor()
	begin, sent := time.Now(), 0
	for turn := 1; ; turn++ {
		for i := 0; i < rate/100; i++ {
			// Not checked: what is lost is in the counts at the end.
			if handles != nil {
				handles[sent%series].Observe(values[sent*7%len(values)])
			} else {
				_ = c.Distribution(names[sent%series], values[sent*7%len(values)], tags[sent%series], 1)
			}
			sent++
		}
		next := time.Duration(turn) * 10 * time.Millisecond
		if next >= time.Duration(seconds)*time.Second {
			break
		}
		if wait := next - time.Since(begin); wait > 0 {
			time.Sleep(wait)
		}
	}
	took := time.Since(begin)
	var bytes, lost uint64
	counted := func() {
		switch c := c.(type) {
		case *weir.Client:
			t := c.GetTelemetry()
			bytes, lost = t.TotalBytesSent+c.Stats().Columns.Bytes, t.TotalPayloadsDropped+c.Stats().Columns.DroppedPoints
		case *datadog.Client:
			t := c.GetTelemetry()
			bytes, lost = t.TotalBytesSent, t.TotalPayloadsDropped
		}
	}
	if err := c.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	counted()
	cpu := processor() - before
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"sent": sent, "seconds": took.Seconds(), "cpu": cpu.Seconds(), "bytes": bytes, "lost": lost, "rss": resident()})
}

// nothing is a client that does nothing, for the cost of the loop itself.
type nothing struct{}

func (nothing) Distribution(string, float64, []string, float64) error { return nil }
func (nothing) Close() error                                          { return nil }

func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident is the largest resident memory in KiB.
func resident() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Maxrss
}
"""

RUBY = """
require "json"
require "statsd-instrument"
kind, address, rate, seconds, series = *ARGV[0..1], *ARGV[2..4].map { |text| Integer(text) }
# A client that does nothing, for the cost of the loop itself.
class Nothing
  def distribution(*, **) = nil
  def distribution_handle(*, **) = self
  def record(_value) = nil
  def shutdown(*) = nil
  def telemetry = Hash.new(0)
end
client = Nothing.new
unless address == "nothing"
  columns = address if address.start_with?("http")
  # Messages about the client itself go as datagrams.
  sink = StatsD::Instrument::BatchedSink.for_addr(columns ? ARGV[5] : address)
  client = StatsD::Instrument::Client.new(sink: sink, columns: columns)
end
random = Random.new(1)
values = Array.new(4096) { (10**(3 * random.rand)).round(3) }
names = Array.new(series) { |i| "checkout.request.duration#{i}" }
tags = Array.new(series) { |i| ["env:prod", "region:eu-west-1", "shard:#{i % 16}"] }
cpu = -> { Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) }
now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
sleep(10 - Time.now.to_f % 10)
handles = Array.new(series) { |i| client.distribution_handle(names[i], tags: tags[i]) } if kind == "handles"
before, start, sent = cpu.call, now.call, 0
(1..).each do |turn|
  if handles
    1000.times do
      handles[sent % series].record(values[sent * 7 % 4096])
      sent += 1
    end
  else
    (rate / 100).times do
      client.distribution(names[sent % series], values[sent * 7 % 4096], tags: tags[sent % series])
      sent += 1
    end
  end
  if rate.zero?
    break if now.call - start >= seconds
    next
  end
  break if turn >= seconds * 100
  wait = turn / 100.0 - (now.call - start)
  sleep(wait) if wait.positive?
end
took = now.call - start
client.shutdown(30)
told = client.telemetry
rss = File.read("/proc/self/status")[/VmHWM:\\s+(\\d+)/, 1].to_i
puts JSON.generate(sent: sent, seconds: took, cpu: cpu.call - before, bytes: told[:bytes_sent] + told[:columns_bytes_sent],
                   lost: told[:packets_dropped] + told[:columns_points_dropped], rss: rss)
"""

WEIR = """
hostname: bench
uds: ['{directory}/dsd.sock']
http_uds: ['{directory}/http.sock']
udp: []
admin: 127.0.0.1:0
outputs:
  datadog: {{url: 'http://127.0.0.1:{port}', api_key: '00000000000000000000000000000000'}}
"""

DOGSTATSD = """
api_key: "00000000000000000000000000000000"
dd_url: "http://127.0.0.1:{port}"
hostname: bench
dogstatsd_port: 0
dogstatsd_socket: "{directory}/dsd.sock"
dogstatsd_stats_enable: false
use_dogstatsd: true
"""


class Intake(http.server.BaseHTTPRequestHandler):
    """Accepts everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
        else:
            self.rfile.read(length)
        self.send_response(202)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST

    def handle(self):
        try:
            super().handle()
        except ConnectionError:
            pass

    def log_message(self, *_):
        pass


def processor_seconds(pid):
    """Of all threads, in nanoseconds' resolution; the agents end none of theirs."""
    found = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            found += int(file.read().split()[0])
    return found / 1e9


def wait(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.05)


class Agent:
    def __init__(self, program, is_weir, port):
        self.directory = tempfile.mkdtemp()
        config = os.path.join(self.directory, "weir.yaml" if is_weir else "dogstatsd.yaml")
        with open(config, "w") as file:
            file.write((WEIR if is_weir else DOGSTATSD).format(directory=self.directory, port=port))
        command = [program, "run", "--config", config] if is_weir else [program, "start", "-c", self.directory]
        self.log = os.path.join(self.directory, "log")
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        wait(f"{program} listens", lambda: os.path.exists(f"{self.directory}/dsd.sock") or self.has_ended())
        time.sleep(2)

    def has_ended(self):
        if self.process.poll() is not None:
            sys.exit(f"the agent has ended: {open(self.log).read()}")
        return False

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory)


class Row:
    def __init__(self, name, rate, agent, is_weir, command, address):
        self.name, self.rate, self.agent, self.is_weir, self.command, self.address = name, rate, agent, is_weir, command, address
        self.runs = []

    def run(self, port, seconds):
        agent = Agent(self.agent, self.is_weir, port)
        try:
            idle, start = processor_seconds(agent.process.pid), time.monotonic()
            time.sleep(IDLE_SECONDS)
            before, began = processor_seconds(agent.process.pid), time.monotonic()
            idle = (before - idle) / (began - start)
            command = [
                part.format(address=self.address.format(directory=agent.directory), directory=agent.directory, seconds=seconds)
                for part in self.command
            ]
            told = subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True).stdout
            found = json.loads(told)
            time.sleep(SETTLE_SECONDS)
            agent.has_ended()
            found["idle"] = idle
            found["agent"] = processor_seconds(agent.process.pid) - before - idle * (time.monotonic() - began)
        finally:
            agent.end()
        self.runs.append(found)
        print(f"{self.name}: {found}", flush=True)

    def figure(self, of, digits):
        found = [of(run) for run in self.runs]
        middle = f"{statistics.median(found):,.{digits}f}"
        return f"{middle} ({min(found):,.{digits}f} to {max(found):,.{digits}f})"

    def line(self):
        cells = [
            self.name,
            f"{self.rate:,}" if self.rate else self.figure(lambda run: run["sent"] / run["seconds"], 0),
            self.figure(lambda run: 1e9 * run["cpu"] / run["sent"], 0),
            self.figure(lambda run: 1e9 * run["agent"] / run["sent"], 1),
            self.figure(lambda run: 100 * run["agent"] / run["seconds"], 2),
            self.figure(lambda run: 100 * run["idle"], 2),
            self.figure(lambda run: run["bytes"] / run["sent"], 3),
            self.figure(lambda run: run["rss"] / 1024, 0),
            f"{max(run['lost'] for run in self.runs):,}",
        ]
        return f"| {' | '.join(cells)} |"


def programs(directory):
    source = os.path.join(directory, "go")
    os.mkdir(source)
    with open(os.path.join(source, "main.go"), "w") as file:
        file.write(GO)
    bench = f"{ROOT}/clients/go/internal/bench"
    with open(f"{bench}/go.mod") as known, open(os.path.join(source, "go.mod"), "w") as file:
        file.write(known.read().replace("=> ../..", f"=> {ROOT}/clients/go"))
    shutil.copy(f"{bench}/go.sum", source)
    subprocess.run(["go", "build", "-o", "client", "."], cwd=source, check=True, env={**ENVIRONMENT, "GOFLAGS": "-mod=mod"})
    script = os.path.join(directory, "client.rb")
    with open(script, "w") as file:
        file.write(RUBY)
    # The gem compiles its extension when it is installed.
    native = os.path.join(directory, "native")
    os.makedirs(f"{native}/statsd/instrument")
    quiet = {"cwd": native, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["ruby", f"{ROOT}/clients/ruby/ext/weir_statsd/extconf.rb"], **quiet)
    subprocess.run(["make"], **quiet)
    shutil.copy(f"{native}/weir_statsd_native.so", f"{native}/statsd/instrument")
    return os.path.join(source, "client"), ["ruby", f"-I{native}", f"-I{ROOT}/clients/ruby/lib", script]


def rows(directory, weir, dogstatsd):
    go, ruby = programs(directory)
    datagrams, columns = "unixgram://{directory}/dsd.sock", "http+unix://{directory}/http.sock"
    in_go = lambda client, rate: [go, client, "{address}", str(rate), "{seconds}", str(SERIES)]
    in_ruby = lambda kind, rate: [*ruby, kind, "{address}", str(rate), "{seconds}", str(SERIES), "{directory}/dsd.sock"]
    either = datagrams.replace("unixgram", "unix")
    found = [
        Row("Go, the loop without a client", HIGH_RATE, weir, True, in_go("nothing", HIGH_RATE), columns),
        Row("Go, handles, columns, weir", HIGH_RATE, weir, True, in_go("handles", HIGH_RATE), columns),
        Row("Go, handles, datagrams, weir", HIGH_RATE, weir, True, in_go("handles", HIGH_RATE), datagrams),
        Row("Go, columns, weir", HIGH_RATE, weir, True, in_go("weir", HIGH_RATE), columns),
        Row("Go, datagrams, weir", HIGH_RATE, weir, True, in_go("weir", HIGH_RATE), datagrams),
        Row("Go, datagrams, weir", LOW_RATE, weir, True, in_go("weir", LOW_RATE), datagrams),
        Row("datadog-go, datagrams, weir", LOW_RATE, weir, True, in_go("datadog-go", LOW_RATE), either),
        Row("Ruby, the loop without a client", RUBY_RATE, weir, True, in_ruby("names", RUBY_RATE), "nothing"),
        Row("Ruby, columns, weir", RUBY_RATE, weir, True, in_ruby("names", RUBY_RATE), columns),
        Row("Ruby, datagrams, weir", RUBY_RATE, weir, True, in_ruby("names", RUBY_RATE), "{directory}/dsd.sock"),
        Row("Ruby, the loop of handles without a client", ONE_CORE, weir, True, in_ruby("handles", ONE_CORE), "nothing"),
        Row("Ruby, handles, columns, weir", ONE_CORE, weir, True, in_ruby("handles", ONE_CORE), columns),
        Row("Ruby, handles, datagrams, weir", ONE_CORE, weir, True, in_ruby("handles", ONE_CORE), "{directory}/dsd.sock"),
    ]
    if dogstatsd:
        name = "datadog-go, datagrams, the Datadog Agent's dogstatsd"
        found.insert(7, Row(name, LOW_RATE, dogstatsd, False, in_go("datadog-go", LOW_RATE), either))
    return found


def version(command):
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return (told.stdout or told.stderr).strip().splitlines()[0]


def commit():
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return os.environ.get("RECORD_COMMIT", found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--only", default="", help="rows whose names begin with this")
    parser.add_argument("--page", help="also write the table to this file, behind its line `<!-- figures -->`")
    options = parser.parse_args()
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    weir = os.environ.get("WEIR_BIN") or os.path.join(target, "release/weir")
    dogstatsd = os.environ.get("DOGSTATSD_BIN") or shutil.which("dogstatsd")
    intake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Intake)
    threading.Thread(target=intake.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        all_rows = [row for row in rows(directory, weir, dogstatsd) if row.name.startswith(options.only)]
        for turn in range(options.rounds):
            for row in all_rows[:: -1 if turn % 2 else 1]:
                row.run(intake.server_port, options.seconds)
    with open("/proc/cpuinfo") as file:
        machine = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    text = [
        f"Recorded by `rig/scripts/record/columns.py` on {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit()}"
        + (f", {version([dogstatsd, 'version'])}" if dogstatsd else "") + f", {machine}, {os.cpu_count()} CPUs. "
        f"{SERIES:,} series with three tags, values over three decades, for {options.seconds} s; "
        f"medians of {options.rounds} alternating runs, with the least and the greatest. The agent's figures are above those of the same "
        f"agent without load, which are in their own column.",
        "",
        "| client and agent | samples a second | process: CPU per sample, ns | agent: CPU per sample, ns | agent: % of a core | agent without load: % of a core | bytes per sample | process: memory, MiB | lost |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *[row.line() for row in all_rows],
    ]
    print("\n".join(text))
    if options.page:
        with open(options.page) as file:
            before = file.read().partition("<!-- figures -->")[0]
        with open(options.page, "w") as file:
            file.write(before + "<!-- figures -->\n\n" + "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
