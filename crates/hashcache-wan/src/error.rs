//! Errors in a transfer, with a type for each side.

/// Defect in a frame sequence. Content that was given before stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Bytes that are no frame, or a number that no sender writes.
    #[error("malformed {0} frame")]
    Malformed(&'static str),
    /// A frame type from another version.
    #[error("unknown frame type {0:#04x}")]
    UnknownType(u8),
    /// A number beyond the limit (`limits`).
    #[error("{0} beyond its limit")]
    Limit(&'static str),
    /// A frame at a position where it is not allowed.
    #[error("{0} frame out of order")]
    Order(&'static str),
    /// A block's check or the content digest does not match.
    #[error("content does not match its check")]
    Check,
    /// zstd refused a block's data.
    #[error("zstd: {0}")]
    Zstd(&'static str),
    /// The content is shorter or longer than HEAD announced.
    #[error("content is not as long as announced")]
    Length,
    /// The sender's content source failed.
    #[error("aborted by the sender, reason {0}")]
    Aborted(u8),
    /// The frames stop before END.
    #[error("frames end early")]
    Cut,
}

/// Reason for an [`Encoder`](crate::encode::Encoder) to stop. The transfer must be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// More or less content than HEAD announced.
    #[error("{written} bytes of content where {announced} were announced")]
    Length {
        /// Length in HEAD.
        announced: u64,
        /// Content length so far.
        written: u64,
    },
    /// zstd failed, which happens without memory.
    #[error("zstd: {0}")]
    Zstd(&'static str),
}
