//! The state directory: who may write in it, and what weir does where it cannot.

use crate::support;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use support::senders::total;
use support::{Agent, long_bucket, status, until, weir};

/// A start that is not to succeed, with this directory.
fn refused(directory: &Path) -> String {
    let path = directory.to_str().unwrap();
    let (ok, said) = weir(&[
        "run",
        "--udp",
        "127.0.0.1:0",
        "--admin",
        "off",
        "--state-path",
        path,
    ]);
    assert!(!ok, "{said}");
    said
}

/// A process of root took whatever another user had put there.
#[test]
fn a_directory_in_which_others_may_write_is_refused_like_that_of_a_socket() {
    let parent = tempfile::tempdir().unwrap();
    if parent.path().metadata().unwrap().uid() != 0 {
        println!("skipped: not root");
        return;
    }
    let directory = parent.path().join("state");
    std::fs::create_dir(&directory).unwrap();
    let set_mode =
        |mode| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o777, 0o775, 0o702] {
        set_mode(mode);
        let said = refused(&directory);
        assert!(
            said.contains(&format!("mode {mode:04o}")) && said.contains("chmod go-w"),
            "{said}"
        );
    }
    let path = directory.to_str().unwrap().to_owned();
    let starts = |warns: bool| {
        let agent = Agent::start("workers: 1\n", &[("WEIR_STATE_PATH", &path)]);
        let (_, log) = agent.stop();
        assert_eq!(log.contains("users other than this one"), warns, "{log}");
    };
    // Nobody can replace files of others in such a directory.
    set_mode(0o1777);
    starts(true);
    set_mode(0o755);
    starts(false);

    for name in ["agent", "state", "tally-7", "open-0", "numbers-7", "books"] {
        let file = directory.join(name);
        let before = std::fs::read(&file).unwrap_or_default();
        std::fs::write(&file, &before).unwrap();
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        let said = refused(&directory);
        assert!(said.contains(&format!("{name} belongs to user 65534")), "{said}");
        std::fs::remove_file(&file).unwrap();
    }
    // Of others, but not of weir.
    std::fs::write(directory.join("notes"), "").unwrap();
    std::os::unix::fs::chown(directory.join("notes"), Some(65534), None).unwrap();
    starts(false);
    std::os::unix::fs::chown(&directory, Some(65534), None).unwrap();
    let said = refused(&directory);
    assert!(said.contains("owner 65534"), "{said}");
}

/// The mode was set by path, after the file was there.
#[test]
fn the_socket_for_hand_overs_is_private() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let config = format!("workers: 1\nstate_path: {}\n", path.display());
    let agent = Agent::start_after("umask 0", &config);
    until("it listens", || path.join("hand-over").exists());
    assert_eq!(path.join("hand-over").metadata().unwrap().mode() & 0o7777, 0o600);
    agent.stop();
}

/// The file was opened, which needs no room, and then the state found none: the bucket was lost with outputs that were up.
#[test]
fn a_disk_that_is_known_to_be_full_means_a_flush_at_the_stop() {
    let directory = tempfile::tempdir().unwrap();
    let config = format!(
        "workers: 1\nbucket_width: LONG\nstate_path: {}\noutputs:\n  stdout: {{enabled: true}}\n",
        directory.path().join("state").display()
    );
    // Files of at most 64 KiB, which is more than the books need, and less than the bucket.
    let mut agent = Agent::start_after("ulimit -f 128", &config);
    let admin = agent.wait_for("admin on http://");
    let received = || status(&admin)["total"]["samples"]["received"].as_u64();
    for block in 0..60 {
        let lines: Vec<String> = (0..50)
            .map(|number| format!("c:1|c|#with:a-long-tag-that-needs-room,number:{block}-{number}"))
            .collect();
        agent.send(&lines.join("\n"));
        // As many as the socket holds. What was received is known once a second.
        if block % 10 == 9 {
            until("the blocks are read", || received() >= Some((block + 1) * 50));
        }
    }
    agent.wait_for("the open bucket cannot be saved");
    let (stdout, log) = agent.stop();
    assert!(log.contains("so the open bucket is flushed"), "{log}");
    assert_eq!((total(&stdout, "c") * long_bucket()).round(), 3000.0);
    // There is nothing left to report or to deliver again.
    let next = Agent::start(&config, &[]);
    let (_, log) = next.stop();
    assert!(
        !log.contains("was killed") && !log.contains("continues from"),
        "{log}"
    );
}

/// The reason was in the log of the agent alone.
#[test]
fn an_upgrade_says_why_the_new_process_cannot_write_in_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let config = format!("workers: 1\nbucket_width: LONG\nstate_path: {}\n", path.display());
    let agent = Agent::start(&config, &[]);
    std::fs::create_dir(path.join("agent.new")).unwrap();
    let (ok, said) = weir(&["upgrade", "--state-path", path.to_str().unwrap()]);
    assert!(!ok && said.contains("its files cannot be written"), "{said}");
    agent.stop();
}
