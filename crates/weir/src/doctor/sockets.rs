//! Sockets that clients send to: whether a process listens, and whether users other than root may send.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use weir_config::ValueSource;

use super::{CheckInput, Finding};

const CHECK: &str = "socket";

/// The metric to send. It arrives as any other metric.
const METRIC: &str = "weir.doctor:1|c";

/// A user without rights, as clients may be.
const NOBODY: u32 = 65_534;

pub fn check(input: &CheckInput<'_>) -> Vec<Finding> {
    let config = &input.loaded.config;
    let mut findings = Vec::new();
    let running: Vec<&str> = input
        .status
        .iter()
        .flat_map(|status| &status.listeners)
        .map(|listener| listener.address.as_str())
        .collect();
    let mut internet = |scheme, addresses: &[SocketAddr], bind: fn(SocketAddr) -> std::io::Result<()>| {
        let is_set = input
            .loaded
            .shown
            .iter()
            .any(|shown| shown.key == scheme && shown.source != ValueSource::Default);
        for address in addresses {
            let subject = format!("{scheme}://{address}");
            match input.status {
                None => findings.push(free(&subject, bind(*address))),
                // Nobody says that an agent with other settings has to receive at a default address.
                Some(_) if !is_set && !is_received(&subject, &running) => {}
                Some(_) => findings.push(received_there(&subject, &running)),
            }
        }
    };
    internet("udp", &config.addresses.udp, |address| {
        UdpSocket::bind(address).map(drop)
    });
    internet("tcp", &config.addresses.tcp, |address| {
        TcpListener::bind(address).map(drop)
    });
    internet("http", &config.addresses.http, |address| {
        TcpListener::bind(address).map(drop)
    });
    for path in &config.listeners.uds {
        findings.push(unix(input, "unixgram", path));
    }
    for path in &config.listeners.uds_stream {
        findings.push(unix(input, "unix", path));
    }
    for path in &config.listeners.http_uds {
        findings.push(unix(input, "http+unix", path));
    }
    // Listeners of the agent that this configuration does not have.
    for listener in running {
        if findings.iter().any(|finding| finding.subject == listener) {
            continue;
        }
        findings.push(match listener.split_once("://") {
            Some((scheme @ ("unixgram" | "unix" | "http+unix"), path)) => {
                unix(input, scheme, Path::new(path))
            }
            _ => received_there(listener, &[listener]),
        });
    }
    findings
}

/// Whether the running agent listens on this address. For port 0 the kernel chooses the port.
fn is_received(address: &str, listeners: &[&str]) -> bool {
    listeners.iter().any(|listener| match address.strip_suffix(":0") {
        Some(host) => listener.starts_with(host),
        None => *listener == address,
    })
}

fn received_there(address: &str, listeners: &[&str]) -> Finding {
    if is_received(address, listeners) {
        return Finding::fine(CHECK, address, "the agent receives there");
    }
    Finding::error(CHECK, address, "the running agent does not receive there")
        .remedy("its configuration differs from this one: name its file with --config, or restart it")
}

/// Whether an agent could bind this address.
fn free(address: &str, bound: std::io::Result<()>) -> Finding {
    match bound {
        Ok(()) => Finding::fine(CHECK, address, "no agent runs, and the address is free"),
        Err(error) => Finding::error(CHECK, address, format!("it cannot be bound: {error}")).remedy(
            match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "`ss -lpn` shows which program has it: stop that, or set another address"
                }
                std::io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE",
                _ => "set an address of this machine",
            },
        ),
    }
}

fn unix(input: &CheckInput<'_>, scheme: &str, path: &Path) -> Finding {
    let subject = format!("{scheme}://{}", path.display());
    let runs = input.status.is_some();
    if weir_units::is_abstract(path) {
        return match (runs, input.sends) {
            (false, _) => Finding::skipped(CHECK, subject, "no agent runs, so the socket does not exist"),
            (true, false) => Finding::skipped(CHECK, subject, "it has no file; nothing was sent"),
            (true, true) => sent(&subject, path),
        };
    }
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !runs => {
            Finding::skipped(CHECK, subject, "no agent runs, so the socket does not exist")
        }
        Err(error) => Finding::error(CHECK, subject, format!("the socket does not exist: {error}"))
            .remedy("the agent recreates a removed socket within two seconds: see its log"),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Finding::error(CHECK, subject, "it is not a socket").remedy("remove it, or set another path")
        }
        Ok(_) if !input.sends => Finding::skipped(CHECK, subject, "it exists; nothing was sent"),
        Ok(_) => sent(&subject, path),
    }
}

/// Sends as another user if this one is root, because root passes every permission check and clients are not root.
fn sent(subject: &str, path: &Path) -> Finding {
    // Under this path a user who cannot enter the program's directory can run it.
    let mut command = Command::new("/proc/self/exe");
    command.args(["send", METRIC, "--to", subject]);
    command.env_clear().stdin(Stdio::null());
    let is_root = rustix::process::geteuid().is_root();
    let who = if is_root {
        "another user (65534)"
    } else {
        "this user"
    };
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    let said = match command.output() {
        Ok(output) if output.status.success() => {
            return Finding::fine(CHECK, subject, format!("{who} may send, and a process receives"));
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => return Finding::skipped(CHECK, subject, format!("no process to send from: {error}")),
    };
    Finding::error(CHECK, subject, format!("{who} cannot send: {said}")).remedy(obstacle(path))
}

/// The first directory that others may not enter, or else the socket.
fn obstacle(path: &Path) -> String {
    let mode = |path: &Path| {
        path.metadata()
            .map_or(0, |metadata| metadata.permissions().mode())
    };
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    if let Some(directory) = above.into_iter().find(|directory| mode(directory) & 0o001 == 0) {
        return format!(
            "give other users access to {} (chmod o+x), or put the socket elsewhere",
            directory.display()
        );
    }
    if mode(path) & 0o002 == 0 {
        return "set `socket_mode: \"0722\"`, or `socket_group` to a group that clients are in".to_owned();
    }
    "the permissions allow it: check whether the agent runs, and whether SELinux or AppArmor confines clients"
        .to_owned()
}
