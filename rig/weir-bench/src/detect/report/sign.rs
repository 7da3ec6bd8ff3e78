//! The sign of a change in reports for readers. Stored reports always have the sign of the measured value.

use crate::detect::analysis::{Report, Row, by_change};
use clap::ValueEnum;
use weir_regress::Direction;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Positive {
    /// The measured value rose.
    Higher,
    /// The comparison is better, as in Datadog's Regression Detector; without a declared direction, the value rose.
    Better,
}

impl Positive {
    /// For the reader of a report.
    pub fn sentence(self) -> &'static str {
        match self {
            Positive::Higher => {
                "Positive values mean that the measured value rose. Whether that is good depends on the goal, so the first column says it"
            }
            Positive::Better => {
                "Negative values mean that the baseline is better, positive values that the comparison is: it is faster, or needs less. \
                 Where less is better, as of CPU time and memory, 3% more is therefore -3%. The first column says the same"
            }
        }
    }

    /// The report in this convention.
    pub fn applied(self, report: &Report) -> Report {
        let mut report = report.clone();
        if self == Positive::Better {
            let run = report.run.clone();
            for row in report.rows.iter_mut().chain(&mut report.dimensions) {
                if run.direction_of(&row.experiment, row.goal) == Direction::LowerIsBetter {
                    turn(row);
                }
            }
            report.rows.sort_by(by_change);
        }
        report
    }
}

fn turn(row: &mut Row) {
    if let Some(change) = &mut row.change {
        (change.low, change.high) = (-change.high, -change.low);
        change.delta = -change.delta;
    }
}
