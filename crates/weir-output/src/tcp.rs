//! What TCP says of a stream that ends too early.

use std::io;

use tokio::net::TcpStream;

/// With `true`, and until it is called with `false`: however this connection ends, the death of the process included, its peer
/// sees a reset and not the end of the stream. Protocols of lines need it: the beginning of a line is often another line, and an
/// orderly end says that what came last is all there was to say. What the kernel still holds is thrown away with a reset.
pub fn reset_on_close(stream: &TcpStream, reset: bool) -> io::Result<()> {
    if reset {
        return stream.set_zero_linger();
    }
    // Deprecated for times above zero, which block; this is the way back from zero.
    #[expect(deprecated)]
    stream.set_linger(None)
}
