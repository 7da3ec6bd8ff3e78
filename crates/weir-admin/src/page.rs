//! The live page: embedded compressed files, and headers that confine the page to this address.

use std::io::Read as _;

use flate2::read::GzDecoder;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Name and gzip of each file.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Shown if the page was not built.
const NOT_BUILT: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>weir</title>\
<h1>weir</h1><p>This binary was built without its live page. <code>make run</code> builds it where Node is installed; \
or: <code>cd web &amp;&amp; npm ci &amp;&amp; npm run build</code>, then <code>cargo build</code> again.</p>\
<p><code>weir status</code> and <code>weir top</code> show the state in a terminal, and <a href=\"/metrics\">/metrics</a>, \
<a href=\"/api/v1/status\">/api/v1/status</a> and the others still answer.</p></html>\n";

/// The page loads nothing from other sites, and no other site may embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Whether the build embedded the page.
pub fn is_built_in() -> bool {
    !FILES.is_empty()
}

/// A file of the page.
pub struct File {
    pub content_type: &'static str,
    pub content_encoding: Option<&'static str>,
    pub bytes: Vec<u8>,
}

/// Whether a request wants the page instead of the index for terminals: browsers ask for HTML by name.
pub fn is_wanted(headers: &HeaderMap) -> bool {
    names(headers, header::ACCEPT, "text/html")
}

/// The file at a path.
pub fn file(path: &str, headers: &HeaderMap) -> Option<File> {
    let name = match path {
        "/" => "index.html",
        path => path.strip_prefix('/')?,
    };
    let content_type = content_type(name)?;
    let Some((_, packed)) = FILES.iter().find(|(own, _)| *own == name) else {
        return (name == "index.html").then(|| File {
            content_type,
            content_encoding: None,
            bytes: NOT_BUILT.into(),
        });
    };
    let mut file = File {
        content_type,
        content_encoding: Some("gzip"),
        bytes: packed.to_vec(),
    };
    if !names(headers, header::ACCEPT_ENCODING, "gzip") {
        file.content_encoding = None;
        file.bytes.clear();
        GzDecoder::new(*packed).read_to_end(&mut file.bytes).ok()?;
    }
    Some(file)
}

fn names(headers: &HeaderMap, header: HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(header);
    values
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.contains(wanted)))
}

fn content_type(name: &str) -> Option<&'static str> {
    Some(match name.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

/// Headers of every file of the page.
pub fn headers() -> [(HeaderName, HeaderValue); 4] {
    let fixed = HeaderValue::from_static;
    [
        (header::CONTENT_SECURITY_POLICY, fixed(POLICY)),
        (header::REFERRER_POLICY, fixed("no-referrer")),
        (header::X_FRAME_OPTIONS, fixed("DENY")),
        // The next binary may have another page.
        (header::CACHE_CONTROL, fixed("no-cache")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_there_whether_it_was_built_or_not_and_small() {
        let index = file("/", &HeaderMap::new()).expect("a page");
        assert!(index.bytes.starts_with(b"<!doctype html>"));
        assert!(file("/../Cargo.toml", &HeaderMap::new()).is_none());
        assert!(file("/metrics", &HeaderMap::new()).is_none());
        let packed: usize = FILES.iter().map(|(_, packed)| packed.len()).sum();
        assert!(packed < 120 * 1024, "{packed} bytes");
    }
}
