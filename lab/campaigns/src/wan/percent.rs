//! Shares in percent, for the tables of the sections.

/// A part in percent.
pub fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}
