//! Rules on the names and tags of metrics: mapper profiles, drops, tag filters, actions on tag values, hosts, histogram aggregates.
//!
//! What this crate never does: see a sample; backtrack over a name; give two answers to the same name, kind and tags; compile more than
//! [`RuleLimits`] allow.
//!
//! Rules apply to a context when it is first seen. All patterns of a stage and type are compiled into one automaton (see [`names`]), so the
//! cost of a new context depends on the rules that match it, not on the number of rules.

mod definitions;
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
pub use origins::{AllowedOrigins, ListMatch, OriginPattern, OriginPatternError};
pub use pattern::{Pattern, PatternError};
pub use set::{Applied, Compiled, RuleError, RuleId, RuleInfo, RuleSet, Scratch, Stage, Subject};
pub use tag_styles::TagStyles;
pub use template::Template;
pub use trace::{Recorder, Step, Trace, Untraced};
pub use values::{ValueAction, ValueRule};

/// Limits on the size of a set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleLimits {
    /// Bytes of all patterns.
    pub pattern_bytes: usize,
    /// Bytes of the automaton of a stage's regular expressions, and of the cache that it fills while matching.
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
