//! An HTTP receiver that records requests and their senders, and can fail on request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// Says nothing until the client gives up.
pub const HANG: u16 = 0;

#[derive(Clone)]
pub struct Taken {
    /// In lower case, the request's line first.
    pub head: String,
    pub body: Vec<u8>,
}

impl Taken {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find_map(|(found, value)| (found == name).then_some(value.trim()))
    }
}

#[derive(Clone)]
pub struct Receiver {
    pub url: String,
    status: Arc<AtomicU16>,
    taken: Arc<Mutex<Vec<Taken>>>,
}

impl Receiver {
    /// Answers with this status.
    pub fn start(status: u16) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Receiver {
            url: format!("http://{}", listener.local_addr().unwrap()),
            status: Arc::new(AtomicU16::new(status)),
            taken: Arc::default(),
        };
        let server = receiver.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let server = server.clone();
                std::thread::spawn(move || server.serve(socket));
            }
        });
        receiver
    }

    pub fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn serve(&self, socket: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(socket);
        loop {
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
                if line.trim().is_empty() {
                    break;
                }
                let line = line.to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                head += &line;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let status = self.status.load(Ordering::SeqCst);
            if status == HANG {
                let _ = reader.read(&mut [0; 1]);
                return None;
            }
            if status < 300 && head.starts_with("post ") {
                self.taken.lock().unwrap().push(Taken { head, body });
            }
            write!(
                reader.get_mut(),
                "HTTP/1.1 {status} x\r\ncontent-length: 2\r\n\r\n{{}}"
            )
            .ok()?;
        }
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
    }

    /// Every point of a metric in Datadog's JSON, with the key it came with.
    pub fn points(&self, metric: &str) -> Vec<(String, f64)> {
        let mut found = Vec::new();
        for taken in self.taken() {
            let key = taken.header("dd-api-key");
            let Ok(body) = serde_json::from_slice::<Value>(&taken.body) else {
                continue;
            };
            let series = body["series"].as_array().into_iter().flatten();
            for series in series.filter(|series| series["metric"] == metric) {
                for point in series["points"].as_array().unwrap() {
                    let value = point["value"].as_f64().unwrap();
                    if value != 0.0 {
                        found.push((key.unwrap_or_default().to_owned(), value));
                    }
                }
            }
        }
        found
    }

    /// Sum of all points of a counter, with buckets of a second.
    pub fn sum(&self, metric: &str) -> f64 {
        self.points(metric).iter().map(|(_, value)| value).sum()
    }
}
