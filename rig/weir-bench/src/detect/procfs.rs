//! The kernel's data about processes and the machine. Missing files give `None`, never an error: containers hide some of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use weir_rig_base::{clock, process};

/// One process as `/proc/<pid>/stat` shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stat {
    pub pid: i32,
    pub ppid: i32,
    pub session: i32,
    pub minflt: u64,
    pub majflt: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
    /// Of its children that have ended and that it has waited for, with theirs.
    pub ended_ticks: u64,
    pub threads: u64,
    /// Ticks since boot: with the number, the identity of a process.
    pub started_ticks: u64,
    pub zombie: bool,
}

pub fn parse_stat(text: &str) -> Option<Stat> {
    // The name is in brackets and may contain anything, brackets included; fields are counted from the last one.
    let (head, tail) = (text.split(' ').next()?, text.rsplit_once(')')?.1);
    let f: Vec<&str> = tail.split_whitespace().collect();
    let number = |i: usize| f.get(i).and_then(|v| v.parse::<i64>().ok());
    Some(Stat {
        pid: head.parse().ok()?,
        zombie: matches!(f.first(), Some(&"Z") | Some(&"X")),
        ppid: number(1)? as i32,
        session: number(3)? as i32,
        minflt: number(7)? as u64,
        majflt: number(9)? as u64,
        user_ticks: number(11)? as u64,
        system_ticks: number(12)? as u64,
        ended_ticks: (number(13)? + number(14)?) as u64,
        threads: number(17)? as u64,
        started_ticks: number(19)? as u64,
    })
}

pub fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

pub fn all_processes() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|e| stat(e.ok()?.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// A process and its descendants, including those that left its session or whose parent died.
pub fn tree(root: i32, all: &[Stat]) -> Vec<Stat> {
    let mut members: BTreeSet<i32> = BTreeSet::from([root]);
    loop {
        let before = members.len();
        for p in all {
            if p.session == root || members.contains(&p.ppid) {
                members.insert(p.pid);
            }
        }
        if members.len() == before {
            break;
        }
    }
    all.iter().filter(|p| members.contains(&p.pid)).copied().collect()
}

/// The processes of a target.
#[derive(Debug, Clone, PartialEq)]
pub enum Group {
    /// A process and its descendants.
    Tree(i32),
    /// A folder of the control-group file system, with the groups in it.
    Cgroup(PathBuf),
}

impl Group {
    pub fn members(&self, all: &[Stat]) -> Vec<Stat> {
        match self {
            Group::Tree(root) => tree(*root, all),
            Group::Cgroup(folder) => {
                let pids = pids_of_cgroup(folder);
                all.iter().filter(|p| pids.contains(&p.pid)).copied().collect()
            }
        }
    }

    /// The processes that live now.
    pub fn living(&self) -> Vec<i32> {
        let members = self.members(&all_processes());
        members.iter().filter(|p| !p.zombie).map(|p| p.pid).collect()
    }
}

fn pids_of_cgroup(folder: &Path) -> BTreeSet<i32> {
    let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut pids: BTreeSet<i32> = listed
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            pids.extend(pids_of_cgroup(&entry.path()));
        }
    }
    pids
}

/// CPU time of every process that is not among `ours`, in ticks since boot. `None` in a separate process namespace, where others are
/// invisible, including the kernel's own threads.
///
/// The time of an ended process goes to its parent, so the sum does not fall. Each process is exact except for rounding to ticks, also on
/// kernels that sample the machine's sums.
pub fn foreign_ticks(all: &[Stat], ours: &BTreeSet<i32>) -> Option<u64> {
    const KERNEL_THREADS: i32 = 2;
    all.iter().find(|p| p.pid == KERNEL_THREADS && p.ppid == 0)?;
    let others = all.iter().filter(|p| !ours.contains(&p.pid));
    Some(
        others
            .map(|p| p.user_ticks + p.system_ticks + p.ended_ticks)
            .sum(),
    )
}

/// The three programs besides this one and its children that use the most CPU, with their shares of a core. Takes `time`.
pub fn busiest(time: Duration) -> Vec<(String, f64)> {
    let before = all_processes();
    thread::sleep(time);
    let after = all_processes();
    let ours = tree(std::process::id() as i32, &after)
        .iter()
        .map(|p| p.pid)
        .collect();
    let ticks = clock::ticks_per_second() as f64 * time.as_secs_f64();
    let name = |pid: i32| {
        Some(
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .ok()?
                .trim()
                .to_owned(),
        )
    };
    let most = most_ticks(&before, &after, &ours).into_iter().take(3);
    most.filter_map(|(pid, used)| Some((name(pid)?, used as f64 / ticks)))
        .collect()
}

/// Processes that used time between two readings, in ticks, most first.
fn most_ticks(before: &[Stat], after: &[Stat], ours: &BTreeSet<i32>) -> Vec<(i32, u64)> {
    let ticks = |p: &Stat| (p.pid, p.user_ticks + p.system_ticks);
    let earlier: BTreeMap<i32, u64> = before.iter().map(ticks).collect();
    let others = after.iter().filter(|p| !ours.contains(&p.pid)).map(ticks);
    let used = others.filter_map(|(pid, now)| Some((pid, now.saturating_sub(*earlier.get(&pid)?))));
    let mut used: Vec<(i32, u64)> = used.filter(|(_, ticks)| *ticks > 0).collect();
    used.sort_by_key(|(_, ticks)| std::cmp::Reverse(*ticks));
    used
}

/// `Key:   123 kB` lines.
pub fn parse_fields(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|l| {
            let (key, rest) = l.split_once(':')?;
            let mut words = rest.split_whitespace();
            let number: u64 = words.next()?.parse().ok()?;
            let factor = if words.next() == Some("kB") { 1024 } else { 1 };
            Some((key, number * factor))
        })
        .collect()
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    pub rss: u64,
    pub anon: u64,
    pub file: u64,
    pub hwm: u64,
}

pub fn memory(pid: i32) -> Option<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let f = parse_fields(&text);
    Some(Memory {
        rss: *f.get("VmRSS")?,
        anon: f.get("RssAnon").copied().unwrap_or(0),
        file: f.get("RssFile").copied().unwrap_or(0) + f.get("RssShmem").copied().unwrap_or(0),
        hwm: f.get("VmHWM").copied().unwrap_or(0),
    })
}

/// (pss, private dirty)
pub fn smaps(pid: i32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    // The first line is the range of addresses, which is not a field.
    let f = parse_fields(&text);
    Some((*f.get("Pss")?, f.get("Private_Dirty").copied().unwrap_or(0)))
}

/// (voluntary, involuntary, run delay ns) summed over the living threads. The file of the process alone covers only the
/// main thread.
pub fn threads(pid: i32) -> Option<(u64, u64, u64)> {
    let mut sum = (0, 0, 0);
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let Ok(task) = task else { continue };
        if let Ok(text) = fs::read_to_string(task.path().join("status")) {
            let f = parse_fields(&text);
            sum.0 += f.get("voluntary_ctxt_switches").copied().unwrap_or(0);
            sum.1 += f.get("nonvoluntary_ctxt_switches").copied().unwrap_or(0);
        }
        if let Ok(text) = fs::read_to_string(task.path().join("schedstat")) {
            sum.2 += text
                .split_whitespace()
                .nth(1)
                .and_then(|v| v.parse::<u64>().ok())
                .unwrap_or(0);
        }
    }
    Some(sum)
}

/// Whether a thread of a process runs, waits for a processor or waits for a disk.
pub fn is_working(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
        .any(|text| works(&text))
}

/// `text`: a thread's `stat`.
fn works(text: &str) -> bool {
    let state = text
        .rsplit_once(')')
        .map_or("", |(_, fields)| fields.trim_start());
    state.starts_with(['R', 'D'])
}

/// (number of descriptors, inodes of sockets)
pub fn descriptors(pid: i32) -> Option<(u64, Vec<u64>)> {
    let mut count = 0;
    let mut inodes = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
        let Ok(entry) = entry else { continue };
        count += 1;
        if let Ok(link) = fs::read_link(entry.path())
            && let Some(inode) = link
                .to_str()
                .and_then(|l| l.strip_prefix("socket:["))
                .and_then(|l| l.strip_suffix(']'))
            && let Ok(inode) = inode.parse()
        {
            inodes.push(inode);
        }
    }
    Some((count, inodes))
}

/// Busy and stolen time of the whole machine, in nanoseconds of one core, from an arbitrary start.
///
/// Busy means neither idle nor stolen. A kernel that stops its tick on an idle core measures idle time, but samples the other times in
/// `/proc/stat` with the tick, which over a second is wrong by some percent of a core if programs sleep and wake.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Machine {
    pub busy_ns: i64,
    pub steal_ns: i64,
}

impl Machine {
    /// The difference to an earlier reading.
    pub fn since(self, earlier: Machine) -> Machine {
        Machine {
            busy_ns: self.busy_ns - earlier.busy_ns,
            steal_ns: self.steal_ns - earlier.steal_ns,
        }
    }
}

/// `text`: `/proc/stat`, read at `now_ns`.
pub fn parse_machine(text: &str, now_ns: u64, hz: u64) -> Option<Machine> {
    let line = text.lines().find(|l| l.starts_with("cpu "))?;
    let cores = text
        .lines()
        .filter(|l| l.starts_with("cpu") && !l.starts_with("cpu "))
        .count() as i64;
    let f: Vec<i64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|v| v.parse().ok())
        .collect();
    let tick = 1_000_000_000 / hz as i64;
    // user nice system idle iowait irq softirq steal
    let steal_ns = f.get(7).unwrap_or(&0) * tick;
    let idle_ns = (f.get(3)? + f.get(4)?) * tick;
    Some(Machine {
        busy_ns: now_ns as i64 * cores - idle_ns - steal_ns,
        steal_ns,
    })
}

pub fn machine() -> Option<Machine> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    parse_machine(&text, clock::monotonic_ns(), clock::ticks_per_second())
}

/// Total time in which some task waited for a CPU, in nanoseconds.
pub fn pressure_ns() -> Option<u64> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let total = text
        .lines()
        .find(|l| l.starts_with("some "))?
        .rsplit_once("total=")?
        .1;
    Some(total.trim().parse::<u64>().ok()? * 1000)
}

pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

pub fn frequency_khz() -> Option<f64> {
    fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// A description of the machine, stored with every run.
pub fn describe_host() -> BTreeMap<String, String> {
    let read = |p: &str| {
        fs::read_to_string(p)
            .map(|t| t.trim().to_owned())
            .unwrap_or_default()
    };
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|l| {
            l.strip_prefix("model name")
                .and_then(|r| r.split_once(':'))
                .map(|r| r.1.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let memory = read("/proc/meminfo");
    let total = parse_fields(&memory).get("MemTotal").copied().unwrap_or(0);
    BTreeMap::from([
        ("kernel".to_owned(), read("/proc/sys/kernel/osrelease")),
        ("arch".to_owned(), std::env::consts::ARCH.to_owned()),
        ("cpu".to_owned(), model),
        ("cpus".to_owned(), process::allowed_cpus().len().to_string()),
        ("memory_bytes".to_owned(), total.to_string()),
        ("rmem_max".to_owned(), read("/proc/sys/net/core/rmem_max")),
        (
            "unix_max_dgram_qlen".to_owned(),
            read("/proc/sys/net/unix/max_dgram_qlen"),
        ),
        ("aslr".to_owned(), read("/proc/sys/kernel/randomize_va_space")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_are_others_that_used_time_since() {
        let read = |ticks: &[(i32, u64)]| -> Vec<Stat> {
            let stat = |(pid, user_ticks): &(i32, u64)| Stat {
                pid: *pid,
                user_ticks: *user_ticks,
                ..Stat::default()
            };
            ticks.iter().map(stat).collect()
        };
        let before = read(&[(1, 500), (2, 0), (3, 7), (4, 0)]);
        let after = read(&[(1, 510), (2, 90), (3, 7), (4, 30), (5, 99)]);
        assert_eq!(
            most_ticks(&before, &after, &BTreeSet::from([2])),
            [(4, 30), (1, 10)]
        );
    }

    #[test]
    fn names_with_brackets_do_not_shift_fields() {
        let text = "42 (a) b (c)) S 7 42 41 0 -1 4194560 100 0 3 0 11 12 0 0 20 0 5 0 1000 1 2";
        let s = parse_stat(text).unwrap();
        assert_eq!(
            (s.pid, s.ppid, s.session, s.minflt, s.majflt),
            (42, 7, 41, 100, 3)
        );
        assert_eq!(
            (s.user_ticks, s.system_ticks, s.threads, s.started_ticks, s.zombie),
            (11, 12, 5, 1000, false)
        );
    }

    #[test]
    fn a_thread_that_waits_for_a_processor_works() {
        assert!(works("42 (a) S (b) R 7 42"));
        assert!(works("42 (a) D 7 42"));
        assert!(!works("42 (R) S 7 42"));
        assert!(!works(""));
    }

    #[test]
    fn foreign_time_is_that_of_others_and_does_not_fall_when_one_ends() {
        let p = |pid, ppid, user_ticks, ended_ticks| Stat {
            pid,
            ppid,
            user_ticks,
            ended_ticks,
            ..Stat::default()
        };
        let ours = BTreeSet::from([10, 11]);
        let mut all = vec![
            p(1, 0, 5, 100),
            p(2, 0, 3, 0),
            p(10, 1, 900, 900),
            p(11, 10, 500, 0),
            p(20, 1, 40, 2),
        ];
        assert_eq!(foreign_ticks(&all, &ours), Some(150));
        all.pop();
        all[0].ended_ticks += 42;
        assert_eq!(foreign_ticks(&all, &ours), Some(150));
        all.remove(1);
        assert_eq!(foreign_ticks(&all, &ours), None);
    }

    #[test]
    fn machine_time() {
        let first = "cpu  10 1 5 1000 7 2 3 4 9 0\ncpu0 1 1 1\ncpu1 2 2 2\nintr 5\n";
        let then = "cpu  99 9 9 1130 10 9 9 6 9 0\ncpu0 1 1 1\ncpu1 2 2 2\nintr 5\n";
        let first = parse_machine(first, 1_000_000_000, 100).unwrap();
        let went_by = parse_machine(then, 2_000_000_000, 100).unwrap().since(first);
        // Of two seconds of cores 1.3 were idle, 0.03 waited for a disk and 0.02 were taken.
        assert_eq!((went_by.busy_ns, went_by.steal_ns), (650_000_000, 20_000_000));
    }

    #[test]
    fn tree_follows_children_and_sessions() {
        let p = |pid, ppid, session| Stat {
            pid,
            ppid,
            session,
            ..Stat::default()
        };
        let all = [
            p(1, 0, 1),
            p(10, 1, 10),
            p(11, 10, 10),
            p(12, 11, 12),
            p(13, 1, 10),
            p(20, 1, 20),
        ];
        let pids: Vec<i32> = tree(10, &all).iter().map(|s| s.pid).collect();
        assert_eq!(pids, [10, 11, 12, 13]);
    }

    #[test]
    fn a_control_group_has_the_processes_of_the_groups_in_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(folder.path().join("cgroup.procs"), "10\n").unwrap();
        fs::write(folder.path().join("inner/cgroup.procs"), "30\n40\n").unwrap();
        let p = |pid| Stat {
            pid,
            ppid: 10,
            ..Stat::default()
        };
        let group = Group::Cgroup(folder.path().to_owned());
        let pids: Vec<i32> = group
            .members(&[10, 20, 30].map(p))
            .iter()
            .map(|s| s.pid)
            .collect();
        assert_eq!(pids, [10, 30]);
    }

    #[test]
    fn this_process_can_be_observed() {
        let me = std::process::id() as i32;
        assert!(memory(me).unwrap().rss > 0);
        assert!(threads(me).is_some() && descriptors(me).unwrap().0 > 0 && stat(me).unwrap().threads > 0);
        assert!(machine().is_some());
    }
}
