//! One schedule: a fleet and its events.

use std::collections::BTreeSet;

use weir_merge::{Owner, OwnerTurn, Settings};
use weir_state::Bounds;

use super::agents::{Agent, MAX_SKEW, Network, Truths};
use super::check;
use super::outputs::{POLICIES, Receiver, Sending, disturb};
use super::random::Random;
use super::world::{Faults, Group, OTHER, Shared, SimulatedLog, World};
use crate::support::START;

/// A fleet with its log and its owners.
pub struct Fleet {
    pub world: Shared,
    pub agents: Vec<Agent>,
    pub truths: Truths,
    /// The agents' actions do not depend on the owners'.
    pub random: Random,
    random_of_outputs: Random,
    pub owners: Vec<Place>,
    pub network: Network,
    /// By output.
    pub receivers: Vec<Receiver>,
    /// Another group of one owner, with receivers of its own.
    other: Option<(Place, Vec<Receiver>)>,
    /// Seconds that the log keeps messages. Zero: unlimited.
    pub retention: i64,
    /// Of owners, milliseconds.
    pub commit_interval: i64,
    /// The first and last second of the time without faults at the end.
    pub healed: (i64, i64),
}

/// A host of an owner.
pub struct Place {
    pub owner: Owner<SimulatedLog>,
    /// Its outputs.
    pub outputs: Vec<Sending>,
    /// It does nothing and keeps its memory.
    pub is_stopped: bool,
}

pub fn settings() -> Settings {
    Settings {
        max_skew: MAX_SKEW,
        bounds: Bounds::NONE,
        hash_seed: 1,
        ..Settings::default()
    }
}

fn receivers(group: Group) -> Vec<Receiver> {
    POLICIES.iter().map(|_| Receiver::new(group)).collect()
}

pub fn start_owner(world: &Shared, number: usize) -> Place {
    let log = SimulatedLog {
        world: world.clone(),
        owner: number,
        output: None,
    };
    let outputs = 0..POLICIES.len();
    Place {
        owner: Owner::new(log, settings()),
        outputs: outputs
            .map(|output| Sending::new(world, number, output))
            .collect(),
        is_stopped: false,
    }
}

impl Place {
    fn turns(&mut self, world: &Shared, receivers: &mut [Receiver], random: &mut Random) -> bool {
        let mut has_changed = false;
        let is_calm = world.borrow().faults == Faults::default();
        for _ in 0..3 {
            match self.owner.turn() {
                // At the same time nothing else comes.
                Ok(turn) if turn == OwnerTurn::default() && is_calm => break,
                Ok(turn) => has_changed |= turn != OwnerTurn::default(),
                Err(_) => {
                    has_changed = true;
                    break;
                }
            }
        }
        for (output, sending) in self.outputs.iter_mut().enumerate() {
            let steps = 1 + random.below(8);
            for _ in 0..steps {
                if !sending.step(world, &mut receivers[output], &POLICIES[output]) {
                    break;
                }
                has_changed = true;
            }
        }
        has_changed
    }
}

impl Fleet {
    pub fn new(seed: u64, agents: u8, partitions: u32, owners: usize) -> Self {
        let world = World::new(seed, partitions);
        let mut fleet = Fleet {
            agents: (0..agents).map(Agent::new).collect(),
            truths: Truths::new(),
            random: Random::new(seed),
            random_of_outputs: Random::new(seed ^ 1),
            owners: (0..owners).map(|number| start_owner(&world, number)).collect(),
            network: Network::default(),
            receivers: receivers(Group::First),
            other: None,
            retention: 0,
            commit_interval: 0,
            healed: (0, 0),
            world,
        };
        fleet.rebalance();
        fleet
    }

    /// Starts an owner of another group, which gets all partitions, or kills it and starts the next one. Nothing may have been appended
    /// before the first.
    fn start_other(&mut self) {
        let receivers = match self.other.take() {
            Some((killed, mut receivers)) => {
                for (output, sending) in killed.outputs.iter().enumerate() {
                    disturb(&mut receivers, output, &sending.under_way());
                }
                receivers
            }
            None => {
                let mut world = self.world.borrow_mut();
                world.others = world.partitions.iter().map(|_| Default::default()).collect();
                receivers(Group::Other)
            }
        };
        let mut place = start_owner(&self.world, OTHER);
        place.owner.set_commit_interval(self.commit_interval);
        self.other = Some((place, receivers));
        let mut world = self.world.borrow_mut();
        world.forget(OTHER);
        for partition in 0..world.others.len() as u32 {
            world.assign_all(partition, OTHER);
        }
    }

    /// Assigns every partition to an owner that is not stopped.
    pub fn rebalance(&mut self) {
        let running: Vec<usize> = (0..self.owners.len())
            .filter(|at| !self.owners[*at].is_stopped)
            .collect();
        let mut world = self.world.borrow_mut();
        if running.is_empty() {
            return;
        }
        for partition in 0..world.partitions.len() as u32 {
            let owner = running[world.random.below(running.len() as u64) as usize];
            if !world.keeps(partition, owner) {
                world.assign(partition, owner);
            }
        }
        drop(world);
        for output in 0..POLICIES.len() {
            self.rebalance_output(output, &running);
        }
    }

    /// Each output has members of its own.
    fn rebalance_output(&mut self, output: usize, running: &[usize]) {
        let mut world = self.world.borrow_mut();
        let mut moved = BTreeSet::new();
        for partition in 0..world.partitions.len() as u32 {
            let owner = running[world.random.below(running.len() as u64) as usize];
            if !world.keeps_of_output(output, partition, owner) {
                world.assign_to_output(output, partition, owner);
                moved.insert(partition);
            }
        }
        for place in &self.owners {
            let mut under_way = place.outputs[output].under_way();
            // An output of sums begins again with all of its partitions.
            if POLICIES[output].adds_up {
                moved.extend(&under_way);
            }
            under_way.retain(|partition| moved.contains(partition));
            disturb(&mut self.receivers, output, &under_way);
        }
    }

    /// Simulates one second.
    pub fn second(&mut self) {
        self.world.borrow_mut().now += 1000;
        for agent in &mut self.agents {
            let mut world = self.world.borrow_mut();
            let is_empty = self.random.one_in(5);
            agent.publish(&world, &mut self.truths, is_empty);
            agent.send(&mut world, &mut self.truths, self.network);
        }
        self.turns();
        if self.retention > 0 {
            self.world.borrow_mut().retain(self.retention);
        }
    }

    pub fn seconds(&mut self, seconds: i64) {
        (0..seconds).for_each(|_| self.second());
    }

    /// Each owner reads a few times. After an error of its log it tries again in the next turn. `false`: nothing has changed.
    pub fn turns(&mut self) -> bool {
        let mut has_changed = false;
        for place in self.owners.iter_mut().filter(|place| !place.is_stopped) {
            has_changed |= place.turns(&self.world, &mut self.receivers, &mut self.random_of_outputs);
        }
        if let Some((place, receivers)) = &mut self.other {
            has_changed |= place.turns(&self.world, receivers, &mut self.random_of_outputs);
        }
        has_changed
    }

    /// Kills an owner and starts another one. It gets its partitions with the next rebalance.
    pub fn kill_owner(&mut self, number: usize) {
        for (output, sending) in self.owners[number].outputs.iter().enumerate() {
            disturb(&mut self.receivers, output, &sending.under_way());
        }
        self.owners[number] = start_owner(&self.world, number);
        self.owners[number]
            .owner
            .set_commit_interval(self.commit_interval);
        self.world.borrow_mut().forget(number);
    }

    /// The receivers of an output accept nothing, or all again. Those of both groups are at the same place.
    fn kill_receiver(&mut self, output: usize, is_dead: bool) {
        self.receivers[output].is_dead = is_dead;
        if let Some((_, receivers)) = &mut self.other {
            receivers[output].is_dead = is_dead;
        }
    }

    /// Stops all faults and runs until everything sent is in results.
    pub fn heal(&mut self) {
        {
            let mut world = self.world.borrow_mut();
            world.faults = Faults::default();
            world.deaf.clear();
            world.step_clock(0);
            self.healed.0 = world.now / 1000;
        }
        self.network = Network::default();
        for agent in &mut self.agents {
            agent.start();
            agent.clock = 0;
            agent.is_connected = true;
        }
        self.owners.iter_mut().for_each(|place| place.is_stopped = false);
        (0..POLICIES.len()).for_each(|output| self.kill_receiver(output, false));
        self.rebalance();
        self.seconds(100);
        self.healed.1 = self.world.borrow().now / 1000;
        // From here on no agent sends, and buckets end with their grace period.
        self.agents.iter_mut().for_each(|agent| agent.is_running = false);
        self.retention = 0;
        self.wait(100);
        // Buckets of agents whose clock was ahead end in the future.
        for _ in 0..MAX_SKEW / 10 {
            if self.has_open_buckets() {
                self.wait(10);
            }
        }
        self.finish();
        // Late series that wait for another bucket in vain are given after a while.
        self.wait(100);
        self.finish();
        // An output of sums waits in vain for each partition that has nothing more.
        let partitions = self.world.borrow().partitions.len();
        for _ in 1..partitions {
            if !self.has_delivered() {
                self.wait(100);
                self.finish();
            }
        }
    }

    /// Nothing is sent any more: what happens now depends on the time that has passed, and little on the moment at which an owner looks.
    fn wait(&mut self, seconds: i64) {
        for _ in 0..seconds / 5 {
            self.world.borrow_mut().now += 5000;
            self.turns();
        }
    }

    /// Whether all outputs have all results.
    fn has_delivered(&self) -> bool {
        let world = self.world.borrow();
        let mut partitions = world.partitions.iter().chain(&world.others);
        partitions.all(|of| {
            let results = of.results.len() as u64;
            of.sent.values().all(|sent| sent.position == results)
        })
    }

    /// Turns until one changes nothing: without faults and without time passing, no later one would.
    fn finish(&mut self) {
        for _ in 0..200 {
            if !self.turns() {
                return;
            }
        }
    }

    /// A bucket may be open without a state.
    fn has_open_buckets(&self) -> bool {
        let merges = self.places().flat_map(|(_, place)| place.owner.merges());
        let mut streams = merges.flat_map(|(_, merge)| merge.streams());
        streams.any(|stream| stream.open_buckets > 0)
    }

    fn places(&self) -> impl Iterator<Item = (Group, &Place)> {
        let owners = self.owners.iter().map(|place| (Group::First, place));
        owners.chain(self.other.iter().map(|(place, _)| (Group::Other, place)))
    }

    pub fn check(&self) {
        let world = self.world.borrow();
        let mut checked = 0;
        for (group, place) in self.places() {
            for (partition, merge) in place.owner.merges() {
                check::partition(&world, group, &self.truths, partition, merge);
                check::on_time(&world, group, &self.truths, partition, self.healed);
                checked += 1;
            }
        }
        let partitions = world.partitions.len() + world.others.len();
        assert!(checked >= partitions, "a partition has no owner");
        let others = self
            .other
            .iter()
            .flat_map(|(_, receivers)| receivers.iter().enumerate());
        for (output, receiver) in self.receivers.iter().enumerate().chain(others) {
            receiver.check(&world, output);
        }
    }
}

pub fn run(seed: u64) {
    let mut random = Random::new(!seed);
    let partitions = 1 + random.below(3) as u32;
    let mut fleet = Fleet::new(
        seed,
        1 + random.below(4) as u8,
        partitions,
        1 + random.below(3) as usize,
    );
    fleet.world.borrow_mut().faults = Faults {
        fetch_fails: random.below(3) * 20,
        fetch_disorder: random.below(2) * 3,
        commit_fails: random.below(2) * 5,
        commit_unheard: random.below(2) * 5,
    };
    fleet.network = Network {
        ack_lost: random.below(2) * 8,
        overtaken: random.below(2) * 8,
        damaged: random.below(2) * 30,
    };
    for agent in fleet.agents.iter_mut().filter(|agent| agent.number % 3 == 1) {
        agent.tenant = "bank";
    }
    fleet.commit_interval = random.below(3) as i64 * 1000;
    for number in 0..fleet.owners.len() {
        fleet.owners[number]
            .owner
            .set_commit_interval(fleet.commit_interval);
    }
    if random.one_in(4) {
        fleet.retention = 20 + random.below(60) as i64;
    }
    if seed % 6 == 5 {
        fleet.start_other();
    }
    for _ in 0..100 + random.below(100) {
        happen(&mut fleet, &mut random);
        fleet.second();
    }
    fleet.heal();
    fleet.check();
}

/// A random event, in one second of several.
fn happen(fleet: &mut Fleet, random: &mut Random) {
    let agents = fleet.agents.len() as u64;
    let agent = random.below(agents) as usize;
    let owner = random.below(fleet.owners.len() as u64) as usize;
    let event = random.below(60);
    if fleet.world.borrow().is_traced && event < 27 {
        eprintln!("event {event}, agent {agent}, owner {owner}");
    }
    match event {
        0 => fleet.agents[agent].crash(random.one_in(2)),
        1 | 2 => fleet.agents[agent].start(),
        3 => fleet.agents[agent].is_connected = false,
        4 | 5 => fleet.agents[agent].is_connected = true,
        6 => fleet.agents[agent].clock = [0, 3_600_000, -3_600_000, 4000, -4000][random.below(5) as usize],
        7 => fleet.agents[agent].clock = 0,
        8 => {
            fleet.kill_owner(owner);
            if fleet.other.is_some() {
                fleet.start_other();
            }
        }
        9 | 10 => fleet.rebalance(),
        11 => fleet.owners[owner].is_stopped = true,
        12..15 => fleet.owners[owner].is_stopped = false,
        15 => drop(fleet.world.borrow_mut().deaf.insert(owner)),
        16 | 17 => drop(fleet.world.borrow_mut().deaf.remove(&owner)),
        18 => fleet.agents[agent].drop_oldest(random.below(4) as usize),
        19 if random.one_in(3) => fleet.raise_partitions(),
        20 => fleet.kill_receiver(random.below(POLICIES.len() as u64) as usize, true),
        21 | 22 => fleet.kill_receiver(random.below(POLICIES.len() as u64) as usize, false),
        24 | 25 => fleet.step_clocks(random),
        26 => fleet.world.borrow_mut().damage(),
        23 => {
            fleet.agents[agent].send_late(&mut fleet.truths, &fleet.world.borrow(), random.below(200) as i64)
        }
        _ => {}
    }
}

impl Fleet {
    /// The log's clock steps; on one machine the agents' clocks are the same one.
    fn step_clocks(&mut self, random: &mut Random) {
        let steps = [
            0, 3_600_000, -3_600_000, 70_000_000, 300_000, -300_000, 45_000, -20_000,
        ];
        let clock = steps[random.below(steps.len() as u64) as usize];
        if self.world.borrow().plan.steps().next().is_some() {
            return;
        }
        self.world.borrow_mut().step_clock(clock);
        if random.one_in(2) {
            self.agents.iter_mut().for_each(|agent| agent.clock = clock);
        }
    }

    /// Adds a partition, from a bucket on that no agent has begun.
    pub fn raise_partitions(&mut self) {
        let mut world = self.world.borrow_mut();
        let count = world.partitions.len() as u32 + 1;
        // Buckets in the future would have been divided by the earlier number.
        if count > 5 || world.has_stepped {
            return;
        }
        world.partitions.push(Default::default());
        if !world.others.is_empty() {
            world.others.push(Default::default());
            world.assign_all(count - 1, OTHER);
        }
        let from = (world.now / 1000 - START).div_euclid(10) * 10 + START + 30;
        world.plan.announce(from, count);
        drop(world);
        self.rebalance();
    }
}
