//! Rules on the names and tags of metrics: mapper profiles, drops, tag filters, actions on tag values, hosts, histogram
//! aggregates.
//!
//! What this crate never does: see a sample; backtrack over a name; give two answers to the same name, kind and tags; compile
//! more than [`RuleLimits`] allow.
//!
//! Rules apply to a context when it is first seen. All patterns of a stage are compiled into one automaton per way of writing
//! them (see [`names`]), so that what a new context costs depends on the rules that match it, not on how many there are.

mod definitions;
mod glob;
pub mod lint;
pub mod names;
mod origins;
mod pattern;
mod set;
mod tag_styles;
mod template;
mod trace;
mod values;

pub use definitions::{
    Definitions, Effect, HistogramChoice, HostRule, Kinds, Mapping, Profile, Rule, SameTags, TagFilter,
};
pub use origins::{AllowedOrigins, Listed, OriginPattern, OriginPatternError};
pub use pattern::{Pattern, PatternError};
pub use set::{Applied, Compiled, Fault, RuleId, RuleInfo, RuleSet, Scratch, Stage, Subject};
pub use tag_styles::TagStyles;
pub use template::Template;
pub use trace::{Recorder, Step, Trace, Untraced};
pub use values::{ValueAction, ValueRule};

/// Bounds on what a set of rules may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleLimits {
    /// Bytes of all patterns together.
    pub pattern_bytes: usize,
    /// Bytes of the automaton of all regular expressions of a stage, and of the table it fills in as names come.
    pub regex_bytes: usize,
    /// Bytes of one regular expression.
    pub one_regex_bytes: usize,
}

impl Default for RuleLimits {
    fn default() -> Self {
        RuleLimits {
            pattern_bytes: 4 << 20,
            regex_bytes: 16 << 20,
            one_regex_bytes: 1 << 20,
        }
    }
}
