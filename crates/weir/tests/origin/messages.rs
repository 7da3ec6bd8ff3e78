//! Origin fields of messages, and `weir explain`.

use crate::origin::agent::{Agent, tags_file, texts, until};

const TAGS: &str = r#"{
    "containers": {
        "c-one": {"low": ["c:one"], "orchestrator": ["o:one"], "high": ["h:one"]},
        "c-main": {"low": ["c:main"], "pod": "p-1", "name": "main"}
    },
    "pods": {"p-1": {"low": ["p:1"]}},
    "unknown": {"low": ["where:here"]}
}"#;

fn agent(arguments: &[&str]) -> (Agent, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = tags_file(directory.path(), TAGS);
    let mut all = vec!["--origin-client", "--origin-file", file.to_str().unwrap()];
    all.extend(arguments);
    let agent = Agent::start(&all);
    agent.wait_for_source("file", "entities", 4);
    (agent, directory)
}

#[test]
fn every_field_counts_in_its_order_and_tags_that_change_apply_from_then_on() {
    let (legacy, directory) = agent(&[]);
    legacy.send_tagged(&[
        "a:1|c|c:ci-c-one",
        "b:1|c|c:ci-c-one|card:HIGH",
        "c:1|c|c:ci-c-one|card:none",
        "d:1|c|#dd.internal.entity_id:p-1|c:ci-c-one",
        "e:1|c|#dd.internal.card:orch|c:c-one",
        "f:1|c|e:cn-main,pu-p-1",
        "g:1|c|c:ci-unheard-of",
    ]);
    let count = |what: &str| {
        let status = legacy.status();
        let found = match what {
            "changed" => &status["origin"]["resolver"]["origins_changed"],
            _ => &status["origin"]["resolver"]["origins"]["known"],
        };
        found.as_u64().unwrap_or(0)
    };
    let (changed, known) = (count("changed"), count("known"));
    tags_file(directory.path(), &TAGS.replace("c:one", "c:changed"));
    until("the change is noticed", || count("changed") > changed);
    // The worker learns it after the figures; its answer to another origin comes after that.
    legacy.send_tagged(&["h:1|c|c:ci-c-main"]);
    until("another one is resolved", || count("known") > known);
    legacy.send("a:1|c|c:ci-c-one");
    assert_eq!(
        texts(&legacy.points()),
        [
            "a c:changed",
            "a c:one",
            "b c:one,h:one,o:one",
            "c ",
            "d p:1",
            "e c:one,o:one",
            "f where:here",
            "g where:here",
            "h c:main",
        ]
    );
    let (unified, _file) = agent(&["--origin-unified", "--origin-optout=false"]);
    unified.send_tagged(&[
        "a:1|c|e:it-false,cn-main,pu-p-1",
        "b:1|c|e:it-true,cn-main,pu-p-1",
        "c:1|c|c:ci-c-one|#dd.internal.entity_id:p-1",
        "d:1|c|c:ci-forged|#dd.internal.entity_id:p-1|card:none",
    ]);
    assert_eq!(
        texts(&unified.points()),
        ["a c:main", "b p:1", "c c:one", "d p:1"]
    );
}

#[test]
fn unknown_senders_get_the_tags_of_weirs_own_pod_and_none_without_the_settings() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("uid", "uid-7");
    write("namespace", "shop");
    write(
        "labels",
        "tags.datadoghq.com/env=\"prod\"\nteam=\"a \\\"b\\\"\"\n",
    );
    let agent = Agent::start_with(
        &[
            "--origin-podinfo",
            directory.path().to_str().unwrap(),
            "--pod-labels-as-tags={team: team}",
            "--origin-environment={POD_NAME: pod_name, NOWHERE: x, NODE: +node}",
        ],
        &[("POD_NAME", "cart-0"), ("NODE", "n1")],
    );
    agent.wait_for_source("podinfo", "entities", 2);
    agent.wait_for_source("environment", "entities", 1);
    agent.send_tagged(&["a:1|c", "b:1|c|#dd.internal.entity_id:uid-7"]);
    let team = r#"team:a "b""#;
    assert_eq!(
        texts(&agent.points()),
        [
            format!("a env:prod,kube_namespace:shop,pod_name:cart-0,{team}"),
            format!("b env:prod,kube_namespace:shop,{team}"),
        ]
    );

    let agent = Agent::start(&[]);
    agent.send("a:1|c|c:ci-c-one|#dd.internal.entity_id:p-1");
    until("it is counted", || agent.ask(&["status"]).contains("messages"));
    assert!(agent.origin().is_null());
    let explained = agent.explain("a:1|c|c:ci-x", None);
    assert!(explained["note"].as_str().unwrap().contains("off"), "{explained}");
    assert_eq!(texts(&agent.points()), ["a "]);
}

#[test]
fn explain_shows_the_sender_and_the_result_of_a_message() {
    let (agent, _file) = agent(&["--namespace=shop", "--extra-tags=x:1", "--origin-detection"]);
    let explained = agent.explain("a:1|c|#host:h,k:v|c:ci-c-one", Some(std::process::id()));
    assert_eq!(explained["context"]["name"], "shop.a");
    assert_eq!(explained["context"]["host"], "h");
    assert_eq!(
        explained["context"]["tags"],
        serde_json::json!(["c:one", "k:v", "x:1"])
    );
    let origin = &explained["origin"];
    assert_eq!(origin["pid"], std::process::id());
    let steps = origin["steps"].as_array().unwrap();
    let local = steps.iter().find(|step| step["means"] == "local_data").unwrap();
    assert_eq!(local["added"], serde_json::json!(["c:one"]));
    let stages: Vec<&str> = explained["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["stage"].as_str().unwrap())
        .collect();
    assert_eq!(stages, ["special_tags", "namespace", "extra_tags"]);
    let page = agent.ask(&["explain", "a:1|c|#host:h,k:v|c:ci-c-one"]);
    for text in [
        "- host:h",
        "+ c:one",
        "name is now shop.a",
        "shop.a (counter) on h",
    ] {
        assert!(page.contains(text), "{text} is not in:\n{page}");
    }
    assert_eq!(agent.explain_rejected("nonsense")["rejected"], "no_separator");
    assert_eq!(
        agent.explain("_e{1,1}:t|x|c:ci-c-one", None)["context"]["type"],
        "event"
    );
    assert_eq!(agent.explain("é:1|c|#ü, +%&=", None)["context"]["name"], "shop.é");
    let gone = agent.explain("a:1|c", Some(i32::MAX as u32));
    assert!(
        gone["origin"]["process"]
            .as_str()
            .unwrap()
            .contains("does not exist"),
        "{gone}"
    );
    // Explaining is no message.
    assert!(agent.points().is_empty());
}
