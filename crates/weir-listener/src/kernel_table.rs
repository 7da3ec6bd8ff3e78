//! The kernel's drop counters: following one as it wraps around, and its table of UDP sockets as a second witness.

use std::fs;
use std::io;

/// Follows a counter of 32 bits that wraps around.
#[derive(Debug, Default)]
pub struct WrappingCounter {
    seen: u32,
}

impl WrappingCounter {
    /// Counts drops after `seen`.
    pub fn after(seen: u32) -> Self {
        WrappingCounter { seen }
    }

    pub fn seen(&self) -> u32 {
        self.seen
    }

    /// The increase since the last reading. A datagram carries the counter from when it was queued, which may be older than a reading by
    /// other means; so only forward steps count, and a step of more than half the range cannot be distinguished from a step back.
    pub fn advance(&mut self, now: u32) -> u64 {
        let step = now.wrapping_sub(self.seen);
        if step as i32 <= 0 {
            return 0;
        }
        self.seen = now;
        u64::from(step)
    }
}

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
    fn a_counter_wraps_around_and_old_readings_change_nothing() {
        let mut counter = WrappingCounter::default();
        let readings = [
            0,
            5,
            5,
            3,
            5,
            0x7000_0000,
            0xE000_0000,
            0xFFFF_FFFF,
            2,
            0xFFFF_FFFE,
            3,
        ];
        let steps = readings.map(|now| counter.advance(now));
        assert_eq!(
            steps,
            [0, 5, 0, 0, 0, 0x7000_0000 - 5, 0x7000_0000, 0x1FFF_FFFF, 3, 0, 1]
        );
        assert_eq!(steps.iter().sum::<u64>(), (1 << 32) + 3);
    }

    #[test]
    fn finds_the_row_of_an_inode_and_no_other() {
        assert_eq!(find(TABLE, 48211), Some(90210));
        assert_eq!(find(TABLE, 4821), Some(7));
        assert_eq!(find(TABLE, 482), None);
        assert_eq!(find("", 1), None);
        assert_eq!(find("header\nshort row\n", 1), None);
    }
}
