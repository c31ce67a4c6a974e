//! The limits of the wire format. Both ends refuse what is beyond them.
//!
//! Invariant: no number from the other end is used to allocate memory or to loop before
//! it was compared with its limit here.
//! Cost: a transfer holds at most [`TRANSFER_BYTES_MAX`] of memory at either end, which a test
//! measures with zstd's own functions.

/// Content in one block, bytes: what the receiver holds before it has compared the check.
pub const BLOCK_BYTES_MAX: usize = 256 << 10;

/// Coded form of one block, bytes. Content that cannot be compressed grows by 3 bytes in 128 KiB.
pub(crate) const CODED_BYTES_MAX: usize = BLOCK_BYTES_MAX + 1024;

/// Content coded with one stretch of the dictionary, bytes.
///
/// zstd may refer to all of a prefix as long as the content so far is within the window
/// ([`WINDOW_LOG`]), however long the prefix is.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << WINDOW_LOG;

/// One stretch of the dictionary, bytes.
pub(crate) const STRETCH_BYTES_MAX: u64 = 4 << 20;

/// A whole dictionary, bytes. Longer objects are no dictionaries.
pub const DICTIONARY_BYTES_MAX: u64 = 64 << 20;

/// Key of a dictionary that the sender names, bytes: the longest key of the proxy.
pub(crate) const KEY_BYTES_MAX: usize = 4096;

/// zstd's window, as a power of two: that of its level 3. Decoders refuse larger ones.
pub(crate) const WINDOW_LOG: u32 = 21;

/// The smallest window of zstd, as a power of two.
pub(crate) const WINDOW_LOG_MIN: u32 = 10;

/// Memory of one transfer at either end, bytes: stretch, zstd's context, block and frames.
pub const TRANSFER_BYTES_MAX: usize = 12 << 20;
