//! Text at rest: each 64 KiB of content is stored as a zstd frame, called a *page*.
//!
//! A box with a link requests content without a content coding, so text arrives several times
//! larger than origins usually send it. Pages make text small again on disk. To read a range, only
//! the pages that it touches are decoded. An object's pages, one after another, are a valid `zstd`
//! coding, because RFC 8878 allows several frames.
//!
//! Used by the proxy's store, which knows each page's length.
//!
//! Invariants: a page decodes to exactly the expected number of bytes, or not at all, and takes no
//! more memory than that, whatever the frame header contains. Each frame has a content checksum.
//! Cost: 3 to 5 ms per MB to pack, 1 ms to unpack. A single context serves any number of objects,
//! because pages do not depend on each other: 0.6 MiB to pack, 0.1 MiB to unpack.

use zstd_safe::{CCtx, CParameter, DCtx};

/// Content in a page, bytes; an object's last page may have less.
pub const PAGE_BYTES: usize = 64 << 10;
/// The longest stored form of a page: a frame with incompressible content.
pub const STORED_PAGE_BYTES_MAX: usize = PAGE_BYTES + 64;

/// Memory for a [`Packer`], bytes.
pub const PACKER_BYTES: u64 = 1 << 20;

/// Packs content into pages.
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

    /// Replaces `stored` by the page for `content`, which has at most [`PAGE_BYTES`].
    ///
    /// # Errors
    /// zstd has no memory.
    pub fn pack(&mut self, content: &[u8], stored: &mut Vec<u8>) -> Result<(), &'static str> {
        debug_assert!(content.len() <= PAGE_BYTES);
        stored.clear();
        // With room for the whole frame, zstd compresses at once, without a buffer inside.
        stored.reserve_exact(zstd_safe::compress_bound(content.len()));
        let packed = self.0.compress2(stored, content);
        packed.map_err(zstd_safe::get_error_name)?;
        debug_assert!(stored.len() <= STORED_PAGE_BYTES_MAX);
        Ok(())
    }
}

/// Unpacks pages.
pub struct Unpacker(DCtx<'static>);

impl Unpacker {
    /// `None` without memory for zstd's tables.
    pub fn new() -> Option<Self> {
        DCtx::try_create().map(Self)
    }

    /// Returns a page's content, `length` bytes; `None`: the page is damaged.
    pub fn unpack(&mut self, stored: &[u8], length: usize) -> Option<Vec<u8>> {
        if length > PAGE_BYTES || stored.len() > STORED_PAGE_BYTES_MAX {
            return None;
        }
        // One byte more, so that longer content is detected.
        let mut content = Vec::with_capacity(length + 1);
        let unpacked = self.0.decompress(&mut content, stored).ok()?;
        (unpacked == length && content.len() == length).then_some(content)
    }
}

/// For pages, level 1 takes 3 to 5 % more bytes; level 6 takes 6 to 8 % less in three times the
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
