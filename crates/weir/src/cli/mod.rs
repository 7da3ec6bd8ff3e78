//! The command line: commands and the functions that run them.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind as ClapErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use weir_config::{Flag, GROUPS, OUTPUT_FLAG_KEY, Role, Setting, SettingType};
use weir_output::settings::OUTPUT_TYPES;

use weir_admin::version::VERSION;
use weir_process::starter;
use weir_system::config::{self, Inputs};
use weir_system::failure::{Failure, FailureKind};

mod about;
pub mod agent;
mod capture;
mod chart;
mod check;
#[cfg(test)]
mod check_tests;
mod clients;
mod convert;
mod doctor;
mod explain;
mod explain_columns;
mod fleet_replay;
mod formula;
mod graph;
#[cfg(test)]
mod limits_tests;
mod merge;
mod parse;
mod partitions;
mod quarantine;
mod recent;
mod reference;
mod replay;
#[cfg(test)]
mod rules_page_tests;
mod send;
#[cfg(test)]
mod sources_tests;
mod status;
mod stream;
mod style;
mod table;
mod tail;
mod top;
mod upgrade;

/// Runs the command in `arguments`, which start with the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    weir_system::sys::look_names_up_without_modules();
    let matches = match command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    match matches.subcommand() {
        Some(("run", arguments)) => {
            let inputs = inputs(arguments)?;
            let loaded = config::load(&inputs)?;
            weir_process::run(loaded, inputs, arguments.get_flag("take-over"))
        }
        Some((starter::COMMAND, arguments)) => {
            let arguments = arguments.get_many::<OsString>("arguments");
            starter::run(arguments.into_iter().flatten().cloned())
        }
        Some(("merge", arguments)) => merge::merge(arguments),
        Some(("upgrade", arguments)) => upgrade::upgrade(arguments),
        Some(("check", arguments)) => check::check(arguments),
        Some(("convert", arguments)) => convert::convert(arguments),
        Some(("parse", arguments)) => parse::parse(arguments),
        Some(("send", arguments)) => send::send(arguments),
        Some(("status", arguments)) => status::status(arguments),
        Some(("top", arguments)) => top::top(arguments),
        Some(("graph", arguments)) => graph::graph(arguments),
        Some(("explain", arguments)) => explain::explain(arguments),
        Some(("doctor", arguments)) => doctor::doctor(arguments),
        Some(("completions", arguments)) => about::completions(arguments),
        Some(("manual", arguments)) => about::manual(arguments),
        None if matches.get_flag("version") => about::version(&matches),
        Some(("tail", arguments)) => tail::tail(arguments),
        Some(("capture", arguments)) => capture::capture(arguments),
        Some(("replay", arguments)) => replay::replay(arguments),
        _ => Err(Failure::usage("no command given; try --help")),
    }
}

/// Help is an answer; every other parser error is wrong usage.
fn usage(error: &clap::Error) -> Result<(), Failure> {
    let _ = error.print();
    if error.kind() == ClapErrorKind::DisplayHelp {
        Ok(())
    } else {
        Err(Failure {
            kind: FailureKind::Usage,
            message: config_hint(error).unwrap_or_default(),
        })
    }
}

/// Other programs take their configuration file without a flag.
fn config_hint(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_file = error.kind() == ClapErrorKind::UnknownArgument && Path::new(argument).is_file();
    is_file.then(|| format!("a configuration file is named by a flag: --config {argument}"))
}

/// Writes a command's answer. Ignores a closed pipe.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::runtime(format!(
            "standard output cannot be written: {error}"
        ))),
        _ => Ok(()),
    }
}

/// A flag without a value.
fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// All commands.
pub fn command() -> Command {
    let run = with_settings(Command::new("run").about("Run the agent").long_about(
        "Run the agent. Without any configuration it receives on UDP 127.0.0.1:8125 and answers HTTP on \
                 127.0.0.1:8127.",
    ))
    .arg(
        switch("take-over", "Take over from the weir that uses the same state_path, without loss; start normally if there is none"),
    );
    let check = with_settings(
        Command::new("check").about("Check the configuration and print every value and its source"),
    )
    .arg(switch("documentation", "Print docs/configuration.md instead"));
    Command::new("weir")
        .about("Receives application metrics, aggregates them and delivers them")
        .version(VERSION)
        .disable_version_flag(true)
        .arg(switch("version", "Print the version, its commit and its features").short('V'))
        .arg(switch("json", "Print the version as JSON").requires("version"))
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(run)
        .subcommand(check)
        .subcommand(convert::command())
        .subcommand(parse::command())
        .subcommand(send::command())
        .subcommand(status::command())
        .subcommand(top::command())
        .subcommand(graph::command())
        .subcommand(explain::command())
        .subcommand(doctor::command())
        .subcommand(about::completions_command())
        .subcommand(about::manual_command())
        .subcommand(tail::command())
        .subcommand(capture::command())
        .subcommand(replay::command())
        .subcommand(upgrade::command())
        .subcommand(merge::command())
        .subcommand(
            Command::new(starter::COMMAND)
                .about("Internal: starts the program for an agent in a sandbox")
                .hide(true)
                .disable_help_flag(true)
                .arg(
                    Arg::new("arguments")
                        .num_args(0..)
                        .trailing_var_arg(true)
                        .allow_hyphen_values(true)
                        .value_parser(value_parser!(OsString)),
                ),
        )
}

/// Adds one flag per setting of the agent, from the table.
fn with_settings(mut command: Command) -> Command {
    command = with_sources(command);
    for group in GROUPS {
        for setting in group.settings {
            let arg = setting_flag(setting)
                .help(weir_config::help(setting))
                .help_heading(group.title)
                .hide_short_help(!setting.common);
            command = command.arg(arg);
        }
        // The configuration reports the replacement of a removed flag.
        for removed in group.removed {
            command = command.arg(flag(removed.key).hide(true));
        }
    }
    command
}

/// Settings of a role with a flag of their own; `--set` covers all.
fn flags_of(role: Role) -> impl Iterator<Item = &'static Setting> + Clone {
    role.settings()
        .filter(|setting| !matches!(setting.kind, SettingType::Record(_)))
}

/// Adds the flags that can set any setting.
fn with_sources(command: Command) -> Command {
    let outputs: Vec<&str> = OUTPUT_TYPES.iter().map(|output_type| output_type.name).collect();
    command
        .arg(
            Arg::new("config")
                .long("config")
                .short('c')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("The configuration file [variable: WEIR_CONFIG]"),
        )
        .arg(
            Arg::new(OUTPUT_FLAG_KEY)
                .long("output")
                .value_name("NAME")
                .action(ArgAction::Append)
                .help(format!(
                    "Switch an output on: {} or a name from the file",
                    outputs.join(", ")
                )),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .help("Set any key, such as outputs.datadog.site=datadoghq.eu"),
        )
}

fn flag(key: &'static str) -> Arg {
    Arg::new(key)
        .long(key.replace('_', "-"))
        .action(ArgAction::Append)
        .allow_hyphen_values(true)
}

fn setting_flag(setting: &Setting) -> Arg {
    let arg = flag(setting.key).value_name(value_name(&setting.kind));
    match setting.kind {
        SettingType::Bool => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        _ => arg,
    }
}

fn value_name(kind: &SettingType) -> &'static str {
    match kind {
        SettingType::Bool => "BOOL",
        SettingType::Integer { .. } | SettingType::Number { .. } => "NUMBER",
        SettingType::Bytes { .. } => "SIZE",
        SettingType::Duration { .. } => "TIME",
        SettingType::List(_) => "LIST",
        _ => "VALUE",
    }
}

/// Flags, environment and file name, not yet parsed.
fn inputs(matches: &ArgMatches) -> Result<Inputs, Failure> {
    inputs_of(Role::Agent, matches)
}

/// The same for a role.
fn inputs_of(role: Role, matches: &ArgMatches) -> Result<Inputs, Failure> {
    let mut flags = Vec::new();
    let texts = |id: &str| -> Vec<String> {
        // A command need not have all of them.
        let values = matches.try_get_many::<String>(id).ok().flatten();
        values.map(|values| values.cloned().collect()).unwrap_or_default()
    };
    let removed = weir_config::removed_settings().map(|removed| removed.key);
    let removed = removed.filter(|_| role == Role::Agent);
    for key in flags_of(role).map(|setting| setting.key).chain(removed) {
        let values = texts(key);
        if !values.is_empty() {
            let shown = format!("--{}", key.replace('_', "-"));
            flags.push(Flag {
                shown,
                key: key.to_owned(),
                values,
            });
        }
    }
    let outputs = texts(OUTPUT_FLAG_KEY);
    if !outputs.is_empty() {
        flags.push(Flag {
            shown: "--output".to_owned(),
            key: OUTPUT_FLAG_KEY.to_owned(),
            values: outputs,
        });
    }
    for assignment in texts("set") {
        let Some((key, value)) = assignment.split_once('=') else {
            let message = format!("flag --set: {assignment:?} is not KEY=VALUE, such as bucket_width=1s");
            return Err(Failure::usage(message));
        };
        let key = key.trim().to_owned();
        flags.push(Flag {
            shown: format!("--set {key}"),
            key,
            values: vec![value.to_owned()],
        });
    }
    Ok(Inputs {
        file: matches.get_one::<PathBuf>("config").cloned(),
        environment: config::environment(),
        flags,
        resolve_names: true,
        run_secret_backend: true,
        role,
        ..Inputs::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_its_flag_is_answered_with_the_flag() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for command in ["run", "check", "doctor"] {
            let message = |argument: &str| {
                let arguments = ["weir", command, argument].map(OsString::from);
                main(arguments).unwrap_err().message
            };
            let hint = format!("a configuration file is named by a flag: --config {file}");
            assert_eq!((message(file), message("no-file")), (hint, String::new()));
        }
    }
}
