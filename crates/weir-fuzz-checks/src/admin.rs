//! Bytes sent to the admin address.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use weir_admin::{AdminSource, Callers, ConnectionLimits, NotReady, ResponseFuture, answer_on};
use weir_status::explain::{ExplainError, ExplainRequest, Explanation};
use weir_status::status::Reloaded;
use weir_status::status::Status;

/// A source without data that refuses nothing, and records whether it was asked to change something.
#[derive(Default)]
struct Silent {
    reloaded: AtomicBool,
}

impl AdminSource for Silent {
    fn readiness(&self) -> Result<(), NotReady> {
        Ok(())
    }

    fn status(&self) -> ResponseFuture<'_, Status> {
        Box::pin(async { Status::default() })
    }

    fn reload(&self) -> ResponseFuture<'_, Option<Reloaded>> {
        self.reloaded.store(true, Ordering::Relaxed);
        Box::pin(async { Some(Reloaded::default()) })
    }

    fn explain(&self, request: ExplainRequest) -> ResponseFuture<'_, Result<Explanation, ExplainError>> {
        Box::pin(async move {
            Ok(Explanation {
                line: request.line,
                ..Explanation::default()
            })
        })
    }
}

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime")
});

/// Bytes that a client writes on a connection: the connection ends, every answer is valid HTTP, none is an internal error, and nothing
/// changes without the header that a form cannot send.
pub fn admin(bytes: &[u8]) {
    // A profile takes its time.
    if bytes.windows(5).any(|window| window == b"pprof") {
        return;
    }
    let source = Arc::new(Silent::default());
    let limits = ConnectionLimits::default();
    let answers = RUNTIME.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let served = answer_on(server, source.clone(), Callers::default(), limits);
        let asked = async {
            // It may have closed already.
            let _ = client.write_all(bytes).await;
            let mut answers = Vec::new();
            let _ = client.read_to_end(&mut answers).await;
            answers
        };
        // Every wait ends by the server's own limits: time advances whenever everything waits.
        tokio::join!(served, asked).1
    });
    if !answers.is_empty() {
        assert!(
            answers.starts_with(b"HTTP/1."),
            "{:?}",
            answers.escape_ascii().to_string()
        );
    }
    let text = String::from_utf8_lossy(&answers);
    for line in text.lines().filter(|line| line.starts_with("HTTP/1.")) {
        assert!(!line.contains(" 500 "), "{line}");
    }
    let asked = bytes.to_ascii_lowercase();
    let has = |text: &[u8]| asked.windows(text.len()).any(|window| window == text);
    if source.reloaded.load(Ordering::Relaxed) {
        assert!(
            has(b"post /") && has(b"x-weir-request"),
            "a reload that nobody may ask for"
        );
    }
}
