//! Processes in real control groups.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::origin::agent::{Agent, tags_file, texts, until};
use crate::support::long_bucket;

/// A control group whose name is a container's; removed when dropped.
pub struct Group(Vec<PathBuf>);

/// Where groups can be made: the unified hierarchy, and version 1's memory beside it.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let sides: Vec<PathBuf> = ["unified", "memory"]
        .iter()
        .map(|name| root.join(name))
        .filter(|path| path.join("cgroup.procs").exists())
        .collect();
    if sides.is_empty() {
        vec![root.to_owned()]
    } else {
        sides
    }
}

impl Group {
    /// `None`, with the reason printed, where the kernel refuses.
    pub fn new(name: &str) -> Option<Group> {
        let mut group = Group(Vec::new());
        for hierarchy in hierarchies() {
            let path = hierarchy.join(name);
            let _ = std::fs::remove_dir(&path);
            if let Err(error) = std::fs::create_dir(&path) {
                println!(
                    "skipped: a control group cannot be made: {}: {error}",
                    path.display()
                );
                return None;
            }
            group.0.push(path);
        }
        Some(group)
    }

    /// Puts a process of it where groups begin.
    fn release(&self, process: &Child) {
        for path in &self.0 {
            let above = path.parent().unwrap().join("cgroup.procs");
            std::fs::write(above, process.id().to_string()).unwrap();
        }
    }

    /// The inode that a process in it sends as Local Data.
    pub fn inode(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(&self.0[0]).unwrap().ino()
    }

    /// Starts a process inside that sends `message`, and again for each line on its standard input, until that ends: so it
    /// lives for as long as the test wants.
    pub fn sender(&self, agent: &Agent, message: &str) -> Child {
        let perl = r#"socket(S, PF_UNIX, SOCK_DGRAM, 0) or die; my $to = sockaddr_un($ARGV[0]);
            do { send(S, $ARGV[1], 0, $to) or die } while (<STDIN>);"#;
        self.run(perl, &agent.socket(), message)
    }

    /// The same over one connection, each message after its length.
    pub fn stream_sender(&self, path: &Path, message: &str) -> Child {
        let perl = r#"socket(S, PF_UNIX, SOCK_STREAM, 0) or die; connect(S, sockaddr_un($ARGV[0])) or die;
            do { syswrite(S, pack("V/a", $ARGV[1])) or die } while (<STDIN>);"#;
        self.run(perl, path, message)
    }

    fn run(&self, perl: &str, socket: &Path, message: &str) -> Child {
        let groups = self
            .0
            .iter()
            .map(|path| format!("echo $$ > {}/cgroup.procs\n", path.display()));
        let script = format!(
            "set -e\n{}exec perl -MSocket -e '{perl}' \"$@\"",
            groups.collect::<String>()
        );
        Command::new("sh")
            .args(["-c", &script, "sh"])
            .arg(socket)
            .arg(message)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

/// Makes a sender send again.
pub fn once_more(sender: &mut Child) {
    sender.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
}

/// Lets a sender end.
pub fn end(mut sender: Child) {
    drop(sender.stdin.take());
    assert!(sender.wait().unwrap().success());
}

/// Messages to an agent. One waits for its origin for a second, and goes on without.
struct Sent<'a> {
    agent: &'a Agent,
    messages: u64,
    /// Messages that waited in vain, and the series of those that would have tags.
    in_vain: u64,
    untagged: Vec<&'static str>,
    /// Processes of containers.
    looked_up: u64,
}

impl Sent<'_> {
    /// Waits until so many further messages are accepted. False: one of them waited in vain.
    fn accepted(&mut self, further: u64) -> bool {
        self.messages += further;
        let in_vain = until("the messages are accepted", || {
            let status = self.agent.status();
            let accepted = status["total"]["messages"]["accepted"].as_u64();
            match accepted == Some(self.messages) {
                true => Ok(status["origin"]["waited_in_vain"].as_u64().unwrap_or(0)),
                false => Err(format!("{accepted:?} of {}", self.messages)),
            }
        });
        in_vain == std::mem::replace(&mut self.in_vain, in_vain)
    }

    /// Starts a sender of a container whose tags are known. If its first message waited in vain, another process takes
    /// its place.
    fn known(&mut self, start: impl Fn() -> Child, untagged: &'static str) -> Child {
        loop {
            let sender = start();
            self.looked_up += 1;
            until("the process is looked up", || {
                let found = &self.agent.origin()["resolver"]["processes"]["container"];
                found.as_u64() >= Some(self.looked_up)
            });
            if self.accepted(1) {
                return sender;
            }
            end(sender);
            self.untagged.push(untagged);
        }
    }

    /// A sender's first message, and a second one.
    fn twice(&mut self, start: impl Fn() -> Child, untagged: &'static str) {
        let mut sender = self.known(start, untagged);
        once_more(&mut sender);
        end(sender);
        self.accepted(1);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for path in &self.0 {
            // A process that has just ended may still be in it.
            for _ in 0..500 {
                match std::fs::remove_dir(path) {
                    Err(error) if error.raw_os_error() == Some(16) => {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// An id that no other test and no earlier run has.
pub fn id(test: u8) -> String {
    format!("{test:02x}{:062x}", std::process::id())
}

/// Over datagrams and streams, by their inode, in the name of another, and after their group was removed.
#[test]
fn processes_of_two_containers_that_send_the_same_bytes_are_distinguished() {
    let [one, two, three] = [1, 2, 3].map(id);
    let names = [&format!("docker-{one}.scope"), &two, &three];
    let [Some(first), Some(second), Some(third)] = names.map(|name| Group::new(name)) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = tags_file(
        directory.path(),
        &format!(
            r#"{{"containers": {{"{one}": {{"low": ["c:one"], "high": ["h:one"]}}, "{two}": {{"low": ["c:two"]}}, "{three}": {{"low": ["c:three"]}}}}}}"#
        ),
    );
    let stream = directory.path().join("stream.sock");
    let agent = Agent::start(&[
        "--origin-detection",
        "--origin-client",
        "--origin-file",
        file.to_str().unwrap(),
        "--uds-stream",
        stream.to_str().unwrap(),
        "--workers=1",
    ]);
    agent.wait_for_source("file", "entities", 3);
    let mut sent = Sent {
        agent: &agent,
        messages: 0,
        in_vain: 0,
        untagged: Vec::new(),
        looked_up: 0,
    };
    // The first message of each container only asks for its tags.
    for (group, tags) in [&first, &second, &third].into_iter().zip(1..) {
        let sender = group.sender(&agent, "asks:1|c");
        agent.wait_for_tags(tags);
        end(sender);
        sent.looked_up += 1;
        sent.accepted(1);
    }
    for group in [&first, &second, &first] {
        sent.twice(|| group.sender(&agent, "a:1|c|#k:v"), "a k:v");
    }
    agent.send("a:1|c|#k:v");
    sent.accepted(1);
    // On a stream the connecting process counts.
    for group in [&first, &second] {
        sent.twice(|| group.stream_sender(&stream, "s:1|c|#k:v"), "s k:v");
    }
    // This process is in neither, and its connection is one of its own.
    let mut own = std::os::unix::net::UnixStream::connect(&stream).unwrap();
    own.write_all(b"\x0a\0\0\0s:1|c|#k:v").unwrap();
    drop(own);
    sent.accepted(1);
    let inode = format!("c:in-{}", first.inode());
    agent.send(&format!("asks:1|c|{inode}"));
    agent.wait_for_tags(4);
    agent.send(&format!("inode:1|c|{inode}"));
    agent.send("none:1|c|c:in-18446744073709551615\nnone:1|c|c:in-x");
    sent.accepted(4);

    // Only a privileged process can name another as the sender.
    let other = sent.known(|| second.sender(&agent, "others:1|c"), "others ");
    // The kernel checks what a process attaches: any living process where it may administer the system, else only itself.
    let python = r#"
import os, socket, struct, sys
to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
to.connect(sys.argv[1])
other = int(sys.argv[2])
def send(message, process):
    credentials = struct.pack("3i", process, os.getuid(), os.getgid())
    to.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
def refused(message, process, error):
    try:
        send(message, process)
    except error:
        return
    sys.exit("was taken: %r" % message)
refused(b"nobodys:1|c", 2**22, ProcessLookupError)
send(b"roots:1|c", other)
os.setgid(65534)
os.setuid(65534)
refused(b"forged:1|c", other, PermissionError)
send(b"own:1|c", os.getpid())
"#;
    let forger = Command::new("python3")
        .args(["-c", python])
        .arg(agent.socket())
        .arg(other.id().to_string())
        .output()
        .unwrap();
    assert!(
        forger.status.success(),
        "{}",
        String::from_utf8_lossy(&forger.stderr)
    );
    end(other);
    sent.accepted(2);

    // It leaves the group, which is then removed, and sends again. That is noticed within a minute or two, until when it
    // counts as what it was. Nothing is lost by it.
    let mut sender = sent.known(|| third.sender(&agent, "z:1|c"), "z ");
    third.release(&sender);
    drop(third);
    once_more(&mut sender);
    end(sender);

    let untagged = sent.untagged;
    let in_vain = |series: &str| untagged.iter().filter(|of| **of == series).count() as f64;
    let mut points = agent.points();
    points.retain(|(name, ..)| name != "asks");
    let of_third = points.split_off(points.partition_point(|(name, ..)| name != "z"));
    let sum: f64 = of_third.iter().map(|(_, _, value)| value * long_bucket()).sum();
    assert!((sum - in_vain("z ") - 2.0).abs() < 1e-6, "{of_third:?}");
    assert!(texts(&of_third).contains(&"z c:three".to_owned()), "{of_third:?}");
    let values: Vec<String> = points
        .iter()
        .filter_map(|(name, tags, value)| {
            let series = format!("{name} {}", tags.join(","));
            let count = value * long_bucket() - in_vain(&series);
            (count > 0.5).then(|| format!("{series} {count:.0}"))
        })
        .collect();
    assert_eq!(
        values,
        [
            "a c:one,k:v 4",
            "a c:two,k:v 2",
            "a k:v 1",
            "inode c:one 1",
            "none  2",
            "others c:two 1",
            "own  1",
            "roots c:two 1",
            "s c:one,k:v 2",
            "s c:two,k:v 2",
            "s k:v 1",
        ]
    );
}
