#!/usr/bin/env python3
"""Hand-overs in a row under load on all four transports at once. Fails if a sample is lost, a bucket is split or a scraped counter decreases.

  rig/scripts/soak-hand-overs.py [--rate 200000] [--seconds 90] [--hand-overs 20]

WEIR_BIN and WEIR_BENCH_BIN name built programs; the default is those of `make build`. Loopback only; the script ends all its processes.
"""
import argparse
import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRANSPORTS = ["udp", "unixgram", "unix", "tcp"]
# Time limit for the last samples to arrive in the output.
SETTLE_SECONDS = 60

# weir reads WEIR_ variables as settings.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}

# Each load has its own names, so its expected sums are of its series alone.
PROFILE = """
contexts: 250
names: {{list: ["{transport}.requests{{{{0-9}}}}", "{transport}.latency{{{{0-9}}}}"]}}
types: {{count: 3, timer: 1}}
tags_per_msg: 3
tag_keys: {{list: [path, region, version]}}
multivalue_p: 0
sample_p: 0
value: {{kind: small_ints}}
messages_per_packet: 20
transport: {transport}
rate: {rate} msg/s
"""

AGENT = """
hostname: soak
bucket_width: 1s
udp: ['127.0.0.1:0']
uds: ['{directory}/datagrams']
uds_stream: ['{directory}/stream']
tcp: ['127.0.0.1:0']
tcp_framing: newline
admin: 127.0.0.1:0
state_path: '{directory}/state'
outputs:
  prometheus: {{}}
  file: {{path: '{directory}/points.jsonl'}}
"""


class Agent:
    """The agent's current process."""

    def __init__(self, weir, directory):
        self.weir = weir
        self.log = os.path.join(directory, "log")
        config = os.path.join(directory, "weir.yaml")
        with open(config, "w") as file:
            file.write(AGENT.format(directory=directory))
        with open(self.log, "w") as file:
            self.first = subprocess.Popen([weir, "run", "--config", config], env=ENVIRONMENT, stderr=file, start_new_session=True)
        self.admin = self.said(r"admin on (http://\S+)")
        self.pid = self.first.pid

    def said(self, pattern):
        while True:
            with open(self.log) as file:
                found = re.search(pattern, file.read())
            if found:
                return found[1]
            if self.first.poll() is not None:
                sys.exit(f"the agent ended: {open(self.log).read()}")
            time.sleep(0.05)

    def get(self, path):
        with urllib.request.urlopen(self.admin + path, timeout=10) as answer:
            return answer.read().decode()

    def status(self):
        return json.loads(self.get("/api/v1/status"))

    def upgrade(self, directory):
        subprocess.run([self.weir, "upgrade", "--state-path", directory], env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
        status = self.status()
        self.pid = status["pid"]
        return status["state"]["hand_over"]["pause_seconds"] * 1e3

    def end(self):
        os.kill(self.pid, signal.SIGTERM)
        self.first.wait()
        deadline = time.monotonic() + 30
        while os.path.exists(f"/proc/{self.pid}") and time.monotonic() < deadline:
            time.sleep(0.05)


def counters_of_scrape(text):
    """The counters of the loads, summed by transport."""
    sums = collections.Counter()
    for line in text.splitlines():
        found = re.match(r"([a-z]+)_(?:requests|latency)\d_total(?:\{.*\})? (\S+)", line)
        if found:
            sums[found[1]] += float(found[2])
    return sums


def of_file(path):
    """Sums of counters and numbers of timers by transport; fails if a bucket of a series arrives twice."""
    points = set()
    sums = collections.Counter()
    with open(path) as file:
        for text in file:
            point = json.loads(text)
            transport, _, rest = point["metric"].partition(".")
            if transport not in TRANSPORTS:
                continue
            key = point["metric"], tuple(point["tags"]), point["ts"]
            if key in points:
                sys.exit(f"two points of one bucket: {key}")
            points.add(key)
            if point["type"] == "rate":
                sums[transport, "timers" if rest.endswith(".count") else "counters"] += round(point["value"] * point["interval"])
    return sums


def truth(manifests):
    sums = collections.Counter()
    for transport, path in manifests.items():
        with open(path) as file:
            for row in json.load(file)["contexts"]:
                if row["type"] == "c":
                    sums[transport, "counters"] += round(float(row["weighted_sum"]))
                else:
                    sums[transport, "timers"] += int(row["samples"])
    return sums


def run(options, weir, bench, directory):
    agent = Agent(weir, directory)
    targets = {
        "udp": "udp://" + agent.said(r"listening on udp://(\S+)"),
        "unixgram": f"unixgram://{directory}/datagrams",
        "unix": f"unix://{directory}/stream",
        "tcp": "tcp://" + agent.said(r"listening on tcp://(\S+)"),
    }
    loads, manifests = [], {}
    try:
        for transport, target in targets.items():
            profile = os.path.join(directory, f"{transport}.yaml")
            manifests[transport] = os.path.join(directory, f"{transport}.json")
            with open(profile, "w") as file:
                file.write(PROFILE.format(transport=transport, rate=options.rate // len(targets)))
            command = [bench, "load", "run", profile, "--to", target, "--duration", f"{options.seconds}s", "--on-backpressure", "wait",
                       "--manifest", manifests[transport], "--contexts"]
            if transport == "tcp":
                command += ["--framing", "newline"]
            loads.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        pauses, before = [], collections.Counter()
        start = time.monotonic()
        for number in range(options.hand_overs):
            due = start + (number + 0.5) * options.seconds / options.hand_overs
            time.sleep(max(0.0, due - time.monotonic()))
            pauses.append(agent.upgrade(os.path.join(directory, "state")))
            now = counters_of_scrape(agent.get("/metrics"))
            if any(now[transport] < before[transport] for transport in TRANSPORTS):
                sys.exit(f"a counter stepped back: {before} to {now}")
            before = now
        for load in loads:
            out, errors = load.communicate(timeout=options.seconds + 60)
            if load.returncode != 0:
                sys.exit(f"a load failed: {out}{errors}")
        elapsed = time.monotonic() - start
        wanted = truth(manifests)
        samples = sum(agent_rows(path) for path in manifests.values())
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            found = of_file(os.path.join(directory, "points.jsonl"))
            if found == wanted or time.monotonic() > deadline:
                break
            time.sleep(1)
        scraped = counters_of_scrape(agent.get("/metrics"))
        status = agent.status()
    finally:
        for load in loads:
            if load.poll() is None:
                load.kill()
        agent.end()
    print(f"{options.hand_overs} hand-overs, {samples} samples in {elapsed:.0f} s ({samples / elapsed:.0f} a second)")
    print(f"pause: median {sorted(pauses)[len(pauses) // 2]:.1f} ms, longest {max(pauses):.1f} ms")
    failed = 0
    for transport in TRANSPORTS:
        for what in ["counters", "timers"]:
            same = found[transport, what] == wanted[transport, what]
            failed += not same
            print(f"{transport} {what}: {wanted[transport, what]} sent, {found[transport, what]} in the file" + ("" if same else ": DIFFERENT"))
        if round(scraped[transport]) != wanted[transport, "counters"]:
            failed += 1
            print(f"{transport} counters of the scrape: {scraped[transport]:.0f}: DIFFERENT")
    print(f"dropped by the kernel: {status['total']['packets']['dropped']}")
    return 1 if failed else 0


def agent_rows(path):
    with open(path) as file:
        return sum(int(row["samples"]) for row in json.load(file)["contexts"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=200_000, help="messages a second over all transports")
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--hand-overs", type=int, default=20)
    options = parser.parse_args()
    target = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release")
    weir = os.environ.get("WEIR_BIN") or os.path.join(target, "weir")
    bench = os.environ.get("WEIR_BENCH_BIN") or os.path.join(target, "weir-bench")
    with tempfile.TemporaryDirectory(prefix="weir-soak-") as directory:
        sys.exit(run(options, weir, bench, directory))


if __name__ == "__main__":
    main()
