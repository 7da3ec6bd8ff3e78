//! Generates the page of the command line from clap's commands.

use std::fmt::Write as _;

use clap::{Arg, Command};

const HEAD: &str = "# Command line

<!-- Written by `weir manual --documentation`; a test compares this page with the code. -->

`weir COMMAND --help` prints the same, and `weir manual DIRECTORY` writes it as manual pages. The exit code is 0 for success, 1 for a
failure at run time, and 2 for wrong usage or an invalid configuration.
";

const SETTINGS: &str = "Each [setting](configuration.md) of the agent is a flag too, such as `--bucket-width 1s` for `bucket_width`.";

/// The text of `docs/command-line.md`.
pub fn page() -> String {
    let mut weir = super::command();
    weir.build();
    let mut page = HEAD.to_owned();
    section(&mut page, &mut weir, 2);
    page
}

fn section(page: &mut String, command: &mut Command, level: usize) {
    let usage = command.render_usage().to_string();
    let about = command.get_long_about().or(command.get_about());
    let _ = write!(
        page,
        "\n{} {}\n\n{}.\n\n```usage\n{}\n```\n",
        "#".repeat(level),
        command.get_bin_name().unwrap_or("weir"),
        plain(about).trim_end_matches('.'),
        usage.trim_start_matches("Usage: ")
    );
    arguments(page, command);
    for line in plain(command.get_after_help()).lines() {
        let line = match line.strip_prefix("Example: ") {
            Some(example) => format!("Example: `{example}`"),
            None => line.to_owned(),
        };
        let _ = write!(page, "\n{line}\n");
    }
    // Commands of weir are at its level, commands of commands one level below.
    let level = if command.get_bin_name().is_some_and(|name| name.contains(' ')) {
        level + 1
    } else {
        level
    };
    for command in command
        .get_subcommands_mut()
        .filter(|command| !command.is_hide_set())
    {
        section(page, command, level);
    }
}

/// A table of a command's arguments. Flags for settings are under one heading, because they have their own page.
fn arguments(page: &mut String, command: &Command) {
    let all = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let (settings, own): (Vec<&Arg>, Vec<&Arg>) = all
        .filter(|arg| arg.get_id() != "help")
        .partition(|arg| arg.get_help_heading().is_some());
    if !settings.is_empty() {
        let _ = write!(page, "\n{SETTINGS}\n");
    }
    if own.is_empty() {
        return;
    }
    let _ = write!(page, "\n| argument | meaning |\n| --- | --- |\n");
    for arg in own {
        let _ = writeln!(page, "| {} | {} |", name(arg), meaning(arg));
    }
}

/// In the form that a user types: `-c`, `--config FILE`.
fn name(arg: &Arg) -> String {
    let mut value = String::new();
    if arg.get_action().takes_values() {
        value = match arg.get_value_names() {
            Some(names) => names.join(" "),
            None => arg.get_id().to_string(),
        };
    }
    let Some(long) = arg.get_long() else {
        return format!("`{value}`");
    };
    let short = arg
        .get_short()
        .map_or(String::new(), |short| format!("`-{short}`, "));
    format!("{short}`{}`", format!("--{long} {value}").trim_end())
}

fn meaning(arg: &Arg) -> String {
    let mut meaning = plain(arg.get_long_help().or(arg.get_help())).replace('|', "\\|");
    if !arg.get_action().takes_values() {
        return meaning;
    }
    let defaults = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy());
    for value in defaults {
        let _ = write!(meaning, " [default: {value}]");
    }
    let possible = arg.get_possible_values();
    let possible: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
    if !possible.is_empty() {
        let _ = write!(meaning, " [possible values: {}]", possible.join(", "));
    }
    meaning
}

/// Without terminal escapes, and escaped for Markdown.
fn plain(text: Option<&clap::builder::StyledStr>) -> String {
    text.map_or(String::new(), |text| text.to_string().replace('*', "\\*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/command-line.md differs from the code; run: cargo run -- manual --documentation > docs/command-line.md"
        );
    }

    #[test]
    fn every_command_and_argument_is_on_the_page() {
        let page = page();
        let mut weir = super::super::command();
        weir.build();
        for command in weir.get_subcommands().filter(|command| !command.is_hide_set()) {
            let heading = format!("\n## weir {}\n", command.get_name());
            let (_, section) = page.split_once(&heading).expect(&heading);
            let section = section.split("\n## ").next().unwrap();
            for arg in command.get_arguments() {
                let flag = arg.get_long().map(|long| format!("`--{long}"));
                let listed = flag.is_none_or(|flag| section.contains(&flag));
                let elsewhere =
                    arg.is_hide_set() || arg.get_id() == "help" || arg.get_help_heading().is_some();
                assert!(listed || elsewhere, "{heading}: {arg}");
            }
        }
        assert!(!page.contains("{}") && page.contains("### weir convert datadog"));
    }
}
