//! The wall clock: backends refuse points whose timestamps are wrong.

use std::time::{SystemTime, UNIX_EPOCH};

use super::Finding;
use weir_system::sys;

const CHECK: &str = "clock";
/// A difference that backends and charts tolerate.
const SECONDS_OFF_MAX: i64 = 10;
const REMEDY: &str = "synchronise the clock, for instance with systemd-timesyncd or chrony";

/// Compares with the kernel's state and with `date`, a backend's clock in Unix seconds.
pub fn check(date: Option<(String, i64)>) -> Vec<Finding> {
    let mut findings = vec![synchronised()];
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs() as i64);
    findings.extend(date.map(|(who, date)| compared(&who, date, now)));
    findings
}

fn synchronised() -> Finding {
    let subject = "kernel";
    match sys::clock_is_synchronised() {
        Ok(true) => Finding::fine(CHECK, subject, "synchronised"),
        Ok(false) => {
            let found = "no time service has told the kernel that the clock is synchronised; the host of a virtual machine may still do it";
            Finding::warning(CHECK, subject, found).remedy(REMEDY)
        }
        Err(error) => Finding::skipped(CHECK, subject, format!("the kernel does not answer: {error}")),
    }
}

fn compared(who: &str, date: i64, now: i64) -> Finding {
    let off = now - date;
    if off.abs() <= SECONDS_OFF_MAX {
        return Finding::fine(CHECK, who, "its clock agrees with this one");
    }
    let direction = if off > 0 { "ahead of" } else { "behind" };
    let found = format!("this clock is {} s {direction} that of {who}", off.abs());
    Finding::error(CHECK, who, found).remedy(REMEDY)
}
