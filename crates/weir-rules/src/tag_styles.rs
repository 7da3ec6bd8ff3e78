//! Tags in the names of metrics, in the styles of other agents.

use std::borrow::Cow;

use crate::Subject;

/// The accepted styles of tags in names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagStyles {
    /// `name#key=value,key=value`
    pub librato: bool,
    /// `name,key=value,key=value`
    pub influx: bool,
    /// `name[key=value,key=value]`
    pub signalfx: bool,
}

impl TagStyles {
    /// The styles as a number below 8.
    pub fn bits(self) -> u32 {
        u32::from(self.librato) | u32::from(self.influx) << 1 | u32::from(self.signalfx) << 2
    }

    pub fn from_bits(bits: u32) -> Self {
        TagStyles {
            librato: bits & 1 != 0,
            influx: bits & 2 != 0,
            signalfx: bits & 4 != 0,
        }
    }

    /// Moves the tags out of the name. Returns false if there are none.
    pub(crate) fn take_tags(self, subject: &mut Subject<'_>) -> bool {
        if self == TagStyles::default() {
            return false;
        }
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

#[cfg(test)]
mod tests {
    use weir_protocol::Kind;

    use super::*;

    const ALL: TagStyles = TagStyles {
        librato: true,
        influx: true,
        signalfx: true,
    };

    #[track_caller]
    fn check(styles: TagStyles, name: &str, expected: &str, tags: &[&str]) {
        let mut subject = Subject {
            kind: Kind::Counter,
            name: name.into(),
            host: None,
            tags: Vec::new(),
            suffix_mask: 0,
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
