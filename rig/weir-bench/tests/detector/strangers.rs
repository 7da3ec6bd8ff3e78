//! Use without a checkout of weir: users have this program and one of their own. The page that shows them how, the workflow
//! that it offers, and what they are told when something is missing.

use super::support::{Library, PROGRAM, output};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with nothing of weir's but this program, in `bin`.
struct Elsewhere {
    dir: tempfile::TempDir,
}

impl Elsewhere {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("elsewhere").tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        symlink(PROGRAM, dir.path().join("bin/weir-bench")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn executable(&self, name: &str, text: &str) {
        self.write(name, text);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap();
        command
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    fn bench(&self, args: &[&str]) -> (i32, String) {
        let mut command = self.command("weir-bench");
        command.args(args);
        output(command)
    }

    fn shell(&self, script: &str) -> (i32, String) {
        let mut command = self.command("bash");
        command.args(["-euc", script]);
        output(command)
    }
}

const SHORT: &str = "--pairs 3 --accept-busy --set measure.warmup=200ms --set measure.duration=1s --set measure.sample_period=200ms";

/// Two pairs, which are enough to show that a run is valid.
const QUICK: &str = "--pairs 2 --accept-busy --set measure.warmup=0s --set measure.duration=1s --set measure.sample_period=50ms";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_program_has_its_experiments_with_it() {
    let elsewhere = Elsewhere::new();
    let (code, text) = elsewhere.bench(&["show"]);
    assert_eq!(code, 0, "{text}");
    for expected in [
        "the library in weir-bench",
        "string-interner-100KiB-1k",
        "statsd-exporter",
        "calibration",
    ] {
        assert!(text.contains(expected), "{expected} is missing: {text}");
    }
    let plan = [
        "compare",
        "--baseline",
        "target:practice",
        "--comparison",
        "target:practice",
        "--plan",
    ];
    let (code, text) = elsewhere.bench(&[&plan[..], &["--preset", "quick", "practice-slower-*"]].concat());
    assert_eq!(
        (code, text.matches("practice-slower-10 ").count()),
        (0, 14),
        "{text}"
    );
}

/// An edited case needs no build, and a local folder extends the checkout's.
#[test]
fn a_checkout_has_its_experiments_in_the_rig() {
    let checkout = Elsewhere::new();
    checkout.write(
        "rig/experiments/cases/idle/experiment.yaml",
        "goal: memory\ndescription: edited\n",
    );
    let (code, text) = checkout.bench(&["show"]);
    assert!(
        code == 0 && text.contains("weir-bench and rig/experiments\n"),
        "{text}"
    );
    assert!(text.contains("edited") && text.contains("  practice "), "{text}");
    checkout.write("experiments/cases/own/experiment.yaml", "goal: cpu\n");
    let (code, text) = checkout.bench(&["show"]);
    assert!(
        code == 0 && text.contains("rig/experiments and experiments\n"),
        "{text}"
    );
    assert!(text.contains("edited") && text.contains("  own "), "{text}");
}

#[test]
fn missing_files_are_named_with_the_flag_that_sets_them() {
    let elsewhere = Elsewhere::new();
    elsewhere.write("library/cases/own/experiment.yaml", "goal: cpu\n");
    let told = |args: &[&str], expected: &[&str]| {
        let (code, text) = elsewhere.bench(args);
        assert_eq!(code, 2, "{text}");
        for expected in expected {
            assert!(text.contains(expected), "expected {expected:?} in: {text}");
        }
    };
    let compare = |more: &[&'static str]| {
        let arms = [
            "compare",
            "--baseline",
            "target:practice",
            "--comparison",
            "target:practice",
        ];
        [&arms[..], more].concat()
    };
    told(
        &compare(&["practise"]),
        &[
            "\"practise\" in the library in weir-bench",
            "did you mean \"practice\"?",
            "--library",
        ],
    );
    told(
        &compare(&["--suite", "dds"]),
        &["no suite \"dds\"", "did you mean \"dsd\"?", "--library"],
    );
    told(
        &compare(&["--preset", "quik", "practice"]),
        &["no preset \"quik\"", "did you mean \"quick\"?", "--library"],
    );
    told(
        &compare(&["--library", "nowhere", "practice"]),
        &["nowhere: no folder \"cases\"", "--library"],
    );
    told(
        &compare(&["--library", "library", "own"]),
        &["no target \"practice\"", "--targets"],
    );
    told(
        &compare(&["--targets", "mine.yaml", "practice"]),
        &["mine.yaml: No such file"],
    );
    told(
        &compare(&["--baseline-args", "--a 'b", "practice"]),
        &["--baseline-args", "a quote is not closed"],
    );
    let arms = [
        "compare",
        "--baseline",
        "bin:/bin/true",
        "--comparison",
        "bin:/bin/true",
        "--as",
        "mine",
        "practice",
    ];
    told(&arms, &["no target \"mine\"", "--targets"]);
}

#[test]
fn an_unsupported_case_is_reported_instead_of_failing() {
    let elsewhere = Elsewhere::new();
    elsewhere.executable("bin/weir", "#!/bin/sh\n");
    let (_, text) = elsewhere.bench(&[
        "compare",
        "--baseline",
        "target:weir",
        "--comparison",
        "target:weir",
        "practice",
    ]);
    assert!(text.contains("weir does not support practice"), "{text}");
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: weir-regress simulation, with known truth"]
fn two_configurations_of_one_program_are_compared() {
    let library = Library::new("measure: {replicates: 5}\n");
    let (code, text) = output(library.compare(&["--accept-busy", "--comparison-args", "--slowdown '100'"]));
    assert_eq!(code, 1, "{text}");
    let report = library.report();
    assert_eq!(report["rows"][0]["verdict"], "regression", "{report:#}");
    assert_eq!(
        report["run"]["comparison"]["args"],
        serde_json::json!(["--slowdown", "100"])
    );
    assert!(text.contains("with --slowdown 100"), "{text}");
    // The arguments belong to what is resumed.
    let folder = library.run_folder().display().to_string();
    let (code, text) = output(library.command(&["run", "--resume", &folder]));
    assert_eq!(code, 1, "{text}");
    library.assert_clean();
}

#[test]
#[ignore = "nightly: statistics of this machine; in the gate: weir-regress simulation, with known truth"]
fn several_comparisons_of_one_pair_of_programs_are_rows_of_one_run() {
    let library = Library::new("measure: {replicates: 5}\n");
    let flags = [
        "--rows",
        "2",
        "--pairs",
        "2",
        "--accept-busy",
        "--comparison-args",
        "--slowdown 400",
    ];
    let (code, text) = output(library.compare(&flags));
    assert_eq!(code, 1, "{text}");
    let report = library.report();
    let rows = report["rows"].as_array().unwrap();
    let mut names: Vec<&str> = rows.iter().filter_map(|r| r["experiment"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["case#1", "case#2"]);
    assert!(report["calibration"].is_null(), "{report:#}");
}

/// A program without a profile has a row too, with the time that the kernel sees it wait for mutexes.
#[test]
#[ignore = "nightly: statistics of this machine; in the gate: weir-regress simulation, with known truth"]
fn a_profile_of_a_program_without_pprof_has_the_external_data() {
    let elsewhere = Elsewhere::new();
    let arms = [
        "profile",
        "--baseline",
        "target:practice",
        "--comparison",
        "target:practice",
        "--replicates",
        "1",
    ];
    let flags: Vec<&str> = SHORT.split(' ').collect();
    let (code, text) = elsewhere.bench(&[&arms[..], &flags, &["practice"]].concat());
    assert_eq!(code, 0, "{text}");
    let row = text
        .lines()
        .find(|line| line.starts_with("| practice |"))
        .unwrap_or_else(|| panic!("{text}"));
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    assert!(cells[2].contains(" s ±") && cells[3] == "n/a", "{row}");
    let waits = std::path::Path::new("/proc/self/syscall").exists();
    assert!(!waits || cells[5].contains("0.00 s ±"), "{row}");
}

/// The blocks of the page, in order, in one shell; they are shortened, and their results are held to what the page says.
#[test]
#[ignore = "nightly: statistics of this machine; in the gate: weir-regress simulation, with known truth"]
fn the_page_compares_two_builds_of_a_strangers_program() {
    let script = script_of("docs/howto/compare-builds.md");
    assert_eq!(script.matches(SHORT).count(), 2, "{script}");
    let elsewhere = Elsewhere::new();
    // Three pairs on a busy machine show the direction; whether they show a regression, with its code, is a matter of luck.
    let script = script.replace(
        " string-interner-100KiB-1k\n",
        " string-interner-100KiB-1k || test $? = 1\n",
    );
    let (code, text) = elsewhere.shell(&script);
    assert_eq!(code, 0, "{text}");
    let rows = text
        .lines()
        .filter(|line| line.starts_with("string-interner-100KiB-1k  cpu per message  "));
    let changes: Vec<&str> = rows.filter_map(|row| row.split_whitespace().nth(8)).collect();
    assert!(
        changes.len() == 2 && changes.iter().all(|change| change.starts_with('+')),
        "{changes:?} in\n{text}"
    );
    assert!(text.contains("with 10000"), "{text}");
}

/// The executed blocks of a page in one shell, shortened.
fn script_of(page: &str) -> String {
    let page = fs::read_to_string(root().join(page)).unwrap();
    let parts: Vec<&str> = page.split("```sh\n").collect();
    let executed = parts.windows(2).filter(|pair| {
        let before = pair[0].trim_end().lines().last().unwrap_or_default();
        !before.starts_with("<!-- not executed")
    });
    let blocks = executed.map(|pair| pair[1].split("```\n").next().unwrap());
    blocks.collect::<String>().replace("--preset quick", SHORT)
}

/// The verdict of the first replicate of the only run.
fn verdict(elsewhere: &Elsewhere, replicate: &str) -> serde_json::Value {
    let mut runs = fs::read_dir(elsewhere.path("results")).unwrap();
    let run = runs.next().unwrap().unwrap().path();
    let text = fs::read_to_string(run.join(replicate).join("verdict.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Programs that somebody else started are measured, and left alone; their messages come from a file.
#[test]
fn the_page_compares_two_programs_that_run_already() {
    let elsewhere = Elsewhere::new();
    let script = script_of("docs/howto/compare-running.md")
        .replace(
            " orders\nkill",
            " orders || test $? = 1\nkill -0 $(cat old.pid new.pid)\nkill",
        )
        .replace(SHORT, QUICK);
    assert!(script.contains(QUICK) && script.contains("kill -0"), "{script}");
    let script = format!("trap 'kill $(cat old.pid new.pid) 2>/dev/null || true' EXIT\n{script}");
    let (code, text) = elsewhere.shell(&script);
    assert_eq!(code, 0, "{text}");
    let row = text
        .lines()
        .find(|line| line.starts_with("orders ") && line.contains(" cpu per message "));
    let row = row.unwrap_or_else(|| panic!("no row: {text}"));
    assert!(!row.contains("invalid") && !row.contains("not proven"), "{text}");
    // The second run counts from where the first left off.
    for replicate in ["orders/baseline/01", "orders/comparison/01"] {
        let books = &verdict(&elsewhere, replicate)["books"];
        assert!(
            books["sent"].as_f64().unwrap() > 500.0 && books["sent"] == books["delivered"],
            "{books:#}"
        );
    }
}

#[test]
fn what_only_the_starter_of_a_program_sees_is_refused_for_one_that_runs() {
    let elsewhere = Elsewhere::new();
    let me = format!("pid:{}@unixgram:///nowhere.sock", std::process::id());
    let told = |case: &str, expected: &str| {
        elsewhere.write("experiments/cases/own/experiment.yaml", case);
        let (code, text) = elsewhere.bench(&["compare", "--baseline", &me, "--comparison", &me, "own"]);
        assert!(code == 2 && text.contains(expected), "{code}: {text}");
    };
    let load = "load: [{file: x, to: {listen: [unix_datagram]}}]\n";
    told(
        &format!("goal: cpu\nsinks: [{{kind: target-lines}}]\n{load}"),
        "target-counter",
    );
    told(
        &format!("goal: startup\n{load}"),
        "start of a program that runs already",
    );
    told(
        &format!("goal: cpu\ntarget: {{memory_limit: 64MiB}}\n{load}"),
        "target.memory_limit",
    );
    told(&format!("goal: cpu\n{load}"), "/x: no such file");
    let refused = |flags: &[&str], expected: &str| {
        let (code, text) = elsewhere.bench(&[&["compare"], flags, &["--comparison", &me, "own"]].concat());
        assert!(code == 2 && text.contains(expected), "{text}");
    };
    refused(&["--baseline", "pid:1"], "pid:1@ADDRESS");
    refused(
        &["--baseline", &me, "--baseline-args", "--fast"],
        "its own arguments",
    );
}

/// A local case with a load by command, whose delivery the server's answers prove.
#[test]
fn the_page_compares_two_builds_under_a_load_of_ones_own() {
    let elsewhere = Elsewhere::new();
    let script = script_of("docs/howto/compare-own-load.md")
        .replace(" hello\n", " hello || test $? = 1\n")
        .replace(SHORT, QUICK);
    assert!(
        script.contains(QUICK) && script.contains("hello || test"),
        "{script}"
    );
    let (code, text) = elsewhere.shell(&script);
    assert_eq!(code, 0, "{text}");
    // The command is shown as the case has it.
    assert!(text.contains("{port:http}"), "{text}");
    let row = text
        .lines()
        .find(|line| line.starts_with("hello ") && line.contains(" cpu per message "));
    let row = row.unwrap_or_else(|| panic!("no row: {text}"));
    assert!(!row.contains("invalid") && !row.contains("not proven"), "{text}");
    let verdict = verdict(&elsewhere, "hello/baseline/00");
    let books = &verdict["books"];
    assert!(
        books["sent"].as_f64().unwrap() > 100.0 && books["sent"] == books["delivered"],
        "{verdict:#}"
    );
}

#[test]
fn a_local_folder_extends_the_library_and_its_mistakes_are_named() {
    let elsewhere = Elsewhere::new();
    let case = |load: &str| {
        let text = format!(
            "goal: cpu\nmeasure: {{warmup: 0s, duration: 1s}}\nvalid: {{idle: false}}\ntarget: {{command: [sleep, '60']}}\nload: [{{command: [sh, -c, '{load}', '{{manifest}}']}}]\n"
        );
        elsewhere.write("experiments/cases/own/experiment.yaml", &text);
    };
    case("echo \\{\\} > $0");
    let (code, text) = elsewhere.bench(&["show"]);
    assert_eq!(code, 0, "{text}");
    for expected in [
        "  own ",
        "  practice ",
        "statsd-exporter",
        "weir-bench and experiments",
    ] {
        assert!(text.contains(expected), "{expected} is missing: {text}");
    }
    let (code, text) = elsewhere.bench(&["show", "own", "--as", "none"]);
    assert!(code == 0 && text.contains("sleep"), "{text}");
    let arms = [
        "compare",
        "--baseline",
        "bin:/bin/true",
        "--comparison",
        "bin:/bin/true",
        "--accept-busy",
        "--preset",
        "quick",
    ];
    let (_, text) = elsewhere.bench(&[&arms[..], &["--plan", "own"]].concat());
    assert!(text.contains("--as none uses it"), "{text}");
    let (code, text) = elsewhere.bench(&[&arms[..], &["--as", "none", "--pairs", "2", "own"]].concat());
    assert!(
        code == 3 && text.contains("load0: its manifest has no number totals.messages"),
        "{code}: {text}"
    );
    case("true");
    let (code, text) = elsewhere.bench(&[&arms[..], &["--as", "none", "--pairs", "2", "own"]].concat());
    assert!(
        code == 3 && text.contains("gets the path of the file as {manifest}"),
        "{code}: {text}"
    );
}

/// A program of three lines, whose fourth commit needs 64 MiB more; the third cannot be built.
const COMMITS: &str = r#"
git init --quiet . && git config user.name A && git config user.email a@example.org
say() {
    printf '#!/usr/bin/env python3\nimport sys, time\nkept = bytes([1]) * (%s << 20)\nopen(sys.argv[1], "w")\ntime.sleep(600)\n' "$1" > program
    chmod +x program
    echo "$2" > build
    git add program build
    git commit --quiet --message "$3"
}
say 1 'cp program "$1"' first
say 1 'cp program "$1" && true' second
say 1 'false' third
say 66 'cp program "$1"' fourth
say 66 'cp program "$1" && true' fifth
"#;

/// Memory is what it is on any machine, so that few pairs decide.
#[test]
fn bisect_finds_the_commit_with_the_change_and_passes_over_one_that_is_broken() {
    let elsewhere = Elsewhere::new();
    elsewhere.write(
        "experiments/cases/kept/experiment.yaml",
        "goal: memory\nmeasure: {warmup: 0s, duration: 1s, sample_period: 100ms, smaps_period: 100ms, drain: 0s}\nvalid: {idle: true}\n",
    );
    elsewhere.write(
        "mine.yaml",
        "targets:\n  mine:\n    build_command: [sh, build, '{out}']\n    target: {command: ['{bin}', '{work}/ready'], ready: {all_of: [{file: '{work}/ready'}]}}\n",
    );
    let (code, text) = elsewhere.shell(COMMITS);
    assert_eq!(code, 0, "{text}");
    let bisect = |good: &str, bad: &str| {
        let flags = [
            "--targets",
            "mine.yaml",
            "--as",
            "mine",
            "--pairs",
            "2",
            "--accept-busy",
            "kept",
        ];
        elsewhere.bench(&[&["bisect", "--good", good, "--bad", bad][..], &flags].concat())
    };
    let (code, text) = bisect("HEAD~3", "HEAD");
    // Between the second and the fourth is only the one that cannot be built.
    assert!(
        code == 6 && text.contains(" third\n") && text.contains(" fourth\n"),
        "{code}: {text}"
    );
    assert!(
        !text.contains(" fifth\n") && text.contains("sh ended with exit status: 1"),
        "{text}"
    );
    let (code, text) = bisect("HEAD", "HEAD~1");
    assert!(code == 2 && text.contains("no descendant"), "{code}: {text}");
}

#[derive(Deserialize)]
struct Workflow {
    jobs: BTreeMap<String, Job>,
}

#[derive(Deserialize)]
struct Job {
    env: BTreeMap<String, String>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    name: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    run: Option<String>,
}

/// Variables that the forge sets.
fn filled(text: &str) -> String {
    let known = [
        ("github.token", "secret"),
        ("github.repository", "someone/program"),
        ("github.event.pull_request.number", "12"),
        ("steps.compare.outputs.code", "0"),
    ];
    let filled = known.iter().fold(text.to_owned(), |text, (name, value)| {
        text.replace(&format!("${{{{ {name} }}}}"), value)
    });
    assert!(!filled.contains("${{"), "{filled}");
    filled
}

/// Keeps what it was called with, and says which comment there is.
const FORGE: &str = "#!/bin/sh\necho \"$@\" >> calls\ncase \"$*\" in *--paginate*) cat comments ;; *) cp report.md posted ;; esac\n";

/// The steps that are not the user's own, as the forge would run them.
#[test]
#[ignore = "nightly: statistics of this machine; in the gate: weir-regress simulation, with known truth"]
fn the_workflow_compares_and_posts_the_report() {
    let text = fs::read_to_string(root().join("docs/examples/github/regression-detector.yml")).unwrap();
    let workflow: Workflow = serde_saphyr::from_str(&text).unwrap();
    let job = &workflow.jobs["compare"];
    let elsewhere = Elsewhere::new();
    elsewhere.executable("bin/gh", FORGE);
    for build in ["old", "new"] {
        fs::copy(PROGRAM, elsewhere.path(build)).unwrap();
    }
    elsewhere.write(
        "ci/weir-bench.yaml",
        "targets:\n  mine:\n    supports: [practice]\n    target:\n      command: ['{bin}', practice, target, --listen, 'unixgram://{work}/practice.sock', --forward, '{sink.0}']\n",
    );
    let step = |name: &str| {
        let step = job
            .steps
            .iter()
            .find(|step| step.name.as_deref() == Some(name))
            .unwrap();
        let mut command = elsewhere.command("bash");
        command.args(["-e", "-c", step.run.as_ref().unwrap()]);
        command
            .envs(&job.env)
            .env("CASES", "practice")
            .env("FLAGS", SHORT);
        command.envs(step.env.iter().map(|(name, text)| (name, filled(text))));
        for file in ["GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"] {
            command.env(file, elsewhere.path(file));
        }
        let (code, text) = output(command);
        assert_eq!(code, 0, "{name}: {text}");
    };
    let read = |name: &str| fs::read_to_string(elsewhere.path(name)).unwrap();
    elsewhere.write("comments", "");
    ["Compare", "Report", "Post", "Verdict"]
        .into_iter()
        .for_each(step);
    assert!(
        ["code=0\n", "code=1\n"].contains(&read("GITHUB_OUTPUT").as_str()),
        "{}",
        read("GITHUB_OUTPUT")
    );
    let posted = read("posted");
    assert!(
        posted.starts_with("<!-- regression-detector -->\n## Regression Detector Results\n"),
        "{posted}"
    );
    assert!(
        posted.contains("Positive values mean that the measured value rose")
            && posted.contains("| practice |"),
        "{posted}"
    );
    assert_eq!(posted, read("GITHUB_STEP_SUMMARY"));
    let calls = read("calls");
    assert!(
        calls.ends_with("api --method POST repos/someone/program/issues/12/comments -F body=@report.md\n"),
        "{calls}"
    );
}

/// The shell blocks of the GitLab job.
#[derive(Deserialize)]
struct GitlabJob {
    script: Vec<String>,
}

/// Answers the list of comments, and keeps what it was called with.
const CURL: &str = "#!/bin/sh\necho \"$@\" >> calls\ncase \"$*\" in *per_page*) cat comments ;; *) cp report.md posted ;; esac\n";

/// The first report is a new comment, the second replaces it.
#[test]
fn a_comment_is_replaced_and_not_repeated() {
    let elsewhere = Elsewhere::new();
    elsewhere.executable("bin/gh", FORGE);
    elsewhere.executable("bin/curl", CURL);
    elsewhere.write("report.md", "<!-- regression-detector -->\n");
    let calls = |comments: &str, command: &mut Command| {
        elsewhere.write("comments", comments);
        elsewhere.write("calls", "");
        let status = command.status().unwrap();
        assert!(status.success());
        fs::read_to_string(elsewhere.path("calls")).unwrap()
    };
    let text = fs::read_to_string(root().join("docs/examples/github/regression-detector.yml")).unwrap();
    let workflow: Workflow = serde_saphyr::from_str(&text).unwrap();
    let steps = &workflow.jobs["compare"].steps;
    let post = steps
        .iter()
        .find(|step| step.name.as_deref() == Some("Post"))
        .unwrap();
    let github = |comments: &str| {
        let mut command = elsewhere.command("bash");
        command.args(["-e", "-c", post.run.as_ref().unwrap()]);
        command.envs(post.env.iter().map(|(name, text)| (name, filled(text))));
        calls(comments, &mut command)
    };
    let said = github("");
    assert!(
        said.ends_with("api --method POST repos/someone/program/issues/12/comments -F body=@report.md\n"),
        "{said}"
    );
    let said = github("77\n99\n");
    assert!(
        said.ends_with("api --method PATCH repos/someone/program/issues/comments/77 -F body=@report.md\n"),
        "{said}"
    );

    let text = fs::read_to_string(root().join("docs/examples/gitlab/regression-detector.yml")).unwrap();
    let jobs: BTreeMap<String, GitlabJob> = serde_saphyr::from_str(&text).unwrap();
    let script = &jobs["regression-detector"].script;
    let post = script
        .iter()
        .find(|block| block.contains("merge_requests"))
        .unwrap();
    let gitlab = |comments: &str, token: &str| {
        let mut command = elsewhere.command("bash");
        command.args(["-e", "-c", post]);
        command
            .env("CI_API_V4_URL", "https://forge.example/api/v4")
            .env("CI_PROJECT_ID", "5")
            .env("CI_MERGE_REQUEST_IID", "12")
            .env("WEIR_BENCH_TOKEN", token);
        calls(comments, &mut command)
    };
    let said = gitlab("[{\"id\": 3, \"body\": \"looks good\"}]", "secret");
    let notes = "https://forge.example/api/v4/projects/5/merge_requests/12/notes";
    assert!(
        said.ends_with(&format!("--request POST --form body=<report.md {notes}\n")),
        "{said}"
    );
    let ours =
        "[{\"id\": 3, \"body\": \"fine\"}, {\"id\": 8, \"body\": \"<!-- regression-detector -->\\nold\"}]";
    let said = gitlab(ours, "secret");
    assert!(
        said.ends_with(&format!("--request PUT --form body=<report.md {notes}/8\n")),
        "{said}"
    );
    assert_eq!(gitlab(ours, ""), "", "a fork has no token");
}
