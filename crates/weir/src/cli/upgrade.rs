//! Letting the program on disk go on in place of the agent that runs.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_config::Flag;

use crate::config::{self, Inputs};
use crate::failure::Failure;

pub fn command() -> Command {
    Command::new("upgrade")
        .about("Start the program on disk in place of the agent that runs, without losing anything")
        .long_about(
            "Start the program on disk in place of the agent that runs, without losing anything. The agent starts it with its own \
             arguments and --take-over, hands over, and ends; SIGUSR2 does the same. If the new one cannot start, the old one goes on \
             and the reason is printed. Needs state_path.",
        )
        .arg(
            Arg::new("state_path")
                .long("state-path")
                .value_name("PATH")
                .help("The directory of the agent; otherwise as the configuration says"),
        )
        .arg(
            Arg::new("config")
                .long("config")
                .short('c')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("The agent's configuration file [variable: WEIR_CONFIG]"),
        )
}

pub fn upgrade(arguments: &ArgMatches) -> Result<(), Failure> {
    let flag = arguments.get_one::<String>("state_path").map(|path| Flag {
        shown: "--state-path".to_owned(),
        key: "state_path".to_owned(),
        values: vec![path.clone()],
    });
    let loaded = config::load(&Inputs {
        file: arguments.get_one::<PathBuf>("config").cloned(),
        environment: config::environment(),
        flags: flag.into_iter().collect(),
        text: None,
        resolve_names: true,
        ..Inputs::default()
    })?;
    let Some(path) = loaded.config.running.state_path else {
        return Err(Failure::usage(
            "upgrade: state_path is not set; the agent that runs is found by it, and hands over through it",
        ));
    };
    let process = crate::run::upgrade(&path)?;
    super::print(&format!("process {process} goes on\n"))
}
