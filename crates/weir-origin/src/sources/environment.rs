//! Tags from variables of weir's environment, as set by the downward API or a task definition. They describe weir's surroundings, and so
//! every sender of which nothing better is known.

use super::{Feed, LabelTags, SourceEvent, TagSource, Work};
use crate::entity::{Entity, TagSet};
use crate::store::Description;

pub struct Environment {
    /// `VARIABLE=tag`.
    variables: LabelTags,
}

impl Environment {
    pub fn new(variables: LabelTags) -> Self {
        Environment { variables }
    }
}

impl TagSource for Environment {
    fn name(&self) -> &'static str {
        "environment"
    }

    fn place(&self) -> String {
        let names: Vec<&str> = self.variables.iter().map(|(name, _)| name.as_str()).collect();
        names.join(",")
    }

    fn tags_unknown_senders(&self) -> bool {
        true
    }

    fn run(self: Box<Self>, feed: Feed) -> Work {
        Box::pin(async move {
            let mut tags = TagSet::default();
            let values: Vec<(String, String)> = self
                .variables
                .iter()
                .filter_map(|(name, _)| Some((name.clone(), std::env::var(name).ok()?)))
                .collect();
            super::add_labels(&mut tags, &self.variables, |name| {
                let found = values.iter().find(|(key, _)| key == name);
                found.map(|(_, value)| value.as_str())
            });
            let known = Description {
                entity: Entity::Local,
                tags,
                place: None,
            };
            // The environment never changes, so one report is enough.
            let mut reported = feed.report(SourceEvent::Report(vec![known.clone()])).await;
            while reported {
                feed.wanted().await;
                reported = feed.report(SourceEvent::Report(vec![known.clone()])).await;
            }
        })
    }
}
