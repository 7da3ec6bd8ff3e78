//! Socket functions that the standard library lacks.

pub use crate::sys::{drops, enable_counters};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Requests a receive buffer and returns the granted size. The kernel doubles the request for its bookkeeping.
pub fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<usize> {
    let (socket, bytes) = (socket.as_fd(), bytes.min(i32::MAX as usize));
    // The first call ignores the machine's limit and needs privileges.
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    Ok(sockopt::socket_recv_buffer_size(socket)?)
}

/// Requests a send buffer and returns the granted size.
pub fn set_send_buffer(socket: impl AsFd, bytes: usize) -> io::Result<usize> {
    let (socket, bytes) = (socket.as_fd(), bytes.min(i32::MAX as usize));
    sockopt::set_socket_send_buffer_size(socket, bytes)?;
    Ok(sockopt::socket_send_buffer_size(socket)?)
}

/// Ends reading from a socket: queued data can still be read, then reads return zero bytes. Also works on unconnected UDP sockets, where
/// the kernel wakes the readers although it returns ENOTCONN.
pub fn shutdown_read(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Read);
}

/// Whether data or a connection is waiting.
pub fn is_readable(socket: &impl AsFd) -> bool {
    let mut entries = [PollFd::new(socket, PollFlags::IN)];
    let at_once = Timespec::default();
    rustix::event::poll(&mut entries, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Waits until the socket is writable, at most `timeout`. Also returns true for a failed socket: the next send reports the error.
pub fn wait_writable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut entries = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    match rustix::event::poll(&mut entries, Some(&timeout)) {
        Err(Errno::INTR) => Ok(false),
        other => Ok(other? > 0),
    }
}
