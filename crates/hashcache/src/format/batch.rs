//! Batch headers and segment footers: lists of written records, for recovery.
//!
//! Called by `writer` (batches, footers) and `disk/segment` (recovery). A list names record
//! positions, but does not prove that they reached the disk: each record is verified when it is
//! read.

use super::layout::{covered, record, seal};
use super::{COUNT_MAX, IO_BLOCK, LAP_MAX, ORDINAL_MAX, round_up};
use crate::key::{KeyHash, Secret};
use crate::object::Version;

/// Fixed part of a batch header, bytes; the list follows.
pub(crate) const HEADER: usize = BatchFields::BYTES;
/// One line of the list, bytes.
pub(crate) const LIST_ENTRY: usize = Listed::BYTES;
/// Last bytes of a segment's footer; the list is right before them.
pub(crate) const FOOTER_TAIL: usize = FooterFields::BYTES;

record! {
    /// The fixed part of a batch header.
    struct BatchFields = "BATCH", 64;
    0 mac: u64,
    8 magic: u32,
    12 ordinal: u32,
    16 stamp: u64,
    24 lap: u64,
    32 batch_bytes: u32,
    36 header_bytes: u32,
    40 count: u32,
    44 device: u16,
    /// Stamp of the previous segment opening; 0: none, or not known.
    46 previous: u64,
    54 previous_batches: u16,
    /// 0: not known; otherwise 1 plus the openings between this opening and the durable point's
    /// opening.
    56 durable_opening: u16,
    58 durable_batches: u16,
}

record! {
    /// A list line in a batch header or footer: the data that a list has about a record.
    struct Listed = "LISTED", 56;
    0 key: KeyHash,
    16 version: Version,
    /// 0 for a head that is not complete.
    24 mark: u128,
    /// Units from the start of the segment.
    40 offset: u32,
    /// Units; for a slot, the number in the set.
    44 length: u32,
    48 revision: u32,
    /// Distance to the run's end, as a `run_code`; 0 if there is no run.
    52 run: u8,
    /// 1 head, 2 span, [`KIND_TAIL`], [`KIND_SLOT`].
    53 kind: u8,
    /// As in the record.
    54 fresh_until: u16,
}

record! {
    /// The last bytes of a sealed segment.
    struct FooterFields = "FOOTER", 64;
    0 mac: u64,
    8 magic: u32,
    12 count: u32,
    16 stamp: u64,
    24 lap: u64,
    32 device: u16,
}

const BATCH_MAGIC: u32 = u32::from_le_bytes(*b"HCba");
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"HCft");

/// List kind for a slot's tail; heads and spans have the same number as in the record itself.
pub(crate) const KIND_TAIL: u8 = 3;
/// List kind for a slot that is about to be written.
pub(crate) const KIND_SLOT: u8 = 4;

fn encode_list(out: &mut [u8], list: &[Listed]) {
    for (line, listed) in out.chunks_exact_mut(LIST_ENTRY).zip(list) {
        listed.encode(line);
    }
}

fn decode_list(bytes: &[u8]) -> Vec<Listed> {
    let lines = bytes.chunks_exact(LIST_ENTRY).filter_map(Listed::decode);
    lines.filter(|it| it.version.0 < COUNT_MAX).collect()
}

/// The point in the log before which all batches were durable when a header was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DurablePoint {
    /// Segment openings in between: 0 if the point is in the header's own segment.
    pub(crate) openings_back: u16,
    /// Durable batches in that opening.
    pub(crate) batches: u32,
}

/// Data about the log before a header, so that recovery notices lists that it cannot read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// The previous opening's stamp; 0: none, or not known.
    pub(crate) previous: u64,
    /// Batches in the previous opening.
    pub(crate) previous_batches: u32,
    /// `None`: not known, as in headers from older builds.
    pub(crate) durable: Option<DurablePoint>,
}

/// The header of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) device: u16,
    pub(crate) stamp: u64,
    pub(crate) lap: u64,
    /// Number of the batch within its segment.
    pub(crate) ordinal: u32,
    /// Batch bytes including the header; a multiple of 4 KiB.
    pub(crate) batch_bytes: u32,
    pub(crate) link: Link,
    pub(crate) list: Vec<Listed>,
}

impl BatchHeader {
    /// Header bytes for `count` records, padded to a sector.
    pub(crate) fn bytes(count: usize) -> usize {
        round_up(HEADER + count * LIST_ENTRY, super::MIN_UNIT)
    }

    /// Writes the header to the start of `out`, which has `BatchHeader::bytes` bytes.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        let bytes = Self::bytes(self.list.len());
        let out = &mut out[..bytes];
        out.fill(0);
        let narrow = |n: usize| u32::try_from(n).expect("a batch has at most 4 MiB");
        let short = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
        let durable = self.link.durable.filter(|it| it.openings_back < u16::MAX);
        let fields = BatchFields {
            mac: 0,
            magic: BATCH_MAGIC,
            ordinal: self.ordinal,
            stamp: self.stamp,
            lap: self.lap,
            batch_bytes: self.batch_bytes,
            header_bytes: narrow(bytes),
            count: narrow(self.list.len()),
            device: self.device,
            previous: self.link.previous,
            previous_batches: short(self.link.previous_batches),
            durable_opening: durable.map_or(0, |it| it.openings_back + 1),
            durable_batches: durable.map_or(0, |it| short(it.batches)),
        };
        fields.encode(out);
        encode_list(&mut out[HEADER..], &self.list);
        seal(out, secret.mac(&[covered(out)]));
    }

    /// Whole header size according to its first [`HEADER`] bytes, which are not trusted yet.
    pub(crate) fn claimed_bytes(bytes: &[u8]) -> Option<usize> {
        BatchFields::decode(bytes)?.claimed_bytes()
    }

    /// Returns true if `bytes`, which are not trusted, look like a batch from any segment.
    pub(crate) fn is_likely(bytes: &[u8]) -> bool {
        BatchFields::decode(bytes).is_some_and(|it| it.magic == BATCH_MAGIC)
    }

    /// Returns true if `bytes`, which are not trusted, claim to be this batch.
    pub(crate) fn claims(bytes: &[u8], stamp: u64, ordinal: u32) -> bool {
        BatchFields::decode(bytes)
            .is_some_and(|it| it.magic == BATCH_MAGIC && it.stamp == stamp && it.ordinal == ordinal)
    }

    /// Decodes the header that `bytes` starts with, if the MAC is ours.
    pub(crate) fn decode(bytes: &[u8], secret: &Secret) -> Option<Self> {
        let fields = BatchFields::decode(bytes)?;
        let bytes = bytes.get(..fields.claimed_bytes()?)?;
        if secret.mac(&[covered(bytes)]) != fields.mac {
            return None;
        }
        let possible = fields.stamp < COUNT_MAX
            && fields.lap < LAP_MAX
            && fields.ordinal < ORDINAL_MAX
            && fields.previous < COUNT_MAX;
        let count = usize::try_from(fields.count).ok()?;
        possible.then(|| Self {
            device: fields.device,
            stamp: fields.stamp,
            lap: fields.lap,
            ordinal: fields.ordinal,
            batch_bytes: fields.batch_bytes,
            link: fields.link(),
            list: decode_list(&bytes[HEADER..HEADER + count * LIST_ENTRY]),
        })
    }
}

impl BatchFields {
    fn link(&self) -> Link {
        let durable = |openings_back| DurablePoint {
            openings_back,
            batches: self.durable_batches.into(),
        };
        Link {
            previous: self.previous,
            previous_batches: self.previous_batches.into(),
            durable: self.durable_opening.checked_sub(1).map(durable),
        }
    }

    fn claimed_bytes(&self) -> Option<usize> {
        let header = usize::try_from(self.header_bytes).ok()?;
        let batch = usize::try_from(self.batch_bytes).ok()?;
        let count = usize::try_from(self.count).ok()?;
        let sane = self.magic == BATCH_MAGIC
            && header <= batch
            && batch <= 16 << 20
            && batch.is_multiple_of(IO_BLOCK)
            && count <= batch / LIST_ENTRY
            && header == BatchHeader::bytes(count);
        sane.then_some(header)
    }
}

/// A sealed segment's footer: the lists from all batches in a single list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) device: u16,
    pub(crate) stamp: u64,
    pub(crate) lap: u64,
    pub(crate) list: Vec<Listed>,
}

impl Footer {
    /// Bytes that a footer with `count` lines takes at a segment's end.
    pub(crate) fn bytes(count: usize) -> usize {
        round_up(FOOTER_TAIL + count * LIST_ENTRY, IO_BLOCK)
    }

    /// Encodes the footer so that it finishes where `out` does; that is also the segment's end.
    pub(crate) fn encode(&self, out: &mut [u8], secret: &Secret) {
        out.fill(0);
        let tail_at = out.len() - FOOTER_TAIL;
        let list_at = tail_at - self.list.len() * LIST_ENTRY;
        encode_list(&mut out[list_at..tail_at], &self.list);
        let fields = FooterFields {
            mac: 0,
            magic: FOOTER_MAGIC,
            count: u32::try_from(self.list.len()).expect("a segment has at most 2^17 units"),
            stamp: self.stamp,
            lap: self.lap,
            device: self.device,
        };
        fields.encode(&mut out[tail_at..]);
        let mac = footer_mac(out, list_at, tail_at, secret);
        seal(&mut out[tail_at..], mac);
    }

    /// Footer size according to the segment's last bytes, which are not trusted yet.
    pub(crate) fn claimed_bytes(end: &[u8], segment_bytes: usize) -> Option<usize> {
        let fields = FooterFields::decode(end.get(end.len().checked_sub(FOOTER_TAIL)?..)?)?;
        let count = usize::try_from(fields.count).ok()?;
        let sane = fields.magic == FOOTER_MAGIC && count <= segment_bytes / LIST_ENTRY;
        sane.then(|| Self::bytes(count))
    }

    /// Decodes the footer at the end of `end`, if the MAC is ours.
    pub(crate) fn decode(end: &[u8], secret: &Secret) -> Option<Self> {
        let tail_at = end.len().checked_sub(FOOTER_TAIL)?;
        let fields = FooterFields::decode(&end[tail_at..])?;
        let count = usize::try_from(fields.count).ok()?;
        let list_at = tail_at.checked_sub(count.checked_mul(LIST_ENTRY)?)?;
        let genuine = fields.magic == FOOTER_MAGIC
            && footer_mac(end, list_at, tail_at, secret) == fields.mac
            && fields.stamp < COUNT_MAX
            && fields.lap < LAP_MAX;
        genuine.then(|| Self {
            device: fields.device,
            stamp: fields.stamp,
            lap: fields.lap,
            list: decode_list(&end[list_at..tail_at]),
        })
    }
}

/// MAC for a footer at the end of `end`.
fn footer_mac(end: &[u8], list_at: usize, tail_at: usize, secret: &Secret) -> u64 {
    secret.mac(&[b"footer", &end[list_at..tail_at], covered(&end[tail_at..])])
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
            fresh_until: 9,
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
            link: Link {
                previous: 7,
                previous_batches: 11,
                durable: Some(DurablePoint {
                    openings_back: 1,
                    batches: 10,
                }),
            },
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
            link: Link::default(),
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
