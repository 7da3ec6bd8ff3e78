//! The scrape endpoint keeps its sums in memory alone: after a kill sums, counts and books begin again from zero, which Prometheus knows.

use super::Random;
use crate::support::receivers::{Agent, get, until};

#[test]
fn sums_and_books_start_from_zero() {
    let mut random = Random::new();
    for round in 1..=4 {
        let agent = Agent::start(&["--bucket-width", "1s"], &[]);
        let page = || -> Result<String, String> {
            let (_, body) = get(&agent.admin, "/metrics", "text/plain").ok_or("no answer")?;
            Ok(String::from_utf8(body).unwrap())
        };
        let first = until("the first scrape", page);
        assert!(!first.contains("hits"), "{first}");
        assert_eq!(agent.points("prometheus").produced, 0);
        agent.send(format!("hits:{round}|c\n"));
        let expected = format!("\nhits_total {round}\n");
        until("the sum", || {
            let page = page()?;
            page.contains(&expected).then_some(()).ok_or(page)
        });
        let books = agent.points("prometheus");
        assert!(
            books.produced == books.delivered && books.produced >= 1,
            "{books:?}"
        );
        random.kill(agent);
    }
}
