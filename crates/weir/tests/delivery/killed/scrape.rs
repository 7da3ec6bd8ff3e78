//! The scrape endpoint keeps its sums in memory alone: after a kill sums, counts and books begin again from zero, which Prometheus knows.

use super::Kills;
use crate::support::{Agent, get, until};

#[test]
fn killed_twice_sums_and_books_start_from_zero() {
    killed(Kills::at_events(2));
}

/// In the gate: [`killed_twice_sums_and_books_start_from_zero`].
#[test]
#[ignore = "nightly: kills at random instants"]
fn sums_and_books_start_from_zero() {
    killed(Kills::at_random(4));
}

fn killed(mut kills: Kills) {
    for round in 1..=kills.rounds {
        let agent = Agent::start(&["--bucket-width", "1s"], &[]);
        let page = || get(&agent.admin, "/metrics").1;
        let first = page();
        assert!(!first.contains("hits"), "{first}");
        assert_eq!(agent.points("prometheus").produced, 0);
        agent.send(format!("hits:{round}|c\n"));
        let expected = format!("\nhits_total {round}\n");
        until("the sum", || {
            let page = page();
            page.contains(&expected).then_some(()).ok_or(page)
        });
        let books = agent.points("prometheus");
        assert!(
            books.produced == books.delivered && books.produced >= 1,
            "{books:?}"
        );
        kills.kill(agent);
    }
}
