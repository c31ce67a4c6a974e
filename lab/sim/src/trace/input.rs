//! The bytes of a trace: gzip and zstd are unpacked, recognised by their first bytes.
//!
//! Cost: 8 MiB for the window of usual zstd files, at most 128 MiB; a file that wants more is
//! refused.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

/// What `input` has, unpacked.
///
/// # Errors
/// The input cannot be read, or there is no memory to unpack it.
pub fn unpacked(mut input: Box<dyn Read + Send>) -> io::Result<Box<dyn BufRead + Send>> {
    let mut head = Vec::new();
    (&mut input).take(4).read_to_end(&mut head)?;
    let is_zstd = head == ZSTD || is_skippable(&head);
    let is_gzip = head.starts_with(&GZIP);
    let input = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(head).chain(input));
    Ok(if is_zstd {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, Zstd::new(input)?))
    } else if is_gzip {
        let decoder = MultiGzDecoder::new(input);
        Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder))
    } else {
        Box::new(input)
    })
}

/// Whether a skippable frame of zstd begins so, which a file may have before its first other frame
/// (RFC 8878, section 3.1.2).
fn is_skippable(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

/// Unpacks one frame after another; skippable frames have no content.
struct Zstd<R> {
    input: R,
    context: DCtx<'static>,
    /// Whether the last frame has ended.
    is_between: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(input: R) -> io::Result<Self> {
        let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        let window = DParameter::WindowLogMax(WINDOW_LOG_MAX);
        context.set_parameter(window).map_err(error)?;
        Ok(Self {
            input,
            context,
            is_between: true,
        })
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let packed = self.input.fill_buf()?;
            let is_end = packed.is_empty();
            if is_end && self.is_between {
                return Ok(0);
            }
            let mut from = InBuffer::around(packed);
            let mut to = OutBuffer::around(buffer);
            let left = self.context.decompress_stream(&mut to, &mut from);
            let left = left.map_err(error)?;
            let (used, made) = (from.pos(), to.pos());
            self.input.consume(used);
            self.is_between = left == 0;
            if made > 0 {
                return Ok(made);
            }
            if is_end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn error(code: zstd_safe::ErrorCode) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, zstd_safe::get_error_name(code))
}

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// What `zstd` itself accepts without being told.
const WINDOW_LOG_MAX: u32 = 27;
const BUFFER_BYTES: usize = 256 << 10;
