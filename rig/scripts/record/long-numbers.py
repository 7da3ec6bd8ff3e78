#!/usr/bin/env python3
"""CPU time per message of the whole agent by the form of the numbers in it: three digits, floats with all their digits, integers of 64 bits, exponents.

  rig/scripts/record/long-numbers.py [--rounds 7] [--page docs/benchmarks/numbers.md]

1,000 contexts with 7 tags, single values of mixed kinds and distributions of one to nine packed values, in datagrams of at most 8 KiB on a
Unix socket, as fast as an agent takes them. Each row has an agent of its own, without outputs; the rows alternate, in the other direction every second round, and
each is preceded by a part of its own load that is not measured. WEIR_BIN names a built program, and RECORD_COMMIT its commit; the default is that of `make build`. Loopback only;
one minute.
"""
import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PATIENCE = 30
CONTEXTS = 1000
# Different messages of a row, and how often they are sent. The first time is not measured.
MESSAGES = 100_000
TIMES = 6
PACKET_BYTES = 8192
# Allowed cost, as a multiple of three digits.
ALLOWED = {"floats": 1.5, "integers": 1.3, "exponents": 1.5}
NUMBERS = {
    "short": lambda: str(random.randrange(100, 1000)),
    "floats": lambda: repr(random.random() * 100),
    "integers": lambda: str(random.randrange(-(1 << 63), 1 << 63)),
    "exponents": lambda: repr(random.random() * 1e-6),
}
KINDS = ["c"] * 58 + ["g"] * 19 + ["d"] * 20 + ["s"] * 3


def contexts(packed):
    """Name, kind and tags of each: about 150 bytes with one short value."""
    word = lambda low, high: "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(low, high)))
    words = [word(3, 12) for _ in range(64)]
    values = [word(3, 10) for _ in range(350)]
    for number in range(CONTEXTS):
        name = f"m{number}." + ".".join(random.choices(words, k=random.randint(2, 4)))
        tags = ",".join(f"{words[(number + 9 * tag) % 64]}:{random.choice(values)}" for tag in range(7))
        yield name, "d" if packed else random.choice(KINDS), tags


def packets(numbers, packed):
    """The same contexts, and the same numbers of values, for all forms."""
    random.seed(7)
    all_contexts = list(contexts(packed))
    chosen = [(random.choice(all_contexts), random.randint(1, 9) if packed else 1) for _ in range(MESSAGES)]
    number, packet = NUMBERS[numbers], b""
    for (name, kind, tags), count in chosen:
        values = ":".join(number() for _ in range(count))
        line = f"{name}:{values}|{kind}|#{tags}".encode()
        if packet and len(packet) + 1 + len(line) > PACKET_BYTES:
            yield packet
            packet = b""
        packet = packet + b"\n" + line if packet else line
    yield packet


class Agent:
    def __init__(self, program, directory):
        self.path = f"{directory}/dsd.sock"
        config = f"{directory}/weir.yaml"
        with open(config, "w") as file:
            file.write("outputs: {prometheus: {enabled: false}}\nhistory: 0\n")
        arguments = ["run", "--config", config, "--udp", "0", "--uds", self.path, "--admin", "127.0.0.1:0"]
        self.process = subprocess.Popen([program, *arguments], stderr=subprocess.PIPE, text=True, env={})
        for line in self.process.stderr:
            if "admin on http://" in line:
                self.admin = line.split("admin on http://")[1].split()[0].rstrip("/")
                break
        else:
            raise SystemExit("the agent did not start")
        os.sched_setaffinity(self.process.pid, {0})
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setaffinity(int(task), {0})
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.connect(self.path)

    def cpu_ns(self):
        """Of all threads. None ends while the agent runs."""
        tasks = f"/proc/{self.process.pid}/task"
        return sum(int(open(f"{tasks}/{task}/schedstat").read().split()[0]) for task in os.listdir(tasks))

    def received(self):
        with urllib.request.urlopen(f"http://{self.admin}/api/v1/status", timeout=PATIENCE) as answer:
            return json.load(answer)["total"]["messages"]["accepted"]

    def send(self, load, times):
        """Returns once all is accepted."""
        before = self.received()
        for _ in range(times):
            for packet in load:
                self.socket.send(packet)
        deadline = time.monotonic() + PATIENCE
        while self.received() < before + times * MESSAGES:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.received() - before} of {times * MESSAGES} messages were accepted")
            time.sleep(0.05)


def measure(agent, load):
    """Nanoseconds per message, with its share of flushes."""
    agent.send(load, 1)
    before = agent.cpu_ns()
    agent.send(load, TIMES - 1)
    return (agent.cpu_ns() - before) / ((TIMES - 1) * MESSAGES)


def table(figures, packed):
    yield "| numbers | ns per message | times three digits, round by round | allowed |"
    yield "| --- | --- | --- | --- |"
    short = figures["short", packed]
    for numbers in NUMBERS:
        found = figures[numbers, packed]
        ratios = [ns / base for ns, base in zip(found, short)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if numbers in ALLOWED else ""
        yield f"| {numbers} | {statistics.median(found):.0f} ({min(found):.0f} to {max(found):.0f}) | {spread} | {ALLOWED.get(numbers, '')} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--page", default=f"{ROOT}/docs/benchmarks/numbers.md")
    arguments = parser.parse_args()
    program = os.environ.get("WEIR_BIN", f"{ROOT}/target/release/weir")
    loads = {(numbers, packed): list(packets(numbers, packed)) for packed in (False, True) for numbers in NUMBERS}
    figures = {row: [] for row in loads}
    os.sched_setaffinity(0, set(os.sched_getaffinity(0)) - {0} or {0})
    with tempfile.TemporaryDirectory() as directory:
        agents = {}
        try:
            for number, row in enumerate(loads):
                folder = f"{directory}/{number}"
                os.mkdir(folder)
                agents[row] = Agent(program, folder)
            for round_number in range(arguments.rounds):
                rows = list(loads)
                for row in rows if round_number % 2 == 0 else reversed(rows):
                    figures[row].append(measure(agents[row], loads[row]))
        finally:
            for agent in agents.values():
                agent.process.terminate()
                agent.process.wait(PATIENCE)
    commit = os.environ.get("RECORD_COMMIT") or subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    head = open(arguments.page).read().split("Recorded by", 1)[0] if os.path.exists(arguments.page) else "# What do numbers with many digits cost?\n\n"
    with open(arguments.page, "w") as page:
        print(
            f"{head}Recorded by `rig/scripts/record/long-numbers.py` on {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, commit {commit}, {model}, "
            f"{os.cpu_count()} CPUs, Linux {os.uname().release}: CPU time of the whole agent, {arguments.rounds} alternating rounds of "
            f"{(TIMES - 1) * MESSAGES:,} messages each, median (least to most).\n\n## One value in a message, mixed kinds\n",
            *table(figures, False),
            "\n## Distributions of one to nine packed values\n",
            *table(figures, True),
            sep="\n",
            file=page,
        )


if __name__ == "__main__":
    main()
