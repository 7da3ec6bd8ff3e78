//! `weir explain`: the effect of one message at the running agent, with the reasons.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::agent::{self, admin_address, fetch, read};
use super::recent::path;
use super::switch;
use weir_status::explain::Explanation;
use weir_system::failure::{Failure, FailureKind};

pub fn command() -> Command {
    Command::new("explain")
        .about("Show the sender of a message, the rules that apply, and the context it becomes")
        .arg(
            Arg::new("line")
                .value_name("MESSAGE")
                .required_unless_present("columns")
                .allow_hyphen_values(true)
                .help("The message, such as 'page.views:1|c|#env:prod'"),
        )
        .arg(
            Arg::new("pid")
                .long("pid")
                .value_name("PID")
                .value_parser(value_parser!(i32).range(1..))
                .help("The process to treat as the sender, as on a Unix socket"),
        )
        .arg(
            Arg::new("listener")
                .long("listener")
                .value_name("LISTENER")
                .help("The listener that receives it: udp, uds, uds_stream, tcp, or an address from the log"),
        )
        .arg(
            Arg::new("columns")
                .long("columns")
                .value_name("FILE")
                .conflicts_with("line")
                .value_parser(value_parser!(PathBuf))
                .help("Explain each series of this body of a request with columns, compressed or not"),
        )
        .arg(
            Arg::new("local-data")
                .long("local-data")
                .value_name("TEXT")
                .requires("columns")
                .help("The header x-dsd-ld of that request"),
        )
        .arg(
            Arg::new("external-data")
                .long("external-data")
                .value_name("TEXT")
                .requires("columns")
                .help("The header x-dsd-ed of that request"),
        )
        .args(agent::arguments())
        .arg(switch("json", "Print the agent's JSON instead"))
}

pub fn explain(arguments: &ArgMatches) -> Result<(), Failure> {
    let address = admin_address(arguments)?;
    if let Some(file) = arguments.get_one::<PathBuf>("columns") {
        return super::explain_columns::explain(address, file, arguments);
    }
    let line = arguments.get_one::<String>("line").map_or("", String::as_str);
    let pid = arguments.get_one::<i32>("pid").map(i32::to_string);
    let mut parameters = vec![("line", line)];
    parameters.extend(pid.as_deref().map(|pid| ("pid", pid)));
    let listener = arguments.get_one::<String>("listener");
    parameters.extend(listener.map(|name| ("listener", name.as_str())));
    let body = fetch(address, &path("/api/v1/explain", &parameters))?;
    let explanation: Explanation = read(address, &body)?;
    match arguments.get_flag("json") {
        true => super::print(&body)?,
        false => super::print(&explanation.render())?,
    }
    match explanation.rejected {
        None => Ok(()),
        // The text says it.
        Some(_) => Err(Failure {
            kind: FailureKind::Runtime,
            message: String::new(),
        }),
    }
}
