//! A real InfluxDB 1, which listens to HTTP and UDP.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::ports::free_address;
use super::until;

pub struct InfluxDb {
    child: Child,
    /// Of HTTP.
    pub address: String,
    /// Points received here go to the database `udp`.
    pub udp: String,
    _directory: tempfile::TempDir,
}

impl InfluxDb {
    pub fn start() -> InfluxDb {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().display();
        let (address, own, udp) = (free_address(), free_address(), free_address());
        let config = format!(
            "reporting-disabled = true\nbind-address = \"{own}\"\n[meta]\ndir = \"{at}/meta\"\n[data]\ndir = \"{at}/data\"\nwal-dir = \"{at}/wal\"\n\
             [monitor]\nstore-enabled = false\n[http]\nbind-address = \"{address}\"\n\
             [[udp]]\nenabled = true\nbind-address = \"{udp}\"\ndatabase = \"udp\"\nbatch-timeout = \"10ms\"\n"
        );
        let path = directory.path().join("influxdb.conf");
        std::fs::write(&path, config).unwrap();
        let child = Command::new("influxd")
            .arg("-config")
            .arg(&path)
            .env("HOME", directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("influxd is installed (scripts/install-test-deps.sh)");
        let server = InfluxDb {
            child,
            address,
            udp,
            _directory: directory,
        };
        // It listens to UDP last.
        until("InfluxDB answers", || {
            server.ask("GET", "/ping").is_some() && server.receives()
        });
        server
    }

    /// Whether it listens to UDP, as the kernel says.
    fn receives(&self) -> bool {
        let address: SocketAddrV4 = self.udp.parse().unwrap();
        let ip = u32::from_ne_bytes(address.ip().octets());
        let local = format!(": {ip:08X}:{:04X} ", address.port());
        std::fs::read_to_string("/proc/net/udp").unwrap().contains(&local)
    }

    /// The body of an answer that is no failure.
    fn ask(&self, method: &str, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "{method} {path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split_whitespace()
            .nth(1)?
            .starts_with('2')
            .then(|| body.to_owned())
    }

    fn query(&self, method: &str, database: &str, query: &str) -> Value {
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.ask(method, &format!("/query?db={database}&q={query}"));
        let answer: Value = serde_json::from_str(&answer.expect("an answer")).unwrap();
        assert!(answer["results"][0]["error"].is_null(), "{answer}");
        answer
    }

    pub fn create(&self, database: &str) {
        self.query("POST", "", &format!("CREATE DATABASE \"{database}\""));
    }

    /// Every field that has a value, as `measurement{key=value}.field`, with its values in the order of their times. None of a
    /// database that there is not.
    pub fn fields(&self, database: &str) -> BTreeMap<String, Vec<Value>> {
        let query = self.ask("GET", &format!("/query?db={database}&q={SELECT_ALL}"));
        let answer: Value = serde_json::from_str(&query.unwrap_or("{}".into())).unwrap();
        let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for series in answer["results"][0]["series"].as_array().into_iter().flatten() {
            let name = name_of(series);
            let columns = series["columns"].as_array().unwrap();
            for row in series["values"].as_array().unwrap() {
                for (column, value) in columns.iter().zip(row.as_array().unwrap()).skip(1) {
                    if !value.is_null() {
                        let field = format!("{name}.{}", column.as_str().unwrap());
                        found.entry(field).or_default().push(value.clone());
                    }
                }
            }
        }
        found
    }
}

/// `SELECT * FROM /.*/ GROUP BY *`
const SELECT_ALL: &str = "SELECT%20*%20FROM%20%2F.*%2F%20GROUP%20BY%20*";

fn name_of(series: &Value) -> String {
    let tags = series["tags"].as_object();
    let tags = tags.into_iter().flatten();
    let tags: Vec<String> = tags
        .map(|(key, value)| (key, value.as_str().unwrap()))
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    format!("{}{{{}}}", series["name"].as_str().unwrap(), tags.join(","))
}

impl Drop for InfluxDb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
