//! Simulates lives of the agent on one thread, from a seed: processes that are killed, stopped and started again, on a disk with troubles of
//! its own, while outputs with and without disk queues are replaced, receivers refuse, hang or are away, and clocks step. After each schedule every output has had each bucket once, and what it
//! lacks is what the starts reported, to the sample.
//!
//! A schedule that fails is replayed with a log of its steps: `WEIR_LIFE_SEED=N`. `WEIR_LIFE_FIRST=N` begins with another seed, and
//! [`schedules_without_end`] runs for `WEIR_LIFE_SECONDS`.

// The agent's life may do none of this. Its tests take a seed from outside and print one that fails.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod clients;
mod disk;
mod history;
mod outputs;
mod process;
mod receivers;
mod schedule;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use weir_ingest::Readings;
use weir_output::delivery::SavedStates;
use weir_state::AgentId;

use super::Resumed;
use super::fixes::{Rule, take_out};
use disk::{ProcessDisk, World};
use process::{Plan, Process};
use receivers::Receivers;
use schedule::Schedule;
use weir_system::disk::Disk as _;

/// Schedules of one of the tests below, which run side by side.
const SCHEDULES: u64 = 250;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={value}: a number is wanted")))
}

/// Runs a schedule. `Err`: the text of its panic.
fn run(seed: u64, is_verbose: bool) -> Result<Schedule, String> {
    let mut schedule = Schedule::new(seed, is_verbose);
    match catch_unwind(AssertUnwindSafe(|| schedule.run())) {
        Ok(()) => Ok(schedule),
        Err(panic) => Err(match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
        }),
    }
}

fn check(seed: u64) -> Schedule {
    run(seed, false).unwrap_or_else(|_| {
        eprintln!(
            "this schedule fails: WEIR_LIFE_SEED={seed} cargo nextest run --workspace --features weir/kafka --locked --lib \
             -E 'test(=life::simulation::every_schedule_delivers_or_reports_each_sample_once)' --no-capture"
        );
        match run(seed, true) {
            Err(reason) => panic!("seed {seed}: {reason}"),
            Ok(_) => panic!("seed {seed} does not fail again: the simulation is not deterministic"),
        }
    })
}

fn check_all(part: u64) {
    if let Some(seed) = number("WEIR_LIFE_SEED") {
        run(seed, true).unwrap_or_else(|reason| panic!("seed {seed}: {reason}"));
        return;
    }
    let first = number("WEIR_LIFE_FIRST").unwrap_or(0) + part * SCHEDULES;
    let (mut kills, mut stops, mut exact, mut unsaid) = (0, 0, 0, 0);
    let (mut hand_overs, mut reclaimed, mut reloads) = (0, 0, 0);
    let (mut duplicates, mut again) = (0, 0);
    for seed in first..first + SCHEDULES {
        let done = check(seed);
        kills += done.kills;
        stops += done.stops;
        (hand_overs, reclaimed) = (hand_overs + done.hand_overs, reclaimed + done.reclaimed);
        reloads += done.reloads;
        exact += u64::from(done.is_exact());
        unsaid += u64::from(done.kept_unsaid() > 0);
        let repeated = done.repeated();
        (duplicates, again) = (duplicates + repeated.0, again + repeated.1);
    }
    println!(
        "{kills} kills, {stops} stops, {reloads} reloads, {hand_overs} hand-overs and {reclaimed} that failed; {exact} schedules had exact numbers; in {unsaid} a kill came right after a receiver's answer; \
         {duplicates} requests had been added before, {again} were lost by a kill and added again"
    );
    assert!(duplicates > 0 && again > 0 && hand_overs > 0 && reclaimed > 0 && reloads > 0);
    // Of the others, not every number can be checked.
    assert!(kills > 0 && stops > 0 && exact > SCHEDULES / 2 && unsaid > 0);
}

#[test]
fn every_schedule_delivers_or_reports_each_sample_once() {
    check_all(0);
}

#[test]
fn every_schedule_of_the_second_part_does() {
    check_all(1);
}

#[test]
fn every_schedule_of_the_third_part_does() {
    check_all(2);
}

#[test]
fn every_schedule_of_the_fourth_part_does() {
    check_all(3);
}

/// A rule has an effect that the simulation sees.
fn find_absence(rule: Rule) {
    take_out(Some(rule));
    let begun = Instant::now();
    let found = (0..4 * SCHEDULES).find_map(|seed| Some((seed, run(seed, false).err()?)));
    take_out(None);
    let Some((seed, reason)) = found else {
        panic!("{} schedules do not find the absence of {rule:?}", 4 * SCHEDULES);
    };
    println!("{rule:?}: seed {seed} after {:.1?}: {reason}", begun.elapsed());
}

#[test]
fn a_bucket_that_continues_though_it_has_begun_to_leave_is_found() {
    find_absence(Rule::BegunBucketsEnd);
}

#[test]
fn an_end_that_is_stored_late_is_found() {
    find_absence(Rule::EndsAreStoredFirst);
}

#[test]
fn a_small_file_that_costs_all_others_is_found() {
    find_absence(Rule::OtherFilesCount);
}

#[test]
fn a_stop_that_takes_no_room_is_found() {
    find_absence(Rule::RoomIsTakenFirst);
}

#[test]
fn numbers_that_only_checkpoints_have_are_found() {
    find_absence(Rule::NotedNumbersCount);
}

#[test]
fn numbers_that_count_before_their_points_have_left_are_found() {
    find_absence(Rule::NumbersCountWithTheirPoints);
}

#[test]
fn checkpoints_without_numbers_are_found() {
    find_absence(Rule::CheckpointsHaveNumbers);
}

#[test]
fn a_hand_over_before_the_first_files_is_found() {
    find_absence(Rule::HandOversWaitForOwnFiles);
}

#[test]
fn checkpoints_without_timestamped_points_are_found() {
    find_absence(Rule::CheckpointsHaveTimestampedPoints);
}

#[test]
fn a_stop_that_forgets_numbers_is_found() {
    find_absence(Rule::StopsKeepNumbers);
}

const PLAN: Plan = Plan {
    workers: 1,
    width: 3600,
    rows_of_payload: 1,
    memory: 1 << 20,
    batch_bytes: 1,
    agent: AgentId([7; 16]),
};

/// Seconds after the instant at which everything begins.
fn after(seconds: u64) -> Readings {
    Readings {
        wall_ms: 1_700_000_000_000 + 1000 * seconds as i64,
        monotonic: 1_000_000_000 * (1 + seconds),
    }
}

/// A start reads a state that nobody can use, as far as the disk lets it. Returns how often that is in its books.
fn starts_beside_bad_state(disk: &ProcessDisk) -> u64 {
    let (plan, now) = (PLAN, after(0));
    let directory = process::directory(disk, &plan, now).expect("a directory");
    let resumed = Resumed::look(directory, &plan.life(), now.wall_ms);
    let (_, own, earlier) = resumed.started(&plan.life(), &SavedStates::default());
    own.set_aside + earlier.map_or(0, |books| books.state.set_aside)
}

#[test]
fn state_is_set_aside_once_wherever_the_start_is_killed() {
    for operations in 0.. {
        let world = World::new(1);
        let mut state = world.process().create("state").expect("a file");
        state.write_all(b"of nobody").expect("written");
        world.kill_after(operations);
        let disk = world.further_process();
        let first = catch_unwind(AssertUnwindSafe(|| starts_beside_bad_state(&disk)));
        assert_eq!(
            starts_beside_bad_state(&world.process()),
            1,
            "killed at operation {operations}"
        );
        if first.is_ok() {
            return;
        }
    }
}

/// A process that finds a file which cannot be read uses the others.
#[test]
fn a_damaged_small_file_costs_only_what_is_in_it() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 3] = [
        |bytes| bytes.clear(),
        |bytes| {
            let at = bytes.len() / 2;
            bytes[at] ^= 4;
        },
        |bytes| bytes[12] ^= 1,
    ];
    let receivers = Receivers::new(std::iter::empty());
    let lines: Vec<String> = (0..100).map(|_| "c:1|c".to_owned()).collect();
    for name in ["books", "agent", "tally"] {
        for (number, damage) in damages.into_iter().enumerate() {
            let world = World::new(1);
            let start = |now| {
                let disk = world.process();
                Process::start(&disk, &PLAN, &receivers, now, &mut Random::new(1)).expect("a process")
            };
            let mut process = start(after(0));
            process.turn(0, &lines, after(0));
            process.turn(0, &[], after(2));
            while process.write() {}
            process.keep(after(2));
            world.end_process();
            drop(process);
            let names = world.further_process().names().expect("names");
            let file = names.iter().find(|file| file.starts_with(name)).expect(name);
            assert!(world.damage(file, damage));
            let next = start(after(3));
            let killed = &next.status().killed;
            assert_eq!(
                (next.status().samples_restored, killed.kills, killed.samples_lost),
                (100, 1, 0),
                "{name} {number}"
            );
            // A word of the tally that no worker uses costs nothing.
            let costs = u64::from((name, number) != ("tally", 1));
            assert_eq!(killed.files_damaged, costs, "{name} {number}");
        }
    }
}

/// A process has continued a state and could save nothing since. The state's age is that of the process's last moment.
#[test]
fn a_state_is_as_old_as_the_killed_process_that_continued_it() {
    let plan = Plan { width: 10, ..PLAN };
    let lines: Vec<String> = (0..100).map(|_| "c:1|c".to_owned()).collect();
    // Both are too far from the second in which the state was saved.
    for end in [5000, -5000_i64] {
        let at = |wall: i64, monotonic: u64| Readings {
            wall_ms: after(10_000).wall_ms + 1000 * wall,
            ..after(10_000 + monotonic)
        };
        let (world, receivers) = (World::new(1), Receivers::new(std::iter::empty()));
        let start = |now| {
            let disk = world.process();
            Process::start(&disk, &plan, &receivers, now, &mut Random::new(1)).expect("a process")
        };
        let mut first = start(at(1, 1));
        first.turn(0, &lines, at(1, 1));
        assert!(first.stop(at(2, 2)).keeps);
        let mut second = start(at(3, 3));
        assert_eq!(second.status().samples_restored, 100);
        world.fill(0);
        second.turn(0, &lines[..40], at(4, 4));
        second.turn(0, &[], at(20, 20));
        while second.merge(at(20, 20)) {}
        second.turn(0, &lines[..7], at(end, 5000));
        while second.write() {}
        second.keep(at(end, 5000));
        world.end_process();
        drop(second);
        world.repair();
        let third = start(at(end + 1, 5001));
        let (status, killed) = (third.status(), &third.status().killed);
        assert_eq!((status.set_aside, killed.samples_lost), (0, 47), "{end}");
        // Nothing has left: no scrape came.
        assert_eq!(status.samples_restored, 100, "{end}: {killed:?}");
    }
}

/// On a full disk it has no tally of its own. The one before it continues with its own files, and a kill of that one is reported.
#[test]
fn a_process_that_cannot_take_over_leaves_the_files_of_the_one_before() {
    let (world, receivers) = (World::new(1), Receivers::new(std::iter::empty()));
    let lines: Vec<String> = (0..100).map(|_| "c:1|c".to_owned()).collect();
    let start = |now| {
        Process::start(&world.process(), &PLAN, &receivers, now, &mut Random::new(1)).expect("a process")
    };
    let mut old = start(after(0));
    old.turn(0, &lines, after(0));
    old.turn(0, &[], after(2));
    while old.write() {}
    old.keep(after(2));
    let passed = old.freeze(after(3)).expect("a state").expect("one bucket");
    // Enough for the number of the process, and too little for its tally.
    world.fill(1000);
    let disk = world.further_process();
    let new = catch_unwind(AssertUnwindSafe(|| {
        // It ends when all is done but for saying that it runs.
        let ends = || std::panic::resume_unwind(Box::new(disk::Killed));
        Process::take_over(
            &disk,
            &PLAN,
            &receivers,
            &passed,
            after(3),
            &mut Random::new(1),
            ends,
        )
        .map(drop)
    }));
    assert!(new.is_err());
    assert_ne!(world.failures(), 0, "the disk had room");
    disk.end();
    old.reclaim();
    old.turn(0, &lines[..7], after(4));
    world.end_process();
    drop(old);
    world.repair();
    let next = start(after(5));
    let (status, killed) = (next.status(), &next.status().killed);
    assert_eq!(
        (status.samples_restored, killed.kills, killed.samples_lost),
        (100, 1, 7)
    );
}

#[test]
#[ignore = "nightly: runs until told to stop; in the gate: every_schedule_delivers_or_reports_each_sample_once"]
fn schedules_without_end() {
    let length = Duration::from_secs(number("WEIR_LIFE_SECONDS").unwrap_or(600));
    let begun = Instant::now();
    let first = number("WEIR_LIFE_FIRST").unwrap_or_else(|| {
        let now = std::time::UNIX_EPOCH.elapsed();
        now.map_or(0, |now| now.as_nanos() as u64) >> 8
    });
    let (mut seed, mut failed) = (first, Vec::new());
    while begun.elapsed() < length && failed.len() < 20 {
        if let Err(reason) = run(seed, false) {
            eprintln!("seed {seed}: {reason}");
            failed.push(seed);
        }
        seed += 1;
    }
    println!("{} schedules from seed {first}", seed - first);
    assert!(failed.is_empty(), "seeds {failed:?}");
}

/// Numbers that depend only on the seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in one of this many cases; never for zero.
    pub fn one_in(&mut self, cases: u64) -> bool {
        cases > 0 && self.below(cases) == 0
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
