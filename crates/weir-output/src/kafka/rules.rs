//! The name of a series in the fleet.

use std::borrow::Cow;

use weir_aggregate::{Batch, Series};
use weir_rules::{Applied, RuleSet, Scratch, Subject, Untraced};
use weir_state::SeriesName;

use super::settings::KafkaSettings;

/// Rules of this output, and whether hosts are kept.
#[derive(Debug, Default)]
pub(super) struct FleetRules {
    set: RuleSet,
    keeps_host: bool,
    scratch: Scratch,
    applied: Applied,
}

impl FleetRules {
    pub fn new(settings: &KafkaSettings) -> Self {
        FleetRules {
            // They were compiled before, for a look.
            set: weir_config::rules_of_output(&settings.rules).unwrap_or_default(),
            keeps_host: settings.keep_host,
            ..FleetRules::default()
        }
    }

    /// Calls `with` with the series' name in the fleet. `None`: a rule drops it.
    pub fn named<T>(
        &mut self,
        series: &Series<'_>,
        batch: &Batch,
        with: impl FnOnce(&SeriesName<'_>) -> T,
    ) -> Option<T> {
        let mut subject = Subject {
            kind: series.kind(),
            name: Cow::Borrowed(series.name()),
            host: series.explicit_host().map(Cow::Borrowed),
            tags: series.tags().map(Cow::Borrowed).collect(),
            suffix_mask: series.suffix_mask(),
            delta_expiry: None,
            // They were taken out of the name long ago.
            tag_styles: None,
        };
        self.applied.clear();
        let passes = self.set.apply(
            &mut subject,
            None,
            &mut self.scratch,
            &mut self.applied,
            &mut Untraced,
        );
        if !passes {
            return None;
        }
        let mut tags: Vec<&str> = subject.tags.iter().map(AsRef::as_ref).collect();
        tags.sort_unstable();
        tags.dedup();
        // An agent's own host is a name in the fleet.
        let own = || subject.host.as_deref().unwrap_or(&batch.hostname);
        Some(with(&SeriesName {
            name: &subject.name,
            host: Some(if self.keeps_host { own() } else { "" }),
            integration: series.jmx_check(),
            tags,
        }))
    }
}
