//! A running agent with a Unix socket, and what comes out of it.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{self, Starter};
pub use crate::support::{Killed as Server, until};

pub struct Agent {
    agent: support::Agent,
    /// Whether a message was sent again because it waited in vain for its tags.
    in_vain: Cell<bool>,
}

impl Deref for Agent {
    type Target = support::Agent;

    fn deref(&self) -> &support::Agent {
        &self.agent
    }
}

impl DerefMut for Agent {
    fn deref_mut(&mut self) -> &mut support::Agent {
        &mut self.agent
    }
}

impl Agent {
    /// Starts with these settings, a bucket that outlasts the test, and waits until it serves.
    pub fn start(arguments: &[&str]) -> Agent {
        Agent::start_with(arguments, &[])
    }

    pub fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Agent {
        let starter = Starter::new().socket();
        let always = ["--udp", "0", "--output", "stdout", "--bucket-width", "LONG"];
        let starter = starter.arguments(always).arguments(arguments);
        let agent = starter.environment(environment).start();
        Agent {
            agent,
            in_vain: Cell::new(false),
        }
    }

    /// Lets it read its configuration again, and waits until it says this of it.
    pub fn reload(&mut self, says: &str) {
        self.signal("-HUP");
        self.wait_for(says);
    }

    /// A page of its admin server.
    pub fn get(&self, path: &str) -> String {
        support::get(&self.admin, path).1
    }

    /// Output of a weir command that asks this agent.
    pub fn ask(&self, arguments: &[&str]) -> String {
        support::said(&[arguments, &["--admin", &self.admin]].concat())
    }

    /// An explanation with its sender: where that takes more than a second, weir says so and goes on without.
    pub fn explain(&self, line: &str, pid: Option<u32>) -> Value {
        let mut arguments = vec!["explain", "--json", line];
        let pid = pid.map(|pid| pid.to_string());
        if let Some(pid) = &pid {
            arguments.extend(["--pid", pid]);
        }
        until("the sender is determined in time", || {
            let explained: Value = serde_json::from_str(&self.ask(&arguments)).unwrap();
            match explained["note"] == "the sender could not be determined in time" {
                true => Err(explained.to_string()),
                false => Ok(explained),
            }
        })
    }

    /// The explanation of a message that is rejected, which is a failure of the command.
    pub fn explain_rejected(&self, line: &str) -> Value {
        let ran = support::run(&["explain", "--json", line, "--admin", &self.admin], &[]);
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// The status's section about origins.
    pub fn origin(&self) -> Value {
        let status: Value = serde_json::from_str(&self.ask(&["status", "--json"])).unwrap();
        status["origin"].clone()
    }

    /// Waits until a counter of the first source with this name has reached a value.
    pub fn wait_for_source(&self, name: &str, what: &str, at_least: u64) {
        until(&format!("{name}: {what}"), || {
            let origin = self.origin();
            let sources = origin["resolver"]["sources"].as_array().unwrap().clone();
            sources
                .iter()
                .any(|source| source["name"] == name && source[what].as_u64() >= Some(at_least))
        });
    }

    /// Waits until the worker has the tags of so many origins. A message waits a second for those of its own, and goes
    /// on without.
    pub fn wait_for_tags(&self, origins: u64) {
        until("the tags are there", || {
            self.origin()["answers_changed"].as_u64() >= Some(origins)
        });
    }

    /// Sends messages. If one waited in vain for its tags, all are sent again; [`Agent::points`] leaves its first point
    /// out.
    pub fn send_tagged(&self, lines: &[&str]) {
        let found = |agent: &Agent| {
            let status = agent.status();
            let accepted = status["total"]["messages"]["accepted"].as_u64().unwrap();
            (accepted, status["origin"]["waited_in_vain"].as_u64().unwrap_or(0))
        };
        loop {
            let before = found(self);
            lines.iter().for_each(|line| self.send(line));
            let expected = before.0 + lines.len() as u64;
            let in_vain = until("the messages are accepted", || match found(self) {
                (accepted, in_vain) if accepted == expected => Ok(in_vain),
                (accepted, _) => Err(format!("{accepted} of {expected}")),
            });
            if in_vain == before.1 {
                return;
            }
            self.in_vain.set(true);
        }
    }

    /// Waits until so many messages have their tags: a stop would not wait for as long.
    pub fn wait_for_accepted(&self, messages: u64) {
        until("messages are accepted", || {
            support::status(&self.admin)["total"]["messages"]["accepted"] == messages
        });
    }

    /// Ends it by SIGTERM and returns what it printed: name and tags of each point, in order.
    pub fn points(self) -> Vec<(String, Vec<String>, f64)> {
        let (text, _) = self.agent.stop();
        let mut points: Vec<(String, Vec<String>, f64)> = text
            .lines()
            .map(|line| {
                let point: Value = serde_json::from_str(line).unwrap();
                let tags = point["tags"].as_array().unwrap();
                let tags = tags.iter().map(|tag| tag.as_str().unwrap().to_owned()).collect();
                let value = point["value"].as_f64().unwrap();
                (point["metric"].as_str().unwrap().to_owned(), tags, value)
            })
            .collect();
        points.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        if self.in_vain.get() {
            let tagged: Vec<String> = points
                .iter()
                .filter(|(_, tags, _)| !tags.is_empty())
                .map(|(name, ..)| name.clone())
                .collect();
            points.retain(|(name, tags, _)| !tags.is_empty() || !tagged.contains(name));
        }
        points
    }
}

/// The names and tags of points, as one text each.
pub fn texts(points: &[(String, Vec<String>, f64)]) -> Vec<String> {
    points
        .iter()
        .map(|(name, tags, _)| format!("{name} {}", tags.join(",")))
        .collect()
}

/// Whether this machine has a program. A test that needs one says so and goes by where it is missing.
pub fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).exists()));
    if !found {
        println!("skipped: {program} is not installed; scripts/install-test-deps.sh installs it");
    }
    found
}

/// A file that describes one container.
pub fn tags_file(directory: &Path, json: &str) -> PathBuf {
    let path = directory.join("tags.json");
    let fresh = directory.join("tags.fresh");
    std::fs::write(&fresh, json).unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    path
}
