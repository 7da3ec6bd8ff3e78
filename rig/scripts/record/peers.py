#!/usr/bin/env python3
"""Weir beside other agents, as each comes: CPU per message by transport, contexts and tags, and idle memory.

`peers.py measure` appends figures to results/peers.tsv: each program alone on core 0, one after the other, RUNS times (--runs, 3). The
sender, the sink and the scraper have core 1. `peers.py page` writes docs/benchmarks/peers.md from that file, which can
grow from day to day. A quiet machine with two cores and 3 GB; a run of the default series takes 20 minutes.

Programs are found by their variables: WEIR_BIN, WEIR_BENCH, DOGSTATSD_BIN, ADP_BIN, STATSD_EXPORTER_BIN, TELEGRAF_BIN, GOSTATSD_BIN. One
without its variable is left out. PEER_VERSIONS, a text such as `ADP 0.1.33 (cd4fc439), dogstatsd f8867cf`, is shown on the page.
"""
import argparse
import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

KEY = "0" * 32
RAW = pathlib.Path(os.environ.get("RESULTS", "results")) / "peers.tsv"
PAGE = pathlib.Path(os.environ.get("RECORD_DIR", "docs/benchmarks")) / "peers.md"
COLUMNS = "run program series size verdict messages seconds cpu_ns resident_kb late_p99_ms points".split()
# Flushes come every 10 s (weir, Telegraf, gostatsd, ADP) or 15 s (dogstatsd), scrapes every 15 s: a window has whole ones.
WINDOW = 30
SCRAPES = 15

DOGSTATSD = """
api_key: "{key}"
dd_url: "{intake}"
hostname: bench
dogstatsd_port: {udp}
dogstatsd_socket: "{work}/dsd.sock"
expvar_port: {web}
dogstatsd_stats_port: {web}
use_dogstatsd: true
disable_file_logging: true
enable_metadata_collection: false
inventories_enabled: false
cloud_provider_metadata: []
run_path: "{work}"
"""

# Payloads of two buckets have more points than the intake allows, unless they are halved.
ADP = """
api_key: "{key}"
dd_url: "{intake}"
hostname: bench
dogstatsd_port: {udp}
dogstatsd_socket: "{work}/dsd.sock"
ipc_cert_file_path: "{work}/ipc.pem"
aggregate_context_limit: 2000000
dogstatsd_cached_contexts_limit: 2000000
dogstatsd_cached_tagsets_limit: 2000000
serializer_max_metrics_per_payload: 5000
data_plane:
  enabled: true
  standalone_mode: true
  api_listen_address: "tcp://127.0.0.1:{web}"
  secure_api_listen_address: "tcp://127.0.0.1:{secure}"
  dogstatsd: {{enabled: true}}
"""

TELEGRAF = """
[agent]
interval = "10s"
flush_interval = "10s"
omit_hostname = true
[[inputs.statsd]]
protocol = "udp"
service_address = "127.0.0.1:{udp}"
metric_separator = "."
datadog_extensions = true
allowed_pending_messages = 100000
[[outputs.datadog]]
apikey = "{key}"
url = "{intake}/api/v1/series"
compression = "zlib"
rate_interval = "10s"
"""

GOSTATSD = """
metrics-addr = "{listen}"
flush-interval = "10s"
hostname = "bench"
backends = ["datadog"]
cloud-provider = ""
[datadog]
api_key = "{key}"
api_endpoint = "{intake}"
"""

WEIR = """
udp: ["127.0.0.1:{udp}"]
uds: ["{work}/dsd.sock"]
admin: "127.0.0.1:{web}"
hostname: bench
memory: 4GiB
flush_summary: false
"""


class Program:
    """`series` are those that it takes. `scraped`: by a Prometheus at this path, instead of sending to Datadog's intake."""

    def __init__(self, label, variable, command, file, text, series, scraped=None):
        self.label, self.command, self.file, self.text, self.series, self.scraped = label, command, file, text, series, scraped
        path = os.environ.get(variable)
        self.binary = os.path.realpath(path) if path and os.access(path, os.X_OK) else None

    def start(self, work, values):
        (work / self.file).touch(0o600)
        (work / self.file).write_text(self.text.format(**values))
        command = [self.binary] + [part.format(**values) for part in self.command]
        with open(work / "log", "w") as log:
            return subprocess.Popen(command, cwd=work, stdout=log, stderr=log, env={"PATH": os.environ["PATH"], "HOME": str(work)},
                                    preexec_fn=lambda: os.sched_setaffinity(0, {0}))


# Loads: DogStatsD and plain StatsD in UDP packets of one message; the same in Unix datagrams of 8 KiB, by contexts and by tags.
UDP = {"udp", "plain"}
ALL = UDP | {"plain-unix", "contexts", "tags"}
PROGRAMS = {
    "weir": Program("weir, to Datadog", "WEIR_BIN", ["run", "--config", "{work}/weir.yaml"], "weir.yaml",
                    WEIR + 'outputs:\n  datadog: {{api_key: "{key}", url: "{intake}"}}\n', ALL),
    "weir-scraped": Program("weir, scraped", "WEIR_BIN", ["run", "--config", "{work}/weir.yaml"], "weir.yaml", WEIR, ALL, "/metrics"),
    "adp": Program("agent data plane", "ADP_BIN", ["--config", "{work}/adp.yaml", "run"], "adp.yaml", ADP, ALL),
    "dogstatsd": Program("dogstatsd", "DOGSTATSD_BIN", ["start", "-c", "{work}"], "dogstatsd.yaml", DOGSTATSD, ALL),
    "statsd-exporter": Program(
        "statsd_exporter", "STATSD_EXPORTER_BIN",
        ["--statsd.listen-udp=127.0.0.1:{udp}", "--statsd.listen-tcp=", "--statsd.listen-unixgram={work}/dsd.sock",
         "--web.listen-address=127.0.0.1:{web}"], "unused", "", ALL, "/metrics"),
    # These two have no distributions, which are a part of the other loads, and Telegraf no Unix datagrams.
    "telegraf": Program("Telegraf", "TELEGRAF_BIN", ["--config", "{work}/telegraf.conf"], "telegraf.conf", TELEGRAF, {"plain"}),
    "gostatsd": Program("gostatsd", "GOSTATSD_BIN", ["--config-path", "{work}/gostatsd.toml"], "gostatsd.toml", GOSTATSD, {"plain", "plain-unix"}),
}
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url, data=None, gzipped=False):
    request = urllib.request.Request(url, data=data, headers={"Accept-Encoding": "gzip"} if gzipped else {})
    with DIRECT.open(request, timeout=30) as answer:
        return answer.read()


def until(what, seconds, true):
    # A socket file or an answer of another program raises no event here.
    for _ in range(20 * seconds):
        with contextlib.suppress(OSError):
            if true():
                return
        time.sleep(0.05)
    raise SystemExit(f"peers: {what}: not within {seconds} s")


def cpu_ns(pid):
    """CPU time of a process, as clock_getcpuclockid() of the C library names its clock."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def resident_kb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def end(process):
    process.kill()
    process.wait()


class Rig:
    """The sink and the folder of one measurement."""

    def __init__(self, work):
        self.work, self.bench = work, os.path.realpath(os.environ["WEIR_BENCH"])
        self.sink = subprocess.Popen(["nice", "-n", "10", self.bench, "sink", "--listen", "datadog=127.0.0.1:0", "--keep", "0"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.intake = json.loads(self.sink.stdout.readline())["address"]
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            udp, web, secure = (each.getsockname()[1] for each in sockets)
        self.values = dict(key=KEY, intake=self.intake, work=work, udp=udp, web=web, secure=secure)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-keyout", work / "key.pem", "-out", work / "cert.pem"], check=True, capture_output=True)
        (work / "ipc.pem").write_text((work / "cert.pem").read_text() + (work / "key.pem").read_text())

    def started(self, program, unix=False):
        (self.work / "dsd.sock").unlink(missing_ok=True)
        ask(self.intake + "/_sink/reset", data=b"")
        process = program.start(self.work, self.values | {"listen": self.work / "dsd.sock" if unix else f"127.0.0.1:{self.values['udp']}"})
        listening = f":{self.values['udp']:04X} "

        def ready():
            if process.poll() is not None:
                raise SystemExit(f"peers: {program.label} has ended: {(self.work / 'log').read_text()[-500:]}")
            if unix:
                return (self.work / "dsd.sock").is_socket()
            return listening in pathlib.Path("/proc/net/udp").read_text() + pathlib.Path("/proc/net/udp6").read_text()
        until(f"{program.label}: its sockets", 30, ready)
        return process

    def points(self):
        return json.loads(ask(self.intake + "/_sink/stats")).get("datadog", {}).get("points", 0)

    def load(self, series, size, rate, seconds):
        """The sender: every context once, as fast as the program takes them, then the rate."""
        shown = subprocess.run([self.bench, "load", "show", "statsd-plain" if series.startswith("plain") else "budget-1k"], check=True,
                               capture_output=True, text=True).stdout
        settings = {"first_pass_at_once": "true"}
        if series in UDP:
            settings["messages_per_packet"] = "1"
        settings["contexts"] = str(size if series == "contexts" else 1000)
        if series == "tags":
            settings["tags_per_msg"] = str(size)
        for key, value in settings.items():
            shown = re.sub(rf"^{key}:.*\n", "", shown, flags=re.M) + f"{key}: {value}\n"
        (self.work / "profile.yaml").write_text(shown)
        to = f"udp://127.0.0.1:{self.values['udp']}" if series in UDP else f"unixgram://{self.work}/dsd.sock"
        with open(self.work / "load.log", "w") as log:
            return subprocess.Popen([self.bench, "load", "run", "--profile", self.work / "profile.yaml", "--seed", "7", "--rate",
                                     f"{rate} msg/s", "--duration", f"{seconds}s", "--on-backpressure", "wait", "--cpu", "1", "--to", to],
                                    stdout=subprocess.PIPE, stderr=log, text=True)


def scrape(url, stop):
    while not stop.wait(SCRAPES):
        with contextlib.suppress(OSError):
            ask(url, gzipped=True)


def attempt(rig, program, series, size, rate):
    """One start, one load, one window: the columns from the verdict on."""
    process, load = rig.started(program, unix=series not in UDP), None
    stop = threading.Event()
    try:
        if program.scraped:
            threading.Thread(target=scrape, args=(f"http://127.0.0.1:{rig.values['web']}{program.scraped}", stop), daemon=True).start()
        before = 8 if size < 100_000 else 16
        load = rig.load(series, size, rate, before + WINDOW + 1)
        time.sleep(before)
        at, cpu = time.monotonic_ns(), cpu_ns(process.pid)
        time.sleep(WINDOW)
        seconds, used = (time.monotonic_ns() - at) / 1e9, cpu_ns(process.pid) - cpu
        resident = resident_kb(process.pid)
        sent = json.loads(load.communicate()[0].splitlines()[-1])
        points = rig.points()
    finally:
        stop.set()
        if load:
            end(load)
        end(process)
    share = sent["achieved"] / sent["scheduled"]
    lost = (sent["kernel_drops"] or 0) / sent["packets"]
    verdict = "ok"
    if lost > 0.01 or used > 0.9e9 * seconds or (share < 0.97 and sent["verdict"] == "target-limited"):
        verdict = "slow"
    elif seconds > WINDOW + 1 or share < 0.97:
        verdict = "disturbed"
    messages = rate * share * (1 - lost) * seconds
    return [verdict, round(messages), f"{seconds:.3f}", used, resident, round(1000 * sent["lateness_p99_s"]), points]


def measure(arguments):
    os.sched_setaffinity(0, {1})
    programs = {name: program for name, program in PROGRAMS.items() if program.binary and name in arguments.programs}
    for name in arguments.programs:
        if name not in programs:
            print(f"{name} is left out: its variable names no program", file=sys.stderr)
    rates = {"udp": arguments.udp_rate, "plain": arguments.udp_rate, "plain-unix": arguments.rate}
    series = [(each, 0, rate) for each, rate in rates.items() if each in arguments.series]
    series += [("contexts", size, arguments.rate) for size in arguments.contexts]
    # About the same bytes a second.
    series += [("tags", size, arguments.rate * 8 // (size + 1)) for size in arguments.tags]
    RAW.parent.mkdir(parents=True, exist_ok=True)
    first = 1 + max((int(row["run"]) for row in rows()), default=0)
    with tempfile.TemporaryDirectory() as work, open(RAW, "a", buffering=1) as raw:
        rig = Rig(pathlib.Path(work))

        def write(*columns):
            line = "\t".join(str(column) for column in columns)
            raw.write(line + "\n")
            print(line, file=sys.stderr)
        try:
            for run in range(first, first + arguments.runs):
                if "idle" in arguments.series:
                    for name, program in programs.items():
                        process = rig.started(program)
                        # More than one bucket.
                        time.sleep(12)
                        write(run, name, "idle", 0, "ok", 0, 12, cpu_ns(process.pid), resident_kb(process.pid), 0, 0)
                        end(process)
                for kind, size, rate in series:
                    for name, program in programs.items():
                        if kind not in program.series:
                            continue
                        for turn in range(3):
                            columns = attempt(rig, program, kind, size, rate)
                            write(run, name, kind, size, *columns)
                            # A pause of the machine can make a program look slow once.
                            if columns[0] == "ok" or (columns[0] == "slow" and turn == 1):
                                break
        finally:
            end(rig.sink)


def rows():
    if not RAW.exists():
        return []
    return [dict(zip(COLUMNS, line.split("\t"))) for line in RAW.read_text().splitlines()]


class Figures:
    """Medians with least and most of what `measure` wrote."""

    def __init__(self):
        self.rows = rows()

    def chosen(self, name, series, size):
        """The runs that were not disturbed, and whether the program kept up in most of them."""
        found = [row for row in self.rows if (row["program"], row["series"], int(row["size"])) == (name, series, size)]
        good = [row for row in found if row["verdict"] == "ok"]
        slow = {row["run"] for row in found if row["verdict"] == "slow"} - {row["run"] for row in good}
        return good, len(slow) > len(good)

    def values(self, name, series, size, what):
        good, is_slow = self.chosen(name, series, size)
        if is_slow:
            return []
        if what == "cpu":
            return sorted(float(row["cpu_ns"]) / float(row["messages"]) for row in good)
        if what == "idle":
            return sorted(float(row["resident_kb"]) / 1024 for row in good)
        idle = self.values(name, "idle", 0, "idle")
        contexts = size if series == "contexts" else 1000
        return sorted((float(row["resident_kb"]) / 1024 - statistics.median(idle)) * 1048576 / contexts for row in good) if idle else []

    def shown(self, *which, digits=0):
        values = self.values(*which)
        if not values:
            return "does not keep up" if self.chosen(*which[:3])[1] else "-"
        return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})"

    def times(self, name, series, size, what):
        """Multiples of weir's, doing the same: sending to Datadog, or being scraped."""
        base = "weir-scraped" if PROGRAMS[name].scraped else "weir"
        mine, theirs = self.values(base, series, size, what), self.values(name, series, size, what)
        return f"{statistics.median(theirs) / statistics.median(mine):.1f}" if mine and theirs else ""

    def sizes(self, series):
        return sorted({int(row["size"]) for row in self.rows if row["series"] == series})


def page(arguments):
    figures = Figures()
    names = [name for name in PROGRAMS if any(row["program"] == name for row in figures.rows)]
    peers = [name for name in names if not name.startswith("weir")]
    commit = os.environ.get("RECORD_COMMIT") or subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    runs = len({row["run"] for row in figures.rows})
    columns = [("udp", 0), ("plain", 0), ("plain-unix", 0)] + [("contexts", size) for size in figures.sizes("contexts")]
    answers = []
    for name in peers:
        times = sorted(float(each) for each in (figures.times(name, *column, "cpu") for column in columns) if each)
        answers.append(f"{PROGRAMS[name].label} " + " to ".join(dict.fromkeys((f"{times[0]:.1f}", f"{times[-1]:.1f}"))))
    out = ["# What does a message cost with weir, and with other agents?", "",
           f"CPU per message in multiples of weir's, by load: {', '.join(answers)}.", ""]
    out += [f"Recorded by `rig/scripts/record/peers.py measure`, {runs} runs in turn, and `peers.py page` on {time.strftime('%Y-%m-%d', time.gmtime())}, "
            f"commit {commit}, {model}, {os.cpu_count()} CPUs, Linux {platform.release()}.", ""]
    for name in names:
        digest = hashlib.sha256(pathlib.Path(PROGRAMS[name].binary).read_bytes()).hexdigest()[:12] if PROGRAMS[name].binary else "unknown"
        out.append(f"* {PROGRAMS[name].label}: sha256 {digest}")
    if os.environ.get("PEER_VERSIONS"):
        out.append(f"* Versions: {os.environ['PEER_VERSIONS']}")
    out += ["", "Each program runs alone on core 0, as it comes: buckets of 10 s; weir with its page's history and its scrape endpoint. weir, the agent data plane and",
            "dogstatsd, Telegraf and gostatsd send their series to a local Datadog intake; statsd_exporter and weir in its second form are scraped every 15 s, with gzip.",
            f"CPU is that of the whole process over {WINDOW} s, flushes and scrapes included, after every context was seen. Figures are medians (least to most); idle memory is after 12 s.",
            "A program keeps up if it leaves a tenth of its core, its kernel queue drops at most 1 % and the sender keeps its schedule. `-`: not measured, or the transport is missing.",
            "Limits on contexts are raised, and the agent data plane's payloads have half as many metrics, because an intake refuses more points.", "",
            "## Multiples of weir's", "",
            "Those that are scraped beside weir scraped, the others beside weir to Datadog. The packets of UDP have one message each, those of Unix datagrams 8 KiB.", ""]
    headings = {"udp": "DogStatsD, UDP", "plain": "StatsD, UDP", "plain-unix": "StatsD, Unix"}
    columns = [column for column in columns if any(figures.values("weir", *column, "cpu"))]
    table = [headings.get(series, f"{size:,} contexts, Unix") for series, size in columns] + ["memory, idle"]
    out += ["| | " + " | ".join(table) + " |", "| --- |" + " --- |" * len(table)]
    for name in peers:
        cells = [figures.times(name, *column, "cpu") for column in columns] + [figures.times(name, "idle", 0, "idle")]
        out.append(f"| {PROGRAMS[name].label} | " + " | ".join(cells) + " |")
    named = [(headings[series], (series, size, "cpu")) for series, size in columns if series in headings]
    out += ["", f"## ns of CPU per message: UDP {arguments.udp_rate:,} a second, Unix {arguments.rate:,}; memory", "",
            "| | " + " | ".join(heading for heading, _ in named) + " | idle, MiB |", "| --- |" + " --- |" * (len(named) + 1)]
    for name in names:
        cells = [figures.shown(name, *which) for _, which in named] + [figures.shown(name, "idle", 0, "idle", digits=1)]
        out.append(f"| {PROGRAMS[name].label} | " + " | ".join(cells) + " |")
    unix = [name for name in names if "contexts" in PROGRAMS[name].series]
    for series, title in (("contexts", "7 tags"), ("tags", "1,000 contexts")):
        for what, unit in (("cpu", "ns of CPU per message"), ("bytes", "resident bytes per context, above those of the idle program")):
            if figures.sizes(series):
                out += ["", f"## Unix datagrams of 8 KiB, {arguments.rate:,} messages a second, {title}: {unit}", "",
                        f"| {series} | " + " | ".join(PROGRAMS[name].label for name in unix) + " |", "| --- |" + " --- |" * len(unix)]
                out += [f"| {size:,} | " + " | ".join(figures.shown(name, series, size, what) for name in unix) + " |" for size in figures.sizes(series)]
    PAGE.write_text("\n".join(out) + "\n")
    raw = PAGE.parent / "raw" / "peers.tsv.gz"
    raw.parent.mkdir(exist_ok=True)
    raw.write_bytes(gzip.compress(("\t".join(COLUMNS) + "\n" + RAW.read_text()).encode(), mtime=0))
    print(PAGE, file=sys.stderr)


def numbers(text):
    return [int(part) for part in text.split(",") if part]


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["measure", "page"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--programs", type=lambda text: text.split(","), default=list(PROGRAMS))
    parser.add_argument("--series", type=lambda text: text.split(","), default=["idle", "udp", "plain", "plain-unix"])
    parser.add_argument("--contexts", type=numbers, default=[1000, 100_000], help="numbers of contexts, in Unix datagrams")
    parser.add_argument("--tags", type=numbers, default=[], help="numbers of tags, 1000 contexts, in Unix datagrams")
    parser.add_argument("--rate", type=int, default=60_000, help="messages a second in Unix datagrams")
    parser.add_argument("--udp-rate", type=int, default=20_000)
    arguments = parser.parse_args()
    {"measure": measure, "page": page}[arguments.step](arguments)


if __name__ == "__main__":
    main()
