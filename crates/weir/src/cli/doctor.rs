//! `weir doctor`: problems and remedies.

use std::fmt::Write as _;

use clap::{ArgMatches, Command};
use weir_config::Role;
use weir_units::counted;

use super::switch;
use crate::doctor::{Finding, Severity, examine};
use weir_system::config;
use weir_system::failure::{Failure, FailureKind};

pub fn command() -> Command {
    super::with_settings(
        Command::new("doctor")
            .about("Find problems that prevent the agent from receiving or delivering, and their remedies")
            .long_about(
                "Find problems that prevent the agent from receiving or delivering, and their remedies: sockets and permissions, \
                 settings of the kernel, the state directory, the clock, names, proxies and the endpoint of each output. \
                 Use the configuration of the agent or of the merge. The exit code is 1 if a check fails.",
            ),
    )
    .arg(
        switch("json", "Print the findings as JSON"),
    )
    .arg(
        switch("no-send", "Do not send the metric weir.doctor to the agent's Unix sockets"),
    )
}

pub fn doctor(arguments: &ArgMatches) -> Result<(), Failure> {
    let mut inputs = super::inputs(arguments)?;
    let loaded = config::load(&inputs).or_else(|of_agent| {
        // The file of a merge has settings that an agent does not know.
        inputs.role = Role::Merge;
        config::load(&inputs).map_err(|_| of_agent)
    })?;
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(loaded.warnings.iter().map(|warning| Finding {
        check: "configuration",
        subject: "files".to_owned(),
        verdict: Severity::Warning,
        found: warning.clone(),
        remedy: String::new(),
    }));
    findings.extend(examine(&loaded, &inputs, !arguments.get_flag("no-send")));
    let text = match arguments.get_flag("json") {
        true => serde_json::to_string(&findings).map_err(|error| Failure::runtime(error.to_string()))? + "\n",
        false => report(&findings),
    };
    super::print(&text)?;
    if findings.iter().any(|finding| finding.verdict == Severity::Error) {
        return Err(Failure {
            kind: FailureKind::Runtime,
            message: String::new(),
        });
    }
    Ok(())
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let verdict = match finding.verdict {
            Severity::Fine => "ok",
            Severity::Skipped => "-",
            Severity::Warning => "WARNING",
            Severity::Error => "ERROR",
        };
        let Finding {
            check,
            subject,
            found,
            ..
        } = finding;
        let found = super::table::shown(found);
        let _ = writeln!(text, "{verdict:<8} {check:<16} {subject}: {found}");
        if !finding.remedy.is_empty() {
            let _ = writeln!(text, "{:25} -> {}", "", finding.remedy);
        }
    }
    let count = |verdict| {
        findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    let (errors, warnings) = (
        counted(count(Severity::Error) as u64, "errors"),
        counted(count(Severity::Warning) as u64, "warnings"),
    );
    let _ = writeln!(text, "\n{errors}, {warnings}");
    text
}
