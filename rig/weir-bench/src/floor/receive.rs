//! The receive variants, and their total cost.

use super::Args;
use super::sys::{self, ReceiveBatch};
use crate::common::print_line;
use crate::failure::Failure;
use std::io::{self, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_rig_base::address::{Address, SocketFile, bound, clear_stale_socket};
use weir_rig_base::{clock, process, signal, socket};

/// Method of receiving packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Receive {
    /// One blocking read per packet.
    R1,
    /// recvmmsg into a preallocated ring.
    R2,
    /// r2, with the kernel's drop counter for every datagram and the sender's credentials on Unix sockets.
    R3,
}

impl Receive {
    fn name(self) -> &'static str {
        match self {
            Receive::R1 => "R1",
            Receive::R2 => "R2",
            Receive::R3 => "R3",
        }
    }
}

/// Packets received so far. Written with plain stores by one thread each (or additions, by the threads of a stream listener), read by the
/// thread that waits for the end.
#[derive(Default)]
struct Counters {
    packets: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    calls: AtomicU64,
    drops_seen: AtomicU64,
    stop: AtomicBool,
}

/// Waits until the run is over. Returns when the first and the last traffic was seen, to within a tick.
fn wait_for_end(
    counters: &Counters,
    duration: Option<Duration>,
    until_idle: Duration,
) -> Option<(Instant, Instant)> {
    // A fiftieth of a second bounds the error of elapsed_s and costs about 0.02 % of a core.
    const TICK: Duration = Duration::from_millis(20);
    let start = Instant::now();
    let mut seen = 0;
    let mut active: Option<(Instant, Instant)> = None;
    // In our own ticks, because a stopped machine is not a silent sender.
    let mut silence = Duration::ZERO;
    loop {
        let terminated = signal::wait_termination(TICK);
        let now = Instant::now();
        let calls = counters.bytes.load(Relaxed) + counters.packets.load(Relaxed);
        if calls != seen {
            seen = calls;
            silence = Duration::ZERO;
            active = Some((active.map_or(now, |(first, _)| first), now));
        } else {
            silence += TICK;
        }
        let idle = active.is_some() && !until_idle.is_zero() && silence >= until_idle;
        let over = duration.is_some_and(|duration| now - start >= duration);
        if terminated || idle || over || counters.stop.load(Relaxed) {
            return active;
        }
    }
}

pub fn run(address: &Address, args: &Args) -> Result<(), Failure> {
    let cannot = |error: io::Error| Failure::Runtime(format!("floor: cannot listen on {address}: {error}"));
    match address {
        Address::Udp { host, port } => {
            let socket = UdpSocket::bind((host.as_str(), *port)).map_err(cannot)?;
            let bound = bound(address, socket.local_addr()?);
            let granted = socket::set_receive_buffer(socket.as_fd(), args.receive_buffer)?;
            datagrams(socket.into(), &bound, Some(granted), args)
        }
        Address::UnixDatagram(path) => {
            clear_stale_socket(path).map_err(cannot)?;
            let socket = UnixDatagram::bind(path).map_err(cannot)?;
            let _file = SocketFile(path.clone());
            datagrams(socket.into(), address, None, args)
        }
        Address::Tcp { .. } | Address::UnixStream(_)
            if args.receive != Receive::R1 && args.receive != Receive::R2 =>
        {
            Err(Failure::Usage(
                "streams have one way of receiving: --receive r1, large blocking reads".into(),
            ))
        }
        Address::Tcp { host, port } => {
            let listener = TcpListener::bind((host.as_str(), *port)).map_err(cannot)?;
            let bound = bound(address, listener.local_addr()?);
            // Accepted connections inherit the size.
            let granted = socket::set_receive_buffer(listener.as_fd(), args.receive_buffer)?;
            streams(Listener::Tcp(listener), &bound, Some(granted), args)
        }
        Address::UnixStream(path) => {
            clear_stale_socket(path).map_err(cannot)?;
            let listener = UnixListener::bind(path).map_err(cannot)?;
            let _file = SocketFile(path.clone());
            streams(Listener::Unix(listener), address, None, args)
        }
    }
}

fn announce(address: &Address, receive_buffer: Option<usize>, args: &Args) -> Result<(), Failure> {
    print_line(&serde_json::json!({
        "listening": address.to_string(),
        "pid": std::process::id(),
        "cpu": args.cpu,
        "cpus_allowed": process::allowed_cpus(),
        "receive_buffer": receive_buffer,
    }))
}

fn report(
    variant: String,
    address: &Address,
    counters: &Counters,
    active: Option<(Instant, Instant)>,
    before: clock::Usage,
    kernel_drops: Option<u64>,
    args: &Args,
) -> Result<(), Failure> {
    let after = clock::usage_of_process();
    let user = (after.user - before.user).as_secs_f64();
    let system = (after.system - before.system).as_secs_f64();
    let messages = counters.messages.load(Relaxed);
    let packets = counters.packets.load(Relaxed);
    let per = |count: u64| (count > 0).then(|| (user + system) * 1e9 / count as f64);
    print_line(&serde_json::json!({
        "variant": variant,
        "listen": address.to_string(),
        "cpu": args.cpu,
        "packets": packets,
        "messages": messages,
        "bytes": counters.bytes.load(Relaxed),
        "kernel_drops": kernel_drops,
        "elapsed_s": active.map_or(0.0, |(first, last)| (last - first).as_secs_f64()),
        "cpu_user_s": user,
        "cpu_sys_s": system,
        "cpu_ns_per_message": per(messages),
        "cpu_ns_per_packet": per(packets),
        "syscalls": counters.calls.load(Relaxed),
    }))
}

fn datagrams(
    socket: OwnedFd,
    address: &Address,
    receive_buffer: Option<usize>,
    args: &Args,
) -> Result<(), Failure> {
    let counters = Counters::default();
    let unix = matches!(address, Address::UnixDatagram(_));
    if args.receive == Receive::R3 {
        socket::enable_counters(socket.as_fd(), unix)?;
    }
    let before = clock::usage_of_process();
    let variant = format!("{}+L0", args.receive.name());
    let (active, outcome) = std::thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let worker = scope.spawn(|| {
            let outcome = receive_datagrams(socket.as_fd(), &counters, args, move || {
                let _ = ready.send(());
            });
            counters.stop.store(true, Relaxed);
            outcome
        });
        // A receiver that fails before it is ready closes the channel.
        let active = match is_ready.recv() {
            Ok(()) => match announce(address, receive_buffer, args) {
                Ok(()) => wait_for_end(&counters, args.duration, args.until_idle),
                Err(_) => None,
            },
            Err(_) => None,
        };
        counters.stop.store(true, Relaxed);
        socket::shutdown_read(&socket);
        (active, worker.join().expect("the receiver does not panic"))
    });
    outcome?;
    let drops = socket::drops(socket.as_fd()).ok();
    report(variant, address, &counters, active, before, drops, args)
}

/// Receives until the socket is shut down and its queue is read.
fn receive_datagrams(
    socket: BorrowedFd,
    counters: &Counters,
    args: &Args,
    ready: impl FnOnce(),
) -> Result<(), Failure> {
    let fd = socket.as_raw_fd();
    let mut tally = Tally::default();
    let mut grace = Grace::default();
    match args.receive {
        Receive::R1 => {
            // read(2) on a datagram socket takes one datagram.
            let mut socket = std::fs::File::from(socket.try_clone_to_owned()?);
            let mut buffer = vec![0u8; sys::SLOT_BYTES];
            ready();
            loop {
                match socket.read(&mut buffer) {
                    Ok(0) if counters.stop.load(Relaxed) => break,
                    Ok(bytes) => tally.packet(&buffer[..bytes]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
                tally.calls += 1;
                tally.publish(counters);
                if grace.over(counters) {
                    break;
                }
            }
        }
        Receive::R2 | Receive::R3 => {
            let mut batch = ReceiveBatch::new(usize::from(args.batch), args.receive != Receive::R2);
            ready();
            let mut over = false;
            while !over && !grace.over(counters) {
                let filled = match batch.receive(fd) {
                    Ok(filled) => filled,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                    Err(error) => return Err(error.into()),
                };
                tally.calls += 1;
                for slot in 0..filled {
                    let bytes = batch.packet(slot);
                    if bytes.is_empty() && counters.stop.load(Relaxed) {
                        over = true;
                        break;
                    }
                    if args.receive == Receive::R3
                        && let Some(drops) = batch.drops(slot)
                    {
                        tally.drops = u64::from(drops);
                    }
                    tally.packet(bytes);
                }
                tally.publish(counters);
            }
        }
    }
    tally.publish(counters);
    Ok(())
}

/// Limits the reading after the end, for senders that do not stop.
#[derive(Default)]
struct Grace {
    last: Option<Instant>,
    /// In our own steps, because a stopped machine is not a sender that continues: what is queued is read.
    spent: Duration,
}

impl Grace {
    #[inline]
    fn over(&mut self, counters: &Counters) -> bool {
        const MOST: Duration = Duration::from_millis(500);
        const STEP_MAX: Duration = Duration::from_millis(10);
        counters.stop.load(Relaxed) && {
            let now = Instant::now();
            let last = self.last.replace(now).unwrap_or(now);
            self.spent += (now - last).min(STEP_MAX);
            self.spent >= MOST
        }
    }
}

/// Lines in a packet, an unterminated last one included: one vectorised pass over the bytes.
#[inline]
fn lines(packet: &[u8]) -> u64 {
    let newlines = memchr::memchr_iter(b'\n', packet).count() as u64;
    newlines + u64::from(packet.last().is_some_and(|&last| last != b'\n'))
}

/// One thread's counts, published with plain stores once per batch.
#[derive(Default)]
struct Tally {
    packets: u64,
    messages: u64,
    bytes: u64,
    calls: u64,
    drops: u64,
}

impl Tally {
    #[inline]
    fn packet(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        self.messages += lines(packet);
    }

    #[inline]
    fn publish(&self, counters: &Counters) {
        counters.packets.store(self.packets, Relaxed);
        counters.messages.store(self.messages, Relaxed);
        counters.bytes.store(self.bytes, Relaxed);
        counters.calls.store(self.calls, Relaxed);
        counters.drops_seen.store(self.drops, Relaxed);
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Tcp(listener) => listener.accept().map(|(stream, _)| stream.into()),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| stream.into()),
        }
    }
}

/// A thread per connection with blocking reads: one system call per read and no others.
fn streams(
    listener: Listener,
    address: &Address,
    receive_buffer: Option<usize>,
    args: &Args,
) -> Result<(), Failure> {
    let counters = Counters::default();
    let framed = matches!(listener, Listener::Unix(_));
    let connections: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let before = clock::usage_of_process();
    let active = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            while let Ok(connection) = listener.accept() {
                let Ok(for_end) = connection.try_clone() else {
                    break;
                };
                connections.lock().expect("no holder panics").push(for_end);
                if counters.stop.load(Relaxed) {
                    socket::shutdown_read(&connection);
                }
                scope.spawn(|| read_stream(std::fs::File::from(connection), framed, &counters));
            }
        });
        let active = match announce(address, receive_buffer, args) {
            Ok(()) => wait_for_end(&counters, args.duration, args.until_idle),
            Err(_) => None,
        };
        counters.stop.store(true, Relaxed);
        // TCP would reset pending connections that were not accepted yet.
        while !accepting.is_finished() && socket::is_readable(&listener) {
            std::thread::yield_now();
        }
        // Ends accept first, so that no connection appears after the loop below.
        socket::shutdown_read(&listener);
        let _ = accepting.join();
        for connection in connections.lock().expect("no holder panics").iter() {
            socket::shutdown_read(connection);
        }
        active
    });
    report(
        "read+L0".to_owned(),
        address,
        &counters,
        active,
        before,
        None,
        args,
    )
}

/// Reads one connection to its end. Frames carry a four-byte little-endian length; unframed bytes are lines.
fn read_stream(mut connection: std::fs::File, framed: bool, counters: &Counters) {
    const READ_BYTES: usize = 256 << 10;
    let mut buffer = vec![0u8; READ_BYTES];
    let mut filled = 0;
    loop {
        let read = match connection.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        filled += read;
        counters.calls.fetch_add(1, Relaxed);
        let mut tally = Tally::default();
        let mut done = 0;
        if framed {
            while let Some(header) = buffer[done..filled].first_chunk::<4>() {
                let length = u32::from_le_bytes(*header) as usize;
                if length > READ_BYTES - 4 {
                    eprintln!(
                        "weir-bench floor: a frame of {length} bytes announced, {} allowed; is the sender framing \
                         with four bytes, little endian? Connection closed.",
                        READ_BYTES - 4
                    );
                    return;
                }
                let Some(packet) = buffer[done + 4..filled].get(..length) else {
                    break;
                };
                tally.packet(packet);
                done += 4 + length;
            }
        } else if let Some(last) = memchr::memrchr(b'\n', &buffer[..filled]) {
            tally.packet(&buffer[..=last]);
            done = last + 1;
        } else if filled == buffer.len() {
            tally.packet(&buffer);
            done = filled;
        }
        buffer.copy_within(done..filled, 0);
        filled -= done;
        add(counters, &tally);
    }
    if !framed && filled > 0 {
        let mut tally = Tally::default();
        tally.packet(&buffer[..filled]);
        add(counters, &tally);
    }
}

fn add(counters: &Counters, tally: &Tally) {
    counters.packets.fetch_add(tally.packets, Relaxed);
    counters.messages.fetch_add(tally.messages, Relaxed);
    counters.bytes.fetch_add(tally.bytes, Relaxed);
}
