//! Points as lines of braille dots, for `weir graph` and `weir top`.

use std::fmt::Write as _;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style as CellStyle};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget as _};

use super::recent::{Group, Points, last};
use super::style::Style;
use super::table::{duration, shown, si};

/// Lines that a reader can distinguish; the legend names as many.
pub const LINES_MAX: usize = 6;
const COLOURS: [Color; LINES_MAX] = [
    Color::Cyan,
    Color::Yellow,
    Color::Magenta,
    Color::Green,
    Color::Blue,
    Color::Red,
];

/// Draws the lines with their axes.
pub fn draw(points: &Points, area: Rect, buffer: &mut Buffer) {
    let groups = weightiest(points);
    let runs: Vec<(usize, Vec<(f64, f64)>)> = groups
        .iter()
        .enumerate()
        .flat_map(|(number, group)| runs(&points.times, group).map(move |run| (number, run)))
        .collect();
    let datasets = runs.iter().map(|(number, run)| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(CellStyle::default().fg(COLOURS[*number]))
            .data(run)
    });
    let (low, high) = bounds(&groups);
    let (from, to) = window(points);
    let unit = if points.function == "rate" { "/s" } else { "" };
    let levels = [low, (low + high) / 2.0, high].map(|level| Line::from(format!("{}{unit}", si(level))));
    Chart::new(datasets.collect())
        .x_axis(
            Axis::default()
                .bounds([from as f64, to as f64])
                .labels(times(from, to)),
        )
        .y_axis(Axis::default().bounds([low, high]).labels(levels))
        .legend_position(None)
        .render(area, buffer);
}

/// The drawn groups, each with its legend.
pub fn legend(points: &Points) -> Vec<(Color, String)> {
    let groups = weightiest(points);
    let width = groups
        .iter()
        .map(|group| shown(&group.title()).chars().count())
        .max();
    let width = width.unwrap_or(0);
    let rows = groups.iter().zip(COLOURS).map(|(group, colour)| {
        let (low, high) = bounds_of(group);
        let figures = [last(&group.values), low, high, mean_of(group)];
        let [last, low, high, mean] = figures.map(|value| value.map_or("-".to_owned(), si));
        let title = shown(&group.title());
        (
            colour,
            format!("{title:<width$}  last {last:>6}  min {low:>6}  max {high:>6}  mean {mean:>6}"),
        )
    });
    rows.collect()
}

/// Groups without a row in the legend.
pub fn rest(points: &Points) -> Option<String> {
    let hidden = points.groups.len().saturating_sub(LINES_MAX) + points.folded;
    (hidden > 0).then(|| {
        format!(
            "and {hidden} smaller {}",
            weir_units::unit_of(hidden as u64, "groups")
        )
    })
}

/// A line that describes the chart.
pub fn title(points: &Points) -> String {
    format!(
        "{} ({}), {} of {} series, one point per {}",
        shown(&points.metric),
        points.kind,
        points.function,
        points.series,
        duration(points.step.into())
    )
}

/// The chart as text.
pub fn text(title: &str, points: &Points, width: u16, height: u16, style: Style) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(points, area, &mut buffer);
    let mut text = style.heading(title);
    text.push('\n');
    for row in 0..height {
        let mut line = String::new();
        for column in 0..width {
            let cell = &buffer[(column, row)];
            match COLOURS.iter().position(|colour| *colour == cell.fg) {
                Some(number) if cell.symbol() != " " => line.push_str(&style.line(number, cell.symbol())),
                _ => line.push_str(cell.symbol()),
            }
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for (number, (_, line)) in legend(points).into_iter().enumerate() {
        let _ = writeln!(text, "{} {line}", style.line(number, "━━"));
    }
    if let Some(rest) = rest(points) {
        let _ = writeln!(text, "   {rest}");
    }
    text
}

/// The groups with the highest values, as many as a reader can distinguish.
fn weightiest(points: &Points) -> Vec<&Group> {
    let weight = |group: &Group| {
        group
            .values
            .iter()
            .flatten()
            .map(|value| value.abs())
            .sum::<f64>()
    };
    let mut groups: Vec<&Group> = points.groups.iter().collect();
    groups.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    groups.truncate(LINES_MAX);
    groups
}

/// The points between two gaps, separately, so that no line crosses a gap.
fn runs(times: &[i64], group: &Group) -> impl Iterator<Item = Vec<(f64, f64)>> {
    let points: Vec<Option<(f64, f64)>> = times
        .iter()
        .zip(&group.values)
        .map(|(time, value)| value.map(|value| (*time as f64, value)))
        .collect();
    let runs: Vec<Vec<(f64, f64)>> = points
        .split(Option::is_none)
        .filter(|run| !run.is_empty())
        .map(|run| run.iter().flatten().copied().collect())
        .collect();
    runs.into_iter()
}

fn mean_of(group: &Group) -> Option<f64> {
    let number = group.values.iter().flatten().count();
    let sum: f64 = group.values.iter().flatten().sum();
    (number > 0).then(|| sum / number as f64)
}

fn bounds_of(group: &Group) -> (Option<f64>, Option<f64>) {
    let values = || group.values.iter().flatten().copied();
    (values().reduce(f64::min), values().reduce(f64::max))
}

/// The lowest and the highest value, including zero if the lines stay readable.
fn bounds(groups: &[&Group]) -> (f64, f64) {
    let all = groups.iter().map(|group| bounds_of(group));
    let (lows, highs): (Vec<_>, Vec<_>) = all.unzip();
    let low = lows.into_iter().flatten().reduce(f64::min).unwrap_or(0.0);
    let high = highs.into_iter().flatten().reduce(f64::max).unwrap_or(1.0);
    let low = if low > 0.0 && low < high / 2.0 { 0.0 } else { low };
    match (low, high) {
        (low, high) if low < high => (low, high),
        (0.0, _) => (0.0, 1.0),
        (level, _) if level > 0.0 => (0.0, level),
        (level, _) => (level, 0.0),
    }
}

/// The first and the last time; of a single point, the second before it and its own.
fn window(points: &Points) -> (i64, i64) {
    let first = points.times.first().copied().unwrap_or(0);
    let last = points.times.last().copied().unwrap_or(0);
    (first.min(last - 1), last)
}

/// The end as a time of day, the others as durations before it. The middle of a single second has none.
fn times(from: i64, to: i64) -> [Line<'static>; 3] {
    let before = |seconds: i64| Line::from(format!("-{}", duration(seconds.unsigned_abs())));
    let (hours, minutes, seconds) = (to / 3600 % 24, to / 60 % 60, to % 60);
    [
        before(to - from),
        match (to - from) / 2 {
            0 => Line::default(),
            half => before(half),
        },
        Line::from(format!("{hours:02}:{minutes:02}:{seconds:02} UTC")),
    ]
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// One group for each list of values.
    pub fn points(function: &str, groups: &[(&str, &[Option<f64>])]) -> Points {
        let longest = groups.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
        Points {
            metric: "page.views".to_owned(),
            kind: "counter".to_owned(),
            function: function.to_owned(),
            step: 1,
            times: (0..longest as i64)
                .map(|at| 86_399 - longest as i64 + 1 + at)
                .collect(),
            groups: groups
                .iter()
                .map(|(user, values)| Group {
                    tags: vec![("user".to_owned(), Some((*user).to_owned()))],
                    values: values.to_vec(),
                    ..Group::default()
                })
                .collect(),
            folded: 0,
            series: groups.len(),
        }
    }

    #[test]
    fn a_rising_line_goes_from_the_lower_left_to_the_upper_right() {
        let values: Vec<_> = (0..60).map(|value| Some(f64::from(value))).collect();
        let points = points("rate", &[("ann", &values)]);
        let text = text(&title(&points), &points, 60, 12, Style::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "page.views (counter), rate of 1 series, one point per 1s"
        );
        let dots = |line: &str| line.chars().position(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
        let (top, bottom) = (dots(lines[1]).unwrap(), dots(lines[10]).unwrap());
        assert!(top > 50 && bottom < 12, "{text}");
        assert!(lines[1].starts_with("59/s"), "{text}");
        assert!(text.contains("-59s") && text.contains("23:59:59 UTC"), "{text}");
        let legend = "user:ann  last     59  min      0  max     59  mean   29.5";
        assert!(text.contains(legend), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn no_line_crosses_a_gap() {
        let group = Group {
            values: vec![Some(1.0), Some(2.0), None, None, Some(3.0)],
            ..Group::default()
        };
        let found: Vec<_> = runs(&[0, 1, 2, 3, 4], &group).collect();
        assert_eq!(found, [vec![(0.0, 1.0), (1.0, 2.0)], vec![(4.0, 3.0)]]);
    }

    #[test]
    fn constant_levels_are_drawn_and_groups_beyond_the_colours_are_counted() {
        for level in [0.0, 5.0, -5.0] {
            let values = [Some(level); 5];
            let (low, high) = bounds(&[&Group {
                values: values.to_vec(),
                ..Group::default()
            }]);
            assert!(
                low < high && (low..=high).contains(&level),
                "{level}: {low} to {high}"
            );
        }
        let groups: Vec<(&str, &[Option<f64>])> = vec![("x", &[Some(1.0)]); 9];
        assert_eq!(rest(&points("sum", &groups)).unwrap(), "and 3 smaller groups");
        assert_eq!(legend(&points("sum", &groups)).len(), LINES_MAX);
    }

    #[test]
    fn a_single_point_is_at_its_own_time() {
        let points = points("rate", &[("ann", &[Some(1.0)])]);
        let text = text(&title(&points), &points, 60, 8, Style::default());
        let top = text.lines().nth(1).unwrap();
        assert!(
            top.ends_with(|c| ('\u{2801}'..='\u{28ff}').contains(&c)),
            "{text}"
        );
        assert!(text.contains("-1s") && text.contains("23:59:59 UTC"), "{text}");
        assert!(!text.contains("-0s"), "{text}");
    }

    #[test]
    fn nothing_to_draw_is_no_error() {
        let points = points("rate", &[]);
        let text = text(&title(&points), &points, 40, 8, Style::COLOURED);
        assert!(text.contains("0 series"), "{text}");
    }
}
