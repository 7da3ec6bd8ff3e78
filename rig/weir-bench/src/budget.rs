//! `weir-bench budget`: weir's CPU per message against the floor's, for every row of the project's budget.
//!
//! Floor and agent take turns under the same sender, packets and pinning. The whole process counts, user and system,
//! from listening to its end, the last flush included.

use crate::failure::Failure;
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weir_rig_base::clock::cpu_time_ns;
use weir_rig_base::process::{isolate, kill};
use weir_rig_base::{cpu, http};

/// Measures weir's CPU per message as a multiple of the floor's, row by row, and prints a table.
///
/// Exit code 1 when a run was not valid: a packet not delivered, books that do not balance, a process that failed. No
/// figure is printed for such a row.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Runs of floor and agent each, per row.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Only these rows (profile names), repeatable.
    #[arg(long, value_name = "PROFILE")]
    row: Vec<String>,
    /// Messages of a run of the rows that are sent as fast as possible.
    #[arg(long, default_value_t = 20_000_000)]
    messages: u64,
    /// Messages of a run of the paced row.
    #[arg(long, default_value_t = 500_000)]
    paced_messages: u64,
    /// The agent's executable; beside this one by default.
    #[arg(long, value_name = "FILE")]
    weir: Option<PathBuf>,
    /// CPU of the receiver.
    #[arg(long, default_value_t = 0)]
    target_cpu: usize,
    /// CPU of the sender.
    #[arg(long, default_value_t = 1)]
    sender_cpu: usize,
    /// Of the payload and of the order of runs; a fresh one by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Write every run and the summary to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A row of the budget: at most `must` times the floor, better `should`.
struct Row {
    profile: &'static str,
    about: &'static str,
    must: f64,
    should: f64,
    paced: bool,
}

const ROWS: [Row; 6] = [
    row("budget-1k", "8 KiB Unix datagrams, 1k contexts", 2.5, 1.6),
    row("budget-10k", "same, 10k contexts", 2.8, 1.8),
    row("budget-100k", "same, 100k contexts", 4.0, 2.5),
    row("budget-permute", "1k contexts, tags in random order", 6.0, 4.0),
    row("budget-dist", "distributions, 1 to 8 packed values", 4.0, 2.5),
    Row {
        paced: true,
        ..row("budget-paced", "one message per datagram at 100k/s", 1.3, 1.1)
    },
];

const fn row(profile: &'static str, about: &'static str, must: f64, should: f64) -> Row {
    Row {
        profile,
        about,
        must,
        should,
        paced: false,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Target {
    Floor,
    Weir,
}

/// One run that was valid.
#[derive(Clone, Debug, Serialize)]
struct Run {
    target: Target,
    packets: u64,
    messages: u64,
    bytes: u64,
    /// From the first to the last packet, as the sender saw it.
    elapsed_s: f64,
    cpu_ns: u64,
    /// Share of a core over the time of sending.
    core: f64,
    ns_per_message: f64,
    /// The sender's own word on what bounded it.
    sender_verdict: String,
    /// Share of the sending time the sender waited for its core.
    sender_run_delay: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let median = if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    };
    Spread {
        median,
        least: values[0],
        most: values[values.len() - 1],
    }
}

/// Kills a process that is still running when its run is given up.
struct Process {
    child: Child,
    waited: bool,
}

impl Process {
    fn new(child: Child) -> Process {
        Process { child, waited: false }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn cpu_ns(&self) -> Result<u64, String> {
        cpu_time_ns(self.pid()).ok_or_else(|| "the target is gone".to_owned())
    }

    /// Asks it to end, waits, and returns all the CPU time it has used: read before the process is reaped, while its
    /// clock can still be asked.
    fn end(&mut self) -> Result<u64, String> {
        kill(self.pid(), libc::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
            if stat
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('Z'))
            {
                break;
            }
            if Instant::now() > deadline {
                return Err("the target did not end within 60 s of SIGTERM".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let cpu_ns = self.cpu_ns()?;
        self.waited = true;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(cpu_ns)
        } else {
            Err(format!("the target ended with {status}"))
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.waited {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

struct Bench<'a> {
    args: &'a Args,
    own: PathBuf,
    weir: PathBuf,
    dir: tempfile::TempDir,
}

impl Bench<'_> {
    fn command(&self, program: &Path, log: &str, cpu: usize) -> Result<Command, String> {
        let log = File::create(self.dir.path().join(log)).map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stderr(log);
        isolate(&mut command, Some(&[cpu]), None).map_err(|error| error.to_string())?;
        Ok(command)
    }

    fn spawn(command: &mut Command) -> Result<Process, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .spawn()
            .map(Process::new)
            .map_err(|error| format!("{name}: {error}"))
    }

    /// The last lines a process said, to go with its failure.
    fn tail(&self, log: &str) -> String {
        let text = std::fs::read_to_string(self.dir.path().join(log)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Sends the row's packets; the sender's summary.
    fn send(&self, row: &Row, socket: &Path, seed: u64) -> Result<Value, String> {
        let count = if row.paced {
            self.args.paced_messages
        } else {
            self.args.messages
        };
        let mut command = self.command(&self.own, "sender.log", self.args.sender_cpu)?;
        let output = command
            .args([
                "load",
                "run",
                "--profile",
                row.profile,
                "--seed",
                &seed.to_string(),
            ])
            .args([
                "--count",
                &count.to_string(),
                "--cpu",
                &self.args.sender_cpu.to_string(),
            ])
            // Ten datagrams fit the queue of a Unix socket: a tenth of a millisecond at this pace. A client waits for room.
            .args(["--on-backpressure", "wait"])
            .arg("--to")
            .arg(format!("unixgram://{}", socket.display()))
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!(
                "the sender ended with {}: {}",
                output.status,
                self.tail("sender.log")
            ));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
            .ok_or_else(|| format!("the sender printed no summary: {text:?}"))
    }

    fn run(&self, target: Target, row: &Row, seed: u64) -> Result<Run, String> {
        let socket = self.dir.path().join("socket");
        let outcome = match target {
            Target::Floor => self.run_floor(row, seed, &socket),
            Target::Weir => self.run_weir(row, seed, &socket),
        };
        let (sent, cpu_ns) = outcome.map_err(|error| {
            let said = self.tail("target.log");
            if said.is_empty() {
                error
            } else {
                format!("{error}\n{said}")
            }
        })?;
        let count = |key: &str| {
            sent[key]
                .as_u64()
                .ok_or_else(|| format!("the sender's summary has no {key}"))
        };
        let number = |key: &str| {
            sent[key]
                .as_f64()
                .ok_or_else(|| format!("the sender's summary has no {key}"))
        };
        let elapsed_s = number("elapsed_s")?;
        let messages = count("messages")?;
        if count("refused_packets")? > 0 {
            return Err(format!(
                "{} packets were not taken in time",
                sent["refused_packets"]
            ));
        }
        Ok(Run {
            target,
            packets: count("packets")?,
            messages,
            bytes: count("bytes")?,
            elapsed_s,
            cpu_ns,
            core: cpu_ns as f64 / 1e9 / elapsed_s,
            ns_per_message: cpu_ns as f64 / messages as f64,
            sender_verdict: sent["verdict"].as_str().unwrap_or_default().to_owned(),
            sender_run_delay: number("run_delay_s")? / elapsed_s,
        })
    }

    fn run_floor(&self, row: &Row, seed: u64, socket: &Path) -> Result<(Value, u64), String> {
        let mut command = self.command(&self.own, "target.log", self.args.target_cpu)?;
        command
            .args([
                "floor",
                "--until-idle",
                "0s",
                "--cpu",
                &self.args.target_cpu.to_string(),
                "--listen",
            ])
            .arg(format!("unixgram://{}", socket.display()))
            .stdout(Stdio::piped());
        let mut target = Bench::spawn(&mut command)?;
        let mut out = BufReader::new(target.child.stdout.take().expect("piped above"));
        let mut line = String::new();
        out.read_line(&mut line).map_err(|error| error.to_string())?;
        if !line.contains("listening") {
            return Err(format!("the floor did not listen: {line:?}"));
        }
        let before = target.cpu_ns()?;
        let sent = self.send(row, socket, seed)?;
        let after = target.end()?;
        line.clear();
        out.read_line(&mut line).map_err(|error| error.to_string())?;
        let result: Value = serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))?;
        for key in ["packets", "messages", "bytes"] {
            if result[key] != sent[key] {
                return Err(format!("{} {key} sent, {} received", sent[key], result[key]));
            }
        }
        Ok((sent, after - before))
    }

    fn run_weir(&self, row: &Row, seed: u64, socket: &Path) -> Result<(Value, u64), String> {
        let mut command = self.command(&self.weir, "target.log", self.args.target_cpu)?;
        // Nothing of the surroundings may switch an output on.
        command
            .env_clear()
            .args(["run", "--udp", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--uds"])
            .arg(socket)
            .stdout(Stdio::null());
        let mut target = Bench::spawn(&mut command)?;
        let admin = self.admin_address(&mut target)?;
        let before = target.cpu_ns()?;
        let sent = self.send(row, socket, seed)?;
        let packets = sent["packets"].as_u64().unwrap_or(0);
        let status = wait_for_packets(&admin, packets)?;
        check_books(&status, &sent)?;
        let after = target.end()?;
        Ok((sent, after - before))
    }

    /// Where the agent answers, from the line it says that on, which is its last before it is ready.
    fn admin_address(&self, target: &mut Process) -> Result<String, String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let log = std::fs::read_to_string(self.dir.path().join("target.log")).unwrap_or_default();
            if let Some((_, rest)) = log.split_once("admin on http://")
                && let Some((address, _)) = rest.split_once('\n')
            {
                return Ok(address.trim().to_owned());
            }
            if let Ok(Some(status)) = target.child.try_wait() {
                target.waited = true;
                return Err(format!("the agent ended with {status} before it was ready"));
            }
            if Instant::now() > deadline {
                return Err("the agent was not ready within 20 s".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Asks the agent until it has counted all packets. A few questions cost nothing against seconds of load.
fn wait_for_packets(admin: &str, packets: u64) -> Result<Value, String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = get_status(admin).map_err(|error| format!("status of the agent: {error}"))?;
        if status["total"]["packets"]["received"] == packets {
            return Ok(status);
        }
        if Instant::now() > deadline {
            return Err(format!(
                "{packets} packets sent, {} received",
                status["total"]["packets"]["received"]
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn get_status(admin: &str) -> std::io::Result<Value> {
    let answer = http::get(&format!("http://{admin}/api/v1/status"), Duration::from_secs(10))?;
    Ok(serde_json::from_slice(&answer.body)?)
}

/// Every packet parsed, every message accepted, every sample aggregated, by the agent's own books.
fn check_books(status: &Value, sent: &Value) -> Result<(), String> {
    let total = &status["total"];
    let equal = |what: &str, left: &Value, right: &Value| {
        if left == right && left.is_u64() {
            Ok(())
        } else {
            Err(format!(
                "{what}: {left} and {right} must be equal; books: {total}"
            ))
        }
    };
    equal(
        "packets sent and parsed",
        &sent["packets"],
        &total["packets"]["parsed"],
    )?;
    equal(
        "messages sent and accepted",
        &sent["messages"],
        &total["messages"]["accepted"],
    )?;
    equal(
        "samples received and aggregated",
        &total["samples"]["received"],
        &total["samples"]["aggregated"],
    )
}

fn machine() -> Value {
    let first = |path: &str, key: &str| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .find_map(|line| {
                line.strip_prefix(key)
                    .map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
            })
    };
    json!({
        "cpu": first("/proc/cpuinfo", "model name"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": first("/proc/sys/kernel/osrelease", ""),
        "load_average": first("/proc/loadavg", ""),
    })
}

/// The commit of the working tree, and whether it is changed; none outside of one.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git")
            .args(args)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed { commit + " with changes" } else { commit })
}

pub fn run(args: Args) -> Result<(), Failure> {
    let own = std::env::current_exe()?;
    let weir = match &args.weir {
        Some(path) => path.clone(),
        None => own.with_file_name("weir"),
    };
    if !weir.is_file() {
        return Err(Failure::Usage(format!(
            "no agent at {}; build it, or say where it is with --weir",
            weir.display()
        )));
    }
    let known: Vec<&str> = ROWS.iter().map(|row| row.profile).collect();
    if let Some(unknown) = args.row.iter().find(|row| !known.contains(&row.as_str())) {
        return Err(Failure::Usage(format!(
            "--row {unknown}: known are {}",
            known.join(", ")
        )));
    }
    let allowed = cpu::allowed();
    for cpu in [args.target_cpu, args.sender_cpu] {
        if !allowed.contains(&cpu) {
            return Err(Failure::Usage(format!(
                "CPU {cpu}: this process may use {allowed:?}"
            )));
        }
    }
    let mut seed = args.seed.unwrap_or_else(|| {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |since| since.as_nanos() as u64 % 1_000_000_000)
    });
    let first_seed = seed;
    let machine = machine();
    let commit = commit();
    println!("machine {machine}");
    println!(
        "commit {}, seed {seed}, {} pairs per row",
        commit.as_deref().unwrap_or("unknown"),
        args.runs
    );
    if args.target_cpu == args.sender_cpu {
        println!(
            "receiver and sender share CPU {}: the ratios are of little use",
            args.target_cpu
        );
    }
    let bench = Bench {
        args: &args,
        own,
        weir,
        dir: tempfile::Builder::new().prefix("weir-budget-").tempdir()?,
    };
    println!(
        "{:<38} {:>20} {:>10} {:>10} {:>11} {:>11} {:>6} {:>6}",
        "workload", "ratio (spread)", "floor ns", "weir ns", "floor msg/s", "weir msg/s", "must", "should"
    );
    let mut invalid = 0;
    let mut rows = Vec::new();
    for row in ROWS
        .iter()
        .filter(|row| args.row.is_empty() || args.row.iter().any(|wanted| wanted == row.profile))
    {
        let mut runs: Vec<Run> = Vec::new();
        let mut ratios = Vec::new();
        let mut failure = None;
        for _ in 0..args.runs {
            // A payload of its own for each pair, the same for both; which goes first is drawn from it.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let order = match seed >> 63 {
                0 => [Target::Floor, Target::Weir],
                _ => [Target::Weir, Target::Floor],
            };
            let pair: Result<Vec<Run>, String> = order
                .iter()
                .map(|&target| bench.run(target, row, seed >> 1))
                .collect();
            match pair {
                Ok(pair) => {
                    let cost = |wanted| {
                        pair.iter()
                            .find(|run| run.target == wanted)
                            .map(|run| run.ns_per_message)
                    };
                    ratios.extend(
                        cost(Target::Weir)
                            .zip(cost(Target::Floor))
                            .map(|(weir, floor)| weir / floor),
                    );
                    runs.extend(pair);
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = failure {
            invalid += 1;
            println!("{:<38} not valid: {error}", row.about);
            rows.push(json!({"profile": row.profile, "about": row.about, "invalid": error}));
            continue;
        }
        let of = |target: Target, value: fn(&Run) -> f64| {
            spread(
                runs.iter()
                    .filter(|run| run.target == target)
                    .map(value)
                    .collect(),
            )
        };
        let ratio = spread(ratios);
        let cost = |run: &Run| run.ns_per_message;
        let rate = |run: &Run| run.messages as f64 / run.elapsed_s;
        println!(
            "{:<38} {:>20} {:>10.1} {:>10.1} {:>10.2}M {:>10.2}M {:>5}x {:>5}x",
            row.about,
            format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.least, ratio.most),
            of(Target::Floor, cost).median,
            of(Target::Weir, cost).median,
            of(Target::Floor, rate).median / 1e6,
            of(Target::Weir, rate).median / 1e6,
            row.must,
            row.should
        );
        rows.push(json!({
            "profile": row.profile, "about": row.about, "must": row.must, "should": row.should,
            "ratio": ratio,
            "floor_ns_per_message": of(Target::Floor, cost), "weir_ns_per_message": of(Target::Weir, cost),
            "floor_messages_per_s": of(Target::Floor, rate), "weir_messages_per_s": of(Target::Weir, rate),
            "weir_core": of(Target::Weir, |run| run.core),
            "runs": runs,
        }));
    }
    if let Some(path) = &args.json {
        let text = json!({"machine": machine, "commit": commit, "seed": first_seed, "pairs": args.runs, "rows": rows});
        std::fs::write(path, format!("{text:#}\n"))
            .map_err(|error| Failure::Runtime(format!("--json {}: {error}", path.display())))?;
    }
    if invalid > 0 {
        return Err(Failure::Runtime(format!(
            "budget: {invalid} rows without a valid result"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_odd_and_even() {
        let spread_of = |values: &[f64]| {
            let spread = spread(values.to_vec());
            (spread.median, spread.least, spread.most)
        };
        assert_eq!(spread_of(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(spread_of(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
    }

    #[test]
    fn books_with_a_loss_are_not_valid() {
        let sent = json!({"packets": 2, "messages": 6});
        let books = |parsed: u64, accepted: u64, aggregated: u64| {
            json!({"total": {"packets": {"parsed": parsed}, "messages": {"accepted": accepted},
                "samples": {"received": 6, "aggregated": aggregated}}})
        };
        assert!(check_books(&books(2, 6, 6), &sent).is_ok());
        for (parsed, accepted, aggregated) in [(1, 6, 6), (2, 5, 6), (2, 6, 5)] {
            assert!(check_books(&books(parsed, accepted, aggregated), &sent).is_err());
        }
        assert!(check_books(&json!({}), &json!({})).is_err());
    }
}
