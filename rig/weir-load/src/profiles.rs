//! The named profiles, in `profiles/*.yaml`. `rig/docs/load.md` has the source of each figure.
//!
//! An entry that begins with `like: other` extends that entry: its own keys override the other's. Words in braces are replaced by parts of
//! the requested name.

use crate::profile::{Profile, Throttle};

/// A profile's name and description.
pub struct ProfileInfo {
    pub name: String,
    pub about: String,
}

/// Files with several entries each: a profile, or a part of one, is a name with a colon and indented settings.
const GROUPS: &[&str] = &[
    include_str!("../profiles/everyday.yaml"),
    include_str!("../profiles/budget.yaml"),
    include_str!("../profiles/contexts.yaml"),
    include_str!("../profiles/packets-and-senders.yaml"),
    include_str!("../profiles/tags.yaml"),
    include_str!("../profiles/published.yaml"),
    include_str!("../profiles/logs-and-traces.yaml"),
];

/// The plain names in listing order; families have more.
const NAMES: &str = include_str!("../profiles/names.txt");

/// The plain names. `interner-*` and `dsd-*` also take the suffixes of [`named`].
pub fn all() -> Vec<ProfileInfo> {
    let about = |name: &str| named(name).map_or_else(String::new, |profile| profile.about);
    NAMES
        .split_whitespace()
        .map(|name| ProfileInfo {
            name: name.to_owned(),
            about: about(name),
        })
        .collect()
}

/// A named profile. `interner-*`, `smp-*` and `dsd-*` take `@tags-unique` or `@tags-reused` (the default),
/// `@smooth` (the default) or `@lading-burst`, and `@contexts-first`.
pub fn named(full: &str) -> Option<Profile> {
    let mut parts = full.split('@');
    let name = parts.next()?;
    let mut profile = Recipe::of(name)?.profile();
    let smp = ["interner-", "smp-", "dsd-"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    for variant in parts {
        match variant {
            "tags-unique" if smp => profile.unique_tag_ratio = 1.0,
            "tags-reused" if smp => profile.unique_tag_ratio = 0.11,
            "contexts-first" if smp => (profile.first_pass, profile.first_pass_at_once) = (true, true),
            "smooth" if smp => profile.throttle = Throttle::Smooth,
            "lading-burst" if smp && profile.rate.is_some() => {
                profile.throttle = Throttle::LadingBurst;
            }
            _ => return None,
        }
    }
    Some(profile)
}

/// The nearest known name, for the error about an unknown one.
pub fn suggest(name: &str) -> Option<String> {
    let base = name.split('@').next().unwrap_or(name);
    NAMES
        .split_whitespace()
        .map(|known| (strsim::levenshtein(base, known), known))
        .min()
        .filter(|(distance, _)| *distance <= 4)
        .map(|(_, name)| name.to_owned())
}

/// The entries of a profile, each overriding earlier ones, and the replacements.
#[derive(Default)]
struct Recipe<'a> {
    entries: Vec<&'a str>,
    words: Vec<(&'static str, String)>,
}

impl<'a> Recipe<'a> {
    fn of(name: &'a str) -> Option<Recipe<'a>> {
        if let Some(rest) = name.strip_prefix("interner-") {
            let (rate, contexts) = rest.split_once('-')?;
            return Some(
                Recipe::at(rate, &["interner"])?
                    .with("contexts", contexts)
                    .with("number", thousands(contexts)?),
            );
        }
        if let Some(rate) = name.strip_prefix("dsd-uds-nodist-nomulti-") {
            return Recipe::without_distributions(rate, &["dsd-uds-nodist", "single-values"]);
        }
        if let Some(rate) = name.strip_prefix("dsd-uds-nodist-") {
            return Recipe::without_distributions(rate, &["dsd-uds-nodist"]);
        }
        if let Some(recipe) = name
            .strip_prefix("smp-adp-")
            .and_then(|rate| Recipe::at(rate, &["smp-adp-at"]))
        {
            return Some(recipe);
        }
        if let Some(count) = name.strip_prefix("many-tags-") {
            return Recipe::many_tags(count.parse().ok()?);
        }
        // Some entries are not profiles but extensions of others.
        NAMES
            .split_whitespace()
            .any(|known| known == name)
            .then(|| Recipe {
                entries: vec![name],
                words: Vec::new(),
            })
    }

    fn at(rate: &str, entries: &[&'a str]) -> Option<Recipe<'a>> {
        binary(rate)?;
        let entries = entries.to_vec();
        Some(
            Recipe {
                entries,
                words: Vec::new(),
            }
            .with("rate", rate),
        )
    }

    fn without_distributions(rate: &str, entries: &[&'a str]) -> Option<Recipe<'a>> {
        let mut recipe = Recipe::at(rate, entries)?;
        if binary(rate)? < 1 << 20 {
            recipe.entries.push("small-blocks");
        }
        Some(recipe)
    }

    fn many_tags(count: u64) -> Option<Recipe<'a>> {
        let mut entries = vec!["many-tags"];
        match count {
            1..64 => {}
            64..=256 => entries.push("few-messages"),
            257..=2048 => entries.extend(["few-messages", "large-packets"]),
            _ => return None,
        }
        Some(
            Recipe {
                entries,
                words: Vec::new(),
            }
            .with("count", count),
        )
    }

    fn with(mut self, word: &'static str, value: impl ToString) -> Recipe<'a> {
        self.words.push((word, value.to_string()));
        self
    }

    fn profile(&self) -> Profile {
        let mut text = String::new();
        for name in &self.entries {
            merge(name, &mut text);
        }
        for (word, value) in &self.words {
            text = text.replace(&format!("{{{word}}}"), value);
        }
        Profile::from_layers(&text).unwrap_or_else(|error| panic!("{:?}: {error}", self.entries))
    }
}

/// Appends an entry after those that it extends; the last of repeated keys counts.
fn merge(name: &str, text: &mut String) {
    let own = GROUPS.iter().find_map(|group| entry(group, name));
    let own = own.unwrap_or_else(|| panic!("no profile {name}"));
    match own.strip_prefix("like: ").and_then(|rest| rest.split_once('\n')) {
        Some((like, rest)) => {
            merge(like, text);
            text.push_str(rest);
        }
        None => text.push_str(&own),
    }
}

/// The settings of an entry, without their indentation.
fn entry(group: &str, name: &str) -> Option<String> {
    let head = |line: &str| line.strip_suffix(':') == Some(name);
    let below = group.lines().skip_while(|line| !head(line)).skip(1);
    let settings: Vec<&str> = below.map_while(|line| line.strip_prefix("  ")).collect();
    (!settings.is_empty()).then(|| settings.join("\n") + "\n")
}

fn thousands(text: &str) -> Option<u64> {
    match text.strip_suffix('k') {
        Some(number) => number.parse::<u64>().ok()?.checked_mul(1000),
        None => text.parse().ok(),
    }
}

fn binary(text: &str) -> Option<u64> {
    // A terabyte per second exceeds every machine and keeps the arithmetic within bounds.
    const MOST: u64 = 1 << 40;
    let (number, unit) = match text.strip_suffix("KiB") {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix("MiB")?, 1 << 20),
    };
    let rate = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=MOST).contains(&rate).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Range;

    #[test]
    fn every_named_profile_is_valid_and_survives_yaml() {
        for known in all() {
            let profile = named(&known.name).unwrap();
            profile
                .validate()
                .unwrap_or_else(|error| panic!("{}: {error}", known.name));
            assert!(!profile.about.is_empty(), "{}", known.name);
            let yaml = profile.to_yaml();
            let back =
                Profile::from_yaml(&yaml).unwrap_or_else(|error| panic!("{}: {error}\n{yaml}", known.name));
            assert_eq!(back, profile, "{}\n{yaml}", known.name);
        }
    }

    #[test]
    fn variants_change_only_their_settings_and_unknown_ones_are_refused() {
        let unique = named("interner-8MiB-10k@tags-unique@lading-burst").unwrap();
        assert_eq!(unique.unique_tag_ratio, 1.0);
        assert_eq!(unique.throttle, Throttle::LadingBurst);
        assert_eq!(unique.contexts, Range::just(10_000));
        for wrong in [
            "interner-8MiB",
            "interner-8MiB-10000000000000000000k",
            "interner-18446744073709551615MiB-1k",
            "interner-0MiB-1k",
            "real-web@tags-unique",
            "interner-8MiB-10k@x",
            "",
        ] {
            assert!(named(wrong).is_none(), "{wrong}");
        }
        assert_eq!(suggest("real-wep").as_deref(), Some("real-web"));
    }

    #[test]
    fn bad_profiles_are_refused_with_the_key_and_the_allowed_values() {
        for (yaml, part) in [
            ("contextz: 5", "contextz"),
            ("contexts: 0", "contexts"),
            ("contexts: \"9..3\"", "9 is above 3"),
            ("sample_p: 1.5", "allowed is 0 to 1"),
            ("rate: 8 Kb/s", "ambiguous"),
            ("packet_size: 3", "16 bytes"),
            ("packet_size: 8 Kb", "ambiguous"),
            (
                "packet_size: {min: 1 KiB, max: 2 KiB, mid: 3}",
                "neither min, max, exactly nor a size",
            ),
            ("packet_size: {exactly: 20}", "64 bytes"),
            ("packet_size: {exactly: 1432, min: 1}", "min and max, or exactly"),
            ("packet_size: {512: -1}", "weights"),
            ("tags_per_msg: \"9..3\"", "9 is above 3"),
            ("tags_per_msg: {many: 1}", "not a number of tags"),
            ("{value: {kind: sequence}, multivalue_p: 0.5}", "sequence"),
            ("seed: -1", "not a seed"),
            ("seed: [1, 2, 3]", "32 bytes"),
            ("churn: {trickle: {per_second: 0.1, grupp: 3}}", "grupp"),
            ("framing: varint", "newline"),
            ("churn: {trickle: {per_second: 0.1}}", "rate"),
            ("payload: statsd", "distribution"),
            ("value: {kind: {uniform: {min: 5, max: 1}}}", "impossible"),
            ("throttle: sometimes", "sometimes"),
            ("kinds: {metric: -1}", "kinds"),
            ("tag_values: {list: [\"a,b\"]}", "tag_values"),
        ] {
            let error = Profile::from_yaml(yaml).unwrap_err();
            assert!(error.0.contains(part), "{yaml}: {error}");
        }
        let error = Profile::from_yaml("seed: 1\ncontextz: 5").unwrap_err();
        assert!(error.0.contains("line 2"), "{error}");
    }
}
