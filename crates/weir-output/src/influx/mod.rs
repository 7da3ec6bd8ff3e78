//! InfluxDB's line protocol over HTTP (API of version 1 or 2) and UDP, for InfluxDB, Telegraf, VictoriaMetrics and QuestDB.

mod encode;
mod line;
mod names;
mod receiver;

use std::sync::{Arc, Mutex};

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use weir_aggregate::{Batch, Expansion};
use weir_config::{Secret, SettingProblem, SettingType, choices, settings};
use weir_units::Address;

pub use encode::InfluxEncoder;
pub(crate) use line::series_of;
pub use line::{LineSettings, LineWriter, Precision};

use crate::StartError;
use crate::claims::{self, Notes};
use crate::datagrams::Udp;
use crate::delivery::{Delivery, Endpoint, Order, OutputEnvironment, Transport};
use crate::http::{self, HeaderError};
use crate::preview;
use crate::probe::{Destination, Route};
use crate::settings::{Authorization, BatchOutput, DeliverySettings, OutputType, Start};

settings! {
    /// Destination and form of lines.
    pub struct InfluxSettings {
        url: String = "''"
            .takes(SettingType::Checked { allowed: "http://host:port, https://host:port (a path may follow, no query) or udp://host:port, or nothing", check: is_url })
            .effect("The receiver's base URL, such as `http://127.0.0.1:8086`, to which `/write` or `/api/v2/write` is appended; or `udp://host:port`.")
            .change("to deliver to InfluxDB or another receiver of its line protocol; setting it in the environment switches the output on.")
            .required();
        database: String = "''"
            .effect("The database of InfluxDB 1 and 3, in the query of `/write?db=`.")
            .zero("Empty: requests name none, as VictoriaMetrics, QuestDB and Telegraf expect.")
            .change("if you run InfluxDB 1 or 3.");
        retention_policy: String = "''"
            .effect("The retention policy of `database`.")
            .zero("Empty: the database's own.")
            .change("if your InfluxDB 1 has several.");
        bucket: String = "''"
            .effect("The bucket of InfluxDB 2. With it requests go to `/api/v2/write?org=&bucket=`.")
            .zero("Empty: requests go to `/write`, the API of version 1.")
            .change("if you run InfluxDB 2 and of its cloud.");
        organization: String = "''"
            .effect("The organization that owns `bucket`, by its name or id.")
            .zero("Empty: requests name none.")
            .change("if you run InfluxDB 2 and of its cloud.");
        token: Secret = "''"
            .effect("The token of every request's header `Authorization: Token TOKEN`; `user:password` for InfluxDB 1.8. It is never shown.")
            .zero("Empty: there is no such header.")
            .change("if your receiver requires a token.");
        token_file: String = "''"
            .effect("A file with the token. It is read again when it changes.")
            .zero("Empty: the token is not in a file.")
            .change("if you keep tokens in files.")
            .file_of("token");
        authorization: Authorization = "{}".flat();
        form: LineSettings = "{}".flat();
        compression: InfluxCompression = "gzip"
            .effect("The compression of requests. Datagrams are never compressed.")
            .change("if your receiver is on the same machine, or does not accept gzip.");
        points_per_payload_max: u32 = "5000"
            .takes(SettingType::Integer { min: 1, max: 1_000_000 })
            .effect("A request ends after this many lines, and before 4 MiB.")
            .change("if your receiver has a smaller limit.");
        datagram_bytes_max: usize = "1432"
            .takes(SettingType::Integer { min: 128, max: 65_507 })
            .effect("Over UDP: the maximum bytes in one datagram.")
            .change("if your network has larger packets.");
        delivery: DeliverySettings = "{}";
    }
}

choices! {
    /// Compression of requests. The numbers are in disk queues.
    pub enum InfluxCompression {
        None = 0: "none",
        Gzip = 1: "gzip",
    }
}

pub(crate) const TYPE: OutputType = OutputType {
    name: "influx",
    summary: "Delivers points in InfluxDB's line protocol, over HTTP (InfluxDB 1, 2 and 3, Telegraf, VictoriaMetrics, QuestDB) or UDP.",
    on_by_default: false,
    settings: InfluxSettings::SETTINGS,
    removed: &[],
    read: |output| {
        BatchOutput::read(
            output,
            |settings: &mut InfluxSettings, files| {
                settings.authorization.read(files);
                files.read("token_file", &mut settings.token, &settings.token_file);
            },
            check,
        )
    },
};

/// A URL that a path and a query can be appended to.
fn is_url(text: &str) -> bool {
    let is_base = |url: Url| url.has_host() && url.query().is_none() && url.fragment().is_none();
    match text.split_once("://") {
        Some(("http" | "https", _)) => Url::parse(text).is_ok_and(is_base),
        Some(("udp", _)) => matches!(text.parse(), Ok(Address::Udp { port, .. }) if port > 0),
        _ => text.is_empty(),
    }
}

fn check(settings: &InfluxSettings) -> Result<(), SettingProblem> {
    let is_named = |key: &String| key.eq_ignore_ascii_case("authorization");
    let has_header = settings.authorization.headers.keys().any(is_named);
    let has_other = has_header || !settings.authorization.bearer_token.is_empty();
    let of_http = [&settings.database, &settings.bucket]
        .iter()
        .any(|text| !text.is_empty());
    let problem = if settings.is_udp() && (of_http || !settings.token.is_empty() || has_other) {
        (
            "url",
            "datagrams carry no database, bucket or token: the receiver's own settings decide",
        )
    } else if !settings.database.is_empty() && !settings.bucket.is_empty() {
        (
            "bucket",
            "`database` is set too: `database` belongs to version 1 of the API, `bucket` to version 2",
        )
    } else if settings.bucket.is_empty() && !settings.organization.is_empty() {
        ("organization", "it needs a `bucket`, and none is set")
    } else if settings.database.is_empty() && !settings.retention_policy.is_empty() {
        ("retention_policy", "it needs a `database`, and none is set")
    } else if !settings.token.is_empty() && has_other {
        (
            "token",
            "`bearer_token` or `headers` sets Authorization too; only one of them may",
        )
    } else {
        return settings.authorization.check();
    };
    Err(SettingProblem::new(problem.0, problem.1))
}

impl InfluxSettings {
    pub fn is_udp(&self) -> bool {
        self.url.starts_with("udp://")
    }

    /// URL of requests; the precision of times is added to each.
    fn write_url(&self) -> String {
        let (path, query) = match self.bucket.is_empty() {
            true => ("/write", [("db", &self.database), ("rp", &self.retention_policy)]),
            false => (
                "/api/v2/write",
                [("org", &self.organization), ("bucket", &self.bucket)],
            ),
        };
        let base = self.url.trim_end_matches('/');
        let mut url = Url::parse(&format!("{base}{path}")).expect("checked when it was read");
        for (name, value) in query.into_iter().filter(|(_, value)| !value.is_empty()) {
            url.query_pairs_mut().append_pair(name, value);
        }
        url.into()
    }

    fn headers(&self) -> Result<HeaderMap, HeaderError> {
        let mut headers = http::configured_headers(&self.authorization)?;
        if !self.token.is_empty() {
            let value = http::secret_header(&format!("Token {}", self.token.expose().trim()))
                .map_err(|_| HeaderError::Key("token"))?;
            headers.insert(AUTHORIZATION, value);
        }
        Ok(headers)
    }

    fn endpoint(&self, environment: &OutputEnvironment, notes: Notes) -> Result<Endpoint, StartError> {
        if self.is_udp() {
            return self.datagrams(notes);
        }
        let url = self.write_url();
        let receiver = receiver::Receiver {
            client: http::client(&self.delivery, concat!("weir/", env!("CARGO_PKG_VERSION")))?,
            headers: self.headers()?,
            clock: environment.clock.clone(),
            url: url.clone(),
            notes,
        };
        Ok(Endpoint {
            label: http::shown_url(&url),
            directory: http::directory(&url, ""),
            family: None,
            transport: Arc::new(receiver),
        })
    }

    fn datagrams(&self, notes: Notes) -> Result<Endpoint, StartError> {
        let address: Address = self.url.parse()?;
        let Address::Udp { host, port } = &address else {
            return Err(StartError::NoInternetAddress(address));
        };
        let udp = Udp {
            host: (host.clone(), *port),
            bytes_max: self.datagram_bytes_max,
            notes,
        };
        let transport: Arc<dyn Transport> = Arc::new(udp);
        Ok(Endpoint {
            label: address.to_string(),
            directory: address
                .to_string()
                .replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_"),
            family: None,
            transport,
        })
    }
}

impl Start for InfluxSettings {
    fn preview(&self, batch: &Batch, _: &Arc<Expansion>) -> Vec<String> {
        let uncompressed = InfluxSettings {
            compression: InfluxCompression::None,
            ..self.clone()
        };
        let encoder = InfluxEncoder::new(&uncompressed, u64::MAX, Arc::default());
        preview::of_lines(&preview::payloads(encoder, batch), series_of)
    }

    fn destinations(&self) -> Result<Vec<Destination>, StartError> {
        if self.is_udp() {
            return Ok(vec![Destination::at(self.url.parse()?)]);
        }
        let url = self.write_url();
        Ok(vec![Destination {
            label: http::shown_url(&url),
            route: Route::Http {
                url,
                headers: self.headers()?,
                delivery: Box::new(self.delivery.clone()),
                is_http2: false,
            },
        }])
    }

    fn start(
        &self,
        name: &str,
        _: &Arc<Expansion>,
        environment: &OutputEnvironment,
    ) -> Result<Delivery, StartError> {
        let notes = Arc::new(Mutex::default());
        let endpoint = self.endpoint(environment, notes.clone())?;
        let encoder = InfluxEncoder::new(self, claims::bytes_max(environment), notes);
        // A point is replaced by one of its series and time, whenever it comes.
        let order = Order::NewestFirst;
        let started = Delivery::start(
            name,
            &self.delivery,
            order,
            Box::new(encoder),
            vec![endpoint],
            environment,
        );
        Ok(started?)
    }
}
