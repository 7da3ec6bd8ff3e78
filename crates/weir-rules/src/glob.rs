//! The groups of a wildcard pattern.

/// The text for each `*` of `pattern` in `name`: the first star takes as much as possible, then the second, as for the expression
/// `([^.]*)`. `None` if the name does not match.
pub fn captures<'n>(pattern: &str, name: &'n str, groups: &mut Vec<&'n str>) -> Option<()> {
    groups.clear();
    let (mut patterns, mut parts) = (pattern.split('.'), name.split('.'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return Some(()),
            // A star cannot cross a dot, so the parts correspond one to one.
            (Some(pattern), Some(part)) => part_captures(pattern, part, groups)?,
            _ => return None,
        }
    }
}

fn part_captures<'n>(pattern: &str, part: &'n str, groups: &mut Vec<&'n str>) -> Option<()> {
    let Some((first, rest)) = pattern.split_once('*') else {
        return (pattern == part).then_some(());
    };
    let inner = part.strip_prefix(first)?;
    let Some((middle, last)) = rest.rsplit_once('*') else {
        groups.push(inner.strip_suffix(rest)?);
        return Some(());
    };
    let mut inner = inner.strip_suffix(last)?;
    // From the right, each literal as far right as possible: this leaves the most to the first star, then to the second.
    let first_group = groups.len();
    let mut tail = inner;
    for literal in middle.rsplit('*') {
        let at = inner.rfind(literal)?;
        groups.push(&tail[at + literal.len()..]);
        inner = &inner[..at];
        tail = inner;
    }
    groups.push(inner);
    groups[first_group..].reverse();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pattern: &str, name: &str, expected: Option<&[&str]>) {
        let mut groups = Vec::new();
        let found = captures(pattern, name, &mut groups);
        assert_eq!(found.map(|()| groups.as_slice()), expected, "{pattern} {name}");
    }

    #[test]
    fn groups_of_wildcards() {
        check("a.*.c", "a.b.c", Some(&["b"]));
        check("a.*.c", "a..c", Some(&[""]));
        check("a.*.c", "a.b.b.c", None);
        check("*.x-*", "1.x-2", Some(&["1", "2"]));
        check("a*b*", "aXbYbZ", Some(&["XbY", "Z"]));
        check("*a*a*", "aaa", Some(&["a", "", ""]));
        check("a", "a", Some(&[]));
        check("*", "a.b", None);
    }

    proptest! {
        #[test]
        fn captures_equal_those_of_the_expression(
            pattern in "[ab.]{0,2}(\\*[ab.]{1,2}){0,3}\\*?", name in "[ab.]{0,10}",
        ) {
            let expression = format!("^{}$", pattern.replace('.', "\\.").replace('*', "([^.]*)"));
            let regex = regex_lite::Regex::new(&expression).unwrap();
            let expected = regex.captures(&name).map(|found| {
                found.iter().skip(1).map(|group| group.unwrap().as_str().to_owned()).collect::<Vec<_>>()
            });
            let mut groups = Vec::new();
            let found = captures(&pattern, &name, &mut groups);
            prop_assert_eq!(found.map(|()| groups.iter().map(ToString::to_string).collect()), expected);
        }
    }
}
