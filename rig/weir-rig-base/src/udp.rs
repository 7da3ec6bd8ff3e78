//! The kernel's tables of UDP and TCP sockets.

use std::fs;

/// One row of `/proc/net/udp`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub port: u16,
    pub inode: u64,
    pub rx_queue: u64,
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

/// Inode and bytes in the receive queue of every TCP connection. A listening socket has its waiting connections in that column.
fn parse_tcp(text: &str) -> Vec<(u64, u64)> {
    const LISTENING: &str = "0A";
    text.lines()
        .skip(1)
        .filter_map(|l| {
            let f: Vec<&str> = l.split_whitespace().collect();
            let queue = u64::from_str_radix(f.get(4)?.split_once(':')?.1, 16).ok()?;
            (*f.get(3)? != LISTENING).then_some((f.get(9)?.parse().ok()?, queue))
        })
        .collect()
}

/// Two tables of the network namespace of a process: a container's sockets are not in ours.
fn tables(pid: i32, names: [&str; 2]) -> impl Iterator<Item = String> {
    let paths = names.map(|name| format!("/proc/{pid}/net/{name}"));
    paths.into_iter().filter_map(|path| fs::read_to_string(path).ok())
}

/// The receive queues of all TCP connections in the network namespace of a process, by inode.
pub fn tcp_queues(pid: i32) -> Vec<(u64, u64)> {
    tables(pid, ["tcp", "tcp6"]).flat_map(|t| parse_tcp(&t)).collect()
}

/// All UDP sockets in the network namespace of a process.
pub fn rows_of(pid: i32) -> Vec<Row> {
    tables(pid, ["udp", "udp6"]).flat_map(|t| parse(&t)).collect()
}

/// All UDP sockets of this network namespace.
pub fn rows() -> Vec<Row> {
    rows_of(std::process::id() as i32)
}

/// Datagrams that the kernel dropped at the sockets on a local port. `None` without such a socket.
pub fn drops(port: u16) -> Option<u64> {
    let bound = rows().into_iter().filter(|row| row.port == port);
    bound.map(|row| row.drops).reduce(|sum, drops| sum + drops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_connections_are_no_bytes() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000003 00:00000000 00000000     0        0 77 1 0000000000000000 100 0 0 10 0\n   \
            1: 0100007F:1F90 0100007F:D431 01 00000000:00000A00 00:00000000 00000000     0        0 78 1 0000000000000000 20 4 30 10 -1\n";
        assert_eq!(parse_tcp(text), [(78, 2560)]);
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
}
