//! The configuration page, written from the table of settings.

use std::fmt::Write as _;

use weir_output::settings::{Kind, OUTPUT_TYPES, OutputType, Setting};

use super::table::GROUPS;
use super::value::{allowed, show_bytes};
use super::{Entry, Live, variable_of};

const HEAD: &str = "# Configuration

<!-- Written by `weir check --documentation`; a test compares this page with the code. -->

weir needs no configuration. What you want to change can be written in a YAML file (`weir run --config weir.yaml`,
or the variable `WEIR_CONFIG`), in the environment, or as flags; a flag wins over the environment, the environment
over the file, the file over the default. `weir check` prints every value and where it came from.

* A key that does not exist is an error, wherever it stands, and so is a value that is not allowed: weir says
  the file, the line, the key and what is allowed, and exits with 2.
* Each key has a variable, `WEIR_` and the key in capitals (`WEIR_BUCKET_WIDTH`, `WEIR_OUTPUTS_DATADOG_SITE`), and
  the names that people have deployed for the Datadog Agent are understood too. If both are set, the `WEIR_` one wins.
  An empty variable counts as not set.
* Each key of the agent itself has a flag (`--bucket-width 1s`); `--set KEY=VALUE` sets any key, those of outputs too.
* Lists in a variable are separated by commas or spaces, in a flag by commas (or give the flag several times); both
  also take YAML or JSON in one line, such as `[a, 'b c']`.
* Sizes are written as `64KiB`, `1.5GiB`, `10MB` or a number of bytes; times as `500ms`, `10s`, `5m`, `1h`, `2d` or a
  number of seconds.
* SIGHUP reads everything again. A file with a fault changes nothing and is reported; settings that need a restart
  are named in the log. Every setting of an output is applied (`docs/outputs/README.md`).
";

/// The whole of `docs/configuration.md`.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for group in GROUPS {
        let _ = write!(page, "\n## {}\n", group.title);
        for entry in group.entries {
            own(&mut page, entry);
        }
    }
    page.push_str(
        "\n## Outputs\n\nOutputs are a mapping of names to settings. Naming one switches it on; `enabled: false` switches it off\n\
         again; `--output NAME` switches one on for one run. Several outputs of one type need names of their own and `type:`.\n\n\
         ```yaml\noutputs:\n  prometheus:\n    expiry: 10m\n  datadog:\n    api_key: 0123456789abcdef0123456789abcdef\n  \
         elsewhere:\n    type: datadog\n    api_key: fedcba9876543210fedcba9876543210\n    url: https://intake.example:8443\n```\n",
    );
    for output_type in OUTPUT_TYPES {
        output(&mut page, output_type);
    }
    page
}

fn own(page: &mut String, entry: &Entry) {
    let key = entry.setting.key;
    section(page, "###", key, &entry.setting);
    let mut names = vec![
        format!("`--{}`", key.replace('_', "-")),
        format!("`{}`", variable_of(key)),
    ];
    names.extend(entry.second_names.iter().map(|name| format!("`{name}`")));
    let _ = writeln!(page, "* Also: {}", names.join(", "));
    let reload = match entry.live {
        Live::Yes => "applied".to_owned(),
        Live::No => "needs a restart".to_owned(),
        Live::While(other) => {
            format!(
                "the file is read again and another one taken; switching `{other}` on or off needs a restart"
            )
        }
    };
    let _ = writeln!(page, "* On reload: {reload}");
}

fn output(page: &mut String, output_type: &OutputType) {
    let _ = write!(
        page,
        "\n### outputs.{}\n\n{}\n",
        output_type.name, output_type.summary
    );
    let state = if output_type.on_by_default {
        "It is on by default."
    } else if output_type.settings.iter().any(|setting| setting.required) {
        "It is off until it is named, or until its required setting is in the environment."
    } else {
        "It is off until it is named."
    };
    let _ = writeln!(page, "{state}");
    for setting in output_type.settings {
        output_setting(page, output_type, setting.key, setting);
    }
}

fn output_setting(page: &mut String, output_type: &OutputType, path: &str, setting: &Setting) {
    if let Kind::Record(fields) = setting.kind {
        for field in fields {
            output_setting(page, output_type, &format!("{path}.{}", field.key), field);
        }
        return;
    }
    let key = format!("outputs.{}.{path}", output_type.name);
    section(page, "####", &key, setting);
    let second = output_type
        .environment
        .iter()
        .find(|(known, _)| *known == path)
        .map_or(&[][..], |(_, names)| names);
    let mut names = vec![format!("`{}`", variable_of(&key))];
    names.extend(second.iter().map(|name| format!("`{name}`")));
    let _ = writeln!(page, "* Also: {}", names.join(", "));
}

fn section(page: &mut String, level: &str, key: &str, setting: &Setting) {
    let _ = write!(page, "\n{level} {key}\n\n{}\n\n", setting.effect);
    let _ = writeln!(page, "* Type: {}", allowed(&setting.kind));
    let default = match setting.default {
        "''" => "empty".to_owned(),
        text => format!("`{text}`"),
    };
    let required = if setting.required { "; it is required" } else { "" };
    let _ = writeln!(page, "* Default: {default}{required}");
    if !setting.zero.is_empty() {
        let _ = writeln!(page, "* Zero: {}", setting.zero);
    }
    if !setting.who.is_empty() {
        let _ = writeln!(page, "* Changed by: {}", setting.who);
    }
}

/// What `--help` says of a setting.
pub fn help(setting: &Setting) -> String {
    let mut help = setting.effect.to_owned();
    let default = match setting.kind {
        _ if setting.default == "''" => String::new(),
        Kind::Bytes { .. } => setting
            .default
            .parse()
            .map_or(setting.default.to_owned(), show_bytes),
        _ => setting.default.to_owned(),
    };
    if !default.is_empty() && default.len() < 60 {
        let _ = write!(help, " [default: {default}]");
    }
    help
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Inputs, entries, load};

    #[test]
    fn the_committed_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/configuration.md differs from the table; run: cargo run -- check --documentation > docs/configuration.md"
        );
    }

    #[test]
    fn every_setting_is_described_and_every_default_is_valid() {
        load(&Inputs::default()).expect("the defaults are a configuration");
        for entry in entries() {
            let setting = &entry.setting;
            assert!(
                !setting.effect.is_empty() && !setting.who.is_empty(),
                "{}",
                setting.key
            );
        }
        for output_type in OUTPUT_TYPES {
            described(output_type.name, output_type.settings);
        }
    }

    fn described(prefix: &str, settings: &[Setting]) {
        for setting in settings {
            let key = format!("{prefix}.{}", setting.key);
            assert!(!setting.effect.is_empty(), "{key}");
            match setting.kind {
                Kind::Record(fields) => described(&key, fields),
                _ => assert!(!setting.who.is_empty(), "{key}"),
            }
        }
    }
}
