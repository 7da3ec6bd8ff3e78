#!/usr/bin/env python3
"""Starts a fleet on this machine: three agents with load, their log, two merges; compares what was merged with what was sent.

  docs/examples/fleet.py [SECONDS] [--kill AFTER] [--kafka | --directory]

Without SECONDS it runs until Ctrl-C. With SECONDS it stops the load after that time, waits until everything is merged, and fails unless each
output has every kind of metric as it was sent: the sums of counters, the numbers of timings and distributions, gauges, and sets.
--kill ends a sending merge with SIGKILL AFTER that many seconds: the other merge takes over, with the sums of the scrape, and both outputs stay exact. The
script ends everything that it started.

The log is a real broker of Apache Kafka, and each merge owns a part of the partitions. Without Java, or Maven to fetch the broker, the
script prints the reason and uses a directory, which one merge reads at a time. --kafka fails instead; --directory always uses the directory.

WEIR_BIN, WEIR_BENCH_BIN and WEIR_BROKER_BIN name built programs; the script builds the others. For a broker, weir needs the feature `kafka`.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import webbrowser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AGENTS = 3
MERGES = 2
# Duration of one load, which records its messages at its end.
LOAD_SECONDS = 5
# Agents spread their records over ten seconds, and a bucket waits for them.
SETTLE_SECONDS = 120

# Tools, beside Rust, to build the Kafka client.
BUILDERS = ["cc", "make", "perl"]

# weir reads WEIR_ variables as settings.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}

# A merge that has no snapshot does not know the agents, and waits so long for them.
GRACE_SECONDS = 30

# The kinds, by the load's names of them, and their metrics: ten of each.
METRICS = {"count": "checkout.requests", "timer": "checkout.latency", "gauge": "checkout.queue", "distribution": "checkout.bytes", "set": "checkout.users"}

PROFILE = """
contexts: 20
names: {list: ["METRIC{{0-9}}"]}
types: {KIND: 1}
set_members: 5
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
grace: {grace}s
admin: 127.0.0.1:0
memory: 128MiB
state_path: '{directory}/merge{number}'
outputs:
  prometheus: {{}}
  file: {{path: '{directory}/merged{number}.jsonl'}}
"""


class Truth:
    """The sent metrics."""

    def __init__(self):
        self.sums = {"count": 0.0, "timer": 0, "distribution": 0}
        # By name and tags: the last values by agent, and the members.
        self.gauges, self.sets = {}, {}

    def add(self, agent, manifest):
        for row in manifest["contexts"]:
            series = row["name"], tuple(sorted(row["tags"]))
            if row["type"] == "c":
                self.sums["count"] += float(row["weighted_sum"])
            elif row["type"] in ("ms", "d"):
                self.sums["timer" if row["type"] == "ms" else "distribution"] += row["weight"]
            elif row["type"] == "g":
                self.gauges.setdefault(series, {})[agent] = {float(value) for value in row["last"]}
            else:
                self.sets.setdefault(series, set()).update(row["members"])


class Fleet:
    def __init__(self, directory, weir, bench):
        self.directory, self.weir, self.bench = directory, weir, bench
        self.processes, self.log = [], f"directory: '{directory}/log'"
        self.truth, self.lock, self.stopping = Truth(), threading.Lock(), threading.Event()

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
            # In its own session: Ctrl-C reaches only the script, which ends its processes in order.
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
        """Sends to one agent, in loads that each record their messages."""
        at = 0
        while not self.stopping.is_set():
            at += 1
            manifest = self.path(f"sent-{number}-{at}.json")
            kind = list(METRICS)[(number + at) % len(METRICS)]
            command = [self.bench, "load", "run", self.path(f"{kind}.yaml"), "--to", f"unixgram://{self.directory}/web{number}.sock",
                       "--duration", f"{LOAD_SECONDS}s", "--manifest", manifest, "--contexts"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
            self.processes.append(process)
            _, errors = process.communicate()
            if process.returncode != 0:
                if not self.stopping.is_set():
                    print(f"load of agent {number} failed: {errors}", file=sys.stderr)
                return
            with open(manifest) as file:
                sent = json.load(file)
            with self.lock:
                self.truth.add(number, sent)

    def end(self):
        # A second Ctrl-C also leaves no process behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
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


def ask(address, path):
    try:
        with urllib.request.urlopen(address + path, timeout=5) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None


def in_files(fleet):
    """The merged metrics as in [`Truth`]. A point that a merge writes again after a kill replaces the first."""
    points = {}
    for number in range(1, MERGES + 1):
        try:
            with open(fleet.path(f"merged{number}.jsonl")) as file:
                for text in file:
                    point = json.loads(text) if text.endswith("\n") else {}
                    if point.get("metric", "").startswith("checkout."):
                        points[point["metric"], point["type"], tuple(sorted(point["tags"])), point["ts"]] = point
        except FileNotFoundError:
            pass
    sums, gauges, sets = {"count": 0.0, "timer": 0, "distribution": 0}, {}, {}
    for (name, kind, tags, at), point in sorted(points.items(), key=lambda item: item[0][3]):
        if kind == "sketch":
            sums["distribution"] += point["cnt"]
        elif kind == "rate":
            sums["timer" if name.endswith(".count") else "count"] += round(point["value"] * point["interval"])
        elif name.startswith(METRICS["gauge"]):
            gauges[name, tags] = point["value"]
        elif name.startswith(METRICS["set"]):
            sets[name, tags] = max(point["value"], sets.get((name, tags), 0))
    return sums, gauges, sets


def scraped(merges):
    """The same of the merges that run. They show the members of the last bucket, so of sets only that there are any."""
    sums, gauges, sets = {"count": 0.0, "timer": 0, "distribution": 0}, {}, {}
    names = {name.replace(".", "_"): kind for kind, name in METRICS.items()}
    for process, address in merges:
        text = (process.poll() is None and ask(address, "/metrics")) or ""
        for name, ending, labels, number in re.findall(r"^(checkout_[a-z]+\d)(_total|_count|)\{([^}]*)\} (\S+)", text, re.MULTILINE):
            kind = names[name[:-1]]
            # Values of one key share a label.
            labels = re.findall(r'(\w+)="([^"]*)"', labels)
            tags = tuple(sorted(f"{key}:{value}" for key, values in labels for value in values.split(",")))
            series = f"{METRICS[kind]}{name[-1]}", tags
            if kind == "gauge":
                gauges[series] = float(number)
            elif kind == "set":
                sets[series] = float(number)
            elif ending:
                sums[kind] += float(number)
    return sums, gauges, sets


def difference(truth, found, has_members):
    """The first difference from what was sent, or None."""
    sums, gauges, sets = found
    for kind, sent in truth.sums.items():
        if sent == 0 or sums[kind] != sent:
            return f"{METRICS[kind]} (kind {kind}): {sent:.0f} sent, {sums[kind]:.0f} found"
    if gauges.keys() != truth.gauges.keys() or sets.keys() != truth.sets.keys():
        return f"{len(truth.gauges)} gauges and {len(truth.sets)} sets sent, {len(gauges)} and {len(sets)} found"
    for series, value in gauges.items():
        last = set().union(*truth.gauges[series].values())
        if value not in last:
            return f"gauge {series}: {value}, the last values of the agents are {sorted(last)}"
    for series, members in truth.sets.items():
        if has_members and sets[series] != len(members):
            return f"set {series}: {sets[series]:.0f} members, {len(members)} were sent"
    return None


def sending(merges):
    """The sending merges, by number, each with the fleet in its status."""
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
        return "no merge has partitions yet"
    parts, states = [], {"published": 0, "merged": 0}
    for number, status in found.items():
        of = status.get("states", {})
        states = {name: count + of.get(name, 0) for name, count in states.items()}
        parts.append(f"merge {number}: {status.get('agents_seen')} of {status.get('agents_expected')} agents, lag {status.get('lag_records')} records, "
                     f"series states {of.get('published')} published, {of.get('merged')} merged, {of.get('open')} open")
    if not states["published"]:
        return f"waiting for the first bucket of the agents, which ends after ten seconds; {'; '.join(parts)}"
    if not states["merged"]:
        return f"waiting {GRACE_SECONDS} s (grace) for agents that the merges do not know yet, the first time only; {'; '.join(parts)}"
    sums, _, _ = in_files(fleet)
    return f"{'; '.join(parts)}; counters: {fleet.truth.sums['count']:.0f} sent, {sums['count']:.0f} merged"


def variable(name):
    return f"{name.upper().replace('-', '_')}_BIN"


def no_broker():
    """The reason why no broker can start, or None."""
    wanted = ["java"] + ([] if variable("weir") in os.environ else BUILDERS)
    missing = [program for program in wanted if not shutil.which(program)]
    if missing:
        return f"{' and '.join(missing)} cannot be found (scripts/install-test-deps.sh installs what a broker needs)"
    jars = subprocess.run([os.path.join(ROOT, "rig/weir-broker/jars.sh")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if jars.returncode != 0:
        last = (jars.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"Maven does not fetch Apache Kafka: {last}"
    return without_client()


def without_client():
    """The error of a named program without the client of Kafka, or None."""
    program = os.environ.get(variable("weir"))
    if not program:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("log: {brokers: ['127.0.0.1:9092']}\n")
        config.flush()
        check = subprocess.run([program, "merge", "--check", "--config", config.name], env=ENVIRONMENT, capture_output=True, text=True)
    return None if check.returncode == 0 else check.stderr.strip()


def binaries(kafka):
    """Paths of the programs. Builds those that no variable names."""
    names = ["weir", "weir-bench"] + (["weir-broker"] if kafka else [])
    target = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release")
    missing = [name for name in names if variable(name) not in os.environ]
    if missing:
        features = ["--workspace", "--features", "weir/kafka"] if kafka else []
        wanted = [argument for name in missing for argument in ("--bin", name)]
        if kafka:
            print("the programs are built; the first time the client of Kafka takes some minutes", flush=True)
        subprocess.run(["cargo", "build", "--release", "--locked", *features, *wanted], cwd=ROOT, check=True)
    return [os.environ.get(variable(name), os.path.join(target, name)) for name in names]


def show(address):
    """Opens a page if a user can see it."""
    if sys.stdout.isatty() and any(name in os.environ for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        webbrowser.open(address)


def settle(fleet, merges):
    """Waits until each output has all that was sent."""
    deadline = time.monotonic() + SETTLE_SECONDS
    differences = []
    while time.monotonic() < deadline:
        differences = {"file": difference(fleet.truth, in_files(fleet), True),
                       "prometheus": difference(fleet.truth, scraped(merges), False)}
        if not any(differences.values()):
            sums = ", ".join(f"{sent:.0f} {kind}" for kind, sent in fleet.truth.sums.items())
            print(f"exact at {' and '.join(differences)}: {sums}, {len(fleet.truth.gauges)} gauges, {len(fleet.truth.sets)} sets")
            return 0
        time.sleep(1)
    for output, what in differences.items():
        print(f"{output}: {what or 'exact'}", file=sys.stderr)
    return 1


def run(fleet, seconds, kill_after):
    for kind, name in METRICS.items():
        fleet.write(f"{kind}.yaml", PROFILE.replace("METRIC", name).replace("KIND", kind))
    for number in range(1, AGENTS + 1):
        _, address = fleet.start("run", f"web{number}", AGENT.format(number=number, directory=fleet.directory, log=fleet.log))
        print(f"agent web{number}: {address}/")
    merges = [fleet.start("merge", f"merge{number}", MERGE.format(number=number, directory=fleet.directory, log=fleet.log, grace=GRACE_SECONDS)) for number in range(1, MERGES + 1)]
    for number, (process, address) in enumerate(merges, 1):
        print(f"merge {number}: {address}/   kill -9 {process.pid}")
    print("kill merge 1 with the command beside it, and look at the page of merge 2 (agents, lag, the ledger): it takes over within some ten seconds, and half a minute "
          "later what is merged is again all that was sent half a minute before. Ctrl-C ends everything.", flush=True)
    print(f"first results come about {GRACE_SECONDS + 15} s from now: until then the merges learn which agents there are", flush=True)
    show(f"{merges[-1][1]}/")
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
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--kafka", action="store_true", help="with a real broker, or not at all")
    where.add_argument("--directory", action="store_true", help="without a broker: the log is a directory")
    arguments = parser.parse_args()
    reason = "--directory" if arguments.directory else no_broker()
    if reason and arguments.kafka:
        sys.exit(f"no broker: {reason}")
    print("the log is Apache Kafka; each merge has a part of the partitions" if reason is None else
          f"the log is a directory, which one merge reads at a time; no broker: {reason}", flush=True)
    weir, bench, *broker = binaries(reason is None)
    with tempfile.TemporaryDirectory(prefix="weir-fleet-") as directory:
        fleet = Fleet(directory, weir, bench)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            for program in broker:
                fleet.start_broker(program)
            return run(fleet, arguments.seconds, arguments.kill)
        except KeyboardInterrupt:
            return 130
        finally:
            fleet.end()


sys.exit(main())
