//! Checks whether this machine can measure, and reports missing requirements and their consequences.

use super::out;
use crate::detect::run::{self, DetectError};
use crate::detect::{history, procfs, valgrind};
use std::path::{Path, PathBuf};
use weir_rig_base::counter::Counter;
use weir_rig_base::{clock, process};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
}

/// Says what this machine can measure. Without a CPU clock of processes it can measure nothing.
pub fn run(a: &Args) -> Result<u8, DetectError> {
    let clock = clock::cpu_time_ns(std::process::id() as i32).is_some();
    print_host(clock);
    print_limits();
    print_neighbours();
    print_calibrations(&a.cache.clone().unwrap_or_else(run::default_cache));
    Ok(if clock { 0 } else { 5 })
}

/// Calibrations of a busy machine are printed only where there are any: a quiet one needs none.
fn print_calibrations(cache: &Path) {
    let host = procfs::describe_host();
    for (together, how, flag) in [
        (true, "concurrent arms", ""),
        (false, "arms in turn", " --set measure.together=false"),
    ] {
        for (busy, where_) in [(false, ""), (true, ", busy machine")] {
            let key = run::calibration_key(&host, together, busy);
            let (usable, detail) = match history::stored_calibration(cache, &key) {
                Some(note) => (note.is_usable(), note.sentence()),
                None if busy => continue,
                None => (false, format!("none: make one with `weir-bench aa{flag}`")),
            };
            print_check(usable, &format!("calibration, {how}{where_}"), detail);
        }
    }
}

fn print_check(ok: bool, what: &str, detail: impl std::fmt::Display) {
    let mark = if ok { "ok  " } else { "note" };
    out(&format!("{mark} {what:<28} {detail}\n"));
}

/// The detail, and the consequence if it is not as it should be.
fn print_check_with(ok: bool, what: &str, detail: String, otherwise: &str) {
    print_check(ok, what, detail + if ok { "" } else { otherwise });
}

fn print_host(clock: bool) {
    let host = procfs::describe_host();
    print_check(
        true,
        "machine",
        format!("{}, Linux {}", host["cpu"], host["kernel"]),
    );
    let cpus = process::allowed_cpus();
    let alone = ": target and generator share one, results are noisy";
    print_check_with(cpus.len() >= 2, "CPUs", format!("{cpus:?}"), alone);
    let before = std::time::Instant::now();
    let smaps = procfs::smaps(std::process::id() as i32);
    let micros = before.elapsed().as_secs_f64() * 1e6;
    let detail = match smaps {
        Some(_) => format!("{micros:.0} µs for this small process"),
        None => "not readable: memory is judged by RSS".to_owned(),
    };
    print_check(smaps.is_some(), "smaps_rollup (PSS)", detail);
    let detail = match clock {
        true => "nanoseconds",
        false => "missing: CPU cannot be measured here",
    };
    print_check(clock, "CPU clock of processes", detail);
    let counted = Counter::check();
    let detail = match &counted {
        Ok(()) => "counted in user space: goal instructions_per_message".to_owned(),
        Err(why) => match valgrind::check() {
            Ok(()) => format!("{why}; valgrind counts them: --set measure.instructions=valgrind"),
            Err(missing) => format!("{why}; valgrind could count them: {missing}"),
        },
    };
    print_check(counted.is_ok(), "instructions", detail);
    let pressure = procfs::pressure_ns().is_some();
    print_check(
        pressure,
        "pressure (PSI)",
        "waiting for a CPU, recorded where the kernel has it",
    );
    let frequency = procfs::frequency_khz().is_some();
    print_check(frequency, "CPU frequency", "recorded where the machine shows it");
}

fn print_limits() {
    let host = procfs::describe_host();
    let cgroup = crate::detect::process::Cgroup::with_memory_limit(64 << 20);
    let detail = match &cgroup {
        Ok(_) => "control group".to_owned(),
        Err(error) => format!("watched instead of limited: {error}"),
    };
    print_check(cgroup.is_ok(), "memory limit", detail);
    let aslr = &host["aslr"];
    print_check(
        aslr == "2",
        "address randomisation",
        format!("randomize_va_space is {aslr}"),
    );
    let rmem: u64 = host["rmem_max"].parse().unwrap_or(0);
    let small = ": targets that ask for more get less; sysctl -w net.core.rmem_max=8388608";
    print_check_with(
        rmem >= 4 << 20,
        "net.core.rmem_max",
        format!("{rmem} bytes"),
        small,
    );
    print_check(true, "net.unix.max_dgram_qlen", &host["unix_max_dgram_qlen"]);
}

/// CPU use of other programs, over a second.
fn print_neighbours() {
    let (before, start) = (procfs::machine(), std::time::Instant::now());
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (Some(before), Some(after)) = (before, procfs::machine()) else {
        return;
    };
    let elapsed = start.elapsed().as_nanos() as f64;
    let share = after.since(before).busy_ns as f64 / elapsed;
    let busy = ": runs will wait or be discarded; --accept-busy measures anyway";
    let detail = format!("{:.0} % of a core in use now", 100.0 * share);
    print_check_with(share < 0.05, "other programs", detail, busy);
    let steal = (after.steal_ns - before.steal_ns) as f64 / elapsed;
    let detail = format!("{:.1} % of a core", 100.0 * steal);
    print_check(steal < 0.02, "stolen by the host", detail);
}
