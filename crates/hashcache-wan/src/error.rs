//! What can go wrong in a transfer, one type for each end.

/// What was wrong with a sequence of frames. What was given before stays right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Bytes that are no frame, or a number in it that no sender writes.
    #[error("malformed {0} frame")]
    Malformed(&'static str),
    /// A frame type of another version.
    #[error("unknown frame type {0:#04x}")]
    UnknownType(u8),
    /// A number beyond its limit (`limits`).
    #[error("{0} beyond its limit")]
    Limit(&'static str),
    /// A frame at a place where it may not stand.
    #[error("{0} frame out of order")]
    Order(&'static str),
    /// The check of a block or the digest of the content is another.
    #[error("content does not match its check")]
    Check,
    /// zstd refused the data of a block.
    #[error("zstd: {0}")]
    Zstd(&'static str),
    /// Content ended before or behind the length that HEAD announced.
    #[error("content is not as long as announced")]
    Length,
    /// The sender's source of the content failed.
    #[error("aborted by the sender, reason {0}")]
    Aborted(u8),
    /// The frames ended without END.
    #[error("frames end early")]
    Cut,
}

/// Why an [`Encoder`](crate::encode::Encoder) cannot go on. The transfer has to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// More or less content than HEAD announced.
    #[error("{written} bytes of content where {announced} were announced")]
    Length {
        /// What HEAD says.
        announced: u64,
        /// What came.
        written: u64,
    },
    /// zstd failed, which it does without memory.
    #[error("zstd: {0}")]
    Zstd(&'static str),
}
