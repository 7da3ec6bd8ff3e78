//! System calls that the standard library does not wrap, behind safe functions. The only module of this crate with `unsafe`: a floor
//! measured through a layer would not be a floor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Slots for datagrams and everything that `recvmmsg` needs, allocated once.
pub struct ReceiveBatch {
    storage: Vec<u8>,
    slot_stride: usize,
    control: Vec<u8>,
    /// Bytes of control data per slot; zero when none is wanted.
    control_bytes: usize,
    // The headers point to the iovecs, and those to the storage; no vector changes its length.
    _iovecs: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

/// Every datagram fits: the largest over UDP has 65 507 bytes.
pub const SLOT_BYTES: usize = 65_536;
/// Space for a drop counter and credentials, each with its header and padding.
const CONTROL_BYTES: usize = 96;

impl ReceiveBatch {
    pub fn new(slots: usize, with_control: bool) -> ReceiveBatch {
        // A stride of exactly 64 KiB would map the start of every slot to the same few sets of the first-level cache, so that a batch of
        // small datagrams would evict itself.
        let slot_stride = SLOT_BYTES + 1024 + 64;
        let mut storage = vec![0u8; slots * slot_stride];
        let control_bytes = if with_control { CONTROL_BYTES } else { 0 };
        let mut control = vec![0u8; slots * control_bytes];
        let base = storage.as_mut_ptr();
        let mut iovecs: Vec<libc::iovec> = (0..slots)
            .map(|slot| libc::iovec {
                iov_base: base.wrapping_add(slot * slot_stride).cast(),
                iov_len: SLOT_BYTES,
            })
            .collect();
        let first_iovec = iovecs.as_mut_ptr();
        let control_base = control.as_mut_ptr();
        let headers = (0..slots)
            .map(|slot| {
                // SAFETY: mmsghdr is plain data for which all zeroes means: no name, no buffers, no control data.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = first_iovec.wrapping_add(slot);
                header.msg_hdr.msg_iovlen = 1;
                if with_control {
                    header.msg_hdr.msg_control = control_base.wrapping_add(slot * control_bytes).cast();
                    header.msg_hdr.msg_controllen = control_bytes as _;
                }
                header
            })
            .collect();
        ReceiveBatch {
            storage,
            slot_stride,
            control,
            control_bytes,
            _iovecs: iovecs,
            headers,
        }
    }

    /// Waits for one datagram and takes all others that are queued. Returns the number of filled slots.
    pub fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        if self.control_bytes > 0 {
            for header in &mut self.headers {
                header.msg_hdr.msg_controllen = self.control_bytes as _;
            }
        }
        // SAFETY: every header points at an iovec and (if any) control room that live as long as `self`, each
        // describing a slot of its own inside `storage`; nothing else borrows them during the call.
        check(unsafe {
            libc::recvmmsg(
                fd,
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        })
        .map(|filled| filled as usize)
    }

    /// The bytes in a slot filled by the last `receive`.
    #[inline]
    pub fn packet(&self, slot: usize) -> &[u8] {
        let start = slot * self.slot_stride;
        &self.storage[start..start + self.headers[slot].msg_len as usize]
    }

    /// One integer of control data of a slot, if the kernel sent it.
    fn control_value(&self, slot: usize, level: libc::c_int, kind: libc::c_int) -> Option<u32> {
        debug_assert!(!self.control.is_empty());
        let header = &self.headers[slot].msg_hdr;
        // SAFETY: msg_control and msg_controllen were set by `new` and shortened by the kernel, so that the walk stays
        // inside `control`; both kinds asked for carry at least four bytes, read without assuming alignment.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(header);
            while !message.is_null() {
                if (*message).cmsg_level == level && (*message).cmsg_type == kind {
                    return Some(libc::CMSG_DATA(message).cast::<u32>().read_unaligned());
                }
                message = libc::CMSG_NXTHDR(header, message);
            }
        }
        None
    }

    /// Number of datagrams that the kernel had dropped when it queued the one in this slot.
    #[inline]
    pub fn drops(&self, slot: usize) -> Option<u32> {
        self.control_value(slot, libc::SOL_SOCKET, libc::SO_RXQ_OVFL)
    }
}
