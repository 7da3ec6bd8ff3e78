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

/// Waits for the results of packets: accepted, and refused by the list.
fn wait_for_packets(agent: &Agent, parsed: u64, refused: u64) -> Value {
    let mut status = Value::Null;
    until(&format!("{parsed} taken, {refused} refused"), || {
        status = agent.status();
        let packets = &status["total"]["packets"];
        let of_list = packets["dropped"]["origin_not_allowed"].as_u64().unwrap_or(0);
        let found = (packets["parsed"].as_u64().unwrap(), of_list);
        let expected = (parsed, refused);
        assert!(
            found.0 <= parsed && found.1 <= refused,
            "{found:?}, not {expected:?}"
        );
        found == expected
    });
    status
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
    wait_for_packets(&agent, 1, 3);
    for sender in [&mut good, &mut bad, &mut streamed] {
        once_more(sender);
    }
    let status = wait_for_packets(&agent, 2, 5);
    let rows = status["limits"]["senders_refused"].as_array().unwrap();
    let row = |source: &str| rows.iter().find(|row| row["source"] == source).unwrap();
    assert_eq!(row(&format!("container {two}"))["packets"], 4, "{rows:?}");
    let own = row("processes outside of containers");
    assert_eq!(own["pid"], std::process::id(), "{rows:?}");
    let page = agent.ask(&["status"]);
    for part in ["origin_not_allowed 5", "may not send", &two, "The books balance"] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    let metrics = agent.get("/metrics");
    assert!(metrics.contains("reason=\"origin_not_allowed\"} "), "{metrics}");
    assert!(metrics.contains(&format!(
        "weir_sender_refused_packets{{reason=\"origin_not_allowed\",source=\"container {two}\"}} 4"
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
