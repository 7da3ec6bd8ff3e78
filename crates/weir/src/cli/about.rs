//! The version, completions for shells, and manual pages.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use super::reference;
use super::switch;
use weir_admin::version::About;
use weir_system::failure::Failure;

pub fn version(arguments: &ArgMatches) -> Result<(), Failure> {
    let about = About::this();
    if !arguments.get_flag("json") {
        return super::print(&about.text());
    }
    let text = serde_json::to_string(&about).map_err(|error| Failure::runtime(error.to_string()))?;
    super::print(&(text + "\n"))
}

pub fn completions_command() -> Command {
    Command::new("completions")
        .about("Print the completion script of a shell")
        .after_help("Example: weir completions bash > /usr/share/bash-completion/completions/weir")
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .required(true)
                .value_parser(value_parser!(Shell))
                .help("The shell"),
        )
}

pub fn completions(arguments: &ArgMatches) -> Result<(), Failure> {
    let shell = *arguments.get_one::<Shell>("shell").expect("required");
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "weir", &mut text);
    super::print(&String::from_utf8_lossy(&text))
}

pub fn manual_command() -> Command {
    Command::new("manual")
        .about("Write the manual pages: weir(1) and one for each command")
        .arg(
            Arg::new("directory")
                .value_name("DIRECTORY")
                .required_unless_present("documentation")
                .value_parser(value_parser!(PathBuf))
                .help("An existing directory to write them to"),
        )
        .arg(switch("documentation", "Print docs/command-line.md instead").conflicts_with("directory"))
}

pub fn manual(arguments: &ArgMatches) -> Result<(), Failure> {
    if arguments.get_flag("documentation") {
        return super::print(&reference::page());
    }
    let directory = arguments.get_one::<PathBuf>("directory").expect("required");
    let mut whole = super::command().disable_help_flag(true);
    whole.build();
    page(&whole, "weir", directory)?;
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        page(command, &format!("weir-{}", command.get_name()), directory)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str, directory: &Path) -> Result<(), Failure> {
    let named = command.clone().display_name(name.to_owned());
    let page = clap_mangen::Man::new(named)
        .title(name.to_uppercase())
        .manual("weir");
    let mut text = Vec::new();
    let path = directory.join(format!("{name}.1"));
    let written = page.render(&mut text).and_then(|()| std::fs::write(&path, text));
    written.map_err(|error| Failure::runtime(format!("{} cannot be written: {error}", path.display())))
}
