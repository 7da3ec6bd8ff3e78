//! The state of `weir top`: the list, row and chart on the screen, and the effect of keys. It draws nothing and sends no requests.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Position, Rect};

use super::data::{ScreenRequest, Snapshot, WantedChart, WantedMetrics};
use crate::cli::recent::{Points, last};
use weir_history::matches;
use weir_status::contexts::MetricRow;
use weir_status::losses;
use weir_status::status::{OutputStatus, sum_of};
use weir_system::failure::Failure;

/// Rows for each step of the wheel.
const WHEEL: usize = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    #[default]
    Overview,
    Metrics,
    TagKeys,
    Origins,
    Outputs,
}

impl Tab {
    pub const ALL: [Tab; 5] = [
        Tab::Overview,
        Tab::Metrics,
        Tab::TagKeys,
        Tab::Origins,
        Tab::Outputs,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Tab::Overview => "Overview",
            Tab::Metrics => "Metrics",
            Tab::TagKeys => "Tag keys",
            Tab::Origins => "Origins",
            Tab::Outputs => "Outputs",
        }
    }

    /// The sort orders of its rows, the default first.
    pub fn sorts(self) -> &'static [&'static str] {
        match self {
            Tab::Overview => &[],
            Tab::Metrics => &["samples", "contexts", "growth", "name", "seen"],
            Tab::TagKeys => &["values", "growth", "name"],
            Tab::Origins => &["contexts", "samples", "name"],
            Tab::Outputs => &["dropped", "pending", "name"],
        }
    }

    /// Its place in the line of tabs, with the number of its key.
    pub fn label(self) -> String {
        format!(" {} {} ", self.number() + 1, self.title())
    }

    /// The tab at a column of that line. Between two is a space.
    fn at(column: usize) -> Option<Tab> {
        let mut end = 0;
        Tab::ALL.into_iter().find(|tab| {
            let start = end;
            end = start + tab.label().len() + 1;
            (start..end - 1).contains(&column)
        })
    }

    pub fn number(self) -> usize {
        Tab::ALL.iter().position(|tab| *tab == self).unwrap_or(0)
    }

    fn moved(self, by: usize) -> Tab {
        Tab::ALL[(self.number() + by) % Tab::ALL.len()]
    }
}

/// The effect of a key on the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Go,
    End,
}

/// One metric on the full screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChartView {
    pub metric: String,
    pub kind: String,
    function: Option<&'static str>,
    by: Option<String>,
    window: usize,
}

/// As API parameters, and as text.
const WINDOWS: [(Option<&str>, &str); 4] = [
    (None, "all that is stored"),
    (Some("-5m"), "last 5 min"),
    (Some("-15m"), "last 15 min"),
    (Some("-1h"), "last 1 h"),
];

/// The functions for a kind's points.
fn functions(kind: &str) -> &'static [&'static str] {
    match kind {
        "counter" => &["rate", "sum", "avg", "min", "max", "count"],
        "distribution" | "histogram" => &["p95", "p50", "p99", "avg", "min", "max", "rate", "count"],
        _ => &["avg", "sum", "min", "max", "last"],
    }
}

impl ChartView {
    pub fn window(&self) -> &'static str {
        WINDOWS[self.window].1
    }

    pub fn by(&self) -> Option<&str> {
        self.by.as_deref()
    }
}

/// A row of the list of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricLine {
    pub name: String,
    pub kind: String,
    pub sparkline: Vec<Option<f64>>,
    pub last: Option<f64>,
    /// Unknown for metrics that send little.
    pub samples_per_second: Option<f64>,
    pub contexts: u64,
    pub growth: i64,
}

/// A loss or refusal, with its remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    pub what: String,
    pub advice: String,
    pub count: f64,
    pub unit: &'static str,
    /// Increase since the previous answer.
    pub risen: f64,
}

#[derive(Debug, Default)]
pub struct TopState {
    pub tab: Tab,
    /// The selected row of each tab.
    chosen: [usize; 5],
    /// Its name, once somebody selected it: the row stays selected where a new answer moves it.
    chosen_names: [Option<String>; 5],
    sorts: [usize; 5],
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    pub is_helping: bool,
    pub chart: Option<ChartView>,
    /// Rows of a list that fit on the screen; known after drawing.
    pub page: usize,
    /// The line of tabs and the rows of a list on the screen; known after drawing.
    pub places: (Rect, Rect),
    pub snapshot: Option<Snapshot>,
    pub losses: Vec<Loss>,
    /// Why the agent does not answer.
    pub away: Option<String>,
}

impl TopState {
    /// Takes the agent's answer or the error. Known data stays.
    pub fn take(&mut self, answered: Result<Snapshot, Failure>) {
        match answered {
            Err(failure) => self.away = Some(failure.message),
            Ok(mut snapshot) => {
                self.away = None;
                let before = self.snapshot.is_some().then_some(self.losses.as_slice());
                self.losses = losses(&snapshot, before);
                if let Some(old) = self.snapshot.take() {
                    // The answer to an older filter may lack what matches this one.
                    if snapshot.metrics.is_some() && !self.filter.contains(&snapshot.pattern) {
                        (snapshot.metrics, snapshot.pattern) = (old.metrics, old.pattern);
                    }
                    // Rows that have just scrolled into view have no chart yet; rows out of view keep theirs.
                    for (name, metric) in old.details {
                        snapshot.details.entry(name).or_insert(metric);
                    }
                    let fits = |points: &Result<_, _>| self.is_of_chart(points);
                    snapshot.points = snapshot.points.or(old.points).filter(fits);
                }
                self.snapshot = Some(snapshot);
                self.follow();
            }
        }
    }

    /// Lists change their order with each answer. A click or Enter must not open what has just taken the place of the selected row.
    fn follow(&mut self) {
        if let Some(name) = &self.chosen_names[self.tab.number()]
            && let Some(row) = self.names().iter().position(|of| of == name)
        {
            self.chosen[self.tab.number()] = row;
        }
        self.keep_in_list();
    }

    fn is_of_chart<E>(&self, points: &Result<Points, E>) -> bool {
        match (&self.chart, points) {
            (Some(chart), Ok(points)) => chart.metric == points.metric,
            (chart, _) => chart.is_some(),
        }
    }

    pub fn sort(&self) -> &'static str {
        let sorts = self.tab.sorts();
        sorts.get(self.sorts[self.tab.number()]).copied().unwrap_or("")
    }

    /// The order after the next `s`.
    pub fn next_sort(&self) -> &'static str {
        let sorts = self.tab.sorts();
        let next = (self.sorts[self.tab.number()] + 1) % sorts.len().max(1);
        sorts.get(next).copied().unwrap_or("")
    }

    pub fn chosen(&self) -> usize {
        self.chosen[self.tab.number()]
    }

    /// The next requests.
    pub fn wanted(&self) -> ScreenRequest {
        let metrics = (self.tab == Tab::Metrics && self.chart.is_none()).then(|| WantedMetrics {
            pattern: self.filter.clone(),
            sort: Some(self.sort()).filter(|sort| *sort != "samples"),
            visible: self.visible_names(),
        });
        let chart = self.chart.as_ref().map(|chart| WantedChart {
            metric: chart.metric.clone(),
            kind: chart.kind.clone(),
            function: chart.function.map(str::to_owned),
            by: chart.by.clone(),
            from: WINDOWS[chart.window].0,
        });
        ScreenRequest { metrics, chart }
    }

    fn visible_names(&self) -> Vec<String> {
        let first = self.first_row(self.page);
        let shown = self.metrics().into_iter().skip(first).take(self.page);
        shown.map(|line| line.name).collect()
    }

    /// The first row to show, so that the selected one is on the screen.
    pub fn first_row(&self, rows: usize) -> usize {
        self.chosen() / rows.max(1) * rows.max(1)
    }

    /// The list of metrics, filtered and sorted.
    pub fn metrics(&self) -> Vec<MetricLine> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let by_samples = &snapshot.contexts.metrics_by_samples;
        let lines: Vec<MetricLine> = match &snapshot.metrics {
            Some(known) if self.sort() != "samples" => known
                .metrics
                .iter()
                .map(|metric| MetricLine {
                    name: metric.name.clone(),
                    kind: metric.kind.clone(),
                    samples_per_second: by_samples
                        .iter()
                        .find(|row| row.metric == metric.name)
                        .map(|row| row.samples_per_second),
                    contexts: metric.contexts,
                    growth: metric.new as i64,
                    ..MetricLine::default()
                })
                .collect(),
            _ => self.by_contexts_report(),
        };
        // Until the agent has answered the newest filter, its answer is that of an older one.
        let with_details = lines
            .into_iter()
            .filter(|line| matches(&self.filter, &line.name))
            .map(|line| match snapshot.details.get(&line.name) {
                Some(metric) => MetricLine {
                    kind: metric.kind.clone(),
                    last: last(&metric.sparkline),
                    sparkline: metric.sparkline.clone(),
                    ..line
                },
                None => line,
            });
        with_details.collect()
    }

    /// Metrics with the most samples, or the report of contexts if the last minutes are disabled.
    fn by_contexts_report(&self) -> Vec<MetricLine> {
        let Some(snapshot) = &self.snapshot else {
            return Vec::new();
        };
        let report = &snapshot.contexts;
        let mut rows = match self.sort() {
            // First the metrics with samples in the last bucket, then the others.
            "samples" => {
                let busy = &report.metrics_by_samples;
                let is_idle = |row: &&MetricRow| busy.iter().all(|other| other.metric != row.metric);
                let idle = report.metrics_by_contexts.iter().filter(is_idle);
                busy.iter().chain(idle).cloned().collect()
            }
            _ => report.metrics_by_contexts.clone(),
        };
        match self.sort() {
            "growth" => rows.sort_by_key(|row| Reverse(row.growth)),
            "name" => rows.sort_by(|a, b| a.metric.cmp(&b.metric)),
            _ => {}
        }
        let lines = rows.into_iter().map(|row| MetricLine {
            name: row.metric,
            samples_per_second: Some(row.samples_per_second),
            contexts: row.contexts,
            growth: row.growth,
            ..MetricLine::default()
        });
        lines.collect()
    }

    /// Tag keys with their values and growth.
    pub fn tag_keys(&self) -> Vec<(String, u64, i64)> {
        let rows = self
            .snapshot
            .iter()
            .flat_map(|snapshot| &snapshot.contexts.tag_keys);
        let mut rows: Vec<_> = rows
            .filter(|row| matches(&self.filter, &row.key))
            .map(|row| (row.key.clone(), row.values, row.growth))
            .collect();
        match self.sort() {
            "growth" => rows.sort_by_key(|row| Reverse(row.2)),
            "name" => rows.sort(),
            _ => rows.sort_by_key(|row| Reverse(row.1)),
        }
        rows
    }

    /// Origins with their contexts and samples per second.
    pub fn origins(&self) -> Vec<(String, u64, f64)> {
        let rows = self
            .snapshot
            .iter()
            .flat_map(|snapshot| &snapshot.contexts.origins);
        let mut rows: Vec<_> = rows
            .filter(|row| matches(&self.filter, &row.origin))
            .map(|row| (row.origin.clone(), row.contexts, row.samples_per_second))
            .collect();
        match self.sort() {
            "samples" => rows.sort_by(|a, b| b.2.total_cmp(&a.2)),
            "name" => rows.sort_by(|a, b| a.0.cmp(&b.0)),
            _ => rows.sort_by_key(|row| Reverse(row.1)),
        }
        rows
    }

    pub fn outputs(&self) -> Vec<&OutputStatus> {
        let rows = self.snapshot.iter().flat_map(|snapshot| &snapshot.status.outputs);
        let mut rows: Vec<_> = rows
            .filter(|output| matches(&self.filter, &output.name))
            .collect();
        match self.sort() {
            "pending" => rows.sort_by_key(|output| Reverse(output.waiting())),
            "name" => rows.sort_by(|a, b| a.name.cmp(&b.name)),
            _ => rows.sort_by_key(|output| Reverse(dropped(output))),
        }
        rows
    }

    /// The names of the rows of the list.
    fn names(&self) -> Vec<String> {
        match self.tab {
            Tab::Overview => self.losses.iter().map(|loss| loss.what.clone()).collect(),
            Tab::Metrics => self.metrics().into_iter().map(|line| line.name).collect(),
            Tab::TagKeys => self.tag_keys().into_iter().map(|(key, ..)| key).collect(),
            Tab::Origins => self.origins().into_iter().map(|(origin, ..)| origin).collect(),
            Tab::Outputs => self.outputs().iter().map(|output| output.name.clone()).collect(),
        }
    }

    fn rows(&self) -> usize {
        self.names().len()
    }

    fn keep_in_list(&mut self) {
        let last = self.rows().saturating_sub(1);
        let chosen = &mut self.chosen[self.tab.number()];
        *chosen = (*chosen).min(last);
    }

    fn choose(&mut self, row: usize) {
        self.chosen[self.tab.number()] = row;
        self.keep_in_list();
        let name = self.names().into_iter().nth(self.chosen());
        self.chosen_names[self.tab.number()] = name;
    }

    /// Selects the first row, whichever it is at any time.
    fn choose_first(&mut self) {
        self.chosen[self.tab.number()] = 0;
        self.chosen_names[self.tab.number()] = None;
    }

    /// The effect of a key.
    pub fn key(&mut self, key: KeyEvent) -> Next {
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if with_control => return Next::End,
            _ if self.is_typing => self.type_filter(key.code),
            _ if self.is_helping => self.is_helping = false,
            KeyCode::Char('q') => return Next::End,
            KeyCode::Char('?' | 'h') => self.is_helping = true,
            _ if self.chart.is_some() => self.chart_key(key.code),
            code => self.list_key(code),
        }
        Next::Go
    }

    /// The effect of a click or the wheel. The right button goes back, as Esc does.
    pub fn mouse(&mut self, mouse: MouseEvent) {
        let at = Position::new(mouse.column, mouse.row);
        let (tabs, list) = self.places;
        match mouse.kind {
            MouseEventKind::Down(_) if self.is_helping => self.is_helping = false,
            MouseEventKind::Down(MouseButton::Left) if tabs.contains(at) => {
                if let Some(tab) = Tab::at(usize::from(at.x - tabs.x)) {
                    self.is_typing = false;
                    self.open(tab);
                }
            }
            MouseEventKind::Down(MouseButton::Right) if self.chart.is_some() => self.chart = None,
            MouseEventKind::Down(MouseButton::Right) => self.list_key(KeyCode::Esc),
            _ if self.chart.is_some() => {}
            MouseEventKind::ScrollDown => self.choose(self.chosen() + WHEEL),
            MouseEventKind::ScrollUp => self.choose(self.chosen().saturating_sub(WHEEL)),
            MouseEventKind::Down(MouseButton::Left) if list.contains(at) && self.tab != Tab::Overview => {
                let row = self.first_row(self.page.max(1)) + usize::from(at.y - list.y);
                match row {
                    row if row >= self.rows() => {}
                    row if row == self.chosen() && self.tab == Tab::Metrics => self.open_chart(),
                    row => self.choose(row),
                }
            }
            _ => {}
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(typed) => self.filter.push(typed),
            _ => {}
        }
        self.choose_first();
    }

    fn list_key(&mut self, code: KeyCode) {
        let (chosen, page) = (self.chosen(), self.page.max(1));
        match code {
            KeyCode::Char('/') if self.tab != Tab::Overview => self.is_typing = true,
            KeyCode::Esc => {
                self.filter.clear();
                self.follow();
            }
            KeyCode::Char('s') => self.sort_otherwise(),
            KeyCode::Char(digit @ '1'..='5') => self.open(Tab::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.open(self.tab.moved(1)),
            KeyCode::BackTab | KeyCode::Left => self.open(self.tab.moved(Tab::ALL.len() - 1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(chosen + 1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(chosen.saturating_sub(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.choose(chosen + page),
            KeyCode::PageUp => self.choose(chosen.saturating_sub(page)),
            KeyCode::Home | KeyCode::Char('g') => self.choose_first(),
            KeyCode::End | KeyCode::Char('G') => self.choose(usize::MAX),
            KeyCode::Enter if self.tab == Tab::Metrics => self.open_chart(),
            _ => {}
        }
    }

    fn open(&mut self, tab: Tab) {
        self.tab = tab;
        self.chart = None;
        self.filter.clear();
        self.follow();
    }

    fn sort_otherwise(&mut self) {
        let number = self.tab.number();
        self.sorts[number] = (self.sorts[number] + 1) % self.tab.sorts().len().max(1);
        self.choose_first();
    }

    fn open_chart(&mut self) {
        let Some(line) = self.metrics().into_iter().nth(self.chosen()) else {
            return;
        };
        self.chart = Some(ChartView {
            metric: line.name,
            kind: line.kind,
            ..ChartView::default()
        });
    }

    fn chart_key(&mut self, code: KeyCode) {
        let keys = self.tag_keys_of_chart();
        let shown = self
            .snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.points.as_ref());
        let function = shown
            .and_then(|points| points.as_ref().ok())
            .map(|points| points.function.clone());
        let Some(chart) = &mut self.chart else { return };
        match code {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => self.chart = None,
            KeyCode::Char('f') => {
                let functions = functions(&chart.kind);
                let now = chart.function.or(function.as_deref());
                let at = functions.iter().position(|name| Some(*name) == now);
                chart.function = Some(functions[at.map_or(0, |at| (at + 1) % functions.len())]);
            }
            KeyCode::Char('g') => {
                let at = keys.iter().position(|key| Some(key) == chart.by.as_ref());
                chart.by = keys.into_iter().nth(at.map_or(0, |at| at + 1));
            }
            KeyCode::Char('w') => chart.window = (chart.window + 1) % WINDOWS.len(),
            KeyCode::Char('1'..='5') | KeyCode::Tab | KeyCode::BackTab => self.list_key(code),
            _ => {}
        }
    }

    fn tag_keys_of_chart(&self) -> Vec<String> {
        let chart = self.chart.as_ref();
        let details = self.snapshot.as_ref().map(|snapshot| &snapshot.details);
        let metric = details
            .zip(chart)
            .and_then(|(details, chart)| details.get(&chart.metric));
        metric.map(|metric| metric.tag_keys.clone()).unwrap_or_default()
    }
}

/// In the unit that the output counts in.
pub fn dropped(output: &OutputStatus) -> u64 {
    output
        .books()
        .iter()
        .map(|(_, books)| sum_of(&books.dropped))
        .sum()
}

/// Rising ones first, then the largest. Before the second answer none counts as rising.
fn losses(snapshot: &Snapshot, before: Option<&[Loss]>) -> Vec<Loss> {
    let mut losses: Vec<Loss> = losses::losses(&snapshot.status)
        .into_iter()
        .map(|loss| {
            let what = loss.what();
            let old = before.map(|losses| {
                losses
                    .iter()
                    .find(|old| old.what == what && old.unit == loss.unit)
            });
            let then = old.map_or(loss.count, |old| old.map_or(0.0, |old| old.count));
            Loss {
                advice: loss.remedy,
                count: loss.count,
                unit: loss.unit,
                risen: (loss.count - then).max(0.0),
                what,
            }
        })
        .collect();
    losses.sort_by(|a, b| {
        b.risen
            .total_cmp(&a.risen)
            .then_with(|| b.count.total_cmp(&a.count))
    });
    losses
}

#[cfg(test)]
#[path = "state_tests.rs"]
pub(super) mod tests;
