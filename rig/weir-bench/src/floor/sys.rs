//! System calls that the standard library does not wrap, behind safe functions. The only module of this crate with `unsafe`: a floor
//! measured through a layer would not be a floor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

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
/// Space for a drop counter, a segment size and credentials, each with its header and padding.
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

    /// The size of the joined datagrams in this slot, if there are several.
    #[inline]
    pub fn segment_bytes(&self, slot: usize) -> Option<usize> {
        self.control_value(slot, libc::SOL_UDP, libc::UDP_GRO)
            .map(|bytes| bytes as usize)
    }
}

/// A ring of provided buffers and one multishot receive on a socket: the kernel fills buffers without further requests.
pub struct Uring {
    // Dropped first, which ends the kernel's use of the two regions below.
    ring: io_uring::IoUring,
    entries: Region,
    storage: Region,
    slots: u16,
    tail: u16,
    armed: bool,
    fd: RawFd,
    ready: Vec<(u16, u32)>,
    /// Readable once the run is over. Shutting down a Unix socket does not end a non-blocking receive, so the ring needs a separate
    /// wake-up.
    _wake: OwnedFd,
    woken: bool,
    pub calls: u64,
}

const RECEIVE: u64 = 0;
const WAKE: u64 = 1;

/// An anonymous mapping: page aligned, zeroed, touched only as far as used.
struct Region {
    start: *mut u8,
    bytes: usize,
}

impl Region {
    fn new(bytes: usize) -> io::Result<Region> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Region {
            start: start.cast(),
            bytes,
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size and nothing refers to it any more.
        unsafe {
            libc::munmap(self.start.cast(), self.bytes);
        }
    }
}

const BUFFER_GROUP: u16 = 0;

impl Uring {
    /// `slots` must be a power of two; `wake` becomes readable when the run is over.
    pub fn new(fd: RawFd, slots: u16, wake: OwnedFd) -> io::Result<Uring> {
        assert!(slots.is_power_of_two());
        let ring = io_uring::IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(u32::from(slots) * 2)
            .build(8)?;
        let poll = io_uring::opcode::PollAdd::new(io_uring::types::Fd(wake.as_raw_fd()), libc::POLLIN as u32)
            .build()
            .user_data(WAKE);
        let entries = Region::new(usize::from(slots) * size_of::<io_uring::types::BufRingEntry>())?;
        let storage = Region::new(usize::from(slots) * SLOT_BYTES)?;
        // SAFETY: the region is page aligned, large enough for `slots` entries, and outlives the ring (field order).
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(entries.start as u64, slots, BUFFER_GROUP, 0)?;
        }
        let mut uring = Uring {
            ring,
            entries,
            storage,
            slots,
            tail: 0,
            armed: false,
            fd,
            ready: Vec::with_capacity(usize::from(slots) * 2),
            _wake: wake,
            woken: false,
            calls: 0,
        };
        // SAFETY: the entry refers to a descriptor this structure owns, and to no memory.
        unsafe {
            uring
                .ring
                .submission()
                .push(&poll)
                .map_err(|_| io::Error::other("the submission queue is full"))?;
        }
        for slot in 0..slots {
            uring.give_back(slot);
        }
        uring.publish();
        Ok(uring)
    }

    /// Returns a buffer to the kernel; takes effect with `publish`.
    fn give_back(&mut self, slot: u16) {
        let index = self.tail & (self.slots - 1);
        let entries: *mut io_uring::types::BufRingEntry = self.entries.start.cast();
        // SAFETY: `index` is below `slots`; the kernel does not read the entry before the tail passes it, and the
        // setters leave the tail (which shares memory with the first entry's last field) alone.
        unsafe {
            let entry = &mut *entries.add(usize::from(index));
            entry.set_addr(self.storage.start.add(usize::from(slot) * SLOT_BYTES) as u64);
            entry.set_len(SLOT_BYTES as u32);
            entry.set_bid(slot);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        let entries: *const io_uring::types::BufRingEntry = self.entries.start.cast();
        // SAFETY: the tail lies inside the region; the kernel reads it with acquire, so entries written before are seen.
        unsafe {
            let tail = io_uring::types::BufRingEntry::tail(entries).cast_mut();
            std::sync::atomic::AtomicU16::from_ptr(tail)
                .store(self.tail, std::sync::atomic::Ordering::Release);
        }
    }

    /// Waits for one datagram and takes all others that are queued. Returns the number of packets; none when the run is over and the socket
    /// is empty.
    pub fn receive(&mut self) -> io::Result<usize> {
        if !self.ready.is_empty() {
            for index in 0..self.ready.len() {
                let (slot, _) = self.ready[index];
                if slot < self.slots {
                    self.give_back(slot);
                }
            }
            self.ready.clear();
            self.publish();
        }
        loop {
            if !self.armed {
                let receive = io_uring::opcode::RecvMulti::new(io_uring::types::Fd(self.fd), BUFFER_GROUP)
                    .build()
                    .user_data(RECEIVE);
                // SAFETY: the entry refers to a descriptor and a buffer group only, no memory of ours.
                unsafe {
                    self.ring
                        .submission()
                        .push(&receive)
                        .map_err(|_| io::Error::other("the submission queue is full"))?;
                }
                self.armed = true;
            }
            self.calls += 1;
            if self.woken {
                // Far more than a receive takes if something is queued.
                let patience = io_uring::types::Timespec::from(Duration::from_millis(20));
                let patience = io_uring::types::SubmitArgs::new().timespec(&patience);
                match self.ring.submitter().submit_with_args(1, &patience) {
                    Err(error) if error.raw_os_error() == Some(libc::ETIME) => return Ok(0),
                    other => other?,
                };
            } else {
                self.ring.submit_and_wait(1)?;
            }
            let mut failed = None;
            for completion in self.ring.completion() {
                if completion.user_data() == WAKE {
                    self.woken = true;
                    continue;
                }
                let more = io_uring::cqueue::more(completion.flags());
                self.armed &= more;
                match (
                    completion.result(),
                    io_uring::cqueue::buffer_select(completion.flags()),
                ) {
                    (bytes, Some(slot)) if bytes >= 0 => self.ready.push((slot, bytes as u32)),
                    // The end of reading looks like an empty datagram; only the wake-up distinguishes them.
                    (bytes, None) if bytes >= 0 => {
                        if self.woken {
                            return Ok(0);
                        }
                        self.ready.push((self.slots, 0));
                    }
                    // Out of buffers: they return with the next call, which starts the receive again.
                    (error, _) if -error == libc::ENOBUFS => {}
                    (error, _) => failed = Some(io::Error::from_raw_os_error(-error)),
                }
            }
            if !self.ready.is_empty() {
                return Ok(self.ready.len());
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    /// The bytes of a datagram of the last `receive`.
    #[inline]
    pub fn packet(&self, index: usize) -> &[u8] {
        let (slot, bytes) = self.ready[index];
        if slot >= self.slots {
            return &[];
        }
        assert!(bytes as usize <= SLOT_BYTES);
        // SAFETY: slot and length lie inside the storage; the kernel owns the buffer again only after the next
        // `receive`, which takes `self` mutably.
        unsafe {
            std::slice::from_raw_parts(
                self.storage.start.add(usize::from(slot) * SLOT_BYTES),
                bytes as usize,
            )
        }
    }
}

/// Masks of the newlines, colons and bars among 64 bytes; the first byte is the lowest bit.
#[derive(Clone, Copy, Default)]
pub struct Masks {
    pub newline: u64,
    pub colon: u64,
    pub bar: u64,
}

#[cfg(target_arch = "x86_64")]
#[inline]
pub fn masks(block: &[u8; 64]) -> Masks {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    let mut masks = Masks::default();
    // SAFETY: SSE2 belongs to the baseline of this architecture, and no pointer is involved.
    unsafe {
        let newline = _mm_set1_epi8(b'\n' as i8);
        let colon = _mm_set1_epi8(b':' as i8);
        let bar = _mm_set1_epi8(b'|' as i8);
        for (index, quarter) in block.as_chunks::<16>().0.iter().enumerate() {
            let (low, high) = quarter.split_at(8);
            let bytes = _mm_set_epi64x(
                i64::from_le_bytes(high.try_into().expect("eight bytes")),
                i64::from_le_bytes(low.try_into().expect("eight bytes")),
            );
            let mask = |needle| (_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, needle)) as u64) << (16 * index);
            masks.newline |= mask(newline);
            masks.colon |= mask(colon);
            masks.bar |= mask(bar);
        }
    }
    masks
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn masks(block: &[u8; 64]) -> Masks {
    let mut masks = Masks::default();
    for (index, &byte) in block.iter().enumerate() {
        masks.newline |= u64::from(byte == b'\n') << index;
        masks.colon |= u64::from(byte == b':') << index;
        masks.bar |= u64::from(byte == b'|') << index;
    }
    masks
}
