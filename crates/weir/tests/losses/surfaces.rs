//! What people see of an agent's losses.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use weir_units::{counted, grouped};

use crate::support::terminal::Terminal;
use crate::support::{get, json, run};

/// An entry of `/api/v1/losses`.
#[derive(Clone, Debug, Deserialize)]
pub struct Listed {
    pub series: String,
    pub labels: Vec<(String, String)>,
    pub place: String,
    pub meaning: String,
    pub count: f64,
    pub unit: String,
    pub remedy: String,
}

impl Listed {
    fn is(&self, other: &Listed) -> bool {
        self.series == other.series && self.labels == other.labels
    }

    /// Place and meaning, as lists begin with them.
    fn what(&self) -> String {
        let meaning = self.meaning.trim_end_matches('.');
        match &*self.place {
            "" => meaning.to_owned(),
            place => format!("{place}: {meaning}"),
        }
    }
}

pub fn listed(admin: &str) -> Vec<Listed> {
    serde_json::from_value(json(admin, "/api/v1/losses")).unwrap()
}

/// The texts of the losses on the page of each agent. `None`: the page was not built.
pub fn pages(admins: &[&str]) -> Vec<Option<Vec<String>>> {
    if !get(admins[0], "/").1.contains("<script") {
        println!("skipped: the page of losses: it is not built (make page)");
        return vec![None; admins.len()];
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/test/losses.mjs");
    let output = Command::new("node").arg(script).args(admins).output();
    let output = output.expect("node is needed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let texts: Vec<Vec<String>> = serde_json::from_slice(&output.stdout).unwrap();
    texts.into_iter().map(Some).collect()
}

/// Without what depends on the width of a screen, and on how a surface marks commands and groups digits.
fn squeezed(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_whitespace() && *c != '`' && *c != ',')
        .collect()
}

/// The screen of `weir top`, which is high enough for all.
fn top(admin: &str) -> String {
    let mut terminal = Terminal::weir(&["top", "--admin", admin], &[], 400, 240);
    let screen = squeezed(&terminal.until_shown("Memory: "));
    terminal.keys("q");
    assert!(terminal.end().success());
    screen
}

/// What the surfaces of a process show, and its list before and after: some numbers rise meanwhile.
pub struct Surfaces {
    pub before: Vec<Listed>,
    after: Vec<Listed>,
    /// Squeezed.
    status: String,
    doctor: Option<String>,
    top: Option<String>,
    page: Option<Vec<String>>,
    metrics: String,
}

impl Surfaces {
    pub fn look(admin: &str, is_merge: bool, page: Option<Vec<String>>) -> Surfaces {
        let before = listed(admin);
        let ask = |arguments: &[&str]| {
            let ran = run(&[arguments, &["--admin", admin]].concat(), &[]);
            squeezed(&(ran.stdout + &ran.stderr))
        };
        let status = match is_merge {
            true => ask(&["merge", "status"]),
            false => ask(&["status"]),
        };
        // Only agents have them.
        let (doctor, top) = match is_merge {
            true => (None, None),
            false => (Some(ask(&["doctor", "--no-send"])), Some(top(admin))),
        };
        Surfaces {
            status,
            doctor,
            top,
            page: page.map(|page| page.iter().map(|text| squeezed(text)).collect()),
            metrics: get(admin, "/metrics").1,
            after: listed(admin),
            before,
        }
    }

    /// What is missing about a loss.
    pub fn faults(&self, loss: &Listed) -> Vec<String> {
        let after = self.after.iter().find(|after| after.is(loss)).unwrap_or(loss);
        let mut faults = Vec::new();
        let is_of_place = ["listener", "output"]
            .iter()
            .any(|key| loss.labels.iter().any(|(of, _)| of == key));
        if is_of_place && loss.place.is_empty() {
            faults.push("it has no place".to_owned());
        }
        let remedies = [squeezed(&loss.remedy), squeezed(&after.remedy)];
        let (what, meaning) = (squeezed(&loss.what()), squeezed(&loss.meaning));
        let place = if loss.place.is_empty() {
            "agent"
        } else {
            &*loss.place
        };
        let at = if loss.place.is_empty() {
            String::new()
        } else {
            format!("at{}", squeezed(&loss.place))
        };
        let mut check = |surface: &str, number: Option<u64>, least: f64| match number {
            Some(number) if (least..=after.count).contains(&(number as f64)) => {}
            found => faults.push(format!(
                "{surface}: {found:?}, not {} to {}, {loss:?}",
                least, after.count
            )),
        };
        let in_list = |text: &str| {
            let tail = |rest: &str| {
                let rest = match rest.strip_prefix("rising:+") {
                    Some(rest) => rest.trim_start_matches(|c: char| c.is_ascii_digit()),
                    None => rest,
                };
                remedies.iter().any(|remedy| rest.starts_with(&**remedy))
            };
            number_after(text, &format!("{what}:"), &loss.unit, tail)
        };
        check("status", in_list(&self.status), loss.count);
        if let Some(top) = &self.top {
            check("top", in_list(top), loss.count);
        }
        let tail = |rest: &str| {
            let rest = rest.strip_prefix("sincethestart").unwrap_or(rest);
            remedies
                .iter()
                .any(|remedy| rest.starts_with(&format!(":{meaning}->{remedy}")))
        };
        if let Some(doctor) = &self.doctor {
            let number = number_after(doctor, &format!("losses{}:", squeezed(place)), &loss.unit, tail);
            check("doctor", number, loss.count);
        }
        let labels: Vec<(&str, &str)> = loss
            .labels
            .iter()
            .map(|(key, value)| (&**key, &**value))
            .collect();
        check(
            "metrics",
            self.in_metrics(&loss.series, &labels).map(|value| value as u64),
            loss.count,
        );
        if let Some(page) = &self.page {
            let tail = |rest: &str| {
                remedies
                    .iter()
                    .any(|remedy| rest == format!("{at}:{meaning}{remedy}"))
            };
            let of_item = |item: &String| number_after(item, "", &loss.unit, tail);
            // It came first.
            let number = page.iter().find_map(of_item);
            check("page", number, 1.0);
        }
        faults
    }

    /// The value of a series with these labels in the exposition, of the first if there are several. A label without a name is any.
    pub fn in_metrics(&self, series: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |line: &str, (key, value): (&str, &str)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            value.is_empty() || line.contains(&format!("{key}=\"{value}\""))
        };
        let mut lines = self.metrics.lines().filter(|line| {
            let rest = line.strip_prefix(series);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let line = lines.find(|line| labels.iter().all(|label| has(line, *label)))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

/// The number behind a text, if its unit and an expected rest follow.
fn number_after(text: &str, lead: &str, unit: &str, is_rest: impl Fn(&str) -> bool) -> Option<u64> {
    text.match_indices(lead).find_map(|(at, _)| {
        let rest = &text[at + lead.len()..];
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let shown = counted(number, unit);
        let unit = squeezed(shown.strip_prefix(&grouped(number))?);
        let rest = rest[digits..].strip_prefix(&*unit)?;
        is_rest(rest).then_some(number)
    })
}
