//! Slots into which the kernel writes many datagrams per call.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_uint, c_void};

use super::Mapping;
use crate::{Credentials, DATAGRAM_BYTES_MAX};

/// From the start of one slot to the start of the next. More than the slot's 64 KiB for two reasons: with a power
/// of two all slots would compete for the same few lines of the first-level cache when packets are small, and for
/// the same colours of the second level when memory happens to be contiguous. One page and five lines more spread
/// them over all sets.
const SLOT_STRIDE: usize = DATAGRAM_BYTES_MAX + 4096 + 5 * 64;

/// Space for one control message with credentials and no more: attached descriptors find no space, so the kernel closes them instead of
/// installing them here.
const CONTROL_BYTES: usize = 32;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

const _: () = {
    // SAFETY: pure arithmetic.
    assert!(unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize == CONTROL_BYTES);
    assert!(SLOT_STRIDE.is_multiple_of(64));
};

/// Data to request from the kernel beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ancillary {
    /// Nothing.
    None,
    /// The drop counter, with the first datagram of a batch only. The kernel attaches it (once it is not zero) to
    /// every datagram that has room for it. Measured with batches of 48 small datagrams after a drop: room with all
    /// of them costs 12 % of the call, room with the first 1 %, as much as asking by SO_MEMINFO per batch, which
    /// would be a system call more.
    Drops,
    /// The sender's credentials with every datagram.
    Credentials,
}

/// One received datagram: where it lies in the memory of the ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketEntry {
    pub start: u32,
    pub length: u32,
    /// Bytes of the datagram behind these, which are not here.
    pub lost: u32,
    pub origin: Option<Credentials>,
}

/// The receive ring: memory of `slots` datagrams and what `recvmmsg` needs to fill it.
///
/// A batch always starts at the first slot, so a listener with short batches uses only the first slots, which stay
/// in the cache, and memory is resident only as far as batches have ever reached.
pub struct DatagramRing {
    memory: Mapping,
    /// Without room for control messages, except the first one while a drop counter is asked for.
    plain: Box<[libc::mmsghdr]>,
    /// Each with room for credentials.
    identifying: Box<[libc::mmsghdr]>,
    /// Pointed to by both, one each.
    _vectors: Box<[libc::iovec]>,
    /// Pointed to by `identifying`, one each, and by the first of `plain`.
    controls: Box<[Control]>,
    /// Memory in which the kernel writes the sender of each datagram, if senders are wanted. Allocated at the first use.
    sources: Box<[libc::sockaddr_in6]>,
    entries: Box<[PacketEntry]>,
}

// SAFETY: the raw pointers in the headers and vectors lead to memory this value owns on the heap and in its mapping,
// which does not move when the value does.
unsafe impl Send for DatagramRing {}

impl DatagramRing {
    pub fn new(slots: usize) -> io::Result<Self> {
        let memory = Mapping::new(slots * SLOT_STRIDE)?;
        let mut vectors: Box<[libc::iovec]> = (0..slots)
            .map(|slot| libc::iovec {
                // SAFETY: `slot * SLOT_STRIDE` is inside the mapping.
                iov_base: unsafe { memory.pointer().add(slot * SLOT_STRIDE) }.cast::<c_void>(),
                iov_len: DATAGRAM_BYTES_MAX,
            })
            .collect();
        let mut controls: Box<[Control]> = vec![Control([0; CONTROL_BYTES]); slots].into();
        let header = |vector: &mut libc::iovec, control: Option<&mut Control>| {
            // SAFETY: plain numbers and pointers, for which all zeroes is a value.
            let mut header: libc::mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            if let Some(control) = control {
                header.msg_hdr.msg_control = (&raw mut *control).cast::<c_void>();
                header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            }
            header
        };
        let plain = vectors.iter_mut().map(|vector| header(vector, None)).collect();
        let identifying = vectors
            .iter_mut()
            .zip(&mut controls)
            .map(|(vector, control)| header(vector, Some(control)));
        let identifying = identifying.collect();
        let entries = vec![PacketEntry::default(); slots].into();
        Ok(Self {
            memory,
            plain,
            identifying,
            _vectors: vectors,
            controls,
            sources: Box::default(),
            entries,
        })
    }

    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    /// Receives up to `limit` datagrams without waiting. Returns how many [`DatagramRing::parts_mut`] entries are
    /// valid and, if it was asked for and attached, the drop counter as it was when the first one was queued.
    pub fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        limit: usize,
        ancillary: Ancillary,
    ) -> io::Result<(usize, Option<u32>)> {
        let headers = if ancillary == Ancillary::Credentials {
            &mut self.identifying
        } else {
            let wanted = ancillary == Ancillary::Drops;
            let first = &mut self.plain[0].msg_hdr;
            first.msg_control = if wanted {
                (&raw mut self.controls[0]).cast::<c_void>()
            } else {
                std::ptr::null_mut()
            };
            first.msg_controllen = if wanted { CONTROL_BYTES as _ } else { 0 };
            &mut self.plain
        };
        let limit = limit.min(headers.len());
        // SAFETY: `limit` headers exist, and each points to one vector, which points to DATAGRAM_BYTES_MAX bytes of
        // the mapping that no one borrows (self is exclusive), and to control memory of the length it names.
        let n = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                limit as c_uint,
                // The last one asks for the length that a datagram had.
                (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC) as _,
                std::ptr::null_mut(),
            )
        };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        let n = n as usize;
        let mut drops = None;
        for (slot, (header, entry)) in headers[..n].iter().zip(&mut self.entries[..n]).enumerate() {
            let length = header.msg_len.min(DATAGRAM_BYTES_MAX as u32);
            *entry = PacketEntry {
                start: (slot * SLOT_STRIDE) as u32,
                length,
                lost: header.msg_len - length,
                origin: None,
            };
        }
        match ancillary {
            Ancillary::None => {}
            Ancillary::Drops => drops = drop_counter(&headers[0].msg_hdr, &self.controls[0]),
            Ancillary::Credentials => {
                for slot in 0..n {
                    let header = &mut headers[slot].msg_hdr;
                    self.entries[slot].origin = credentials(header, &self.controls[slot]);
                    header.msg_controllen = CONTROL_BYTES as _;
                }
            }
        }
        Ok((n, drops))
    }

    /// [`DatagramRing::receive`] that also asks who sent each datagram, for [`DatagramRing::keep`]. Internet sockets only.
    pub fn receive_with_sources(
        &mut self,
        fd: BorrowedFd<'_>,
        limit: usize,
        ancillary: Ancillary,
    ) -> io::Result<(usize, Option<u32>)> {
        if self.sources.is_empty() {
            // SAFETY: plain numbers, for which all zeroes is a value.
            self.sources = vec![unsafe { zeroed() }; self.entries.len()].into();
        }
        for (header, source) in self.plain.iter_mut().zip(&mut self.sources) {
            header.msg_hdr.msg_name = (&raw mut *source).cast::<c_void>();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        }
        let received = self.receive(fd, limit, ancillary);
        // The ring is every listener's, and the others do not want to know.
        for header in &mut self.plain {
            header.msg_hdr.msg_name = std::ptr::null_mut();
            header.msg_hdr.msg_namelen = 0;
        }
        received
    }

    /// Drops those of the first `count` entries that do not pass, judged by source and length. Returns how many remain. The source is
    /// available in batches that were received with sources.
    pub fn keep(&mut self, count: usize, mut passes: impl FnMut(Option<IpAddr>, usize) -> bool) -> usize {
        let mut kept = 0;
        for slot in 0..count {
            let entry = self.entries[slot];
            let source = SourceSlots(&self.sources).get(slot).map(|source| source.ip());
            if passes(source, entry.length as usize) {
                self.entries[kept] = entry;
                self.sources[kept] = self.sources[slot];
                kept += 1;
            }
        }
        kept
    }

    /// The memory entries point into and the entries themselves; those of the last batch are valid.
    pub fn parts_mut(&mut self) -> (&[u8], &mut [PacketEntry]) {
        (&self.memory, &mut self.entries)
    }

    /// The memory, the entries, and where each came from, if the last batch was received with sources.
    pub fn parts(&self) -> (&[u8], &[PacketEntry], SourceSlots<'_>) {
        (&self.memory, &self.entries, SourceSlots(&self.sources))
    }

    /// Gives the memory back to the kernel until the next packet.
    pub fn release(&mut self) {
        self.memory.release();
    }
}

/// Senders of datagrams, slot by slot.
#[derive(Clone, Copy)]
pub struct SourceSlots<'a>(&'a [libc::sockaddr_in6]);

impl SourceSlots<'_> {
    pub const UNKNOWN: SourceSlots<'static> = SourceSlots(&[]);

    /// The sender of the datagram in a slot of the last batch with sources.
    pub fn get(&self, slot: usize) -> Option<SocketAddr> {
        let source = self.0.get(slot)?;
        let address = match c_int::from(source.sin6_family) {
            libc::AF_INET6 => IpAddr::from(source.sin6_addr.s6_addr),
            libc::AF_INET => {
                // SAFETY: an IPv4 address is shorter, needs no more alignment, and every bit pattern is a value of it; the
                // family says that the kernel wrote one.
                let source = unsafe { &*std::ptr::from_ref(source).cast::<libc::sockaddr_in>() };
                IpAddr::from(source.sin_addr.s_addr.to_ne_bytes())
            }
            _ => return None,
        };
        // In both the port is behind the family.
        Some(SocketAddr::new(address, u16::from_be(source.sin6_port)))
    }
}

/// The data of the first control message of a header, if it is of the given kind and long enough.
fn control<'c, const N: usize>(
    header: &libc::msghdr,
    control: &'c Control,
    kind: c_int,
) -> Option<&'c [u8; N]> {
    let needed = size_of::<libc::cmsghdr>() + N;
    if header.msg_controllen < needed {
        return None;
    }
    // SAFETY: control memory is aligned to 8 and longer than a header, of which every bit pattern is a value.
    let found = unsafe { &*control.0.as_ptr().cast::<libc::cmsghdr>() };
    if found.cmsg_level != libc::SOL_SOCKET || found.cmsg_type != kind || found.cmsg_len < needed {
        return None;
    }
    control.0[size_of::<libc::cmsghdr>()..].first_chunk()
}

fn drop_counter(header: &libc::msghdr, memory: &Control) -> Option<u32> {
    control(header, memory, libc::SO_RXQ_OVFL)
        .copied()
        .map(u32::from_ne_bytes)
}

fn credentials(header: &libc::msghdr, memory: &Control) -> Option<Credentials> {
    let bytes: &[u8; 12] = control(header, memory, libc::SCM_CREDENTIALS)?;
    let [p0, p1, p2, p3, u0, u1, u2, u3, g0, g1, g2, g3] = *bytes;
    Some(Credentials {
        pid: i32::from_ne_bytes([p0, p1, p2, p3]),
        uid: u32::from_ne_bytes([u0, u1, u2, u3]),
        gid: u32::from_ne_bytes([g0, g1, g2, g3]),
    })
}
