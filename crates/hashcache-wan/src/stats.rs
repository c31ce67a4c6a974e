//! What a transfer came to, for metrics, log lines and the rule of `shed`.

/// Counts of one transfer, at either end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Content, bytes.
    pub content_bytes: u64,
    /// Frames on the link, bytes.
    pub frame_bytes: u64,
    /// Bytes of the dictionary that were read.
    pub dictionary_bytes: u64,
    /// Stretches of the dictionary.
    pub stretches: u32,
    /// Content that was sent as it is, bytes.
    pub raw_bytes: u64,
}
