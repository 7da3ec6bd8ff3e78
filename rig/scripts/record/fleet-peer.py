#!/usr/bin/env python3
"""One central server with three agents, and the same samples for each kind: the CPU time and memory of the centre, and whether its result is right.

  rig/scripts/record/fleet-peer.py weir|gostatsd WEIR_BENCH PROGRAM [SECONDS]

weir: three agents publish into a log in a directory, and `weir merge` merges it. gostatsd: three forwarders send to one server in standalone mode. Both centres write
the same points to a Graphite receiver of this script: one counter and one p99 for each series of the whole fleet. Prints a JSON object.
"""
import collections
import json
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

AGENTS = 3
SERIES = 3000
RATE = 6000
# Time until the last samples are merged and have arrived: a bucket, the spread of agents, and a margin for a busy machine.
SETTLE_SECONDS = 60

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}

PROFILE = """
contexts: SERIES
popularity: uniform
names: {list: ["checkout.component{{0-99}}.requests"]}
types: {count: 3, timer: 1}
tags_per_msg: 5
sample_p: 0
multivalue_p: 0
type_conflict: 0
value: {kind: small_ints}
transport: unixgram
rate: RATE msg/s
""".replace("SERIES", str(SERIES)).replace("RATE", str(RATE))

WEIR_AGENT = """
hostname: web{number}
udp: []
uds: ['{socket}']
admin: 127.0.0.1:0
state_path: '{directory}/web{number}'
outputs:
  prometheus: {{enabled: false}}
  kafka: {{directory: '{directory}/log'}}
"""

WEIR_CENTRE = """
log: {{directory: '{directory}/log'}}
grace: 30s
admin: 127.0.0.1:0
memory: 512MiB
outputs:
  prometheus: {{enabled: false}}
  graphite: {{address: 'tcp://127.0.0.1:{receiver}', aggregates: [], percentiles: [0.99]}}
"""

FORWARDER = """
server-mode = "forwarder"
metrics-addr = "{socket}"
hostname = "web{number}"
ignore-host = true
flush-interval = "10s"
statser-type = "null"
[http-transport]
api-endpoint = "http://127.0.0.1:{port}"
"""

STANDALONE = """
metrics-addr = "{directory}/centre.sock"
ignore-host = true
flush-interval = "10s"
flush-aligned = true
statser-type = "null"
percent-threshold = ["99"]
backends = ["graphite"]
http-servers = ["receiver"]
[http.receiver]
address = "127.0.0.1:{port}"
enable-ingestion = true
[graphite]
address = "127.0.0.1:{receiver}"
mode = "tags"
[disabled-sub-metrics]
lower = true
lower-pct = true
upper = true
count = true
count-pct = true
count-per-second = true
mean = true
mean-pct = true
median = true
stddev = true
sum = true
sum-pct = true
sum-squares = true
sum-squares-pct = true
"""


class Received:
    """Points by name and time. A second point replaces the first."""

    def __init__(self):
        self.points, self.lock, self.lines = {}, threading.Lock(), 0
        received = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                for line in self.rfile:
                    received.take(line.decode())

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.port = self.server.server_address[1]

    def take(self, line):
        name, value, at = line.split(" ")
        with self.lock:
            self.lines += 1
            self.points[name, int(at)] = float(value)

    def counters(self):
        """The sum of all counters, and the number of series with a p99."""
        with self.lock:
            points = list(self.points.items())
        total = sum(value for (name, _), value in points if re.search(r"\.count(;|$)", name))
        return total, len({name for (name, _), _ in points if re.search(r"\.(p99|upper_99)(;|$)", name)})


class Fleet:
    def __init__(self, directory, kind, bench, program):
        self.directory, self.kind, self.bench, self.program = directory, kind, bench, program
        self.received, self.processes = Received(), []
        with socket.create_server(("127.0.0.1", 0)) as held:
            self.port = held.getsockname()[1]

    def start(self, name, text, command):
        suffix = "toml" if self.kind == "gostatsd" else "yaml"
        config = os.path.join(self.directory, f"{name}.{suffix}")
        with open(config, "w") as file:
            file.write(text)
        with open(os.path.join(self.directory, f"{name}.log"), "w") as log:
            process = subprocess.Popen([self.program, *command, config], env=ENVIRONMENT, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def socket(self, number):
        return os.path.join(self.directory, f"web{number}.sock")

    def start_all(self):
        places = dict(directory=self.directory, receiver=self.received.port, port=self.port)
        if self.kind == "weir":
            centre = self.start("centre", WEIR_CENTRE.format(**places), ["merge", "--config"])
        else:
            centre = self.start("centre", STANDALONE.format(**places), ["--config-path"])
        for number in range(1, AGENTS + 1):
            own = dict(places, number=number, socket=self.socket(number))
            if self.kind == "weir":
                self.start(f"web{number}", WEIR_AGENT.format(**own), ["run", "--config"])
            else:
                self.start(f"web{number}", FORWARDER.format(**own), ["--config-path"])
        deadline = time.monotonic() + 30
        while not all(os.path.exists(self.socket(number)) for number in range(1, AGENTS + 1)):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                sys.exit(f"the fleet of {self.kind} did not start:\n{self.logs()}")
            time.sleep(0.05)
        return centre

    def logs(self):
        texts = []
        for name in sorted(os.listdir(self.directory)):
            if name.endswith(".log"):
                with open(os.path.join(self.directory, name)) as file:
                    texts.append(f"{name}: {file.read()[-2000:]}")
        return "\n".join(texts)

    def load(self, seconds):
        """Sends to all agents at the same time; returns the sum of all counters that were sent."""
        with open(os.path.join(self.directory, "profile.yaml"), "w") as file:
            file.write(PROFILE)
        senders = []
        for number in range(1, AGENTS + 1):
            manifest = os.path.join(self.directory, f"sent{number}.json")
            command = [self.bench, "load", "run", os.path.join(self.directory, "profile.yaml"), "--to", f"unixgram://{self.socket(number)}",
                       "--duration", f"{seconds}s", "--manifest", manifest, "--contexts", "--seed", "7"]
            senders.append((manifest, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)))
        sent, messages = 0.0, 0
        for manifest, sender in senders:
            _, errors = sender.communicate()
            if sender.returncode != 0:
                sys.exit(f"the load failed: {errors}")
            with open(manifest) as file:
                rows = json.load(file)["contexts"]
            sent += sum(float(row["weighted_sum"]) for row in rows if row["type"] == "c")
            messages += sum(int(row["messages"]) for row in rows)
        return sent, messages

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def spent(process):
    """CPU time of all threads of a process: nanoseconds."""
    total = 0
    for thread in os.listdir(f"/proc/{process.pid}/task"):
        with open(f"/proc/{process.pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def memory(process):
    with open(f"/proc/{process.pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) // 1024


def run(fleet, seconds):
    centre = fleet.start_all()
    # Its CPU time without samples.
    time.sleep(2)
    before, begun = spent(centre), time.monotonic()
    time.sleep(10)
    idle = (spent(centre) - before) / (time.monotonic() - begun)
    before, begun = spent(centre), time.monotonic()
    sent, messages = fleet.load(seconds)
    deadline = time.monotonic() + SETTLE_SECONDS
    counted, series = fleet.received.counters()
    while counted != sent and time.monotonic() < deadline:
        time.sleep(0.5)
        counted, series = fleet.received.counters()
    took = spent(centre) - before - idle * (time.monotonic() - begun)
    states = AGENTS * SERIES * seconds / 10
    return collections.OrderedDict(
        program=fleet.kind, agents=AGENTS, series=SERIES, seconds=seconds, messages=messages, states=round(states), idle_cpu_percent=round(idle / 1e7, 2),
        cpu_us_per_state=round(took / states / 1e3, 2), memory_mib=memory(centre), sent=sent, counted=counted, exact=counted == sent, p99_series=series,
    )


def main():
    if len(sys.argv) < 4 or sys.argv[1] not in ("weir", "gostatsd"):
        sys.exit(__doc__)
    kind, bench, program, seconds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 40
    with tempfile.TemporaryDirectory(prefix="weir-peer-") as directory:
        fleet = Fleet(directory, kind, bench, program)
        try:
            print(json.dumps(run(fleet, seconds)))
        finally:
            fleet.end()


main()
