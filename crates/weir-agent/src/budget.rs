//! The memory budget: divides `memory` into shares. No other code computes a share.
//!
//! Everything that grows has its own share, so a flood of contexts takes no memory from queued payloads. Unconfigured parts have none.
//! Contexts and their state get all the rest.

use weir_ingest::CLIENT_BYTES;
use weir_output::settings::{OutputConfig, OutputSettings};

use weir_system::config::Config;

/// The shares, in the order of [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Contexts,
    Batches,
    Frames,
    TlsSessions,
    Senders,
    Queues,
    Cumulative,
    History,
    Taps,
    OpenBucket,
}

/// One line of the ledger.
struct LedgerLine {
    share: Share,
    name: &'static str,
    /// In 64ths of the total; contexts get the rest.
    sixty_fourths: u64,
    /// The parts of used memory that count against the share, by their names in the status.
    parts: &'static [&'static str],
    when_full: &'static str,
}

const WHOLE: u64 = 64;

/// Of the memory for requests with columns, the part for what is known about their clients; and the maximum of clients of a worker, which
/// each checkpoint that begins writes.
const CLIENTS_PART: u64 = 8;
const CLIENTS_MAX: usize = 8192;

/// Batches that have room in their share.
const BATCHES: u64 = 32;
const BATCH_BYTES_LEAST: usize = 64 << 10;

/// Batches of a worker that are on their way to the merge: one that is merged, and enough that another one is always there.
const IN_TRANSIT: usize = 4;

/// A new share is one more line here.
const TABLE: [LedgerLine; 10] = [
    LedgerLine {
        share: Share::Contexts,
        name: "contexts",
        sixty_fourths: 0,
        parts: &["contexts", "state", "summaries"],
        when_full: "histograms are folded, sets estimated and sketches coarsened early; samples of new contexts go into one series per name, new gauges and sets are dropped",
    },
    LedgerLine {
        share: Share::Batches,
        name: "batches",
        sixty_fourths: 4,
        parts: &["batches"],
        when_full: "workers hold their flush back; an output that encodes too slowly drops batches (inbox_full)",
    },
    LedgerLine {
        share: Share::Frames,
        name: "partial_frames",
        sixty_fourths: 4,
        parts: &["partial_frames", "columns", "columns_clients"],
        when_full: "the connection with the longest unfinished frame is closed; requests with columns are refused, and clients send them again; the clients that were silent longest are forgotten",
    },
    LedgerLine {
        share: Share::TlsSessions,
        name: "tls_sessions",
        sixty_fourths: 4,
        parts: &["tls_sessions"],
        when_full: "new encrypted connections are closed at once, or one of a peer that has more",
    },
    LedgerLine {
        share: Share::Senders,
        name: "senders",
        sixty_fourths: 2,
        parts: &["origins", "awaiting_origin", "rate_limits"],
        when_full: "messages get their sender's tags instead of those of their own origin",
    },
    LedgerLine {
        share: Share::Queues,
        name: "queues",
        sixty_fourths: 8,
        parts: &["queues"],
        when_full: "the oldest payloads go to the disk queue, or are dropped (queue_full)",
    },
    LedgerLine {
        share: Share::Cumulative,
        name: "cumulative",
        sixty_fourths: 16,
        parts: &["scrape", "cumulative"],
        when_full: "points of new series are dropped (memory), native histograms halve their resolution",
    },
    LedgerLine {
        share: Share::History,
        name: "history",
        sixty_fourths: 8,
        parts: &["history"],
        when_full: "the oldest minutes are dropped, and points of new series are not stored when names and tags take too much",
    },
    LedgerLine {
        share: Share::Taps,
        name: "taps",
        sixty_fourths: 1,
        parts: &["taps"],
        when_full: "packets are missing in a capture or a tail, and counted; ingest is not affected",
    },
    LedgerLine {
        share: Share::OpenBucket,
        name: "open_bucket",
        sixty_fourths: 1,
        parts: &["open_bucket"],
        when_full: "a checkpoint takes longer: its next part waits until the disk has accepted the previous ones",
    },
];

/// The first share's meaning in a merge.
const OPEN_BUCKETS: LedgerLine = LedgerLine {
    share: Share::Contexts,
    name: "open_buckets",
    sixty_fourths: 0,
    parts: &["open_buckets", "results"],
    when_full: "histograms and sets become summaries early; states of new series go into one series per name, new gauges and sets are dropped",
};

/// Contexts get at least a quarter, even with everything configured.
const _: () = {
    let (mut sum, mut at) = (0, 0);
    while at < TABLE.len() {
        assert!(TABLE[at].share as usize == at);
        sum += TABLE[at].sixty_fourths;
        at += 1;
    }
    assert!(sum <= WHOLE / 4 * 3);
};

/// The shares of one configuration, which sum to the total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    is_merge: bool,
    /// Of the share of frames, the part for requests with columns.
    columns: u64,
    bytes: u64,
    shares: [u64; TABLE.len()],
    workers: u64,
}

/// A share for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLine {
    pub share: Share,
    pub name: &'static str,
    pub bytes: u64,
    pub parts: &'static [&'static str],
    pub when_full: &'static str,
}

impl Budget {
    pub fn new(config: &Config) -> Budget {
        let listeners = &config.listeners;
        let has_streams = !config.addresses.tcp.is_empty() || !listeners.uds_stream.is_empty();
        let limits_rates = !config.addresses.rates.is_empty()
            || listeners.senders.rate_limit_per_address.is_some()
            || listeners.senders.rate_limit_per_origin.is_some();
        let tells_senders = config.origin.is_on() || limits_rates || listeners.allowed_origins().is_some();
        let takes_columns = Budget::takes_columns(config);
        let if_used = |is_used: bool| if is_used { u64::MAX } else { 0 };
        let is_merge = config.merge.is_some();
        let budget = Budget::of(
            config.resources.memory,
            config.resources.workers,
            |share| match share {
                Share::Frames => if_used(has_streams || takes_columns),
                Share::TlsSessions => if_used(listeners.tls().is_some()),
                Share::Senders => if_used(tells_senders),
                // A reload may add an output at any time, and contexts are not evicted for it.
                Share::Contexts | Share::Batches | Share::Queues | Share::Cumulative => u64::MAX,
                Share::History if is_merge => 0,
                Share::History => config.resources.history,
                Share::OpenBucket => if_used(!is_merge && config.running.state_path.is_some()),
                Share::Taps => {
                    if_used(!is_merge && !config.addresses.admin.is_empty() && config.running.admin_payloads)
                }
            },
        );
        let frames = budget.share(Share::Frames);
        let columns = match (takes_columns, has_streams) {
            (true, true) => frames / 2,
            (true, false) => frames,
            (false, _) => 0,
        };
        Budget {
            is_merge,
            columns,
            ..budget
        }
    }

    /// `most`: the maximum of each share.
    fn of(bytes: u64, workers: usize, most: impl Fn(Share) -> u64) -> Budget {
        let mut shares = TABLE.map(|line| (bytes / WHOLE * line.sixty_fourths).min(most(line.share)));
        shares[Share::Contexts as usize] = bytes - shares.iter().sum::<u64>();
        assert_eq!(shares.iter().sum::<u64>(), bytes, "the shares sum to the whole");
        Budget {
            is_merge: false,
            columns: 0,
            bytes,
            shares,
            workers: workers.max(1) as u64,
        }
    }

    /// The total.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn share(&self, share: Share) -> u64 {
        self.shares[share as usize]
    }

    /// Workers share nothing: each gets an equal part.
    pub fn of_worker(&self, share: Share) -> usize {
        let columns = if share == Share::Frames { self.columns } else { 0 };
        ((self.share(share) - columns) / self.workers) as usize
    }

    /// Whether there is a listener of columns.
    pub fn takes_columns(config: &Config) -> bool {
        !config.addresses.http.is_empty() || !config.listeners.http_uds.is_empty()
    }

    /// Memory of requests with columns.
    pub fn columns(&self) -> usize {
        (self.columns - self.columns / CLIENTS_PART) as usize
    }

    /// Clients that a worker can know by their numbers.
    pub fn clients(&self) -> usize {
        let bytes = self.columns / CLIENTS_PART / self.workers;
        (bytes as usize / CLIENT_BYTES).min(CLIENTS_MAX)
    }

    /// Size of a batch: several have room in each part of the share, so that handing over and encoding overlap.
    pub fn batch_bytes(&self) -> usize {
        let bytes = self.share(Share::Batches) / BATCHES;
        (bytes as usize).clamp(BATCH_BYTES_LEAST, weir_aggregate::BATCH_BYTES)
    }

    /// Bytes of one worker's batches between it and the merge: half of its part of their share, which several workers need for partitions that
    /// wait for each other. More than a few batches would only wait there instead of in the worker's state.
    pub fn batches_in_transit(&self) -> usize {
        let half = self.of_worker(Share::Batches) / 2;
        half.min(IN_TRANSIT * self.batch_bytes())
    }

    /// The part of the share of batches of each of these outputs, and of the history beside them. The other half is for those between workers and
    /// outputs.
    pub fn batches_of_output(&self, outputs: usize) -> u64 {
        self.of_one(Share::Batches, 2 * (outputs + 1))
    }

    /// A merge's open buckets.
    pub fn open_buckets(&self) -> usize {
        (self.share(Share::Contexts) / 4 * 3) as usize
    }

    /// The rest of their share is for results that wait for outputs: for each of these as much in the log's client as in front of it.
    pub fn results_of_output(&self, outputs: usize) -> usize {
        (self.share(Share::Contexts) / 8 / outputs.max(1) as u64) as usize
    }

    /// The initial part of one of `number` holders; see [`divide`].
    pub fn of_one(&self, share: Share, number: usize) -> u64 {
        self.share(share) / number.max(1) as u64
    }

    /// One output's part, of outputs that do not share.
    pub fn of_output(&self, outputs: &[OutputConfig]) -> Budget {
        let delivered = |output: &&OutputConfig| !matches!(output.settings, OutputSettings::Prometheus(_));
        let with_queues = outputs.iter().filter(delivered).count();
        let mut shares = self.shares;
        for (share, number) in [
            (Share::Queues, with_queues),
            (Share::Batches, with_queues),
            (Share::Cumulative, outputs.len()),
        ] {
            shares[share as usize] = self.of_one(share, number);
        }
        Budget {
            shares,
            ..self.clone()
        }
    }

    pub fn lines(&self) -> impl Iterator<Item = ShareLine> {
        let contexts = if self.is_merge { &OPEN_BUCKETS } else { &TABLE[0] };
        let lines = std::iter::once(contexts).chain(&TABLE[1..]);
        lines.zip(self.shares).map(|(line, bytes)| ShareLine {
            share: line.share,
            name: line.name,
            bytes,
            parts: line.parts,
            when_full: line.when_full,
        })
    }
}

/// Memory with which an output can begin to queue: a few large payloads.
const ROOM_TO_BEGIN: u64 = 2 << 20;

/// An output's demand on the share of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    pub held: u64,
    /// At least what it holds.
    pub wanted: u64,
}

/// The part of each output in the share of queues. Outputs that queue share it: each has what it wants, or an equal part where that is more than
/// there is. One that queues nothing has room to begin, unless that would cost another one data. The parts sum to the share.
pub fn lend(share: u64, needs: &[Need]) -> Vec<u64> {
    let equal = share / needs.len().max(1) as u64;
    let room_to_begin = equal.min(ROOM_TO_BEGIN.max(equal / 4));
    let with = |room: u64| {
        let wanted: Vec<u64> = needs.iter().map(|need| need.wanted.max(room)).collect();
        divide_by_need(share, &wanted)
    };
    let parts = with(room_to_begin);
    let costs_data = parts.iter().zip(needs).any(|(part, need)| *part < need.held);
    if costs_data { with(0) } else { parts }
}

/// Parts that sum to the share: as much as is wanted, or equal parts where that is more than there is; and equal parts of the rest.
fn divide_by_need(share: u64, wanted: &[u64]) -> Vec<u64> {
    let number = wanted.len();
    let mut order: Vec<usize> = (0..number).collect();
    order.sort_by_key(|at| wanted[*at]);
    let mut parts = vec![0; number];
    let mut left = share;
    for (before, at) in order.into_iter().enumerate() {
        parts[at] = wanted[at].min(left / (number - before) as u64);
        left -= parts[at];
    }
    for (before, part) in parts.iter_mut().enumerate() {
        let more = left / (number - before) as u64;
        *part += more;
        left -= more;
    }
    parts
}

/// The part of each holder of a share: equal parts, but no less than it uses. So a new holder costs no data, and the parts stay within the
/// share as long as the use does.
pub fn divide(share: u64, held: &[u64]) -> Vec<u64> {
    let mut limits = vec![None; held.len()];
    loop {
        let over: u64 = limits.iter().flatten().sum();
        let others = limits.iter().filter(|limit| limit.is_none()).count() as u64;
        let each = share.saturating_sub(over) / others.max(1);
        let mut has_more = false;
        for (limit, held) in limits.iter_mut().zip(held) {
            if limit.is_none() && *held > each {
                *limit = Some(*held);
                has_more = true;
            }
        }
        if !has_more {
            return limits.into_iter().map(|limit| limit.unwrap_or(each)).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn if_used(is_used: bool) -> u64 {
        if is_used { u64::MAX } else { 0 }
    }

    #[test]
    fn unused_shares_go_to_contexts() {
        let all = Budget::of(64 * MIB, 2, |_| u64::MAX);
        assert_eq!(all.share(Share::Contexts), 16 * MIB);
        assert_eq!(all.of_worker(Share::Frames), (2 * MIB) as usize);
        let few = Budget::of(64 * MIB, 1, |share| {
            if_used(matches!(share, Share::Queues | Share::Cumulative))
        });
        assert_eq!(few.share(Share::Contexts), 40 * MIB);
        assert_eq!(few.share(Share::TlsSessions), 0);
        assert_eq!(few.of_one(Share::Cumulative, 3), 16 * MIB / 3);
    }

    /// A tail without memory is refused.
    #[test]
    fn hidden_payloads_take_no_memory() {
        let taps = |text: &str| {
            let loaded = weir_system::config::load_content(text.as_bytes()).unwrap();
            Budget::new(&loaded.config).share(Share::Taps)
        };
        assert_eq!(taps("memory: 64MiB\n"), MIB);
        assert_eq!(taps("memory: 64MiB\nadmin_payloads: false\n"), 0);
    }

    #[test]
    fn memory_above_the_maximum_of_a_share_goes_to_contexts() {
        let capped = |bytes| Budget::of(bytes, 1, |share| if_used(share == Share::History).min(64 * MIB));
        assert_eq!(capped(64 * MIB).share(Share::History), 8 * MIB);
        assert_eq!(capped(1024 * MIB).share(Share::History), 64 * MIB);
        assert_eq!(capped(1024 * MIB).share(Share::Contexts), 960 * MIB);
    }

    fn needs<const N: usize>(of: [(u64, u64); N]) -> [Need; N] {
        of.map(|(held, wanted)| Need {
            held: held * MIB,
            wanted: wanted * MIB,
        })
    }

    fn lent<const N: usize>(share: u64, of: [(u64, u64); N]) -> Vec<u64> {
        let parts = lend(share * MIB, &needs(of));
        parts.into_iter().map(|bytes| bytes / MIB).collect()
    }

    #[test]
    fn a_dead_output_among_others_that_queue_nothing_gets_nearly_all_of_the_share() {
        assert_eq!(lent(256, [(208, 500), (0, 0), (0, 0), (0, 0)]), [208, 16, 16, 16]);
        assert_eq!(lent(8, [(6, 7), (0, 0)]), [6, 2]);
        assert_eq!(lent(8, [(8, 9)]), [8]);
        assert_eq!(lend(8, &[]), [0u64; 0]);
    }

    #[test]
    fn outputs_that_queue_have_equal_parts_if_they_want_more() {
        assert_eq!(lent(8, [(6, 7), (2, 5)]), [4, 4]);
        assert_eq!(lent(10, [(3, 9), (4, 9), (0, 0)]), [4, 4, 2]);
        assert_eq!(lent(8, [(2, 3), (1, 2)]), [4, 3], "and of what is left, rounded");
    }

    #[test]
    fn an_output_that_queues_nothing_costs_another_one_no_data() {
        assert_eq!(lent(8, [(7, 8), (0, 0)]), [8, 0]);
        assert_eq!(
            lent(8, [(7, 8), (0, 1)]),
            [7, 1],
            "once it has a payload it gets its part"
        );
    }

    proptest! {
        #[test]
        fn shares_sum_to_the_whole(
            bytes in 8 * MIB..1 << 40, workers in 1usize..5, used in any::<u16>(), most in any::<u64>(),
        ) {
            let budget = Budget::of(bytes, workers, |share| if_used(used & (1 << share as u16) != 0).min(most));
            prop_assert_eq!(budget.lines().map(|line| line.bytes).sum::<u64>(), bytes);
            prop_assert!(budget.share(Share::Contexts) >= bytes / 4);
        }

        #[test]
        fn parts_of_queues_sum_to_the_share_and_meet_needs_fairly(
            share in 0u64..1 << 34,
            of in prop::collection::vec(prop_oneof![Just((0, 0)), (0u64..1 << 33, 0u64..1 << 33)], 1..8),
        ) {
            let needs: Vec<Need> = of.iter().map(|(held, more)| Need { held: *held, wanted: held + more }).collect();
            let parts = lend(share, &needs);
            prop_assert_eq!(parts.iter().sum::<u64>(), share);
            let equal = share / needs.len() as u64;
            let wanted: u64 = needs.iter().map(|need| need.wanted).sum();
            let held: u64 = needs.iter().map(|need| need.held).sum();
            for (part, need) in parts.iter().zip(&needs) {
                prop_assert!(*part >= need.wanted.min(equal), "an equal part is everyone's");
                prop_assert!(wanted > share || *part >= need.held, "nobody loses data without need");
            }
            let has_room = needs.iter().all(|need| need.held <= equal);
            if held <= share && has_room {
                prop_assert!(parts.iter().all(|part| *part >= equal.min(ROOM_TO_BEGIN)), "each can begin");
            }
        }

        #[test]
        fn division_is_fair_and_reduces_no_claim(share in 0u64..10_000, held in prop::collection::vec(0u64..3_000, 1..8)) {
            let limits = divide(share, &held);
            let held_together: u64 = held.iter().sum();
            prop_assert!(limits.iter().zip(&held).all(|(limit, held)| limit >= held));
            prop_assert!(limits.iter().sum::<u64>() <= share.max(held_together));
            // Another output uses that much.
            let least = *limits.iter().min().unwrap();
            prop_assert!(limits.iter().zip(&held).all(|(limit, held)| *limit == least || limit == held));
        }
    }
}
