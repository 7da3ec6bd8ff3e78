#!/usr/bin/env python3
"""Kills and hand-overs under clients that send columns, over a network that answers late, twice or not at all. Fails if the totals at the
output differ from what the clients have sent, to the last sample.

  rig/scripts/soak-columns.py [--kills 20] [--hand-overs 20] [--own-timestamps] [--seed N]

With --own-timestamps no point is added to the open bucket: all keep their timestamp.

Two Go processes and one Ruby process send counts, distributions and gauges. WEIR_BIN names a built program; the default is that of
`make build`. Loopback only; the script ends all its processes.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Time limit for a step: a client's back-off is up to 30 s.
PATIENCE = 120

# weir reads WEIR_ variables as settings, and clients read those of an agent.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "DD_", "STATSD_"))}

AGENT = """
hostname: soak
bucket_width: 1h
workers: 2
udp: ['127.0.0.1:0']
per_listener:
  - {{listener: http_uds, merge: {merge}}}
http_uds: ['{directory}/http']
admin: 127.0.0.1:0
state_path: '{directory}/state'
outputs:
  file: {{path: '{directory}/points.jsonl'}}
"""

GO = """
package main

import (
	"encoding/json"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/weir-dev/weir/clients/go/statsd"
)

func main() {
	client, err := statsd.New("http+unix://"+os.Args[1], statsd.WithoutDatagrams())
	if err != nil {
		panic(err)
	}
	var ends atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		ends.Store(true)
	}()
	for !client.Stats().Columns.Active {
		time.Sleep(10 * time.Millisecond)
	}
	var count, samples int64
	var sum, last float64
	for !ends.Load() {
		for i := 0; i < 50; i++ {
			last++
			value := float64(int64(last) % 100)
			_ = client.Count("count", 2, []string{"from:" + os.Args[2]}, 1)
			_ = client.Distribution("dist", value, nil, 1)
			_ = client.Gauge("gauge."+os.Args[2], last, nil, 1)
			count, samples, sum = count+2, samples+1, sum+value
		}
		_ = client.Flush()
		// Timestamps have seconds, by which the newest gauge is found.
		time.Sleep(1100 * time.Millisecond)
	}
	for client.Flush() != nil || client.Stats().Columns.Held > 0 {
		time.Sleep(50 * time.Millisecond)
	}
	s := client.Stats().Columns
	_ = client.Close()
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"count": count, "samples": samples, "sum": sum, "last": last,
		"lost": s.Dropped + s.Refused + s.DroppedPoints, "duplicates": s.Duplicates, "retries": s.Retries})
}
"""

RUBY = """
require "statsd-instrument"
require "json"

StatsD.logger.level = :fatal
client = StatsD::Instrument::Client.new(columns: "http+unix://#{ARGV[0]}", telemetry: false)
ends = false
Thread.new { $stdin.read; ends = true }
# Its first value lets it look for the agent.
client.increment("first")
sleep(0.01) until client.columns.active?
count = samples = sum = last = 0
until ends
  20.times do
    last += 1
    value = last % 100
    client.increment("count", 2, tags: ["from:#{ARGV[1]}"])
    client.distribution("dist", value)
    client.gauge("gauge.#{ARGV[1]}", last)
    count, samples, sum = count + 2, samples + 1, sum + value
  end
  client.flush
  sleep(1.1)
end
deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 90
client.flush
sleep(0.05) until client.columns.held_bytes.zero? || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
told = client.telemetry.to_h
told.default = 0
lost = told[:columns_dropped] + told[:columns_refused] + told[:columns_points_dropped]
client.shutdown if client.respond_to?(:shutdown)
puts({count: count, samples: samples, sum: sum, last: last, lost: lost, duplicates: told[:columns_duplicates],
      retries: told[:columns_retries]}.to_json)
"""


def wait(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.01)


class Agent:
    """The agent's current process."""

    def __init__(self, weir, directory, merge):
        self.weir, self.directory = weir, directory
        self.log = os.path.join(directory, "log")
        self.config = os.path.join(directory, "weir.yaml")
        with open(self.config, "w") as file:
            file.write(AGENT.format(directory=directory, merge="true" if merge else "false"))
        self.start()

    def start(self):
        with open(self.log, "w") as file:
            self.process = subprocess.Popen([self.weir, "run", "--config", self.config], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
        wait("the agent serves", lambda: self.process.poll() is None and re.search(r"admin on (http://\S+)", open(self.log).read()))
        self.admin = re.search(r"admin on (http://\S+)", open(self.log).read())[1]
        self.pid = self.process.pid

    def status(self):
        with urllib.request.urlopen(self.admin + "/api/v1/status", timeout=10) as answer:
            return json.load(answer)

    def upgrade(self):
        subprocess.run([self.weir, "upgrade", "--state-path", f"{self.directory}/state"], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
        self.pid = self.status()["pid"]

    def end(self, number):
        if self.pid is None:
            return
        os.kill(self.pid, number)
        wait("the agent ends", lambda: self.process.poll() is not None and not is_alive(self.pid))
        self.pid = None


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Network:
    """A socket in front of the agent's."""

    def __init__(self, path, agent, seed):
        self.agent, self.random, self.answers = agent, random.Random(seed), 0
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(path)
        self.listening.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listening.accept()
            threading.Thread(target=self.serve, args=[client, self.random.random()], daemon=True).start()

    def serve(self, client, chance):
        with client:
            try:
                request = read_request(client)
                if request is None:
                    return
                if chance < 0.1:
                    # The second copy arrives at the same time, or later than the answer to the first.
                    threading.Timer(chance * 5, self.ask_quietly, [request]).start()
                answer = self.ask(request)
                if chance > 0.8:
                    return
                if chance > 0.7:
                    time.sleep(chance)
                client.sendall(answer)
                self.answers += answer.startswith(b"HTTP/1.1 200")
            except OSError:
                pass

    def ask(self, request):
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(30)
            agent.connect(self.agent)
            agent.sendall(request)
            answer = b""
            while some := agent.recv(65536):
                answer += some
            return answer

    def ask_quietly(self, request):
        try:
            self.ask(request)
        except OSError:
            pass


def read_request(client):
    data = b""
    while b"\r\n\r\n" not in data:
        some = client.recv(65536)
        if not some:
            return None
        data += some
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    length = int(length[1]) if length else 0
    while len(body) < length:
        some = client.recv(65536)
        if not some:
            return None
        body += some
    return head + b"\r\n\r\n" + body


def programs(directory):
    """The clients' commands, without their arguments."""
    source = os.path.join(directory, "go")
    os.mkdir(source)
    with open(os.path.join(source, "main.go"), "w") as file:
        file.write(GO)
    with open(os.path.join(source, "go.mod"), "w") as file:
        file.write("module soak\n\ngo 1.22\n\nrequire github.com/weir-dev/weir/clients/go v0.0.0\n\n"
                   f"replace github.com/weir-dev/weir/clients/go => {ROOT}/clients/go\n")
    subprocess.run(["go", "build", "-o", "client", "."], cwd=source, check=True, env={**ENVIRONMENT, "GOFLAGS": "-mod=mod"})
    script = os.path.join(directory, "client.rb")
    with open(script, "w") as file:
        file.write(RUBY)
    return [[os.path.join(source, "client")], [os.path.join(source, "client")], ["ruby", f"-I{ROOT}/clients/ruby/lib", script]]


def run(options, weir, directory):
    agent = Agent(weir, directory, not options.own_timestamps)
    network = Network(f"{directory}/network", f"{directory}/http", options.seed)
    clients = []
    try:
        for number, program in enumerate(programs(directory)):
            command = [*program, f"{directory}/network", str(number)]
            clients.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT))
        wait("every client sends columns", lambda: agent.status()["columns"]["clients"] == len(clients))
        chance = random.Random(options.seed + 1)
        steps = ["kill"] * options.kills + ["hand over"] * options.hand_overs
        chance.shuffle(steps)
        for step in steps:
            before = network.answers
            wait("clients have answers", lambda: network.answers >= before + 3)
            time.sleep(chance.random())
            if step == "kill":
                agent.end(signal.SIGKILL)
                time.sleep(chance.random())
                agent.start()
            else:
                agent.upgrade()
        for client in clients:
            client.stdin.close()
        truths = [json.loads(client.stdout.read()) for client in clients]
        books = agent.status()["state"]
        # Nothing can be kept, so the bucket is flushed.
        for _ in range(100):
            shutil.rmtree(f"{directory}/state", ignore_errors=True)
            try:
                open(f"{directory}/state", "x").close()
                break
            except OSError:
                pass
        agent.end(signal.SIGTERM)
    finally:
        for client in clients:
            if client.poll() is None:
                client.kill()
        agent.end(signal.SIGKILL)
    with open(f"{directory}/points.jsonl") as file:
        points = [json.loads(line) for line in file]
    failed = 0

    def compare(what, found, wanted):
        nonlocal failed
        failed += found != wanted
        print(f"{'ok' if found == wanted else 'NOT OK'}: {what}: {found}, sent {wanted}")

    of = lambda metric: [point for point in points if point["metric"] == metric]
    compare("count", sum(round(point["value"] * point["interval"]) for point in of("count")), sum(truth["count"] for truth in truths))
    compare("samples", sum(point["cnt"] for point in of("dist")), sum(truth["samples"] for truth in truths))
    compare("sum", sum(point["sum"] for point in of("dist")), sum(truth["sum"] for truth in truths))
    for number, truth in enumerate(truths):
        # It rises. A window that came late is a point of its own.
        compare(f"gauge of client {number}", max(point["value"] for point in of(f"gauge.{number}")), truth["last"])
        compare(f"lost by client {number}", truth["lost"], 0)
    print(f"seed {options.seed}: {options.kills} kills, {options.hand_overs} hand-overs, {network.answers} answers, "
          f"{sum(truth['retries'] for truth in truths)} repetitions, {sum(truth['duplicates'] for truth in truths)} of them added before, "
          f"{books['kills']} kills in the books")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hand-overs", type=int, default=20)
    parser.add_argument("--own-timestamps", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    weir = os.environ.get("WEIR_BIN") or os.path.join(target, "release/weir")
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(1 if run(options, weir, directory) else 0)


if __name__ == "__main__":
    main()
