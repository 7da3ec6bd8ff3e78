//! The configuration page, written from the table of settings.

use std::fmt::Write as _;

use crate::merge::{Merge, is_shared};
use crate::outputs::OutputType;
use crate::setting::{Reload, Setting, leaves};
use crate::source::variable_of;
use crate::table::GROUPS;

const HEAD: &str = "# Configuration

<!-- Written by `weir check --documentation`; a test compares this page with the code. -->

weir needs no configuration. Settings go into a YAML file (`weir run --config weir.yaml`,
or the variable `WEIR_CONFIG`), in the environment, or as flags; a flag wins over the environment, the environment
over the file, the file over the default. `weir check` prints every value and its source.

* An unknown key is an error everywhere, and so is a value that is not allowed: weir names the file, the line, the key and the allowed values, and exits with 2.
* Each key has a variable, `WEIR_` and the key in capitals (`WEIR_BUCKET_WIDTH`, `WEIR_OUTPUTS_DATADOG_SITE`), and
  weir also reads the variables of the Datadog Agent. If both are set, the `WEIR_` one wins.
  An empty variable counts as not set.
* Each key of the agent itself has a flag (`--bucket-width 1s`); `--set KEY=VALUE` sets any key, those of outputs too.
* Lists in a variable are separated by commas or spaces, in a flag by commas (or give the flag several times); both
  also take YAML or JSON in one line, such as `[a, 'b c']`.
* Sizes are written as `64KiB`, `1.5GiB`, `10MB` or a number of bytes; times as `500ms`, `10s`, `5m`, `1h`, `2d` or a
  number of seconds.
* SIGHUP reads everything again. An invalid file is rejected with the reason and changes nothing; the log names settings that need a restart. Every setting of an output is applied (`docs/outputs/README.md`).
";

const OUTPUTS: &str = "
## Outputs

Outputs are a mapping of names to settings. Naming one switches it on; `enabled: false` switches it off
again; `--output NAME` switches one on for one run. Several outputs of one type need different names and `type:`.

```yaml
outputs:
  prometheus:
    expiry: 10m
  datadog:
    api_key: 0123456789abcdef0123456789abcdef
  elsewhere:
    type: datadog
    api_key: fedcba9876543210fedcba9876543210
    url: https://intake.example:8443
```
";

const MERGE: &str = "
## weir merge

`weir merge --config merge.yaml` has a separate file (`docs/fleet.md`) with the outputs above, except relays, and the settings below. `--set KEY=VALUE`
and the variables set them too. A reload changes none of them. It shares these settings with the agent; its default for `admin` is `127.0.0.1:8128`:
";

/// The whole of `docs/configuration.md`.
pub fn page<S>(types: &'static [OutputType<S>]) -> String {
    let mut page = HEAD.to_owned();
    for group in GROUPS {
        let _ = write!(page, "\n## {}\n", group.title);
        for setting in group.settings {
            own(&mut page, setting);
        }
    }
    page.push_str(OUTPUTS);
    for output_type in types {
        output(&mut page, output_type);
    }
    merge(&mut page);
    page
}

fn merge(page: &mut String) {
    page.push_str(MERGE);
    let shared = GROUPS.iter().flat_map(|group| group.settings);
    let shared = shared.filter(|setting| is_shared(setting.key));
    let names: Vec<String> = shared.map(|setting| format!("`{}`", setting.key)).collect();
    let _ = writeln!(page, "\n{}.", names.join(", "));
    for leaf in leaves(Merge::SETTINGS) {
        section(page, "###", &leaf.path, leaf.setting);
        names_of(page, [variable_of(&leaf.path)], leaf.also);
    }
}

fn own(page: &mut String, setting: &Setting) {
    section(page, "###", setting.key, setting);
    let flag = format!("--{}", setting.key.replace('_', "-"));
    names_of(page, [flag, variable_of(setting.key)], setting.also);
    let reload = match setting.reload {
        Reload::Applied => "applied".to_owned(),
        Reload::Waits => "needs a restart".to_owned(),
        Reload::AppliedWhile(other) => {
            format!(
                "the file is read again, and a new one applies; switching `{other}` on or off needs a restart"
            )
        }
    };
    let _ = writeln!(page, "* On reload: {reload}");
}

fn output<S>(page: &mut String, output_type: &OutputType<S>) {
    let OutputType { name, summary, .. } = output_type;
    let state = if output_type.on_by_default {
        "It is on by default."
    } else if output_type.settings.iter().any(|setting| setting.required) {
        "It is off until it is named, or until its required setting is in the environment."
    } else {
        "It is off until it is named."
    };
    let _ = write!(page, "\n### outputs.{name}\n\n{summary}\n{state}\n");
    for leaf in leaves(output_type.settings) {
        let key = format!("outputs.{name}.{}", leaf.path);
        section(page, "####", &key, leaf.setting);
        names_of(page, [variable_of(&key)], leaf.also);
    }
}

/// Other names of the setting.
fn names_of<const N: usize>(page: &mut String, own: [String; N], also: &[&str]) {
    let own = own.iter().map(String::as_str).chain(also.iter().copied());
    let names: Vec<String> = own.map(|name| format!("`{name}`")).collect();
    let _ = writeln!(page, "* Also: {}", names.join(", "));
}

fn section(page: &mut String, level: &str, key: &str, setting: &Setting) {
    let _ = write!(page, "\n{level} {key}\n\n{}\n\n", setting.effect);
    let _ = writeln!(page, "* Type: {}", setting.kind.allowed());
    let default = match setting.default {
        "''" => "empty".to_owned(),
        text => format!("`{text}`"),
    };
    let required = if setting.required { "; it is required" } else { "" };
    let _ = writeln!(page, "* Default: {default}{required}");
    if !setting.zero.is_empty() {
        let _ = writeln!(page, "* Zero: {}", setting.zero);
    }
    let _ = writeln!(page, "* Change it {}", setting.change);
}

/// The help text of a setting.
pub fn help(setting: &Setting) -> String {
    match setting.default {
        "''" => setting.effect.to_owned(),
        default if default.len() >= 60 => setting.effect.to_owned(),
        default => format!("{} [default: {default}]", setting.effect),
    }
}
