//! Batch headers and segment footers: lists of what was written, for recovery.
//!
//! They say where records were put, never that the records arrived: a record proves itself.

use super::{COUNT_MAX, Fieldreader, IO_BLOCK, LAP_MAX, Layout, ORDINAL_MAX, put, round_up, tiles};
use crate::key::{KeyHash, Secret};
use crate::object::Version;

/// Fixed part of a batch header, bytes; the list follows.
pub(crate) const HEADER: usize = 64;
/// One line of the list, bytes.
pub(crate) const LIST_ENTRY: usize = 56;
/// What ends a segment's footer, bytes; the list ends right before it.
pub(crate) const FOOTER_TAIL: usize = 64;

/// The fixed part of a batch header.
#[rustfmt::skip]
pub(crate) const BATCH_LAYOUT: Layout = &[
    ("mac", 0, 8), ("magic", 8, 4), ("ordinal", 12, 4), ("stamp", 16, 8), ("lap", 24, 8),
    ("batch bytes", 32, 4), ("header bytes", 36, 4), ("count", 40, 4), ("device", 44, 2),
    ("reserved", 46, 18),
];

/// One line of the list in a batch header or footer.
#[rustfmt::skip]
pub(crate) const LISTED_LAYOUT: Layout = &[
    ("key hash", 0, 16), ("version", 16, 8), ("mark", 24, 16), ("offset", 40, 4), ("length", 44, 4),
    ("revision", 48, 4), ("run", 52, 1), ("kind", 53, 1), ("reserved", 54, 2),
];

/// The last bytes of a sealed segment.
#[rustfmt::skip]
pub(crate) const FOOTER_LAYOUT: Layout = &[
    ("mac", 0, 8), ("magic", 8, 4), ("count", 12, 4), ("stamp", 16, 8), ("lap", 24, 8),
    ("device", 32, 2), ("reserved", 34, 30),
];

const _: () = assert!(tiles(BATCH_LAYOUT, HEADER));
const _: () = assert!(tiles(LISTED_LAYOUT, LIST_ENTRY));
const _: () = assert!(tiles(FOOTER_LAYOUT, FOOTER_TAIL));

const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"HCba");
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"HCft");

/// How a list spells the tail of a slot; a record's kind is spelled as in the record itself.
pub(crate) const KIND_TAIL: u8 = 3;
/// How a list spells a slot that is about to be written.
pub(crate) const KIND_SLOT: u8 = 4;

/// What a list says of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
    pub(crate) revision: u32,
    pub(crate) mark: u128,
    /// Units from the start of the segment.
    pub(crate) offset: u32,
    /// Units; of a slot, its number in its set.
    pub(crate) length: u32,
    /// Distance to the end of the run, 4 KiB; 0 without one.
    pub(crate) run: u8,
    /// 1 head, 2 span, [`KIND_TAIL`], [`KIND_SLOT`].
    pub(crate) kind: u8,
}

fn encode_listed(out: &mut [u8], listed: &Listed) {
    out[..LIST_ENTRY].fill(0);
    put(out, 0, &listed.key.to_bytes());
    put(out, 16, &listed.version.0.to_le_bytes());
    put(out, 24, &listed.mark.to_le_bytes());
    put(out, 40, &listed.offset.to_le_bytes());
    put(out, 44, &listed.length.to_le_bytes());
    put(out, 48, &listed.revision.to_le_bytes());
    out[52] = listed.run;
    out[53] = listed.kind;
}

fn decode_list(bytes: &[u8]) -> Vec<Listed> {
    let decode = |line: &[u8]| {
        let field = Fieldreader(line);
        Listed {
            key: KeyHash::from_bytes(field.array(0)),
            version: Version(field.u64(16)),
            mark: field.u128(24),
            offset: field.u32(40),
            length: field.u32(44),
            revision: field.u32(48),
            run: field.u8(52),
            kind: field.u8(53),
        }
    };
    let lines = bytes.chunks_exact(LIST_ENTRY).map(decode);
    lines.filter(|it| it.version.0 < COUNT_MAX).collect()
}

/// The header of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) device: u16,
    pub(crate) stamp: u64,
    pub(crate) lap: u64,
    /// Number of the batch within its segment.
    pub(crate) ordinal: u32,
    /// Bytes of the batch, header included; a multiple of 4 KiB.
    pub(crate) batch_bytes: u32,
    pub(crate) list: Vec<Listed>,
}

impl BatchHeader {
    /// Bytes of a header that lists `count` records, padded to a sector.
    pub(crate) fn bytes(count: usize) -> usize {
        round_up(HEADER + count * LIST_ENTRY, super::MIN_UNIT)
    }

    /// Writes the header to the start of `out`, which has `BatchHeader::bytes` bytes.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        let bytes = Self::bytes(self.list.len());
        let out = &mut out[..bytes];
        out.fill(0);
        let narrow = |n: usize| u32::try_from(n).expect("a batch has at most 4 MiB");
        put(out, 8, &BATCH_MAGIC.to_le_bytes());
        put(out, 12, &self.ordinal.to_le_bytes());
        put(out, 16, &self.stamp.to_le_bytes());
        put(out, 24, &self.lap.to_le_bytes());
        put(out, 32, &self.batch_bytes.to_le_bytes());
        put(out, 36, &narrow(bytes).to_le_bytes());
        put(out, 40, &narrow(self.list.len()).to_le_bytes());
        put(out, 44, &self.device.to_le_bytes());
        for (line, listed) in out[HEADER..].chunks_exact_mut(LIST_ENTRY).zip(&self.list) {
            encode_listed(line, listed);
        }
        let mac = secret.mac(&[&out[8..]]);
        put(out, 0, &mac.to_le_bytes());
    }

    /// Bytes the whole header has according to its first [`HEADER`] bytes, which are not yet
    /// trusted.
    pub(crate) fn claimed_bytes(bytes: &[u8]) -> Option<usize> {
        let field = Fieldreader(bytes.get(..HEADER)?);
        let header = usize::try_from(field.u32(36)).ok()?;
        let batch = usize::try_from(field.u32(32)).ok()?;
        let count = usize::try_from(field.u32(40)).ok()?;
        let sane = field.u32(8) == BATCH_MAGIC
            && header <= batch
            && batch <= 16 << 20
            && batch.is_multiple_of(IO_BLOCK)
            && count <= batch / LIST_ENTRY
            && header == Self::bytes(count);
        sane.then_some(header)
    }

    /// The header at the start of `bytes`, if it is one of ours.
    pub(crate) fn decode(bytes: &[u8], secret: &Secret) -> Option<Self> {
        let header = Self::claimed_bytes(bytes)?;
        let bytes = bytes.get(..header)?;
        let field = Fieldreader(bytes);
        if secret.mac(&[&bytes[8..]]) != field.u64(0) {
            return None;
        }
        let possible =
            field.u64(16) < COUNT_MAX && field.u64(24) < LAP_MAX && field.u32(12) < ORDINAL_MAX;
        let count = usize::try_from(field.u32(40)).ok()?;
        possible.then(|| Self {
            device: field.u16(44),
            stamp: field.u64(16),
            lap: field.u64(24),
            ordinal: field.u32(12),
            batch_bytes: field.u32(32),
            list: decode_list(&bytes[HEADER..HEADER + count * LIST_ENTRY]),
        })
    }
}

/// The footer of a sealed segment: the union of its batches' lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) device: u16,
    pub(crate) stamp: u64,
    pub(crate) lap: u64,
    pub(crate) list: Vec<Listed>,
}

impl Footer {
    /// Bytes at the end of a segment that a footer with `count` lines takes.
    pub(crate) fn bytes(count: usize) -> usize {
        round_up(FOOTER_TAIL + count * LIST_ENTRY, IO_BLOCK)
    }

    /// The footer, to be written so that it ends where the segment ends.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        out.fill(0);
        let list_at = out.len() - FOOTER_TAIL - self.list.len() * LIST_ENTRY;
        for (line, listed) in out[list_at..].chunks_exact_mut(LIST_ENTRY).zip(&self.list) {
            encode_listed(line, listed);
        }
        let tail_at = out.len() - FOOTER_TAIL;
        let count = u32::try_from(self.list.len()).expect("a segment has at most 2^17 units");
        put(out, tail_at + 8, &FOOTER_MAGIC.to_le_bytes());
        put(out, tail_at + 12, &count.to_le_bytes());
        put(out, tail_at + 16, &self.stamp.to_le_bytes());
        put(out, tail_at + 24, &self.lap.to_le_bytes());
        put(out, tail_at + 32, &self.device.to_le_bytes());
        let mac = secret.mac(&[b"footer", &out[list_at..tail_at], &out[tail_at + 8..]]);
        put(out, tail_at, &mac.to_le_bytes());
    }

    /// Bytes the footer takes according to the last bytes of the segment, not yet trusted.
    pub(crate) fn claimed_bytes(end: &[u8], segment_bytes: usize) -> Option<usize> {
        let tail = end.get(end.len().checked_sub(FOOTER_TAIL)?..)?;
        let field = Fieldreader(tail);
        let count = usize::try_from(field.u32(12)).ok()?;
        let sane = field.u32(8) == FOOTER_MAGIC && count <= segment_bytes / LIST_ENTRY;
        sane.then(|| Self::bytes(count))
    }

    /// The footer that ends where `end` ends, if it is one of ours.
    pub(crate) fn decode(end: &[u8], secret: &Secret) -> Option<Self> {
        let tail_at = end.len().checked_sub(FOOTER_TAIL)?;
        let field = Fieldreader(&end[tail_at..]);
        let count = usize::try_from(field.u32(12)).ok()?;
        let list_at = tail_at.checked_sub(count.checked_mul(LIST_ENTRY)?)?;
        let mac = secret.mac(&[b"footer", &end[list_at..tail_at], &end[tail_at + 8..]]);
        let possible = field.u64(16) < COUNT_MAX && field.u64(24) < LAP_MAX;
        if field.u32(8) != FOOTER_MAGIC || mac != field.u64(0) || !possible {
            return None;
        }
        Some(Self {
            device: field.u16(32),
            stamp: field.u64(16),
            lap: field.u64(24),
            list: decode_list(&end[list_at..tail_at]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(count: u32) -> Vec<Listed> {
        let secret = Secret::from_bytes([1; 32]);
        let listed = |n: u32| Listed {
            key: secret.name(&n.to_le_bytes()),
            version: Version(u64::from(n) + 1),
            revision: n % 3,
            mark: u128::from(n),
            offset: n * 8,
            length: 8,
            run: 0,
            kind: 1,
        };
        (0..count).map(listed).collect()
    }

    #[test]
    fn a_batch_header_comes_back_and_every_flipped_bit_voids_it() {
        let secret = Secret::from_bytes([1; 32]);
        let header = BatchHeader {
            device: 0,
            stamp: 9,
            lap: 2,
            ordinal: 3,
            batch_bytes: 8192,
            list: lists(5),
        };
        let mut bytes = vec![0; BatchHeader::bytes(5)];
        header.encode(&mut bytes, &secret);
        assert_eq!(BatchHeader::decode(&bytes, &secret), Some(header));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BatchHeader::decode(&bytes, &secret), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn counts_that_nothing_can_be_added_to_are_no_header_of_ours() {
        let secret = Secret::from_bytes([1; 32]);
        let header = || BatchHeader {
            device: 0,
            stamp: 9,
            lap: 2,
            ordinal: 3,
            batch_bytes: 8192,
            list: lists(2),
        };
        let decoded = |header: BatchHeader| {
            let mut bytes = vec![0; BatchHeader::bytes(2)];
            header.encode(&mut bytes, &secret);
            BatchHeader::decode(&bytes, &secret)
        };
        let (lap, ordinal, stamp) = (LAP_MAX, ORDINAL_MAX, COUNT_MAX);
        assert_eq!(decoded(BatchHeader { lap, ..header() }), None);
        assert_eq!(
            decoded(BatchHeader {
                ordinal,
                ..header()
            }),
            None
        );
        assert_eq!(decoded(BatchHeader { stamp, ..header() }), None);
        let mut lists = header();
        lists.list[0].version = Version(u64::MAX);
        assert_eq!(decoded(lists).map(|it| it.list.len()), Some(1));
    }

    #[test]
    fn a_footer_is_found_from_the_end_of_its_segment() {
        let secret = Secret::from_bytes([1; 32]);
        for count in [0, 1, 71, 500] {
            let footer = Footer {
                device: 0,
                stamp: 9,
                lap: 2,
                list: lists(count),
            };
            let mut segment = vec![0xaa; 64 << 10];
            let bytes = Footer::bytes(footer.list.len());
            let at = segment.len() - bytes;
            footer.encode(&mut segment[at..], &secret);
            assert_eq!(Footer::claimed_bytes(&segment, segment.len()), Some(bytes));
            assert_eq!(Footer::decode(&segment, &secret), Some(footer));
            segment[at + bytes - 1] ^= 1;
            assert_eq!(Footer::decode(&segment, &secret), None);
        }
    }
}
