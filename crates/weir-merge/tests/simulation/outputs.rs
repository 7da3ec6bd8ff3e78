//! Outputs of the simulation: one of each kind of receiver, and all that each has accepted.

use std::collections::BTreeMap;

use weir_merge::{BucketResult, CorrectionPolicy, Delivery, Follower, Occasion, Series};
use weir_state::{ExactSum, Record, State};

use super::world::{Group, OTHER, Shared, SimulatedLog, World};

/// The ways in which receivers treat points; a merge has some of them.
pub const POLICIES: [CorrectionPolicy; 3] = [
    // Differences: a file.
    CorrectionPolicy {
        adds_up: false,
        counters: true,
        distributions: true,
        histograms: false,
    },
    // Replaces points of equal times: Graphite.
    CorrectionPolicy {
        adds_up: false,
        counters: false,
        distributions: false,
        histograms: false,
    },
    // Sums: a scrape.
    CorrectionPolicy {
        adds_up: true,
        counters: false,
        distributions: false,
        histograms: false,
    },
];

/// Milliseconds that the output of sums waits for a partition.
const PATIENCE: i64 = 80_000;

/// Bytes for results that wait: for all, or for less than one.
const ROOM: usize = 1 << 20;
const NO_ROOM: usize = 100;

/// The receiver of one output.
#[derive(Debug)]
pub struct Receiver {
    /// The owners that it receives from.
    group: Group,
    /// It accepts nothing.
    pub is_dead: bool,
    /// By partition: how often each result was accepted.
    pub accepted: BTreeMap<u32, Vec<u32>>,
    /// By partition: owners that were killed, or lost it, with something under way.
    pub disturbances: BTreeMap<u32, u32>,
}

/// One output of an owner.
pub struct Sending {
    group: Group,
    output: usize,
    pub follower: Follower<SimulatedLog>,
    under_way: Option<UnderWay>,
    sums: Option<Sums>,
}

/// Of an output of sums, while its partitions do not change.
struct Sums {
    /// See [`weir_merge::FollowerCounts::moved`].
    moved: u64,
    /// By partition: what its counters show.
    shown: BTreeMap<u32, f64>,
}

struct UnderWay {
    delivery: Delivery,
    ranges: Vec<Range>,
    is_accepted: bool,
}

/// Results of a partition: the first one, and the number behind the last one.
struct Range {
    partition: u32,
    generation: u64,
    from: u64,
    behind: u64,
}

impl Sending {
    pub fn new(world: &Shared, owner: usize, output: usize) -> Self {
        let log = SimulatedLog {
            world: world.clone(),
            owner,
            output: Some(output),
        };
        let room = if world.borrow().has_room { ROOM } else { NO_ROOM };
        Sending {
            group: if owner == OTHER {
                Group::Other
            } else {
                Group::First
            },
            output,
            follower: Follower::new(log, POLICIES[output], PATIENCE, room),
            under_way: None,
            sums: None,
        }
    }

    /// An output of sums begins again with those of the log when its partitions have changed. `false`: they cannot be read.
    fn begin_again(&mut self) -> bool {
        let moved = self.follower.counts().moved;
        if self.sums.as_ref().is_some_and(|sums| sums.moved == moved) {
            return true;
        }
        self.sums = None;
        let Ok(stored) = self.follower.sums() else {
            return false;
        };
        self.follower.continue_behind(&stored);
        let shown = stored.into_iter().map(|of| {
            let bytes = of.bytes.try_into().expect("eight bytes");
            (of.partition, f64::from_le_bytes(bytes))
        });
        self.sums = Some(Sums {
            moved,
            shown: shown.collect(),
        });
        true
    }

    /// One step: takes what comes next, gives it to the receiver, or stores the position behind it. `false`: there is nothing to do.
    pub fn step(&mut self, world: &Shared, receiver: &mut Receiver, policy: &CorrectionPolicy) -> bool {
        let now = world.borrow().now;
        match &mut self.under_way {
            None => {
                drop(self.follower.listen());
                if policy.adds_up && !self.begin_again() {
                    return false;
                }
                let positions = self.follower.positions();
                let Ok(Some(delivery)) = self.follower.next(now) else {
                    return false;
                };
                let ranges = delivery.positions().map(|(partition, generation, behind)| Range {
                    partition,
                    generation,
                    from: positions[&partition],
                    behind,
                });
                self.under_way = Some(UnderWay {
                    ranges: ranges.collect(),
                    delivery,
                    is_accepted: false,
                });
            }
            Some(under_way) if !under_way.is_accepted => {
                // While it waits, its partitions may change. Then an output of sums begins again, with what was not delivered.
                drop(self.follower.listen());
                let moved = self.follower.counts().moved;
                if self.sums.as_ref().is_some_and(|sums| sums.moved < moved) {
                    self.under_way = None;
                    return true;
                }
                if receiver.is_dead {
                    return false;
                }
                let world = world.borrow();
                for range in &under_way.ranges {
                    // An owner that does not know of its successor.
                    let sent = &world.of(self.group)[range.partition as usize].sent[&self.output];
                    if sent.generation != range.generation {
                        *receiver.disturbances.entry(range.partition).or_default() += 1;
                    }
                }
                let UnderWay { delivery, ranges, .. } = under_way;
                let shown = self.sums.as_mut().map(|sums| &mut sums.shown);
                receiver.accept(&world, delivery, ranges, policy, shown);
                under_way.is_accepted = true;
            }
            Some(under_way) => {
                let delivery = &under_way.delivery;
                let stored = match &self.sums {
                    None => self.follower.delivered(delivery),
                    Some(sums) => {
                        let shown = sums.shown.iter();
                        let shown = shown.map(|(partition, sum)| (*partition, sum.to_le_bytes().to_vec()));
                        self.follower.delivered_sums(delivery, shown.collect())
                    }
                };
                if stored.is_err() {
                    return false;
                }
                self.under_way = None;
            }
        }
        true
    }

    /// The partitions of what it has not finished.
    pub fn under_way(&self) -> Vec<u32> {
        let under_way = self.under_way.iter();
        let ranges = under_way.flat_map(|under_way| &under_way.ranges);
        ranges.map(|range| range.partition).collect()
    }
}

impl Receiver {
    pub fn new(group: Group) -> Self {
        Receiver {
            group,
            is_dead: false,
            accepted: BTreeMap::new(),
            disturbances: BTreeMap::new(),
        }
    }

    /// It accepts exactly what the results say.
    fn accept(
        &mut self,
        world: &World,
        delivery: &mut Delivery,
        ranges: &[Range],
        policy: &CorrectionPolicy,
        shown: Option<&mut BTreeMap<u32, f64>>,
    ) {
        let mut expected = Vec::new();
        for range in ranges {
            let results = &world.of(self.group)[range.partition as usize].decoded;
            let accepted = self.accepted.entry(range.partition).or_default();
            accepted.resize(accepted.len().max(range.behind as usize), 0);
            for at in range.from as usize..range.behind as usize {
                accepted[at] += 1;
                expected.push(&results[at]);
            }
        }
        let flushes = std::mem::take(&mut delivery.flushes);
        let partitions: Vec<u32> = flushes.iter().map(|flush| flush.partition).collect();
        let flushes: Vec<(i64, Vec<Series>)> = flushes
            .into_iter()
            .map(|flush| (flush.start, flush.into_series().collect()))
            .collect();
        if let Some(shown) = shown {
            for (partition, (_, series)) in partitions.iter().zip(&flushes) {
                *shown.entry(*partition).or_default() += counted(series).to_f64();
            }
            for range in ranges {
                let results = &world.of(self.group)[range.partition as usize].decoded;
                let mut all = ExactSum::default();
                let shown = shown[&range.partition];
                let before = &results[..range.behind as usize];
                before.iter().for_each(|(_, record)| count(record, &mut all));
                assert_eq!(
                    shown,
                    all.to_f64(),
                    "the sums of partition {} up to result {}",
                    range.partition,
                    range.behind
                );
            }
        }
        let mut sum = ExactSum::default();
        for (result, record) in expected.iter().copied() {
            let is_late = matches!(result.occasion, Occasion::Late { .. });
            if !is_late || policy.adds_up || policy.counters {
                count(record, &mut sum);
            }
            if !is_late {
                is_in(result, record, &flushes, policy);
            }
        }
        let found = counted(flushes.iter().flat_map(|(_, series)| series));
        assert_eq!(
            found.to_f64(),
            sum.to_f64(),
            "the counts of {} results",
            expected.len()
        );
    }

    /// Every result has arrived, and no more often than its partition was disturbed.
    pub fn check(&self, world: &World, output: usize) {
        for (partition, of) in (0..).zip(world.of(self.group)) {
            let results = of.results.len();
            let accepted = self.accepted.get(&partition).map_or(&[][..], Vec::as_slice);
            assert_eq!(accepted.len(), results, "partition {partition}, output {output}");
            assert_eq!(of.sent[&output].position, results as u64);
            let disturbances = self.disturbances.get(&partition).copied().unwrap_or(0);
            for (at, times) in accepted.iter().enumerate() {
                assert!(
                    *times > 0,
                    "result {at} of partition {partition} never reached output {output}"
                );
                assert!(
                    *times <= 1 + disturbances,
                    "result {at} of partition {partition} reached output {output} {times} times"
                );
            }
            let repeated: u32 = accepted.iter().map(|times| times - 1).sum();
            let most = most_in_a_bucket(&of.decoded, &POLICIES[output]);
            assert!(
                u64::from(repeated) <= u64::from(disturbances) * most,
                "{repeated} results of partition {partition} came again to output {output} after {disturbances} disturbances"
            );
        }
    }
}

/// The most results that are given at once: one bucket, and the corrections before it. Sums take all that is late.
fn most_in_a_bucket(results: &[(BucketResult, Record)], policy: &CorrectionPolicy) -> u64 {
    if policy.adds_up {
        return results.len() as u64;
    }
    let (mut most, mut run, mut bucket) = (0, 0, None);
    for (result, _) in results {
        let its_bucket = (result.bucket_start, result.bucket_width);
        let is_late = matches!(result.occasion, Occasion::Late { .. });
        if bucket.is_some_and(|bucket| is_late || bucket != its_bucket) {
            (run, bucket) = (0, None);
        }
        if !is_late {
            bucket = Some(its_bucket);
        }
        run += 1;
        most = most.max(run);
    }
    most
}

fn count(record: &Record, sum: &mut ExactSum) {
    for series in record.series() {
        if let State::Counter(more) = series.state {
            sum.merge(more);
        }
    }
}

/// The sum of all counters.
fn counted<'a>(series: impl IntoIterator<Item = &'a Series>) -> ExactSum {
    let mut found = ExactSum::default();
    for (_, _, state) in series {
        if let State::Counter(more) = state {
            found.merge(more);
        }
    }
    found
}

/// Every series of a closed bucket reaches the receiver, with its tenant and, but for sums, at its time.
fn is_in(result: &BucketResult, record: &Record, flushes: &[(i64, Vec<Series>)], policy: &CorrectionPolicy) {
    let tenant = (!result.tenant.is_empty()).then(|| format!("tenant:{}", result.tenant));
    for wanted in record.series() {
        let is_found = flushes.iter().any(|(start, series)| {
            let is_at_its_time = policy.adds_up || *start == result.bucket_start;
            is_at_its_time
                && series.iter().any(|(found, ..)| {
                    let of = found.tags.iter().find(|tag| tag.starts_with("tenant:"));
                    (found.kind, &*found.name) == (wanted.kind, wanted.name)
                        && of.map(AsRef::as_ref) == tenant.as_deref()
                })
        });
        assert!(
            is_found,
            "{:?} {} of bucket {} of tenant {:?} is absent",
            wanted.kind, wanted.name, result.bucket_start, result.tenant
        );
    }
}

/// The receivers' books must know which of them are disturbed.
pub fn disturb(receivers: &mut [Receiver], output: usize, partitions: &[u32]) {
    for partition in partitions {
        *receivers[output].disturbances.entry(*partition).or_default() += 1;
    }
}
