//! The kernel's tables of UDP and TCP sockets.

use std::collections::BTreeSet;
use std::fs;

/// One socket.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Row {
    /// The local one.
    pub port: u16,
    pub inode: u64,
    pub rx_queue: u64,
    /// Zero over TCP.
    pub drops: u64,
}

fn parse(text: &str) -> Vec<Row> {
    text.lines()
        .skip(1)
        .filter_map(|l| {
            let f: Vec<&str> = l.split_whitespace().collect();
            Some(Row {
                port: u16::from_str_radix(f.get(1)?.rsplit_once(':')?.1, 16).ok()?,
                rx_queue: u64::from_str_radix(f.get(4)?.split_once(':')?.1, 16).ok()?,
                inode: f.get(9)?.parse().ok()?,
                drops: f.get(12)?.parse().ok()?,
            })
        })
        .collect()
}

/// Every TCP connection. A listening socket has its waiting connections in the column of the receive queue.
fn parse_tcp(text: &str) -> Vec<Row> {
    const LISTENING: &str = "0A";
    text.lines()
        .skip(1)
        .filter_map(|l| {
            let f: Vec<&str> = l.split_whitespace().collect();
            let row = Row {
                port: u16::from_str_radix(f.get(1)?.rsplit_once(':')?.1, 16).ok()?,
                rx_queue: u64::from_str_radix(f.get(4)?.split_once(':')?.1, 16).ok()?,
                inode: f.get(9)?.parse().ok()?,
                drops: 0,
            };
            (*f.get(3)? != LISTENING).then_some(row)
        })
        .collect()
}

/// Reads the tables until every socket that an earlier reading had was in one of the new readings.
///
/// The kernel writes a table page by page, and finds its place again by counting rows. A socket that is closed in between moves the others,
/// so a reading can miss one that is open: beside three processes that open and close sockets, 4 % of the readings do, and on a busy machine
/// so many that none of ten readings is complete. Without its row a socket seems to have an empty queue. A socket that is opened in between can
/// bring a row twice.
#[derive(Debug, Default)]
pub struct SocketReader {
    /// Inodes.
    seen: BTreeSet<u64>,
}

/// Readings after which a missing socket counts as closed.
const READINGS_MAX: usize = 10;

/// The sockets of one reading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sockets {
    pub udp: Vec<Row>,
    pub tcp: Vec<Row>,
}

impl Sockets {
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.udp.iter().chain(&self.tcp)
    }

    fn only(mut self, wanted: impl Fn(&Row) -> bool) -> Sockets {
        self.udp.retain(&wanted);
        self.tcp.retain(&wanted);
        self
    }

    /// Each socket of the two readings once, with its newer row.
    fn after(mut self, earlier: Sockets) -> Sockets {
        for (rows, earlier) in [(&mut self.udp, earlier.udp), (&mut self.tcp, earlier.tcp)] {
            rows.extend(earlier);
            rows.sort_by_key(|row| row.inode);
            rows.dedup_by_key(|row| row.inode);
        }
        self
    }
}

impl SocketReader {
    /// Says which sockets are open, so that the next reading does not look for the others.
    pub fn keep(&mut self, open: &[u64]) {
        self.seen.retain(|inode| open.contains(inode));
    }

    /// The wanted sockets in the network namespace of this process: a container's sockets are not in ours.
    pub fn read(&mut self, pid: i32, wanted: impl Fn(&Row) -> bool) -> Sockets {
        self.read_from(|| tables_of(pid).only(&wanted))
    }

    /// `tables`: one reading, which may miss sockets.
    fn read_from(&mut self, tables: impl Fn() -> Sockets) -> Sockets {
        let readings_min = if self.seen.is_empty() { 2 } else { 1 };
        let mut found = Sockets::default();
        for reading in 1..=READINGS_MAX {
            found = tables().after(found);
            let inodes: BTreeSet<u64> = found.rows().map(|row| row.inode).collect();
            if reading == READINGS_MAX || (reading >= readings_min && self.seen.is_subset(&inodes)) {
                self.seen = inodes;
                break;
            }
        }
        found
    }
}

fn tables_of(pid: i32) -> Sockets {
    let read = |names: [&str; 2], parse: fn(&str) -> Vec<Row>| {
        let paths = names.map(|name| format!("/proc/{pid}/net/{name}"));
        let texts = paths.into_iter().filter_map(|path| fs::read_to_string(path).ok());
        texts.flat_map(|text| parse(&text)).collect()
    };
    Sockets {
        udp: read(["udp", "udp6"], parse),
        tcp: read(["tcp", "tcp6"], parse_tcp),
    }
}

/// The UDP sockets of this network namespace on a local port, followed over time.
#[derive(Debug)]
pub struct UdpPort {
    port: u16,
    reader: SocketReader,
}

impl UdpPort {
    pub fn new(port: u16) -> UdpPort {
        UdpPort {
            port,
            reader: SocketReader::default(),
        }
    }

    pub fn is_open(&mut self) -> bool {
        !self.sockets().is_empty()
    }

    /// Datagrams that the kernel dropped at them. `None` without a socket.
    pub fn drops(&mut self) -> Option<u64> {
        let drops = self.sockets().into_iter().map(|row| row.drops);
        drops.reduce(|sum, drops| sum + drops)
    }

    fn sockets(&mut self) -> Vec<Row> {
        let own = std::process::id() as i32;
        self.reader.read(own, |row| row.port == self.port).udp
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn waiting_connections_are_no_bytes() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 77 1 0000000000000000 100 0 0 10 0\n   \
            1: 0100007F:1F90 0100007F:D431 01 00000000:00000A00 00:00000000 00000000     0        0 78 1 0000000000000000 20 4 30 10 -1\n";
        let connections = parse_tcp(text).into_iter().map(|row| (row.inode, row.rx_queue));
        assert_eq!(connections.collect::<Vec<_>>(), [(78, 2560)]);
    }

    #[test]
    fn fields_are_hexadecimal_where_the_kernel_writes_them_so() {
        let text = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n  \
            610: 0100007F:1FBD 00000000:0000 07 00000000:00000A00 00:00000000 00000000     0        0 12345 2 0000000000000000 77\n";
        assert_eq!(
            parse(text),
            [Row {
                port: 8125,
                inode: 12345,
                rx_queue: 2560,
                drops: 77
            }]
        );
    }

    /// The sockets that [`SocketReader`] returns if the tables have these inodes, reading by reading. The last reading repeats.
    fn inodes_read(reader: &mut SocketReader, readings: &[&[u64]]) -> Vec<u64> {
        let next = std::cell::Cell::new(0);
        let found = reader.read_from(|| {
            let number = next.replace(next.get() + 1);
            let inodes = readings[number.min(readings.len() - 1)];
            let udp = inodes.iter().map(|inode| Row {
                inode: *inode,
                ..Row::default()
            });
            Sockets {
                udp: udp.collect(),
                tcp: Vec::new(),
            }
        });
        found.udp.iter().map(|row| row.inode).collect()
    }

    #[test]
    fn a_reading_that_misses_a_socket_is_taken_again() {
        let mut reader = SocketReader::default();
        // The very first misses one, and the second has it.
        assert_eq!(inodes_read(&mut reader, &[&[1], &[1, 2], &[1, 3]]), [1, 2]);
        assert_eq!(inodes_read(&mut reader, &[&[1, 3], &[1, 2], &[1]]), [1, 2, 3]);
        // No later reading has all of them.
        assert_eq!(
            inodes_read(&mut reader, &[&[2, 3], &[2], &[3, 1], &[1]]),
            [1, 2, 3]
        );
        assert_eq!(inodes_read(&mut SocketReader::default(), &[&[]]), []);
    }

    #[test]
    fn a_socket_that_stays_away_was_closed() {
        let mut reader = SocketReader::default();
        assert_eq!(inodes_read(&mut reader, &[&[1, 2]]), [1, 2]);
        assert_eq!(inodes_read(&mut reader, &[&[1]]), [1]);
        // From then on it is not expected, so one reading is enough.
        assert_eq!(inodes_read(&mut reader, &[&[1], &[1, 2]]), [1]);
        assert_eq!(inodes_read(&mut reader, &[&[1, 2]]), [1, 2]);
        reader.keep(&[1]);
        assert_eq!(inodes_read(&mut reader, &[&[1], &[1, 2]]), [1]);
    }

    /// Others open and close sockets while the tables are read.
    #[test]
    fn open_sockets_are_in_every_reading_once() {
        let open = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let own: Vec<UdpSocket> = (0..40).map(|_| open()).collect();
        let ports: Vec<u16> = own.iter().map(|s| s.local_addr().unwrap().port()).collect();
        let (mut reader, pid) = (SocketReader::default(), std::process::id() as i32);
        let mut count = || reader.read(pid, |row| ports.contains(&row.port)).udp.len();
        assert_eq!(count(), 40);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        (0..30).map(|_| open()).for_each(drop);
                    }
                });
            }
            let counts: Vec<usize> = (0..300).map(|_| count()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(counts, [40; 300]);
        });
    }
}
