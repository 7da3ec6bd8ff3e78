//! The sinks of one run: started before the target, queried or ended after it.

use super::ready::wait_for_sink;
use super::{Problem, ReplicateRun, tail};
use crate::detect::books;
use crate::detect::experiment::Sink;
use crate::detect::process::{self, Process, Stopped};
use crate::detect::rig;
use crate::detect::running::Subject;
use std::time::Duration;

/// Timeout for a sink to write its report.
const REPORT_WAIT: Duration = Duration::from_secs(20);

/// Each with its process, if it has one.
pub struct Sinks {
    all: Vec<(Option<Process>, Sink)>,
    /// The counters of the target before the load, by sink.
    before: Vec<f64>,
}

impl Sinks {
    pub fn start(run: &mut ReplicateRun) -> Result<Sinks, Problem> {
        let mut sinks = Vec::new();
        for (i, sink) in run.r.experiment.sinks.iter().enumerate() {
            let report = rig::numbered(run.r.folder, "sink", i, "json");
            run.names.set("report", report.display().to_string());
            let mut sink = sink.clone();
            sink.listen = run.names.fill(&sink.listen)?;
            sink.args = run.names.fill_all(&sink.args)?;
            sink.command = run.names.fill_all(&sink.command)?;
            let points = rig::numbered(run.work, "points", i, "jsonl");
            let manifest = rig::numbered(run.r.folder, "manifest", 0, "json");
            let argv = rig::sink_argv(&sink, run.r.program, &points, &manifest);
            let start =
                |argv: Vec<String>| run.start_helper(&format!("sink{i}"), &argv, sink.cpus.as_deref());
            sinks.push((argv.map(start).transpose()?, sink));
        }
        for (process, sink) in &mut sinks {
            // A scraper waits for the target itself.
            if let Some(process) = process
                && sink.kind != rig::SCRAPE
            {
                wait_for_sink(process, &sink.listen)?;
            }
        }
        let before = vec![0.0; sinks.len()];
        Ok(Sinks { all: sinks, before })
    }

    /// Keeps the target's counters: one that ran before has counted already.
    pub fn remember(&mut self, target: &mut Subject) -> Result<(), Problem> {
        for ((_, sink), before) in self.all.iter().zip(&mut self.before) {
            if sink.kind == rig::TARGET_COUNTER && matches!(target, Subject::Running(_)) {
                super::watch_target(target)?;
                *before = books::counted(&sink.listen, &sink.args)?;
            }
        }
        Ok(())
    }

    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.all
            .iter()
            .filter_map(|(process, _)| Some(process.as_ref()?.pid))
    }

    /// Asks the target for what it has, while it still runs.
    pub fn fetch(&mut self, run: &mut ReplicateRun, target: &mut Subject) -> Result<(), Problem> {
        let folder = run.r.folder;
        for (i, (process, sink)) in self.all.iter_mut().enumerate() {
            let (manifest, report) = (
                folder.join("manifest.json"),
                rig::numbered(folder, "sink", i, "json"),
            );
            let watch = || super::watch_target(target);
            match sink.kind.as_str() {
                rig::TARGET_BOOKS => books::fetch(&sink.listen, &manifest, &report, watch)?,
                rig::TARGET_COUNTER => {
                    books::count(
                        (&sink.listen, &sink.args),
                        self.before[i],
                        &manifest,
                        &report,
                        watch,
                    )?;
                }
                rig::SCRAPE if process.is_none() => {
                    let points = rig::numbered(run.work, "points", i, "jsonl");
                    let argv = rig::scrape_argv(sink, run.r.program, &points, &manifest);
                    let mut scraper = run.start_helper(&format!("sink{i}"), &argv, sink.cpus.as_deref())?;
                    scraper.wait(REPORT_WAIT);
                    *process = Some(scraper);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends the sinks and writes their reports.
    pub fn report(&mut self, run: &mut ReplicateRun) -> Result<(), Problem> {
        let folder = run.r.folder;
        for (i, (process, sink)) in self.all.iter_mut().enumerate() {
            let mut stdout = folder.join("target.stdout");
            if let Some(process) = process {
                let name = process.name().to_owned();
                let problem = match process.stop(libc::SIGTERM, REPORT_WAIT) {
                    Stopped::Killed => Some(format!("{name} did not report within 20 s")),
                    Stopped::Earlier(status) if !status.success() => Some(format!(
                        "{name} ended during the run with {}{}",
                        process::describe(status),
                        tail(&folder.join(format!("{name}.stderr")))
                    )),
                    Stopped::Earlier(_) | Stopped::Asked(_) => None,
                };
                if let Some(what) = problem {
                    run.events.add("invalid", &what)?;
                }
                stdout = folder.join(format!("{}.stdout", process.name()));
            }
            let points = rig::numbered(run.work, "points", i, "jsonl");
            let report = rig::numbered(folder, "sink", i, "json");
            if let Err(e) = rig::sink_report(sink, &stdout, &points, &folder.join("manifest.json"), &report) {
                run.events.add("invalid", &e.to_string())?;
            }
        }
        Ok(())
    }
}
