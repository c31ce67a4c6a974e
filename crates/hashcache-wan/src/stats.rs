//! Totals for a transfer, for metrics and log lines.

/// Counts for a transfer, on either side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Content, bytes.
    pub content_bytes: u64,
    /// Frames on the link, bytes.
    pub frame_bytes: u64,
    /// Content that was sent uncompressed, bytes.
    pub raw_bytes: u64,
}
