//! Tables and numbers as commands show them.

use std::fmt::Write as _;

/// Columns as wide as they need to be; the first to the left, numbers to the right, the last open.
pub struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub fn new(head: &[&str; N]) -> Self {
        Self {
            rows: vec![head.map(str::to_owned)],
        }
    }

    pub fn row(&mut self, row: [String; N]) {
        self.rows.push(row);
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
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let _ = if right[column] {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
            }
            page.push_str(line.trim_end());
            page.push('\n');
        }
    }
}

pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
        assert_eq!([0.0, 0.25, 1234.5].map(rate), ["0", "0.2", "1,234"]);
    }
}
