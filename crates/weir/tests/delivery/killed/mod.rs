//! The real agent is killed at random moments, again and again. What an output promises for that stands on its page; here each
//! is held to it, with real sockets and files.

mod datadog;
mod graphite;
mod lines;
mod relay;
mod scrape;
mod sockets;

use crate::support::receivers::Agent;

/// Decides when to kill.
struct Random(u64);

impl Random {
    /// The seed is printed, and `WEIR_TEST_SEED` repeats it.
    fn new() -> Self {
        let seed = std::env::var("WEIR_TEST_SEED")
            .map_or_else(|_| u64::from(std::process::id()), |seed| seed.parse().unwrap());
        println!("WEIR_TEST_SEED={seed}");
        Random(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    /// Lets the agent run for a moment, at most about a tenth of a second, and kills it at that instant.
    fn kill(&mut self, agent: Agent) {
        for i in 0..self.below(30_000_000) {
            std::hint::black_box(i);
        }
        drop(agent);
    }
}
