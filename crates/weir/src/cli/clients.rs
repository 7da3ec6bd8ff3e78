//! The clients' telemetry in `weir status`.

use std::fmt::Write as _;
use weir_units::grouped;

use super::style::Style;
use super::table::{Table, duration, shown};
use weir_status::clients::{ClientReport, ClientRow};

/// Maximum rows; the JSON has all.
const ROWS_MAX: usize = 10;

/// Prints nothing if no client reports.
pub fn table(page: &mut String, report: &ClientReport, now: u64, style: Style) {
    let mut table = Table::new(&[
        "client",
        "version",
        "transport",
        "origin",
        "packets sent",
        "dropped",
        "queue full",
        "not written",
        "reported",
    ])
    .styled(style);
    for row in report.seen.iter().take(ROWS_MAX) {
        table.row_unless(row.has_lost(), cells(row, now));
    }
    table.write(page);
    if let Some(more) = report.seen.len().checked_sub(ROWS_MAX).filter(|more| *more > 0) {
        let _ = writeln!(page, "  and {more} more: weir status --json");
    }
}

fn cells(row: &ClientRow, now: u64) -> [String; 9] {
    let age = duration(now.saturating_sub(row.last_seen));
    [
        shown(&row.client),
        shown(&row.version),
        shown(&row.transport),
        shown(&row.origin),
        grouped(row.packets_sent),
        grouped(row.packets_dropped),
        grouped(row.packets_dropped_queue),
        grouped(row.packets_dropped_writer),
        format!("{age} ago"),
    ]
}
