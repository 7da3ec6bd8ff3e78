//! Controls how a TCP stream ends early.

use std::io;

use tokio::net::TcpStream;

/// After `true`, and until `false`: however this connection ends, even by the death of the process, its peer sees a reset instead of an
/// orderly end. Line protocols need it: the beginning of a line is often a valid line, and an orderly end would make the peer accept it. A
/// reset discards the data in the kernel.
pub fn reset_on_close(stream: &TcpStream, reset: bool) -> io::Result<()> {
    if reset {
        return stream.set_zero_linger();
    }
    // Deprecated for times above zero, which block; this is the way back from zero.
    #[expect(deprecated)]
    stream.set_linger(None)
}
