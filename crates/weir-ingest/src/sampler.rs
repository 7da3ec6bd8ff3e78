//! Selects messages for estimating which metrics and origins send most. A few hundred per second are enough, and cost the same at any rate.
//! Below that rate all messages are selected.

/// Messages looked at in a second, about.
const PER_SECOND: u64 = 256;

/// One message out of each stretch of `every`, at a random place in it, stands for all of the stretch.
pub struct Sampler {
    every: u64,
    /// Messages to pass by before the next one that counts.
    skip: u64,
    /// Messages of the stretch behind that one.
    rest: u64,
    seen_this_second: u64,
    taken_this_second: u64,
    random: u64,
}

impl Sampler {
    pub fn new() -> Self {
        Sampler {
            every: 1,
            skip: 0,
            rest: 0,
            seen_this_second: 0,
            taken_this_second: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Whether one of the next `messages` counts; if not, they are passed by.
    #[inline]
    pub fn wants(&mut self, messages: u64) -> bool {
        if self.skip >= messages {
            self.skip -= messages;
            self.seen_this_second += messages;
            return false;
        }
        true
    }

    /// Takes the next message: for how many it stands, when it is one that counts.
    pub fn next(&mut self) -> Option<u64> {
        self.seen_this_second += 1;
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let weight = self.every;
        self.taken_this_second += 1;
        if self.taken_this_second.is_multiple_of(2 * PER_SECOND) {
            // More come than in the last second.
            self.every *= 2;
        }
        let place = self.random_below(self.every);
        self.skip = self.rest + place;
        self.rest = self.every - 1 - place;
        Some(weight)
    }

    /// A second has passed.
    pub fn tick(&mut self) {
        self.every = (self.seen_this_second / PER_SECOND).max(1);
        self.seen_this_second = 0;
        self.taken_this_second = 0;
        // A stretch that was begun at a higher rate must not last for long at a lower one.
        self.skip = self.skip.min(self.every - 1);
        self.rest = self.rest.min(self.every - 1);
    }

    fn random_below(&mut self, end: u64) -> u64 {
        // Xorshift: quality enough for not walking in step with a sender.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of `rate` messages in packets of `size`: sum of weights and number taken.
    fn run(seconds: u64, rate: u64, size: u64) -> (u64, u64) {
        let mut sampler = Sampler::new();
        let (mut sum, mut taken) = (0, 0);
        for _ in 0..seconds {
            for _ in 0..rate / size {
                if !sampler.wants(size) {
                    continue;
                }
                for weight in (0..size).filter_map(|_| sampler.next()).collect::<Vec<_>>() {
                    sum += weight;
                    taken += 1;
                }
            }
            sampler.tick();
        }
        (sum, taken)
    }

    #[test]
    fn few_messages_are_all_sampled() {
        assert_eq!(run(10, 100, 1), (1000, 1000));
        assert_eq!(run(10, 250, 50), (2500, 2500));
    }

    #[test]
    fn of_many_messages_a_weighted_few_are_sampled() {
        for size in [1, 7, 50] {
            let rate = 100_000 / size * size;
            let (sum, taken) = run(20, rate, size);
            let share = sum as f64 / (20 * rate) as f64;
            assert!((0.95..1.05).contains(&share), "packets of {size}: {share}");
            assert!(taken < 20 * 2 * PER_SECOND + 6000, "packets of {size}: {taken}");
        }
    }
}
