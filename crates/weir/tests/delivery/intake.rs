//! A double of a Datadog intake for tests with the real agent: remembers series, gives scripted answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Accept,
    Fail,
    /// Says nothing until the client gives up.
    Hang,
    /// Says nothing, and ends the connection.
    Close,
}

/// Decides by the number of the request.
type Script = dyn Fn(usize) -> Answer + Send + Sync;

#[derive(Clone)]
pub struct Intake {
    pub address: SocketAddr,
    /// Bodies of `/api/v2/series`, with any answer: a backend may have stored them without an acknowledgement.
    pub series: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Posts of all paths, and their bytes.
    pub posts: Arc<Mutex<(usize, usize)>>,
    keep: bool,
}

impl Intake {
    /// With `keep` bodies are remembered.
    pub fn start(keep: bool, script: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let intake = Intake {
            address: listener.local_addr().unwrap(),
            series: Arc::default(),
            posts: Arc::default(),
            keep,
        };
        let script: Arc<Script> = Arc::new(script);
        let server = intake.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (server, script) = (server.clone(), script.clone());
                std::thread::spawn(move || server.serve(socket, &*script));
            }
        });
        intake
    }

    fn serve(&self, socket: TcpStream, script: &Script) -> Option<()> {
        let mut reader = BufReader::new(socket);
        loop {
            let (first, body) = request(&mut reader)?;
            let mut answer = Answer::Accept;
            if first.starts_with("POST ") {
                let number = {
                    let mut posts = self.posts.lock().unwrap();
                    posts.0 += 1;
                    posts.1 += body.len();
                    posts.0
                };
                if self.keep && first.starts_with("POST /api/v2/series ") {
                    self.series.lock().unwrap().push(body);
                }
                answer = script(number);
            }
            let status = match answer {
                Answer::Accept => "202 Accepted",
                Answer::Fail => "503 Service Unavailable",
                Answer::Close => return None,
                Answer::Hang => {
                    let _ = reader.read(&mut [0; 1]);
                    return None;
                }
            };
            let text = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            reader.get_mut().write_all(text.as_bytes()).ok()?;
        }
    }
}

/// The first line and the body of the next HTTP request, or `None` when there is no whole one.
pub fn request(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|n| *n > 0)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first, body))
}
