//! From checked values to values that the agent uses: derived sizes, addresses, ids.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use weir_context::NameFilter;
use weir_rules::{AllowedOrigins, OriginPattern};
use weir_units::{Network, show_size};

use crate::host::{Accounts, TlsPaths};
use crate::merge::Merge;
use crate::outputs::OutputConfig;
use crate::reader::Reader;
use crate::rules::{self, RuleConfig};
use crate::secrets::SecretBackend;
use crate::source::ValueSource;
use crate::table::{Aggregation, ListenerReading, Listeners, Names, Origin, Resources, Running, Settings};
use crate::text::show_text;
use crate::types::{AdminRemote, EolTransport, Listen, Ownership, SocketPath};
use crate::variables;

/// The whole configuration, typed and ready to use. The groups are as they were written, but for what is worked out where
/// nothing was: host name, memory, cores, workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config<S> {
    pub listeners: Listeners,
    pub addresses: Addresses,
    pub origin: Origin,
    pub aggregation: Aggregation,
    pub names: Names,
    /// Mapper, tag filters and rules.
    pub rules: RuleConfig,
    pub resources: Resources,
    pub running: Running,
    /// The program that knows secrets.
    pub secrets: SecretBackend,
    /// Only for a merge.
    pub merge: Option<Merge>,
    /// The enabled outputs.
    pub outputs: Vec<OutputConfig<S>>,
}

/// Combined results of the listeners' settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Addresses {
    pub udp: Vec<SocketAddr>,
    pub tcp: Vec<SocketAddr>,
    pub http: Vec<SocketAddr>,
    /// Empty: no admin server.
    pub admin: Vec<SocketAddr>,
    pub socket_ownership: Ownership,
    /// Bytes per second of networks.
    pub rates: Vec<(Network, u64)>,
}

impl Listeners {
    /// `None`: TCP is not encrypted.
    pub fn tls(&self) -> Option<TlsPaths> {
        Some(TlsPaths {
            certificate: self.tls.tcp_tls_certificate.clone()?,
            key: self.tls.tcp_tls_key.clone()?,
            client_ca: self.tls.tcp_tls_client_ca.clone(),
        })
    }

    /// Allowed senders on Unix sockets; `None`: all.
    pub fn allowed_origins(&self) -> Option<AllowedOrigins> {
        AllowedOrigins::new(self.senders.allowed_origins.clone())
    }

    pub fn requires_eol(&self, transport: EolTransport) -> bool {
        self.reading.eol_required.contains(&transport)
    }

    /// The reading of the listener at this address, of this transport; `None`: that of all listeners.
    pub fn reading(&self, transport: &str, address: &str) -> Option<&ListenerReading> {
        let is_about = |entry: &&ListenerReading| entry.listener == transport || entry.listener == address;
        self.reading.per_listener.iter().find(is_about)
    }

    pub fn has_unix_sockets(&self) -> bool {
        !(self.uds.is_empty() && self.uds_stream.is_empty() && self.http_uds.is_empty())
    }
}

impl Origin {
    /// Whether senders are distinguished. Off, it costs nothing.
    pub fn is_on(&self) -> bool {
        let has_source = !self.sources.origin_kubelet.is_empty()
            || self.sources.origin_podinfo.is_some()
            || self.sources.origin_file.is_some();
        self.origin_detection
            || self.origin_client
            || has_source
            || !self.sources.origin_environment.is_empty()
    }

    /// Certificate and key to show the kubelet.
    pub fn kubelet_identity(&self) -> Option<(&Path, &Path)> {
        Some((
            self.sources.origin_kubelet_certificate.as_deref()?,
            self.sources.origin_kubelet_key.as_deref()?,
        ))
    }

    /// Whether there is a source of containers' tags.
    fn has_sources(&self) -> bool {
        !(self.sources.origin_docker.is_empty()
            && self.sources.origin_containerd.is_empty()
            && self.sources.origin_kubelet.is_empty())
            || self.sources.origin_file.is_some()
    }
}

impl Aggregation {
    /// Whole seconds, at least one.
    pub fn bucket_seconds(&self) -> u64 {
        self.bucket_width.as_secs()
    }

    /// Whole percents, sorted, without repetition.
    pub fn percentiles(&self) -> Vec<u8> {
        self.histogram_percentiles
            .iter()
            .map(|percentile| percentile.0)
            .collect()
    }

    /// The prefix of the copy of histograms; `None`: no copy is made.
    pub fn histogram_copy_prefix(&self) -> Option<&str> {
        let prefix = self.histogram_copy_to_distribution_prefix.as_str();
        self.histogram_copy_to_distribution.then_some(prefix)
    }
}

impl Names {
    /// Tags of everything: sorted, without repetition.
    pub fn all_tags(&self) -> Vec<String> {
        let all = self.tags.iter().chain(&self.extra_tags);
        let mut tags: Vec<String> = all.filter(|tag| !tag.is_empty()).cloned().collect();
        if !self.env.is_empty() {
            tags.push(format!("env:{}", self.env));
        }
        tags.sort();
        tags.dedup();
        tags
    }

    pub fn filter(&self) -> NameFilter {
        NameFilter::new(
            self.metric_filterlist.clone(),
            self.metric_filterlist_match_prefix,
        )
    }
}

const MIB: u64 = 1 << 20;

/// Derives missing values, and reports contradictions.
pub(crate) struct Resolver<'a, 'i>(pub &'a mut Reader<'i>);

impl Resolver<'_, '_> {
    pub(crate) fn config<S>(
        &mut self,
        mut own: Settings,
        merge: Option<Merge>,
        outputs: Vec<OutputConfig<S>>,
    ) -> Config<S> {
        self.resources(&mut own.resources);
        let addresses = self.addresses(&own.listeners, &own.running);
        own.listeners.reading.per_listener = self.per_listener(&own.listeners, &addresses);
        self.allowed_origins(&own.listeners, &own.origin);
        self.tls(&own.listeners, addresses.tcp.is_empty());
        self.origin(&mut own.origin);
        self.aggregation(&mut own.aggregation);
        self.names(&mut own.names);
        let config = Config {
            rules: self.rules(&own),
            addresses,
            listeners: own.listeners,
            origin: own.origin,
            aggregation: own.aggregation,
            names: own.names,
            resources: own.resources,
            running: own.running,
            secrets: own.secrets,
            merge,
            outputs,
        };
        self.warn_of_missing_sources(&config.listeners.senders.allowed_origins, &config.origin);
        self.exclusive(&config.outputs);
        self.outputs_of_agents(&config);
        config
    }

    fn problem(&mut self, key: &str, message: impl Into<String>) {
        self.0.blame(key, message);
    }

    fn ok<T: Default>(&mut self, key: &str, result: Result<T, impl Display>) -> T {
        result.unwrap_or_else(|error| {
            self.problem(key, error.to_string());
            T::default()
        })
    }

    /// Shows a value that was worked out because none was given.
    fn computed(&mut self, key: &str, value: String, how: &str) {
        if let Some(shown) = self.0.find_shown(key) {
            shown.value = value;
            shown.source = match &shown.source {
                ValueSource::Default => ValueSource::Computed(format!("default: {how}")),
                source => ValueSource::Computed(format!("{source}: {how}")),
            };
        }
    }

    fn show(&mut self, key: &str, value: String) {
        if let Some(shown) = self.0.find_shown(key) {
            shown.value = value;
        }
    }

    /// Reports the content of a setting's file.
    fn holds(&mut self, key: &str, content: String) {
        if let Some(shown) = self.0.find_shown(key) {
            shown.content = Some(content);
        }
    }

    fn is_default(&mut self, key: &str) -> bool {
        self.0
            .find_shown(key)
            .is_some_and(|shown| shown.source == ValueSource::Default)
    }

    /// Some outputs use a resource that exists only once.
    fn exclusive<S>(&mut self, outputs: &[OutputConfig<S>]) {
        for (output_type, what) in [("stdout", "standard output"), ("prometheus", "the path /metrics")] {
            let of_type = outputs.iter().filter(|output| output.output_type == output_type);
            let names: Vec<&str> = of_type.map(|output| output.name.as_str()).collect();
            if let [first, second, ..] = names[..] {
                let message = format!("only one output can have {what}; {first} wants it too");
                self.problem(&format!("outputs.{second}.enabled"), message);
            }
        }
    }

    /// Outputs of the agent that have nothing to do in a merge.
    fn outputs_of_agents<S>(&mut self, config: &Config<S>) {
        if config.merge.is_none() {
            return;
        }
        for output in &config.outputs {
            let message = match output.output_type {
                "relay" => "a relay forwards messages as they arrive, and `weir merge` receives none",
                "kafka" => "agents publish records with it, and `weir merge` reads them",
                _ => continue,
            };
            self.problem(&format!("outputs.{}.enabled", output.name), message);
        }
    }

    fn addresses(&mut self, listeners: &Listeners, running: &Running) -> Addresses {
        let machine = self.0.host;
        let udp = self.listen("udp", &listeners.udp, listeners);
        let tcp = self.listen("tcp", &listeners.tcp, listeners);
        let http = self.http(listeners);
        self.socket_paths(listeners);
        // A port alone means loopback regardless of `bind_host`, because this server hands out profiles.
        if running.admin_remote == AdminRemote::Full && running.admin_token_file.as_os_str().is_empty() {
            self.problem("admin_token_file", "is missing; `admin_remote: full` needs it");
        }
        let admin = running.admin.0.as_ref();
        let admin = admin.map_or(Ok(Vec::new()), |listen| {
            listen.addresses("127.0.0.1", false, machine)
        });
        let account = |name: &str, of| match name {
            "" => Ok(None),
            name => machine.account(name, of).map(Some),
        };
        let uid = account(&listeners.socket_file.socket_owner, Accounts::Users);
        let gid = account(&listeners.socket_file.socket_group, Accounts::Groups);
        Addresses {
            udp,
            tcp,
            http,
            rates: self.rates(listeners),
            admin: self.ok("admin", admin),
            socket_ownership: Ownership {
                uid: self.ok("socket_owner", uid),
                gid: self.ok("socket_group", gid),
            },
        }
    }

    /// The addresses for columns, which a variable of the Datadog Agent switches on and off.
    fn http(&mut self, listeners: &Listeners) -> Vec<SocketAddr> {
        let switch = variables::http_switch(self.0.inputs);
        let of_agent = self
            .0
            .find_shown("http")
            .is_some_and(|shown| match &shown.source {
                ValueSource::Environment(name) => name.starts_with("DD_"),
                source => *source == ValueSource::Default,
            });
        match switch {
            Some(Ok(false)) if of_agent => self.listen("http", &[], listeners),
            Some(Ok(true)) if of_agent && listeners.http.is_empty() => {
                let address = vec![variables::HTTP_ADDRESS];
                let shown = address.iter().map(|address| show_text(&address.to_string()));
                let shown = shown.collect::<Vec<_>>().join(", ");
                self.computed("http", format!("[{shown}]"), variables::HTTP_ENABLED);
                address
            }
            Some(Err(error)) => {
                self.problem("http", format!("{}: {error}", variables::HTTP_ENABLED));
                Vec::new()
            }
            _ => self.listen("http", &listeners.http, listeners),
        }
    }

    fn listen(&mut self, key: &str, written: &[Listen], listeners: &Listeners) -> Vec<SocketAddr> {
        let mut found: Vec<SocketAddr> = Vec::new();
        for listen in written {
            let (host, everywhere) = (&listeners.bind_host, listeners.non_local_traffic);
            let addresses = listen.addresses(host, everywhere, self.0.host);
            for address in self.ok(key, addresses) {
                if address.port() != 0 && found.contains(&address) {
                    self.problem(key, format!("{address} is listed twice"));
                }
                found.push(address);
            }
        }
        let shown: Vec<String> = found
            .iter()
            .map(|address| show_text(&address.to_string()))
            .collect();
        self.show(key, format!("[{}]", shown.join(", ")));
        found
    }

    fn socket_paths(&mut self, listeners: &Listeners) {
        let of = |key: &'static str, paths| std::iter::repeat(key).zip(paths);
        let all: Vec<(&'static str, &SocketPath)> = of("uds", &listeners.uds)
            .chain(of("uds_stream", &listeners.uds_stream))
            .chain(of("http_uds", &listeners.http_uds))
            .collect();
        for (index, (key, path)) in all.iter().enumerate() {
            if all[..index].iter().any(|(_, known)| known == path) {
                let path = path.display();
                self.problem(
                    key,
                    format!("{path} is listed twice; each socket needs its own path"),
                );
            }
        }
    }

    /// Each entry applies to an existing listener. An entry for an address as written becomes one for each address that it includes.
    fn per_listener(&mut self, listeners: &Listeners, found: &Addresses) -> Vec<ListenerReading> {
        let (udp, tcp) = (&found.udp[..], &found.tcp[..]);
        let mut names: Vec<String> = Vec::new();
        let mut add = |transport: &str, scheme: &str, places: Vec<String>| {
            if !places.is_empty() {
                names.push(transport.to_owned());
                names.extend(places.iter().map(|place| format!("{scheme}://{place}")));
            }
        };
        let paths = |paths: &[SocketPath]| paths.iter().map(|path| path.display().to_string()).collect();
        let addresses = |addresses: &[SocketAddr]| addresses.iter().map(SocketAddr::to_string).collect();
        add("udp", "udp", addresses(udp));
        add("uds", "unixgram", paths(&listeners.uds));
        add("uds_stream", "unix", paths(&listeners.uds_stream));
        add("tcp", "tcp", addresses(tcp));
        add("http", "http", addresses(&found.http));
        add("http_uds", "http+unix", paths(&listeners.http_uds));
        let mut as_written = self.as_written("udp", &listeners.udp, listeners);
        as_written.extend(self.as_written("tcp", &listeners.tcp, listeners));
        as_written.extend(self.as_written("http", &listeners.http, listeners));
        let mut entries = Vec::new();
        for entry in &listeners.reading.per_listener {
            if names.contains(&entry.listener) {
                entries.push(entry.clone());
            } else if let Some((_, addresses)) = as_written.iter().find(|(name, _)| *name == entry.listener) {
                entries.extend(addresses.iter().map(|address| ListenerReading {
                    listener: address.clone(),
                    ..entry.clone()
                }));
            } else {
                let (name, names) = (&entry.listener, names.join(", "));
                self.problem(
                    "per_listener",
                    format!("{name:?} is no listener; allowed are {names}"),
                );
            }
        }
        entries
    }

    /// The addresses of a setting as they are written, each with those that it stands for.
    fn as_written(
        &self,
        scheme: &str,
        written: &[Listen],
        listeners: &Listeners,
    ) -> Vec<(String, Vec<String>)> {
        let (host, everywhere) = (&listeners.bind_host, listeners.non_local_traffic);
        let stands_for = |listen: &Listen| {
            let addresses = listen
                .addresses(host, everywhere, self.0.host)
                .unwrap_or_default();
            addresses
                .iter()
                .map(|address| format!("{scheme}://{address}"))
                .collect()
        };
        written
            .iter()
            .map(|listen| (format!("{scheme}://{}", listen.shown()), stands_for(listen)))
            .collect()
    }

    fn rates(&mut self, listeners: &Listeners) -> Vec<(Network, u64)> {
        const KEY: &str = "rate_limit_per_network";
        let mut networks: Vec<(Network, u64)> = Vec::new();
        for (text, rate) in &listeners.senders.rate_limit_per_network {
            match text.parse() {
                Ok(network) if networks.iter().any(|(known, _)| *known == network) => {
                    self.problem(KEY, format!("{network} is listed twice"));
                }
                Ok(network) => networks.push((network, *rate)),
                Err(error) => self.problem(KEY, format!("{text:?}: {error}")),
            }
        }
        networks
    }

    fn allowed_origins(&mut self, listeners: &Listeners, origin: &Origin) {
        const KEY: &str = "allowed_origins";
        if listeners.senders.rate_limit_per_origin.is_some() && !origin.origin_detection {
            let message = "needs origin_detection: true; a limit cannot rely on what messages claim";
            self.problem("rate_limit_per_origin", message);
        }
        if listeners.senders.allowed_origins.is_empty() {
            return;
        }
        if !origin.origin_detection {
            let message = "needs origin_detection: true, which finds the sending process on a Unix socket";
            self.problem(KEY, message);
        }
        if !listeners.has_unix_sockets() {
            self.0.notes.push(format!(
                "{KEY}: no effect, because uds and uds_stream are empty; for the network set allowed_networks"
            ));
        }
    }

    /// Warns if no source can report the tags in the list.
    fn warn_of_missing_sources(&mut self, allowed: &[OriginPattern], origin: &Origin) {
        let list = AllowedOrigins::new(allowed.to_vec());
        if !origin.has_sources() && list.is_some_and(|list| list.needs_sources()) {
            self.0.notes.push(
                "allowed_origins: its tags are unknown, because no source of tags is enabled (origin_docker, origin_containerd, origin_kubelet, origin_file); only container_id is known"
                    .into(),
            );
        }
    }

    /// A certificate and its key belong together.
    fn pair(&mut self, certificate: (&str, &Option<PathBuf>), key: (&str, &Option<PathBuf>)) {
        match (certificate.1, key.1) {
            (Some(_), None) => self.problem(certificate.0, format!("needs {}, its private key", key.0)),
            (None, Some(_)) => {
                self.problem(
                    key.0,
                    format!("needs {}, the certificate it belongs to", certificate.0),
                );
            }
            _ => {}
        }
    }

    fn tls(&mut self, listeners: &Listeners, no_tcp: bool) {
        let (certificate, key) = (&listeners.tls.tcp_tls_certificate, &listeners.tls.tcp_tls_key);
        self.pair(("tcp_tls_certificate", certificate), ("tcp_tls_key", key));
        let Some(files) = listeners.tls() else {
            if listeners.tls.tcp_tls_client_ca.is_some() && certificate.is_none() && key.is_none() {
                let message =
                    "needs tcp_tls_certificate and tcp_tls_key: without TLS clients show no certificate";
                self.problem("tcp_tls_client_ca", message);
            }
            return;
        };
        match self.0.host.tls(&files) {
            Ok(content) => {
                self.holds("tcp_tls_certificate", content.certificate);
                if let Some(authorities) = content.client_ca {
                    self.holds("tcp_tls_client_ca", authorities);
                }
            }
            Err(error) => {
                let key = match &error.path {
                    path if *path == files.certificate => "tcp_tls_certificate",
                    path if *path == files.key => "tcp_tls_key",
                    _ => "tcp_tls_client_ca",
                };
                self.problem(key, error.message);
            }
        }
        if no_tcp {
            let note = "tcp_tls_certificate has no effect: tcp is empty";
            self.0.notes.push(note.into());
        }
    }

    fn origin(&mut self, origin: &mut Origin) {
        let (certificate, key) = (
            &origin.sources.origin_kubelet_certificate,
            &origin.sources.origin_kubelet_key,
        );
        if !origin.sources.origin_kubelet.trim().is_empty() {
            self.pair(
                ("origin_kubelet_certificate", certificate),
                ("origin_kubelet_key", key),
            );
        }
        let url = kubelet_url(origin.sources.origin_kubelet.trim());
        origin.sources.origin_kubelet = self.ok("origin_kubelet", url);
        self.show("origin_kubelet", show_text(&origin.sources.origin_kubelet));
        let machine = self.0.host;
        let sockets = [
            ("origin_docker", &mut origin.sources.origin_docker),
            ("origin_containerd", &mut origin.sources.origin_containerd),
        ];
        for (key, paths) in sockets {
            if self.is_default(key) {
                paths.retain(|path| machine.exists(path));
            }
        }
    }

    fn aggregation(&mut self, aggregation: &mut Aggregation) {
        if aggregation.bucket_width.subsec_nanos() != 0 {
            self.problem("bucket_width", "must be whole seconds, from 1s to 1h");
        }
        aggregation.histogram_aggregates.sort();
        aggregation.histogram_aggregates.dedup();
        aggregation.histogram_percentiles.sort_unstable();
        aggregation.histogram_percentiles.dedup();
    }

    fn names(&mut self, names: &mut Names) {
        for (key, list) in [("tags", &names.tags), ("extra_tags", &names.extra_tags)] {
            if let Some(tag) = list.iter().find(|tag| tag.contains([',', '|', '\n'])) {
                let message =
                    format!("{tag:?} has a comma, a bar or a line end, which is not allowed in a tag");
                self.problem(key, message);
            }
        }
        if names.env.contains([',', '|', '\n']) {
            let message = format!(
                "{:?} has a comma, a bar or a line end, which is not allowed in a tag",
                names.env
            );
            self.problem("env", message);
        }
        if names.namespace.contains([':', '|', '\n']) {
            let message = "has a colon, a bar or a line end, which is not allowed in a metric name";
            self.problem("namespace", message);
        }
        if !names.namespace.is_empty() && !names.namespace.ends_with('.') {
            names.namespace.push('.');
        }
        if names.hostname.is_empty() {
            names.hostname = self.0.host.name();
            self.computed("hostname", show_text(&names.hostname), "the system's host name");
        }
    }

    fn rules(&mut self, own: &Settings) -> RuleConfig {
        let namespace = match own.names.namespace.trim_end_matches('.') {
            "" => String::new(),
            name => format!("{name}."),
        };
        let filter = own.names.filter();
        let around = rules::RuleSettings {
            percentiles: &own.aggregation.histogram_percentiles,
            namespace: &namespace,
            is_filtered: &|name| filter.matches(name),
        };
        match rules::resolve(&own.rules, &around) {
            Ok((rules, notes)) => {
                self.0.notes.extend(notes);
                rules
            }
            Err(errors) => {
                for error in errors {
                    self.problem(&error.path, error.message);
                }
                RuleConfig::default()
            }
        }
    }

    fn resources(&mut self, resources: &mut Resources) {
        match resources.memory {
            0 => resources.memory = self.memory(),
            memory if memory < 8 * MIB => {
                self.problem("memory", "is too small; must be 0 or at least 8MiB");
            }
            _ => {}
        }
        if resources.cpu == 0.0 {
            resources.cpu = self.0.host.cores();
            self.computed(
                "cpu",
                resources.cpu.to_string(),
                "what the machine and its cgroup allow",
            );
        }
        if resources.workers == 0 {
            resources.workers = workers_for(resources.cpu);
            let how = format!("for {} cores", resources.cpu);
            self.computed("workers", resources.workers.to_string(), &how);
        }
    }

    fn memory(&mut self) -> u64 {
        let (available, of) = self.0.host.memory();
        let budget = (available / 4).clamp(64 * MIB, 2048 * MIB);
        // Whole mebibytes are easier to read.
        let budget = budget / MIB * MIB;
        let available = show_size(available / MIB * MIB);
        let how = format!("a quarter of {available} of {of}, within 64MiB and 2GiB");
        self.computed("memory", show_size(budget), &how);
        budget
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither a host nor a URL; write 10.0.0.1 or https://10.0.0.1:10250")]
struct KubeletUrlError(String);

fn kubelet_url(text: &str) -> Result<String, KubeletUrlError> {
    if text.is_empty() {
        Ok(String::new())
    } else if text.starts_with("https://") || text.starts_with("http://") {
        Ok(text.trim_end_matches('/').to_owned())
    } else if text.contains("://") || text.contains(['/', '@', ' ']) {
        Err(KubeletUrlError(text.to_owned()))
    } else if text.parse::<std::net::Ipv6Addr>().is_ok() {
        Ok(format!("https://[{text}]:10250"))
    } else if text.contains(':') {
        Ok(format!("https://{text}"))
    } else {
        Ok(format!("https://{text}:10250"))
    }
}

/// One below 8 cores, then one per 8, at most 4.
fn workers_for(cpu: f64) -> usize {
    ((cpu / 8.0) as usize).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_follow_the_cores() {
        for (cpu, expect) in [
            (0.5, 1),
            (1.0, 1),
            (7.0, 1),
            (8.0, 1),
            (16.0, 2),
            (33.0, 4),
            (128.0, 4),
        ] {
            assert_eq!(workers_for(cpu), expect, "{cpu}");
        }
    }
}
