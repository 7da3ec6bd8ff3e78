//! Every setting of the agent itself. Outputs bring their own tables.

use crate::reader::Section;
use crate::secrets::SecretBackend;
use crate::setting::{RemovedSetting, Setting};
use crate::value::Typed;

mod listeners;
mod metrics;
mod origin;
mod running;

pub use listeners::{AllowedSenders, ListenerReading, Listeners, Reading, SocketFile, TcpTls};
pub use metrics::{Aggregation, Names, Rules};
pub use origin::{Origin, OriginSources};
pub use running::{Resources, Running};

/// Settings that belong together on the configuration page and in `--help`.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub title: &'static str,
    pub settings: &'static [Setting],
    pub removed: &'static [RemovedSetting],
}

/// Groups, each with the struct that has its settings.
macro_rules! groups {
    ($($title:literal $field:ident : $type:ident),* $(,)?) => {
        pub const GROUPS: &[Group] = &[
            $(Group { title: $title, settings: $type::SETTINGS, removed: $type::REMOVED }),*
        ];

        /// The values as written, by group.
        pub(crate) struct Settings {
            $(pub $field: $type),*
        }

        impl Settings {
            pub fn take(section: &mut Section<'_, '_>) -> Option<Self> {
                $(let $field = $type::take(section, &WHOLE);)*
                Some(Self { $($field: $field?),* })
            }
        }
    };
}

groups! {
    "Listeners" listeners: Listeners,
    "Origin" origin: Origin,
    "Aggregation" aggregation: Aggregation,
    "Names and tags" names: Names,
    "Rules" rules: Rules,
    "Resources" resources: Resources,
    "Running" running: Running,
    "Secrets" secrets: SecretBackend,
}

/// A group's settings stand beside those of the others.
const WHOLE: Setting = Setting::of::<bool>("", "").flat();

/// Every setting, in the order of the page.
pub fn settings() -> impl Iterator<Item = &'static Setting> + Clone {
    GROUPS.iter().flat_map(|group| group.settings)
}

/// Every setting of an earlier version that was removed.
pub fn removed_settings() -> impl Iterator<Item = &'static RemovedSetting> + Clone {
    GROUPS.iter().flat_map(|group| group.removed)
}
