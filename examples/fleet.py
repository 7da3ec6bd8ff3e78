#!/usr/bin/env python3
"""Starts a fleet on this machine: three agents with load, their log, two merges, and the truth beside what is merged.

  examples/fleet.py [SECONDS] [--kill AFTER] [--kafka]

Without SECONDS it runs until Ctrl-C. With them it stops the load then, waits until everything is merged, and fails where the merged total is not what was sent.
--kill ends the merge that sends with SIGKILL, AFTER that many seconds: the other one goes on, and the total stays exact. Everything ends with the script.

--kafka: the log is a real broker (needs Java and Maven) and both merges have a part of the partitions; else it is a directory, which one merge reads at a time.

WEIR_BIN, WEIR_BENCH_BIN and WEIR_BROKER_BIN name programs that are built; else they are built here. With --kafka, weir needs the feature `kafka`.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AGENTS = 3
MERGES = 2
# How long one load runs; then it writes down what it has sent.
LOAD_SECONDS = 5
# Agents spread what they publish over ten seconds, and a bucket waits for them.
SETTLE_SECONDS = 120

# Variables of weir are settings.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}

PROFILE = """
contexts: 60
names: {list: ["checkout.requests{{0-9}}", "checkout.latency{{0-9}}"]}
types: {count: 3, timer: 1}
tags_per_msg: 2
tag_keys: {list: [path, region]}
sample_p: 0
multivalue_p: 0
value: {kind: small_ints}
transport: unixgram
rate: 2000 msg/s
"""

AGENT = """
hostname: web{number}
tags: [instance:web{number}]
udp: []
uds: ['{directory}/web{number}.sock']
admin: 127.0.0.1:0
state_path: '{directory}/web{number}'
outputs:
  prometheus: {{enabled: false}}
  kafka:
    {log}
    partitions: 2
    rules:
      - name: no instance
        exclude_tags: [instance]
"""

MERGE = """
log: {{{log}, partitions: 2}}
grace: 30s
admin: 127.0.0.1:0
memory: 128MiB
state_path: '{directory}/merge{number}'
outputs:
  prometheus: {{}}
  file: {{path: '{directory}/merged{number}.jsonl'}}
"""


class Fleet:
    def __init__(self, directory, weir, bench):
        self.directory, self.weir, self.bench = directory, weir, bench
        self.processes, self.log = [], f"directory: '{directory}/log'"
        self.truth, self.lock, self.stopping = 0.0, threading.Lock(), threading.Event()

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def start(self, role, name, text):
        """Starts an agent or a merge, and returns it with its admin address."""
        config = self.write(f"{name}.yaml", text)
        log = self.path(f"{name}.log")
        with open(log, "w") as file:
            # A session of its own: Ctrl-C is for the script, which ends what it has started in order.
            process = subprocess.Popen([self.weir, role, "--config", config], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True)
        self.processes.append(process)
        while True:
            with open(log) as file:
                found = re.search(r"admin on (http://\S+)", file.read())
            if found:
                return process, found[1]
            if process.poll() is not None:
                with open(log) as file:
                    sys.exit(f"{name} ended:\n{file.read()}")
            time.sleep(0.05)

    def start_broker(self, program):
        """A broker of Apache Kafka that ends with its standard input."""
        broker = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.processes.append(broker)
        address = broker.stdout.readline().strip()
        if not address:
            sys.exit("the broker did not start")
        self.log = f"brokers: ['{address}']"
        print(f"broker: {address}")

    def load(self, number):
        """Sends to one agent, in loads that each write down what they have sent."""
        at = 0
        while not self.stopping.is_set():
            at += 1
            manifest = self.path(f"sent-{number}-{at}.json")
            command = [self.bench, "load", "run", self.path("profile.yaml"), "--to", f"unixgram://{self.directory}/web{number}.sock",
                       "--duration", f"{LOAD_SECONDS}s", "--manifest", manifest, "--contexts"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
            self.processes.append(process)
            _, errors = process.communicate()
            if process.returncode != 0:
                if not self.stopping.is_set():
                    print(f"load of agent {number} failed: {errors}", file=sys.stderr)
                return
            with open(manifest) as file:
                sent = counters(json.load(file))
            with self.lock:
                self.truth += sent

    def end(self):
        self.stopping.set()
        for process in self.processes:
            if process.poll() is None and not process.stdin:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            if process.stdin:
                process.stdin.close()
        deadline = time.monotonic() + 15
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def counters(manifest):
    """The sum of all counters that a load has sent."""
    return sum(float(row["weighted_sum"]) for row in manifest["contexts"] if row["type"] == "c")


def ask(address, path):
    try:
        with urllib.request.urlopen(address + path, timeout=5) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None


def merged(fleet):
    """The sum of all counters that the merges have written: rates times the interval. A point that a merge writes again after a kill takes the place of the first."""
    points = {}
    for number in range(1, MERGES + 1):
        try:
            with open(fleet.path(f"merged{number}.jsonl")) as file:
                for text in file:
                    point = json.loads(text) if text.endswith("\n") else {}
                    if point.get("type") == "rate" and not point["metric"].endswith(".count"):
                        points[point["metric"], tuple(point["tags"]), point["ts"]] = round(point["value"] * point["interval"])
        except FileNotFoundError:
            pass
    return sum(points.values())


def sending(merges):
    """The merges that send, by number, with what each says of its fleet."""
    found = {}
    for number, (process, address) in enumerate(merges, 1):
        if process.poll() is None:
            status = json.loads(ask(address, "/api/v1/status") or "{}")
            if status.get("fleet", {}).get("sends"):
                found[number] = status["fleet"]
    return found


def line(fleet, merges):
    found = sending(merges)
    if not found:
        return "no merge sends yet"
    parts = []
    for number, status in found.items():
        states = status.get("states", {})
        parts.append(f"merge {number}: {status.get('agents_seen')} of {status.get('agents_expected')} agents, lag {status.get('lag_records')} records, "
                     f"series states {states.get('published')} published, {states.get('merged')} merged, {states.get('open')} open")
    return f"{'; '.join(parts)}; counters: {fleet.truth:.0f} sent, {merged(fleet):.0f} merged"


def binaries(kafka):
    names = ["weir", "weir-bench"] + (["weir-broker"] if kafka else [])
    found = [os.environ.get(f"{name.upper().replace('-', '_')}_BIN") for name in names]
    if all(found):
        return found
    features = ["--workspace", "--features", "weir/kafka"] if kafka else []
    wanted = [argument for name in names for argument in ("--bin", name)]
    subprocess.run(["cargo", "build", "--release", "--locked", *features, *wanted], cwd=ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return [os.path.join(target, "release", name) for name in names]


def settle(fleet, merges):
    """Waits until everything that was sent is merged."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        total = merged(fleet)
        if fleet.truth > 0 and total == fleet.truth:
            print(f"exact: {fleet.truth:.0f} sent, {total:.0f} merged")
            return 0
        time.sleep(1)
    print(f"NOT EXACT: {fleet.truth:.0f} sent, {merged(fleet):.0f} merged", file=sys.stderr)
    return 1


def run(fleet, seconds, kill_after):
    fleet.write("profile.yaml", PROFILE)
    for number in range(1, AGENTS + 1):
        _, address = fleet.start("run", f"web{number}", AGENT.format(number=number, directory=fleet.directory, log=fleet.log))
        print(f"agent web{number}: {address}/")
    merges = [fleet.start("merge", f"merge{number}", MERGE.format(number=number, directory=fleet.directory, log=fleet.log)) for number in range(1, MERGES + 1)]
    for number, (process, address) in enumerate(merges, 1):
        print(f"merge {number}: {address}/   kill -9 {process.pid}")
    print("kill a merge that sends: the other one continues, and what is merged reaches what was sent, about half a minute later")
    loads = [threading.Thread(target=fleet.load, args=(number,), daemon=True) for number in range(1, AGENTS + 1)]
    for thread in loads:
        thread.start()
    begun = time.monotonic()
    while seconds is None or time.monotonic() - begun < seconds:
        time.sleep(5 if seconds is None else 1)
        if kill_after is not None and time.monotonic() - begun >= kill_after:
            for number in list(sending(merges))[:1]:
                merges[number - 1][0].kill()
                print(f"merge {number} is killed")
                kill_after = None
        if int(time.monotonic() - begun) % 5 == 0:
            print(line(fleet, merges), flush=True)
    fleet.stopping.set()
    for thread in loads:
        thread.join()
    if kill_after is not None:
        print("no merge was sending when one was to be killed", file=sys.stderr)
        return 1
    return settle(fleet, merges)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=int, help="how long to send; without it until Ctrl-C")
    parser.add_argument("--kill", type=int, metavar="AFTER", help="kill the merge that sends after so many seconds")
    parser.add_argument("--kafka", action="store_true", help="with a real broker, and partitions for both merges")
    arguments = parser.parse_args()
    weir, bench, *broker = binaries(arguments.kafka)
    with tempfile.TemporaryDirectory(prefix="weir-fleet-") as directory:
        fleet = Fleet(directory, weir, bench)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            for program in broker:
                fleet.start_broker(program)
            return run(fleet, arguments.seconds, arguments.kill)
        except KeyboardInterrupt:
            return 130
        finally:
            fleet.end()


sys.exit(main())
