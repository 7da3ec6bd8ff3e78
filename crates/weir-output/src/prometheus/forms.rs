//! The exposition of each metric: by the first of `metrics` that matches its name and kind, or by the output's settings.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use weir_protocol::Kind;
use weir_rules::names::{MatchScratch, NameMatcher};
use weir_rules::{Kinds, RuleLimits};

use super::state::Seconds;
use crate::settings::{FormStyle, HistogramStyle, MetricForm, PrometheusSettings, SettingProblem};

/// Exposition of one metric.
#[derive(Clone, Debug)]
pub struct Form {
    pub style: HistogramStyle,
    pub quantiles: Box<[f64]>,
    /// As the values of the label.
    pub quantile_texts: Box<[String]>,
    /// Upper bounds of classic buckets.
    pub buckets: Box<[f64]>,
    pub bucket_texts: Box<[String]>,
    pub help: Option<Box<str>>,
    /// `None`: that of all.
    pub expiry: Option<Seconds>,
    pub unit: Unit,
    /// A counter's name ends in `_total`.
    pub total: bool,
}

/// The divisor and the factor of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    divisor: f64,
    scale: f64,
}

impl Unit {
    pub const ONE: Unit = Unit {
        divisor: 1.0,
        scale: 1.0,
    };
    #[cfg(test)]
    pub const THOUSANDTH: Unit = Unit {
        divisor: 1000.0,
        scale: 1.0,
    };

    pub fn of(self, value: f64) -> f64 {
        value / self.divisor * self.scale
    }
}

impl Form {
    /// The kind whose names this metric's series have. A counter without `_total` has a gauge's.
    pub fn named_as(&self, kind: Kind) -> Kind {
        match kind {
            Kind::Counter if !self.total => Kind::Gauge,
            kind => kind,
        }
    }
}

/// The form of a series depends on these alone: the entry of `metrics`, if one matches, and the kind.
pub type FormKey = (Option<u32>, Kind);

/// Number of a form in [`Forms`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormId(u32);

/// The forms of all metrics.
pub struct Forms {
    matcher: NameMatcher,
    /// In the order they were written in.
    chosen: Vec<(Kinds, Choice)>,
    /// The tags that entries ask for, which are no labels.
    tags: HashSet<Box<str>>,
    scratch: MatchScratch,
    found: Vec<u32>,
    ids: HashMap<FormKey, FormId>,
    /// By number. Series of one form share it.
    made: Vec<(FormKey, Arc<Form>)>,
}

/// One entry of `metrics`.
#[derive(Clone)]
struct Choice {
    /// Only for series with this tag. Empty: for all.
    tag: Box<str>,
    style: FormStyle,
    quantiles: Vec<f64>,
    buckets: Vec<f64>,
    help: String,
    expiry: Option<Seconds>,
    scale: f64,
}

impl fmt::Debug for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forms").finish_non_exhaustive()
    }
}

impl Forms {
    /// The error is that of one entry, which `check` finds before.
    pub fn new(written: &[MetricForm]) -> Result<Self, SettingProblem> {
        let patterns: Vec<_> = written.iter().map(MetricForm::pattern).collect();
        let patterns: Vec<_> = patterns.iter().collect();
        let matcher = NameMatcher::new(&patterns, &RuleLimits::default()).map_err(|(at, error)| {
            let key = at.map_or("metrics".to_owned(), |at| format!("metrics[{at}].match"));
            SettingProblem::new(key, error.0)
        })?;
        let chosen = written.iter().map(|form| (form.kinds(), Choice::of(form)));
        let tags = written.iter().filter(|form| !form.tag.is_empty());
        Ok(Forms {
            matcher,
            chosen: chosen.collect(),
            tags: tags.map(|form| form.tag.as_str().into()).collect(),
            scratch: MatchScratch::default(),
            found: Vec::new(),
            ids: HashMap::new(),
            made: Vec::new(),
        })
    }

    /// The first entry that matches a series.
    pub fn entry<'t>(
        &mut self,
        name: &str,
        kind: Kind,
        tags: impl Iterator<Item = &'t str> + Clone,
    ) -> Option<u32> {
        if self.chosen.is_empty() {
            return None;
        }
        self.matcher.matches(name, &mut self.scratch, &mut self.found);
        self.found.iter().copied().find(|&number| {
            let (kinds, choice) = &self.chosen[number as usize];
            let has_tag = || tags.clone().any(|tag| tag == &*choice.tag);
            kinds.contains(kind) && (choice.tag.is_empty() || has_tag())
        })
    }

    /// Whether an entry asks for this tag.
    pub fn is_mark(&self, tag: &str) -> bool {
        !self.tags.is_empty() && self.tags.contains(tag)
    }

    pub fn id(&mut self, settings: &PrometheusSettings, key: FormKey) -> FormId {
        if let Some(&id) = self.ids.get(&key) {
            return id;
        }
        let (entry, kind) = key;
        let no_choice = Choice::of(&MetricForm::default());
        let choice = entry.map_or(&no_choice, |number| &self.chosen[number as usize].1);
        let id = FormId(self.made.len() as u32);
        self.made.push((key, Arc::new(choice.form(settings, kind))));
        self.ids.insert(key, id);
        id
    }

    pub fn get(&self, id: FormId) -> &Arc<Form> {
        &self.made[id.0 as usize].1
    }

    pub fn key(&self, id: FormId) -> FormKey {
        self.made[id.0 as usize].0
    }

    /// Whether there is such an entry.
    pub fn has_entry(&self, number: u32) -> bool {
        (number as usize) < self.chosen.len()
    }

    /// The shortest time after which some series leaves.
    pub fn least_expiry(&self, of_all: Seconds) -> Seconds {
        let own = self.chosen.iter().filter_map(|(_, choice)| choice.expiry);
        own.fold(of_all, Seconds::min)
    }
}

/// Ascending, each once.
fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

impl Choice {
    fn of(form: &MetricForm) -> Self {
        let expiry = u32::try_from(form.expiry.as_secs()).unwrap_or(u32::MAX);
        Choice {
            tag: form.tag.as_str().into(),
            style: form.style,
            quantiles: sorted(&form.quantiles),
            buckets: sorted(&form.buckets),
            help: form.help.clone(),
            expiry: (!form.expiry.is_zero()).then_some(expiry),
            scale: form.scale,
        }
    }

    fn form(&self, settings: &PrometheusSettings, kind: Kind) -> Form {
        let or = |own: &[f64], all: &[f64]| sorted(if own.is_empty() { all } else { own });
        let quantiles = or(&self.quantiles, &settings.quantiles);
        let mut buckets = or(&self.buckets, &settings.buckets);
        // Every histogram has one for everything.
        buckets.retain(|bound| bound.is_finite());
        let of_kind = match kind {
            Kind::Distribution => settings.distributions,
            _ => settings.histograms,
        };
        let in_seconds = kind == Kind::Timing && settings.timings_in_seconds;
        Form {
            style: match self.style {
                FormStyle::Default => of_kind,
                FormStyle::Summary => HistogramStyle::Summary,
                FormStyle::Native => HistogramStyle::Native,
                FormStyle::Classic => HistogramStyle::Classic,
            },
            // Always with a fraction: that is how Prometheus itself writes those of the protobuf format.
            quantile_texts: quantiles.iter().map(|quantile| format!("{quantile:?}")).collect(),
            quantiles: quantiles.into(),
            bucket_texts: buckets.iter().map(|bound| format!("{bound}")).collect(),
            buckets: buckets.into(),
            help: (!self.help.is_empty()).then(|| self.help.as_str().into()),
            expiry: self.expiry,
            unit: Unit {
                divisor: if in_seconds { 1000.0 } else { 1.0 },
                scale: self.scale,
            },
            total: settings.total_suffix,
        }
    }
}
