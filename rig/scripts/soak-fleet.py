#!/usr/bin/env python3
"""A fleet over a real broker of Apache Kafka, or over files, through faults at random times. Fails unless every output has what was sent.

  rig/scripts/soak-fleet.py [--directory] [--faults 60] [--seed N]

Three agents of two tenants, two merges and sometimes a third, four and later ten partitions, and four outputs: a file, to which late data
comes as a difference, Graphite and InfluxDB, where a point replaces an earlier one, and the scrape, whose sums move with the partitions
(those of series that moved to an added partition may begin from zero). Graphite is dead for a minute. Agents, merges and the broker are
killed, stopped and restarted; points with old timestamps arrive; the clock of all of them is an hour ahead for a while. WEIR_BIN and WEIR_BROKER_BIN name built programs; the defaults are those of a build for tests. Loopback only; the script ends all its processes.
"""
import argparse
import contextlib
import gzip
import http.server
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
WEIR = os.environ.get("WEIR_BIN") or os.path.join(TARGET, "debug/weir")
BROKER = os.environ.get("WEIR_BROKER_BIN") or os.path.join(TARGET, "debug/weir-broker")
# weir reads WEIR_ variables as settings.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
WIDTH = 5
TENANTS = ["shop", "bank", "bank"]
OUTPUTS = ["file", "graphite", "influx", "prometheus"]
# Of the scrape, by the names of the truth.
SUMS = {"k.c": "k_c_total", "k.late": "k_late_total", "k.d.count": "k_d_count", "k.t.count": "k_t_count"}
# Merges meet twice as many as agents.
FAULTS = ["kill agent", "restart agent", "stop agent", "third merge", "stop broker"] + ["kill merge", "restart merge", "stop merge"] * 2
# Seconds by which the clock steps once in a run, and back: more than a merge lets clocks differ.
STEP = 3600
# The wall clock plus as many seconds as a file says.
CLOCK = os.path.join(ROOT, "crates/weir/tests/support/clock.c")
# An agent gives a counter for this long, as zero. A series that moves to an added partition meanwhile may begin from zero at the scrape.
EXPIRY = 300
# An agent's data may be late, or in two parts, from so long before a fault on to so long after it.
BEFORE, AFTER = 10, 45

AGENT = """
hostname: host{number}
bucket_width: 5s
workers: 1
udp: []
sandbox: off
uds: ['{directory}/a{number}.sock']
admin: 127.0.0.1:0
state_path: '{directory}/a{number}.state'
outputs:
  prometheus: {{enabled: false}}
  kafka: {{{log}, partitions: 4, tenant: {tenant}, delivery: {{disk_path: '{directory}/a{number}.queue', backoff_max: 2s, timeout: 8s}}}}
"""

MERGE = """
log: {{{log}, partitions: 4}}
grace: 20s
sandbox: off
memory: 128MiB
admin: 127.0.0.1:0
flush_summary: false
grace_period: 5s
state_path: '{directory}/m{number}.state'
outputs:
  prometheus: {{expiry: 1d}}
  file: {{path: '{directory}/m{number}.jsonl'}}
  graphite: {{address: 'tcp://{graphite}'}}
  influx: {{url: 'http://{influx}', host: all, metric_type: false, precision: s}}
"""


class Graphite:
    """The last value of each point. While it is dead, nobody listens."""

    def __init__(self):
        self.points, self.open = {}, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.is_dead = False
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            if self.is_dead:
                connection.close()
            else:
                self.open.append(connection)
                threading.Thread(target=self.read, args=(connection,), daemon=True).start()

    def read(self, connection):
        with contextlib.suppress(OSError):
            for line in connection.makefile():
                path, value, at = line.split()
                name, *tags = path.split(";")
                key = (name, tuple(sorted(tag.replace("=", ":", 1) for tag in tags)), int(at))
                self.points[key] = float(value)
        connection.close()

    def die(self, is_dead):
        self.is_dead = is_dead
        while is_dead and self.open:
            with contextlib.suppress(OSError):
                self.open.pop().shutdown(socket.SHUT_RDWR)


class Influx:
    """The same over HTTP."""

    def __init__(self):
        points = self.points = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                for line in body.decode().splitlines():
                    series, fields, at = line.split(" ")
                    name, *tags = series.split(",")
                    tags = tuple(sorted(tag.replace("=", ":", 1) for tag in tags))
                    for field in fields.split(","):
                        field, value = field.split("=")
                        points[(f"{name}.{field}", tags, int(at))] = float(value.rstrip("i"))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = "127.0.0.1:%d" % server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()


class Process:
    def __init__(self, directory, name, role, text):
        self.config, self.log, self.role, self.name = f"{directory}/{name}.yaml", f"{directory}/{name}.log", role, name
        self.process = self.admin = None
        self.stopped = threading.Lock()
        with open(self.config, "w") as file:
            file.write(text)
        self.start()

    def start(self):
        at = os.path.getsize(self.log) if os.path.exists(self.log) else 0
        with open(self.log, "a") as file:
            command = [WEIR, self.role, "--config", self.config]
            self.process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=file)
        while True:
            with open(self.log) as file:
                file.seek(at)
                found = re.search(r"admin on http://(\S+)", file.read())
            if found:
                self.admin = found[1]
                return
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended: {open(self.log).read()[-2000:]}")
            time.sleep(0.05)

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)

    def status(self):
        command = [WEIR, "merge" if self.role == "merge" else "status"] + (["status"] if self.role == "merge" else [])
        ran = subprocess.run(command + ["--json", "--admin", self.admin], env=ENVIRONMENT, capture_output=True, text=True)
        return json.loads(ran.stdout or "{}")


class Soak:
    def __init__(self, directory, random, is_on_brokers):
        self.directory, self.random, self.faults = directory, random, list(FAULTS)
        self.step_clock(0)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{directory}/clock.so", CLOCK], check=True)
        # Of every process of the fleet, the broker's too.
        ENVIRONMENT.update(LD_PRELOAD=f"{directory}/clock.so", CLOCK_OFFSET=f"{directory}/offset")
        self.broker_process, self.log = None, f"directory: '{directory}/log'"
        if is_on_brokers:
            self.broker_process = subprocess.Popen([BROKER], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            broker = self.broker_process.stdout.readline().strip() or sys.exit("the broker did not start")
            self.log = f"brokers: ['{broker}'], topic: soak"
        else:
            self.faults.remove("stop broker")
        self.graphite, self.influx = Graphite(), Influx()
        # Until the first merge has made the plan, agents wait.
        self.merges = {number: self.merge(number) for number in (1, 2)}
        self.agents = [self.agent(number) for number in range(3)]
        self.truth = defaultdict(float)
        self.maximum = {}
        self.members = defaultdict(set)
        # (agent, from, to): what is sent in this time may be lost, late, or in two parts.
        self.disturbed, self.kills = [], []
        self.partitions, self.moved_at = 4, None
        self.is_sending = True
        self.lock = threading.Lock()

    def agent(self, number):
        text = AGENT.format(number=number, directory=self.directory, log=self.log, tenant=TENANTS[number])
        return Process(self.directory, f"a{number}", "run", text)

    def merge(self, number):
        addresses = {"log": self.log, "graphite": self.graphite.address, "influx": self.influx.address}
        text = MERGE.format(number=number, directory=self.directory, **addresses)
        return Process(self.directory, f"m{number}", "merge", text)

    def java(self):
        """The process of the broker below the one that this script started."""
        found = [self.broker_process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    found += [int(child) for child in open(f"/proc/{pid}/task/{task}/children").read().split()]
        return next(pid for pid in reversed(found) if "java" in open(f"/proc/{pid}/comm").read())

    def send(self, number, random):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        client.setblocking(False)
        path, tenant = f"{self.directory}/a{number}.sock", TENANTS[number]
        while self.is_sending:
            now = time.time()
            window = int(now) // WIDTH * WIDTH
            if not 0.8 < now - window < 4:
                time.sleep(0.05)
                continue
            # Not to a stopped agent: what its socket holds would be counted in a later window.
            with self.agents[number].stopped:
                self.datagrams(client, path, random, number, tenant, window)
            time.sleep(random.uniform(0.05, 0.2))

    def datagrams(self, client, path, random, number, tenant, window):
        tags = (f"a:{number}", f"tenant:{tenant}", f"w:{window}")
        x, value, user = random.randrange(10), random.randrange(1, 50), f"m{random.randrange(60)}"
        old = window - 60 if random.randrange(20) == 0 else None
        gauge = window % 1000
        lines = [
            (f"k.c:{value}|c|#w:{window},a:{number},x:{x}", lambda: self.add("k.c", tags + (f"x:{x}",), window, value)),
            (f"k.d:{value}|d|#w:{window},a:{number}", lambda: self.add("k.d.count", tags, window, 1)),
            (f"k.t:{value}|ms|#w:{window},a:{number}", lambda: self.add("k.t.count", tags, window, 1)),
            (f"k.s:{user}|s|#w:{window},a:{number}", lambda: self.members[("k.s", tags, window)].add(user)),
            (f"k.g:{gauge}|g|#w:{window},a:{number}", lambda: self.maximum.update({("k.g", tags, window): gauge})),
        ]
        if old:
            late = (f"a:{number}", f"tenant:{tenant}", f"w:{old}")
            lines.append((f"k.late:{value}|c|T{old}|#w:{old},a:{number}", lambda: self.add("k.late", late, old, value)))
        for line, count in lines:
            with contextlib.suppress(OSError), self.lock:
                client.sendto(line.encode(), path)
                count()

    def add(self, name, tags, at, value):
        self.truth[(name, tuple(sorted(tags)), at)] += value

    def disturb(self, agents, seconds=0):
        now = time.time()
        self.disturbed += [(agent, now - BEFORE, now + seconds + AFTER) for agent in agents]

    def fault(self):
        number, merge = self.random.randrange(3), self.random.choice(list(self.merges.values()))
        agent = self.agents[number]
        what = self.random.choice(self.faults)
        if what == "kill agent":
            # A killed agent loses what it had read and not saved, and no merge can know of it.
            with agent.stopped:
                self.kills.append((number, time.time()))
                self.disturb([number], 3)
                agent.end(signal.SIGKILL)
                time.sleep(self.random.uniform(0.5, 3))
                agent.start()
        elif what == "restart agent":
            with agent.stopped:
                self.disturb([number], 3)
                agent.end(signal.SIGTERM)
                agent.start()
        elif what == "stop agent":
            seconds = self.random.uniform(6, 25)
            with agent.stopped:
                self.disturb([number], seconds)
                agent.signal(signal.SIGSTOP)
                time.sleep(seconds)
                agent.signal(signal.SIGCONT)
        elif what in ("kill merge", "restart merge"):
            merge.end(signal.SIGKILL if what == "kill merge" else signal.SIGTERM)
            time.sleep(self.random.uniform(0, 6))
            merge.start()
        elif what == "stop merge":
            merge.signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(3, 20))
            merge.signal(signal.SIGCONT)
        elif what == "third merge":
            if 3 in self.merges:
                self.merges.pop(3).end(signal.SIGTERM)
            else:
                self.merges[3] = self.merge(3)
        else:
            seconds = self.random.uniform(3, 12)
            self.disturb(range(3), seconds + 10)
            java = self.java()
            os.kill(java, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(java, signal.SIGCONT)
        return what

    def step_clock(self, ahead):
        with open(f"{self.directory}/new", "w") as file:
            file.write(str(ahead))
        os.rename(f"{self.directory}/new", f"{self.directory}/offset")

    def clock_ahead(self):
        """The clock of agents, broker and merges is ahead for a while. A bucket that began in the wrong hour would be in the future when the
        clock is right again, so nothing is sent until all of them are in the log."""
        seconds = self.random.uniform(15, 30)
        self.disturb(range(3), seconds + 30)
        self.step_clock(STEP)
        time.sleep(seconds)
        with contextlib.ExitStack() as stack:
            for agent in self.agents:
                stack.enter_context(agent.stopped)
            time.sleep(2 * WIDTH + 2)
            self.await_queues()
            self.step_clock(0)
            # The turn that notices it belongs to the bucket that was open.
            until = time.time() + 60
            while not all(agent.status()["clock"]["set_back"] for agent in self.agents):
                if time.time() > until:
                    sys.exit("the agents' time is not set back")
                time.sleep(0.5)
            time.sleep(WIDTH)

    def await_queues(self):
        begun = time.time()
        until = begun + 120
        # A stop leaves on disk what an agent has not delivered. Zeros of idle counters go on, so only older points count.
        is_old = lambda output: output["points"]["pending"] and output["lag_seconds"] > time.time() - begun - WIDTH
        while waiting := [output for agent in self.agents for output in agent.status()["outputs"] if is_old(output)]:
            if time.time() > until:
                sys.exit(f"agents do not deliver their queues: {json.dumps(waiting, indent=1)}")
            time.sleep(0.5)

    def await_plan(self):
        """What an agent is sent before it knows the number of partitions is dropped and counted."""
        until = time.time() + 180
        while not all("partitions: 4" in json.dumps(agent.status()) for agent in self.agents):
            if time.time() > until:
                sys.exit("the agents do not learn of the partitions")
            time.sleep(0.5)

    def run(self, faults):
        self.await_plan()
        arguments = [(number, random.Random(self.random.random())) for number in range(3)]
        threads = [threading.Thread(target=self.send, args=each, daemon=True) for each in arguments]
        for thread in threads:
            thread.start()
        time.sleep(6 * WIDTH)
        dead = faults // 4
        for at in range(faults):
            if at == dead:
                self.graphite.die(True)
                threading.Timer(60, self.graphite.die, [False]).start()
            if at == faults // 2:
                self.partitions = 10
                command = [WEIR, "merge", "partitions", "10", "--after", "60s", "--config", self.merges[1].config]
                ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
                print(f"partitions: {ran.stdout.splitlines()} {ran.stderr.strip()}", flush=True)
                self.moved_at = int(re.search(r"begins at (\d+)", ran.stdout)[1])
                self.disturb(range(3), 90)
            started = time.time()
            what = "clock" if at == faults // 3 else self.fault()
            if what == "clock":
                self.clock_ahead()
            print(f"{at + 1} of {faults}: {what}, {time.time() - started:.1f} s", flush=True)
            time.sleep(self.random.uniform(1, 4))
        time.sleep(20)
        self.is_sending = False
        for thread in threads:
            thread.join()
        self.settle()

    def settle(self):
        """The agents end, so nobody waits for them; then everything has to reach every output."""
        time.sleep(2 * WIDTH)
        self.await_queues()
        # Points that an agent says it dropped are missing at the end, and no fault of the fleet.
        for agent in self.agents:
            dropped = [output["points"]["dropped"] for output in agent.status()["outputs"] if output["points"].get("dropped")]
            if dropped:
                print(f"{agent.name} dropped: {dropped}", flush=True)
            agent.end(signal.SIGTERM)
        until = time.time() + 300
        quiet, held = 0, []
        while quiet < 10:
            if time.time() > until:
                sys.exit(f"the outputs do not get everything: they have {held} of {self.partitions} partitions")
            fleets = [merge.status().get("fleet") or {} for merge in self.merges.values()]
            is_done = all(fleet and fleet["lag_records"] == 0 and fleet["open_buckets"] == 0 for fleet in fleets)
            sent = [row for fleet in fleets if fleet for row in fleet["sent"]]
            is_done = is_done and not any(row["is_behind"] or row["waits"] for row in sent)
            # A partition that nobody delivers is nowhere behind.
            held = [sum(row["partitions"] for row in sent if row["output"] == output) for output in OUTPUTS]
            is_done = is_done and all(partitions == self.partitions for partitions in held)
            quiet = quiet + 1 if is_done else 0
            time.sleep(1)
        states = [fleet["states"] for fleet in fleets]
        print("states:", {name: sum(of[name] for of in states) for name in states[0]})

    def in_files(self):
        """Sums by series and bucket. Equal lines are one line that was given twice after a kill."""
        lines = set()
        for number in (1, 2, 3):
            with contextlib.suppress(FileNotFoundError), open(f"{self.directory}/m{number}.jsonl") as file:
                lines.update(file)
        found = defaultdict(float)
        for line in lines:
            point = json.loads(line)
            if point["type"] == "sketch":
                point |= {"metric": f"{point['metric']}.count", "value": point["cnt"]}
            scale = point.get("interval") or 1 if point["type"] == "rate" else 1
            found[(point["metric"], tuple(sorted(point["tags"])), point["ts"])] += point["value"] * scale
        return found

    def scraped(self):
        """The sums that the merges show."""
        found = defaultdict(float)
        for merge in self.merges.values():
            text = urllib.request.urlopen(f"http://{merge.admin}/metrics", timeout=60).read().decode()
            for name, labels, value in re.findall(r"^(\w+)\{([^}]*)\} (\S+)", text, re.MULTILINE):
                if name in SUMS.values():
                    tags = tuple(sorted(f"{key}:{of}" for key, of in re.findall(r'(\w+)="([^"]*)"', labels)))
                    found[(name, tags, 0)] += float(value)
        return found

    def is_disturbed(self, agent, window):
        return any(of == agent and begin <= window + WIDTH and window <= end for of, begin, end in self.disturbed)

    def has_moved(self, window):
        return self.moved_at is not None and window <= self.moved_at <= window + WIDTH + EXPIRY

    def compare(self):
        truth = dict(self.truth)
        truth.update({key: len(members) for key, members in self.members.items()})
        truth.update(self.maximum)
        truth = {(name, tuple(sorted(tags)), at): value for (name, tags, at), value in truth.items()}
        named = {
            "file": lambda name: name,
            "graphite": lambda name: f"{name}.count" if name == "k.c" else name,
            "influx": lambda name: f"{name}.value" if name in ("k.c", "k.s", "k.g") else name,
            "prometheus": SUMS.get,
        }
        faults = []
        for output, points in zip(OUTPUTS, (self.in_files(), self.graphite.points, self.influx.points, self.scraped())):
            checked = exact = 0
            # By series: its tag names the window, and a busy agent may have read a part of it in the next one.
            of_series = defaultdict(list)
            for (name, tags, at), value in points.items():
                of_series[(name, tags)].append(value)
            for (name, tags, at), value in truth.items():
                agent = int(next(tag for tag in tags if tag.startswith("a:"))[2:])
                # Late data is a difference that outputs of points that replace each other cannot have.
                if name == "k.late" and output not in ("file", "prometheus") or output == "prometheus" and name not in SUMS:
                    continue
                checked += 1
                values = of_series[(named[output](name), tags)]
                is_split = len(values) > 1
                if name == "k.g":
                    found = max(values, default=0)
                else:
                    # A rate times its interval is not always a whole number.
                    found = round(sum(values), 6)
                is_right = found == value or name == "k.s" and is_split and max(values) <= value <= found
                exact += is_right
                # A killed agent loses what it had not saved; nothing else does.
                may_lose = any(of == agent and at - 60 <= when <= at + 75 for of, when in self.kills)
                # Late data came a minute after their bucket.
                if not is_right and (self.is_disturbed(agent, at) or name == "k.late" and self.is_disturbed(agent, at + 60)):
                    is_kept = output == "prometheus" or output == "file" and name in ("k.c", "k.late")
                    is_right = found < value and (may_lose or not is_kept)
                if not is_right and output == "prometheus" and name in ("k.c", "k.late") and self.has_moved(at):
                    is_right = found == 0
                if not is_right:
                    faults.append(f"{output}: {name} {','.join(tags)} at {at}: {values}, and {value} were sent")
            print(f"{output}: {exact} of {checked} points are exact", flush=True)
        return faults

    def end(self):
        for process in [*self.agents, *self.merges.values()]:
            if process.process.poll() is None:
                with contextlib.suppress(OSError):
                    process.signal(signal.SIGCONT)
                process.end(signal.SIGTERM)
        if self.broker_process:
            self.broker_process.stdin.close()
            self.broker_process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--directory", action="store_true", help="a log in files instead of a broker")
    parser.add_argument("--keep", action="store_true", help="keep the files")
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        soak = Soak(place, random.Random(arguments.seed), not arguments.directory)
        try:
            soak.run(arguments.faults)
            faults = soak.compare()
        finally:
            soak.end()
            if arguments.keep:
                subprocess.run(["cp", "-r", place, f"{place}.kept"], check=False)
                print(f"{place}.kept")
    for fault in faults[:40]:
        print(fault)
    sys.exit(f"{len(faults)} points are wrong" if faults else 0)


main()
