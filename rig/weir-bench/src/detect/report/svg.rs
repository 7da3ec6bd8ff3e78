//! Plots as SVG text, without a script or an outside resource.

use super::junit::escape;
use crate::detect::analysis::{Report, Row};
use crate::detect::capture::Phase;
use std::fmt::Write as _;

pub struct Svg {
    pub width: f64,
    pub height: f64,
    pub body: String,
}

const BASELINE: &str = "#6b7280";
const COMPARISON: &str = "#2563eb";
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:currentColor}.small{font-size:10px;opacity:.75}.axis{stroke:currentColor;stroke-opacity:.35;stroke-width:1}.grid{stroke:currentColor;stroke-opacity:.12}";

pub fn standalone(svg: &Svg) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w:.0} {h:.0}\" width=\"{w:.0}\" height=\"{h:.0}\" style=\"background:#fff;color:#111\"><style>{STYLE}</style>{}</svg>\n",
        svg.body,
        w = svg.width,
        h = svg.height
    )
}

pub fn inline(svg: &Svg, label: &str) -> String {
    format!(
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.0} {:.0}\"><style>{STYLE}</style>{}</svg>",
        escape(label),
        svg.width,
        svg.height,
        svg.body
    )
}

fn colour(row: &Row) -> &'static str {
    match row.perf.as_str() {
        "better" => "#15803d",
        "worse" => "#dc2626",
        "none" => BASELINE,
        _ => "#b45309",
    }
}

/// A value axis that ends at round numbers.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = values
            .filter(|v| v.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| {
                (l.min(v), h.max(v))
            });
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let room = if high > low {
            (high - low) * 0.06
        } else {
            high.abs().max(1.0) * 0.01
        };
        Self {
            low: low - room,
            high: high + room,
            from,
            to,
        }
    }

    fn at(&self, v: f64) -> f64 {
        self.from + (v - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    fn ticks(&self, n: usize) -> Vec<f64> {
        let raw = (self.high - self.low) / n as f64;
        let power = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .iter()
            .map(|m| m * power)
            .find(|s| *s >= raw)
            .unwrap_or(power);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

/// All headline changes with their intervals, and the band of changes that do not matter.
pub fn forest(r: &Report) -> Svg {
    let rows: Vec<(&Row, &crate::detect::analysis::Change)> = r
        .rows
        .iter()
        .filter_map(|row| Some((row, row.change.as_ref().filter(|c| c.scale == "percent")?)))
        .collect();
    let (left, right, line) = (330.0, 880.0, 24.0);
    let height = 50.0 + line * rows.len() as f64;
    let e = 100.0 * r.run.effect;
    let x = Axis::over(
        rows.iter()
            .flat_map(|(_, c)| [c.low, c.high])
            .chain([-1.6 * e, 1.6 * e]),
        left,
        right,
    );
    let mut o = String::new();
    let bottom = height - 26.0;
    let _ = write!(
        o,
        "<rect x=\"{:.1}\" y=\"8\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#6b7280\" fill-opacity=\".12\"/>",
        x.at(-e),
        x.at(e) - x.at(-e),
        bottom - 8.0
    );
    for t in x.ticks(8) {
        let _ = write!(
            o,
            "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"8\" y2=\"{bottom:.1}\"/><text class=\"small\" x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"middle\">{2}%</text>",
            x.at(t),
            bottom + 14.0,
            short(t)
        );
    }
    let _ = write!(
        o,
        "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"8\" y2=\"{bottom:.1}\"/>",
        x.at(0.0)
    );
    for (i, (row, c)) in rows.iter().enumerate() {
        let y = 22.0 + line * i as f64;
        let colour = colour(row);
        let _ = write!(
            o,
            "<g><title>{name}, {goal}: {d:+.2} % [{l:+.2}, {h:+.2}], {v}</title><text x=\"{tx:.1}\" y=\"{ty:.1}\" text-anchor=\"end\">{name} <tspan class=\"small\">{goal}</tspan></text><line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/><circle cx=\"{cx:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/></g>",
            name = escape(&row.experiment),
            goal = escape(row.goal.title()),
            d = c.delta,
            l = c.low,
            h = c.high,
            v = escape(&row.verdict),
            tx = left - 12.0,
            ty = y + 4.0,
            x1 = x.at(c.low),
            x2 = x.at(c.high),
            cx = x.at(c.delta)
        );
    }
    Svg {
        width: 900.0,
        height,
        body: o,
    }
}

/// Every pair in the order of the runs: drift shows as both dots moving together, a change as all lines leaning the same way.
pub fn pairs(row: &Row) -> Svg {
    let (left, right, top, bottom) = (70.0, 440.0, 24.0, 190.0);
    let y = Axis::over(
        row.values.iter().flat_map(|v| [v.baseline, v.comparison]),
        bottom,
        top,
    );
    let n = row.values.len().max(1) as f64;
    let mut o = frame(&y, left, right, |v| row.goal.unit().show(v));
    for (i, v) in row.values.iter().enumerate() {
        let x = left + (i as f64 + 0.5) / n * (right - left);
        let lean = ((right - left) / n * 0.2).min(9.0);
        // The one that ran first is drawn first.
        let (xb, xc) = if v.order == "CB" {
            (x + lean, x - lean)
        } else {
            (x - lean, x + lean)
        };
        let _ = write!(
            o,
            "<g><title>pair {p}: {b} to {c}</title><line x1=\"{xb:.1}\" y1=\"{yb:.1}\" x2=\"{xc:.1}\" y2=\"{yc:.1}\" stroke=\"currentColor\" stroke-opacity=\".4\"/><circle cx=\"{xb:.1}\" cy=\"{yb:.1}\" r=\"4\" fill=\"{BASELINE}\"/><circle cx=\"{xc:.1}\" cy=\"{yc:.1}\" r=\"4\" fill=\"{COMPARISON}\"/></g>",
            p = v.pair + 1,
            b = escape(&row.goal.unit().show(v.baseline)),
            c = escape(&row.goal.unit().show(v.comparison)),
            yb = y.at(v.baseline),
            yc = y.at(v.comparison)
        );
    }
    title(
        &mut o,
        left,
        &format!("{} per run, in time order", row.goal.title()),
    );
    let _ = write!(
        o,
        "<text class=\"small\" x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">pairs, left to right</text>",
        bottom + 16.0
    );
    small(o)
}

fn frame(y: &Axis, left: f64, right: f64, show: impl Fn(f64) -> String) -> String {
    let mut o = String::new();
    for t in y.ticks(4) {
        let _ = write!(
            o,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/><text class=\"small\" x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            y.at(t),
            left - 5.0,
            y.at(t) + 3.0,
            escape(&show(t))
        );
    }
    o
}

fn title(o: &mut String, left: f64, text: &str) {
    let _ = write!(
        o,
        "<text class=\"small\" x=\"{left}\" y=\"14\">{}</text>",
        escape(text)
    );
}

fn small(body: String) -> Svg {
    Svg {
        width: 450.0,
        height: 214.0,
        body,
    }
}

pub type Trace = Vec<(f64, f64, Phase)>;

/// One line per run over the seconds of a run; warm-up and drain are shaded.
pub fn traces(name: &str, baseline: &[Trace], comparison: &[Trace], show: impl Fn(f64) -> String) -> Svg {
    let (left, right, top, bottom) = (70.0, 440.0, 24.0, 190.0);
    let all = || baseline.iter().chain(comparison).flatten();
    let y = Axis::over(all().map(|p| p.1), bottom, top);
    let x = Axis::over(all().map(|p| p.0), left, right);
    let mut o = String::new();
    let edge = |pick: fn(&Phase) -> bool| {
        all()
            .filter(|p| pick(&p.2))
            .map(|p| p.0)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), t| {
                (l.min(t), h.max(t))
            })
    };
    let (start, end) = edge(|p| *p == Phase::Measure);
    for (a, b) in [(x.low, start), (end, x.high)] {
        if b > a && a.is_finite() && b.is_finite() {
            let _ = write!(
                o,
                "<rect x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#6b7280\" fill-opacity=\".12\"/>",
                x.at(a),
                x.at(b) - x.at(a),
                bottom - top
            );
        }
    }
    o.push_str(&frame(&y, left, right, show));
    for (runs, colour) in [(baseline, BASELINE), (comparison, COMPARISON)] {
        for run in runs {
            let points: Vec<String> = run
                .iter()
                .map(|p| format!("{:.1},{:.1}", x.at(p.0), y.at(p.1)))
                .collect();
            let _ = write!(
                o,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-opacity=\".65\" stroke-width=\"1.2\"/>",
                points.join(" ")
            );
        }
    }
    for t in x.ticks(6) {
        let _ = write!(
            o,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}s</text>",
            x.at(t),
            bottom + 14.0,
            short(t)
        );
    }
    title(&mut o, left, name);
    small(o)
}

/// Share of values at or below x, for both arms.
pub fn ecdf(name: &str, baseline: &[f64], comparison: &[f64], show: impl Fn(f64) -> String) -> Svg {
    let (left, right, top, bottom) = (70.0, 440.0, 24.0, 190.0);
    let x = Axis::over(baseline.iter().chain(comparison).copied(), left, right);
    let y = Axis {
        low: 0.0,
        high: 1.0,
        from: bottom,
        to: top,
    };
    let mut o = frame(&y, left, right, |v| format!("{:.0}%", 100.0 * v));
    for (values, colour) in [(baseline, BASELINE), (comparison, COMPARISON)] {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len().max(1) as f64;
        let mut path = String::new();
        let mut share = 0.0;
        for (i, v) in sorted.iter().enumerate() {
            let _ = write!(
                path,
                "{}{:.1},{:.1} ",
                if i == 0 { "M" } else { "L" },
                x.at(*v),
                y.at(share)
            );
            share = (i + 1) as f64 / n;
            let _ = write!(path, "L{:.1},{:.1} ", x.at(*v), y.at(share));
        }
        let _ = write!(
            o,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        );
    }
    for t in x.ticks(4) {
        let _ = write!(
            o,
            "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x.at(t),
            bottom + 14.0,
            escape(&show(t))
        );
    }
    title(&mut o, left, name);
    small(o)
}

/// One result in a history.
pub struct Dot {
    pub value: f64,
    pub title: String,
    pub note: Option<String>,
}

/// Results in the order of time, with the levels between changes: (index of the first result after it, acknowledged).
pub fn history(name: &str, dots: &[Dot], changes: &[(usize, bool)], show: impl Fn(f64) -> String) -> Svg {
    let (left, right, top, bottom) = (70.0, 440.0, 24.0, 190.0);
    let y = Axis::over(dots.iter().map(|d| d.value), bottom, top);
    let x = |i: f64| left + (i + 0.5) / dots.len().max(1) as f64 * (right - left);
    let mut o = frame(&y, left, right, show);
    let line: Vec<String> = dots
        .iter()
        .enumerate()
        .map(|(i, d)| format!("{:.1},{:.1}", x(i as f64), y.at(d.value)))
        .collect();
    let _ = write!(
        o,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{COMPARISON}\" stroke-opacity=\".4\"/>",
        line.join(" ")
    );
    for (index, acknowledged) in changes {
        let dashes = if *acknowledged { "1 3" } else { "5 3" };
        let _ = write!(
            o,
            "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke-dasharray=\"{dashes}\"/>",
            x(*index as f64 - 0.5)
        );
    }
    for (i, d) in dots.iter().enumerate() {
        let (cx, cy) = (x(i as f64), y.at(d.value));
        let shape = match &d.note {
            None => format!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{COMPARISON}\">"),
            Some(_) => format!(
                "<path class=\"note\" d=\"M{cx:.1},{:.1}l5,9h-10z\" fill=\"#b45309\">",
                cy - 5.0
            ),
        };
        let end = if d.note.is_some() { "path" } else { "circle" };
        let note = d.note.as_ref().map_or(String::new(), |note| format!("; {note}"));
        let _ = write!(
            o,
            "{shape}<title>{}{}</title></{end}>",
            escape(&d.title),
            escape(&note)
        );
    }
    title(&mut o, left, name);
    small(o)
}

/// A number without needless zeros.
fn short(v: f64) -> String {
    let text = format!("{v:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}
