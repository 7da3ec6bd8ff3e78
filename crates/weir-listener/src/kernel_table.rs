//! The kernel's own table of UDP sockets, as a second witness for the drop counters.

use std::fs;
use std::io;

/// The drop counter of the socket with this inode in `/proc/net/udp` or `/proc/net/udp6`, if it is there.
pub fn drops_of(inode: u64) -> io::Result<Option<u32>> {
    for table in ["/proc/net/udp", "/proc/net/udp6"] {
        match fs::read_to_string(table) {
            Ok(text) => {
                if let Some(drops) = find(&text, inode) {
                    return Ok(Some(drops));
                }
            }
            // Without IPv6 there is no second table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Columns are separated by blanks, with the inode at position 9 and the drops last, at position 12. Some columns of
/// the header have two words or none, so positions are counted on rows.
fn find(table: &str, inode: u64) -> Option<u32> {
    table.lines().skip(1).find_map(|row| {
        let mut columns = row.split_ascii_whitespace().skip(9);
        let found: u64 = columns.next()?.parse().ok()?;
        (found == inode).then(|| columns.nth(2)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops             \n\
        23041: 0100007F:1FBD 00000000:0000 07 00000000:00034B00 00:00000000 00000000     0        0 48211 2 0000000000000000 90210     \n\
        31130: 00000000:14E9 00000000:0000 07 00000000:00000000 00:00000000 00000000   110        0 4821 2 0000000000000000 7         \n";

    #[test]
    fn finds_the_row_of_an_inode_and_no_other() {
        assert_eq!(find(TABLE, 48211), Some(90210));
        assert_eq!(find(TABLE, 4821), Some(7));
        assert_eq!(find(TABLE, 482), None);
        assert_eq!(find("", 1), None);
        assert_eq!(find("header\nshort row\n", 1), None);
    }
}
