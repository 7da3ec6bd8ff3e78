//! Several metrics in one chart of `weir graph`, and a formula between two of them.

use std::collections::{BTreeSet, HashMap};

use super::recent::{Group, Points};
use super::table::shown;

/// The names of metrics in a formula and a legend, in the order of the arguments.
pub const LETTERS: [char; 6] = ['a', 'b', 'c', 'd', 'e', 'f'];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Divide,
    Subtract,
    Add,
    Multiply,
}

impl Operation {
    fn of(sign: char) -> Option<Operation> {
        match sign {
            '/' => Some(Operation::Divide),
            '-' => Some(Operation::Subtract),
            '+' => Some(Operation::Add),
            '*' => Some(Operation::Multiply),
            _ => None,
        }
    }

    /// No value if a side has none, nor by zero.
    fn apply(self, left: Option<f64>, right: Option<f64>) -> Option<f64> {
        let (left, right) = (left?, right?);
        match self {
            Operation::Divide => (right != 0.0).then(|| left / right),
            Operation::Subtract => Some(left - right),
            Operation::Add => Some(left + right),
            Operation::Multiply => Some(left * right),
        }
    }
}

/// Two metrics by their places, and what is done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formula {
    left: usize,
    sign: char,
    operation: Operation,
    right: usize,
}

impl Formula {
    /// `None` if the text is no formula of this many metrics.
    pub fn parse(text: &str, metrics: usize) -> Option<Formula> {
        let signs: Vec<char> = text.chars().filter(|sign| !sign.is_whitespace()).collect();
        let &[left, sign, right] = signs.as_slice() else {
            return None;
        };
        let place = |letter: char| LETTERS[..metrics].iter().position(|known| *known == letter);
        Some(Formula {
            left: place(left)?,
            sign,
            operation: Operation::of(sign)?,
            right: place(right)?,
        })
    }

    /// A line for the groups with the same tags. A metric with one line goes with each line of the other.
    pub fn of(&self, all: &[Points]) -> Points {
        let times = times(all);
        let (left, right) = (&all[self.left], &all[self.right]);
        let pairs: Vec<(&Group, &Group)> = match (left.groups.as_slice(), right.groups.as_slice()) {
            ([one], many) => many.iter().map(|group| (one, group)).collect(),
            (many, [one]) => many.iter().map(|group| (group, one)).collect(),
            (many, others) => {
                let same = |group: &Group| {
                    others
                        .iter()
                        .find(|other| (&other.tags, other.other) == (&group.tags, group.other))
                };
                many.iter()
                    .filter_map(|group| Some((group, same(group)?)))
                    .collect()
            }
        };
        let groups = pairs.into_iter().map(|(one, other)| {
            let of_left = aligned(&times, left, one).into_iter();
            let values = of_left.zip(aligned(&times, right, other));
            let named = if one.tags.len() < other.tags.len() {
                other
            } else {
                one
            };
            Group {
                values: values
                    .map(|(left, right)| self.operation.apply(left, right))
                    .collect(),
                ..named.clone()
            }
        });
        let groups: Vec<Group> = groups.collect();
        let written = |left: &str, right: &str| format!("{left} {} {right}", self.sign);
        let is_of_one_unit =
            matches!(self.operation, Operation::Subtract | Operation::Add) && left.function == right.function;
        Points {
            metric: written(&left.metric, &right.metric),
            kind: "formula".to_owned(),
            function: if is_of_one_unit {
                left.function.clone()
            } else {
                written(&left.function, &right.function)
            },
            step: left.step.max(right.step),
            series: groups.len(),
            folded: left.folded.max(right.folded),
            times,
            groups,
        }
    }
}

/// The lines of all metrics, each with its letter.
pub fn together(all: &[Points]) -> Points {
    let times = times(all);
    let lettered = || all.iter().zip(LETTERS);
    let groups = lettered().flat_map(|(points, letter)| {
        let lines = points.groups.iter();
        let times = &times;
        lines.map(move |group| Group {
            of: format!("{letter} {}", points.metric),
            values: aligned(times, points, group),
            ..group.clone()
        })
    });
    let groups = groups.collect();
    let first = all.first();
    let is_same = |of: fn(&Points) -> &String| {
        all.iter()
            .all(|points| first.is_some_and(|first| of(first) == of(points)))
    };
    let function = if is_same(|points| &points.function) {
        first.map(|points| points.function.clone())
    } else {
        None
    };
    Points {
        metric: String::new(),
        kind: String::new(),
        function: function.unwrap_or_default(),
        step: all.iter().map(|points| points.step).max().unwrap_or(0),
        series: all.iter().map(|points| points.series).sum(),
        folded: all.iter().map(|points| points.folded).sum(),
        times,
        groups,
    }
}

/// A line that describes the chart of [`together`].
pub fn title(all: &[Points]) -> String {
    let named = all.iter().zip(LETTERS).map(|(points, letter)| {
        format!(
            "{letter} {} ({}, {})",
            shown(&points.metric),
            points.kind,
            points.function
        )
    });
    named.collect::<Vec<_>>().join(", ")
}

fn times(all: &[Points]) -> Vec<i64> {
    let times: BTreeSet<i64> = all
        .iter()
        .flat_map(|points| points.times.iter().copied())
        .collect();
    times.into_iter().collect()
}

/// A group's values at other times; gaps where it has none.
fn aligned(times: &[i64], points: &Points, group: &Group) -> Vec<Option<f64>> {
    let values: HashMap<i64, Option<f64>> = points
        .times
        .iter()
        .copied()
        .zip(group.values.iter().copied())
        .collect();
    times
        .iter()
        .map(|time| values.get(time).copied().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(metric: &str, function: &str, times: &[i64], groups: &[(&str, &[Option<f64>])]) -> Points {
        Points {
            metric: metric.to_owned(),
            kind: "counter".to_owned(),
            function: function.to_owned(),
            step: 1,
            times: times.to_vec(),
            groups: groups
                .iter()
                .map(|(user, values)| Group {
                    tags: match *user {
                        "" => Vec::new(),
                        user => vec![("user".to_owned(), Some(user.to_owned()))],
                    },
                    values: values.to_vec(),
                    ..Group::default()
                })
                .collect(),
            ..Points::default()
        }
    }

    #[test]
    fn formulas_name_metrics_by_letters() {
        for good in ["a/b", "b - a", "a*a", "b+a"] {
            assert!(Formula::parse(good, 2).is_some(), "{good}");
        }
        for wrong in ["", "a", "a/", "a/c", "a%b", "A/b", "a/b/a", "aa/b"] {
            assert_eq!(Formula::parse(wrong, 2), None, "{wrong}");
        }
        assert_eq!(Formula::parse("a/b", 1), None);
    }

    #[test]
    fn groups_with_the_same_tags_meet_and_gaps_stay() {
        let errors = points(
            "errors",
            "rate",
            &[1, 2, 3],
            &[("ann", &[Some(1.0), Some(2.0), None]), ("ben", &[Some(5.0); 3])],
        );
        let views = points(
            "views",
            "rate",
            &[2, 3, 4],
            &[
                ("ann", &[Some(4.0), Some(0.0), Some(1.0)]),
                ("cyd", &[Some(1.0); 3]),
            ],
        );
        let ratio = Formula::parse("a/b", 2)
            .unwrap()
            .of(&[errors.clone(), views.clone()]);
        assert_eq!(ratio.times, [1, 2, 3, 4]);
        assert_eq!(ratio.groups.len(), 1, "ben and cyd have no partner");
        assert_eq!(ratio.groups[0].values, [None, Some(0.5), None, None]);
        assert_eq!(ratio.groups[0].title(), "user:ann");
        assert_eq!(
            (ratio.metric.as_str(), ratio.function.as_str()),
            ("errors / views", "rate / rate")
        );
        let sum = Formula::parse("a+b", 2).unwrap().of(&[errors, views]);
        assert_eq!(
            (sum.function.as_str(), &sum.groups[0].values[1]),
            ("rate", &Some(6.0))
        );
    }

    #[test]
    fn nothing_is_divided_by_zero_and_one_line_goes_with_each() {
        let all = points("all", "sum", &[1, 2], &[("", &[Some(10.0), Some(0.0)])]);
        let some = points(
            "some",
            "sum",
            &[1, 2],
            &[("ann", &[Some(4.0); 2]), ("ben", &[Some(6.0); 2])],
        );
        let share = Formula::parse("b/a", 2).unwrap().of(&[all, some]);
        let found: Vec<_> = share
            .groups
            .iter()
            .map(|group| (group.title(), group.values.clone()))
            .collect();
        assert_eq!(
            found,
            [
                ("user:ann".to_owned(), vec![Some(0.4), None]),
                ("user:ben".to_owned(), vec![Some(0.6), None])
            ]
        );
    }

    #[test]
    fn lines_of_several_metrics_have_letters_and_the_times_of_all() {
        let all = [
            points("views", "rate", &[1, 2], &[("", &[Some(1.0), Some(2.0)])]),
            points("load", "p95", &[2, 3], &[("ann", &[Some(7.0), None])]),
        ];
        let joined = together(&all);
        assert_eq!(joined.times, [1, 2, 3]);
        let titles: Vec<_> = joined.groups.iter().map(Group::title).collect();
        assert_eq!(titles, ["a views", "b load user:ann"]);
        assert_eq!(joined.groups[1].values, [None, Some(7.0), None]);
        assert_eq!(joined.function, "", "no unit of one of them");
        assert_eq!(title(&all), "a views (counter, rate), b load (counter, p95)");
    }
}
