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
    let text = match arguments.get_flag("json") {
        false => about.text(),
        true => serde_json::to_string(&about).map_err(|error| Failure::runtime(error.to_string()))? + "\n",
    };
    super::print(&text)
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
    super::print(&script(shell))
}

fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "weir", &mut text);
    String::from_utf8_lossy(&text).into_owned()
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn completions_and_manual_pages_know_every_command() {
        let manual = |directory: &str| crate::cli::main(["weir", "manual", directory].map(OsString::from));
        let directory = tempfile::tempdir().unwrap();
        manual(directory.path().to_str().unwrap()).unwrap();
        assert!(manual("/no/such/directory").is_err());
        let scripts = [Shell::Bash, Shell::Zsh, Shell::Fish].map(script);
        let whole = crate::cli::command();
        let names = whole.get_subcommands().filter(|command| !command.is_hide_set());
        let names: Vec<&str> = names.map(Command::get_name).collect();
        assert!(names.contains(&"doctor"), "{names:?}");
        for name in names {
            assert!(scripts.iter().all(|script| script.contains(name)), "{name}");
            let page = directory.path().join(format!("weir-{name}.1"));
            let page = std::fs::read_to_string(page).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
        }
        assert!(directory.path().join("weir.1").exists());
    }

    #[test]
    fn the_version_lists_the_features_that_are_built_in() {
        let about = About::this();
        let json = serde_json::to_value(&about).unwrap();
        assert_eq!(json["outputs"].as_array().unwrap().len(), about.outputs.len());
        let features = match about.features.as_slice() {
            [] => "none".to_owned(),
            features => features.join(", "),
        };
        let text = about.text();
        assert!(
            text.starts_with(&format!("weir {}\ncommit ", about.version)),
            "{text}"
        );
        assert!(text.contains(&format!("\nfeatures {features}\n")), "{text}");
    }
}
