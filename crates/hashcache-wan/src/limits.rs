//! The wire format's limits. Both sides refuse values beyond them.
//!
//! Invariant: no number from the other side is used to allocate memory or to loop before it was
//! compared with a limit here.
//! Cost: a transfer holds at most [`TRANSFER_BYTES_MAX`] bytes of memory on each side; a test
//! measures this with zstd's own functions.

/// Content in a block, bytes: the receiver holds this much before it has compared the check.
pub const BLOCK_BYTES_MAX: usize = 256 << 10;

/// Coded form of a block, bytes. Incompressible content grows by 3 bytes per 128 KiB.
pub(crate) const CODED_BYTES_MAX: usize = BLOCK_BYTES_MAX + 1024;

/// Content coded with a single dictionary stretch, bytes.
///
/// zstd may refer to the whole prefix, however long it is, as long as the content so far is within
/// the window ([`WINDOW_LOG`]).
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << WINDOW_LOG;

/// A dictionary stretch, bytes.
pub(crate) const STRETCH_BYTES_MAX: u64 = 4 << 20;

/// A whole dictionary, bytes. Longer objects are no dictionaries.
pub const DICTIONARY_BYTES_MAX: u64 = 64 << 20;

/// Key of a dictionary that the sender names, bytes: the proxy's longest key.
pub(crate) const KEY_BYTES_MAX: usize = 4096;

/// zstd's window, as a power of two: the window for level 3. Decoders refuse larger windows.
pub(crate) const WINDOW_LOG: u32 = 21;

/// The smallest zstd window, as a power of two.
pub(crate) const WINDOW_LOG_MIN: u32 = 10;

/// Memory for a transfer on each side, bytes: stretch, zstd context, block and frames.
pub const TRANSFER_BYTES_MAX: usize = 12 << 20;
