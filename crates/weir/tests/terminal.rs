//! The agent at a terminal: closing it ends the agent, and a signal alone does not.

use support::ports::free_address;
use support::terminal::Terminal;
use support::{Agent, get, json, signal, until, weir};

use crate::support;

const ARGUMENTS: [&str; 5] = ["run", "--udp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

/// The admin address in the log.
fn admin(terminal: &mut Terminal) -> String {
    terminal.until_shown("to see metrics arrive");
    let log = terminal.written();
    let (_, rest) = log.split_once("admin on http://").unwrap();
    rest.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn closing_the_terminal_ends_the_agent_unless_nohup_keeps_it_and_sighup_reloads() {
    let mut terminal = Terminal::weir(&ARGUMENTS, &[], 40, 200);
    admin(&mut terminal);
    signal(terminal.id(), "-HUP");
    terminal.until_shown("reload: nothing has changed");
    terminal.close();
    assert!(terminal.end().success(), "what was sent is delivered");

    // A shell takes the signal first and passes it on to what runs in it.
    let (program, arguments) = (env!("CARGO_BIN_EXE_weir"), ARGUMENTS.join(" "));
    let script = format!("set -m; {program} {arguments} & echo agent $!; wait");
    let mut terminal = Terminal::run("/bin/bash", &["-ic", &script], &[], 40, 200);
    admin(&mut terminal);
    let written = terminal.written();
    let (_, rest) = written.split_once("agent ").unwrap();
    let id = rest.split_whitespace().next().unwrap().to_owned();
    terminal.close();
    let process = format!("/proc/{id}");
    until("the agent ends", || !std::path::Path::new(&process).exists());

    // The effect of nohup, without its file.
    let script = format!("trap '' HUP; exec {program} {arguments}");
    let mut terminal = Terminal::run("/bin/sh", &["-c", &script], &[], 40, 200);
    let admin = admin(&mut terminal);
    terminal.close();
    signal(terminal.id(), "-HUP");
    until("the reload", || {
        // The terminal's own signal may be one of two.
        json(&admin, "/api/v1/status")["reload"]["successful"].as_u64() >= Some(1)
    });
}

// `weir top` and `weir graph` on a pseudo-terminal, looking at a real agent: keys are typed, the screen is read.

const CONFIG: &str = "bucket_width: 1s\nworkers: 1\n";

/// An agent on a port that another may take after it.
fn agent(admin: &str) -> (Agent, String) {
    let mut agent = Agent::start(CONFIG, &[("WEIR_ADMIN", admin)]);
    let admin = agent.wait_for("admin on http://");
    (agent, admin)
}

/// In one datagram, which is in one bucket.
fn send_some(agent: &Agent) {
    let lines = ["ann", "ben", "cyd"].map(|user| {
        format!("page.views:3|c|#user:{user},env:prod\nqueue.length:7|g\nlatency:20|d|#user:{user}\n")
    });
    agent.send(lines.concat());
}

/// Waits until a bucket with all of it is in the history.
fn until_held(admin: &str, metrics: usize) {
    until("the metrics are held", || {
        json(admin, "/api/v1/metrics?details=0")["total"].as_u64() == Some(metrics as u64)
    });
}

fn top(admin: &str) -> Terminal {
    Terminal::weir(&["top", "--admin", admin], &[], 30, 120)
}

fn has_braille(screen: &vt100::Screen) -> bool {
    screen
        .contents()
        .chars()
        .any(|c| ('\u{2801}'..='\u{28ff}').contains(&c))
}

#[test]
fn top_shows_losses_lists_and_a_chart_and_restores_the_terminal() {
    let (agent, admin) = agent("127.0.0.1:0");
    send_some(&agent);
    agent.send("this is no metric");
    until_held(&admin, 3);
    let mut top = top(&admin);

    let screen = top.until_shown("A metric without `|`");
    assert!(top.screen().alternate_screen(), "what was there before is kept");
    assert!(
        screen.contains("✗ ") && screen.contains("weir 0.1.0 on here"),
        "{screen}"
    );
    // Memory, with how full each share is.
    top.until_shown("Memory: ");

    top.keys("2");
    let screen = top.until("small charts of what is on the screen", |screen| {
        let text = screen.contents();
        text.contains("page.views") && text.contains("counter") && text.contains('█')
    });
    assert!(screen.contains("(now samples)"), "{screen}");
    top.keys("ss");
    top.until_shown("(now growth)");
    top.keys("/queue\r");
    top.until("one metric is left", |screen| {
        let text = screen.contents();
        text.contains("queue.length") && !text.contains("page.views")
    });
    top.keys("\x1b");
    top.until_shown("page.views");
    top.keys("ss");
    top.until_shown("(now seen)");

    top.keys("/page\r");
    top.until_shown("1 of 1");
    top.keys("\r");
    top.until("a chart in braille", has_braille);
    top.keys("g");
    top.until_shown("grouped by env");
    top.keys("g");
    let screen = top.until_shown("user:cyd");
    assert!(
        screen.contains("user:ann") && screen.contains("grouped by user"),
        "{screen}"
    );
    top.keys("f");
    top.until_shown("sum of 3 series");
    top.keys("w");
    top.until_shown("5 min");
    top.keys("\x1b");
    top.until_shown("1 of 1");
    top.keys("3");
    top.until_shown("(now values)");
    top.until_shown("user");
    top.keys("5");
    top.until_shown("prometheus");
    top.keys("?");
    top.until_shown(" Keys ");
    // A click closes it, and one on the third column of the line of tabs opens the first list.
    top.keys("\x1b[<0;3;3M\x1b[<0;3;3m\x1b[<0;3;3M");
    // A key that comes together with a change of the size is read all the same.
    for row in 0..20 {
        top.until("the help is closed", |screen| {
            !screen.contents().contains(" Keys ")
        });
        top.resize(20 + row % 2, 80);
        top.keys("?");
        top.until_shown(" Keys ");
        top.keys("?");
    }
    top.resize(12, 60);
    top.until("it fits the smaller terminal", |screen| {
        let text = screen.contents();
        !text.contains(" Keys ") && text.lines().count() == 12 && text.contains("q quit")
    });
    top.keys("q");
    assert!(top.end().success());
    assert!(!top.screen().alternate_screen(), "{}", top.contents());
    assert!(!top.screen().hide_cursor());
}

#[test]
fn top_continues_when_an_unreachable_agent_returns_and_a_signal_restores_the_terminal() {
    let (first, admin) = agent(&free_address());
    let mut top = top(&admin);
    top.until_shown("up ");
    first.stop();
    let screen = top.until_shown("the agent does not answer");
    assert!(screen.contains("Memory: "), "what was known stays\n{screen}");
    let (_second, _) = agent(&admin);
    top.until("it resumes", |screen| {
        !screen.contents().contains("does not answer")
    });
    signal(top.id(), "-TERM");
    assert!(top.end().success());
    assert!(!top.screen().alternate_screen() && !top.screen().hide_cursor());
}

#[test]
fn graph_and_status_have_colours_on_a_terminal_and_print_plain_text_elsewhere() {
    let (agent, admin) = agent("127.0.0.1:0");
    send_some(&agent);
    agent.send("this is no metric");
    until_held(&admin, 3);
    graph_draws_a_metric_as_braille_or_prints_it(&admin);
    status_and_top_have_colours_unless_they_are_switched_off(&admin);
}

fn graph_draws_a_metric_as_braille_or_prints_it(admin: &str) {
    let graph = |arguments: &[&str]| weir(&[&["graph", "--admin", admin], arguments].concat());

    let (good, text) = graph(&["page.views", "--by", "user", "--fn", "sum", "--last", "15m"]);
    assert!(good, "{text}");
    assert!(text.contains("page.views (counter), sum of 3 series"), "{text}");
    assert!(text.contains("user:ben") && !text.contains('\x1b'), "{text}");

    let (good, text) = graph(&["page.views", "--where", "user:ann", "--fn", "sum", "--csv"]);
    assert!(good, "{text}");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("time,all"));
    let sum: f64 = lines
        .filter_map(|line| line.split_once(',')?.1.parse::<f64>().ok())
        .sum();
    assert_eq!(sum, 3.0, "{text}");

    let (good, text) = graph(&["latency", "--fn", "p99", "--json"]);
    assert!(good, "{text}");
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["fn"], "p99");

    let (good, text) = graph(&["page.views", "latency", "queue.length"]);
    assert!(good, "{text}");
    let title = "a page.views (counter, rate), b latency (distribution, p95), c queue.length (gauge, avg)";
    assert!(text.starts_with(title), "{text}");
    assert!(text.contains("c queue.length  last      7"), "{text}");
    let ratio = [
        "page.views",
        "latency",
        "--fn",
        "count",
        "--by",
        "user",
        "--formula",
        "b/a",
    ];
    let (good, text) = graph(&[&ratio[..], &["--csv"]].concat());
    assert!(good, "{text}");
    assert!(text.starts_with("time,user:ann,user:ben,user:cyd\n"), "{text}");
    // The same packets have one sample of each.
    assert!(text.contains(",1,1,1\n"), "{text}");
    let (good, text) = graph(&["page.views", "latency", "--json"]);
    assert!(good, "{text}");
    let answers: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!([&answers[0]["fn"], &answers[1]["fn"]], ["rate", "p95"]);

    for (arguments, parts) in [
        (
            &["page.view"][..],
            &["no metric named \"page.view\"", "did you mean page.views?"][..],
        ),
        (&["page.views", "--fn", "p101"], &["flag --fn", "p99.9"]),
        (
            &["page.views", "--fn", "p50"],
            &["is not available for a counter"],
        ),
        (&["latency", "--fn", "heatmap"], &["--json"]),
        (
            &["page.views", "latency", "--formula", "a/c"],
            &["flag --formula", "\"a/c\"", "page.views is a, latency is b"],
        ),
        (
            &["page.views", "--formula", "a%b"],
            &["flag --formula", "such as a/b"],
        ),
        (&["page.views", "--last", "15x"], &["flag --last", "15m"]),
        (
            &["page.views", "--where", "user:nobody"],
            &["no series of page.views has these tags"],
        ),
    ] {
        let (good, text) = graph(arguments);
        assert!(
            !good && parts.iter().all(|part| text.contains(part)),
            "{arguments:?}: {text}"
        );
    }

    let mut terminal = Terminal::weir(&["graph", "--admin", admin, "page.views"], &[], 40, 60);
    assert!(terminal.end().success());
    assert!(
        terminal.written().contains("\x1b[36m"),
        "it has colours on a terminal"
    );
    assert!(
        terminal.contents().lines().all(|line| line.chars().count() <= 60),
        "{}",
        terminal.contents()
    );
}

fn status_and_top_have_colours_unless_they_are_switched_off(admin: &str) {
    until("the loss is counted", || {
        json(admin, "/api/v1/status")["total"]["messages"]["rejected"]["no_separator"] == 1
            && get(admin, "/api/v1/contexts").0 == 200
    });
    let shown = |environment: &[(&str, &str)]| {
        let mut terminal = Terminal::weir(&["status", "--admin", admin], environment, 90, 160);
        assert!(terminal.end().success());
        terminal.written()
    };
    let coloured = shown(&[]);
    let (before, after) = coloured
        .split_once("\x1b[1;31mLOST, REFUSED")
        .expect("it stands out");
    assert!(
        !before.contains("per second") && after.contains("\x1b[33m"),
        "{coloured}"
    );
    assert!(!shown(&[("NO_COLOR", "1")]).contains('\x1b'));
    let (good, piped) = weir(&["status", "--admin", admin]);
    assert!(
        good && piped.contains("LOST, REFUSED") && !piped.contains('\x1b'),
        "{piped}"
    );
    // A table, as ever, where nobody sits before a terminal.
    let (good, table) = weir(&["top", "--admin", admin]);
    assert!(good && table.contains("contexts of"), "{table}");
    let mut once = Terminal::weir(&["top", "--once", "--admin", admin], &[], 40, 100);
    assert!(once.end().success());
    assert!(once.written().contains("contexts of") && !once.screen().alternate_screen());
}
