//! Tags in the styles of other agents: in the names of metrics, or with a `#` each.

use std::borrow::Cow;

use crate::Subject;

/// The accepted styles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagStyles {
    /// `name#key=value,key=value`
    pub librato: bool,
    /// `name,key=value,key=value`
    pub influx: bool,
    /// `name[key=value,key=value]`
    pub signalfx: bool,
    /// `#key:value,#key:value`: a tag loses its own `#`, and blank ones are dropped.
    pub hashes: bool,
}

impl TagStyles {
    /// Bits of [`TagStyles::bits`].
    pub const BITS: u32 = 4;

    /// The styles as a number.
    pub fn bits(self) -> u32 {
        u32::from(self.librato)
            | u32::from(self.influx) << 1
            | u32::from(self.signalfx) << 2
            | u32::from(self.hashes) << 3
    }

    pub fn from_bits(bits: u32) -> Self {
        TagStyles {
            librato: bits & 1 != 0,
            influx: bits & 2 != 0,
            signalfx: bits & 4 != 0,
            hashes: bits & 8 != 0,
        }
    }

    /// Moves the tags out of the name, and reads those behind it. Returns false if that changes nothing.
    pub(crate) fn take_tags(self, subject: &mut Subject<'_>) -> bool {
        if self == TagStyles::default() {
            return false;
        }
        let has_changed = self.hashes && without_hashes(&mut subject.tags);
        self.take_from_name(subject) || has_changed
    }

    fn take_from_name(self, subject: &mut Subject<'_>) -> bool {
        let Some((name, tags)) = self.split(&subject.name) else {
            return false;
        };
        // A metric needs a name.
        if name.is_empty() {
            return false;
        }
        let with_value = tags.split(',').filter_map(|tag| tag.split_once('='));
        let tags: Vec<Cow<'_, str>> = with_value
            .filter(|(key, value)| !key.is_empty() && !value.is_empty())
            .map(|(key, value)| Cow::Owned(format!("{key}:{value}")))
            .collect();
        subject.tags.extend(tags);
        subject.name = Cow::Owned(name);
        true
    }

    /// Splits a name into the plain name and its tags.
    fn split(self, name: &str) -> Option<(String, String)> {
        if self.signalfx
            && let (Some(open), Some(close)) = (name.find('['), name.find(']'))
            && open < close
        {
            let rest = format!("{}{}", &name[..open], &name[close + 1..]);
            return Some((rest, name[open + 1..close].to_owned()));
        }
        let begins = |byte| byte == '#' && self.librato || byte == ',' && self.influx;
        let (name, tags) = name.split_once(begins)?;
        Some((name.to_owned(), tags.to_owned()))
    }
}

/// Removes the `#` of each tag, and blank tags. Returns whether there was one.
fn without_hashes(tags: &mut Vec<Cow<'_, str>>) -> bool {
    let mut has_changed = false;
    tags.retain_mut(|tag| {
        if let Some(rest) = tag.strip_prefix('#') {
            *tag = Cow::Owned(rest.to_owned());
            has_changed = true;
        }
        let is_blank = tag.trim().is_empty();
        has_changed |= is_blank;
        !is_blank
    });
    has_changed
}

#[cfg(test)]
mod tests {
    use weir_protocol::Kind;

    use super::*;

    const ALL: TagStyles = TagStyles {
        librato: true,
        influx: true,
        signalfx: true,
        hashes: false,
    };

    #[track_caller]
    fn check(styles: TagStyles, name: &str, expected: &str, tags: &[&str]) {
        let mut subject = Subject {
            kind: Kind::Counter,
            name: name.into(),
            host: None,
            tags: Vec::new(),
            suffix_mask: 0,
            delta_expiry: None,
            tag_styles: None,
        };
        styles.take_tags(&mut subject);
        assert_eq!(
            (&*subject.name, &*subject.tags),
            (
                expected,
                &*tags.iter().map(|tag| Cow::from(*tag)).collect::<Vec<_>>()
            )
        );
    }

    #[test]
    fn tags_of_each_style_are_removed_from_the_name() {
        check(ALL, "a.b#x=1,y=2", "a.b", &["x:1", "y:2"]);
        check(ALL, "a.b,x=1,y=2", "a.b", &["x:1", "y:2"]);
        check(ALL, "a.b[x=1,y=2]", "a.b", &["x:1", "y:2"]);
        check(ALL, "a[x=1].b", "a.b", &["x:1"]);
        check(ALL, "plain", "plain", &[]);
    }

    #[test]
    fn tags_lose_their_hashes() {
        let of = |hashes: bool, tags: &[&str]| {
            let mut subject = Subject {
                kind: Kind::Counter,
                name: "a".into(),
                host: None,
                tags: tags.iter().map(|tag| Cow::from(tag.to_string())).collect(),
                suffix_mask: 0,
                delta_expiry: None,
                tag_styles: None,
            };
            let styles = TagStyles {
                hashes,
                ..TagStyles::default()
            };
            let has_changed = styles.take_tags(&mut subject);
            (has_changed, subject.tags.join(","))
        };
        assert_eq!(
            of(true, &["xx:1", "#yy:2", "env:prod", " ", "#", "a#b:#c"]),
            (true, "xx:1,yy:2,env:prod,a#b:#c".into())
        );
        assert_eq!(of(true, &["xx:1"]), (false, "xx:1".into()));
        assert_eq!(of(false, &["#yy:2", " "]), (false, "#yy:2, ".into()));
    }

    #[test]
    fn invalid_tags_are_dropped_and_unknown_styles_stay() {
        check(ALL, "a,x,=1,y=,z=1", "a", &["z:1"]);
        check(ALL, "a[x=1", "a[x=1", &[]);
        check(ALL, "a]x=1[", "a]x=1[", &[]);
        check(ALL, ",x=1", ",x=1", &[]);
        let librato = TagStyles {
            librato: true,
            ..TagStyles::default()
        };
        check(librato, "a,x=1", "a,x=1", &[]);
        check(TagStyles::default(), "a#x=1", "a#x=1", &[]);
    }
}
