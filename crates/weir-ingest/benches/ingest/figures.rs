//! Arguments and figures of the benchmarks.

/// The arguments behind cargo's own.
pub fn arguments() -> Vec<String> {
    std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect()
}

/// The number at a place, or its default.
pub fn number(arguments: &[String], at: usize, default: usize) -> usize {
    arguments
        .get(at)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// The figure that neighbours on the machine disturb least: they make a few of them much larger.
pub fn median(figures: &mut [f64]) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}
