//! The content of the screen, without a terminal.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;

use super::super::state::tests::{press, snapshot, state, write};
use super::*;
use crate::cli::chart::tests::points;
use crate::cli::recent::BookSeries;
use weir_system::failure::Failure;

/// The screen as lines.
fn drawn(state: &mut TopState, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(state, 1000, frame)).unwrap();
    terminal.backend().to_string()
}

fn shows(screen: &str, parts: &[&str]) {
    for part in parts {
        assert!(screen.contains(part), "{part:?} is not in\n{screen}");
    }
}

#[test]
fn the_overview_has_rates_losses_with_their_remedy_and_memory() {
    let mut state = state();
    let mut with_books = snapshot();
    with_books.books = Books {
        times: vec![1, 2, 3],
        series: vec![BookSeries {
            name: "weir_messages_received_total".to_owned(),
            values: vec![Some(1.0), Some(2000.0), Some(1500.0)],
        }],
    };
    with_books.status.memory.budget = 64 << 20;
    with_books.status.memory.shares = vec![MemoryShare {
        name: "contexts".to_owned(),
        bytes: 10 << 20,
        used: 5 << 20,
        events: [("forgotten".to_owned(), 3)].into(),
        ..MemoryShare::default()
    }];
    state.take(Ok(with_books));
    let screen = drawn(&mut state, 120, 50);
    shows(
        &screen,
        &[
            "messages                1.5k/s",
            "▁█▆",
            "✗ ",
            "Datagrams the kernel dropped",
            "Give weir a larger `receive_buffer`",
            "contexts            5.0 MiB of   10.0 MiB",
            "████",
            "forgotten 3",
            "73 contexts",
        ],
    );
}

#[test]
fn the_head_says_how_many_losses_there_are_and_where() {
    let mut state = state();
    let number = state.losses.len();
    assert!(number > 2);
    // It is not cut off, however long the text of the first loss is.
    shows(
        &drawn(&mut state, 60, 50),
        &[&format!("✗ {number} losses, all below; the first: ")],
    );
    write(&mut state, "2");
    shows(
        &drawn(&mut state, 60, 50),
        &[&format!("✗ {number} losses, press 1 for all; the first: ")],
    );
    state.losses.truncate(1);
    let screen = drawn(&mut state, 200, 50);
    assert!(!screen.contains("losses,"), "{screen}");
}

#[test]
fn a_healthy_agent_is_described_in_words() {
    let mut state = state();
    state.losses.clear();
    state.snapshot.as_mut().unwrap().status.outputs.clear();
    shows(
        &drawn(&mut state, 100, 30),
        &["✓ nothing was lost since the start", "✓ nothing "],
    );
}

#[test]
fn before_the_first_bucket_ends_the_lists_say_when_it_does() {
    let mut state = TopState::default();
    let mut fresh = super::super::data::Snapshot::default();
    let mut counts = weir_counters::Counts::default();
    counts[PipelineCounter::BucketSeconds] = 10;
    fresh.status.add(None, &counts);
    fresh.status.numbers.add_at("total.messages.received", 2);
    fresh.status.numbers.add_at("total.messages.accepted", 2);
    fresh.status.process.as_of = 1003;
    state.take(Ok(fresh));
    write(&mut state, "2");
    shows(
        &drawn(&mut state, 100, 30),
        &["2 messages arrived; the first bucket ends in 7s"],
    );
}

#[test]
fn each_list_has_its_rows_and_its_sort_order() {
    let mut state = state();
    write(&mut state, "2");
    let screen = drawn(&mut state, 120, 20);
    shows(
        &screen,
        &[
            "page.views",
            "counter",
            "▁█",
            "250",
            "queue.length",
            "+9",
            "1 of 2",
            "(now samples)",
        ],
    );
    write(&mut state, "3");
    shows(&drawn(&mut state, 80, 20), &["user", "70", "now values"]);
    write(&mut state, "4");
    shows(&drawn(&mut state, 80, 20), &["container abc", "252"]);
    write(&mut state, "5");
    let output = state.snapshot.as_mut().unwrap();
    output.status.outputs[0].healthy = false;
    output.status.outputs[0].last_error = Some("timed\u{1b}[2Jout".to_owned());
    let screen = drawn(&mut state, 100, 20);
    shows(&screen, &["datadog", "✗ failing", "last error: "]);
    assert!(!screen.contains('\u{1b}'), "{screen}");
}

#[test]
fn the_name_of_a_metric_has_room_before_its_chart() {
    let name = "http.request.duration.of.shops";
    let mut state = state();
    let mut long = snapshot();
    long.contexts.metrics_by_samples[0].metric = name.to_owned();
    state.take(Ok(long));
    write(&mut state, "2");
    shows(&drawn(&mut state, 100, 20), &[name]);
    shows(&drawn(&mut state, 90, 20), &[&name[..20]]);
}

#[test]
fn a_filter_without_matches_is_reported_and_help_names_the_keys() {
    let mut state = state();
    write(&mut state, "2/zzz");
    shows(
        &drawn(&mut state, 100, 20),
        &["/ zzz▏", "nothing matches zzz", "Enter keep"],
    );
    press(&mut state, &[KeyCode::Esc, KeyCode::Char('?')]);
    shows(&drawn(&mut state, 100, 20), &[" Keys ", "the metric as a chart"]);
}

#[test]
fn a_metric_is_drawn_in_braille_with_a_legend() {
    let mut state = state();
    write(&mut state, "2");
    press(&mut state, &[KeyCode::Enter]);
    shows(&drawn(&mut state, 100, 30), &["page.views: asking the agent"]);
    let values: Vec<_> = (0..50).map(|value| Some(f64::from(value))).collect();
    let drawn_points = points("rate", &[("ann", &values), ("ben", &[Some(1.0); 50])]);
    state.snapshot.as_mut().unwrap().points = Some(Ok(drawn_points));
    let screen = drawn(&mut state, 100, 30);
    shows(
        &screen,
        &[
            "page.views (counter), rate",
            "not grouped; all that is stored",
            "49/s",
            "user:ann",
            "user:ben",
            "23:59:59 UTC",
        ],
    );
    assert!(
        screen.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)),
        "{screen}"
    );
    state.snapshot.as_mut().unwrap().points = Some(Err(AgentError("a gauge has no rate".to_owned())));
    shows(&drawn(&mut state, 100, 30), &["✗ a gauge has no rate"]);
}

#[test]
fn an_unreachable_agent_is_reported_and_its_numbers_stay() {
    let mut state = TopState::default();
    state.take(Err(Failure::runtime("no agent at http://127.0.0.1:1")));
    shows(&drawn(&mut state, 80, 10), &["✗ no agent at http://127.0.0.1:1"]);
    let mut state = super::super::state::tests::state();
    state.take(Err(Failure::runtime("no agent at http://127.0.0.1:1")));
    shows(
        &drawn(&mut state, 160, 40),
        &["the agent does not answer", "Datagrams the kernel dropped"],
    );
}

#[test]
fn any_size_of_terminal_will_do() {
    for (columns, rows) in [(1, 1), (8, 3), (20, 5), (40, 12), (300, 80)] {
        for tab in "12345".chars() {
            let mut state = state();
            write(&mut state, &tab.to_string());
            drawn(&mut state, columns, rows);
            press(&mut state, &[KeyCode::Enter]);
            state.snapshot.as_mut().unwrap().points = Some(Ok(points("rate", &[("a", &[Some(1.0)])])));
            drawn(&mut state, columns, rows);
            write(&mut state, "?");
            drawn(&mut state, columns, rows);
        }
    }
}

#[test]
fn bars_change_their_colour_at_the_thresholds_and_the_next_order_is_named() {
    for (used, style) in [(69, SPARK), (70, REMEDY), (89, REMEDY), (90, BAD)] {
        assert_eq!(scale(f64::from(used) / 100.0, 0.7, 0.9, SPARK), style, "{used}");
    }
    let mut state = state();
    write(&mut state, "2");
    shows(&drawn(&mut state, 120, 20), &["s sort by contexts (now samples)"]);
    write(&mut state, "s");
    shows(&drawn(&mut state, 120, 20), &["s sort by growth (now contexts)"]);
}
