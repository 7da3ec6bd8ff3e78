//! Batches of datagrams in one system call. The only unsafe code of the crate. It is needed: one call per packet costs twice the CPU time
//! of `sendmmsg` on small packets.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Maximum packets per system call.
pub const BATCH: usize = 64;

/// Position of a packet in a buffer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    pub off: usize,
    pub len: usize,
    pub messages: u32,
}

/// Reusable headers for `sendmmsg`.
pub struct SendBatch {
    iovecs: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: all-zero is a valid mmsghdr: null pointers with zero lengths.
    unsafe { std::mem::zeroed() }
}

// SAFETY: every `send` writes the pointers and reads them only during the call; between calls they are unused.
unsafe impl Send for SendBatch {}

impl SendBatch {
    pub fn new() -> SendBatch {
        SendBatch {
            iovecs: vec![
                libc::iovec {
                    iov_base: std::ptr::null_mut(),
                    iov_len: 0,
                };
                BATCH
            ],
            headers: (0..BATCH).map(|_| empty_header()).collect(),
        }
    }

    /// Sends packets of `buffer` on a connected socket without blocking. Returns how many were sent; an error only if none.
    pub fn send(&mut self, socket: BorrowedFd<'_>, buffer: &[u8], spans: &[Span]) -> io::Result<usize> {
        let count = spans.len().min(BATCH);
        for (index, span) in spans[..count].iter().enumerate() {
            let packet = &buffer[span.off..span.off + span.len];
            self.iovecs[index] = libc::iovec {
                iov_base: packet.as_ptr().cast_mut().cast(),
                iov_len: packet.len(),
            };
        }
        for index in 0..count {
            let header = &mut self.headers[index].msg_hdr;
            header.msg_iov = &raw mut self.iovecs[index];
            header.msg_iovlen = 1;
        }
        // SAFETY: `count` headers are initialised; each points at one iovec of this struct, which points into `buffer`,
        // borrowed for the whole call. The kernel only reads through iov_base when sending.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(sent as usize)
        }
    }
}

/// Maximum bytes of joined datagrams in one call: the payload of one IPv4 packet.
const GLUED_MAX: usize = 65_507;

/// Maximum datagrams that the kernel splits one call into.
const GLUED_PACKETS_MAX: usize = 64;

/// Space for one control message with a `u16`, aligned for the kernel.
#[repr(C, align(8))]
struct SegmentControl([u8; 24]);

impl SendBatch {
    /// Sends equal-sized adjacent datagrams of `buffer` in one call, which the kernel splits (`UDP_SEGMENT`). Returns how many were sent;
    /// an error only if none.
    pub fn send_glued(&mut self, socket: BorrowedFd<'_>, buffer: &[u8], spans: &[Span]) -> io::Result<usize> {
        let first = spans[0];
        let count = spans
            .len()
            .min(GLUED_PACKETS_MAX)
            .min((GLUED_MAX / first.len.max(1)).max(1));
        let glued = &buffer[first.off..first.off + count * first.len];
        debug_assert!(spans[..count].iter().all(|s| s.len == first.len));
        let mut iovec = libc::iovec {
            iov_base: glued.as_ptr().cast_mut().cast(),
            iov_len: glued.len(),
        };
        let mut control = SegmentControl([0; 24]);
        let segment = u16::try_from(first.len).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: an all-zero msghdr is valid. The control buffer is aligned and holds CMSG_SPACE(2) = 24 bytes, so the
        // header and its two bytes of data lie within it; the kernel only reads through these pointers, all of which
        // outlive the call.
        let sent = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut iovec;
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut control.0).cast();
            header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
            let part = libc::CMSG_FIRSTHDR(&raw const header);
            (*part).cmsg_level = libc::SOL_UDP;
            (*part).cmsg_type = libc::UDP_SEGMENT;
            (*part).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(part).cast::<u16>().write_unaligned(segment);
            libc::sendmsg(
                socket.as_raw_fd(),
                &raw const header,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(count)
        }
    }
}

/// Counts datagrams without reading them: `MSG_TRUNC` returns each length, and the kernel copies nothing into an empty buffer. A receiver
/// that copies 8 KiB per packet takes about as long as the sender, and would dominate the measurement.
pub struct CountBatch {
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the headers hold no pointer but null.
unsafe impl Send for CountBatch {}

impl CountBatch {
    /// Receives up to `count` packets per call.
    pub fn new(count: usize) -> CountBatch {
        CountBatch {
            headers: (0..count).map(|_| empty_header()).collect(),
        }
    }

    /// Receives at least one and at most `most` packets. Returns their number and bytes. With `wait` it blocks for the first one, unless
    /// the socket is non-blocking; without `wait` it returns `WouldBlock` if there is none.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, most: usize, wait: bool) -> io::Result<(usize, usize)> {
        let count = self.headers.len().min(most);
        let waiting = if wait {
            libc::MSG_WAITFORONE
        } else {
            libc::MSG_DONTWAIT
        };
        // SAFETY: `count` headers are initialised, without iovecs, names or control data: the kernel writes lengths and flags
        // alone. A null timeout is allowed.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                waiting | libc::MSG_TRUNC,
                std::ptr::null_mut(),
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        let packets = received as usize;
        let bytes = self.headers[..packets]
            .iter()
            .map(|header| header.msg_len as usize)
            .sum();
        Ok((packets, bytes))
    }
}
