//! Policies of evicting aliases when memory is short: hit rates on traces that are known to be bad for each.

use std::collections::{HashMap, VecDeque};

use super::Random;

/// Aliases that fit.
const CAPACITY: usize = 10_000;
const MESSAGES: usize = 2_000_000;
/// Messages between two sweeps of the whole cache: a flush interval at 50,000 messages a second.
const SWEEP_EVERY: usize = 500_000;

trait Policy {
    /// True for a hit.
    fn look_up(&mut self, key: u64) -> bool;
}

/// A trace: keys, and whether each belongs to the repeating part of the traffic.
type Trace = Vec<(u64, bool)>;

pub fn compare(seed: u64) {
    let mut random = Random(seed);
    let traces: [(&str, Trace); 5] = [
        (
            "10k contexts, uniform, all fit",
            uniform(&mut random, CAPACITY as u64),
        ),
        ("40k contexts, Zipf 1.0", zipf(&mut random, 40_000)),
        (
            "9k hot, 9 of 10 messages never seen before",
            flood(&mut random, 9_000),
        ),
        ("12k contexts in a loop", cycle(12_000)),
        (
            "8k hot, replaced by 8k others every half million",
            shifting(&mut random, 8_000),
        ),
    ];
    println!(
        "\n{CAPACITY} aliases fit, {MESSAGES} messages; hits among messages of contexts that come again, per cent"
    );
    println!(
        "| traffic | ours | ages by sweeps alone | CLOCK | CLOCK with doorkeeper | S3-FIFO | LRU |\n|---|---|---|---|---|---|---|"
    );
    for (what, trace) in &traces {
        let mut row = format!("| {what} |");
        let policies: [Box<dyn Policy>; 6] = [
            Box::new(Aged::new(true)),
            Box::new(Aged::new(false)),
            Box::new(Clock::new(false)),
            Box::new(Clock::new(true)),
            Box::new(S3Fifo::default()),
            Box::new(Lru::default()),
        ];
        for mut policy in policies {
            let (mut hits, mut hot) = (0u64, 0u64);
            for &(key, is_hot) in trace {
                let hit = policy.look_up(key);
                hot += u64::from(is_hot);
                hits += u64::from(is_hot && hit);
            }
            row += &format!(" {:.1} |", 100.0 * hits as f64 / hot as f64);
        }
        println!("{row}");
    }
}

fn uniform(random: &mut Random, contexts: u64) -> Trace {
    (0..MESSAGES).map(|_| (random.below(contexts), true)).collect()
}

fn zipf(random: &mut Random, contexts: u64) -> Trace {
    let mut sums: Vec<f64> = Vec::new();
    let mut sum = 0.0;
    for rank in 1..=contexts {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    (0..MESSAGES)
        .map(|_| {
            let at = random.word() as f64 / u64::MAX as f64 * sum;
            (sums.partition_point(|&to| to < at) as u64, true)
        })
        .collect()
}

fn flood(random: &mut Random, hot: u64) -> Trace {
    (0..MESSAGES as u64)
        .map(|at| {
            if random.below(10) == 0 {
                (random.below(hot), true)
            } else {
                (1 << 40 | at, false)
            }
        })
        .collect()
}

fn cycle(contexts: usize) -> Trace {
    (0..MESSAGES).map(|at| ((at % contexts) as u64, true)).collect()
}

fn shifting(random: &mut Random, hot: u64) -> Trace {
    (0..MESSAGES)
        .map(|at| ((at / 500_000) as u64 * hot + random.below(hot), true))
        .collect()
}

/// The policy of this crate: everything is admitted while there is room. Then a key is admitted on its second sight, and replaces one of 64
/// neighbours that had no hit since it was last passed over. Sweeps age all entries and drop those without a hit during three sweeps. The
/// variant without `clock` admits at first sight, and only sweeps age.
struct Aged {
    slots: Vec<Option<(u64, u8)>>,
    places: HashMap<u64, usize>,
    free: Vec<usize>,
    messages: usize,
    doorkeeper: Option<Doorkeeper>,
}

impl Aged {
    fn new(clock: bool) -> Self {
        Aged {
            slots: vec![None; CAPACITY],
            places: HashMap::new(),
            free: (0..CAPACITY).collect(),
            messages: 0,
            doorkeeper: clock.then(Doorkeeper::default),
        }
    }

    /// A place for a new key when all are taken.
    fn make_room(&mut self, key: u64) -> Option<usize> {
        if let Some(doorkeeper) = &mut self.doorkeeper
            && !doorkeeper.admits(key)
        {
            return None;
        }
        let start = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        for step in 0..64 {
            let at = (start + step) % CAPACITY;
            if let Some((_, age)) = &mut self.slots[at] {
                if *age > 0 {
                    return Some(at);
                }
                *age += u8::from(self.doorkeeper.is_some());
            }
        }
        None
    }
}

/// Admits a key on its second sight within 8192 others.
struct Doorkeeper(Vec<u16>);

impl Default for Doorkeeper {
    fn default() -> Self {
        Doorkeeper(vec![0; 8192])
    }
}

impl Doorkeeper {
    fn admits(&mut self, key: u64) -> bool {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let fingerprint = (hash >> 16) as u16 | 1;
        std::mem::replace(&mut self.0[(hash >> 48) as usize % 8192], fingerprint) == fingerprint
    }
}

impl Policy for Aged {
    fn look_up(&mut self, key: u64) -> bool {
        self.messages += 1;
        if self.messages.is_multiple_of(SWEEP_EVERY) {
            for (at, slot) in self.slots.iter_mut().enumerate() {
                match slot {
                    Some((key, 3)) => {
                        self.places.remove(key);
                        self.free.push(at);
                        *slot = None;
                    }
                    Some((_, age)) => *age += 1,
                    None => {}
                }
            }
        }
        if let Some(&at) = self.places.get(&key) {
            self.slots[at] = Some((key, 0));
            return true;
        }
        let at = self.free.pop().or_else(|| self.make_room(key));
        if let Some(at) = at {
            if let Some((old, _)) = self.slots[at] {
                self.places.remove(&old);
            }
            self.slots[at] = Some((key, 0));
            self.places.insert(key, at);
        }
        false
    }
}

/// One bit each, set by a hit. The hand clears bits until it finds a clear one.
struct Clock {
    slots: Vec<(u64, bool)>,
    places: HashMap<u64, usize>,
    hand: usize,
    doorkeeper: Option<Doorkeeper>,
}

impl Clock {
    fn new(doorkeeper: bool) -> Self {
        Clock {
            slots: Vec::new(),
            places: HashMap::new(),
            hand: 0,
            doorkeeper: doorkeeper.then(Doorkeeper::default),
        }
    }
}

impl Policy for Clock {
    fn look_up(&mut self, key: u64) -> bool {
        if let Some(&at) = self.places.get(&key) {
            self.slots[at].1 = true;
            return true;
        }
        if self.slots.len() < CAPACITY {
            self.places.insert(key, self.slots.len());
            self.slots.push((key, false));
            return false;
        }
        if let Some(doorkeeper) = &mut self.doorkeeper
            && !doorkeeper.admits(key)
        {
            return false;
        }
        while std::mem::take(&mut self.slots[self.hand].1) {
            self.hand = (self.hand + 1) % CAPACITY;
        }
        self.places.remove(&self.slots[self.hand].0);
        self.slots[self.hand] = (key, false);
        self.places.insert(key, self.hand);
        self.hand = (self.hand + 1) % CAPACITY;
        false
    }
}

/// Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction (SOSP 2023). A tenth is for keys on probation. Keys on
/// the list of recently evicted ones skip it.
#[derive(Default)]
struct S3Fifo {
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: VecDeque<u64>,
    /// Hits of a queued key, at most three. `None` for a ghost.
    known: HashMap<u64, Option<u8>>,
}

impl S3Fifo {
    fn make_room(&mut self) {
        while self.small.len() + self.main.len() >= CAPACITY {
            if self.small.len() >= CAPACITY / 10 {
                let key = self.small.pop_front().expect("it is not empty");
                if self.known[&key].is_some_and(|hits| hits > 1) {
                    self.known.insert(key, Some(0));
                    self.main.push_back(key);
                } else {
                    self.known.insert(key, None);
                    self.ghosts.push_back(key);
                    if self.ghosts.len() > CAPACITY * 9 / 10 {
                        let gone = self.ghosts.pop_front().expect("it is not empty");
                        if self.known.get(&gone) == Some(&None) {
                            self.known.remove(&gone);
                        }
                    }
                }
            } else {
                let key = self.main.pop_front().expect("nine tenths are here");
                match self.known[&key] {
                    Some(hits) if hits > 0 => {
                        self.known.insert(key, Some(hits - 1));
                        self.main.push_back(key);
                    }
                    _ => {
                        self.known.remove(&key);
                    }
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn look_up(&mut self, key: u64) -> bool {
        match self.known.get_mut(&key) {
            Some(Some(hits)) => {
                *hits = (*hits + 1).min(3);
                return true;
            }
            Some(None) => {
                self.make_room();
                self.main.push_back(key);
            }
            None => {
                self.make_room();
                self.small.push_back(key);
            }
        }
        self.known.insert(key, Some(0));
        false
    }
}

/// Evicts the least recently used. Each use is queued with its number; stale entries are skipped.
#[derive(Default)]
struct Lru {
    last: HashMap<u64, u64>,
    uses: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Policy for Lru {
    fn look_up(&mut self, key: u64) -> bool {
        self.clock += 1;
        let hit = self.last.insert(key, self.clock).is_some();
        self.uses.push_back((key, self.clock));
        while self.last.len() > CAPACITY {
            let (oldest, at) = self.uses.pop_front().expect("each key has a use");
            if self.last.get(&oldest) == Some(&at) {
                self.last.remove(&oldest);
            }
        }
        hit
    }
}
