//! One self-contained HTML page over a history: level changes, trends, notes. No script, no outside resource.

use super::{Entry, History, Key, LevelChange, changes, series, short_commit};
use crate::detect::report::{CSS, date, escape, svg};
use std::fmt::Write as _;
use weir_regress::change_point::Options;

pub fn page(history: &History, options: &Options) -> String {
    let found = changes(history, options);
    let mut o = String::new();
    let _ = write!(
        o,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>Performance over time</title><style>{CSS}</style></head><body>\n<h1>Performance over time</h1>\n"
    );
    if let (Some(first), Some(last)) = (history.oldest(), history.newest()) {
        let _ = writeln!(
            o,
            "<p>{} results from {} to {}. A dashed line is a level change between two results; a dotted one has been acknowledged. \
             Triangles have notes; the title of each dot is its commit and value.</p>",
            history.entries.len(),
            date(first),
            date(last)
        );
    }
    o.push_str("<h2>Level changes</h2>");
    table(&mut o, &found);
    let all = series(&history.entries);
    let mut names: Vec<&str> = all.keys().map(|key| key.experiment.as_str()).collect();
    names.dedup();
    for name in names {
        let _ = write!(o, "<h2>{}</h2>", escape(name));
        let mine = || all.iter().filter(|(key, _)| key.experiment == name);
        let is_headline = |points: &[&Entry]| points.last().is_some_and(|e| e.headline);
        let plots = |o: &mut String, headline: bool| {
            o.push_str("<div class=\"plots\">");
            for (key, points) in mine().filter(|(_, points)| is_headline(points) == headline) {
                o.push_str(&plot(history, key, points, &found));
            }
            o.push_str("</div>");
        };
        plots(&mut o, true);
        if mine().any(|(_, points)| !is_headline(points)) {
            o.push_str("<details><summary>other goals</summary>");
            plots(&mut o, false);
            o.push_str("</details>");
        }
        o.push('\n');
    }
    notes(&mut o, history);
    o.push_str("</body></html>\n");
    o
}

fn table(o: &mut String, found: &[LevelChange]) {
    if found.is_empty() {
        o.push_str("<p>None.</p>");
        return;
    }
    o.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>experiment<th>goal<th>target<th>before<th>after<th>change<th>between<th>and<th>note</tr></thead><tbody>",
    );
    for c in found {
        let class = match (c.acknowledged, c.is_worse()) {
            (Some(_), _) | (None, None) => "",
            (None, Some(true)) => "worse",
            (None, Some(false)) => "better",
        };
        let unit = c.key.goal.unit();
        let note = c.acknowledged.map_or("", |mark| mark.note.as_str());
        let _ = write!(
            o,
            "<tr class=\"{class}\"><td>{}<td>{}<td>{}<td>{}<td>{}<td>{:+.1} %<td>{}<td>{}<td class=\"wrap\">{}</tr>",
            escape(&c.key.experiment),
            escape(c.key.goal.title()),
            escape(&c.key.target),
            escape(&unit.show(c.point.before)),
            escape(&unit.show(c.point.after)),
            c.point.percent(),
            escape(&short_commit(c.last)),
            escape(&short_commit(c.first)),
            escape(note)
        );
    }
    o.push_str("</tbody></table></div>\n");
}

fn plot(history: &History, key: &Key, points: &[&Entry], found: &[LevelChange]) -> String {
    let unit = key.goal.unit();
    let dots: Vec<svg::Dot> = points
        .iter()
        .map(|e| svg::Dot {
            value: e.value,
            title: format!(
                "{}, {}: {}",
                date(e.created_unix),
                short_commit(e),
                unit.show(e.value)
            ),
            note: history.note_at(e).map(|mark| mark.note.clone()),
        })
        .collect();
    let mine = found.iter().filter(|c| c.key == *key);
    let changes: Vec<(usize, bool)> = mine.map(|c| (c.point.index, c.acknowledged.is_some())).collect();
    let name = format!("{}, {}, {}", key.goal.title(), key.target, key.preset);
    svg::inline(&svg::history(&name, &dots, &changes, |v| unit.show(v)), &name)
}

fn notes(o: &mut String, history: &History) {
    if history.marks.is_empty() {
        return;
    }
    o.push_str("<h2>Notes</h2><dl>");
    for mark in &history.marks {
        let _ = write!(
            o,
            "<dt>{}, {}<dd>{}",
            date(mark.created_unix),
            escape(&mark.at),
            escape(&mark.note)
        );
    }
    o.push_str("</dl>\n");
}
