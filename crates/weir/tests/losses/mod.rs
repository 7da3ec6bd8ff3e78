//! Each kind of loss, provoked in a running agent: every surface names it, with its number, its place and its remedy.
//!
//! [`KINDS`] has all kinds. One that is declared and not in it fails the test, and so does one that is in it and not declared.

mod outputs;
mod senders;
pub mod threads;

use std::any::Any;
use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::{scope, spawn};

use serde::Deserialize;
use serde_json::Value;
use weir_counters::{Counter as _, CounterInfo};
use weir_output::relay::RelayLoss;
use weir_status::losses::{kinds, repeats_others};
use weir_units::{counted, grouped};

use crate::support::terminal::Terminal;
use crate::support::{Agent, get, json, run, until};

/// Agents beside each other; in each, several kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// Senders that err, over every transport.
    Senders,
    /// Senders at the limits of connections and descriptors, and without TLS.
    Connections,
    /// Senders that are looked up.
    Origins,
    /// A sender that the kernel cannot name.
    Namespace,
    /// Contexts beyond the limits on their number.
    Contexts,
    /// More than the memory holds.
    Memory,
    /// Receivers that refuse, and that are down.
    Outputs,
    /// Threads that are stopped or panic, system calls that fail, a clock that is set back.
    Threads,
    /// Processes after each other, with one state directory.
    Lives,
    /// Merges of agents and of a log with faults.
    Merge,
    /// A merge with little memory.
    SmallMerge,
    /// A merge whose snapshot another version wrote.
    OldMerge,
    /// A merge whose output is behind, with a log that fails.
    BehindMerge,
}

impl Scene {
    const ALL: [Scene; 13] = [
        Scene::Senders,
        Scene::Connections,
        Scene::Origins,
        Scene::Namespace,
        Scene::Contexts,
        Scene::Memory,
        Scene::Outputs,
        Scene::Threads,
        Scene::Lives,
        Scene::Merge,
        Scene::SmallMerge,
        Scene::OldMerge,
        Scene::BehindMerge,
    ];

    /// Whether it is a merge, which has commands of its own.
    fn is_merge(self) -> bool {
        use Scene::{BehindMerge, Merge, OldMerge, SmallMerge};
        matches!(self, Merge | SmallMerge | OldMerge | BehindMerge)
    }

    /// `None`, with a line that says why, if it cannot be made on this machine.
    fn provoke(self) -> Option<Provoked> {
        match self {
            Scene::Senders => Some(senders::senders()),
            Scene::Connections => Some(senders::connections()),
            Scene::Origins => Some(senders::origins()),
            Scene::Namespace => senders::namespace(),
            Scene::Contexts => Some(senders::contexts()),
            Scene::Memory => Some(outputs::memory()),
            Scene::Outputs => Some(outputs::outputs()),
            Scene::Threads => threads::threads(),
            Scene::Lives => Some(outputs::lives()),
            Scene::Merge => Some(threads::faulty()),
            Scene::SmallMerge => Some(threads::small()),
            Scene::OldMerge => Some(threads::old()),
            Scene::BehindMerge => Some(threads::behind()),
        }
    }
}

/// A process with losses, and what has to stay until they were looked at.
struct Provoked {
    admin: String,
    _kept: Vec<Box<dyn Any + Send>>,
}

impl Provoked {
    fn new(agent: Agent, kept: impl Any + Send) -> Provoked {
        Provoked {
            admin: agent.admin.clone(),
            _kept: vec![Box::new(agent), Box::new(kept)],
        }
    }
}

/// The number of a kind in its scene, at all places.
#[derive(Clone, Copy, Debug)]
enum Number {
    Exactly(u64),
    AtLeast(u64),
}

use Number::{AtLeast, Exactly};

/// The provocation of a kind.
#[derive(Clone, Copy, Debug)]
enum By {
    Scene(Scene, Number),
    /// It is counted in this scene and not listed, because others have the same loss.
    Told(Scene),
    /// Not here: why. `weir-status` asserts the surfaces with a status that has it.
    Unprovoked(&'static str),
}

/// Of an output to brokers.
const NOT_READY: By = match cfg!(feature = "kafka") {
    true => By::Scene(Scene::Outputs, AtLeast(1)),
    false => By::Unprovoked("this program has no client for Kafka"),
};

const fn by(scene: Scene, number: Number) -> By {
    By::Scene(scene, number)
}

/// Series, the value of the label that distinguishes kinds of one series, and how it is provoked.
type Kind = (&'static str, &'static str, By);

const REJECTED: &str = "weir_messages_rejected_total";
const PACKETS: &str = "weir_packets_dropped_total";
const SAMPLES: &str = "weir_samples_dropped_total";
const REQUESTS: &str = "weir_http_requests_total";
const LIMITS: &str = "weir_context_limit_samples_total";
const ITEMS: &str = "weir_output_dropped_total";
const QUARANTINED: &str = "weir_fleet_quarantined_records_total";

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    ("weir_panics_total", "", by(Scene::Threads, Exactly(1))),
    ("weir_clients_packets_dropped_total", "", by(Scene::Senders, Exactly(10))),
    ("weir_clients_packets_dropped_queue_total", "", by(Scene::Senders, Exactly(2))),
    ("weir_clients_packets_dropped_writer_total", "", by(Scene::Senders, Exactly(1))),
    ("weir_clients_metrics_dropped_on_receive_total", "", by(Scene::Senders, Exactly(3))),
    ("weir_clients_synchronous_sends_total", "", by(Scene::Senders, Exactly(6))),
    (PACKETS, "kernel", by(Scene::Senders, AtLeast(100))),
    (PACKETS, "source_not_allowed", by(Scene::Senders, Exactly(5))),
    (PACKETS, "rate_limited", by(Scene::Senders, AtLeast(1))),
    (PACKETS, "frame_too_long", by(Scene::Senders, Exactly(1))),
    (PACKETS, "frame_cut", by(Scene::Senders, Exactly(1))),
    (PACKETS, "origin_rate_limited", by(Scene::Origins, AtLeast(1))),
    (PACKETS, "origin_not_allowed", by(Scene::Origins, AtLeast(1))),
    (PACKETS, "origin_unknown", by(Scene::Namespace, AtLeast(1))),
    ("weir_packets_truncated_total", "", By::Told(Scene::Senders)),
    (REJECTED, "truncated", by(Scene::Senders, AtLeast(1))),
    ("weir_origin_packets_without_process_total", "", by(Scene::Namespace, AtLeast(1))),
    ("weir_discarded_bytes_total", "", By::Told(Scene::Senders)),
    ("weir_connections_refused_limit_total", "", by(Scene::Connections, AtLeast(1))),
    ("weir_connections_closed_crowded_total", "", by(Scene::Connections, Exactly(1))),
    ("weir_connections_refused_total", "", by(Scene::Senders, Exactly(1))),
    ("weir_connections_failed_tls_total", "", by(Scene::Connections, AtLeast(1))),
    ("weir_connections_closed_budget_total", "", by(Scene::Memory, AtLeast(1))),
    ("weir_connections_cut_total", "", by(Scene::Lives, Exactly(1))),
    ("weir_connections_failed_total", "", by(Scene::Senders, Exactly(1))),
    ("weir_accept_errors_total", "", by(Scene::Connections, AtLeast(1))),
    ("weir_accept_pauses_total", "", by(Scene::Connections, AtLeast(1))),
    ("weir_receive_errors_total", "no_memory", by(Scene::Threads, AtLeast(1))),
    ("weir_receive_errors_total", "reset", by(Scene::Senders, Exactly(1))),
    ("weir_receive_errors_total", "other", by(Scene::Threads, AtLeast(1))),
    ("weir_sample_rate_faults_total", "", by(Scene::Senders, Exactly(1))),
    ("weir_unknown_sections_total", "", by(Scene::Senders, Exactly(1))),
    ("weir_gauge_deltas_without_base_total", "", by(Scene::Senders, Exactly(1))),
    ("weir_samples_overflowed_total", "", By::Told(Scene::Contexts)),
    ("weir_passed_on_dropped_total", "event", by(Scene::Threads, AtLeast(1))),
    ("weir_passed_on_dropped_total", "check", by(Scene::Threads, AtLeast(1))),
    ("weir_timestamps_ignored_total", "", by(Scene::Senders, Exactly(1))),
    (REJECTED, "no_separator", by(Scene::Senders, Exactly(1))),
    (REJECTED, "no_value", by(Scene::Senders, Exactly(1))),
    (REJECTED, "empty_name", by(Scene::Senders, Exactly(1))),
    (REJECTED, "bad_type", by(Scene::Senders, Exactly(1))),
    (REJECTED, "bad_value", by(Scene::Senders, Exactly(1))),
    (REJECTED, "no_finite_value", by(Scene::Senders, Exactly(1))),
    (REJECTED, "bad_sample_rate", by(Scene::Senders, Exactly(1))),
    (REJECTED, "bad_timestamp", by(Scene::Senders, Exactly(1))),
    (REJECTED, "bad_event_header", by(Scene::Senders, Exactly(1))),
    (REJECTED, "empty_title", by(Scene::Senders, Exactly(1))),
    (REJECTED, "event_too_short", by(Scene::Senders, Exactly(1))),
    (REJECTED, "bad_check_format", by(Scene::Senders, Exactly(1))),
    (REJECTED, "empty_check_name", by(Scene::Senders, Exactly(1))),
    (REJECTED, "bad_check_status", by(Scene::Senders, Exactly(1))),
    (REJECTED, "invalid_utf8", by(Scene::Senders, Exactly(1))),
    (REJECTED, "unterminated", by(Scene::Senders, Exactly(1))),
    (REJECTED, "series_bad_name", by(Scene::Senders, Exactly(1))),
    (REJECTED, "series_too_many_tags", by(Scene::Senders, Exactly(1))),
    (REJECTED, "series_bad_interval", by(Scene::Senders, Exactly(1))),
    (REJECTED, "series_bad_sketch", by(Scene::Senders, Exactly(1))),
    (SAMPLES, "non_finite", by(Scene::Senders, Exactly(1))),
    (SAMPLES, "no_memory", By::Told(Scene::Memory)),
    (SAMPLES, "context_limit", By::Told(Scene::Contexts)),
    (SAMPLES, "unsupported_timestamped_type", by(Scene::Senders, Exactly(1))),
    (SAMPLES, "bad_timestamp", by(Scene::Senders, Exactly(1))),
    (SAMPLES, "future_timestamp", by(Scene::Senders, Exactly(1))),
    (SAMPLES, "queue_full", by(Scene::Threads, AtLeast(1))),
    ("weir_columns_requests_given_up_total", "", by(Scene::Senders, Exactly(4))),
    (REQUESTS, "invalid", by(Scene::Senders, Exactly(2))),
    (REQUESTS, "too_large", by(Scene::Senders, Exactly(1))),
    (REQUESTS, "unsupported", by(Scene::Senders, Exactly(1))),
    (REQUESTS, "refused", by(Scene::Senders, Exactly(1))),
    (REQUESTS, "busy", by(Scene::Senders, AtLeast(1))),
    ("weir_http_requests_unsaved_total", "", by(Scene::Senders, AtLeast(1))),
    ("weir_socket_files_remade_total", "", by(Scene::Senders, Exactly(1))),
    ("weir_overflow_series", "", By::Told(Scene::Contexts)),
    ("weir_aliases_refused_total", "", by(Scene::Memory, AtLeast(1))),
    (LIMITS, "memory", by(Scene::Memory, AtLeast(1))),
    (LIMITS, "contexts_max", by(Scene::Contexts, AtLeast(1))),
    (LIMITS, "metric_share", by(Scene::Contexts, AtLeast(1))),
    (LIMITS, "origin_share", by(Scene::Contexts, AtLeast(1))),
    (LIMITS, "tag_key_share", by(Scene::Contexts, AtLeast(1))),
    ("weir_bodies_squeezed_total", "", by(Scene::Memory, AtLeast(1))),
    ("weir_buckets_joined_total", "", by(Scene::Threads, AtLeast(1))),
    ("weir_rows_lost_total", "", By::Unprovoked("a worker would have to end in the middle of a flush, and nothing outside tells when that is")),
    ("weir_history_points_refused_total", "", by(Scene::Memory, AtLeast(1))),
    ("weir_history_points_behind_total", "", by(Scene::Threads, AtLeast(1))),
    ("weir_tap_packets_lost_total", "", by(Scene::Memory, AtLeast(1))),
    ("weir_drop_disagreements_total", "", By::Unprovoked("the kernel's table and its sockets would have to disagree")),
    ("weir_clock_set_back_total", "", by(Scene::Threads, AtLeast(1))),
    ("weir_origin_packets_untracked_total", "", By::Unprovoked("it takes 16,384 sending processes")),
    ("weir_origin_waited_in_vain_total", "", by(Scene::Origins, AtLeast(1))),
    ("weir_origin_no_room_to_wait_total", "", by(Scene::Origins, AtLeast(1))),
    ("weir_origins_refused_total", "", by(Scene::Senders, AtLeast(1))),
    ("weir_output_attempts_failed_total", "", by(Scene::Outputs, AtLeast(1))),
    ("weir_output_refused_series", "", by(Scene::Outputs, AtLeast(1))),
    ("weir_output_disk_damaged_bytes_total", "", by(Scene::Lives, AtLeast(1))),
    ("weir_output_disk_failures_total", "", by(Scene::Outputs, Exactly(1))),
    (ITEMS, "inbox_full", By::Unprovoked("an output would have to encode nothing for a second while the status is still answered")),
    (ITEMS, "not_finite", by(Scene::Outputs, AtLeast(1))),
    (ITEMS, "negative_counter", by(Scene::Outputs, AtLeast(1))),
    (ITEMS, "too_large", by(Scene::Outputs, AtLeast(1))),
    (ITEMS, "rejected", by(Scene::Outputs, AtLeast(1))),
    (ITEMS, "queue_full", by(Scene::Memory, AtLeast(1))),
    (ITEMS, "too_old", by(Scene::Lives, AtLeast(1))),
    (ITEMS, "corrupt", by(Scene::Lives, AtLeast(1))),
    (ITEMS, "not_ready", NOT_READY),
    (ITEMS, "shutdown", by(Scene::Lives, AtLeast(1))),
    (ITEMS, "memory", by(Scene::Memory, AtLeast(1))),
    (ITEMS, "message queue_full", by(Scene::Memory, AtLeast(1))),
    (ITEMS, "message too_long", by(Scene::Outputs, Exactly(1))),
    (ITEMS, "message shutdown", by(Scene::Lives, AtLeast(1))),
    ("weir_scrape_renamed_metrics", "", by(Scene::Outputs, Exactly(2))),
    ("weir_scrape_merged_points_total", "", by(Scene::Outputs, AtLeast(1))),
    ("weir_saved_state_undelivered_samples_total", "", by(Scene::Lives, AtLeast(1))),
    ("weir_saved_state_refused_contexts_total", "", by(Scene::Lives, AtLeast(1))),
    ("weir_saved_state_set_aside_total", "", by(Scene::Lives, Exactly(1))),
    ("weir_saved_state_lost_samples_total", "", by(Scene::Lives, AtLeast(1))),
    ("weir_saved_state_damaged_files_total", "", by(Scene::Lives, AtLeast(1))),
    ("weir_saved_state_kills_total", "", by(Scene::Lives, Exactly(2))),
    ("weir_saved_state_outputs_reset_total", "", by(Scene::Lives, AtLeast(1))),
    ("weir_state_writes_failed_total", "", by(Scene::Lives, AtLeast(1))),
    ("weir_hand_overs_failed_total", "", by(Scene::Lives, Exactly(1))),
    ("weir_origin_source_failures_total", "", by(Scene::Origins, AtLeast(1))),
    ("weir_fleet_agents_missing", "", by(Scene::Merge, AtLeast(1))),
    ("weir_fleet_shared_ids", "", by(Scene::Merge, AtLeast(1))),
    ("weir_fleet_late_records_total", "", by(Scene::Merge, AtLeast(1))),
    (QUARANTINED, "unreadable", by(Scene::Merge, AtLeast(1))),
    (QUARANTINED, "unpublished", By::Unprovoked("agents publish every record")),
    (QUARANTINED, "partitions", by(Scene::Merge, AtLeast(1))),
    (QUARANTINED, "clock", by(Scene::Merge, AtLeast(1))),
    (QUARANTINED, "future", by(Scene::Merge, AtLeast(1))),
    (QUARANTINED, "too_old", by(Scene::Merge, AtLeast(1))),
    (QUARANTINED, "shared_id", by(Scene::Merge, AtLeast(1))),
    (QUARANTINED, "too_many_agents", By::Unprovoked("it takes 200,000 agents")),
    (QUARANTINED, "too_many_streams", By::Unprovoked("it takes 256 tenants")),
    ("weir_fleet_overflowed_states_total", "", by(Scene::SmallMerge, AtLeast(1))),
    ("weir_fleet_dropped_states_total", "", by(Scene::SmallMerge, AtLeast(1))),
    ("weir_fleet_too_large_series_total", "", By::Unprovoked("agents publish no series of that size")),
    ("weir_fleet_missing_states", "", by(Scene::Merge, AtLeast(1))),
    ("weir_fleet_lost_states_total", "", by(Scene::Merge, AtLeast(1))),
    ("weir_fleet_log_errors_total", "", by(Scene::BehindMerge, AtLeast(1))),
    ("weir_fleet_log_damaged_bytes_total", "", by(Scene::Merge, AtLeast(1))),
    ("weir_fleet_log_lost_frames_total", "", by(Scene::Merge, AtLeast(1))),
    ("weir_fleet_unreadable_snapshots", "", by(Scene::OldMerge, AtLeast(1))),
    ("weir_fleet_sent_deleted_results_total", "", by(Scene::BehindMerge, AtLeast(1))),
    ("weir_fleet_not_corrected_series_total", "", by(Scene::Merge, AtLeast(1))),
];

/// An entry of `/api/v1/losses`.
#[derive(Clone, Debug, Deserialize)]
struct Listed {
    series: String,
    labels: Vec<(String, String)>,
    place: String,
    meaning: String,
    count: f64,
    unit: String,
    remedy: String,
}

impl Listed {
    fn is(&self, other: &Listed) -> bool {
        self.series == other.series && self.labels == other.labels
    }

    /// Place and meaning, as lists begin with them.
    fn what(&self) -> String {
        let meaning = self.meaning.trim_end_matches('.');
        match &*self.place {
            "" => meaning.to_owned(),
            place => format!("{place}: {meaning}"),
        }
    }
}

fn listed(admin: &str) -> Vec<Listed> {
    serde_json::from_value(json(admin, "/api/v1/losses")).unwrap()
}

/// A process whose status is that of one instant for everybody who asks at this address: numbers rise meanwhile, and a remedy names the
/// last error, or a sender of the last minute. What else is asked for, the process answers.
struct Still {
    admin: String,
    losses: Vec<Listed>,
}

impl Still {
    fn of(admin: &str) -> Still {
        let (code, with_losses) = get(admin, "/api/v1/status?losses=1");
        assert_eq!(code, 200, "{with_losses}");
        let mut status: Value = serde_json::from_str(&with_losses).unwrap();
        let losses = status.as_object_mut().unwrap().remove("losses").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let known = Arc::new((admin.to_owned(), status.to_string(), with_losses));
        spawn(move || {
            for client in listener.incoming().flatten() {
                let known = known.clone();
                // A page that is closed ends its connections.
                spawn(move || answer_one(client, &known.0, [&known.1, &known.2]));
            }
        });
        Still {
            admin: own,
            losses: serde_json::from_value(losses).unwrap(),
        }
    }
}

/// One request of a connection: the next may be for the status, which is given without losses and with them.
fn answer_one(mut client: TcpStream, admin: &str, status: [&str; 2]) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut request, mut head) = (String::new(), String::new());
    if reader.read_line(&mut request)? == 0 {
        return Ok(());
    }
    while reader.read_line(&mut head)? > 2 {}
    if request.split(['?', ' ']).nth(1) == Some("/api/v1/status") {
        let status = status[usize::from(request.contains("losses=1"))];
        let length = status.len();
        let kind = "application/json";
        return write!(
            client,
            "HTTP/1.0 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{status}"
        );
    }
    let mut process = TcpStream::connect(admin)?;
    let lines = head.lines().filter(|line| !line.starts_with("Connection:"));
    let head: Vec<&str> = lines.collect();
    write!(
        process,
        "{}\r\n{}\r\n\r\n",
        request.trim().replace("HTTP/1.1", "HTTP/1.0"),
        head.join("\r\n").trim()
    )?;
    io::copy(&mut process, &mut client).map(drop)
}

/// The texts of the losses on the page of each agent. `None`: the page was not built.
fn pages(admins: &[&str]) -> Vec<Option<Vec<String>>> {
    if get(admins[0], "/page.js").0 != 200 {
        println!("skipped: the page of losses: it is not built (make page)");
        return vec![None; admins.len()];
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/test/losses.mjs");
    let output = Command::new("node").arg(script).args(admins).output();
    let output = output.expect("node is needed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let texts: Vec<Vec<String>> = serde_json::from_slice(&output.stdout).unwrap();
    texts.into_iter().map(Some).collect()
}

/// Without what depends on the width of a screen, and on how a surface marks commands and groups digits.
fn squeezed(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_whitespace() && *c != '`' && *c != ',')
        .collect()
}

/// The screen of `weir top`, which is high enough for all.
fn top(admin: &str) -> String {
    let mut terminal = Terminal::weir(&["top", "--admin", admin], &[], 400, 240);
    let screen = squeezed(&terminal.until_shown("Memory: "));
    terminal.keys("q");
    assert!(terminal.end().success());
    screen
}

/// The texts of all surfaces of a process at one instant, and its list later: what is counted while it runs rises.
struct Surfaces {
    losses: Vec<Listed>,
    later: Vec<Listed>,
    /// Squeezed.
    status: String,
    doctor: Option<String>,
    top: Option<String>,
    page: Option<Vec<String>>,
    metrics: String,
}

impl Surfaces {
    fn look(admin: &str, still: &Still, is_merge: bool, page: Option<Vec<String>>) -> Surfaces {
        let ask = |arguments: &[&str]| {
            let ran = run(&[arguments, &["--admin", &still.admin]].concat(), &[]);
            squeezed(&(ran.stdout + &ran.stderr))
        };
        let status = match is_merge {
            true => ask(&["merge", "status"]),
            false => ask(&["status"]),
        };
        // Only agents have them.
        let (doctor, top) = match is_merge {
            true => (None, None),
            false => (Some(ask(&["doctor", "--no-send"])), Some(top(&still.admin))),
        };
        Surfaces {
            status,
            doctor,
            top,
            page: page.map(|page| page.iter().map(|text| squeezed(text)).collect()),
            metrics: get(admin, "/metrics").1,
            later: listed(admin),
            losses: still.losses.clone(),
        }
    }

    /// The faults of the surfaces about a loss.
    fn faults(&self, loss: &Listed) -> Vec<String> {
        let later = self.later.iter().find(|later| later.is(loss)).unwrap_or(loss);
        let most = loss.count.max(later.count);
        let mut faults = Vec::new();
        let is_of_place = ["listener", "output"]
            .iter()
            .any(|key| loss.labels.iter().any(|(of, _)| of == key));
        if is_of_place && loss.place.is_empty() {
            faults.push("it has no place".to_owned());
        }
        let [what, meaning, remedy] = [&loss.what(), &loss.meaning, &loss.remedy].map(|text| squeezed(text));
        let place = if loss.place.is_empty() {
            "agent"
        } else {
            &*loss.place
        };
        let at = if loss.place.is_empty() {
            String::new()
        } else {
            format!("at{}", squeezed(&loss.place))
        };
        let mut check = |surface: &str, number: Option<u64>, least: f64, most: f64| match number {
            Some(number) if (least..=most).contains(&(number as f64)) => {}
            found => faults.push(format!("{surface}: {found:?}, not {least} to {most}, {loss:?}")),
        };
        let in_list = |text: &str| {
            let tail = |rest: &str| {
                let rest = match rest.strip_prefix("rising:+") {
                    Some(rest) => rest.trim_start_matches(|c: char| c.is_ascii_digit()),
                    None => rest,
                };
                rest.starts_with(&*remedy)
            };
            number_after(text, &format!("{what}:"), &loss.unit, tail)
        };
        check("status", in_list(&self.status), loss.count, loss.count);
        if let Some(top) = &self.top {
            check("top", in_list(top), loss.count, loss.count);
        }
        let tail = |rest: &str| {
            let rest = rest.strip_prefix("sincethestart").unwrap_or(rest);
            rest.starts_with(&format!(":{meaning}->{remedy}"))
        };
        if let Some(doctor) = &self.doctor {
            let number = number_after(doctor, &format!("losses{}:", squeezed(place)), &loss.unit, tail);
            check("doctor", number, loss.count, loss.count);
        }
        let labels: Vec<(&str, &str)> = loss
            .labels
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .collect();
        let in_metrics = self.in_metrics(&loss.series, &labels).map(|value| value as u64);
        check("metrics", in_metrics, loss.count.min(later.count), most);
        if let Some(page) = &self.page {
            let tail = |rest: &str| rest == format!("{at}:{meaning}{remedy}");
            let of_item = |item: &String| number_after(item, "", &loss.unit, tail);
            // The part of the last minutes, by books that continue.
            check("page", page.iter().find_map(of_item), 1.0, most);
        }
        faults
    }

    /// The sum of the series with these labels in the exposition. A label without a name is any, and one without a value all.
    fn in_metrics(&self, series: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |line: &str, (key, value): (&str, &str)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            value.is_empty() || line.contains(&format!("{key}=\"{value}\""))
        };
        let lines = self.metrics.lines().filter(|line| {
            let rest = line.strip_prefix(series);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let found = lines.filter(|line| labels.iter().all(|label| has(line, *label)));
        let values: Vec<f64> = found
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }
}

/// The number behind a text, if its unit and an expected rest follow.
fn number_after(text: &str, lead: &str, unit: &str, is_rest: impl Fn(&str) -> bool) -> Option<u64> {
    text.match_indices(lead).find_map(|(at, _)| {
        let rest = &text[at + lead.len()..];
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let shown = counted(number, unit);
        let unit = squeezed(shown.strip_prefix(&grouped(number))?);
        let rest = rest[digits..].strip_prefix(&*unit)?;
        is_rest(rest).then_some(number)
    })
}

/// As [`KINDS`] names it. Relays have reasons of their own.
fn name(info: &'static CounterInfo) -> (&'static str, String) {
    let value = info.series.label.map_or("", |(_, value)| value);
    match RelayLoss::INFO.contains(info) {
        true => (info.series.name, format!("message {value}")),
        false => (info.series.name, value.to_owned()),
    }
}

/// The losses of a kind in an agent's list: one for each place.
fn of_kind<'l>(list: &'l [Listed], kind: (&str, &str)) -> Vec<&'l Listed> {
    let (series, label) = kind;
    let is_it = |loss: &&Listed| {
        let has = |word| loss.labels.iter().any(|(_, value)| value == word);
        loss.series == series && label.split_whitespace().all(has)
    };
    list.iter().filter(is_it).collect()
}

fn count(losses: &[&Listed]) -> u64 {
    losses.iter().map(|loss| loss.count as u64).sum()
}

/// Waits until every kind of the scene is in the agent's list, with its number.
fn wait_for_all(scene: Scene, admin: &str) {
    until(&format!("the losses of {scene:?}"), || {
        let list = listed(admin);
        let mut missing: Vec<String> = Vec::new();
        for (series, label, by) in KINDS {
            let By::Scene(of, number) = by else { continue };
            let found = count(&of_kind(&list, (series, label)));
            let (Exactly(least) | AtLeast(least)) = number;
            if *of == scene && found < *least {
                missing.push(format!("{series} {label}: {found}"));
            }
        }
        missing.is_empty().then_some(()).ok_or(missing.join(", "))
    });
}

/// The faults of the surfaces of a scene.
fn faults(scene: Scene, surfaces: &Surfaces) -> Vec<String> {
    let mut faults = Vec::new();
    for (series, label, by) in KINDS {
        match by {
            By::Scene(of, number) if *of == scene => {
                let losses = of_kind(&surfaces.losses, (series, label));
                let found = count(&losses);
                if let Exactly(expected) = number
                    && found != *expected
                {
                    faults.push(format!("{series} {label}: {found}, not {expected}"));
                }
                let of_each = losses.iter().flat_map(|loss| surfaces.faults(loss));
                faults.extend(of_each.map(|fault| format!("{series} {label}: {fault}")));
            }
            By::Told(of) if *of == scene => {
                let counted = surfaces.in_metrics(series, &[("", label)]);
                let listed = of_kind(&surfaces.losses, (series, label));
                if counted.is_none_or(|count| count < 1.0) || !listed.is_empty() {
                    faults.push(format!("{series} {label}: {counted:?}, listed: {listed:?}"));
                }
            }
            _ => {}
        }
    }
    faults
        .into_iter()
        .map(|fault| format!("{scene:?}: {fault}"))
        .collect()
}

#[test]
fn every_kind_of_loss_is_provoked_and_named_by_every_surface() {
    let declared: BTreeSet<_> = kinds().into_iter().map(name).collect();
    let table: BTreeSet<_> = KINDS.iter().map(|kind| (kind.0, kind.1.to_owned())).collect();
    assert_eq!(table, declared, "the table has every kind of loss");
    for info in kinds() {
        let (_, _, by) = KINDS
            .iter()
            .find(|kind| (kind.0, kind.1.to_owned()) == name(info))
            .unwrap();
        assert!(!matches!(by, By::Told(_)) || repeats_others(info), "{info:?}");
        if let By::Unprovoked(why) = by {
            println!("not provoked: {:?}: {why}", name(info));
        }
    }
    let provoked: Vec<(Scene, Provoked)> = scope(|scope| {
        let running = Scene::ALL.map(|scene| {
            let provoke = move || {
                let provoked = scene.provoke()?;
                wait_for_all(scene, &provoked.admin);
                Some((scene, provoked))
            };
            scope.spawn(provoke)
        });
        running
            .into_iter()
            .filter_map(|scene| scene.join().unwrap())
            .collect()
    });
    let still: Vec<Still> = provoked.iter().map(|(_, of)| Still::of(&of.admin)).collect();
    let admins: Vec<&str> = still.iter().map(|of| &*of.admin).collect();
    let pages = pages(&admins);
    let mut all = Vec::new();
    for (((scene, of), still), page) in provoked.iter().zip(&still).zip(pages) {
        let surfaces = Surfaces::look(&of.admin, still, scene.is_merge(), page);
        all.extend(faults(*scene, &surfaces));
    }
    assert!(all.is_empty(), "{} faults:\n{}", all.len(), all.join("\n"));
}
