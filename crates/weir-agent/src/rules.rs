//! Turns the configuration into the rules of the workers, and into the series of histograms.

use std::sync::Arc;

use weir_aggregate::{Aggregate, Expansion, Weights};
use weir_config::{HistogramAggregate, HistogramWeights, all_percentiles};
use weir_context::{RuleSettings, Rules};
use weir_rules::{RuleLimits, RuleSet};

use weir_system::config::Config;

/// Inputs of rules that only a restart changes: outputs identify histogram series by their order.
#[derive(Clone)]
pub struct Fixed {
    pub expansion: Expansion,
    hostname: String,
    histogram_copy_prefix: Option<String>,
}

impl Fixed {
    pub fn new(config: &Config) -> Self {
        Fixed {
            expansion: expansion(config),
            hostname: config.names.hostname.clone(),
            histogram_copy_prefix: config.aggregation.histogram_copy_prefix().map(str::to_owned),
        }
    }

    /// The meaning of each bit of a context's suffixes.
    pub fn histogram_points(&self) -> String {
        self.expansion.suffixes().collect::<Vec<_>>().join(" ")
    }

    /// The default points of histograms.
    pub fn default_mask(&self, config: &Config) -> u32 {
        let suffixes: Vec<String> = self.expansion.suffixes().map(str::to_string).collect();
        mask(config, &suffixes)
    }

    /// The rules of a configuration. `Err`: why they need a restart, one sentence each.
    pub fn rules(&self, config: &Config) -> Result<Rules, Vec<String>> {
        let suffixes: Vec<String> = self.expansion.suffixes().map(str::to_string).collect();
        let definitions = config.rules.set.definitions().clone();
        let set = RuleSet::new(definitions, &suffixes, RuleLimits::default()).map_err(|errors| {
            let shown = errors
                .iter()
                .map(|error| format!("{}: {}", error.path, error.message));
            shown.collect::<Vec<_>>()
        })?;
        let names = &config.names;
        Ok(Rules::new(RuleSettings {
            set: Arc::new(set),
            namespace: names.namespace.clone(),
            namespace_exceptions: Some(names.namespace_blocklist.clone()),
            filter: names.filter(),
            extra_tags: names.all_tags(),
            hostname: self.hostname.clone(),
            suffix_mask: Some(mask(config, &suffixes)),
            delta_expiry: weir_config::delta_expiry(config.aggregation.statsd_gauge_delta_expiry),
            histogram_suffixes: suffixes,
            copy_to_distribution: self.histogram_copy_prefix.clone(),
            max_tag_bytes: names.max_tag_length,
        }))
    }
}

/// Every possible series of a histogram: the defaults, and those that a rule may choose.
fn expansion(config: &Config) -> Expansion {
    let settings = &config.aggregation;
    let mut aggregates: Vec<Aggregate> = HistogramAggregate::ALL.into_iter().map(aggregate).collect();
    let percentiles = all_percentiles(&settings.percentiles(), &config.rules.percentiles);
    aggregates.extend(percentiles.into_iter().map(Aggregate::Percentile));
    let weights = match settings.histogram_weights {
        HistogramWeights::Exact => Weights::Exact,
        HistogramWeights::Agent => Weights::Agent,
    };
    Expansion::new(&aggregates, weights)
}

fn aggregate(aggregate: HistogramAggregate) -> Aggregate {
    match aggregate {
        HistogramAggregate::Max => Aggregate::Max,
        HistogramAggregate::Min => Aggregate::Min,
        HistogramAggregate::Median => Aggregate::Median,
        HistogramAggregate::Avg => Aggregate::Average,
        HistogramAggregate::Sum => Aggregate::Sum,
        HistogramAggregate::Count => Aggregate::Count,
    }
}

/// The default series of a histogram.
fn mask(config: &Config, suffixes: &[String]) -> u32 {
    let settings = &config.aggregation;
    let aggregates = settings.histogram_aggregates.iter().copied().map(aggregate);
    let percentiles = settings.percentiles().into_iter().map(Aggregate::Percentile);
    aggregates.chain(percentiles).fold(0, |mask, aggregate| {
        let suffix = aggregate.suffix();
        let bit = suffixes.iter().position(|known| *known == suffix);
        mask | bit.map_or(0, |bit| 1 << bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs identify histogram series by their order, so a reload cannot add one.
    #[test]
    fn a_percentile_that_no_histogram_has_needs_a_restart() {
        let config = |text: &str| weir_system::config::load_content(text.as_bytes()).unwrap().config;
        let fixed = Fixed::new(&config("rules: [{name: r, match: a.*, percentiles: ['0.5']}]"));
        assert!(
            fixed
                .rules(&config("rules: [{name: r, match: b.*, percentiles: ['0.5']}]"))
                .is_ok()
        );
        let refused = fixed.rules(&config("rules: [{name: r, percentiles: ['0.33']}]"));
        let refused = refused.map(drop).unwrap_err();
        assert!(refused[0].contains("restart"), "{refused:?}");
    }
}
