//! Settings: [`settings!`](crate::settings!) declares each once, and its parser, messages and documentation follow from the declaration.

use std::time::Duration;

use weir_units::{show_duration, show_size};

use crate::node::Node;
use crate::value::{SettingError, Typed};

/// One setting: name, type, effect.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The last part of the key; the field of the struct has the same name.
    pub key: &'static str,
    pub kind: SettingType,
    /// As it would be written in the file. A number's or a text's "not set" is its zero or empty value.
    pub default: &'static str,
    /// Its effect, in one or two sentences.
    pub effect: &'static str,
    /// The meaning of zero or empty; empty if neither is allowed or no explanation is needed.
    pub zero: &'static str,
    /// Completes the sentence "Change it ...": when, or what for.
    pub change: &'static str,
    /// Variables of the Datadog Agent that mean the same, in order of preference.
    pub also: &'static [&'static str],
    /// Shown by `-h`; the others by `--help`.
    pub common: bool,
    pub reload: Reload,
    /// An output is refused while this is empty, and setting it through the environment switches the output on.
    pub required: bool,
    /// The process's use of the named file.
    pub path: Option<PathUse>,
    /// The setting whose secrets are in the files that this one names; empty text: none.
    pub file_of: &'static str,
    /// For a record: its settings are beside the surrounding ones, not below a key.
    pub flat: bool,
    /// For a record in an output: variables of the Datadog Agent named by its settings apply to this output.
    pub names_below: bool,
    check: fn(&SettingType, &Node) -> Result<(), SettingError>,
}

/// The type of a setting.
#[derive(Clone, Copy, Debug)]
pub enum SettingType {
    Bool,
    Text,
    /// Never shown.
    Secret,
    Integer {
        min: i64,
        max: i64,
    },
    Number {
        min: f64,
        max: f64,
    },
    /// Written as `64KiB`, `1.5GiB`, `10MB` or a plain number.
    Bytes {
        min: u64,
        max: u64,
    },
    /// Written as `500ms`, `10s`, `5m`, `1h`, `2d` or a plain number of seconds.
    Duration {
        min: Duration,
        max: Duration,
    },
    Choice(&'static [&'static str]),
    /// Text of some form.
    Checked {
        allowed: &'static str,
        check: fn(&str) -> bool,
    },
    List(&'static SettingType),
    /// A map from texts to these.
    Map(&'static SettingType),
    Record(&'static [Setting]),
}

/// The process's use of the path in a setting. The sandbox permits this use and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// This very file is read.
    Itself,
    /// Read, and read again after another file has taken its place.
    Read,
    /// A directory in which files are read.
    ReadBeneath,
    /// Made, written, renamed and removed in its directory.
    WriteBeside,
    /// A directory of our own.
    WriteBeneath,
    /// A socket of another program.
    Connect,
}

/// The effect of a reload on a changed setting of the agent itself. Changes of outputs are all applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// Nothing: it needs a restart.
    Waits,
    Applied,
    /// It is applied while this other setting is on, before and after.
    AppliedWhile(&'static str),
}

/// A setting that there was.
#[derive(Clone, Copy, Debug)]
pub struct RemovedSetting {
    pub key: &'static str,
    /// Follows "was removed: ".
    pub why: &'static str,
    /// Variables of the Datadog Agent that meant the same.
    pub also: &'static [&'static str],
}

/// A year: the longest time any setting takes.
pub const DURATION_MAX: Duration = Duration::from_secs(365 * 86_400);

impl Setting {
    /// The start of a declaration in [`settings!`](crate::settings!).
    pub const fn of<T: Typed>(key: &'static str, default: &'static str) -> Self {
        Self {
            key,
            kind: T::KIND,
            default,
            effect: "",
            zero: "",
            change: "",
            also: &[],
            common: false,
            reload: Reload::Waits,
            required: false,
            path: None,
            file_of: "",
            flat: false,
            names_below: false,
            check: check::<T>,
        }
    }

    /// A key that is no name in Rust.
    pub const fn named(mut self, key: &'static str) -> Self {
        self.key = key;
        self
    }

    /// Narrows the values of the type.
    pub const fn takes(mut self, kind: SettingType) -> Self {
        assert!(self.kind.can_be(&kind), "the type of the setting is another one");
        self.kind = kind;
        self
    }

    pub const fn effect(mut self, text: &'static str) -> Self {
        self.effect = text;
        self
    }

    pub const fn zero(mut self, text: &'static str) -> Self {
        self.zero = text;
        self
    }

    pub const fn change(mut self, text: &'static str) -> Self {
        self.change = text;
        self
    }

    pub const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }

    pub const fn common(mut self) -> Self {
        self.common = true;
        self
    }

    pub const fn on_reload(mut self, reload: Reload) -> Self {
        self.reload = reload;
        self
    }

    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub const fn path(mut self, used: PathUse) -> Self {
        self.path = Some(used);
        self
    }

    pub const fn file_of(mut self, key: &'static str) -> Self {
        self.file_of = key;
        self
    }

    pub const fn flat(mut self) -> Self {
        self.flat = true;
        self
    }

    pub const fn names_below(mut self) -> Self {
        self.names_below = true;
        self
    }

    /// Whether it accepts the written value.
    pub fn check(&self, node: &Node) -> Result<(), SettingError> {
        (self.check)(&self.kind, node)
    }
}

fn check<T: Typed>(kind: &SettingType, node: &Node) -> Result<(), SettingError> {
    T::read(kind, node).map(drop)
}

impl SettingType {
    /// Whether `other` is a valid type for this one.
    const fn can_be(&self, other: &SettingType) -> bool {
        match (self, other) {
            (SettingType::Text, SettingType::Text | SettingType::Checked { .. })
            | (SettingType::Integer { .. }, SettingType::Integer { .. } | SettingType::Bytes { .. })
            | (SettingType::Number { .. }, SettingType::Number { .. })
            | (SettingType::Choice(_), SettingType::Choice(_))
            | (SettingType::Duration { .. }, SettingType::Duration { .. }) => true,
            (SettingType::List(item), SettingType::List(other))
            | (SettingType::Map(item), SettingType::Map(other)) => item.can_be(other),
            _ => false,
        }
    }

    /// Whether it is one, or made of them.
    pub fn is_secret(&self) -> bool {
        match self {
            SettingType::Secret => true,
            SettingType::List(item) | SettingType::Map(item) => item.is_secret(),
            _ => false,
        }
    }

    /// Whether two values of it can look the same to people and differ: secrets, and texts that may hold passwords.
    pub(crate) fn hides(&self) -> bool {
        match self {
            SettingType::Secret
            | SettingType::Text
            | SettingType::Checked { .. }
            | SettingType::Record(_) => true,
            SettingType::List(item) | SettingType::Map(item) => item.hides(),
            _ => false,
        }
    }

    /// The allowed values, as the end of "must be ...".
    pub fn allowed(&self) -> String {
        match self {
            SettingType::Bool => "true or false".to_owned(),
            SettingType::Text => "text".to_owned(),
            SettingType::Secret => "text (never shown)".to_owned(),
            SettingType::Integer { min, max } => format!("a whole number from {min} to {max}"),
            SettingType::Number { min, max } => format!("a number from {min} to {max}"),
            SettingType::Bytes { min, max } => {
                let (min, max) = (show_size(*min), show_size(*max));
                format!("a size such as 64KiB or 1.5GiB, from {min} to {max}")
            }
            SettingType::Duration { min, max } => {
                let (min, max) = (show_duration(*min), show_duration(*max));
                format!("a time such as 500ms, 10s, 5m, 1h or a number of seconds, from {min} to {max}")
            }
            SettingType::Choice(names) => format!("one of {}", names.join(", ")),
            SettingType::Checked { allowed, .. } => (*allowed).to_owned(),
            SettingType::List(kind) => format!("a list, each item {}", kind.allowed()),
            SettingType::Map(kind) => format!("a mapping, each value {}", kind.allowed()),
            SettingType::Record(settings) => {
                let keys: Vec<_> = settings.iter().map(|setting| setting.key).collect();
                format!("a mapping with {}", keys.join(", "))
            }
        }
    }
}

/// A setting that is no record, and where it is.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// From where the search began, such as `delivery.timeout`.
    pub path: String,
    pub setting: &'static Setting,
    /// Variables of the Datadog Agent that mean it here.
    pub also: &'static [&'static str],
}

/// Every setting, those in records instead of the records.
pub fn leaves(settings: &'static [Setting]) -> Vec<Leaf> {
    settings.iter().flat_map(leaves_of).collect()
}

fn leaves_of(setting: &'static Setting) -> Vec<Leaf> {
    let SettingType::Record(inner) = setting.kind else {
        let (path, also) = (setting.key.to_owned(), setting.also);
        return vec![Leaf { path, setting, also }];
    };
    let mut found = leaves(inner);
    for leaf in &mut found {
        leaf.path = format!("{}.{}", setting.key, leaf.path);
        leaf.also = if setting.names_below { leaf.also } else { &[] };
    }
    found
}

/// Number of settings, each field of a flat record counted separately.
pub const fn count(declared: &[Setting]) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < declared.len() {
        count += match declared[at] {
            Setting {
                flat: true,
                kind: SettingType::Record(inner),
                ..
            } => inner.len(),
            _ => 1,
        };
        at += 1;
    }
    count
}

/// Takes records that are flat apart.
pub const fn flattened<const N: usize>(declared: &[Setting]) -> [Setting; N] {
    let mut all = [Setting::of::<bool>("", ""); N];
    let (mut from, mut to) = (0, 0);
    while from < declared.len() {
        match declared[from] {
            Setting {
                flat: true,
                kind: SettingType::Record(inner),
                ..
            } => {
                let mut at = 0;
                while at < inner.len() {
                    all[to] = inner[at];
                    (at, to) = (at + 1, to + 1);
                }
            }
            setting => {
                all[to] = setting;
                to += 1;
            }
        }
        from += 1;
    }
    all
}

/// Declares settings, each once, as the fields of a struct:
///
/// ```text
/// settings! {
///     /// What the struct is.
///     pub struct Aggregation {
///         bucket_width: Duration = "10s".effect("Width of a bucket.").change("to see changes sooner.");
///     }
/// }
/// ```
///
/// The text is the default as the file would have it, and what follows are methods of [`Setting`]. The struct can be read from
/// every source ([`Section`](crate::Section)), from one value in a list ([`Typed::read`]), and describes itself (`SETTINGS`).
/// Removed settings may follow as `removed &[RemovedSetting { .. }]`.
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$about:meta])* $field:ident : $type:ty = $default:literal
                $( . $method:ident ( $( $argument:expr ),* $(,)? ) )* ; )*
        }
        $( removed $removed:expr )?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( $(#[$about])* pub $field: $type, )*
        }

        impl $name {
            const DECLARED: &'static [$crate::Setting] = &[
                $( $crate::Setting::of::<$type>(stringify!($field), $default) $( .$method( $( $argument ),* ) )* , )*
            ];
            /// The settings.
            pub const SETTINGS: &'static [$crate::Setting] =
                &$crate::flattened::<{ $crate::count(Self::DECLARED) }>(Self::DECLARED);
            /// Removed settings.
            pub const REMOVED: &'static [$crate::RemovedSetting] = $crate::removed_or_none!($( $removed )?);
        }

        impl $crate::Typed for $name {
            const KIND: $crate::SettingType = $crate::SettingType::Record(Self::SETTINGS);

            fn read(_: &$crate::SettingType, node: &$crate::node::Node) -> Result<(Self, String), $crate::SettingError> {
                #[allow(unused_mut, reason = "a struct may have no fields")]
                let mut fields = $crate::Fields::of(Self::DECLARED, node)?;
                let record = Self { $( $field: fields.read_next::<$type>()?, )* };
                Ok((record, fields.shown()))
            }

            fn take(section: &mut $crate::Section<'_, '_>, setting: &$crate::Setting) -> Option<Self> {
                let mut inner = section.within(setting, Self::SETTINGS, Self::REMOVED)?;
                #[allow(unused_variables, unused_mut, reason = "a struct may have no fields")]
                let mut declared = Self::DECLARED.iter();
                $( let $field = <$type as $crate::Typed>::take(&mut inner, declared.next()?); )*
                Some(Self { $( $field: $field?, )* })
            }
        }
    };
}

/// Declares an enum that is the value of a setting: every variant with its name, or several.
#[macro_export]
macro_rules! choices {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$about:meta])* $variant:ident $( = $number:literal )? : $( $text:literal )|+ ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $( $(#[$about])* $variant $( = $number )?, )*
        }

        impl $name {
            /// Its first name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $( Self::$variant => [$( $text ),+][0], )*
                }
            }
        }

        impl $crate::Scalar for $name {
            const KIND: $crate::SettingType = $crate::SettingType::Choice(&[$( $( $text ),+ ),*]);

            fn parse(kind: &$crate::SettingType, text: &str) -> Option<Self> {
                let name = $crate::chosen(kind, text)?;
                $( if [$( $text ),+].contains(&name) {
                    return Some(Self::$variant);
                } )*
                None
            }

            fn show(&self, _: &$crate::SettingType, _: &str) -> String {
                self.as_str().to_owned()
            }
        }
    };
}

/// The allowed name that equals a text.
#[doc(hidden)]
pub fn chosen(kind: &SettingType, text: &str) -> Option<&'static str> {
    let SettingType::Choice(names) = kind else {
        return None;
    };
    names.iter().find(|name| name.eq_ignore_ascii_case(text)).copied()
}

/// Removed settings of a declaration, or none.
#[doc(hidden)]
#[macro_export]
macro_rules! removed_or_none {
    () => {
        &[]
    };
    ($removed:expr) => {
        $removed
    };
}
