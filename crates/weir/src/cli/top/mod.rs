//! `weir top`: usage of the running agent. Full screen on a terminal, otherwise a table.
//!
//! [`state`] holds the screen's state and handles keys, [`draw`] draws it, [`data`] queries the agent, and [`screen`] combines them.
//! [`plain`] is the table.

use std::io::{self, IsTerminal as _};

use clap::{Arg, ArgMatches, Command, value_parser};
use ratatui::crossterm::event::{KeyEvent, MouseEvent};

use super::agent::{self, admin_address};
use super::switch;
use weir_system::failure::Failure;

mod data;
mod draw;
mod plain;
mod screen;
mod state;

/// Events of the screen.
enum ScreenEvent {
    Typed(KeyEvent),
    Pointed(MouseEvent),
    Resized,
    /// The agent's answer, or the error.
    Answered(Box<Result<data::Snapshot, Failure>>),
    End,
}

pub fn command() -> Command {
    Command::new("top")
        .about(
            "Show traffic, losses, and the metrics, tag keys and origins with the most contexts and samples",
        )
        .arg(switch("once", "Print a table and exit, even on a terminal"))
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
        .arg(switch("watch", "Print the table again every second"))
        .arg(switch("json", "Print the agent's JSON instead"))
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
