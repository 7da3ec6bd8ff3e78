//! Tables and numbers in the output of commands.

use std::fmt::Write as _;
use weir_units::grouped;

use super::style::Style;
use weir_system::logging::printable;

/// A table with columns as wide as necessary: the first one left-aligned, numbers right-aligned, the last one open.
pub struct Table<const N: usize> {
    rows: Vec<[String; N]>,
    /// Rows that report a problem.
    bad: Vec<usize>,
    style: Style,
}

impl<const N: usize> Table<N> {
    pub fn new(head: &[&str; N]) -> Self {
        Self {
            rows: vec![head.map(str::to_owned)],
            bad: Vec::new(),
            style: Style::default(),
        }
    }

    /// Highlights the header and rows with a problem.
    pub fn styled(self, style: Style) -> Self {
        Self { style, ..self }
    }

    pub fn row(&mut self, row: [String; N]) {
        self.rows.push(row);
    }

    /// A row that is highlighted if `is_bad`.
    pub fn row_unless(&mut self, is_bad: bool, row: [String; N]) {
        if is_bad {
            self.bad.push(self.rows.len());
        }
        self.row(row);
    }

    pub fn write(&self, page: &mut String) {
        if self.rows.len() < 2 {
            return;
        }
        page.push('\n');
        let width = |column: usize| {
            self.rows
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        let is_number = |column: usize| {
            let cells = self.rows[1..].iter().map(|row| row[column].as_str());
            cells
                .clone()
                .all(|cell| cell.is_empty() || cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        let right: [bool; N] = std::array::from_fn(|column| column > 0 && is_number(column));
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let _ = if right[column] {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
            }
            let line = line.trim_end();
            match number {
                0 => page.push_str(&self.style.heading(line)),
                number if self.bad.contains(&number) => page.push_str(&self.style.bad(line)),
                _ => page.push_str(line),
            }
            page.push('\n');
        }
    }
}

/// A name unchanged, unless a terminal would interpret it.
pub fn shown(name: &str) -> String {
    if name.chars().any(weir_config::is_invisible) {
        return printable(name.as_bytes());
    }
    name.to_owned()
}

/// Three significant digits, and for large numbers a prefix: 12345 is 12.3k. Small ones have none, because 7m beside 0.04 is misread.
pub fn si(value: f64) -> String {
    let mut size = value.abs();
    if size == 0.0 || !size.is_finite() {
        return if size == 0.0 {
            "0".to_owned()
        } else {
            value.to_string()
        };
    }
    let mut prefix = 0;
    while size >= 999.5 && prefix < PREFIXES.len() - 1 {
        size /= 1000.0;
        prefix += 1;
    }
    let digits = match size {
        100.0.. => format!("{size:.0}"),
        10.0.. => format!("{size:.1}"),
        0.01.. => format!("{size:.2}"),
        1e-6.. => {
            let places = (2.0 - size.log10().floor()) as usize;
            format!("{size:.places$}")
        }
        _ => return format!("{value:.2e}"),
    };
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => &digits,
    };
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{digits}{}", PREFIXES[prefix])
}

const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];

/// Values as blocks of eight heights, scaled to the maximum; a blank without a value.
pub fn sparkline(values: &[Option<f64>], width: usize) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let newest = &values[values.len().saturating_sub(width)..];
    let known = || newest.iter().flatten().copied();
    let low = known().fold(0.0, f64::min);
    let range = known().fold(low, f64::max) - low;
    let height = |value: f64| match range {
        0.0 => HEIGHTS[0],
        range => HEIGHTS[(((value - low) / range * 7.0).round() as usize).min(7)],
    };
    let drawn = newest.iter().map(|value| value.map_or(' ', height));
    let missing = width.saturating_sub(newest.len());
    std::iter::repeat_n(' ', missing).chain(drawn).collect()
}

pub fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 10.0 {
        format!("{per_second:.1}")
    } else {
        grouped(per_second as u64)
    }
}

pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

pub fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [5, 65, 3_700, 90_000].map(duration),
            ["5s", "1m05s", "1h01m", "1d01h"]
        );
        assert_eq!([5, 2048, 3 << 20].map(bytes), ["5 B", "2 KiB", "3.0 MiB"]);
        let values = [0.0, 1.0, 12.0, 999.4, 12_345.0, 2e6, -1.5];
        let read = ["0", "1", "12", "999", "12.3k", "2M", "-1.5"];
        assert_eq!(values.map(si), read);
        let values = [0.05, 0.005, -0.007_142_8, 0.000_006_1, 1.2345e-7];
        let read = ["0.05", "0.005", "-0.00714", "0.0000061", "1.23e-7"];
        assert_eq!(values.map(si), read);
        assert_eq!([0.0, 0.25, 1234.5].map(rate), ["0", "0.2", "1,234"]);
    }

    #[test]
    fn sparklines_rise_with_values_and_leave_gaps() {
        let values = [Some(0.0), Some(1.0), None, Some(7.0)];
        assert_eq!(sparkline(&values, 6), "  ▁▂ █");
        assert_eq!(sparkline(&values, 2), " █");
        assert_eq!(sparkline(&[Some(3.0), Some(3.0)], 2), "██");
        assert_eq!(sparkline(&[Some(0.0), Some(-1.0)], 2), "█▁");
        assert_eq!(sparkline(&[], 2), "  ");
    }

    #[test]
    fn highlighting_does_not_move_the_columns() {
        let mut table = Table::new(&["output", "state"]).styled(Style::COLOURED);
        table.row(["a".to_owned(), "healthy".to_owned()]);
        table.row_unless(true, ["longer".to_owned(), "failing".to_owned()]);
        let mut page = String::new();
        table.write(&mut page);
        let expected = "\n\x1b[1moutput  state\x1b[0m\na       healthy\n\x1b[1;31mlonger  failing\x1b[0m\n";
        assert_eq!(page, expected);
    }
}
