//! Binding: what is refused, with which words, and what socket files look like.

use crate::support;

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

use support::{Harness, config};
use weir_listener::{BindError, BindErrorKind, Framing, ListenerConfig, bind, group_id, user_id};

#[track_caller]
fn refused(config: &ListenerConfig) -> BindError {
    let Err(error) = bind(config) else {
        panic!("{} was bound", config.address)
    };
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("cannot listen on {}: ", config.address)),
        "{text}"
    );
    error
}

/// Checks the error and that the message says what to do.
macro_rules! check {
    ($config:expr, $kind:pat, $remedy:expr) => {
        let error = refused(&$config);
        assert!(matches!(error.kind, $kind), "{error:?}");
        assert!(error.to_string().contains($remedy), "{error}");
    };
}

fn unixgram(path: &Path) -> ListenerConfig {
    config(&format!("unixgram://{}", path.display()))
}

fn unix(path: &Path) -> ListenerConfig {
    config(&format!("unix://{}", path.display()))
}

#[test]
fn ports_in_use_and_foreign_addresses() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    check!(
        config(&format!("udp://{}", udp.local_addr().unwrap())),
        BindErrorKind::PortInUse,
        "another port"
    );
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    check!(
        config(&format!("tcp://{}", tcp.local_addr().unwrap())),
        BindErrorKind::PortInUse,
        "ss -tlpn"
    );
    // An address of the block reserved for documentation.
    check!(config("udp://192.0.2.1:0"), BindErrorKind::NotLocal, "ip address");
}

#[test]
fn a_port_is_free_again_after_the_listener_has_ended() {
    let first = bind(&config("tcp://127.0.0.1:0")).unwrap();
    let again = config(&first.address().to_string());
    check!(again, BindErrorKind::PortInUse, "in use");
    drop(first);
    bind(&again).unwrap();
}

#[test]
fn settings_that_do_not_fit() {
    let mut wrong = config("udp://127.0.0.1:0");
    wrong.framing = Framing::Newline;
    check!(
        wrong,
        BindErrorKind::FramingMismatch(Framing::Newline),
        "use datagram"
    );
    let mut wrong = config("tcp://127.0.0.1:0");
    wrong.framing = Framing::Datagram;
    check!(
        wrong,
        BindErrorKind::FramingMismatch(Framing::Datagram),
        "length or newline"
    );
    for bytes in [0, 65537] {
        let mut wrong = config("tcp://127.0.0.1:0");
        wrong.max_packet_bytes = bytes;
        check!(wrong, BindErrorKind::MaxPacketBytes(_), "1 to 65536");
    }
}

#[test]
fn paths_that_are_not_directories() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    for address in [
        unixgram(&missing.join("dsd.socket")),
        unix(&missing.join("dsd.socket")),
    ] {
        check!(
            address,
            BindErrorKind::MissingDirectory(_),
            &format!("mkdir -p {}", missing.display())
        );
    }
    fs::write(&missing, "").unwrap();
    check!(
        unixgram(&missing.join("dsd.socket")),
        BindErrorKind::NotADirectory(_),
        "not a directory"
    );
}

#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    fs::write(&path, "precious").unwrap();
    for address in [unixgram(&path), unix(&path)] {
        check!(
            address,
            BindErrorKind::NotASocket {
                found: "a regular file"
            },
            "left alone"
        );
    }
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    check!(
        unixgram(&link),
        BindErrorKind::NotASocket {
            found: "a symbolic link"
        },
        "left alone"
    );
    check!(
        unixgram(directory.path()),
        BindErrorKind::NotASocket { found: "a directory" },
        "left alone"
    );
    let dangling = directory.path().join("dangling");
    symlink(directory.path().join("nowhere"), &dangling).unwrap();
    check!(
        unixgram(&dangling),
        BindErrorKind::NotASocket {
            found: "a symbolic link"
        },
        "left alone"
    );
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    // The standard library leaves the file behind, as a process that was killed does.
    drop(UnixDatagram::bind(&path).unwrap());
    drop(bind(&unixgram(&path)).unwrap());
    drop(UnixListener::bind(&path).unwrap());
    drop(bind(&unixgram(&path)).unwrap());
    drop(UnixDatagram::bind(&path).unwrap());
    drop(bind(&unix(&path)).unwrap());
    assert!(!path.exists(), "ours are removed");

    let live = UnixDatagram::bind(&path).unwrap();
    for address in [unixgram(&path), unix(&path)] {
        check!(address, BindErrorKind::SocketInUse, "ss -xlp");
    }
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to(b"still there", &path).unwrap();
    assert_eq!(live.recv(&mut [0; 32]).unwrap(), 11);
    drop(live);
    fs::remove_file(&path).unwrap();

    let live = UnixListener::bind(&path).unwrap();
    for address in [unixgram(&path), unix(&path)] {
        check!(address, BindErrorKind::SocketInUse, "ss -xlp");
    }
    drop(live);
}

#[test]
fn a_socket_file_is_removed_only_by_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    let first = bind(&unixgram(&path)).unwrap();
    fs::remove_file(&path).unwrap();
    let second = bind(&unixgram(&path)).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[test]
fn mode_owner_and_group_are_as_configured() {
    let directory = tempfile::tempdir().unwrap();
    for (name, stream) in [("datagram", false), ("stream", true)] {
        let path = directory.path().join(name);
        let mut asked = if stream { unix(&path) } else { unixgram(&path) };
        let (uid, gid) = support::raw::user_and_group();
        let default = bind(&asked).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o7777, 0o722);
        assert_eq!((found.uid(), found.gid()), (uid, gid));
        drop(default);

        asked.socket_mode = 0o666;
        // Only root may give files away.
        if uid == 0 {
            asked.socket_owner = Some(12345);
            asked.socket_group = Some(23456);
        }
        let _socket = bind(&asked).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, 0o666);
        if uid == 0 {
            assert_eq!((found.uid(), found.gid()), (12345, 23456));
        }
    }
}

/// Mode and owner were once set by path: a user who put a symbolic link in the socket's place in time got the mode of a file of
/// root's changed. The race cannot be won on purpose, so the calls of a process that binds are looked at.
#[test]
fn nothing_is_changed_by_the_path_of_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    let mut command = std::process::Command::new("strace");
    let calls = "trace=/^bind$|chmod|chown";
    command
        .args(["-f", "-e", calls, "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "binding::child_that_binds", "--nocapture"])
        .env("WEIR_TEST_PATH", directory.path());
    match command.spawn() {
        Ok(child) => assert!(support::wait(child).success()),
        Err(error) => {
            println!("skipped: strace: {error}");
            return;
        }
    }
    let trace = fs::read_to_string(&trace).unwrap();
    let binds = trace.lines().filter(|line| line.contains("bind(")).count();
    assert_eq!(binds, 2, "{trace}");
    for line in trace.lines().filter(|line| line.contains("dsd.socket")) {
        assert!(line.contains("bind("), "by path: {line}");
    }
    assert!(
        trace.contains("/proc/self/fd/"),
        "the mask made a change necessary: {trace}"
    );
}

#[test]
#[ignore = "the other process of nothing_is_changed_by_the_path_of_a_socket"]
fn child_that_binds() {
    let directory = std::env::var_os("WEIR_TEST_PATH").unwrap();
    let directory = Path::new(&directory);
    let (uid, gid) = support::raw::user_and_group();
    for (name, stream) in [("datagram.dsd.socket", false), ("stream.dsd.socket", true)] {
        let path = directory.join(name);
        let mut asked = if stream { unix(&path) } else { unixgram(&path) };
        // More than the usual mask leaves.
        asked.socket_mode = 0o777;
        (asked.socket_owner, asked.socket_group) = (Some(uid), Some(gid));
        let _socket = bind(&asked).unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, 0o777);
    }
}

#[test]
fn directories_that_others_may_write_in_are_refused_to_root_and_warned_of() {
    let root = support::raw::user_and_group().0 == 0;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dsd.socket");
    let mode = |mode| fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
    for (bits, refused, warning) in [
        (0o755, false, None),
        (0o777, root, Some("replace the socket")),
        (0o775, root, Some("replace the socket")),
        (0o1777, false, Some("while weir does not run")),
    ] {
        mode(bits);
        for address in [unixgram(&path), unix(&path)] {
            if refused {
                check!(address, BindErrorKind::OthersMayWrite { .. }, "or `chmod +t");
                check!(
                    address,
                    BindErrorKind::OthersMayWrite { .. },
                    "`socket_directory_sticky: true`"
                );
                assert!(!path.exists());
                continue;
            }
            let socket = bind(&address).unwrap();
            let said = socket.warning().unwrap_or_default();
            assert!(said.contains(warning.unwrap_or_default()), "{bits:o}: {said}");
            assert_eq!(said.is_empty(), warning.is_none(), "{bits:o}: {said}");
        }
    }
    if root {
        // An emptyDir of Kubernetes, without and with a group of its own.
        for bits in [0o777, 0o2777, 0o775] {
            mode(bits);
            let mut sticky = unixgram(&path);
            sticky.sticky_directory = true;
            let socket = bind(&sticky).unwrap();
            assert!(socket.warning().unwrap().contains("while weir does not run"));
            let found = fs::metadata(directory.path()).unwrap().mode() & 0o7777;
            assert_eq!(found, bits | 0o1000, "{found:o}");
        }
        // Where nobody else may write, nothing is changed.
        mode(0o755);
        let mut sticky = unixgram(&path);
        sticky.sticky_directory = true;
        assert_eq!(bind(&sticky).unwrap().warning(), None);
        assert_eq!(fs::metadata(directory.path()).unwrap().mode() & 0o7777, 0o755);
        mode(0o777);
        std::os::unix::fs::chown(directory.path(), Some(12345), None).unwrap();
        check!(
            sticky,
            BindErrorKind::OthersMayWrite { owner: 12345, .. },
            "chown root"
        );
        assert_eq!(fs::metadata(directory.path()).unwrap().mode() & 0o7777, 0o777);
        mode(0o755);
        std::os::unix::fs::chown(directory.path(), Some(12345), None).unwrap();
        check!(
            unixgram(&path),
            BindErrorKind::OthersMayWrite { owner: 12345, .. },
            "chown root"
        );
    }
}

#[test]
fn users_and_groups_have_names_or_numbers() {
    assert_eq!(user_id("root").unwrap(), Some(0));
    assert_eq!(user_id("4711").unwrap(), Some(4711));
    assert_eq!(group_id("root").unwrap(), Some(0));
    assert_eq!(group_id("no such group").unwrap(), None);
    assert_eq!(user_id("zero\0byte").unwrap(), None);
}

#[test]
fn permissions_that_are_missing() {
    if support::raw::user_and_group().0 != 0 {
        println!("skipped: only root can become someone else");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Where everybody may enter and run it.
    let binary = directory.path().join("test");
    // By another process: a file that this one has open for writing cannot be run by what a test beside it forks meanwhile.
    let mut copy = std::process::Command::new("cp");
    copy.arg(std::env::current_exe().unwrap()).arg(&binary);
    assert!(copy.status().unwrap().success());
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = std::process::Command::new(&binary);
    command
        .args([
            "--ignored",
            "--exact",
            "binding::child_without_permissions",
            "--nocapture",
        ])
        .env("WEIR_TEST_PATH", directory.path());
    assert!(support::wait(command.spawn().unwrap()).success());
}

#[test]
#[ignore = "the other process of permissions_that_are_missing"]
fn child_without_permissions() {
    let directory = std::env::var_os("WEIR_TEST_PATH").unwrap();
    let directory = Path::new(&directory);
    let live = directory.join("live.socket");
    let _live = UnixDatagram::bind(&live).unwrap();
    fs::set_permissions(&live, fs::Permissions::from_mode(0o600)).unwrap();
    support::raw::become_nobody();
    let path = directory.join("dsd.socket");
    check!(
        unixgram(&path),
        BindErrorKind::PermissionDenied { operation: "bind" },
        "write permission in"
    );
    check!(
        unixgram(&live),
        BindErrorKind::PermissionDenied { operation: "connect" },
        "write permission in"
    );
    let own = tempfile::tempdir().unwrap();
    let mut given_away = unixgram(&own.path().join("dsd.socket"));
    given_away.socket_owner = Some(0);
    check!(
        given_away,
        BindErrorKind::PermissionDenied { operation: "chown" },
        "CAP_CHOWN"
    );
    assert!(!own.path().join("dsd.socket").exists(), "nothing is left behind");

    // Without privileges the receive buffer is capped, and the remedy is the command to run.
    let limit: usize = fs::read_to_string("/proc/sys/net/core/rmem_max")
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let mut large = config("udp://127.0.0.1:0");
    large.receive_buffer_bytes = Some(2 * limit);
    let buffer = bind(&large).unwrap().receive_buffer();
    assert_eq!(buffer.granted, limit);
    let remedy = buffer.remedy().unwrap();
    assert!(
        remedy.contains(&format!("sysctl -w net.core.rmem_max={}", 2 * limit)),
        "{remedy}"
    );
}

#[test]
fn a_receive_buffer_below_the_requested_size_is_reported() {
    let mut asked = config("udp://127.0.0.1:0");
    asked.receive_buffer_bytes = Some(100_000);
    let buffer = bind(&asked).unwrap().receive_buffer();
    assert_eq!(
        (buffer.wanted, buffer.granted, buffer.remedy()),
        (Some(100_000), 100_000, None)
    );
    asked.receive_buffer_bytes = None;
    let buffer = bind(&asked).unwrap().receive_buffer();
    assert!(buffer.granted > 0 && buffer.remedy().is_none());
    asked.receive_buffer_bytes = Some(usize::MAX);
    let buffer = bind(&asked).unwrap().receive_buffer();
    assert!(buffer.remedy().unwrap().contains("net.core.rmem_max"));
}

#[test]
fn every_interface_in_one_socket() {
    if !support::has_address("[::1]:0") {
        return;
    }
    let mut harness = Harness::new();
    let id = harness.listen(&config("udp://[::]:0"));
    let port = harness.socket_address(id).port();
    UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .send_to(b"four", ("127.0.0.1", port))
        .unwrap();
    UdpSocket::bind("[::1]:0")
        .unwrap()
        .send_to(b"six", ("::1", port))
        .unwrap();
    harness.run_until(|seen| seen.len() == 2);
}

#[test]
fn each_address_family_can_have_a_listener_of_its_own_on_one_port() {
    if !support::has_address("[::1]:0") {
        return;
    }
    let mut harness = Harness::new();
    let four = harness.listen(&config("udp://0.0.0.0:0"));
    let port = harness.socket_address(four).port();
    let mut both = config(&format!("udp://[::]:{port}"));
    assert!(matches!(refused(&both).kind, BindErrorKind::PortInUse));
    both.sharing.ipv6_only = true;
    harness.listen(&both);
    for (from, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let socket = UdpSocket::bind(from).unwrap();
        socket.send_to(to.as_bytes(), (to, port)).unwrap();
    }
    harness.run_until(|seen| seen.len() == 2);
}

#[test]
fn the_queue_of_a_unix_datagram_socket_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let socket = bind(&unixgram(&directory.path().join("dsd.socket"))).unwrap();
    assert!(socket.datagram_queue().unwrap() > 0);
    assert_eq!(bind(&config("udp://127.0.0.1:0")).unwrap().datagram_queue(), None);
}

#[test]
fn a_socket_in_the_abstract_name_space_has_no_file() {
    let name = format!("weir-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let mut harness = Harness::new();
    let id = harness.listen(&config(&format!("unixgram://@{name}")));
    check!(
        config(&format!("unixgram://@{name}")),
        BindErrorKind::SocketInUse,
        "another process"
    );
    let sender = UnixDatagram::unbound().unwrap();
    sender.send_to_addr(b"a:1|c", &address).unwrap();
    harness.run_until(|seen| !seen.is_empty());
    assert_eq!(harness.seen[0].bytes, b"a:1|c");
    assert_eq!(harness.address(id).to_string(), format!("unixgram://@{name}"));
    assert!(!Path::new(&format!("@{name}")).exists());
    let stream = bind(&config(&format!("unix://@{name}-stream"))).unwrap();
    assert!(stream.file_id().is_none());
    let address = SocketAddr::from_abstract_name(format!("{name}-stream")).unwrap();
    UnixStream::connect_addr(&address).unwrap();
}
