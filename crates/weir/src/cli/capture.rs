//! `weir capture`: writes packets to a file as they arrive.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_units::counted;

use super::agent::{self, admin_address};
use super::stream::{self, Body};
use super::switch;
use weir_admin::capture_file::{
    CaptureError, CaptureReader, CaptureState, CaptureWriter, header, write_packet, write_state,
};
use weir_system::failure::Failure;

/// Extra time for the agent at the end of a capture.
const GRACE: Duration = Duration::from_secs(15);

pub fn command() -> Command {
    Command::new("capture")
        .about("Record packets in a file, for `weir replay` and the Datadog Agent")
        .after_help("Example: weir capture --for 30s --match 'page.*' --out page.dog")
        .arg(
            Arg::new("for")
                .long("for")
                .value_name("TIME")
                .default_value("30s")
                .help("Duration, up to 10m; Ctrl-C ends it earlier"),
        )
        .arg(
            Arg::new("match").long("match").value_name("MATCH").help(
                "Only packets with a message of this name: a part of the name, or a pattern with * and ?",
            ),
        )
        .arg(stream::where_argument())
        .args(agent::arguments())
        .arg(
            Arg::new("out")
                .long("out")
                .short('o')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("The file to write [default: weir-capture-TIME.dog]"),
        )
        .arg(
            Arg::new("bytes")
                .long("bytes")
                .value_name("SIZE")
                .default_value("1GiB")
                .help("The maximum bytes to record, before compression"),
        )
        .arg(switch("plain", "Do not compress the file with zstd"))
}

pub fn capture(arguments: &ArgMatches) -> Result<(), Failure> {
    let address = admin_address(arguments)?;
    let text = |id: &str| arguments.get_one::<String>(id).cloned().unwrap_or_default();
    let duration = weir_units::parse_duration_or_seconds(&text("for"))
        .map_err(|error| Failure::usage(format!("flag --for: {error}")))?;
    let bytes = weir_units::parse_size_any_case(&text("bytes"))
        .map_err(|error| Failure::usage(format!("flag --bytes: {error}")))?;
    let path = arguments
        .get_one::<PathBuf>("out")
        .cloned()
        .unwrap_or_else(default_path);
    let mut pairs = vec![
        ("for", format!("{}ms", duration.as_millis())),
        ("match", text("match")),
        ("bytes", bytes.to_string()),
    ];
    let tags = arguments.get_many::<String>("where").into_iter().flatten();
    pairs.extend(tags.map(|tag| ("where", tag.clone())));
    let asked = format!("/api/v1/capture?{}", stream::query(&pairs));
    let body = Body::open(address, &asked, duration + GRACE)?;
    let failed = |error: std::io::Error| Failure::runtime(format!("{}: {error}", path.display()));
    let mut writer = CaptureWriter::create(&path, !arguments.get_flag("plain")).map_err(failed)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let stop = body.stopper().map_err(failed)?;
    on_interrupt(interrupted.clone(), stop).map_err(failed)?;
    let state = write(body, &mut writer, || {
        eprintln!(
            "capturing for {} into {}; Ctrl-C ends it",
            weir_units::show_duration(duration),
            path.display()
        );
    })
    .map_err(|error| Failure::runtime(format!("{}: {error}", path.display())))?;
    writer.finish().map_err(failed)?;
    report(&path, &state, interrupted.load(Ordering::Acquire))
}

fn default_path() -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    PathBuf::from(format!("weir-capture-{}.dog", now.as_secs()))
}

/// The file is complete even if the capture ends early.
fn on_interrupt(interrupted: Arc<AtomicBool>, stop: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let wait = move || {
        if runtime.block_on(tokio::signal::ctrl_c()).is_ok() {
            interrupted.store(true, Ordering::Release);
            stop();
        }
    };
    std::thread::Builder::new()
        .name("interrupt".into())
        .spawn(wait)
        .map(drop)
}

/// Copies a capture. If it ends early, appends an end record.
fn write(body: Body, writer: &mut CaptureWriter, begun: impl FnOnce()) -> Result<CaptureState, CaptureError> {
    let mut reader = CaptureReader::new(body)?;
    begun();
    writer.write(&header())?;
    let (mut record, mut packets) = (Vec::new(), 0);
    let state = loop {
        match reader.next_packet() {
            Ok(Some(packet)) => {
                record.clear();
                write_packet(&packet, &mut record);
                writer.write(&record)?;
                packets += 1;
            }
            Ok(None) => break reader.state().cloned().unwrap_or_default(),
            Err(error) if is_cut(&error) => {
                break CaptureState {
                    packets,
                    ended_early: "the agent's answer ended".to_owned(),
                    ..CaptureState::default()
                };
            }
            Err(error) => return Err(error),
        }
    };
    record.clear();
    write_state(&state, &mut record);
    writer.write(&record)?;
    Ok(state)
}

/// Whether everything before the error is whole.
fn is_cut(error: &CaptureError) -> bool {
    error.is_cut() || matches!(error, CaptureError::Io(error) if stream::is_cut(error))
}

fn report(path: &Path, state: &CaptureState, interrupted: bool) -> Result<(), Failure> {
    let size = std::fs::metadata(path).map_or(0, |file| file.len());
    let mut text = format!(
        "{}: {}, {}\n",
        path.display(),
        counted(state.packets, "packets"),
        super::table::bytes(size)
    );
    if state.lost > 0 {
        text.push_str(&format!(
            "missing: {}, which came faster than weir could write\n",
            counted(state.lost, "packets")
        ));
    }
    if state.requests > 0 {
        text.push_str(&format!(
            "not in it: {} with columns; a capture has packets alone\n",
            counted(state.requests, "requests")
        ));
    }
    if interrupted {
        text.push_str("ended early: interrupted\n");
    } else if !state.ended_early.is_empty() {
        text.push_str(&format!("ended early: {}\n", state.ended_early));
    }
    super::print(&text)
}
