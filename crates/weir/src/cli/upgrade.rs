//! Replaces the running agent with the program on disk.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_config::Flag;

use weir_system::config::{self, Inputs};
use weir_system::failure::Failure;

pub fn command() -> Command {
    Command::new("upgrade")
        .about("Replace the running agent by the program on disk, without loss")
        .long_about(
            "Replace the running agent by the program on disk, without loss. The agent starts it with its own arguments and --take-over, hands over, and ends; SIGUSR2 does the same. If the new one cannot start, the old one continues and the reason is printed. Needs state_path.",
        )
        .arg(
            Arg::new("state_path")
                .long("state-path")
                .value_name("PATH")
                .help("The agent's state directory [default: the configured one]"),
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
            "upgrade: the running agent is found through its state_path, which is not set here; name its configuration with \
             --config FILE, or the directory with --state-path DIRECTORY",
        ));
    };
    let process = weir_process::upgrade(&path)?;
    super::print(&format!("process {process} took over\n"))
}
