#!/usr/bin/env python3
"""Puts faults of the past back into the code, one at a time, and expects a simulation to find each within a minute of one processor.

Works on a copy of the repository in the build directory, where a second run finds its builds. `put-back-faults.py NAME...` tries only
these; without a name all are tried.
"""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute()
SECONDS = 60
MERGE = "crates/weir-merge/src/merge.rs"
TIME = "crates/weir-merge/src/time.rs"
CLOSED = "crates/weir-merge/src/closed.rs"
FOLLOWER = "crates/weir-merge/src/follower.rs"
OWNER = "crates/weir-merge/src/owner.rs"
WORLD = "crates/weir-merge/tests/simulation/world.rs"

EXPIRY = "crates/weir-output/src/prometheus/state/expiry.rs"
RENDER = "crates/weir-output/src/prometheus/render.rs"
HISTORY = "crates/weir-admin/src/history.rs"
QUERY = "crates/weir-history/src/query.rs"
BOOK_TIMES = "crates/weir-agent/src/book_times.rs"
SUPERVISION = "crates/weir-agent/src/supervision.rs"

# Each simulation: the crate, how its tests are built, and how it runs until it fails.
FLEETS = ("weir-merge", ["--test", "weir-merge-tests"], ["case_21_the_ledger"], {"WEIR_SIMULATION_SCHEDULES": "1000000000"})
LIFE = (
    "weir-agent",
    ["--lib", "--package", "weir-agent"],
    ["life::simulation::schedules_without_end", "--ignored", "--exact"],
    {"WEIR_LIFE_FIRST": "0", "WEIR_LIFE_SECONDS": "1000000"},
)

# Name, what it does, and the replaced texts: file, before, after. Each text occurs once.
FAULTS_OF_LIVES = [
    (
        "names-of-expired-metrics",
        "a scrape within a flush reads the names of metrics that have expired since the last one",
        [
            (EXPIRY, "        self.named = named;\n", "        let _ = named;\n"),
            (RENDER, "state.families.get(at).filter(|_| at < state.named)", "(at < state.named).then(|| &state.families[at])"),
        ],
    ),
    (
        "history-counts-nothing",
        "a batch for which the history has no room is not counted",
        [(HISTORY, "        } else {\n            self.count_lost(batch);\n", "        } else {\n")],
    ),
    (
        "history-begins-with-its-first-bucket",
        "after a step of the clock, a query without a range begins after it ends",
        [
            (QUERY, "self.buckets().map(|(time, _)| time).min();", "self.buckets().map(|(time, _)| time).next();"),
            (QUERY, "time + i64::from(width)).max();", "time + i64::from(width)).last();"),
        ],
    ),
    (
        "books-forget-a-second",
        "the books of the history take a rise twice",
        [(BOOK_TIMES, "            self.at_second = at;\n", "            let _ = at;\n")],
    ),
    (
        "stuck-workers-run",
        "a worker that does not turn is not noticed",
        [(SUPERVISION, "(worker.since_turn(now) >= STALL)", "(worker.since_turn(now) >= 100 * STALL)")],
    ),
]
FAULTS_OF_FLEETS = [
    (
        "corrections-block",
        "a correction waits for a bucket that never comes, and all results behind it with it",
        [(FOLLOWER, "let is_old = front.is_correction() || is_behind", "let is_old = is_behind")],
    ),
    (
        "tenants-are-late",
        "the first tenant's result makes the other tenant's result for the same bucket late",
        [
            (
                FOLLOWER,
                "                if piece.is_correction() {\n                    late.add",
                "                let passed = held.newest.insert((String::new(), piece.bucket().1), piece.bucket().0);\n"
                "                if piece.is_correction() || passed.is_some_and(|passed| passed == piece.bucket().0) {\n"
                "                    late.add",
            )
        ],
    ),
    (
        "position-goes-back",
        "an owner that has not read all positions stores the smallest one it knows, or zero",
        [
            (
                FOLLOWER,
                "            match store(&mut self.log, partition, generation, before) {",
                "            let known = positions.values().copied().min().unwrap_or(0);\n"
                "            match store(&mut self.log, partition, generation, known) {",
            ),
            (
                FOLLOWER,
                "        let mut failed = None;\n        for (partition, generation, before) in delivery.positions",
                "        let (mut failed, positions) = (None, self.positions());\n"
                "        for (partition, generation, before) in delivery.positions",
            ),
        ],
    ),
    (
        "one-position-for-all-outputs",
        "all outputs continue where the slowest one is",
        [
            (
                WORLD,
                "        Ok(world.of(group_of(self.owner))[partition as usize].sent[&output].position)",
                "        let sent = &world.of(group_of(self.owner))[partition as usize].sent;\n"
                "        Ok(sent.values().map(|sent| sent.position).min().unwrap_or(sent[&output].position))",
            )
        ],
    ),
    (
        "late-by-process",
        "a bucket is late if this process has given a later one of any partition",
        [
            (
                FOLLOWER,
                "                if piece.is_correction() {\n                    late.add",
                "                let given = self.given.entry(piece.bucket().1).or_insert(i64::MIN);\n"
                "                let is_past = piece.bucket().0 < *given;\n"
                "                *given = piece.bucket().0.max(*given);\n"
                "                if piece.is_correction() || is_past {\n"
                "                    late.add",
            )
        ],
    ),
    (
        "groups-share-their-results",
        "results and snapshots are named by the topic alone, so two groups write to the same ones",
        [(WORLD, "    fn topics(&self) -> Group {\n        group_of(self.owner)", "    fn topics(&self) -> Group {\n        Group::First")],
    ),
    (
        "damage-hides-later-records",
        "records behind a damaged one are not read",
        [
            (
                WORLD,
                "        messages.retain(|message| !at.damaged.contains(&message.offset));",
                "        let first = at.damaged.range(from..).next().copied().unwrap_or(u64::MAX);\n"
                "        messages.retain(|message| message.offset < first);",
            )
        ],
    ),
    (
        "clock-never-goes-back",
        "the merge keeps the largest time that it has seen",
        [
            (
                TIME,
                "            _ if clock < now.saturating_sub(STEP) => clock.saturating_sub(now),\n",
                "",
            )
        ],
    ),
    (
        "closed-up-to-the-newest",
        "a bucket is closed if any later one is, whatever clock closed that",
        [(CLOSED, "is_some_and(|(from, _)| *from <= now)", "is_some()")],
    ),
    (
        "positions-before-delivery",
        "the position behind a delivery is stored when the delivery begins",
        [
            (
                FOLLOWER,
                "            Some(delivery) => Ok(Some(delivery)),",
                "            Some(delivery) => {\n                drop(self.delivered(&delivery));\n"
                "                Ok(Some(delivery))\n            }",
            )
        ],
    ),
    (
        "given-is-not-read-again",
        "an output of sums that loses a partition skips what it was given of the others",
        [(FOLLOWER, "        (self.read, self.taken) = (self.stored, self.stored);", "        (self.read, self.taken) = (self.taken, self.taken);")],
    ),
    (
        "sums-are-forgotten",
        "a partition that moves begins its sums from zero",
        [(FOLLOWER, "            let found = self.log.committed(*partition)?;", "            let found = self.log.committed(*partition)?.filter(|_| false);")],
    ),
    (
        "sums-at-the-position",
        "an output continues sums at its stored position, although a kill has left them ahead of it",
        [(FOLLOWER, "                held.stored = of.before;", "                held.stored = held.stored.min(of.before);")],
    ),
    (
        "sums-of-new-partitions",
        "an output of sums that gets another partition goes on, and begins the sums of that one from zero",
        [(FOLLOWER, "            self.held.insert(partition, held);\n            self.counts.moved += 1;", "            self.held.insert(partition, held);\n            self.counts.moved += u64::from(self.given.is_empty());")],
    ),
    (
        "failed-commit-is-forgotten",
        "after a commit of unknown end the owner continues as if it had failed",
        [(OWNER, "            if committed.is_err() {", "            if false {")],
    ),
]


def copy(to):
    """With new times: the builder would take the last fault's build for that of an older file."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file() and not source.is_symlink():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, to / name)


def apply(to, changes):
    kept = {}
    for name, before, after in changes:
        text = (to / name).read_text()
        kept.setdefault(name, text)
        if text.count(before) != 1:
            sys.exit(f"{name}: {text.count(before)} times: {before}")
        (to / name).write_text(text.replace(before, after))
    return kept


def build(to, simulation):
    _, target, _, _ = simulation
    packages = [] if "--package" in target else ["--workspace", "--features", "weir/kafka"]
    command = ["cargo", "test", *packages, "--locked", *target, "--no-run", "--message-format", "short"]
    environment = dict(os.environ, CARGO_TARGET_DIR=str(TARGET))
    # A fault may leave code that nobody uses.
    environment.pop("RUSTC_WORKSPACE_WRAPPER", None)
    built = subprocess.run(command, cwd=to, env=environment, capture_output=True, text=True)
    if built.returncode != 0:
        sys.exit(built.stderr)
    return to / built.stderr.rsplit("(", 1)[1].split(")")[0]


def simulate(program, to, simulation):
    """The seconds of one processor until the simulation fails, or `None`, and the condition that failed."""
    package, _, test, variables = simulation
    environment = dict(os.environ, **variables)
    for seed in ("WEIR_SIMULATION_SEED", "WEIR_LIFE_SEED"):
        environment.pop(seed, None)
    command = [program, *test, "--nocapture"]
    where = to / "crates" / package
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    ended = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, preexec_fn=limit)
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if ended.returncode < 0:
        return None, ""
    lines = ended.stderr.splitlines()
    at = next((at for at, line in enumerate(lines) if "panicked" in line), None)
    reason = " ".join(line.strip() for line in lines[at + 1 : at + 3]) if at is not None else ended.stderr[-300:]
    return took, reason[:160]


def main():
    wanted = sys.argv[1:]
    faults = [(FLEETS, *fault) for fault in FAULTS_OF_FLEETS] + [(LIFE, *fault) for fault in FAULTS_OF_LIVES]
    faults = [fault for fault in faults if not wanted or fault[1] in wanted]
    missed = []
    to = TARGET / "put-back"
    copy(to)
    for simulation, name, what, changes in faults:
        kept = apply(to, changes)
        took, reason = simulate(build(to, simulation), to, simulation)
        for changed, text in kept.items():
            (to / changed).write_text(text)
        if took is None:
            missed.append(name)
            print(f"{name}: NOT FOUND in {SECONDS} s: {what}", flush=True)
        else:
            print(f"{name}: found after {took:.1f} s: {reason}", flush=True)
    if missed:
        sys.exit(f"the simulation does not find {', '.join(missed)}")


main()
