//! Settings of `weir merge`: its own, and those that it shares with the agent.

use std::time::Duration;

use crate::fleet_log::{KafkaClient, LogReader};
use crate::node::{Key, Node};
use crate::outputs::SettingProblem;
use crate::reader::{Reader, Section};
use crate::setting::{Setting, SettingType};
use crate::settings;
use crate::table;
use crate::value::Typed as _;

settings! {
    /// The place of a fleet's records, and the wait for them.
    pub struct Merge {
        log: LogReader = "{}";
        grace: Duration = "60s"
            .takes(SettingType::Duration { min: Duration::from_secs(1), max: Duration::from_secs(3600) })
            .effect("The time that a bucket waits for missing agents after its end. Later records go into a correction.")
            .change("if your agents are on slow networks, or results should come sooner.")
            .common();
        max_skew: Duration = "10m"
            .takes(SettingType::Duration { min: Duration::from_secs(1), max: Duration::from_secs(86_400) })
            .effect("The largest allowed difference between the clock of an agent and that of the log. Records beyond it are quarantined and counted by agent.")
            .change("if your machines have no time service.");
    }
}

/// The role of the program that a configuration is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// `weir run`.
    #[default]
    Agent,
    /// `weir merge`.
    Merge,
}

/// Settings of the agent that a merge takes as well.
const SHARED: [&str; 19] = [
    "histogram_aggregates",
    "histogram_percentiles",
    "histogram_weights",
    "hostname",
    "memory",
    "cpu",
    "admin",
    "admin_hosts",
    "admin_remote",
    "admin_token_file",
    "sandbox",
    "grace_period",
    "state_path",
    "log_level",
    "flush_summary",
    "secret_backend_command",
    "secret_backend_arguments",
    "secret_backend_timeout",
    "secret_backend_command_allow_group_exec_perm",
];

/// Default admin address of a merge. An agent on the same machine uses the port before it.
const ADMIN: &str = "127.0.0.1:8128";

impl Role {
    /// Every setting of the role, outputs aside, in the order of the page.
    pub fn settings(self) -> impl Iterator<Item = &'static Setting> + Clone {
        let own = match self {
            Role::Agent => &[],
            Role::Merge => Merge::SETTINGS,
        };
        own.iter()
            .chain(table::settings().filter(move |setting| self == Role::Agent || is_shared(setting.key)))
    }

    /// A setting as it applies to the role.
    pub fn version_of(self, setting: &Setting) -> Setting {
        let mut version = *setting;
        if self == Role::Merge && setting.key == "admin" {
            version.default = ADMIN;
        }
        version
    }

    /// Whether a setting of the agent means nothing here.
    pub(crate) fn skips(self, key: &str) -> bool {
        self == Role::Merge && !is_shared(key) && table::settings().any(|setting| setting.key == key)
    }
}

pub(crate) fn is_shared(key: &str) -> bool {
    SHARED.contains(&key)
}

/// Refuses settings in the file that only agents have.
pub(crate) fn refuse_settings_of_agents(reader: &mut Reader<'_>, file: &[(Key, Node)]) {
    for (key, _) in file {
        if Role::Merge.skips(&key.text) {
            let message = "is a setting of agents (`weir run`), and `weir merge` does not take it";
            reader.problem(reader.in_file(key.line), &key.text, message);
        }
    }
}

/// `None`: something is wrong, which was reported.
pub(crate) fn take(section: &mut Section<'_, '_>, client: KafkaClient) -> Option<Merge> {
    let before = section.reader.problems.len();
    let mut merge = Merge::take(section, &Setting::of::<bool>("", "").flat())?;
    section
        .reader
        .files_below("log", &mut |files| merge.log.log.read(files));
    if section.reader.problems.len() > before {
        return None;
    }
    let blamed = merge.check(client).map_err(|SettingProblem { key, message }| {
        section.reader.blame(&key, message);
    });
    blamed.ok().map(|()| merge)
}

impl Merge {
    fn check(&self, client: KafkaClient) -> Result<(), SettingProblem> {
        for (key, time) in [("grace", self.grace), ("max_skew", self.max_skew)] {
            if time.subsec_nanos() != 0 {
                return Err(SettingProblem::new(key, "must be whole seconds"));
            }
        }
        let of_log = self.log.log.check(client);
        of_log.map_err(|problem| SettingProblem::new(format!("log.{}", problem.key), problem.message))
    }
}
