//! The effect of keys, and the resulting requests.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::cli::recent::{Metric, Metrics};
use weir_status::contexts::{MetricRow, OriginRow, TagKeyRow};
use weir_status::examples::balanced;

/// An agent with some data of every kind.
pub fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot {
        status: balanced(),
        ..Snapshot::default()
    };
    let row = |metric: &str, contexts, growth, samples_per_second| MetricRow {
        metric: metric.to_owned(),
        contexts,
        growth,
        samples_per_second,
    };
    let (busy, many) = (row("page.views", 3, 0, 250.0), row("queue.length", 70, 9, 2.0));
    snapshot.contexts.contexts_live = 73;
    snapshot.contexts.metrics_by_samples = vec![busy.clone(), many.clone()];
    snapshot.contexts.metrics_by_contexts = vec![many, busy];
    snapshot.contexts.tag_keys = vec![
        TagKeyRow {
            key: "user".to_owned(),
            values: 70,
            growth: 1,
        },
        TagKeyRow {
            key: "env".to_owned(),
            values: 2,
            growth: 2,
        },
    ];
    snapshot.contexts.origins = vec![OriginRow {
        origin: "container abc".to_owned(),
        contexts: 73,
        samples_per_second: 252.0,
    }];
    let views = Metric {
        name: "page.views".to_owned(),
        kind: "counter".to_owned(),
        contexts: 3,
        tag_keys: vec!["env".to_owned(), "user".to_owned()],
        sparkline: vec![Some(1.0), Some(250.0)],
        ..Metric::default()
    };
    snapshot.details.insert(views.name.clone(), views);
    snapshot
}

pub fn state() -> TopState {
    let mut state = TopState {
        page: 10,
        ..TopState::default()
    };
    state.take(Ok(snapshot()));
    state
}

pub fn press(state: &mut TopState, codes: &[KeyCode]) {
    for code in codes {
        assert_eq!(state.key(KeyEvent::new(*code, KeyModifiers::NONE)), Next::Go);
    }
}

pub fn write(state: &mut TopState, text: &str) {
    text.chars().for_each(|c| press(state, &[KeyCode::Char(c)]));
}

fn names(state: &TopState) -> Vec<String> {
    state.metrics().into_iter().map(|line| line.name).collect()
}

#[test]
fn keys_move_between_lists_and_rows() {
    let mut state = state();
    for (key, tab) in [('2', Tab::Metrics), ('5', Tab::Outputs), ('3', Tab::TagKeys)] {
        write(&mut state, &key.to_string());
        assert_eq!(state.tab, tab);
    }
    press(&mut state, &[KeyCode::Tab, KeyCode::BackTab, KeyCode::BackTab]);
    assert_eq!(state.tab, Tab::Metrics);
    press(&mut state, &[KeyCode::Down]);
    assert_eq!(state.chosen(), 1);
    press(&mut state, &[KeyCode::Down, KeyCode::PageDown]);
    assert_eq!(state.chosen(), 1, "there are two rows");
    press(&mut state, &[KeyCode::Home]);
    assert_eq!(state.chosen(), 0);
    assert_eq!(state.key(KeyEvent::from(KeyCode::Char('q'))), Next::End);
    assert_eq!(
        state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        Next::End
    );
}

fn click(state: &mut TopState, button: MouseButton, column: u16, row: u16) {
    point(state, MouseEventKind::Down(button), column, row);
}

fn point(state: &mut TopState, kind: MouseEventKind, column: u16, row: u16) {
    state.mouse(MouseEvent {
        kind,
        column,
        row,
        modifiers: KeyModifiers::NONE,
    });
}

#[test]
fn clicks_open_lists_rows_and_charts_and_the_wheel_scrolls() {
    let mut state = state();
    state.places = (Rect::new(0, 2, 80, 1), Rect::new(0, 4, 80, 10));
    // " 1 Overview  2 Metrics  3 Tag keys ...": the space between two tabs is none of them.
    click(&mut state, MouseButton::Left, 12, 2);
    assert_eq!(state.tab, Tab::Overview);
    click(&mut state, MouseButton::Left, 13, 2);
    assert_eq!(state.tab, Tab::Metrics);
    point(&mut state, MouseEventKind::ScrollDown, 0, 0);
    assert_eq!(state.chosen(), 1, "the last of two rows");
    point(&mut state, MouseEventKind::ScrollUp, 0, 0);
    assert_eq!(state.chosen(), 0);
    click(&mut state, MouseButton::Left, 5, 6);
    assert_eq!(
        (state.chosen(), &state.chart),
        (0, &None),
        "below the last row is nothing"
    );
    click(&mut state, MouseButton::Left, 5, 5);
    assert_eq!(
        (state.chosen(), &state.chart),
        (1, &None),
        "the first click chooses"
    );
    click(&mut state, MouseButton::Left, 5, 5);
    assert_eq!(state.chart.as_ref().unwrap().metric, "queue.length");
    click(&mut state, MouseButton::Left, 5, 4);
    assert!(state.chart.is_some(), "a chart has no rows");
    click(&mut state, MouseButton::Right, 5, 4);
    assert_eq!(state.chart, None);
    click(&mut state, MouseButton::Left, 5, 5);
    click(&mut state, MouseButton::Left, 25, 2);
    assert_eq!(
        (state.tab, &state.chart),
        (Tab::TagKeys, &None),
        "a list can be opened from a chart"
    );
    write(&mut state, "?");
    click(&mut state, MouseButton::Left, 1, 2);
    assert!(
        !state.is_helping && state.tab == Tab::TagKeys,
        "the click closed the help"
    );
}

/// Each answer sorts the list, between two clicks as well.
#[test]
fn a_selected_row_stays_selected_where_an_answer_moves_it() {
    let mut state = state();
    state.places = (Rect::new(0, 2, 80, 1), Rect::new(0, 4, 80, 10));
    let mut other_order = snapshot();
    other_order.contexts.metrics_by_samples.reverse();
    write(&mut state, "2");
    assert_eq!(names(&state), ["page.views", "queue.length"]);
    state.take(Ok(other_order.clone()));
    assert_eq!(
        (state.chosen(), &*names(&state)[0]),
        (0, "queue.length"),
        "none was selected"
    );
    state.take(Ok(snapshot()));

    click(&mut state, MouseButton::Left, 5, 5);
    state.take(Ok(other_order.clone()));
    assert_eq!((state.chosen(), &*names(&state)[0]), (0, "queue.length"));
    click(&mut state, MouseButton::Left, 5, 5);
    assert_eq!(
        state.chart, None,
        "another row than the selected one is selected first"
    );
    state.take(Ok(snapshot()));
    assert_eq!((state.chosen(), &*names(&state)[0]), (0, "page.views"));
    state.take(Ok(other_order));
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!(state.chart.as_ref().unwrap().metric, "page.views");

    press(&mut state, &[KeyCode::Esc, KeyCode::Home]);
    state.take(Ok(snapshot()));
    assert_eq!(state.chosen(), 0, "the first row is whichever is the first");
}

#[test]
fn the_filter_accepts_every_letter_and_sorting_is_a_request() {
    let mut state = state();
    write(&mut state, "2/q");
    assert!(state.is_typing, "q is a letter here");
    assert_eq!(names(&state), ["queue.length"]);
    press(&mut state, &[KeyCode::Enter]);
    assert!(!state.is_typing);
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!(names(&state), ["page.views", "queue.length"]);
    let wanted = state.wanted().metrics.unwrap();
    assert_eq!((wanted.sort, wanted.visible.len()), (None, 2));
    write(&mut state, "s");
    assert_eq!(
        names(&state),
        ["queue.length", "page.views"],
        "known without the last minutes"
    );
    assert_eq!(state.wanted().metrics.unwrap().sort, Some("contexts"));

    let known = |name: &str| Metric {
        name: name.to_owned(),
        ..Metric::default()
    };
    let metrics = Metrics {
        total: 2,
        metrics: vec![known("a"), known("page.views")],
    };
    state.take(Ok(Snapshot {
        metrics: Some(metrics),
        ..snapshot()
    }));
    let lines = state.metrics();
    assert_eq!(lines[0].samples_per_second, None);
    assert_eq!(
        (lines[1].samples_per_second, lines[1].last),
        (Some(250.0), Some(250.0))
    );
    write(&mut state, "/page");
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!(
        names(&state),
        ["page.views"],
        "the answer of before is filtered too"
    );
    let late = Metrics {
        total: 1,
        metrics: vec![known("queue.length")],
    };
    state.take(Ok(Snapshot {
        metrics: Some(late),
        pattern: "queue".to_owned(),
        ..snapshot()
    }));
    assert_eq!(
        names(&state),
        ["page.views"],
        "the answer to another filter changes nothing"
    );
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!(state.wanted().chart.unwrap().metric, "page.views");
}

#[test]
fn other_lists_are_sorted_and_filtered_here() {
    let mut state = state();
    write(&mut state, "3");
    assert_eq!(state.tag_keys()[0].0, "user");
    write(&mut state, "s");
    assert_eq!((state.sort(), state.tag_keys()[0].0.as_str()), ("growth", "env"));
    write(&mut state, "/us");
    assert_eq!(state.tag_keys().len(), 1);
    press(
        &mut state,
        &[KeyCode::Backspace, KeyCode::Backspace, KeyCode::Esc],
    );
    write(&mut state, "4");
    assert_eq!(state.origins().len(), 1);
    write(&mut state, "5");
    assert_eq!(state.outputs().len(), 1);
}

#[test]
fn a_metric_opens_as_a_chart_whose_function_group_and_window_change() {
    let mut state = state();
    write(&mut state, "2");
    press(&mut state, &[KeyCode::Enter]);
    let chart = |state: &TopState| state.wanted().chart.unwrap();
    assert_eq!(
        (chart(&state).metric.as_str(), chart(&state).kind.as_str()),
        ("page.views", "counter")
    );
    write(&mut state, "fgw");
    let wanted = chart(&state);
    assert_eq!(wanted.function.as_deref(), Some("rate"));
    assert_eq!((wanted.by.as_deref(), wanted.from), (Some("env"), Some("-5m")));
    write(&mut state, "fg");
    assert_eq!(chart(&state).function.as_deref(), Some("sum"));
    write(&mut state, "g");
    assert_eq!(chart(&state).by, None, "behind the last key there is none");
    press(&mut state, &[KeyCode::Esc]);
    assert_eq!(state.wanted().chart, None);
    press(&mut state, &[KeyCode::Enter]);
    write(&mut state, "1");
    assert_eq!(
        (state.tab, &state.chart),
        (Tab::Overview, &None),
        "another list is a key away"
    );
}

#[test]
fn an_unreachable_agent_keeps_its_last_answers() {
    let mut state = state();
    state.take(Err(Failure::runtime("connection refused")));
    assert_eq!(state.away.as_deref(), Some("connection refused"));
    assert_eq!(state.origins().len(), 1);
    state.take(Ok(snapshot()));
    assert_eq!(state.away, None);
}

#[test]
fn rising_losses_come_first() {
    let mut state = state();
    assert!(state.losses.iter().all(|loss| loss.risen == 0.0));
    let mut later = snapshot();
    let listener = &mut later.status.listeners[0].numbers;
    listener.add_at("books.messages.rejected.bad_type", 2);
    listener.add_at("books.messages.rejected.no_separator", 1);
    state.take(Ok(later));
    let risen: Vec<(f64, f64)> = state.losses.iter().map(|loss| (loss.risen, loss.count)).collect();
    assert_eq!(risen[..2], [(2.0, 3.0), (1.0, 1.0)], "{:?}", state.losses);
    assert!(state.losses[2..].iter().all(|loss| loss.risen == 0.0));
    assert!(
        state.losses[0].what.contains("A metric type"),
        "{:?}",
        state.losses
    );
}

#[test]
fn every_loss_is_in_the_list() {
    use weir_status::examples::all_lost;
    use weir_status::losses::losses;
    let status = all_lost();
    let mut state = TopState::default();
    state.take(Ok(Snapshot {
        status: status.clone(),
        ..snapshot()
    }));
    for loss in losses(&status) {
        let is_it = |of: &&Loss| of.what == loss.what() && of.advice == loss.remedy && of.count == loss.count;
        assert!(state.losses.iter().any(|of| is_it(&of)), "{loss:?}");
    }
}
