//! JUnit XML, which every build server shows: one case per experiment and one per bounds check.

use super::{delta, interval, verdict_title};
use crate::detect::analysis::Report;
use std::fmt::Write as _;

pub fn junit(r: &Report) -> String {
    let mut cases = String::new();
    let (mut failures, mut errors, mut skipped) = (0, 0, 0);
    for row in &r.rows {
        let text = match &row.change {
            Some(c) => format!(
                "{}: {} {} {}",
                row.goal.title(),
                delta(row, c),
                interval(row, c),
                verdict_title(row)
            ),
            None => row.reason.clone().unwrap_or_default(),
        };
        let inner = match row.verdict.as_str() {
            "regression" if !row.declared_erratic => {
                failures += 1;
                format!("<failure message=\"{}\"/>", escape(&text))
            }
            "invalid" => {
                errors += 1;
                format!("<error message=\"{}\"/>", escape(&text))
            }
            "unsupported" => {
                skipped += 1;
                format!("<skipped message=\"{}\"/>", escape(&text))
            }
            _ => format!("<system-out>{}</system-out>", escape(&text)),
        };
        let _ = writeln!(
            cases,
            "  <testcase classname=\"experiment\" name=\"{}\">{inner}</testcase>",
            escape(&row.experiment)
        );
    }
    for c in r.checks.iter().filter(|c| c.arm == "comparison") {
        let inner = if c.ok() {
            String::new()
        } else {
            failures += 1;
            format!("<failure message=\"{}/{} runs passed\"/>", c.passed, c.of)
        };
        let _ = writeln!(
            cases,
            "  <testcase classname=\"check\" name=\"{}\">{inner}</testcase>",
            escape(&format!("{} {}", c.experiment, c.check))
        );
    }
    let tests = r.rows.len() + r.checks.iter().filter(|c| c.arm == "comparison").count();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"weir-bench {}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">\n{cases}</testsuite>\n",
        escape(&r.run.id)
    )
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
