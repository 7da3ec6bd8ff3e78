//! The order of runs. It follows from the seed alone, so the same command makes the same plan.

use crate::rng::Rng;

/// The arm that runs first in a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    BaselineFirst,
    ComparisonFirst,
}

impl Order {
    pub fn name(self) -> &'static str {
        match self {
            Self::BaselineFirst => "BC",
            Self::ComparisonFirst => "CB",
        }
    }
}

/// One pair of runs of one experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedPair {
    /// Index into the list of experiments.
    pub experiment: usize,
    /// Counts from 0 within the experiment.
    pub pair: usize,
    pub order: Order,
    /// Payload seed, the same for both arms so that its influence cancels inside the pair.
    pub payload_seed: u64,
    /// Bytes of padding in the environment of (baseline, comparison): shifts the stack, because a fixed layout can make a program look some
    /// percent faster in every run.
    pub padding: (usize, usize),
}

/// Rounds of pairs: every experiment once per round, in a new random order each time. An interruption after any round leaves the same
/// number of pairs everywhere.
///
/// The order inside a pair is drawn instead of alternated, because alternation turns steady drift into bias.
pub fn plan(seed: u64, experiments: usize, rounds: usize) -> Vec<Vec<PlannedPair>> {
    let mut order = Rng::stream(seed, "order");
    let mut shuffle = Rng::stream(seed, "shuffle");
    (0..rounds)
        .map(|pair| {
            let mut round: Vec<PlannedPair> = (0..experiments)
                .map(|experiment| {
                    // Drawn per experiment and pair, so that adding an experiment does not change the payloads of the others.
                    let mut own = Rng::stream(
                        seed ^ (experiment as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                            ^ ((pair as u64) << 32),
                        "payload",
                    );
                    PlannedPair {
                        experiment,
                        pair,
                        order: if order.coin() {
                            Order::BaselineFirst
                        } else {
                            Order::ComparisonFirst
                        },
                        payload_seed: own.next_u64(),
                        padding: (own.below(4096) as usize, own.below(4096) as usize),
                    }
                })
                .collect();
            shuffle.shuffle(&mut round);
            round
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_plan() {
        assert_eq!(plan(9, 4, 6), plan(9, 4, 6));
        assert_ne!(plan(9, 4, 6), plan(10, 4, 6));
    }

    #[test]
    fn more_rounds_extend_the_plan_without_changing_it() {
        // Adaptive runs that continue, and resumed runs, rely on this.
        assert_eq!(plan(9, 4, 6)[..], plan(9, 4, 15)[..6]);
    }

    #[test]
    fn every_round_holds_every_experiment_once_and_orders_are_mixed() {
        let rounds = plan(1, 5, 200);
        for (i, round) in rounds.iter().enumerate() {
            let mut seen: Vec<usize> = round.iter().map(|p| p.experiment).collect();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3, 4]);
            assert!(round.iter().all(|p| p.pair == i));
        }
        let first = rounds
            .iter()
            .flatten()
            .filter(|p| p.order == Order::BaselineFirst)
            .count();
        assert!((400..600).contains(&first), "{first} of 1000");
        let mut seeds: Vec<u64> = rounds.iter().flatten().map(|p| p.payload_seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 1000);
    }
}
