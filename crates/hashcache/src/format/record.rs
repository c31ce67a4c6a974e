//! Records: an object's head and spans, in the log or in a Disk Table slot.
//!
//! A record is prelude (fixed header, page checksums, labels, name), metadata, content. The MAC
//! covers the prelude; the checksums in it cover metadata and content, so every record byte is
//! verified. The MAC also covers the position (segment stamp and offset, or slot), so a copy of a
//! record at another position, for instance in a body sent by a client, is not accepted.

use bytes::Bytes;

use super::layout::{covered, record, seal};
use crate::key::{KeyHash, Secret};
use crate::object::{Cut, MAX_METADATA, MAX_NAME, MAX_SPAN_PAGES, PAGE, Version};

/// Record type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Metadata and the first page of content.
    Head,
    /// A further span of content.
    Span,
}

/// Size of the fixed header, bytes.
const HEADER: usize = RecordHeader::BYTES;

record! {
    /// The fixed header of a record.
    struct RecordHeader = "RECORD", 128;
    0 mac: u64,
    8 kind: u8,
    9 flags: u8,
    10 name_length: u16,
    12 metadata_length: u32,
    16 version: Version,
    24 revision: u32,
    28 span: u32,
    32 total_length: u64,
    40 content_length: u32,
    44 span_pages: u8,
    /// Words between checksums and name.
    45 labels: u8,
    46 device: u16,
    48 stamp: u64,
    56 place: u64,
    64 key: KeyHash,
    80 mark: u128,
    96 group: u64,
    104 useless_after: u64,
    112 tail_position: u64,
    120 tail_length: u32,
    /// See `hour`.
    124 fresh_until: u16,
}

/// A kind's number on disk.
pub(crate) fn kind_number(kind: Kind) -> u8 {
    match kind {
        Kind::Head => 1,
        Kind::Span => 2,
    }
}

const FLAG_INCOMPLETE: u8 = 1;
/// The first label is no label, but the version as of which the metadata was confirmed.
const FLAG_CONFIRMED: u8 = 2;
/// Page checksums use the store's key. Without this flag, which did not exist in format version 2,
/// they are CRC32C.
const FLAG_KEYED: u8 = 4;
/// Most labels an object may have: as many cache groups as a cache must support (RFC 9875, section
/// 2).
pub(crate) const MAX_LABELS: usize = 32;
const UNKNOWN: u64 = u64::MAX;

/// The data in a record besides name, metadata and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) kind: Kind,
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
    pub(crate) revision: u32,
    /// The version as of which the metadata was right: from the put, or from the last confirmation.
    pub(crate) confirmed: Version,
    /// 0 for a head.
    pub(crate) span: u32,
    /// The object was not complete when this record was written.
    pub(crate) incomplete: bool,
    /// Length of the whole content, if known.
    pub(crate) total: Option<u64>,
    pub(crate) span_pages: u8,
    pub(crate) mark: u128,
    pub(crate) group: u64,
    pub(crate) useless_after: u64,
    /// The caller's hour, as [`crate::Hour`] stores it.
    pub(crate) fresh_until: u16,
    pub(crate) labels: Vec<u64>,
}

impl Fields {
    /// Lower bound for the object's content length, as far as this record can tell.
    pub(crate) fn least_bytes(&self) -> u64 {
        let cut = Cut {
            span_pages: self.span_pages,
        };
        self.total.unwrap_or_else(|| cut.bounds(self.span).start)
    }
}

/// A record's address; the MAC covers it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordAddress {
    pub(crate) device: u16,
    /// Stamp of the segment, 0 in the Disk Table.
    pub(crate) stamp: u64,
    /// Unit within the segment, or slot of the table.
    pub(crate) place: u64,
}

/// The part of a record that did not fit into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailAddress {
    /// Log position, counted in units since the log was made.
    pub(crate) position: u64,
    /// Record bytes in the tail, without the tail's own header.
    pub(crate) length: u32,
}

/// A decoded prelude with a correct MAC.
#[derive(Clone, Debug)]
pub(crate) struct Prelude {
    pub(crate) fields: Fields,
    pub(crate) name: Bytes,
    pub(crate) metadata_bytes: usize,
    pub(crate) content_bytes: usize,
    pub(crate) tail: Option<TailAddress>,
    /// Bytes of the prelude.
    bytes: usize,
    checksums: Vec<u32>,
    /// True if the checksums use the store's key.
    is_keyed: bool,
}

/// Pages for `bytes` bytes.
fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE)
}

fn prelude_bytes(name: usize, labels: usize, metadata: usize, content: usize) -> usize {
    HEADER + 4 * (pages(metadata) + pages(content)) + 8 * labels + name
}

/// Largest prelude, without the name.
pub(crate) const PRELUDE_REST_MAX: usize =
    HEADER + 4 * (MAX_METADATA.div_ceil(PAGE) + MAX_SPAN_PAGES as usize) + 8 * (MAX_LABELS + 1);

/// Bytes of a whole record, without padding.
pub(crate) fn record_bytes(name: usize, labels: usize, metadata: usize, content: usize) -> usize {
    prelude_bytes(name, labels, metadata, content) + metadata + content
}

impl Fields {
    /// Words between checksums and name: the labels, and the confirmed version if it is above the
    /// version.
    pub(crate) fn label_words(&self) -> usize {
        self.labels.len() + usize::from(self.is_confirmed())
    }

    /// The mark for callers that list marks; 0 hides an object that is not complete.
    pub(crate) fn listed_mark(&self) -> u128 {
        if self.incomplete { 0 } else { self.mark }
    }

    fn is_confirmed(&self) -> bool {
        self.confirmed > self.version
    }
}

/// Writes a whole record to the start of `out`, which must have at least `record_bytes` bytes.
///
/// Returns the bytes written. `metadata` and `content` are within the bounds of `object`.
#[expect(
    clippy::too_many_arguments,
    reason = "a record is what it is; one caller per area"
)]
pub(crate) fn encode_record(
    out: &mut [u8],
    secret: &Secret,
    fields: &Fields,
    place: RecordAddress,
    tail: Option<TailAddress>,
    name: &[u8],
    metadata: &Bytes,
    content: &[Bytes],
) -> usize {
    let content_bytes: usize = content.iter().map(Bytes::len).sum();
    assert!(!name.is_empty() && name.len() <= MAX_NAME && metadata.len() <= MAX_METADATA);
    assert!(
        content_bytes <= PAGE * usize::from(MAX_SPAN_PAGES) && fields.labels.len() <= MAX_LABELS
    );
    let prelude = prelude_bytes(
        name.len(),
        fields.label_words(),
        metadata.len(),
        content_bytes,
    );
    let (head, rest) = out.split_at_mut(prelude);
    let body = &mut rest[..metadata.len() + content_bytes];
    let mut behind = &mut *body;
    for chunk in std::iter::once(metadata).chain(content) {
        append(&mut behind, chunk);
    }
    // Copied first, so that the data for each checksum are contiguous, whatever the chunks.
    let (metadata_copy, content_copy) = body.split_at(metadata.len());
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    let header = RecordHeader {
        mac: 0,
        kind: kind_number(fields.kind),
        flags: FLAG_KEYED
            | flag(FLAG_INCOMPLETE, fields.incomplete)
            | flag(FLAG_CONFIRMED, fields.is_confirmed()),
        name_length: narrow_u16(name.len()),
        metadata_length: narrow(metadata.len()),
        version: fields.version,
        revision: fields.revision,
        span: fields.span,
        total_length: fields.total.unwrap_or(UNKNOWN),
        content_length: narrow(content_bytes),
        span_pages: fields.span_pages,
        labels: u8::try_from(fields.label_words()).expect("at most 32 labels, asserted above"),
        device: place.device,
        stamp: place.stamp,
        place: place.place,
        key: fields.key,
        mark: fields.mark,
        group: fields.group,
        useless_after: fields.useless_after,
        tail_position: tail.map_or(UNKNOWN, |tail| tail.position),
        tail_length: tail.map_or(0, |tail| tail.length),
        fresh_until: fields.fresh_until,
    };
    header.encode(head);
    let mut behind = &mut head[HEADER..];
    let metadata_sums = secret.page_checksums(metadata_copy);
    for sum in metadata_sums.chain(secret.page_checksums(content_copy)) {
        append(&mut behind, &sum.to_le_bytes());
    }
    let confirmed = fields.is_confirmed().then_some(fields.confirmed.0);
    for word in confirmed.iter().chain(&fields.labels) {
        append(&mut behind, &word.to_le_bytes());
    }
    append(&mut behind, name);
    let mac = secret.mac(&[covered(head)]);
    seal(head, mac);
    prelude + metadata.len() + content_bytes
}

/// Writes `bytes` to `out`, then moves `out` behind them.
fn append(out: &mut &mut [u8], bytes: &[u8]) {
    let (start, rest) = std::mem::take(out).split_at_mut(bytes.len());
    start.copy_from_slice(bytes);
    *out = rest;
}

fn narrow(length: usize) -> u32 {
    u32::try_from(length).expect("bounds of `object` are far below 4 GiB")
}

fn narrow_u16(length: usize) -> u16 {
    u16::try_from(length).expect("a name has at most 4096 bytes")
}

/// The key in the record that starts with `bytes`, if the record also claims to be at `place`.
/// Neither claim is verified.
pub(crate) fn claimed_key(bytes: &[u8], place: RecordAddress) -> Option<KeyHash> {
    let header = RecordHeader::decode(bytes)?;
    let lies_there =
        header.device == place.device && header.stamp == place.stamp && header.place == place.place;
    lies_there.then_some(header.key)
}

impl Prelude {
    /// Decodes the prelude that `bytes` starts with, if it belongs to this store and this address.
    pub(crate) fn decode(bytes: &[u8], secret: &Secret, place: RecordAddress) -> Option<Self> {
        let header = RecordHeader::decode(bytes)?;
        let name_bytes = usize::from(header.name_length);
        let metadata_bytes = usize::try_from(header.metadata_length).ok()?;
        let content_bytes = usize::try_from(header.content_length).ok()?;
        let labels = usize::from(header.labels);
        let is_confirmed = header.flags & FLAG_CONFIRMED != 0;
        if name_bytes == 0
            || name_bytes > MAX_NAME
            || metadata_bytes > MAX_METADATA
            || content_bytes > PAGE * usize::from(MAX_SPAN_PAGES)
            || labels > MAX_LABELS + usize::from(is_confirmed)
            || labels < usize::from(is_confirmed)
        {
            return None;
        }
        let prelude = prelude_bytes(name_bytes, labels, metadata_bytes, content_bytes);
        let prelude_slice = bytes.get(..prelude)?;
        if secret.mac(&[covered(prelude_slice)]) != header.mac {
            return None;
        }
        let found = RecordAddress {
            device: header.device,
            stamp: header.stamp,
            place: header.place,
        };
        if found != place {
            return None;
        }
        // These bytes are our own. If they do not parse, a later minor version or a bug wrote them,
        // and the result is a miss either way.
        let kind = match header.kind {
            1 => Kind::Head,
            2 => Kind::Span,
            _ => return None,
        };
        let known = |value| if value == UNKNOWN { None } else { Some(value) };
        let sums = pages(metadata_bytes) + pages(content_bytes);
        let (checksums, behind) = prelude_slice[HEADER..].split_at(4 * sums);
        let (words, name) = behind.split_at(8 * labels);
        let checksums = checksums.as_chunks().0;
        let words = words.as_chunks().0;
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let version = header.version;
        let confirmed = is_confirmed.then(|| words.next()).flatten().map(Version);
        Some(Self {
            fields: Fields {
                kind,
                key: header.key,
                version,
                revision: header.revision,
                confirmed: confirmed.unwrap_or(version).max(version),
                span: header.span,
                incomplete: header.flags & FLAG_INCOMPLETE != 0,
                total: known(header.total_length),
                span_pages: header.span_pages.clamp(1, MAX_SPAN_PAGES),
                mark: header.mark,
                group: header.group,
                useless_after: header.useless_after,
                fresh_until: header.fresh_until,
                labels: words.collect(),
            },
            name: Bytes::copy_from_slice(name),
            metadata_bytes,
            content_bytes,
            tail: known(header.tail_position).map(|position| TailAddress {
                position,
                length: header.tail_length,
            }),
            bytes: prelude,
            checksums: checksums
                .iter()
                .map(|sum| u32::from_le_bytes(*sum))
                .collect(),
            is_keyed: header.flags & FLAG_KEYED != 0,
        })
    }

    /// Bytes of the whole record, without padding.
    pub(crate) fn record_bytes(&self) -> usize {
        self.bytes + self.metadata_bytes + self.content_bytes
    }

    /// Metadata and content from the whole record, if every page checksum is correct.
    pub(crate) fn body(&self, secret: &Secret, record: &Bytes) -> Option<(Bytes, Bytes)> {
        if record.len() < self.record_bytes() {
            return None;
        }
        let metadata = record.slice(self.bytes..self.bytes + self.metadata_bytes);
        let content = record.slice(self.bytes + self.metadata_bytes..self.record_bytes());
        let wanted = self.checksums.iter().copied();
        let is_whole = if self.is_keyed {
            let found = secret.page_checksums(&metadata);
            found.chain(secret.page_checksums(&content)).eq(wanted)
        } else {
            let pages = metadata.chunks(PAGE).chain(content.chunks(PAGE));
            pages.map(crc32c::crc32c).eq(wanted)
        };
        is_whole.then_some((metadata, content))
    }
}

/// Size of a tail's header, bytes.
pub(crate) const TAIL_HEADER: usize = TailHeader::BYTES;

record! {
    /// A tail's header; the bytes that did not fit into the Disk Table slot follow.
    struct TailHeader = "TAIL", 64;
    0 mac: u64,
    8 version: Version,
    16 revision: u32,
    20 length: u32,
    24 stamp: u64,
    32 place: u64,
    40 key: KeyHash,
    56 device: u16,
    60 checksum: u32,
}

/// Identifies the record that a tail belongs to; a tail with another version is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) key: KeyHash,
    pub(crate) version: Version,
    pub(crate) revision: u32,
}

impl Tail {
    /// Writes the header and the bytes to `out`.
    pub(crate) fn encode(
        &self,
        out: &mut [u8],
        secret: &Secret,
        place: RecordAddress,
        bytes: &[u8],
    ) {
        let (head, rest) = out.split_at_mut(TAIL_HEADER);
        self.header(place, bytes).encode(head);
        seal(head, secret.mac(&[b"tail", covered(head)]));
        rest[..bytes.len()].copy_from_slice(bytes);
    }

    /// Returns exactly this tail's bytes, if they are there.
    pub(crate) fn decode<'a>(
        &self,
        bytes: &'a [u8],
        secret: &Secret,
        place: RecordAddress,
        length: usize,
    ) -> Option<&'a [u8]> {
        let body = bytes.get(TAIL_HEADER..TAIL_HEADER.checked_add(length)?)?;
        let head = &bytes[..TAIL_HEADER];
        let found = TailHeader::decode(head)?;
        let wanted = TailHeader {
            mac: found.mac,
            ..self.header(place, body)
        };
        let genuine = secret.mac(&[b"tail", covered(head)]) == found.mac && found == wanted;
        genuine.then_some(body)
    }

    /// Header for `bytes` at `place`, without the MAC.
    fn header(&self, place: RecordAddress, bytes: &[u8]) -> TailHeader {
        TailHeader {
            mac: 0,
            version: self.version,
            revision: self.revision,
            length: narrow(bytes.len()),
            stamp: place.stamp,
            place: place.place,
            key: self.key,
            device: place.device,
            checksum: crc32c::crc32c(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Secret, Fields, RecordAddress) {
        let secret = Secret::from_bytes([3; 32]);
        let fields = Fields {
            kind: Kind::Head,
            key: secret.name(b"name"),
            version: Version(42),
            revision: 1,
            confirmed: Version(42),
            span: 0,
            incomplete: false,
            total: Some(70_000),
            span_pages: 4,
            mark: 5,
            group: 6,
            useless_after: 7,
            fresh_until: 11,
            labels: vec![8, 9],
        };
        (
            secret,
            fields,
            RecordAddress {
                device: 0,
                stamp: 77,
                place: 12,
            },
        )
    }

    fn encoded(content: &[Bytes]) -> Vec<u8> {
        let (secret, fields, place) = sample();
        let metadata = Bytes::from_static(b"some metadata");
        let content_bytes = content.iter().map(Bytes::len).sum();
        let mut out = vec![0xee; record_bytes(4, 2, metadata.len(), content_bytes)];
        let n = encode_record(
            &mut out, &secret, &fields, place, None, b"name", &metadata, content,
        );
        assert_eq!(n, out.len());
        out
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let (secret, fields, place) = sample();
        let content = [Bytes::from(vec![1; 60_000]), Bytes::from(vec![2; 5_536])];
        let bytes = Bytes::from(encoded(&content));
        let prelude = Prelude::decode(&bytes, &secret, place).unwrap();
        assert_eq!(prelude.fields, fields);
        assert_eq!(prelude.name, &b"name"[..]);
        let (metadata, body) = prelude.body(&secret, &bytes).unwrap();
        assert_eq!(metadata, &b"some metadata"[..]);
        assert_eq!(body, content.concat());
    }

    #[test]
    fn the_example_in_the_document_is_a_record_of_its_store() {
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let mut image = std::collections::BTreeMap::new();
        for line in include_str!("../../../../docs/FORMAT.md").lines() {
            let words: Vec<&str> = line.trim_start().split(' ').collect();
            let Some(at) = words
                .first()
                .filter(|it| it.len() == 8)
                .and_then(|it| hex(it))
            else {
                continue;
            };
            let bytes = words[1..].iter().filter(|it| !it.is_empty()).take(16);
            for (n, byte) in bytes.filter_map(|it| hex(it)).enumerate() {
                image.insert(at + n as u64, u8::try_from(byte).unwrap());
            }
        }
        let bytes =
            |at: u64, length: u64| -> Vec<u8> { (at..at + length).map(|at| image[&at]).collect() };
        let secret = Secret::from_bytes(bytes(0x1028, 32).try_into().unwrap());
        let place = RecordAddress {
            device: 0,
            stamp: 2,
            place: 1,
        };
        let record = Bytes::from(bytes(0x12_0200, 0xc0));
        let prelude = Prelude::decode(&record, &secret, place).unwrap();
        assert!(prelude.is_keyed);
        assert_eq!(prelude.name, &b"http://example.org/"[..]);
        let (metadata, content) = prelude.body(&secret, &record).unwrap();
        assert_eq!(
            (&metadata[..], &content[..]),
            (&b"text/plain"[..], &b"Hello, world\n"[..])
        );
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed() {
        let (secret, _, place) = sample();
        let good = encoded(&[Bytes::from_static(b"content")]);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let bad = Bytes::from(bad);
            let body = Prelude::decode(&bad, &secret, place).and_then(|p| p.body(&secret, &bad));
            assert_eq!(body, None, "bit {bit}");
        }
    }

    /// As format version 2 had it.
    fn with_crc32c(keyed: &[u8]) -> Vec<u8> {
        let (secret, _, place) = sample();
        let prelude = Prelude::decode(keyed, &secret, place).unwrap();
        let (metadata, content) = keyed[prelude.bytes..].split_at(prelude.metadata_bytes);
        let pages = metadata.chunks(PAGE).chain(content.chunks(PAGE));
        let mut old = keyed.to_vec();
        old[9] &= !FLAG_KEYED;
        for (n, sum) in pages.map(crc32c::crc32c).enumerate() {
            old[HEADER + 4 * n..][..4].copy_from_slice(&sum.to_le_bytes());
        }
        let head = &mut old[..prelude.bytes];
        let mac = secret.mac(&[covered(head)]);
        seal(head, mac);
        old
    }

    #[test]
    fn a_record_of_format_version_2_is_read_and_its_damage_found() {
        let (secret, fields, place) = sample();
        let content = vec![1; 70_000];
        let old = with_crc32c(&encoded(&[Bytes::from(content.clone())]));
        let prelude = Prelude::decode(&old, &secret, place).unwrap();
        assert_eq!(prelude.fields, fields);
        let (metadata, body) = prelude.body(&secret, &Bytes::from(old.clone())).unwrap();
        assert_eq!(metadata, &b"some metadata"[..]);
        assert_eq!(body, content);
        for at in [prelude.bytes, old.len() - 1] {
            let mut bad = old.clone();
            bad[at] ^= 1;
            assert_eq!(prelude.body(&secret, &Bytes::from(bad)), None);
        }
    }

    #[test]
    fn content_that_was_forged_to_the_crc32c_of_a_page_does_not_verify() {
        let (secret, _, place) = sample();
        let content: Vec<u8> = (0..8192_u32)
            .map(|n| (n * n / 7).to_le_bytes()[0])
            .collect();
        let good = encoded(&[Bytes::from(content)]);
        let body_of = |bytes: &[u8]| {
            let prelude = Prelude::decode(bytes, &secret, place)?;
            prelude.body(&secret, &Bytes::copy_from_slice(bytes))
        };
        // CRC32C is linear, so its polynomial can be added anywhere.
        let polynomial = ((0x82f6_3b78_u64 << 1) | 1).to_le_bytes();
        let forge = |bytes: &mut [u8]| {
            let at = bytes.len() - 4_000;
            for (byte, add) in bytes[at..].iter_mut().zip(&polynomial[..5]) {
                *byte ^= add;
            }
        };
        let mut old = with_crc32c(&good);
        let before = body_of(&old).unwrap();
        forge(&mut old);
        let after = body_of(&old).expect("CRC32C does not notice");
        assert_ne!(after.1, before.1);
        let mut forged = good.clone();
        assert!(body_of(&forged).is_some());
        forge(&mut forged);
        assert_eq!(body_of(&forged), None);
    }

    #[test]
    fn no_byte_makes_keyed_checksums_count_as_crc32c() {
        let (secret, _, place) = sample();
        let mut bytes = encoded(&[Bytes::from_static(b"content")]);
        bytes[9] &= !FLAG_KEYED;
        assert!(Prelude::decode(&bytes, &secret, place).is_none());
    }

    #[test]
    fn a_record_is_nothing_at_another_place_or_for_another_store() {
        let (secret, _, place) = sample();
        let bytes = encoded(&[]);
        let elsewhere = RecordAddress { place: 13, ..place };
        let later = RecordAddress { stamp: 78, ..place };
        assert!(Prelude::decode(&bytes, &secret, place).is_some());
        assert!(Prelude::decode(&bytes, &secret, elsewhere).is_none());
        assert!(Prelude::decode(&bytes, &secret, later).is_none());
        assert!(Prelude::decode(&bytes, &Secret::from_bytes([4; 32]), place).is_none());
    }

    #[test]
    fn any_bytes_decode_to_nothing_without_panic() {
        let (secret, _, place) = sample();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.usize(..400)).map(|_| random.u8(..)).collect();
            assert!(Prelude::decode(&bytes, &secret, place).is_none());
        }
    }

    #[test]
    fn a_tail_serves_only_the_record_it_was_written_for() {
        let (secret, fields, place) = sample();
        let tail = Tail {
            key: fields.key,
            version: Version(42),
            revision: 0,
        };
        let mut out = vec![0; TAIL_HEADER + 5];
        tail.encode(&mut out, &secret, place, b"hello");
        assert_eq!(tail.decode(&out, &secret, place, 5), Some(&b"hello"[..]));
        assert_eq!(tail.decode(&out, &secret, place, 4), None);
        assert_eq!(tail.decode(&out, &secret, place, usize::MAX), None);
        let newer = Tail {
            version: Version(43),
            ..tail
        };
        assert_eq!(newer.decode(&out, &secret, place, 5), None);
        out[TAIL_HEADER] ^= 1;
        assert_eq!(tail.decode(&out, &secret, place, 5), None);
    }
}
