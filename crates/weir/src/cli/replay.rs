//! `weir replay`: sends a capture.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_units::counted;

use super::send::{Sender, destination};
use super::switch;
use weir_admin::capture_file::{CaptureError, CaptureReader};
use weir_system::failure::Failure;

pub fn command() -> Command {
    Command::new("replay")
        .about("Send the packets of a capture, by weir or the Datadog Agent, with their original timing")
        .after_help("Example: weir replay page.dog --to unixgram:///run/weir/dsd.socket --speed 2x")
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("The capture"),
        )
        .arg(super::send::to_argument())
        .arg(super::send::framing_argument())
        .arg(
            Arg::new("speed")
                .long("speed")
                .value_name("FACTOR")
                .default_value("1x")
                .help("Speed relative to the original, such as 2x or 0.5x; max: without waiting"),
        )
        .arg(switch("loop", "Start again at the end, until stopped"))
        .arg(switch(
            "partial",
            "If the file is truncated, send its whole packets",
        ))
}

pub fn replay(arguments: &ArgMatches) -> Result<(), Failure> {
    let path = arguments.get_one::<PathBuf>("file").expect("clap requires it");
    let to = arguments.get_one::<String>("to").map_or("", String::as_str);
    let address = destination(to)?;
    let speed = speed(arguments.get_one::<String>("speed").map_or("1x", String::as_str))?;
    let partial = arguments.get_flag("partial");
    // Checks the complete file before anything is sent.
    let found = run_through(path, partial, |_, _| Ok(()))?;
    if found.packets == 0 {
        return Err(Failure::usage(format!("{}: it has no packets", path.display())));
    }
    if found.lost > 0 {
        eprintln!(
            "{}: missing {}, for which the capture had no room",
            path.display(),
            counted(found.lost, "packets")
        );
    }
    let newline = arguments
        .get_one::<String>("framing")
        .is_some_and(|framing| framing == "newline");
    let mut sender =
        Sender::connect(&address, newline).map_err(|error| super::send::failed(&address, &error))?;
    loop {
        let start = Instant::now();
        let sent = run_through(path, partial, |time, bytes| {
            if let Some(speed) = speed {
                wait_until(start + time.div_f64(speed));
            }
            sender
                .send(bytes)
                .map_err(|error| super::send::failed(&address, &error))
        })?;
        super::print(&format!(
            "{}, {} in {:.3} s to {address}\n",
            counted(sent.packets, "packets"),
            counted(sent.bytes, "bytes"),
            start.elapsed().as_secs_f64()
        ))?;
        if !arguments.get_flag("loop") {
            return Ok(());
        }
    }
}

/// `None`: without delay.
fn speed(text: &str) -> Result<Option<f64>, Failure> {
    if text == "max" {
        return Ok(None);
    }
    let factor = text.strip_suffix('x').unwrap_or(text).parse::<f64>().ok();
    let factor = factor.filter(|factor| (1e-6..=1e6).contains(factor));
    factor.map(Some).ok_or_else(|| {
        Failure::usage(format!(
            "flag --speed: {text:?} is neither a factor such as 2x or 0.5x nor max"
        ))
    })
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

/// The content of a capture.
#[derive(Default)]
struct CaptureTotals {
    packets: u64,
    bytes: u64,
    /// Packets that the capture lost.
    lost: u64,
}

/// Visits each packet with its time since the first. Refuses a truncated file, unless `partial`.
fn run_through(
    path: &Path,
    partial: bool,
    mut each: impl FnMut(Duration, &[u8]) -> Result<(), Failure>,
) -> Result<CaptureTotals, Failure> {
    let failed = |error: CaptureError| {
        let hint = if error.is_cut() {
            " (--partial sends the whole packets)"
        } else {
            ""
        };
        Failure::usage(format!("{}: {error}{hint}", path.display()))
    };
    let mut reader = CaptureReader::open(path).map_err(failed)?;
    let mut found = CaptureTotals::default();
    let mut first = None;
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(cut) if partial && cut.is_cut() => break,
            Err(error) => return Err(failed(error)),
        };
        let time = reader.time(&packet);
        let since = time.saturating_sub(*first.get_or_insert(time));
        each(since, packet.bytes())?;
        found.packets += 1;
        found.bytes += packet.bytes().len() as u64;
    }
    found.lost = reader.state().map_or(0, |state| state.lost);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_factors() {
        assert_eq!(speed("2x").unwrap(), Some(2.0));
        assert_eq!(speed("0.5").unwrap(), Some(0.5));
        assert_eq!(speed("max").unwrap(), None);
        for bad in ["", "x", "0x", "-1x", "nan", "inf", "1e9", "fast"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }
}
