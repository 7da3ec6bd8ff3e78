//! The tests' one harness: agents, their admin servers, waiting.

// Each test file uses a part of it.
#![allow(dead_code)]

pub mod agent;
pub mod hand_over;
pub mod influxdb;
pub mod log;
pub mod manager;
pub mod place;
pub mod ports;
pub mod preload;
pub mod receivers;
pub mod secret_program;
pub mod senders;
pub mod terminal;
pub mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_config::{Setting, SettingType};
use weir_output::settings::OUTPUT_TYPES;

pub use agent::{Agent, Killed, PointBooks, Starter, long_bucket, signal, with_long_buckets};

/// However slow the machine: what takes longer is broken.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The YAML examples of a page, in order.
pub fn configurations(page: &str) -> Vec<&str> {
    let blocks = page.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

/// "Full" is just that.
pub fn names_every_setting(text: &str, output: &str) {
    fn check(text: &str, settings: &[Setting]) {
        for setting in settings {
            assert!(
                text.contains(&format!(" {}:", setting.key)),
                "{} is missing",
                setting.key
            );
            if let SettingType::Record(fields) = setting.kind {
                check(text, fields);
            }
        }
    }
    let found = OUTPUT_TYPES.iter().find(|kind| kind.name == output).unwrap();
    check(text, found.settings);
}

/// The answer to a request without a body, as it came. HTTP/1.0, so that the body ends with the connection.
fn exchange(address: &str, head: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{head}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Status code and body.
fn answered(address: &str, head: &str) -> (u16, String) {
    let answer = exchange(address, head).unwrap_or_else(|error| panic!("{address}: {head}: {error}"));
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (code, body.to_owned())
}

/// The admin server's answer: status code and body.
pub fn get(admin: &str, path: &str) -> (u16, String) {
    answered(admin, &format!("GET {path} HTTP/1.0"))
}

/// The same of a request that changes something.
pub fn post(admin: &str, path: &str) -> (u16, String) {
    answered(
        admin,
        &format!("POST {path} HTTP/1.0\r\nX-Weir-Request: 1\r\nContent-Length: 0"),
    )
}

pub fn json(admin: &str, path: &str) -> Value {
    let (code, body) = get(admin, path);
    assert_eq!(code, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

pub fn status(admin: &str) -> Value {
    json(admin, "/api/v1/status")
}

/// The output of a program that has ended.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the program to its end, with nothing of this process's environment.
pub fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied());
    let output = command.stdin(Stdio::null()).output().unwrap();
    Ran {
        code: output.status.code().expect("it ended by itself"),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The same: whether the end was a good one, and what it said, standard output first.
pub fn weir(arguments: &[&str]) -> (bool, String) {
    let ran = run(arguments, &[]);
    (ran.code == 0, ran.stdout + &ran.stderr)
}

/// Standard output of a command that has to succeed.
pub fn said(arguments: &[&str]) -> String {
    let ran = run(arguments, &[]);
    assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
    ran.stdout
}

/// Whether what is waited for is there: what was found, or why it is not.
pub trait Attempt {
    type Found;

    fn found(self) -> Result<Self::Found, String>;
}

impl Attempt for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "not yet".to_owned())
    }
}

impl<T> Attempt for Result<T, String> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self
    }
}

/// Polls, for events without a notification: often at first, then twenty times a second.
#[track_caller]
pub fn until<A: Attempt>(what: &str, mut attempt: impl FnMut() -> A) -> A::Found {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(5);
    loop {
        match attempt().found() {
            Ok(found) => return found,
            Err(last) => assert!(Instant::now() < deadline, "{what}: {last}"),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
