//! Requests to the running agent.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, value_parser};
use weir_config::{Flag, Role, ShownValue, ValueSource, variable_of};

use super::table::shown;
use weir_system::config::{self, Inputs, Loaded};
use weir_system::failure::Failure;
use weir_system::notify::published_admin;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Larger than any answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Shows the agent's answer at `path`, once or every second.
pub fn show<T: serde::de::DeserializeOwned>(
    arguments: &ArgMatches,
    path: &str,
    render: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    show_at(admin_address(arguments)?, arguments, path, render)
}

/// The same for any process at an address.
pub fn show_at<T: serde::de::DeserializeOwned>(
    address: SocketAddr,
    arguments: &ArgMatches,
    path: &str,
    render: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    let json = arguments.get_flag("json");
    let watch = arguments.get_flag("watch");
    let redraw = watch && !json && io::stdout().is_terminal();
    loop {
        let body = fetch(address, path);
        let text = match body {
            Ok(body) if json => body,
            Ok(body) => render(&read(address, &body)?),
            // A user who watches wants to see the agent return.
            Err(failure) if watch => format!("{failure}\n"),
            Err(failure) => return Err(failure),
        };
        let clear = if redraw { "\x1b[H\x1b[2J" } else { "" };
        let mut stdout = io::stdout().lock();
        let written = stdout
            .write_all(format!("{clear}{text}").as_bytes())
            .and_then(|()| stdout.flush());
        match written {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => {
                return Err(Failure::runtime(format!(
                    "standard output cannot be written: {error}"
                )));
            }
            Ok(()) if !watch => return Ok(()),
            Ok(()) => std::thread::sleep(WATCH_INTERVAL),
        }
    }
}

/// The arguments that select the agent, for [`admin_address`].
pub fn arguments() -> [Arg; 2] {
    arguments_of(Role::Agent)
}

/// The same for either role.
pub fn arguments_of(role: Role) -> [Arg; 2] {
    let (who, port) = match role {
        Role::Agent => ("agent", 8127),
        Role::Merge => ("merge", 8128),
    };
    [
        Arg::new("config")
            .long("config")
            .short('c')
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(format!(
                "The {who}'s configuration file, for its admin address [variable: WEIR_CONFIG]"
            )),
        Arg::new("admin")
            .long("admin")
            .value_name("ADDRESS")
            .help(format!(
                "The {who}'s admin address [variable: WEIR_ADMIN] [default: 127.0.0.1:{port}]"
            )),
    ]
}

/// The agent's admin address, from its own configuration.
pub fn admin_address(arguments: &ArgMatches) -> Result<SocketAddr, Failure> {
    admin_address_of(Role::Agent, arguments)
}

/// The same for either role.
pub fn admin_address_of(role: Role, arguments: &ArgMatches) -> Result<SocketAddr, Failure> {
    let flags = arguments.get_one::<String>("admin").map(|address| Flag {
        shown: "--admin".to_owned(),
        key: "admin".to_owned(),
        values: vec![address.clone()],
    });
    let file = arguments.get_one::<PathBuf>("config").cloned();
    let mut inputs = Inputs {
        file,
        environment: config::environment(),
        flags: flags.into_iter().collect(),
        resolve_names: true,
        role,
        ..Inputs::default()
    };
    let mut is_given = None;
    if config::file(&inputs).is_none() && role == Role::Merge {
        // The address of the log is unknown here and not needed.
        inputs.role = Role::Agent;
        let (variable, address) = merge_address();
        is_given = Some(!inputs.flags.is_empty() || inputs.environment.contains_key(&variable));
        let set = inputs.environment.entry(variable).or_default();
        set.get_or_insert(address);
    }
    let loaded = config::load(&inputs)?;
    let is_given = is_given.unwrap_or_else(|| is_given_in(&loaded));
    answering(&loaded.config.addresses.admin, is_given, role).ok_or_else(|| {
        Failure::usage("admin is off, so this agent cannot be asked; --admin names another address")
    })
}

/// Whether anything names the admin address.
pub fn is_given_in(loaded: &Loaded) -> bool {
    let is_admin = |value: &&ShownValue| value.key == "admin";
    let admin = loaded.shown.iter().find(is_admin);
    admin.is_none_or(|value| value.source != ValueSource::Default)
}

/// The first address where somebody answers, or the first: of `localhost` an agent may have one alone, and instead of the default one
/// a service may have another. `None` without any.
pub fn answering(addresses: &[SocketAddr], is_given: bool, role: Role) -> Option<SocketAddr> {
    let mut addresses = addresses.to_vec();
    if !is_given {
        addresses.extend(published_admin(role));
    }
    let (first, others) = addresses.split_first()?;
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, TIMEOUT).is_ok();
    if others.is_empty() || answers(&first) {
        return Some(*first);
    }
    Some(*others.iter().find(answers).unwrap_or(first))
}

/// Default address of a merge, and the variable that sets it.
fn merge_address() -> (String, String) {
    let admin = Role::Merge.settings().find(|setting| setting.key == "admin");
    let default = admin.map_or("", |setting| Role::Merge.version_of(setting).default);
    (variable_of("admin"), default.to_owned())
}

/// Parses JSON from the agent.
pub fn read<T: serde::de::DeserializeOwned>(address: SocketAddr, body: &str) -> Result<T, Failure> {
    serde_json::from_str(body).map_err(|error| {
        Failure::runtime(format!(
            "another version of weir, or another program, answers at {address}: {error}"
        ))
    })
}

/// The agent's answer.
pub enum AgentResponse {
    Body(String),
    /// Its reason for refusing.
    Refused {
        code: u16,
        reason: String,
    },
}

/// The agent's answer at `path`; a refusal is an error.
pub fn fetch(address: SocketAddr, path: &str) -> Result<String, Failure> {
    match request(address, path)? {
        AgentResponse::Body(body) => Ok(body),
        AgentResponse::Refused { reason, .. } => {
            Err(Failure::runtime(format!("the agent at {address} says {reason}")))
        }
    }
}

/// The error for an agent that does not answer, with a remedy.
pub fn unreachable(address: SocketAddr, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; is it running? `weir run` starts it, --admin names another address"
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "; it does not answer in time",
        _ => "",
    };
    Failure::runtime(format!("no agent at http://{address}: {error}{hint}"))
}

/// The variable that names the file with the token of an agent on another machine; for the agent itself it is a setting.
const TOKEN_FILE: &str = "WEIR_ADMIN_TOKEN_FILE";

/// The head of a request, with the token if there is one.
pub fn get(address: SocketAddr, path: &str) -> Result<String, Failure> {
    let authorization = match std::env::var_os(TOKEN_FILE).filter(|file| !file.is_empty()) {
        // An agent on this machine asks for none, and the file may be readable for the agent alone.
        Some(file) if !address.ip().to_canonical().is_loopback() => {
            let shown = file.to_string_lossy().into_owned();
            let token = std::fs::read_to_string(file)
                .map_err(|error| Failure::runtime(format!("{TOKEN_FILE}: {shown}: {error}")))?;
            format!("Authorization: Bearer {}\r\n", token.trim())
        }
        _ => String::new(),
    };
    Ok(format!(
        "GET {path} HTTP/1.0\r\nHost: {address}\r\n{authorization}\r\n"
    ))
}

/// One GET, without an HTTP client.
pub fn request(address: SocketAddr, path: &str) -> Result<AgentResponse, Failure> {
    let failed = |error| unreachable(address, &error);
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
    let request = get(address, path)?;
    // A peer that closes early may have answered; its answer is more useful than the write error.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    stream
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut answer)
        .map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split_whitespace().nth(1).unwrap_or_default();
    if let Some(reason) = error_message(code, body).filter(|_| head.starts_with("HTTP/1.")) {
        let code = code.parse().unwrap_or_default();
        return Ok(AgentResponse::Refused { code, reason });
    }
    if !head.starts_with("HTTP/1.") || code != "200" {
        return Err(foreign(address, head));
    }
    Ok(AgentResponse::Body(body.to_owned()))
}

/// The error for another program at the address.
pub fn foreign(address: SocketAddr, head: &str) -> Failure {
    let first = head.lines().next().unwrap_or_default();
    let shown = weir_system::logging::printable(first.as_bytes());
    Failure::runtime(format!("{address} is not weir's admin server: {shown}"))
}

/// The agent's reason for not answering, if it gave one.
pub fn error_message(code: &str, body: &str) -> Option<String> {
    let json: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let message = json.as_ref().and_then(|json| json["error"]["message"].as_str());
    match message {
        Some(message) => Some(shown(message)),
        None if matches!(code, "400" | "401" | "403" | "503") => {
            Some(weir_system::logging::printable(body.trim().as_bytes()))
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that gives each connection the next of these answers, and where it is.
    fn server(answers: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for answer in answers {
                let mut stream = listener.accept().unwrap().0;
                let mut request = [0; 1024];
                let read = stream.read(&mut request).unwrap();
                assert!(request[..read].starts_with(b"GET /ready "));
                write!(stream, "{answer}").unwrap();
            }
        });
        address
    }

    #[test]
    fn an_agent_that_is_not_ready_says_why() {
        let agent = server(&[
            "HTTP/1.0 200 OK\r\n\r\nready",
            "HTTP/1.0 503 Service Unavailable\r\n\r\nstarting",
        ]);
        assert_eq!(fetch(agent, "/ready").unwrap(), "ready");
        let message = fetch(agent, "/ready").unwrap_err().message;
        assert!(message.contains("starting"), "{message}");
    }

    #[test]
    fn nobody_and_another_program_are_told_from_an_agent() {
        // Nobody else asks for a port of this address.
        let free = TcpListener::bind("127.77.0.2:0").unwrap().local_addr().unwrap();
        let message = fetch(free, "/ready").unwrap_err().message;
        assert!(
            message.contains(&format!("no agent at http://{free}")) && message.contains("weir run"),
            "{message}"
        );
        let other = server(&["SSH-2.0-\x1b[31mother\r\n"]);
        let message = fetch(other, "/ready").unwrap_err().message;
        assert!(
            message.contains("is not weir's admin server") && !message.contains('\x1b'),
            "{message:?}"
        );
    }
}
