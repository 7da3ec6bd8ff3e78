//! The report as a comment on a change, with the order and middle columns of SMP's report.

use super::{Cells, Positive, Words, date, goal_title, is_interesting, limit_text, mark, series_value};
use crate::detect::analysis::{Report, Row};
use std::fmt::Write as _;

/// Forges cut comments at 65 536 characters.
const SIZE_MAX: usize = 60_000;

pub fn markdown(r: &Report, positive: Positive) -> String {
    let r = &positive.applied(r);
    let full = render(r, positive, true);
    if full.len() <= SIZE_MAX {
        full
    } else {
        render(r, positive, false)
    }
}

fn render(r: &Report, positive: Positive, dimensions: bool) -> String {
    let mut o = String::new();
    head(&mut o, r);
    explanation(&mut o, r, positive);
    interesting(&mut o, r);
    details(&mut o, r);
    checks(&mut o, r);
    if dimensions {
        other_dimensions(&mut o, r);
    } else {
        o.push_str("\nOther dimensions: too many for this page, see report.html.\n");
    }
    reproduction(&mut o, r);
    o
}

fn head(o: &mut String, r: &Report) {
    let title = if r.run.kind == "aa" {
        "Regression Detector Calibration (A/A)"
    } else {
        "Regression Detector Results"
    };
    let _ = writeln!(o, "## {title}\n");
    let _ = writeln!(o, "Run ID: {}", r.run.id);
    let _ = writeln!(o, "Baseline: {}", r.run.baseline.title());
    let _ = writeln!(o, "Comparison: {}", r.run.comparison.title());
    let pinning = if r.run.pinning == "split" {
        "pinned; generator, sinks and observer on the others"
    } else {
        "not pinned, so noisier than a pinned run"
    };
    let _ = writeln!(o, "Target CPUs: {} ({pinning})", r.run.target_cpus);
    let host = |k: &str| r.run.host.get(k).cloned().unwrap_or_default();
    let _ = writeln!(
        o,
        "Machine: {}, {} CPUs, Linux {}",
        host("cpu"),
        host("cpus"),
        host("kernel")
    );
    let _ = writeln!(o, "Date: {}, preset {}", date(r.run.created_unix), r.run.preset);
    let _ = writeln!(o, "Pairs: {} done, {} discarded", r.pairs_done, r.pairs_discarded);
    for (reason, n) in &r.discarded {
        let _ = writeln!(o, "- discarded {n}: {reason}");
    }
    match (&r.calibration, &r.run.calibration) {
        (Some(c), _) => {
            let _ = writeln!(o, "Calibration: {}", c.sentence());
        }
        (None, Some(c)) => {
            let _ = writeln!(o, "Calibration of this machine: {}", c.sentence());
        }
        (None, None) => o.push_str("Calibration of this machine: none\n"),
    }
    if r.run.busy_accepted {
        o.push_str("\n**The machine was allowed to be busy.** Intervals are wider than on a quiet one, and absolute values are not those of a quiet one.\n");
    }
    if r.incomplete {
        o.push_str("\n**This run ended before its plan did**; rows with fewer pairs have wider intervals.\n");
    }
    for note in &r.notes {
        let _ = writeln!(o, "- note: {note}");
    }
}

fn explanation(o: &mut String, r: &Report, positive: Positive) {
    let w = Words::of(r);
    let _ = write!(
        o,
        "\n### Explanation\n\n\
        Each experiment starts both programs under the same load, in pairs of fresh processes whose order is drawn at random, \
        and measures every run as one number per goal. No two runs give the same number, so the change between the programs \
        can only be estimated. The estimate is \"Δ mean %\", relative to the baseline; \"Δ mean % CI\" is its {c} confidence \
        interval: intervals made this way contain the true change in {c} of all cases.\n\n\
        A row is reported as a change when both criteria hold:\n\n\
        1. The estimated |Δ mean %| ≥ {e}: large enough to matter.\n\
        2. Zero is not in the interval: when nothing changed, this happens in {a} of all rows by chance.\n\n\
        A row whose whole interval lies inside ±{e} is *equivalent*: shown not to have changed by as much as matters. A row \
        that shows neither is *inconclusive*; that is not the same as no change. Changes above {d} would very likely have been \
        flagged; a change of exactly {e} is flagged half of the time. MDE is the smallest change that this row's spread and \
        number of pairs would have distinguished from zero in 80% of all cases.\n\n\
        {sign}: ✅ better, ❌ worse, ➖ no change of this size, ❔ unknown. An experiment is erratic when the standard \
        deviation of its runs exceeds 0.1 of their mean.\n\n",
        c = w.confidence,
        e = w.effect,
        a = w.accident,
        d = w.double,
        sign = positive.sentence()
    );
}

fn interesting(o: &mut String, r: &Report) {
    o.push_str("### Interesting changes\n\n");
    let rows: Vec<&Row> = r.rows.iter().filter(|r| is_interesting(r)).collect();
    if rows.is_empty() {
        let w = Words::of(r);
        let _ = writeln!(
            o,
            "No interesting changes in experiment goals with confidence ≥ {} and |Δ mean %| ≥ {}.",
            w.confidence, w.effect
        );
    } else {
        table(o, &rows);
    }
}

fn details(o: &mut String, r: &Report) {
    o.push_str("\n<details>\n<summary>Fine details of change detection per experiment.</summary>\n\n");
    table(o, &r.rows.iter().collect::<Vec<_>>());
    let changes = r.rows.iter().filter_map(|r| r.change.as_ref());
    let judged = changes.clone().count();
    let excluded = changes.filter(|c| c.excludes_zero()).count();
    let _ = writeln!(
        o,
        "\n{excluded} of {judged} intervals exclude zero; {:.1} would by chance if nothing had changed.",
        judged as f64 * (1.0 - r.run.confidence)
    );
    let wide: Vec<&Row> = r
        .rows
        .iter()
        .filter(|r| cv(r).is_some_and(|cv| cv > 0.04))
        .collect();
    if !wide.is_empty() {
        o.push_str("\nRuns vary by more than 4 % in:\n");
        for row in wide {
            let hint = match [row.baseline.within, row.comparison.within]
                .into_iter()
                .flatten()
                .reduce(f64::max)
            {
                Some(w) if w > 0.5 => "; most of it is noise inside the runs: longer windows help",
                Some(_) => "; most of it is between the runs: more pairs help, longer windows do not",
                None => "",
            };
            let _ = writeln!(
                o,
                "- {}: {:.1} %{hint}",
                row.experiment,
                100.0 * cv(row).unwrap_or(0.0)
            );
        }
    }
    o.push_str("\n</details>\n");
}

fn cv(row: &Row) -> Option<f64> {
    [&row.baseline, &row.comparison]
        .iter()
        .filter_map(|a| a.cv.map(|c| c[0]))
        .reduce(f64::max)
}

fn table(o: &mut String, rows: &[&Row]) {
    o.push_str(
        "| perf | experiment | goal | Δ mean % | Δ mean % CI | confidence | pairs | MDE | verdict |\n",
    );
    o.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for row in rows {
        let cells = Cells::of(row);
        let _ = writeln!(
            o,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            mark(row),
            row.experiment,
            goal_title(row),
            cells.delta,
            cells.interval,
            cells.confidence,
            row.pairs,
            cells.mde,
            cells.verdict.replace('|', "\\|").replace('\n', " ")
        );
    }
}

fn checks(o: &mut String, r: &Report) {
    if r.checks.is_empty() {
        return;
    }
    o.push_str("\n### Bounds checks\n\n| perf | experiment | check | arm | replicates passed | worst | limit |\n| --- | --- | --- | --- | --- | --- | --- |\n");
    for c in &r.checks {
        let _ = writeln!(
            o,
            "| {} | {} | {} | {} | {}/{} | {} | {} |",
            if c.ok() { "✅" } else { "❌" },
            c.experiment,
            c.check,
            c.arm,
            c.passed,
            c.of,
            c.worst.map_or("n/a".to_owned(), |v| series_value(&c.series, v)),
            limit_text(c)
        );
    }
}

fn other_dimensions(o: &mut String, r: &Report) {
    if r.dimensions.is_empty() {
        return;
    }
    o.push_str("\n<details>\n<summary>Other dimensions; they never fail a build by themselves. q is the confidence corrected for the number of rows.</summary>\n\n");
    o.push_str("| perf | experiment | dimension | baseline | comparison | Δ % | CI | q |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for row in &r.dimensions {
        let cells = Cells::of(row);
        let _ = writeln!(
            o,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            mark(row),
            row.experiment,
            row.goal.title(),
            cells.baseline,
            cells.comparison,
            cells.delta,
            cells.interval,
            cells.q
        );
    }
    o.push_str("\n</details>\n");
}

fn reproduction(o: &mut String, r: &Report) {
    o.push_str("\n### Reproduction\n\n```\n");
    o.push_str(&r.run.argv.iter().map(|a| shell(a)).collect::<Vec<_>>().join(" "));
    if !r
        .run
        .argv
        .iter()
        .any(|a| a == "--seed" || a.starts_with("--seed="))
    {
        let _ = write!(o, " --seed {}", r.run.seed);
    }
    o.push_str("\n```\n");
    for (experiment, digests) in &r.payloads {
        if let (Some(first), n) = (digests.first(), digests.len()) {
            let short: String = first.chars().take(16).collect();
            let _ = writeln!(o, "- payload of {experiment}: {n} digests, first {short}");
        }
    }
}

fn shell(word: &str) -> String {
    let plain = !word.is_empty()
        && word
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_./:=,@+%~^".contains(&b));
    if plain {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
