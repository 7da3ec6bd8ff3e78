//! `weir check`: prints every value and its source.

use std::fmt::Write as _;

use clap::ArgMatches;
use weir_output::settings::OUTPUT_TYPES;

use weir_agent::budget::Budget;
use weir_system::config::{self, Loaded};
use weir_system::failure::Failure;

pub fn check(arguments: &ArgMatches) -> Result<(), Failure> {
    if arguments.get_flag("documentation") {
        return super::print(&weir_config::page(OUTPUT_TYPES));
    }
    let loaded = config::load(&super::inputs(arguments)?)?;
    super::print(&report(&loaded))
}

/// The shares of `memory`, and the actions when they are full.
fn shares(report: &mut String, budget: &Budget) {
    let _ = writeln!(report, "# memory is shared out among");
    for line in budget.lines().filter(|line| line.bytes > 0) {
        let size = super::table::bytes(line.bytes);
        let _ = writeln!(
            report,
            "#   {:<15} {size:>10}  when full: {}",
            line.name, line.when_full
        );
    }
}

/// Valid YAML: the output can be saved as a configuration file, except for secrets.
pub(super) fn report(loaded: &Loaded) -> String {
    let mut report = String::new();
    let mut open: Vec<&str> = Vec::new();
    for shown in &loaded.shown {
        let parts: Vec<&str> = shown.key.split('.').collect();
        let (last, parents) = parts.split_last().expect("a key has a part");
        let common = open.iter().zip(parents).take_while(|(a, b)| a == b).count();
        for (depth, parent) in parents.iter().enumerate().skip(common) {
            let _ = writeln!(report, "{:indent$}{parent}:", "", indent = 2 * depth);
        }
        open = parents.to_vec();
        let line = format!(
            "{:indent$}{last}: {}",
            "",
            shown.value,
            indent = 2 * parents.len()
        );
        let _ = write!(report, "{line:<48} # {}", shown.source);
        if let Some(content) = &shown.content {
            let _ = write!(report, ", holds {content}");
        }
        if !shown.overridden.is_empty() {
            let losers: Vec<String> = shown.overridden.iter().map(ToString::to_string).collect();
            let _ = write!(report, ", over {}", losers.join(", "));
        }
        report.push('\n');
    }
    shares(&mut report, &Budget::new(&loaded.config));
    for warning in &loaded.warnings {
        let _ = writeln!(report, "# warning: {warning}");
    }
    for note in &loaded.notes {
        let _ = writeln!(report, "# note: {note}");
    }
    report
}
