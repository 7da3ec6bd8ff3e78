//! Draws the state of `weir top`. Nothing is expressed by colour alone.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Widget as _, Wrap};
use weir_units::{counted, grouped};

use super::data::AgentError;
use super::state::{ChartView, Loss, Tab, TopState, dropped};
use crate::cli::chart;
use crate::cli::recent::{Books, last};
use crate::cli::table::{bytes, duration, shown, si, sparkline};
use weir_status::counters::PipelineCounter;
use weir_status::status::{MemoryShare, OutputStatus, Status};

const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const REMEDY: Style = Style::new().fg(Color::Yellow);
const GOOD: Style = Style::new().fg(Color::Green);
const QUIET: Style = Style::new().add_modifier(Modifier::DIM);
const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
const SPARK: Style = Style::new().fg(Color::Cyan);

const HELP: &str = "\
1 to 5, Tab, ← →   another list
↑ ↓, PgUp, PgDn    another row
/                  filter: part of a name, or a pattern with * and ?
s                  next sort order; the last line names it
Enter              the metric as a chart; then
                   f function  g group by a tag  w window  Esc back
Esc                clear the filter
q                  quit
click              a list; a row, again: its chart; right: back
wheel              another row; Shift and drag select text";

/// Draws the screen. Records the number of rows that a list has room for.
pub fn draw(state: &mut TopState, now: u64, frame: &mut Frame<'_>) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    state.page = usize::from(body.height.saturating_sub(2));
    // Below a list's head, above its position.
    let rows = Rect {
        y: body.y + 1,
        height: body.height.saturating_sub(2),
        ..body
    };
    state.places = (tabs, rows);
    frame.render_widget(heading(state, now), head);
    frame.render_widget(tab_line(state), tabs);
    frame.render_widget(keys(state), foot);
    if state.snapshot.is_some() {
        match state.chart.clone() {
            Some(chart) => draw_chart(state, &chart, body, frame.buffer_mut()),
            None => draw_tab(state, now, body, frame),
        }
    }
    if state.is_helping {
        draw_help(frame);
    }
}

/// The agent's name, and its health in one line.
fn heading(state: &TopState, now: u64) -> Text<'static> {
    let Some(snapshot) = &state.snapshot else {
        let (style, text) = match &state.away {
            Some(reason) => (BAD, format!("✗ {reason}")),
            None => (QUIET, "asking the agent".to_owned()),
        };
        return Text::from(vec![Line::from("weir top"), Line::styled(text, style)]);
    };
    let status = &snapshot.status;
    let up = duration(now.saturating_sub(status.process.started));
    let first = format!(
        "weir {} on {}, up {up}, {}",
        status.process.version,
        shown(&status.process.hostname),
        counted(snapshot.contexts.contexts_live, "contexts")
    );
    Text::from(vec![Line::styled(first, HEADING), verdict(state, status)])
}

fn verdict(state: &TopState, status: &Status) -> Line<'static> {
    if let Some(reason) = &state.away {
        let text = format!("✗ the agent does not answer: {reason}. The display resumes when it does.");
        return Line::styled(text, BAD);
    }
    if let Some(reason) = &status.not_ready {
        return Line::styled(format!("✗ not ready: {reason}"), BAD);
    }
    let failing = status.outputs.iter().find(|output| !output.healthy);
    match (state.losses.first(), failing) {
        (Some(loss), _) => {
            let number = number_of_losses(state.losses.len(), state);
            Line::styled(format!("✗ {number}{}", loss_text(loss)), BAD)
        }
        (None, Some(output)) => Line::styled(format!("✗ output {} is failing", shown(&output.name)), BAD),
        (None, None) => Line::styled("✓ nothing was lost since the start", GOOD),
    }
}

/// The number of losses and the place of their list: in front of the first one, whose text may be longer than the screen is wide.
fn number_of_losses(number: usize, state: &TopState) -> String {
    let is_below = state.tab == Tab::Overview && state.chart.is_none();
    match (number, is_below) {
        (1, _) => String::new(),
        (number, true) => format!("{number} losses, all below; the first: "),
        (number, false) => format!("{number} losses, press 1 for all; the first: "),
    }
}

fn loss_text(loss: &Loss) -> String {
    let rising = match loss.risen {
        0.0 => String::new(),
        risen => format!(", rising: +{}", grouped(risen as u64)),
    };
    format!("{}: {}{rising}", loss.what, counted(loss.count as u64, loss.unit))
}

fn tab_line(state: &TopState) -> Line<'static> {
    let titles = Tab::ALL.into_iter().flat_map(|tab| {
        let style = match tab == state.tab {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        [Span::styled(tab.label(), style), Span::raw(" ")]
    });
    let mut line = Line::from_iter(titles);
    if !state.filter.is_empty() || state.is_typing {
        let cursor = if state.is_typing { "▏" } else { "" };
        line.push_span(Span::styled(
            format!(" / {}{cursor}", shown(&state.filter)),
            HEADING,
        ));
    }
    line
}

fn keys(state: &TopState) -> Line<'static> {
    let text = match (state.is_typing, &state.chart, state.tab) {
        (true, ..) => " type a part of a name   Enter keep   Esc forget".to_owned(),
        (_, Some(_), _) => " f function   g group   w window   Esc back   ? help   q quit".to_owned(),
        (_, _, Tab::Overview) => " Tab next list   ↑ ↓ losses   ? help   q quit".to_owned(),
        (.., tab) => {
            let open = if tab == Tab::Metrics { "   Enter chart" } else { "" };
            let (next, now) = (state.next_sort(), state.sort());
            format!(" / filter   s sort by {next} (now {now}){open}   ? help   q quit")
        }
    };
    Line::styled(text, QUIET)
}

fn draw_tab(state: &TopState, now: u64, area: Rect, frame: &mut Frame<'_>) {
    match state.tab {
        Tab::Overview => draw_overview(state, area, frame.buffer_mut()),
        Tab::Metrics => draw_metrics(state, area, frame),
        Tab::TagKeys => draw_tag_keys(state, area, frame),
        Tab::Origins => draw_origins(state, area, frame),
        Tab::Outputs => draw_outputs(state, now, area, frame),
    }
}

fn draw_overview(state: &TopState, area: Rect, buffer: &mut Buffer) {
    let Some(snapshot) = &state.snapshot else { return };
    let rates = rate_lines(&snapshot.books, &snapshot.process, area.width);
    let shares: Vec<&MemoryShare> = shares(&snapshot.status);
    let losses = loss_lines(state);
    // Losses get the space that they need before memory does.
    let wanted: usize = losses.iter().map(|line| rows(line, area.width)).sum();
    let [top, middle, bottom] = Layout::vertical([
        Constraint::Length(rates.len() as u16 + 1),
        Constraint::Length((wanted as u16).min(area.height / 2)),
        Constraint::Min(0),
    ])
    .areas(area);
    Paragraph::new(rates).render(top, buffer);
    Paragraph::new(losses)
        .wrap(Wrap { trim: false })
        .render(middle, buffer);
    Paragraph::new(memory_lines(&snapshot.status, &shares, bottom.width)).render(bottom, buffer);
}

/// The maximum rows of a line that is wrapped between words.
fn rows(line: &Line<'_>, width: u16) -> usize {
    match line.width().div_ceil(usize::from(width.max(1))) {
        0 | 1 => 1,
        rows => rows + 1,
    }
}

fn rate_lines(books: &Books, process: &Books, width: u16) -> Vec<Line<'static>> {
    let room = usize::from(width).saturating_sub(34).clamp(10, 120);
    let line = |title: &str, values: Vec<Option<f64>>, figure: &dyn Fn(f64) -> String| {
        let figure = last(&values).map_or("-".to_owned(), figure);
        Line::from(vec![
            Span::raw(format!("{title:<16}{figure:>14}  ")),
            Span::styled(sparkline(&values, room), SPARK),
        ])
    };
    let per_second = |value: f64| format!("{}/s", si(value));
    let size = |value: f64| bytes(value as u64);
    let received = |unit: &str| books.column(&format!("weir_{unit}_received_total"));
    vec![
        line("packets", received("packets"), &per_second),
        line("messages", received("messages"), &per_second),
        line("samples", received("samples"), &per_second),
        line("bytes", books.column("weir_received_bytes_total"), &|value| {
            format!("{}B/s", si(value))
        }),
        line(
            "CPU of one core",
            process.column("process_cpu_seconds_total"),
            &|value| format!("{} %", si(value * 100.0)),
        ),
        line(
            "resident memory",
            process.column("process_resident_memory_bytes"),
            &size,
        ),
    ]
}

fn loss_lines(state: &TopState) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled(
        "Lost, refused or degraded, since the start",
        HEADING,
    )];
    if state.losses.is_empty() {
        lines.push(Line::styled("✓ nothing", GOOD));
    }
    for loss in state.losses.iter().skip(state.chosen()) {
        lines.push(Line::styled(format!("✗ {}", loss_text(loss)), BAD));
        lines.push(Line::styled(format!("  {}", loss.advice), REMEDY));
    }
    lines.push(Line::default());
    lines
}

/// The fullest first.
fn shares(status: &Status) -> Vec<&MemoryShare> {
    let mut shares: Vec<_> = status
        .memory
        .shares
        .iter()
        .filter(|share| share.bytes > 0)
        .collect();
    shares.sort_by(|a, b| fullness(b).total_cmp(&fullness(a)));
    shares
}

/// An agent of an earlier version reports no parts.
fn fullness(share: &MemoryShare) -> f64 {
    share.fullest.max(share.used as f64 / share.bytes as f64)
}

/// Yellow from the first threshold on, red from the second.
fn scale(value: f64, high: f64, too_high: f64, otherwise: Style) -> Style {
    match value {
        value if value >= too_high => BAD,
        value if value >= high => REMEDY,
        _ => otherwise,
    }
}

fn memory_lines(status: &Status, shares: &[&MemoryShare], width: u16) -> Vec<Line<'static>> {
    let memory = &status.memory;
    let title = format!("Memory: {} of {}", bytes(memory.used), bytes(memory.budget));
    let mut lines = vec![Line::styled(title, HEADING)];
    let room = usize::from(width).saturating_sub(48).clamp(5, 40);
    lines.extend(shares.iter().map(|share| {
        let filled = ((fullness(share) * room as f64).round() as usize).min(room);
        // The history is full by design: its oldest minutes make room.
        let style = match share.name.as_str() {
            "history" => SPARK,
            _ => scale(fullness(share), 0.7, 0.9, SPARK),
        };
        let used = format!("{:>10} of {:>10}", bytes(share.used), bytes(share.bytes));
        let mut spans = vec![
            Span::raw(format!("{:<17}{used} ", share.name)),
            Span::styled("█".repeat(filled), style),
            Span::styled("░".repeat(room - filled), QUIET),
        ];
        let met: Vec<_> = share.events.iter().filter(|(_, number)| **number > 0).collect();
        if !met.is_empty() {
            let met: Vec<String> = met
                .into_iter()
                .map(|(event, number)| format!("{event} {}", grouped(*number)))
                .collect();
            spans.push(Span::styled(format!(" {}", met.join(", ")), REMEDY));
        }
        Line::from(spans)
    }));
    lines
}

/// A list, scrolled to its selected row.
fn draw_list(
    state: &TopState,
    head: &[&str],
    widths: &[Constraint],
    rows: Vec<Vec<Cell<'static>>>,
    area: Rect,
    frame: &mut Frame<'_>,
) {
    if rows.is_empty() {
        let text = match state.filter.is_empty() {
            true => state
                .snapshot
                .as_ref()
                .map_or_else(String::new, |of| nothing(&of.status)),
            false => format!("nothing matches {}", shown(&state.filter)),
        };
        frame.render_widget(Line::styled(text, QUIET), area);
        return;
    }
    let total = rows.len();
    let page = state.page.max(1);
    let first = state.first_row(page);
    let visible = rows.into_iter().skip(first).take(page).map(Row::new);
    let head = Row::new(head.iter().map(|title| Cell::from((*title).to_owned()))).style(HEADING);
    let table = Table::new(visible, widths.iter().copied())
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let [list, foot] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(area);
    let mut chosen = TableState::new().with_selected(Some(state.chosen() - first));
    frame.render_stateful_widget(table, list, &mut chosen);
    let position = format!("{} of {total}", state.chosen() + 1);
    frame.render_widget(Line::styled(position, QUIET).right_aligned(), foot);
}

/// Before the first bucket ends, lists are empty although messages arrive.
fn nothing(status: &Status) -> String {
    let arrived = status.total("messages").good;
    let width = status.of(PipelineCounter::BucketSeconds);
    if arrived == 0 || width == 0 || status.of(PipelineCounter::FlushedAt) > 0 {
        return "nothing yet".to_owned();
    }
    let left = duration(width - status.process.as_of % width);
    format!(
        "{} arrived; the first bucket ends in {left}",
        counted(arrived, "messages")
    )
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn signed(number: i64) -> String {
    let amount = grouped(number.unsigned_abs());
    match number {
        0 => "0".to_owned(),
        1.. => format!("+{amount}"),
        _ => format!("-{amount}"),
    }
}

/// Growth of a number, by its part of it.
fn growing(growth: i64, total: u64) -> Cell<'static> {
    // A handful of new ones is no flood.
    let part = if growth < 100 {
        0.0
    } else {
        growth as f64 / total.max(1) as f64
    };
    Cell::from(Line::styled(signed(growth), scale(part, 0.25, 0.5, Style::new())).right_aligned())
}

fn draw_metrics(state: &TopState, area: Rect, frame: &mut Frame<'_>) {
    let is_wide = area.width >= 90;
    // The other columns take 58; a name comes before the older part of a chart.
    let chart = area.width.saturating_sub(58 + 30).clamp(12, 30);
    let lines = state.metrics().into_iter().map(|line| {
        let mut cells = vec![Cell::from(shown(&line.name))];
        if is_wide {
            cells.push(Cell::from(Line::styled(line.kind, QUIET)));
            cells.push(Cell::from(Line::styled(
                sparkline(&line.sparkline, chart.into()),
                SPARK,
            )));
            cells.push(right(line.last.map_or(String::new(), si)));
        }
        cells.push(right(line.samples_per_second.map_or(String::new(), si)));
        cells.push(right(grouped(line.contexts)));
        cells.push(growing(line.growth, line.contexts));
        cells
    });
    let number = Constraint::Length(10);
    let (head, widths): (&[&str], Vec<Constraint>) = if is_wide {
        (
            &[
                "metric",
                "kind",
                "last minutes",
                "       now",
                " samples/s",
                "  contexts",
                "    growth",
            ],
            vec![
                Constraint::Min(12),
                Constraint::Length(12),
                Constraint::Length(chart),
                number,
                number,
                number,
                number,
            ],
        )
    } else {
        (
            &["metric", " samples/s", "  contexts", "    growth"],
            vec![Constraint::Min(12), number, number, number],
        )
    };
    draw_list(state, head, &widths, lines.collect(), area, frame);
}

fn draw_tag_keys(state: &TopState, area: Rect, frame: &mut Frame<'_>) {
    let name = |key: &str| {
        if key.is_empty() {
            "(no key)".to_owned()
        } else {
            shown(key)
        }
    };
    let rows = state.tag_keys().into_iter();
    let rows = rows.map(|(key, values, growth)| {
        vec![
            Cell::from(name(&key)),
            right(grouped(values)),
            growing(growth, values),
        ]
    });
    let widths = [
        Constraint::Min(12),
        Constraint::Length(12),
        Constraint::Length(12),
    ];
    draw_list(
        state,
        &["tag key", "      values", "      growth"],
        &widths,
        rows.collect(),
        area,
        frame,
    );
}

fn draw_origins(state: &TopState, area: Rect, frame: &mut Frame<'_>) {
    let rows = state.origins().into_iter();
    let rows = rows.map(|(origin, contexts, samples)| {
        vec![
            Cell::from(shown(&origin)),
            right(grouped(contexts)),
            right(si(samples)),
        ]
    });
    let widths = [
        Constraint::Min(12),
        Constraint::Length(12),
        Constraint::Length(12),
    ];
    draw_list(
        state,
        &["origin", "    contexts", "   samples/s"],
        &widths,
        rows.collect(),
        area,
        frame,
    );
}

fn draw_outputs(state: &TopState, now: u64, area: Rect, frame: &mut Frame<'_>) {
    let outputs = state.outputs();
    let rows = outputs.iter().map(|output| output_row(output, now)).collect();
    let number = Constraint::Length(13);
    let widths = [
        Constraint::Min(10),
        Constraint::Length(20),
        number,
        number,
        number,
        Constraint::Length(8),
    ];
    let head = [
        "output",
        "state",
        "    delivered",
        "      pending",
        "      dropped",
        "     lag",
    ];
    let said = outputs
        .get(state.chosen())
        .map(|output| said_of(output))
        .unwrap_or_default();
    let [list, notes] =
        Layout::vertical([Constraint::Min(3), Constraint::Length(said.len().min(5) as u16)]).areas(area);
    draw_list(state, &head, &widths, rows, list, frame);
    frame.render_widget(Text::from(said), notes);
}

fn output_row(output: &OutputStatus, now: u64) -> Vec<Cell<'static>> {
    let since = match output.since {
        0 => String::new(),
        since => format!(" for {}", duration(now.saturating_sub(since))),
    };
    let health = match output.healthy {
        true => Line::styled(format!("✓ healthy{since}"), GOOD),
        false => Line::styled(format!("✗ failing{since}"), BAD),
    };
    let delivered = output.books().iter().map(|(_, books)| books.delivered).sum();
    let lag = match output.lag_seconds {
        lag if lag > 0.0 => duration(lag as u64),
        _ => String::new(),
    };
    let lost = dropped(output);
    let style = if lost > 0 { BAD } else { Style::new() };
    vec![
        Cell::from(shown(&output.name)),
        Cell::from(health),
        right(grouped(delivered)),
        right(grouped(output.waiting())),
        Cell::from(Line::styled(grouped(lost), style).right_aligned()),
        Cell::from(Line::styled(lag, scale(output.lag_seconds, 30.0, 120.0, Style::new())).right_aligned()),
    ]
}

/// Details of the selected output besides its numbers.
fn said_of(output: &OutputStatus) -> Vec<Line<'static>> {
    let error = output
        .last_error
        .iter()
        .map(|error| Line::styled(format!("last error: {}", shown(error)), BAD));
    let reasons = output.books().into_iter().flat_map(|(unit, books)| {
        let reasons = books.dropped.iter().filter(|(_, count)| **count > 0);
        reasons.map(move |(reason, count)| {
            Line::styled(format!("{unit} dropped, {reason}: {}", grouped(*count)), REMEDY)
        })
    });
    let notes = output.notes.iter().map(|note| Line::from(shown(note)));
    error.chain(reasons).chain(notes).collect()
}

fn draw_chart(state: &TopState, charted: &ChartView, area: Rect, buffer: &mut Buffer) {
    let points = state
        .snapshot
        .as_ref()
        .and_then(|snapshot| snapshot.points.as_ref());
    let points = match points {
        None => {
            return Line::styled(format!("{}: asking the agent", shown(&charted.metric)), QUIET)
                .render(area, buffer);
        }
        Some(Err(AgentError(reason))) => {
            return Line::styled(format!("✗ {reason}"), BAD).render(area, buffer);
        }
        Some(Ok(points)) => points,
    };
    let legend = chart::legend(points);
    let rest = chart::rest(points);
    let lines = legend.len() + usize::from(rest.is_some());
    let [title, middle, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(lines as u16),
    ])
    .areas(area);
    let grouped = charted.by().map_or_else(
        || "not grouped".to_owned(),
        |key| format!("grouped by {}", shown(key)),
    );
    let text = format!("{}; {grouped}; {}", chart::title(points), charted.window());
    Line::styled(text, HEADING).render(title, buffer);
    chart::draw(points, middle, buffer);
    let named = legend.into_iter().map(|(colour, text)| {
        Line::from(vec![
            Span::styled("━━ ", Style::new().fg(colour)),
            Span::raw(text),
        ])
    });
    Text::from_iter(named.chain(rest.map(Line::from))).render(bottom, buffer);
}

fn draw_help(frame: &mut Frame<'_>) {
    let height = HELP.lines().count() as u16 + 2;
    let area = frame.area();
    let [_, row, _] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(height),
        Constraint::Fill(1),
    ])
    .areas(area);
    let [_, place, _] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(74), Constraint::Fill(1)]).areas(row);
    frame.render_widget(Clear, place);
    let help = Paragraph::new(HELP).block(Block::bordered().title(" Keys "));
    frame.render_widget(help, place);
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
