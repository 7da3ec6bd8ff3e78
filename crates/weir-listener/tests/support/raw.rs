//! System calls for tests that the standard library does not wrap. The one place of the tests with `unsafe`.
#![allow(unsafe_code, dead_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets the limit of open descriptors of this process, and returns what was allowed of it. To lower it is for
/// subprocesses.
pub fn limit_descriptors(soft: u64) -> u64 {
    // SAFETY: plain numbers; the pointers outlive the calls.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = soft.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        limit.rlim_cur
    }
}

/// Gives up root for this process. For subprocesses.
pub fn become_nobody() {
    // SAFETY: no pointers but an empty list of groups.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setgid(65534), 0);
        assert_eq!(libc::setuid(65534), 0);
    }
}

pub fn user_and_group() -> (u32, u32) {
    // SAFETY: no pointers, cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Bytes a TCP socket has been given and the peer's kernel has not acknowledged.
pub fn unacknowledged_bytes(fd: BorrowedFd<'_>) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the pointer outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    bytes as u64
}

/// Connects over TCP from an address of this machine.
pub fn connect_from(host: std::net::Ipv4Addr, to: std::net::SocketAddr) -> std::net::TcpStream {
    let std::net::SocketAddr::V4(to) = to else {
        panic!("{to} is not IPv4")
    };
    let raw = |host: std::net::Ipv4Addr, port: u16| {
        // SAFETY: plain numbers, for which all zeroes is a value.
        let mut raw: libc::sockaddr_in = unsafe { zeroed() };
        raw.sin_family = libc::AF_INET as libc::sa_family_t;
        raw.sin_port = port.to_be();
        raw.sin_addr.s_addr = u32::from_ne_bytes(host.octets());
        raw
    };
    let (from, to) = (raw(host, 0), raw(*to.ip(), to.port()));
    let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: the pointers and the length describe locals; the descriptor is new and owned by the stream.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        assert_eq!(libc::bind(fd, (&raw const from).cast(), length), 0);
        assert_eq!(libc::connect(fd, (&raw const to).cast(), length), 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}

/// Makes `close` send a reset.
pub fn reset_on_close(fd: BorrowedFd<'_>) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: the pointer and length describe `linger`.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

/// Sends bytes with a descriptor attached.
pub fn send_with_descriptor(socket: BorrowedFd<'_>, bytes: &[u8], attached: BorrowedFd<'_>) {
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        fd: libc::c_int,
        padding: libc::c_int,
    }
    // SAFETY: all pointers lead to locals that outlive the call; the control message is one header and one
    // descriptor, as its length says.
    let result = unsafe {
        let mut control: Control = zeroed();
        control.header.cmsg_len = libc::CMSG_LEN(4) as _;
        control.header.cmsg_level = libc::SOL_SOCKET;
        control.header.cmsg_type = libc::SCM_RIGHTS;
        control.fd = attached.as_raw_fd();
        let mut vector = libc::iovec {
            iov_base: bytes.as_ptr() as *mut _,
            iov_len: bytes.len(),
        };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>() as _;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
    };
    assert_eq!(result, bytes.len() as isize, "{}", io::Error::last_os_error());
}

/// Waits until every datagram sent over loopback before this call has reached its socket. They wait in one queue for
/// each processor, so one more is sent from each, and received.
pub fn wait_for_loopback() {
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(super::DEADLINE)).unwrap();
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    // SAFETY: a processor set is plain bits, of which all zeroes is a value; pointers and sizes describe locals.
    unsafe {
        let size = size_of::<libc::cpu_set_t>();
        let mut allowed: libc::cpu_set_t = zeroed();
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut allowed), 0);
        for processor in (0..libc::CPU_SETSIZE as usize).filter(|at| libc::CPU_ISSET(*at, &allowed)) {
            let mut one: libc::cpu_set_t = zeroed();
            libc::CPU_SET(processor, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size, &raw const one), 0);
            sender.send(b"x").unwrap();
            receiver.recv(&mut [0]).unwrap();
        }
        assert_eq!(libc::sched_setaffinity(0, size, &raw const allowed), 0);
    }
}
