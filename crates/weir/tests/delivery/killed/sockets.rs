//! Sockets that hold little, so that a kill finds their writer in the middle of something.
#![allow(unsafe_code)]

use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// Connections to it get small segments and a small buffer here, and with that a small one at their other end.
pub fn narrow(listener: TcpListener) -> TcpListener {
    for (level, option, value) in [
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG, 536),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 4096),
    ] {
        let value: libc::c_int = value;
        // SAFETY: pointer and length describe `value`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                listener.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
    listener
}
