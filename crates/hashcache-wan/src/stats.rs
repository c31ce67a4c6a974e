//! Totals of one transfer, for metrics and log lines.

/// Counts of one transfer, at either end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Content, bytes.
    pub content_bytes: u64,
    /// Frames on the link, bytes.
    pub frame_bytes: u64,
    /// Content that was sent as it is, bytes.
    pub raw_bytes: u64,
}
