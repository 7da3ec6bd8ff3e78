//! `weir top`: usage of the running agent. Full screen on a terminal, otherwise a table.
//!
//! [`state`] holds the screen's state and handles keys, [`draw`] draws it, [`data`] queries the agent, and [`screen`] combines them.
//! [`plain`] is the table.

use std::io::{self, IsTerminal as _};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ratatui::crossterm::event::KeyEvent;

use super::agent::{self, admin_address};
use crate::failure::Failure;

mod data;
mod draw;
mod plain;
mod screen;
mod state;

/// Events of the screen.
enum Happening {
    Typed(KeyEvent),
    Resized,
    /// The agent's answer, or the error.
    Answered(Box<Result<data::Snapshot, String>>),
    End,
}

pub fn command() -> Command {
    Command::new("top")
        .about(
            "Show traffic, losses, and the metrics, tag keys and origins with the most contexts and samples",
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print a table and exit, even on a terminal"),
        )
        .arg(
            Arg::new("top")
                .long("top")
                .short('n')
                .value_name("NUMBER")
                .value_parser(value_parser!(u64).range(1..=weir_context::SUMMARY_ROWS as u64))
                .default_value("10")
                .help("Rows of each table"),
        )
        .args(agent::arguments())
        .arg(
            Arg::new("watch")
                .long("watch")
                .action(ArgAction::SetTrue)
                .help("Print the table again every second"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("Print the agent's JSON instead"),
        )
}

pub fn top(arguments: &ArgMatches) -> Result<(), Failure> {
    let wants_text = ["once", "watch", "json"]
        .iter()
        .any(|flag| arguments.get_flag(flag));
    if wants_text || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return plain::top(arguments);
    }
    screen::run(admin_address(arguments)?)
}
