//! Destinations of outputs: names, proxies, endpoints.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_output::probe::{self, Destination, ResponseError, Route, host_of};

use super::{CheckInput, Finding};

/// Timeout, for a name server that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// URL prefixes, and the variables with the proxy for them.
const PROXY_VARIABLES: [(&str, [&str; 2]); 2] = [
    ("https://", ["HTTPS_PROXY", "https_proxy"]),
    ("http://", ["HTTP_PROXY", "http_proxy"]),
];

/// The findings, and the first clock in an answer, with its sender.
pub fn check(input: &CheckInput<'_>) -> (Vec<Finding>, Option<(String, i64)>) {
    let mut findings = Vec::new();
    let mut destinations = Vec::new();
    for output in &input.loaded.config.outputs {
        match probe::destinations(&output.settings) {
            Ok(found) => destinations.extend(found.into_iter().map(|found| (output.name.as_str(), found))),
            Err(error) => findings.push(Finding::error("endpoint", &output.name, error.to_string())),
        }
    }
    if destinations.is_empty() {
        return (findings, None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            findings.push(Finding::skipped(
                "endpoint",
                "all",
                format!("outputs cannot be tested: {error}"),
            ));
            return (findings, None);
        }
    };
    let (more, date) = runtime.block_on(all(&destinations));
    findings.extend(more);
    // A name server that hangs blocks a thread; nothing waits for it.
    runtime.shutdown_background();
    (findings, date)
}

async fn all(destinations: &[(&str, Destination)]) -> (Vec<Finding>, Option<(String, i64)>) {
    let mut findings = Vec::new();
    let mut proxies = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    for (_, destination) in destinations {
        match proxy_of(&destination.route) {
            Some(proxy) => drop(proxies.insert(proxy)),
            None => hosts.extend(destination.host()),
        }
    }
    for (host, port) in hosts {
        findings.extend(name(&host, port).await);
    }
    for (from, url) in proxies {
        findings.push(proxy(&from, &url).await);
    }
    let mut date = None;
    for (output, destination) in destinations {
        let (finding, date_of_answer) = endpoint(output, destination).await;
        findings.push(finding);
        date = date.or(date_of_answer);
    }
    (findings, date)
}

/// Whether the name server knows a host. `None` for an address, and for `localhost`.
async fn name(host: &str, port: u16) -> Option<Finding> {
    if host.parse::<std::net::IpAddr>().is_ok() || weir_units::is_localhost(host) {
        return None;
    }
    let looked_up = tokio::time::timeout(PATIENCE, tokio::net::lookup_host((host, port))).await;
    Some(match looked_up {
        Ok(Ok(found)) => {
            let addresses: BTreeSet<String> = found.map(|address| address.ip().to_string()).collect();
            let addresses: Vec<String> = addresses.into_iter().collect();
            Finding::fine("dns", host, addresses.join(", "))
        }
        Ok(Err(error)) => Finding::error("dns", host, format!("the name has no address: {error}"))
            .remedy("check the name in the configuration, /etc/resolv.conf and /etc/hosts, and whether this machine reaches the name servers"),
        Err(_) => Finding::error("dns", host, format!("no name server answered within {} s", PATIENCE.as_secs()))
            .remedy("check /etc/resolv.conf, and whether this machine reaches its name servers"),
    })
}

/// The proxy, and the setting or variable that names it.
fn proxy_of(route: &Route) -> Option<(String, String)> {
    let Route::Http { url, delivery, .. } = route else {
        return None;
    };
    match delivery.proxy.as_str() {
        "none" => None,
        "" => PROXY_VARIABLES
            .iter()
            .filter(|(scheme, _)| url.starts_with(scheme))
            .flat_map(|(_, names)| names)
            .find_map(|name| {
                Some((
                    (*name).to_owned(),
                    std::env::var(name).ok().filter(|url| !url.is_empty())?,
                ))
            }),
        proxy => Some(("delivery.proxy".to_owned(), proxy.to_owned())),
    }
}

/// Whether the proxy accepts connections. The checks of endpoints show whether it forwards.
async fn proxy(from: &str, url: &str) -> Finding {
    let Some((host, port)) = host_of(url) else {
        return Finding::error("proxy", from, "it is not a proxy URL")
            .remedy("write a URL such as http://proxy:3128");
    };
    let subject = format!("{host}:{port}");
    let connecting = tokio::net::TcpStream::connect((host.as_str(), port));
    let failed = match tokio::time::timeout(PATIENCE, connecting).await {
        Ok(Ok(_)) => return Finding::fine("proxy", subject, format!("it accepts connections ({from})")),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("nothing answered within {} s", PATIENCE.as_secs()),
    };
    Finding::error(
        "proxy",
        subject,
        format!("the proxy that {from} names cannot be reached: {failed}"),
    )
    .remedy("start the proxy, name another one, or set `delivery.proxy: none` for outputs without a proxy")
}

async fn endpoint(output: &str, destination: &Destination) -> (Finding, Option<(String, i64)>) {
    let subject = format!("{output}: {}", destination.label);
    let reached = match probe::probe(destination).await {
        Ok(reached) => reached,
        Err(error) => {
            let remedy =
                "check the address in the configuration, firewalls in between, and whether the receiver runs";
            let finding = Finding::error("endpoint", subject, error.to_string());
            return (finding.remedy(remedy), None);
        }
    };
    let date = reached.date.map(|date| (destination.label.clone(), date));
    let finding = match reached.error {
        None => Finding::fine("endpoint", subject, reached.found),
        Some(ResponseError::KeyRefused) => Finding::error("endpoint", subject, reached.found)
            .remedy("the receiver does not accept the key, token or password"),
        Some(ResponseError::ProxyRefused) => Finding::error("endpoint", subject, reached.found)
            .remedy("write the proxy's user and password into its URL: http://user:password@proxy:3128"),
        Some(ResponseError::PathNotFound) => Finding::warning("endpoint", subject, reached.found)
            .remedy("check the path of the URL, and whether the receiver is enabled there"),
        Some(ResponseError::ServerError) => Finding::warning("endpoint", subject, reached.found)
            .remedy("the receiver has an error, or its gateway cannot reach it: see its log"),
        Some(ResponseError::TlsFailed) => Finding::error("endpoint", subject, reached.found).remedy(
            "set `tls.enabled` if the brokers' port uses TLS, and unset it if not; `tls.ca_file` names a private certificate authority",
        ),
        Some(ResponseError::NotAllowed) => Finding::error("endpoint", subject, reached.found)
            .remedy("give this user WRITE and DESCRIBE on the topic and the other rights that docs/fleet.md lists"),
        Some(ResponseError::NoTopic) => Finding::warning("endpoint", subject, reached.found).remedy(
            "none if this user may create topics, because the agent then creates it; otherwise create it as in docs/fleet.md",
        ),
        Some(ResponseError::SenderTimestamps) => Finding::error("endpoint", subject, reached.found)
            .remedy("set message.timestamp.type=LogAppendTime for the topic: the timestamps of the brokers are the clock of the log"),
    };
    (finding, date)
}
