//! System calls the standard library does not wrap, each behind a safe function.
//!
//! This is the one place of the crate with `unsafe`: the need is the kernel interface itself (`recvmmsg` into a
//! preallocated ring, socket options, `epoll`, credentials). Nothing here decides anything; errors are returned
//! as the kernel gave them.
#![allow(unsafe_code)]

mod mapping;
mod ring;

pub use mapping::Mapping;
pub use ring::{Ancillary, DatagramRing, PacketEntry, SourceSlots};

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_int, c_void, socklen_t};

use crate::Credentials;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A non-blocking socket that is not inherited by child processes.
pub fn socket(domain: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointers; the descriptor it returns is new and has no other owner.
    unsafe {
        let fd = check(libc::socket(
            domain,
            kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            0,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Sets an integer socket option.
pub fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    unsafe {
        check(libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        ))?;
    }
    Ok(())
}

/// Reads an integer socket option.
pub fn get_option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    // SAFETY: the pointers describe `value` and `length`, which outlive the call.
    unsafe {
        check(libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast::<c_void>(),
            &raw mut length,
        ))?;
    }
    Ok(value)
}

/// The kernel's drop counter of a socket (`sk_drops`), which wraps around at 2^32.
pub fn socket_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // Not in the `libc` crate: the index of the drop counter in the array that SO_MEMINFO fills (linux/sock_diag.h).
    const SK_MEMINFO_DROPS: usize = 8;
    const SK_MEMINFO_VARS: usize = 9;
    let mut values = [0u32; SK_MEMINFO_VARS];
    let mut length = size_of::<[u32; SK_MEMINFO_VARS]>() as socklen_t;
    // SAFETY: the pointers describe `values` and `length`, which outlive the call.
    unsafe {
        check(libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast::<c_void>(),
            &raw mut length,
        ))?;
    }
    if (length as usize) < size_of::<[u32; SK_MEMINFO_VARS]>() {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    Ok(values[SK_MEMINFO_DROPS])
}

/// The credentials of the process that connected, taken by the kernel when it did.
pub fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<Credentials> {
    // SAFETY: `ucred` is plain numbers, for which all zeroes is a value; the pointers outlive the call.
    unsafe {
        let mut peer: libc::ucred = zeroed();
        let mut length = size_of::<libc::ucred>() as socklen_t;
        check(libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast::<c_void>(),
            &raw mut length,
        ))?;
        Ok(Credentials {
            pid: peer.pid,
            uid: peer.uid,
            gid: peer.gid,
        })
    }
}

/// Makes the kernel drop everything that arrives from now on. Queued data stays readable.
pub fn attach_drop_all_filter(fd: BorrowedFd<'_>) -> io::Result<()> {
    // One instruction of classic BPF: return, with a constant length of zero to keep.
    let mut code = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: code.as_mut_ptr(),
    };
    // SAFETY: `program` and the instruction it points to outlive the call; the kernel copies both.
    unsafe {
        check(libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast::<c_void>(),
            size_of::<libc::sock_fprog>() as socklen_t,
        ))?;
    }
    Ok(())
}

/// Makes closing a TCP connection, or the end of the process, reset it at once.
pub fn reset_on_close(fd: BorrowedFd<'_>) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the pointer and length describe `linger`, which outlives the call.
    unsafe {
        check(libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast::<c_void>(),
            size_of::<libc::linger>() as socklen_t,
        ))?;
    }
    Ok(())
}

/// Waits until every processor has left the kernel's receive path, so that packets that passed a socket before a filter was attached are in
/// its queue.
pub fn wait_for_running_receivers() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: c_int = 1;
    // SAFETY: `membarrier` takes two integers (and ignores the third for this command).
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Shuts the reading side.
pub fn shutdown_read(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RD) }).map(drop)
}

/// Binds to an internet address.
pub fn bind_inet(fd: BorrowedFd<'_>, address: &SocketAddr) -> io::Result<()> {
    // SAFETY: both structures are plain numbers, completely written here, and outlive the call.
    unsafe {
        match address {
            SocketAddr::V4(v4) => {
                let mut raw: libc::sockaddr_in = zeroed();
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = v4.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                bind_raw(fd, (&raw const raw).cast(), size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                let mut raw: libc::sockaddr_in6 = zeroed();
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = v6.port().to_be();
                raw.sin6_flowinfo = v6.flowinfo();
                raw.sin6_addr.s6_addr = v6.ip().octets();
                raw.sin6_scope_id = v6.scope_id();
                bind_raw(fd, (&raw const raw).cast(), size_of::<libc::sockaddr_in6>())
            }
        }
    }
}

/// SAFETY: `address` must point to `length` readable bytes.
unsafe fn bind_raw(fd: BorrowedFd<'_>, address: *const libc::sockaddr, length: usize) -> io::Result<()> {
    // SAFETY: by the contract of this function.
    check(unsafe { libc::bind(fd.as_raw_fd(), address, length as socklen_t) }).map(drop)
}

fn unix_address(path: &Path) -> io::Result<(libc::sockaddr_un, usize)> {
    // SAFETY: plain numbers and bytes, for which all zeroes is a value.
    let mut raw: libc::sockaddr_un = unsafe { zeroed() };
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= raw.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in raw.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let start = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    if weir_units::is_abstract(path) {
        // An abstract name begins with a zero byte and ends with the address.
        raw.sun_path[0] = 0;
        return Ok((raw, start + bytes.len()));
    }
    Ok((raw, start + bytes.len() + 1))
}

/// Binds to a path, which creates the socket file.
pub fn bind_unix(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (raw, length) = unix_address(path)?;
    // SAFETY: `length` bytes of `raw` are readable: it counts the family, the path and its terminating zero.
    unsafe { bind_raw(fd, (&raw const raw).cast(), length) }
}

/// Connects to a path.
pub fn connect_unix(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (raw, length) = unix_address(path)?;
    // SAFETY: `length` bytes of `raw` are readable, as above.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), length as socklen_t) }).map(drop)
}

/// Sets the mode a socket file will get from `bind`, before it exists (the process mask still applies).
pub fn preset_mode(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::fchmod(fd.as_raw_fd(), mode) }).map(drop)
}

/// Changes owner and group of the file that was opened, also of one that was opened as a place only.
pub fn change_owner(fd: BorrowedFd<'_>, owner: Option<u32>, group: Option<u32>) -> io::Result<()> {
    // All bits set leave an id as it is.
    let (owner, group) = (owner.unwrap_or(u32::MAX), group.unwrap_or(u32::MAX));
    // SAFETY: the empty name is a constant that ends with a zero.
    check(unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), owner, group, libc::AT_EMPTY_PATH) })
        .map(drop)
}

/// The user whose rights this process has.
pub fn effective_user() -> u32 {
    // SAFETY: no pointers, cannot fail.
    unsafe { libc::geteuid() }
}

/// Starts listening for connections.
pub fn listen(fd: BorrowedFd<'_>, backlog: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Accepts one connection, non-blocking and not inherited, and says from which address it is if it is over the network.
pub fn accept(fd: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    // SAFETY: `sockaddr_storage` is large enough for every address, all zeroes is a value of it, and it outlives the call;
    // the descriptor is new and owned here.
    unsafe {
        let mut peer: libc::sockaddr_storage = zeroed();
        let mut length = size_of::<libc::sockaddr_storage>() as socklen_t;
        let fd = check(libc::accept4(
            fd.as_raw_fd(),
            (&raw mut peer).cast(),
            &raw mut length,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        ))?;
        Ok((OwnedFd::from_raw_fd(fd), internet_address(&peer)))
    }
}

/// The address that a connection comes from; `None` if it is not one of the internet.
pub fn peer_address(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    let peer = rustix::net::getpeername(fd).ok()??;
    SocketAddr::try_from(peer).ok()
}

/// The address written by the kernel; `None` if it is not an internet address.
fn internet_address(raw: &libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: `sockaddr_storage` is aligned and large enough for both, every bit pattern is a value of them, and the family
    // says which one the kernel wrote.
    unsafe {
        match c_int::from(raw.ss_family) {
            libc::AF_INET => {
                let found = *std::ptr::from_ref(raw).cast::<libc::sockaddr_in>();
                let address = IpAddr::from(found.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(address, u16::from_be(found.sin_port)))
            }
            libc::AF_INET6 => {
                let found = *std::ptr::from_ref(raw).cast::<libc::sockaddr_in6>();
                let address = IpAddr::from(found.sin6_addr.s6_addr);
                Some(SocketAddr::new(address, u16::from_be(found.sin6_port)))
            }
            _ => None,
        }
    }
}

/// Receives without waiting.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe `buffer`, which is borrowed for the call.
    let n = unsafe {
        libc::recv(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast::<c_void>(),
            buffer.len(),
            libc::MSG_DONTWAIT,
        )
    };
    if n < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(n as usize)
    }
}

/// Sends without waiting, and without a signal if the peer has closed.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe `bytes`, which is borrowed for the call.
    let sent = unsafe {
        libc::send(
            fd.as_raw_fd(),
            bytes.as_ptr().cast::<c_void>(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(sent as usize)
    }
}

/// The port a socket is bound to.
pub fn local_port(fd: BorrowedFd<'_>) -> io::Result<u16> {
    // SAFETY: `sockaddr_storage` is large and aligned enough for every address, all zeroes is a value of it and of
    // the two it is read as; the family says which one the kernel wrote.
    unsafe {
        let mut raw: libc::sockaddr_storage = zeroed();
        let mut length = size_of::<libc::sockaddr_storage>() as socklen_t;
        check(libc::getsockname(
            fd.as_raw_fd(),
            (&raw mut raw).cast(),
            &raw mut length,
        ))?;
        match c_int::from(raw.ss_family) {
            libc::AF_INET => Ok(u16::from_be(
                (*(&raw const raw).cast::<libc::sockaddr_in>()).sin_port,
            )),
            libc::AF_INET6 => Ok(u16::from_be(
                (*(&raw const raw).cast::<libc::sockaddr_in6>()).sin6_port,
            )),
            _ => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }
}

/// Nanoseconds of the monotonic clock.
pub fn monotonic_nanos() -> u64 {
    // SAFETY: plain numbers; the pointer outlives the call.
    unsafe {
        let mut now: libc::timespec = zeroed();
        // Cannot fail: the clock exists on every Linux and the pointer is good.
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// An epoll instance whose events carry a number each.
pub struct Epoll {
    fd: OwnedFd,
    events: Box<[libc::epoll_event]>,
}

impl Epoll {
    pub fn new(events_per_wait: usize) -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is new and owned here.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self {
            fd,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; events_per_wait].into(),
        })
    }

    fn control(&self, operation: c_int, fd: BorrowedFd<'_>, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` outlives the call; both descriptors are open.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) })
            .map(drop)
    }

    /// Reports `token` whenever `fd` is readable.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, token)
    }

    /// Reports `fd` no more.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    /// Waits at most `timeout_ms` (-1: without limit) and returns how many tokens [`Epoll::token`] has.
    pub fn wait(&mut self, timeout_ms: c_int) -> io::Result<usize> {
        // SAFETY: the pointer and count describe `events`, which is borrowed for the call.
        let n = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as c_int,
                timeout_ms,
            )
        };
        check(n).map(|n| n as usize)
    }

    pub fn token(&self, index: usize) -> u64 {
        self.events[index].u64
    }
}

/// A counter another thread can raise to make a descriptor readable.
pub fn event_counter() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new and owned here.
    unsafe {
        Ok(OwnedFd::from_raw_fd(check(libc::eventfd(
            0,
            libc::EFD_CLOEXEC | libc::EFD_NONBLOCK,
        ))?))
    }
}

/// The numeric id of a user (or, with `group`, a group) by name; `None` if there is none of that name.
pub fn lookup_id(name: &str, group: bool) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else {
        return Ok(None);
    };
    let mut buffer = vec![0 as libc::c_char; 1024];
    loop {
        // SAFETY: name, record, buffer and result outlive the calls, and the buffer's length is given; the records
        // hold pointers, for which null is a value.
        let (error, id) = unsafe {
            if group {
                let mut record: libc::group = zeroed();
                let mut found = std::ptr::null_mut();
                let error = libc::getgrnam_r(
                    name.as_ptr(),
                    &raw mut record,
                    buffer.as_mut_ptr(),
                    buffer.len(),
                    &raw mut found,
                );
                (error, (!found.is_null()).then_some(record.gr_gid))
            } else {
                let mut record: libc::passwd = zeroed();
                let mut found = std::ptr::null_mut();
                let error = libc::getpwnam_r(
                    name.as_ptr(),
                    &raw mut record,
                    buffer.as_mut_ptr(),
                    buffer.len(),
                    &raw mut found,
                );
                (error, (!found.is_null()).then_some(record.pw_uid))
            }
        };
        match error {
            0 | libc::ENOENT | libc::ESRCH => return Ok(id),
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The number by which the kernel's tables name a socket.
pub fn socket_inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: plain numbers; the pointer outlives the call.
    unsafe {
        let mut found: libc::stat = zeroed();
        check(libc::fstat(fd.as_raw_fd(), &raw mut found))?;
        Ok(found.st_ino)
    }
}

/// Sleeps for less than a second, or until a signal comes.
pub fn sleep_nanos(nanos: u64) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: nanos.min(999_999_999) as libc::c_long,
    };
    // SAFETY: the pointer outlives the call; null means that the rest is not wanted.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}
