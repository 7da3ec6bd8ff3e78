//! Allowed senders on Unix sockets: processes in real control groups, distinguished by a file about their containers.

use std::path::Path;

use serde_json::Value;

use crate::origin::agent::{Agent, tags_file, until};
use crate::origin::cgroup::{Group, end, id, once_more};

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Waits for the results of so many packets: taken, refused by the list, and refused because too little was known of
/// their sender. A packet waits a second for that.
fn wait_for_packets(agent: &Agent, count: u64) -> (Value, [u64; 3]) {
    until(&format!("results of {count} packets"), || {
        let status = agent.status();
        let packets = &status["total"]["packets"];
        let dropped = |reason: &str| packets["dropped"][reason].as_u64().unwrap_or(0);
        let taken = packets["parsed"].as_u64().unwrap();
        let found = [taken, dropped("origin_not_allowed"), dropped("origin_unknown")];
        let all: u64 = found.iter().sum();
        assert!(all <= count, "{found:?}, not {count}");
        match all == count {
            true => Ok((status, found)),
            false => Err(format!("{found:?}")),
        }
    })
}

#[test]
fn only_containers_on_the_list_are_admitted_and_the_others_are_named() {
    let (one, two) = (id(31), id(32));
    let (Some(first), Some(second)) = (Group::new(&format!("docker-{one}.scope")), Group::new(&two)) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let tags = |first: &str, second: &str| {
        tags_file(
            at,
            &format!(
                r#"{{"containers": {{"{one}": {{"low": ["kube_namespace:{first}"]}}, "{two}": {{"high": ["kube_namespace:{second}"]}}}}}}"#
            ),
        )
    };
    let file = tags("prod", "dev");
    let config = |list: &str| {
        write(
            at,
            "weir.yaml",
            &format!("origin_detection: true\nallowed_origins: {list}\n"),
        )
    };
    let path = config("['kube_namespace:pro*']");
    let stream = at.join("stream.sock");
    let mut agent = Agent::start(&[
        "--config",
        &path,
        "--origin-file",
        file.to_str().unwrap(),
        "--uds-stream",
        stream.to_str().unwrap(),
        "--workers=2",
    ]);
    // Nobody waits for the source: packets sent before its first report wait to be allowed.
    let mut good = first.sender(&agent, "good:1|c");
    let mut bad = second.sender(&agent, "bad:1|c");
    let mut streamed = second.stream_sender(&stream, "bad:1|c");
    agent.send("own:1|c");
    // All send again until each of them was known in time.
    let (mut rounds, mut unknown_before) = (1, 0);
    let [taken, refused, unknown] = until("all senders are known", || {
        let (_, found) = wait_for_packets(&agent, 4 * rounds);
        let [taken, refused, unknown] = found;
        assert!(taken <= rounds && refused <= 3 * rounds, "{found:?} in {rounds}");
        if unknown == unknown_before {
            return Ok(found);
        }
        unknown_before = unknown;
        rounds += 1;
        for sender in [&mut good, &mut bad, &mut streamed] {
            once_more(sender);
        }
        agent.send("own:1|c");
        Err(format!("{found:?}"))
    });
    for sender in [&mut good, &mut bad, &mut streamed] {
        once_more(sender);
    }
    let (status, found) = wait_for_packets(&agent, 4 * rounds + 3);
    let refused = refused + 2;
    assert_eq!(found, [taken + 1, refused, unknown]);
    let rows = status["limits"]["senders_refused"].as_array().unwrap();
    let row = |source: &str| {
        let mut of_list = rows.iter().filter(|row| row["reason"] == "origin_not_allowed");
        of_list.find(|row| row["source"] == source).unwrap()
    };
    let own = row("processes outside of containers");
    assert_eq!(own["pid"], std::process::id(), "{rows:?}");
    let packets = |row: &Value| row["packets"].as_u64().unwrap();
    let (of_two, of_own) = (packets(row(&format!("container {two}"))), packets(own));
    assert!(of_two >= 4 && of_own >= 1, "{rows:?}");
    assert_eq!(of_two + of_own, refused, "{rows:?}");
    let page = agent.ask(&["status"]);
    let dropped = format!("origin_not_allowed {refused}");
    for part in [dropped.as_str(), "may not send", &two, "The books balance"] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    let metrics = agent.get("/metrics");
    assert!(metrics.contains("reason=\"origin_not_allowed\"} "), "{metrics}");
    assert!(metrics.contains(&format!(
        "weir_sender_refused_packets{{reason=\"origin_not_allowed\",source=\"container {two}\"}} {of_two}"
    )));

    let explained = agent.explain("good:1|c", Some(good.id()));
    assert_eq!(explained["origin"]["access"]["allowed"], true, "{explained}");
    assert_eq!(explained["context"]["name"], "good", "{explained}");
    let explained = agent.explain("bad:1|c", Some(bad.id()));
    let access = &explained["origin"]["access"];
    assert!(
        access["allowed"] == false && access["why"].as_str().unwrap().contains("kube_namespace:dev"),
        "{explained}"
    );
    assert_eq!(explained["context"], Value::Null);
    let text = agent.ask(&["explain", "own:1|c", "--pid", &std::process::id().to_string()]);
    assert!(
        text.contains("refused: it is not in a container, and no_container is not in allowed_origins"),
        "{text}"
    );
    // Nobody is named, so nobody is judged.
    assert_eq!(agent.explain("own:1|c", None)["origin"]["access"], Value::Null);

    // Tags change, and with them the allowed senders. A worker learns it within a moment.
    tags("dev", "prod");
    until("the list says so", || {
        agent.explain("x:1|c", Some(good.id()))["origin"]["access"]["allowed"] == false
    });
    let before = agent.status()["total"]["packets"]["parsed"].as_u64().unwrap();
    until("the second is taken", || {
        once_more(&mut bad);
        agent.status()["total"]["packets"]["parsed"].as_u64().unwrap() > before
    });

    // Another list; a bad one changes nothing and says why.
    config("[prod]");
    agent.reload("the old configuration stays active");
    config("[no_container, 'container_id:1f*']");
    agent.reload("reload: allowed_origins is now [no_container, container_id:1f*]");
    let before = agent.status()["total"]["packets"]["parsed"].as_u64().unwrap();
    until("this process and the first container are taken", || {
        agent.send("own:1|c");
        once_more(&mut good);
        agent.status()["total"]["packets"]["parsed"].as_u64().unwrap() >= before + 4
    });
    until("and the second no more", || {
        agent.explain("x:1|c", Some(bad.id()))["origin"]["access"]["allowed"] == false
    });
    for sender in [good, bad, streamed] {
        end(sender);
    }
    let names: std::collections::BTreeSet<String> =
        agent.points().into_iter().map(|(name, _, _)| name).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["bad", "good", "own"]);
}
