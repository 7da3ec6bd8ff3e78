//! Rules as written in the configuration.

use std::num::NonZeroU32;

use weir_protocol::Kind;

use crate::{Pattern, TagStyles, ValueRule};

/// All mapper profiles and rules of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Definitions {
    pub profiles: Vec<Profile>,
    /// In the order of application.
    pub rules: Vec<Rule>,
    pub tag_styles: TagStyles,
}

/// Mappings for names with a common prefix. The first mapping of all profiles that matches is applied, and no other.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    /// `*`: every name.
    pub prefix: String,
    pub mappings: Vec<Mapping>,
}

/// A new name, and tags, for names as received.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    pub pattern: Pattern,
    pub kinds: Kinds,
    /// A template; ignored if the metric is dropped.
    pub name: String,
    /// Keys and templates of their values.
    pub tags: Vec<(String, String)>,
    pub same_tags: SameTags,
    /// Seconds without a sample after which a change of a gauge begins at zero. `None`: as for metrics without a mapping.
    pub delta_expiry: Option<NonZeroU32>,
    pub drop: bool,
    pub dry_run: bool,
}

/// The fate of a message's tags whose keys a mapping also adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameTags {
    /// Both stay.
    #[default]
    Add,
    /// The mapping's tags stay.
    Replace,
    /// The message's tags stay.
    Keep,
}

/// Actions on metrics whose final name matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub name: String,
    pub pattern: Pattern,
    pub kinds: Kinds,
    pub effect: Effect,
    /// Later rules are skipped for a metric that this rule matched.
    pub last: bool,
    pub dry_run: bool,
}

/// Applied in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effect {
    pub drop: bool,
    pub tags: TagFilter,
    pub values: Vec<ValueRule>,
    pub host: HostRule,
    pub add_tags: Vec<String>,
    pub histogram: HistogramChoice,
}

/// The series that histograms and timings produce, by suffix: `.max`, `.95percentile`. `None`: the default of all histograms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramChoice {
    pub aggregates: Option<Vec<String>>,
    pub percentiles: Option<Vec<String>>,
}

/// Tags by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TagFilter {
    #[default]
    All,
    Exclude(Vec<String>),
    Include(Vec<String>),
}

/// The host of a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostRule {
    #[default]
    Keep,
    /// The agent's own host.
    Agent,
    /// No host.
    Nothing,
    Name(String),
    /// The value of a tag, the first by bytes if there are several. These tags are removed. Without the tag the host stays.
    Tag(String),
}

/// A set of metric kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Default for Kinds {
    fn default() -> Self {
        Kinds::ALL
    }
}

impl Kinds {
    pub const ALL: Kinds = Kinds((1 << Kind::COUNT) - 1);

    pub fn of(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Kinds(kinds.into_iter().fold(0, |bits, kind| bits | 1 << kind as u8))
    }

    pub fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }

    pub fn covers(self, other: Kinds) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn overlaps(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }
}

impl TagFilter {
    pub(crate) fn keeps(&self, tag: &str) -> bool {
        let key = tag.split_once(':').map_or(tag, |(key, _)| key);
        match self {
            TagFilter::All => true,
            TagFilter::Exclude(keys) => !keys.iter().any(|excluded| excluded == key),
            TagFilter::Include(keys) => keys.iter().any(|included| included == key),
        }
    }
}
