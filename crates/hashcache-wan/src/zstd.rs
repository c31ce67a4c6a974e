//! zstd with a dictionary stretch as the prefix, block by block.
//!
//! `encode` and `decode` make a context for each segment. zstd refers to the prefix and does not
//! copy it; therefore the prefix and the context that refers to it are a single value
//! (`self_cell`).
//!
//! Invariant: the decompressor gives at most [`BLOCK_BYTES_MAX`] for a block, whatever the input
//! data, and allocates no window beyond the limit from `new`.
//! Cost: a context per segment, not per block: it takes 0.2 ms to make, and a segment takes about
//! 16 ms to code. At most 4.5 MiB to compress, 2.5 MiB to decompress, without the prefix; less for
//! short content with a known length.

use self_cell::self_cell;
use zstd_safe::zstd_sys::ZSTD_EndDirective::{ZSTD_e_end, ZSTD_e_flush};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, ErrorCode, InBuffer, OutBuffer};

use crate::error::Reason;
use crate::limits::{BLOCK_BYTES_MAX, CODED_BYTES_MAX};

self_cell!(
    struct Compressing {
        owner: Vec<u8>,
        #[not_covariant]
        dependent: CCtx,
    }
);

self_cell!(
    struct Decompressing {
        owner: Vec<u8>,
        #[not_covariant]
        dependent: DCtx,
    }
);

/// Position of a block in the zstd frame: the last block, or an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Yes,
    No,
}

/// Writes a zstd frame.
pub(crate) struct Compressor(Compressing);

impl Compressor {
    /// `length` is the whole frame's length, if known. A frame with a known length must not be
    /// closed early with [`Last::Yes`].
    pub(crate) fn new(
        prefix: Vec<u8>,
        length: Option<u64>,
        window_log: u32,
    ) -> Result<Self, &'static str> {
        let made = Compressing::try_new(prefix, |prefix| compression(prefix, length, window_log));
        made.map(Self).map_err(zstd_safe::get_error_name)
    }

    /// Adds `content` in coded form to `out`, at most [`CODED_BYTES_MAX`].
    pub(crate) fn block(
        &mut self,
        content: &[u8],
        last: Last,
        out: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let from = out.len();
        out.reserve(CODED_BYTES_MAX);
        let directive = match last {
            Last::Yes => ZSTD_e_end,
            Last::No => ZSTD_e_flush,
        };
        self.0.with_dependent_mut(|_, context| {
            let mut input = InBuffer::around(content);
            loop {
                let at = out.len();
                let mut output = OutBuffer::around_pos(out, at);
                match context.compress_stream2(&mut output, &mut input, directive) {
                    Ok(0) => break,
                    Ok(_) if output.pos() < from + CODED_BYTES_MAX => {}
                    Ok(_) => return Err("more than content and its overhead"),
                    Err(code) => return Err(zstd_safe::get_error_name(code)),
                }
            }
            debug_assert_eq!(input.pos(), content.len());
            Ok(())
        })
    }

    /// Stops using the prefix and returns it.
    pub(crate) fn into_prefix(self) -> Vec<u8> {
        self.0.into_owner()
    }

    /// Memory for the context and the prefix.
    pub(crate) fn memory_bytes(&self) -> usize {
        let context = |_: &Vec<u8>, context: &CCtx<'_>| context.sizeof();
        self.0.with_dependent(context) + self.0.borrow_owner().capacity()
    }
}

/// Reads a zstd frame.
pub(crate) struct Decompressor(Decompressing);

impl Decompressor {
    /// `window_log_max` is the largest accepted window, as a power of two.
    pub(crate) fn new(prefix: Vec<u8>, window_log_max: u32) -> Result<Self, &'static str> {
        let made = Decompressing::try_new(prefix, |prefix| decompression(prefix, window_log_max));
        made.map(Self).map_err(zstd_safe::get_error_name)
    }

    /// Decodes a block into `out`. Returns [`Last::Yes`] if this is the last block in the zstd
    /// frame.
    pub(crate) fn block(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Last, Reason> {
        out.clear();
        // One byte more than is allowed, so that too much content is detected.
        out.reserve_exact(BLOCK_BYTES_MAX + 1);
        let mut input = InBuffer::around(data);
        self.0.with_dependent_mut(|_, context| {
            let mut last = Last::No;
            while input.pos() < data.len() {
                let at = out.len();
                if last == Last::Yes {
                    return Err(Reason::Malformed("ZSTD"));
                }
                let mut output = OutBuffer::around_pos(out, at);
                match context.decompress_stream(&mut output, &mut input) {
                    Ok(0) => last = Last::Yes,
                    Ok(_) => {}
                    Err(code) => return Err(Reason::Zstd(zstd_safe::get_error_name(code))),
                }
                if out.len() > BLOCK_BYTES_MAX {
                    return Err(Reason::Limit("content of a block"));
                }
            }
            if out.is_empty() {
                return Err(Reason::Malformed("ZSTD"));
            }
            Ok(last)
        })
    }

    /// Returns true if the frame has a prefix.
    pub(crate) fn has_prefix(&self) -> bool {
        !self.0.borrow_owner().is_empty()
    }

    /// Stops using the prefix and returns it.
    pub(crate) fn into_prefix(self) -> Vec<u8> {
        self.0.into_owner()
    }

    /// Memory for the context and the prefix.
    pub(crate) fn memory_bytes(&self) -> usize {
        let context = |_: &Vec<u8>, context: &DCtx<'_>| context.sizeof();
        self.0.with_dependent(context) + self.0.borrow_owner().capacity()
    }
}

fn compression(prefix: &[u8], length: Option<u64>, window_log: u32) -> Result<CCtx<'_>, ErrorCode> {
    let mut context = CCtx::try_create().ok_or_else(out_of_memory)?;
    context.set_parameter(CParameter::CompressionLevel(LEVEL))?;
    context.set_parameter(CParameter::WindowLog(window_log))?;
    if window_log < SMALL_WINDOW_LOG {
        // zstd's own tables for level 3 would take three times the memory of such a window.
        context.set_parameter(CParameter::HashLog(window_log - 2))?;
        context.set_parameter(CParameter::ChainLog(window_log - 3))?;
    }
    context.set_pledged_src_size(length)?;
    if !prefix.is_empty() {
        context.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
        context.set_parameter(CParameter::LdmHashLog(LDM_HASH_LOG))?;
        context.set_parameter(CParameter::LdmHashRateLog(LDM_RATE_LOG))?;
        context.set_parameter(CParameter::LdmMinMatch(LDM_MIN_MATCH))?;
        context.ref_prefix(prefix)?;
    }
    Ok(context)
}

fn decompression(prefix: &[u8], window_log_max: u32) -> Result<DCtx<'_>, ErrorCode> {
    let mut context = DCtx::try_create().ok_or_else(out_of_memory)?;
    context.set_parameter(DParameter::WindowLogMax(window_log_max))?;
    if !prefix.is_empty() {
        context.ref_prefix(prefix)?;
    }
    Ok(context)
}

/// `ZSTD_error_memory_allocation`, as zstd's functions return it.
fn out_of_memory() -> ErrorCode {
    ErrorCode::MAX - 63
}

/// Level 1 sends up to twice as much; level 9 saves a fifth in three to ten times the time.
const LEVEL: i32 = 3;
const _: () = assert!(
    LEVEL <= 3,
    "`cargo xtask dist` leaves out what higher levels need"
);
/// Smaller windows are for boxes with little memory.
const SMALL_WINDOW_LOG: u32 = 19;
/// Long-distance matching: entries for 4 MiB at one in 32 positions. Half as many entries send up
/// to 3 % more. Matches from 32 bytes on send 4 % less for some sets and 11 % more for others.
const LDM_HASH_LOG: u32 = 17;
const LDM_RATE_LOG: u32 = 5;
const LDM_MIN_MATCH: u32 = 64;
