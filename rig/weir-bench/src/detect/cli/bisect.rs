//! `weir-bench bisect`: the first commit with at least half of the change between two revisions.
//!
//! Each comparison is a `weir-bench compare` of its own, because a program that has bound itself to processors cannot be the next one.

use super::{Code, out, read_report};
use crate::detect::analysis::{Change, Report, Row};
use crate::detect::run::DetectError;
use crate::detect::{report, targets};
use std::path::PathBuf;
use std::process::Command;
use weir_rig_base::clock;

/// Comparisons of one commit; each halves nothing and narrows the interval.
const TRIES: usize = 3;

#[derive(clap::Args)]
pub struct Args {
    /// Revision before the change: the baseline of every comparison.
    #[arg(long, value_name = "REVISION")]
    good: String,
    /// Revision with the change.
    #[arg(long, value_name = "REVISION")]
    bad: String,
    /// Flags of `compare` and one experiment.
    #[arg(
        value_name = "FLAG OR EXPERIMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true
    )]
    compare: Vec<String>,
}

/// The side of the change on which a commit is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Side {
    Before,
    After,
    /// It cannot be built or run, or the interval contains half of the change.
    Unknown,
}

pub fn run(a: &Args) -> Code {
    let git = |args: &[&str]| targets::git(args, None).map_err(DetectError::config);
    let good = git(&["rev-parse", "--verify", &format!("{}^{{commit}}", a.good)])?;
    let range = format!("{good}..{}", a.bad);
    let listed = git(&["rev-list", "--first-parent", "--reverse", &range])?;
    let commits: Vec<String> = listed.lines().map(str::to_owned).collect();
    let Some(last) = commits.last() else {
        let what = format!("{} is no descendant of {}", a.bad, a.good);
        return Err(DetectError::Config(what));
    };
    let stamp = report::stamp(clock::unix_ns() / 1_000_000_000);
    let mut bisect = Bisect {
        folder: PathBuf::from("results").join(format!("bisect-{stamp}")),
        good,
        flags: &a.compare,
        runs: 0,
    };
    let whole = bisect.compare(last)?.filter(Row::is_change);
    let Some(whole) = whole.and_then(|row| row.change) else {
        let what = format!(
            "no change was found between {} and {}: there is nothing to search",
            a.good, a.bad
        );
        return Err(DetectError::Failed(what));
    };
    let (before, after) = search(commits.len(), |i| bisect.side(&commits[i], whole.delta / 2.0))?;
    out(&conclusion(&commits, before, after, &whole));
    Ok(if after - before == 1 { 0 } else { 6 })
}

/// The commits between which the change is. `before` and `after` count from 1; 0 is the good revision.
fn conclusion(commits: &[String], before: usize, after: usize, whole: &Change) -> String {
    let name = |i: usize| {
        let commit = &commits[i - 1];
        let subject = targets::git(&["log", "-1", "--format=%s", commit], None).unwrap_or_default();
        format!("{} {subject}", &commit[..12])
    };
    let unit = if whole.scale == "percent" { " %" } else { "" };
    let change = format!("{:+.2} [{:.2}, {:.2}]{unit}", whole.delta, whole.low, whole.high);
    if after - before == 1 {
        return format!("the change of {change} is in\n{}\n", name(after));
    }
    let among: Vec<String> = (before + 1..=after).map(name).collect();
    format!(
        "the change of {change} is in one of these; the others could not be decided\n{}\n",
        among.join("\n")
    )
}

/// Searches `commits` positions, of which the last is known to be after the change. Returns the last known to be before it (0: none of
/// them) and the first known to be after it, counted from 1.
fn search<E>(commits: usize, mut side: impl FnMut(usize) -> Result<Side, E>) -> Result<(usize, usize), E> {
    let (mut before, mut after) = (0, commits);
    let mut unknown = Vec::new();
    loop {
        let middle = (before + after) / 2;
        let candidates = (before + 1..after).filter(|i| !unknown.contains(i));
        let Some(next) = candidates.min_by_key(|i| i.abs_diff(middle)) else {
            return Ok((before, after));
        };
        match side(next - 1)? {
            Side::Before => before = next,
            Side::After => after = next,
            Side::Unknown => unknown.push(next),
        }
    }
}

struct Bisect<'a> {
    folder: PathBuf,
    good: String,
    flags: &'a [String],
    runs: usize,
}

impl Bisect<'_> {
    /// The side of a commit, from as many comparisons as it needs.
    fn side(&mut self, commit: &str, half: f64) -> Result<Side, DetectError> {
        let mut changes = Vec::new();
        for _ in 0..TRIES {
            let Some(change) = self.compare(commit)?.and_then(|row| row.change) else {
                return Ok(Side::Unknown);
            };
            changes.push(change);
            let side = decide(&changes, half);
            let mean = changes.iter().map(|c| c.delta).sum::<f64>() / changes.len() as f64;
            out(&format!(
                "{} {mean:+.2} of {:+.2}: {side:?}\n",
                &commit[..12],
                2.0 * half
            ));
            if side != Side::Unknown {
                return Ok(side);
            }
        }
        Ok(Side::Unknown)
    }

    /// Compares a commit with the good revision; `None` if it cannot be built.
    fn compare(&mut self, commit: &str) -> Result<Option<Row>, DetectError> {
        self.runs += 1;
        let results = self.folder.join(format!("{:02}", self.runs));
        let program = std::env::current_exe().map_err(DetectError::failed)?;
        let status = Command::new(program)
            .arg("compare")
            .args(["--baseline", &format!("git:{}", self.good)])
            .args(["--comparison", &format!("git:{commit}")])
            .arg("--results")
            .arg(&results)
            .args(self.flags)
            .stdout(std::io::stderr())
            .status()
            .map_err(DetectError::failed)?;
        let runs = std::fs::read_dir(&results).map(|entries| entries.flatten().collect::<Vec<_>>());
        let run = runs.ok().and_then(|runs| runs.into_iter().next());
        match (status.code(), run) {
            (Some(130) | None, _) => Err(DetectError::failed("interrupted")),
            // Wrong flags are wrong for every commit; a commit that cannot be built is one of many.
            (Some(2), None) if self.runs == 1 => Err(DetectError::config("compare did not run, see above")),
            (_, None) => Ok(None),
            (_, Some(run)) => headline(read_report(&run.path().join("report.json"))?).map(Some),
        }
    }
}

fn headline(mut report: Report) -> Result<Row, DetectError> {
    match (report.rows.pop(), report.rows.len()) {
        (Some(row), 0) => Ok(row),
        (_, more) => Err(DetectError::Config(format!(
            "bisect needs one experiment, and {} were run",
            more + 1
        ))),
    }
}

/// Independent measurements together: their mean, and an interval that is narrower by the root of their number.
fn decide(changes: &[Change], half: f64) -> Side {
    let n = changes.len() as f64;
    let mean = changes.iter().map(|c| c.delta).sum::<f64>() / n;
    let width = changes.iter().map(|c| (c.high - c.low) / 2.0).sum::<f64>() / n / n.sqrt();
    // In the direction of the change.
    let (mean, half) = (mean * half.signum(), half.abs());
    if mean - width > half {
        Side::After
    } else if mean + width < half {
        Side::Before
    } else {
        Side::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(delta: f64, width: f64) -> Change {
        Change {
            scale: "percent".to_owned(),
            delta,
            low: delta - width,
            high: delta + width,
            confidence: 0.9,
            p: 0.01,
            q: 0.01,
            mde: 1.0,
            threshold: 5.0,
            welch: None,
            sign_flip_p: None,
        }
    }

    #[test]
    fn every_first_commit_is_found_in_few_steps() {
        for commits in 1..40 {
            for first in 1..=commits {
                let mut steps = 0;
                let found = search(commits, |i| {
                    steps += 1;
                    Ok::<_, ()>(if i + 1 >= first { Side::After } else { Side::Before })
                });
                assert_eq!(found, Ok((first - 1, first)), "{commits}");
                assert!(steps <= 6, "{steps} of {commits}");
            }
        }
    }

    #[test]
    fn commits_that_cannot_be_decided_are_left_open() {
        // The change is in the fifth of eight; the fourth and the fifth cannot be built.
        let found = search(8, |i| {
            Ok::<_, ()>(match i + 1 {
                4 | 5 => Side::Unknown,
                i if i > 5 => Side::After,
                _ => Side::Before,
            })
        });
        assert_eq!(found, Ok((3, 6)));
        assert_eq!(search(3, |_| Ok::<_, ()>(Side::Unknown)), Ok((0, 3)));
        assert_eq!(search(3, |_| Err("stop")), Err("stop"));
    }

    #[test]
    fn a_side_is_decided_by_the_interval_and_narrowed_by_repetition() {
        assert_eq!(decide(&[change(9.0, 2.0)], 5.0), Side::After);
        assert_eq!(decide(&[change(0.5, 2.0)], 5.0), Side::Before);
        assert_eq!(decide(&[change(6.5, 2.0)], 5.0), Side::Unknown);
        let twice = [change(6.5, 2.0), change(6.5, 2.0)];
        assert_eq!(decide(&twice, 5.0), Side::After);
        // The whole change is a fall.
        assert_eq!(decide(&[change(-9.0, 2.0)], -5.0), Side::After);
        assert_eq!(decide(&[change(0.0, 2.0)], -5.0), Side::Before);
    }
}
