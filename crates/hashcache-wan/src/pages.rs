//! Text at rest: each 64 KiB of content is stored as one zstd frame, a *page*.
//!
//! A box with a link asks for content without a coding, so text arrives several times larger than
//! origins usually send it. Pages make it small again on disk. A range is read by decoding only the
//! pages that it touches, and all pages of a content, one after another, are its coding `zstd`
//! (RFC 8878 allows several frames).
//!
//! Used by the store of the proxy, which knows the length of each page.
//!
//! Invariants: a page decodes to exactly as many bytes as the caller expects, or not at all; no
//! more memory is taken than that, whatever the frame says. Each frame has a checksum of its
//! content.
//! Cost: 3 to 5 ms a MB to pack, 1 ms to unpack. One context serves any number of contents, because
//! pages do not depend on each other: 0.6 MiB to pack, 0.1 MiB to unpack.

use zstd_safe::{CCtx, CParameter, DCtx};

/// Content of a page, bytes; the last page of a content may have less.
pub const PAGE_BYTES: usize = 64 << 10;
/// The longest stored form of a page: content that zstd cannot make smaller, in its frame.
pub const STORED_PAGE_BYTES_MAX: usize = PAGE_BYTES + 64;

/// Memory of a [`Packer`], bytes.
pub const PACKER_BYTES: u64 = 1 << 20;

/// Makes pages.
pub struct Packer(CCtx<'static>);

impl Packer {
    /// `None` without memory for zstd's tables.
    pub fn new() -> Option<Self> {
        let mut context = CCtx::try_create()?;
        let parameters = [
            CParameter::CompressionLevel(LEVEL),
            CParameter::ChecksumFlag(true),
        ];
        for parameter in parameters {
            context.set_parameter(parameter).ok()?;
        }
        Some(Self(context))
    }

    /// Replaces `stored` by the page of `content`, at most [`PAGE_BYTES`] long.
    ///
    /// # Errors
    /// zstd has no memory.
    pub fn pack(&mut self, content: &[u8], stored: &mut Vec<u8>) -> Result<(), &'static str> {
        debug_assert!(content.len() <= PAGE_BYTES);
        stored.clear();
        // zstd compresses at once, without a buffer of its own, where all of a frame has room.
        stored.reserve_exact(zstd_safe::compress_bound(content.len()));
        let packed = self.0.compress2(stored, content);
        packed.map_err(zstd_safe::get_error_name)?;
        debug_assert!(stored.len() <= STORED_PAGE_BYTES_MAX);
        Ok(())
    }
}

/// Reads pages.
pub struct Unpacker(DCtx<'static>);

impl Unpacker {
    /// `None` without memory for zstd's tables.
    pub fn new() -> Option<Self> {
        DCtx::try_create().map(Self)
    }

    /// The content of a page, `length` bytes; `None`: the page is damaged.
    pub fn unpack(&mut self, stored: &[u8], length: usize) -> Option<Vec<u8>> {
        if length > PAGE_BYTES || stored.len() > STORED_PAGE_BYTES_MAX {
            return None;
        }
        // One byte more, so that a longer content is seen.
        let mut content = Vec::with_capacity(length + 1);
        let unpacked = self.0.decompress(&mut content, stored).ok()?;
        (unpacked == length && content.len() == length).then_some(content)
    }
}

/// In pages, level 1 takes 3 to 5 % more bytes; level 6 takes 6 to 8 % less for three times the
/// time (`zstd -b3 -B65536 FILE`).
const LEVEL: i32 = 3;
const _: () = assert!(
    LEVEL <= 3,
    "`cargo xtask dist` leaves out what higher levels need"
);

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: usize) -> Vec<u8> {
        let words =
            (0u32..).flat_map(|n| format!("{} ", n.wrapping_mul(2_654_435_761)).into_bytes());
        words.take(bytes).collect()
    }

    fn noise(bytes: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(3);
        std::iter::repeat_with(|| random.u8(..))
            .take(bytes)
            .collect()
    }

    #[test]
    fn a_page_comes_back_and_the_contexts_serve_many() {
        let (mut packer, mut unpacker) = (Packer::new().unwrap(), Unpacker::new().unwrap());
        let mut stored = Vec::new();
        for length in [0, 1, 500, 1 << 10, 40_000, PAGE_BYTES - 1, PAGE_BYTES] {
            for content in [text(length), noise(length), vec![7; length]] {
                packer.pack(&content, &mut stored).unwrap();
                assert!(stored.len() <= STORED_PAGE_BYTES_MAX, "{length}");
                assert_eq!(unpacker.unpack(&stored, length), Some(content));
            }
        }
        let (packing, unpacking) = (packer.0.sizeof(), unpacker.0.sizeof());
        assert!(packing as u64 <= PACKER_BYTES, "{packing}");
        assert!(unpacking < 200 << 10, "{unpacking}");
    }

    #[test]
    fn pages_one_after_another_are_the_coding_zstd() {
        let (mut packer, content) = (Packer::new().unwrap(), text(3 * PAGE_BYTES + 11));
        let (mut all, mut stored) = (Vec::new(), Vec::new());
        for page in content.chunks(PAGE_BYTES) {
            packer.pack(page, &mut stored).unwrap();
            all.extend_from_slice(&stored);
        }
        let mut back = Vec::with_capacity(content.len());
        zstd_safe::decompress(&mut back, &all).unwrap();
        assert!(back == content);
        assert!(all.len() < content.len() / 2);
    }

    #[test]
    fn a_page_of_another_length_or_with_a_wrong_bit_is_refused() {
        let (mut packer, mut unpacker) = (Packer::new().unwrap(), Unpacker::new().unwrap());
        let (content, mut stored) = (text(3000), Vec::new());
        packer.pack(&content, &mut stored).unwrap();
        for length in [0, 2999, 3001, PAGE_BYTES, PAGE_BYTES + 1] {
            assert_eq!(unpacker.unpack(&stored, length), None, "{length}");
        }
        for bit in 0..stored.len() * 8 {
            let mut wrong = stored.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let unpacked = unpacker.unpack(&wrong, content.len());
            // A bit of the header that means nothing here may change; content may not.
            assert!(
                unpacked.is_none_or(|unpacked| unpacked == content),
                "bit {bit}"
            );
        }
        for length in 0..stored.len() {
            assert_eq!(unpacker.unpack(&stored[..length], content.len()), None);
        }
        let twice = [&stored[..], &stored].concat();
        assert_eq!(unpacker.unpack(&twice, content.len()), None);
        assert_eq!(unpacker.unpack(&stored, content.len()), Some(content));
    }

    #[test]
    fn a_frame_that_says_more_takes_no_more_memory() {
        let mut unpacker = Unpacker::new().unwrap();
        let bomb = vec![0; 64 << 20];
        let mut stored = Vec::with_capacity(zstd_safe::compress_bound(bomb.len()));
        zstd_safe::compress(&mut stored, &bomb, 3).unwrap();
        assert!(stored.len() < STORED_PAGE_BYTES_MAX);
        assert_eq!(unpacker.unpack(&stored, PAGE_BYTES), None);
        assert!(unpacker.0.sizeof() < 200 << 10);
    }
}
