//! `weir doctor`: problems and remedies.

use std::fmt::Write as _;

use clap::{ArgMatches, Command};
use weir_config::Role;
use weir_units::counted;

use super::switch;
use crate::doctor::{Finding, Severity, examine};
use weir_system::config::{self, Inputs};
use weir_system::failure::{Failure, FailureKind};

pub fn command() -> Command {
    super::with_settings(
        Command::new("doctor")
            .about("Find problems that prevent the agent from receiving or delivering, and their remedies")
            .long_about(
                "Find problems that prevent the agent from receiving or delivering, and their remedies: sockets and permissions, \
                 settings of the kernel, the state directory, the clock, names, proxies and the endpoint of each output. \
                 Use the configuration of the agent or of the merge. The exit code is 1 if a check fails.",
            ),
    )
    .arg(
        switch("json", "Print the findings as JSON"),
    )
    .arg(
        switch("no-send", "Do not send the metric weir.doctor to the agent's Unix sockets"),
    )
}

pub fn doctor(arguments: &ArgMatches) -> Result<(), Failure> {
    let findings = findings(super::inputs(arguments)?, !arguments.get_flag("no-send"))?;
    let text = match arguments.get_flag("json") {
        true => serde_json::to_string(&findings).map_err(|error| Failure::runtime(error.to_string()))? + "\n",
        false => report(&findings),
    };
    super::print(&text)?;
    if findings.iter().any(|finding| finding.verdict == Severity::Error) {
        return Err(Failure {
            kind: FailureKind::Runtime,
            message: String::new(),
        });
    }
    Ok(())
}

fn findings(mut inputs: Inputs, sends: bool) -> Result<Vec<Finding>, Failure> {
    let loaded = config::load(&inputs).or_else(|of_agent| {
        // The file of a merge has settings that an agent does not know.
        inputs.role = Role::Merge;
        config::load(&inputs).map_err(|_| of_agent)
    })?;
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(loaded.warnings.iter().map(|warning| Finding {
        check: "configuration",
        subject: "files".to_owned(),
        verdict: Severity::Warning,
        found: warning.clone(),
        remedy: String::new(),
    }));
    findings.extend(examine(&loaded, &inputs, sends));
    Ok(findings)
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let verdict = match finding.verdict {
            Severity::Fine => "ok",
            Severity::Skipped => "-",
            Severity::Warning => "WARNING",
            Severity::Error => "ERROR",
        };
        let Finding {
            check,
            subject,
            found,
            ..
        } = finding;
        let found = super::table::shown(found);
        let _ = writeln!(text, "{verdict:<8} {check:<16} {subject}: {found}");
        if !finding.remedy.is_empty() {
            let _ = writeln!(text, "{:25} -> {}", "", finding.remedy);
        }
    }
    let count = |verdict| {
        findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    let (errors, warnings) = (
        counted(count(Severity::Error) as u64, "errors"),
        counted(count(Severity::Warning) as u64, "warnings"),
    );
    let _ = writeln!(text, "\n{errors}, {warnings}");
    text
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, UdpSocket};

    use weir_status::fleet::FleetStatus;
    use weir_status::status::Status;

    use super::*;

    /// The address of a server that answers every request with this status line, these headers and this body.
    fn server(head: &str, body: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        address
    }

    struct Examined(Vec<Finding>);

    impl Examined {
        /// Nobody answers at the admin address.
        fn alone(config: &str) -> Examined {
            Self::beside("127.0.0.1:1", config)
        }

        fn beside(admin: &str, config: &str) -> Examined {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), format!("admin: {admin}\n{config}")).unwrap();
            let inputs = Inputs {
                file: Some(file.path().to_owned()),
                resolve_names: true,
                ..Inputs::default()
            };
            Examined(findings(inputs, false).unwrap())
        }

        #[track_caller]
        fn find(&self, check: &str, subject: &str) -> &Finding {
            let is_it = |finding: &&Finding| finding.check == check && finding.subject.contains(subject);
            let found = self.0.iter().find(is_it);
            found.unwrap_or_else(|| panic!("no {check} of {subject} in {:#?}", self.0))
        }

        /// The verdict on something, which has a remedy if it is a bad one.
        #[track_caller]
        fn verdict(&self, check: &str, subject: &str) -> Severity {
            let found = self.find(check, subject);
            let is_bad = matches!(found.verdict, Severity::Error | Severity::Warning);
            assert!(!is_bad || !found.remedy.is_empty(), "{found:?}");
            found.verdict
        }

        fn errors(&self) -> Vec<&Finding> {
            let all = self.0.iter();
            all.filter(|finding| finding.verdict == Severity::Error).collect()
        }
    }

    #[test]
    fn addresses_in_use_and_directories_that_cannot_be_written_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let found = Examined::alone(&format!(
            "udp: ['{0}']\nuds: ['{1}']\nstate_path: '{1}/state'\ntcp_tls_certificate: ''\norigin_file: '{2}/none'\n",
            taken.local_addr().unwrap(),
            file.display(),
            directory.path().display(),
        ));
        assert_eq!(found.verdict("agent", "http://"), Severity::Warning);
        assert!(found.find("socket", "udp://").remedy.contains("ss -lpn"));
        for (check, subject) in [
            ("socket", "udp://"),
            ("socket", "unixgram://"),
            ("state_directory", "state"),
            ("file", "none"),
        ] {
            assert_eq!(found.verdict(check, subject), Severity::Error, "{check}");
        }
        let found = Examined::alone("udp: ['127.0.0.1:0']\n");
        assert_eq!(found.verdict("state_directory", "state_path"), Severity::Warning);
        assert_eq!(found.errors(), Vec::<&Finding>::new());
    }

    /// An output that writes to this URL.
    fn writing(url: &str, proxy: &str) -> Examined {
        Examined::alone(&format!(
            "udp: ['127.0.0.1:0']\noutputs:\n  prometheus: {{ enabled: false }}\n  remote_write:\n    url: {url}\n    delivery:\n      proxy: {proxy}\n"
        ))
    }

    #[test]
    fn names_proxies_endpoints_and_clocks_that_are_wrong_are_found() {
        let found = writing("http://no-such-host.invalid/", "none");
        assert_eq!(found.verdict("dns", "no-such-host.invalid"), Severity::Error);
        assert_eq!(found.verdict("endpoint", "remote_write"), Severity::Error);
        let found = writing("http://127.0.0.1:1/", "none");
        assert_eq!(found.verdict("endpoint", "remote_write"), Severity::Error);

        let found = writing("http://backend.invalid/", "http://127.0.0.1:1");
        assert_eq!(found.verdict("proxy", "127.0.0.1:1"), Severity::Error);
        let proxy = format!("http://{}", server("407 Proxy Authentication Required", ""));
        let found = writing("http://backend.invalid/", &proxy);
        assert_eq!(found.verdict("proxy", "127.0.0.1"), Severity::Fine);
        let remedy = &found.find("endpoint", "remote_write").remedy;
        assert!(remedy.contains("user:password@"), "{remedy}");

        if cfg!(feature = "kafka") {
            let broker = server("a broker", "");
            let found = Examined::alone(&format!(
                "outputs:\n  kafka:\n    brokers: ['{broker}', '127.0.0.1:1', 'no-broker.invalid:9092']\n"
            ));
            let fine = found.verdict("endpoint", &format!("kafka: tcp://{broker}"));
            assert_eq!(fine, Severity::Fine);
            assert_eq!(
                found.verdict("endpoint", "kafka: tcp://127.0.0.1:1"),
                Severity::Error
            );
            assert_eq!(found.verdict("dns", "no-broker.invalid"), Severity::Error);
        }

        for (answer, verdict) in [
            ("405 Method Not Allowed", Severity::Fine),
            ("403 Forbidden", Severity::Error),
            ("404 Not Found", Severity::Warning),
            ("502 Bad Gateway", Severity::Warning),
        ] {
            let address = server(answer, "");
            let found = writing(&format!("http://{address}/api/v1/write"), "none");
            assert_eq!(found.verdict("endpoint", "remote_write"), verdict, "{answer}");
        }
        let address = server("405 No\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT", "");
        let found = writing(&format!("http://{address}/api/v1/write"), "none");
        assert_eq!(found.verdict("endpoint", "remote_write"), Severity::Fine);
        assert_eq!(found.verdict("clock", &address), Severity::Error);
    }

    /// The remedy of an output that fails names this command on the page of a merge too.
    #[test]
    fn a_merge_is_examined_by_its_own_file() {
        let status = Status {
            fleet: Some(FleetStatus::default()),
            ..Status::default()
        };
        let admin = server("200 OK", &serde_json::to_string(&status).unwrap());
        let log = tempfile::tempdir().unwrap();
        let found = Examined::beside(
            &admin,
            &format!(
                "log: {{directory: {}}}\noutputs: {{prometheus: {{}}, graphite: {{address: 'tcp://127.0.0.1:1'}}}}\n",
                log.path().display()
            ),
        );
        assert_eq!(found.verdict("agent", &admin), Severity::Fine);
        assert_eq!(found.verdict("endpoint", "graphite"), Severity::Error);
        assert_eq!(found.errors().len(), 1, "{:?}", found.errors());
        let is_socket = |finding: &Finding| finding.check == "socket";
        assert!(!found.0.iter().any(is_socket), "{:?}", found.0);
    }
}
