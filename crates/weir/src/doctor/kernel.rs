//! The kernel: settings that limit the queues of sockets, and the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use weir_listener::{Address, ListenerConfig};

use super::{CheckInput, Finding};
use weir_status::counters::SocketCounter;
use weir_system::sys;

const QUEUE: &str = "/proc/sys/net/unix/max_dgram_qlen";
/// Datagrams that clients can write before they block; the packages set this value.
const QUEUE_WANTED: u64 = 512;

/// The check of the wall clock: backends refuse points whose timestamps are wrong.
const CLOCK: &str = "clock";
/// A difference that backends and charts tolerate.
const SECONDS_OFF_MAX: i64 = 10;
const CLOCK_REMEDY: &str = "synchronise the clock, for instance with systemd-timesyncd or chrony";

/// The maximum datagrams in a Unix socket: beyond it clients wait or drop.
pub fn datagram_queue(input: &CheckInput<'_>) -> Vec<Finding> {
    if input.loaded.config.listeners.uds.is_empty() {
        return Vec::new();
    }
    vec![queue_of(std::fs::read_to_string(QUEUE).ok())]
}

/// The verdict on the kernel's text, if there is one.
fn queue_of(text: Option<String>) -> Finding {
    let check = "kernel";
    let subject = "net.unix.max_dgram_qlen";
    match text.map(|text| text.trim().parse::<u64>()) {
        Some(Ok(length)) if length >= QUEUE_WANTED => {
            Finding::fine(check, subject, format!("{length} datagrams may wait in a Unix socket"))
        }
        Some(Ok(length)) => Finding::warning(
            check,
            subject,
            format!("only {length} datagrams may wait in a Unix socket; clients that do not wait drop bursts"),
        )
        .remedy(format!(
            "run `sysctl -w {subject}={QUEUE_WANTED}` before weir starts (and put it into /etc/sysctl.d/ to keep it)"
        )),
        _ => Finding::skipped(check, subject, format!("{QUEUE} cannot be read")),
    }
}

/// Whether the kernel grants the configured size.
pub fn receive_buffers(input: &CheckInput<'_>) -> Vec<Finding> {
    let config = &input.loaded.config;
    match &input.status {
        Some(status) => {
            let sockets = status.listeners.iter();
            let number = |of: &weir_status::status::ListenerStatus, counter| of.numbers.of(counter);
            sockets
                .filter(|of| number(of, SocketCounter::ReceiveBufferWanted) > 0)
                .map(|of| {
                    let granted = number(of, SocketCounter::ReceiveBuffer);
                    granted_of(
                        &of.address,
                        granted,
                        number(of, SocketCounter::ReceiveBufferWanted),
                    )
                })
                .collect()
        }
        None if config.addresses.udp.is_empty() => Vec::new(),
        None => tried(config.listeners.receive_buffer.map(|bytes| bytes as usize)),
    }
}

fn granted_of(address: &str, granted: u64, wanted: u64) -> Finding {
    if granted >= wanted {
        return Finding::fine("receive_buffer", address, format!("{granted} bytes"));
    }
    let found = format!("wanted {wanted} bytes, the kernel granted {granted}");
    let remedy = format!(
        "run `sysctl -w net.core.rmem_max={wanted}` (and put it into /etc/sysctl.d/ to keep it), or give the process CAP_NET_ADMIN, and restart weir"
    );
    Finding::warning("receive_buffer", address, found).remedy(remedy)
}

/// Tests it with a temporary socket, if no agent can be asked.
fn tried(wanted: Option<usize>) -> Vec<Finding> {
    let mut listener = ListenerConfig::new(Address::Udp {
        host: "127.0.0.1".to_owned(),
        port: 0,
    });
    listener.receive_buffer_bytes = wanted;
    let subject = "udp";
    vec![match weir_listener::bind(&listener) {
        Err(error) => Finding::skipped(
            "receive_buffer",
            subject,
            format!("no socket for the test: {error}"),
        ),
        Ok(socket) => {
            let buffer = socket.receive_buffer();
            granted_of(
                subject,
                buffer.granted as u64,
                buffer.wanted.unwrap_or(buffer.granted) as u64,
            )
        }
    }]
}

/// Compares with the kernel's state and with `date`, a backend's clock in Unix seconds.
pub fn clock(date: Option<(String, i64)>) -> Vec<Finding> {
    let mut findings = vec![synchronised()];
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs() as i64);
    findings.extend(date.map(|(who, date)| compared(&who, date, now)));
    findings
}

fn synchronised() -> Finding {
    let subject = "kernel";
    match sys::clock_is_synchronised() {
        Ok(true) => Finding::fine(CLOCK, subject, "synchronised"),
        Ok(false) => {
            let found = "no time service has told the kernel that the clock is synchronised; the host of a virtual machine may still do it";
            Finding::warning(CLOCK, subject, found).remedy(CLOCK_REMEDY)
        }
        Err(error) => Finding::skipped(CLOCK, subject, format!("the kernel does not answer: {error}")),
    }
}

fn compared(who: &str, date: i64, now: i64) -> Finding {
    let off = now - date;
    if off.abs() <= SECONDS_OFF_MAX {
        return Finding::fine(CLOCK, who, "its clock agrees with this one");
    }
    let direction = if off > 0 { "ahead of" } else { "behind" };
    let found = format!("this clock is {} s {direction} that of {who}", off.abs());
    Finding::error(CLOCK, who, found).remedy(CLOCK_REMEDY)
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn short_queues_small_buffers_and_wrong_clocks_have_a_remedy() {
        for (text, verdict) in [
            (Some("10\n"), Severity::Warning),
            (Some("512\n"), Severity::Fine),
            (Some("many"), Severity::Skipped),
            (None, Severity::Skipped),
        ] {
            let finding = queue_of(text.map(str::to_owned));
            assert_eq!(finding.verdict, verdict, "{finding:?}");
        }
        let short = queue_of(Some("10".to_owned())).remedy;
        assert!(short.contains("sysctl -w net.unix.max_dgram_qlen=512"), "{short}");
        assert_eq!(granted_of("udp", 1 << 30, 1 << 30).verdict, Severity::Fine);
        let small = granted_of("udp", 212_992, 1 << 30);
        assert_eq!(small.verdict, Severity::Warning);
        assert!(small.remedy.contains("net.core.rmem_max=1073741824"), "{small:?}");
        for (date, verdict) in [
            (990, Severity::Fine),
            (989, Severity::Error),
            (1011, Severity::Error),
        ] {
            let finding = compared("backend", date, 1000);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert_eq!(finding.remedy.is_empty(), verdict == Severity::Fine);
        }
    }
}
