//! Settings, each declared once: name, type, default and effect. Everything else follows from the declarations: parsing of file,
//! environment and flags with the source of every value, error messages, `weir check`, `--help` and the page docs/configuration.md.
//!
//! Files, environment and flags in, [`Config`] out. Facts about the machine come through [`Host`]: this crate never reads a file, opens a
//! socket or reads a clock.

mod agent;
mod fleet_log;
mod host;
mod load;
mod merge;
pub mod node;
mod outputs;
mod page;
mod reader;
mod resolve;
mod rules;
mod secrets;
mod setting;
mod source;
mod table;
mod text;
mod types;
mod value;
mod variables;

pub use agent::{changes_data, is_section, means_the_same, unsupported_keys, unsupported_reason};
pub use fleet_log::{KafkaClient, LogConnection, LogReader, Mechanism, Sasl as LogSasl, Tls as LogTls};
pub use host::{
    Accounts, Host, HostError, SecretBackendError, SecretError, TlsContent, TlsFileError, TlsPaths,
};
pub use load::{Loaded, load, load_as};
pub use merge::{Merge, Role};
pub use outputs::{Files, FromFiles, Output, OutputConfig, OutputType, SettingProblem, output_setting};
pub use page::{help, page};
pub use reader::{Reader, Section};
pub use resolve::{Addresses, Config};
pub use rules::{
    MatchType, MetricType, Rule, RuleConfig, SUFFIXES_MAX, all_percentiles, delta_expiry, kinds, pattern,
    rules_of_output,
};
pub use secrets::{HandleError, SecretAnswers, SecretBackend, handle_in};
pub use setting::{
    DURATION_MAX, Leaf, PathUse, Reload, RemovedSetting, Setting, SettingType, chosen, count, flattened,
    leaves,
};
pub use source::{
    Change, FILE_VARIABLE, File, Flag, Inputs, OUTPUT_FLAG_KEY, OUTPUT_VARIABLE, Problem, Problems,
    ShownValue, ValueSource, changes, variable_of,
};
pub use table::{
    Aggregation, AllowedSenders, GROUPS, Group, ListenerReading, Listeners, Names, Origin, OriginSources,
    Reading, Resources, Running, SocketFile, TcpTls, removed_settings, settings,
};
pub use text::{Secret, hide_password, is_invisible, nearest, quote, show_text};
pub use types::{
    AdminAddress, AdminRemote, Cardinality, EolTransport, Framing, HistogramAggregate, HistogramWeights,
    HostName, Listen, LogLevel, Mode, Ownership, Percentile, Sandbox, SocketPath,
};
pub use value::{Fields, Scalar, SettingError, Typed};
pub use variables::{VariableError, adds_up, forward_target, in_our_words, removed_variable};
