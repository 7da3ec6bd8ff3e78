#!/usr/bin/env python3
"""Runs the parts of `make check`, `make test` or `make nightly` beside each other, and says what took how long.

    scripts/gate.py check|test|quick|nightly [PART ...]

`test` is the gate: what is deterministic or waits for an event. Rust tests run in one pool of nextest, and the parts in other
languages beside it. Property tests draw from a fixed seed, so that two runs of one tree test the same.

`quick` is the part of it that starts no process.

`nightly` is the rest: tests marked `#[ignore = "nightly: ..."]` one at a time, because they measure this machine, the gate's
tests again with fresh seeds, faults that are put back into fleets and that their simulation must find, each test in
tests/quarantine.toml 50 times, and the nightly targets of the page and the clients. It has no
time limit and blocks nobody.

No test runs a second time to pass. After failures of a few Rust tests, each is run 20 times to print its rate, but the run has
failed. A tree that passed both `check` and `test` is written to TARGET/tested (see scripts/tree.sh).
"""

import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
LOGS = TARGET / "gate"
CARGO = os.environ.get("CARGO", "cargo")
# One set for quick, test and check: another one would compile most dependencies again.
SELECTION = ["--workspace", "--features", "weir/kafka", "--locked"]
# Without examples, which `check` builds as tests.
TESTS = [*SELECTION, "--tests"]
# The compiler that lints also generates code, so `check` builds what `test` runs. With `cargo clippy` all dependencies would be compiled
# a second time, for their metadata alone.
LINTED = {"RUSTC_WORKSPACE_WRAPPER": "clippy-driver", "CLIPPY_ARGS": "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"}
# Unit and property tests, and the command line.
QUICK = (
    "kind(lib) or kind(bin) or package(/weir-(protocol|context|ingest|state|merge|config|history)$/) or test(/^command_line::/)"
)
PROGRAM = os.environ.get("WEIR_BIN") or str(TARGET / "debug/weir")
# A process that another test starts with `--ignored --exact`.
CHILD = "test(/(^|::)child/)"
SEED = "20261126"
QUARANTINE = ROOT / "tests/quarantine.toml"
QUARANTINE_MAX, QUARANTINE_DAYS = 5, 7
# A file system in memory, and what has to be free there and in the machine.
IN_MEMORY, MEMORY_MIN = Path("/dev/shm"), 4 << 30


def quarantined():
    """The entries of the quarantine, checked: at most five, none older than a week, each with what is known."""
    entries = tomllib.loads(QUARANTINE.read_text()).get("test", [])
    faults = []
    if len(entries) > QUARANTINE_MAX:
        faults.append(f"{len(entries)} entries, and {QUARANTINE_MAX} are allowed")
    for entry in entries:
        if set(entry) != {"name", "since", "known"} or not isinstance(entry["since"], datetime.date):
            faults.append(f"{entry}: an entry has a name, since (a date) and known")
        elif (age := (datetime.date.today() - entry["since"]).days) > QUARANTINE_DAYS:
            faults.append(f"{entry['name']} has been here for {age} days, and {QUARANTINE_DAYS} are allowed: repair or delete it")
    if faults:
        sys.exit("\n".join(f"{QUARANTINE.relative_to(ROOT)}: {fault}" for fault in faults))
    return [entry["name"] for entry in entries]


def without(names):
    return " and ".join(["not " + CHILD] + [f"not test(={name})" for name in names])


def nextest(*arguments, **options):
    return {"command": [CARGO, "nextest", "run", *TESTS, *arguments], **options}


def make(folder, target):
    return {"command": ["make", "--no-print-directory", "-C", folder, target], "env": {"WEIR_BIN": PROGRAM}}


def script(*command):
    return {"command": list(command), "env": {"WEIR_BIN": PROGRAM}}


def clients(target):
    return {Path(folder).name: make(str(folder.relative_to(ROOT)), target) for folder in sorted(ROOT.glob("clients/*"))}


def parts(which):
    """Stages in order; the parts of one stage run beside each other."""
    seeded = {"PROPTEST_RNG_SEED": SEED}
    if which == "check":
        lints = clients("check")
        return [
            # Packages are downloaded and unpacked one at a time. What needs none of them, and not the page, runs meanwhile.
            {
                "format": script(CARGO, "fmt", "--all", "--check"),
                "prose": script("scripts/check-prose.py"),
                "deps": script("scripts/install-test-deps.sh"),
                "page": make(".", "page"),
                "go": lints.pop("go"),
            },
            {
                "repository": script("scripts/check-repository.sh"),
                "dependencies": script("scripts/check-dependencies.py"),
                "site": script("bash", "-ec", 'docs/site/build.py "$0"; node docs/site/test.mjs "$0"', str(TARGET / "site")),
            },
            {
                "clippy": script(CARGO, "test", *SELECTION, "--tests", "--benches", "--examples", "--no-run", "--quiet"),
                **lints,
                "web": make("web", "check"),
            },
            {"stress": {"command": ["scripts/stress.sh"], "shown": True}},
        ]
    # The pool's broker is no part of any test program, so cargo does not build it with the tests.
    both = '"$0" build "$@" --bin weir-broker && exec "$0" nextest run "$@" --tests --no-run'
    build = {"build": script("bash", "-ec", both, CARGO, *SELECTION) | {"shown": True}}
    if which == "quick":
        return [build, {"rust": nextest("-E", QUICK, shown=True)}]
    packages = script("bash", "-ec", 'packaging/test/units.sh; packaging/test/packed.sh "$WEIR_BIN"')
    if which == "test":
        return [
            build,
            # A browser beside eight tests takes eight times as long. It leaves most of the machine to what runs one thing at a time.
            {
                "web": make("web", "test"),
                "doc": script(CARGO, "test", *SELECTION, "--doc", "--quiet"),
                "chart": script("packaging/test/chart.sh"),
                "packages": packages,
            },
            {
                "rust": nextest("-E", without(quarantined()), env=seeded, shown=True, junit="default", broker=True),
                **clients("test"),
            },
        ]
    stages = [
        build,
        {
            "measured": nextest(
                "--profile", "nightly", "--run-ignored", "only", "-E", without([]), shown=True, junit="nightly", broker=True
            )
        },
        {"web": make("web", "nightly")},
        {"faults": script("scripts/put-back-faults.py") | {"shown": True}},
        {"seeds": nextest("-E", without(quarantined()), shown=True, junit="default", broker=True)},
        clients("nightly"),
    ]
    if names := quarantined():
        chosen = " or ".join(f"test(={name})" for name in names)
        stages.append({"quarantine": nextest("--stress-count", "50", "--run-ignored", "all", "-E", chosen, shown=True)})
    return stages


@contextlib.contextmanager
def broker(wanted):
    """One broker of Kafka for all tests that do it no harm; each test process would start its own."""
    program = TARGET / "debug/weir-broker"
    if not wanted or not program.exists():
        yield {}
        return
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield {"WEIR_TEST_BROKER": process.stdout.readline().strip()}
    finally:
        process.stdin.close()
        process.wait()


def has_memory():
    if not IN_MEMORY.is_dir():
        return False
    about = os.statvfs(IN_MEMORY)
    available = int(re.search(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())[1]) << 10
    return not about.f_flag & os.ST_NOEXEC and min(available, about.f_bavail * about.f_frsize) >= MEMORY_MIN


@contextlib.contextmanager
def files(which):
    """Files of tests are in memory, where the machine has enough of it: a disk that other programs keep busy takes seconds to sync a
    file, and tests would measure it. The nightly run has them on the disk."""
    if which == "nightly" or not has_memory():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="weir-", dir=IN_MEMORY, ignore_cleanup_errors=True) as folder:
        # Tests have processes of other users too.
        os.chmod(folder, 0o1777)
        os.environ["TMPDIR"] = folder
        yield


class Part:
    def __init__(self, name, options):
        self.name, self.options = name, options
        self.log = LOGS / f"{name}.log"
        self.seconds, self.code = 0.0, None

    def run(self):
        start = time.monotonic()
        environment = dict(os.environ, **self.options.get("env", {}))
        with broker(self.options.get("broker")) as more, open(self.log, "w") as log:
            process = subprocess.Popen(
                self.options["command"],
                cwd=ROOT,
                env=environment | more,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            for line in process.stdout:
                log.write(line)
                log.flush()
                if self.options.get("shown"):
                    print(line, end="", flush=True)
            self.code = process.wait()
        self.seconds = time.monotonic() - start
        if not self.options.get("shown"):
            text = self.log.read_text()
            shown = text if self.code else "\n".join(text.splitlines()[-4:])
            print(f"--- {self.name}: {self.seconds:.0f} s, exit code {self.code}\n{shown}", flush=True)


def cases(part):
    """Name, seconds, whether it failed, and skips of each Rust test."""
    # nextest keeps it in the workspace, wherever the target folder is.
    file = ROOT / "target/nextest" / part.options["junit"] / "junit.xml"
    for case in xml.etree.ElementTree.parse(file).iter("testcase"):
        said = "".join(case.findtext(name) or "" for name in ("system-out", "system-err"))
        failed = case.find("failure") is not None or case.find("error") is not None
        yield case.get("name"), float(case.get("time")), failed, re.findall(r"^skipped: .*", said, re.M)


def rates(names):
    """How often each of these failed tests fails alone: the next reader begins with a number."""
    for name in names:
        command = [CARGO, "nextest", "run", *TESTS, "--stress-count", "20", "-E", f"test(={name})"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=180)
            lines = [line.strip() for line in ended.stderr.splitlines() if "iterations" in line or "Summary" in line]
            print(f"again 20 times, alone: {name}: {lines[-1] if lines else ended.returncode}", flush=True)


def run(which, chosen):
    LOGS.mkdir(parents=True, exist_ok=True)
    done = []
    for stage in parts(which):
        batch = [Part(name, options) for name, options in stage.items() if not chosen or name in chosen or name == "build"]
        threads = [threading.Thread(target=part.run) for part in batch]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done += batch
        # Nothing runs without its build. The nightly run goes on after a failure: it reports all there is.
        if any(part.code for part in batch) and (which != "nightly" or batch[0].name == "build"):
            break
    tests = [case for part in done if part.options.get("junit") and part.code is not None for case in cases(part)]
    failed = [name for name, _, bad, _ in tests if bad]
    skips = [f"{name}: {skip}" for name, _, _, found in tests for skip in found]
    for part in done:
        if not part.options.get("junit"):
            skips += [f"{part.name}: {line.strip()}" for line in part.log.read_text().splitlines() if re.match(r"\s*skipped: ", line)]
    if tests:
        print("\nThe ten slowest tests:")
        for name, seconds, _, _ in sorted(tests, key=lambda case: -case[1])[:10]:
            print(f"  {seconds:6.1f} s  {name}")
        print(f"Passed without testing: {len(skips)}")
        for skip in skips:
            print(f"  {skip}")
    print(f"Parts of `make {which}`:")
    for part in done:
        print(f"  {part.seconds:6.1f} s  {part.name}{f': FAILED ({part.log})' if part.code else ''}")
    if failed and len(failed) <= 3 and which == "test":
        rates(failed)
    good = not any(part.code for part in done) and bool(done)
    if good and not chosen and which in ("check", "test"):
        subprocess.run([ROOT / "scripts/tree.sh", "passed", which], check=True)
    return 0 if good else 1


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in ("check", "test", "quick", "nightly"):
        sys.exit(__doc__)
    os.environ.update(LINTED)
    start = time.monotonic()
    quarantined()
    with files(sys.argv[1]):
        code = run(sys.argv[1], sys.argv[2:])
    minutes = (time.monotonic() - start) / 60
    print(f"make {sys.argv[1]}: {'passed' if code == 0 else 'FAILED'} after {minutes:.1f} minutes", flush=True)
    sys.exit(code)
