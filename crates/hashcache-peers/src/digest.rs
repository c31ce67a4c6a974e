//! Squid's cache digests, version 5: a [`Filter`] as the body of an HTTP response.
//!
//! The proxy serves its own filter to the peers and fetches the peers' filters. The body is a
//! control block of 128 octets, then the bits of the filter. There is no RFC; the format and the
//! checks are the same as in Squid.
//!
//! Invariant: the length in a parsed block equals the length of the filter, and the filter has at
//! most [`BITS_MAX`](crate::filter::BITS_MAX) bits. Therefore the receiver knows how much memory it
//! needs before the rest of the body arrives.
//! Cost: [`parse`] copies the filter once; a receiver that reads the body in pieces parses only the
//! block and uses [`Filter::from_octets`], which copies nothing.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | version of the format: 5 |
//! | 2 | 2 | oldest version that can read it: 3 |
//! | 4 | 4 | capacity: entries for which the filter was sized |
//! | 8 | 4 | entries that were inserted |
//! | 12 | 4 | deletions: 0, not read |
//! | 16 | 4 | octets of the filter: capacity × bits of an entry / 8, rounded up |
//! | 20 | 1 | bits of an entry |
//! | 21 | 1 | hash functions: 4 |
//! | 22 | 106 | reserved: 0, not read |

use crate::filter::{Filter, Size, SizeError};
use crate::key::HASHES;
use crate::octets::Octets;

/// The path under which Squid serves and expects a digest.
pub const PATH: &str = "/squid-internal-periodic/store_digest";

/// The media type of a digest.
pub const CONTENT_TYPE: &str = "application/cache-digest";

/// Octets of the control block.
pub const BLOCK_BYTES: usize = 128;

const VERSION: u16 = 5;
const OLDEST_READER: u16 = 3;
/// Digests with an older version are rejected.
const OLDEST_READ: u16 = 3;

/// [`HASHES`] as a field of the control block.
const HASHES_FIELD: u8 = 4;
const _: () = assert!(HASHES_FIELD as usize == HASHES);

/// The head of a digest: describes the filter after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlBlock {
    /// Size of the filter.
    pub size: Size,
    /// Number of inserted keys; may exceed the capacity.
    pub entries: u32,
}

/// Why a digest is rejected. The caller counts it and queries the peer in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The digest is shorter than the control block.
    #[error("the control block of the cache digest is cut off")]
    TooShort,
    /// The version is too old, requires a newer reader, or is older than the reader that it
    /// requires.
    #[error(
        "a cache digest of version {current} that is for readers of version {required} and later; \
         this build reads versions {OLDEST_READ} to {VERSION}"
    )]
    Version {
        /// Version of the format.
        current: u16,
        /// The oldest version that can read the digest.
        required: u16,
    },
    /// The filter has no bits or too many.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The filter length differs from the length that the capacity gives.
    #[error("the cache digest says {said} octets for a filter of {expected}")]
    Length {
        /// Value in the control block.
        said: u32,
        /// Value computed from capacity and bits per entry.
        expected: u32,
    },
    /// The number of hash functions is not 4.
    #[error("a cache digest of {0} hash functions instead of {HASHES}")]
    Hashes(u8),
    /// The number of octets after the control block differs from the length in the block.
    #[error("{actual} octets follow the control block of the cache digest, which says {expected}")]
    Body {
        /// Value in the control block.
        expected: u32,
        /// Number of octets received.
        actual: usize,
    },
}

impl ControlBlock {
    /// Parses the first [`BLOCK_BYTES`] octets of a digest; ignores the rest.
    pub fn parse(octets: &[u8]) -> Result<ControlBlock, Refused> {
        let block = octets.first_chunk().ok_or(Refused::TooShort)?;
        let fields = Fields::read(block).ok_or(Refused::TooShort)?;
        let Fields {
            current, required, ..
        } = fields;
        if required > VERSION || current < OLDEST_READ || required > current {
            return Err(Refused::Version { current, required });
        }
        if fields.hashes != HASHES_FIELD {
            return Err(Refused::Hashes(fields.hashes));
        }
        let size = Size::new(fields.capacity, fields.bits_per_entry)?;
        if fields.length != size.octets() {
            return Err(Refused::Length {
                said: fields.length,
                expected: size.octets(),
            });
        }
        Ok(ControlBlock {
            size,
            entries: fields.entries,
        })
    }

    /// The control block of a filter.
    pub fn from_filter(filter: &Filter) -> ControlBlock {
        ControlBlock {
            size: filter.size(),
            entries: filter.entries(),
        }
    }

    /// The octets to send before the filter.
    pub fn octets(&self) -> [u8; BLOCK_BYTES] {
        let fields: [&[u8]; 8] = [
            &VERSION.to_be_bytes(),
            &OLDEST_READER.to_be_bytes(),
            &self.size.capacity().to_be_bytes(),
            &self.entries.to_be_bytes(),
            &0_u32.to_be_bytes(),
            &self.size.octets().to_be_bytes(),
            &[self.size.bits_per_entry()],
            &[HASHES_FIELD],
        ];
        let mut block = [0; BLOCK_BYTES];
        for (to, from) in block.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        block
    }
}

/// Parses a whole digest.
pub fn parse(body: &[u8]) -> Result<Filter, Refused> {
    let block = ControlBlock::parse(body)?;
    let octets = body.get(BLOCK_BYTES..).unwrap_or_default();
    let refused = Refused::Body {
        expected: block.size.octets(),
        actual: octets.len(),
    };
    // Checked before the copy, so that the copy is never larger than the received body.
    if octets.len() != block.size.octets() as usize {
        return Err(refused);
    }
    Filter::from_octets(block.size, block.entries, octets.to_vec()).ok_or(refused)
}

/// The unchecked fields of the control block.
struct Fields {
    current: u16,
    required: u16,
    capacity: u32,
    entries: u32,
    length: u32,
    bits_per_entry: u8,
    hashes: u8,
}

impl Fields {
    fn read(block: &[u8; BLOCK_BYTES]) -> Option<Fields> {
        let mut octets = Octets::new(block);
        let current = octets.u16()?;
        let required = octets.u16()?;
        let capacity = octets.u32()?;
        let entries = octets.u32()?;
        let _deletions = octets.u32()?;
        Some(Fields {
            current,
            required,
            capacity,
            entries,
            length: octets.u32()?,
            bits_per_entry: octets.u8()?,
            hashes: octets.u8()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    /// A digest with 100 entries of 5 bits, 2 of them inserted.
    fn filter() -> Filter {
        let mut filter = Filter::empty(Size::new(100, 5).unwrap()).unwrap();
        filter.insert(&Key::of_get(b"http://example.com/a"));
        filter.insert(&Key::of_get(b"http://example.com/b?c"));
        filter
    }

    fn body() -> Vec<u8> {
        let filter = filter();
        let block = ControlBlock::from_filter(&filter).octets();
        [&block, filter.octets()].concat()
    }

    /// The error for a body with other octets at `offset`.
    fn refusal(offset: usize, octets: &[u8]) -> Refused {
        let mut body = body();
        body[offset..offset + octets.len()].copy_from_slice(octets);
        parse(&body).expect_err("a wrong digest")
    }

    #[test]
    fn a_control_block_is_octet_for_octet_squids() {
        let mut expected = b"\0\x05\0\x03\0\0\0\x64\0\0\0\x02\0\0\0\0\0\0\0\x3f\x05\x04".to_vec();
        expected.resize(BLOCK_BYTES, 0);
        assert_eq!(ControlBlock::from_filter(&filter()).octets()[..], expected);
    }

    #[test]
    fn a_digest_finds_again_what_was_inserted() {
        let parsed = parse(&body()).unwrap();
        assert_eq!(parsed, filter());
        assert!(parsed.contains(&Key::of_get(b"http://example.com/a")));
        assert!(parsed.contains(&Key::of_get(b"http://example.com/b?c")));
        assert!(!parsed.contains(&Key::of_get(b"http://example.com/c")));
    }

    #[test]
    fn versions_that_this_build_cannot_read_are_refused() {
        let version = |current: u16, required: u16| {
            let fields = [current.to_be_bytes(), required.to_be_bytes()].concat();
            let refused = Refused::Version { current, required };
            assert_eq!(refusal(0, &fields), refused);
        };
        version(2, 2);
        version(7, 6);
        version(4, 5);
        // A later version that a version-5 reader can parse is accepted.
        let mut later = body();
        later[1] = 9;
        later[3] = 5;
        assert!(parse(&later).is_ok());
    }

    #[test]
    fn a_filter_without_bits_or_of_another_length_is_refused() {
        assert!(matches!(refusal(4, &[0; 4]), Refused::Size(_)));
        assert!(matches!(refusal(20, &[0]), Refused::Size(_)));
        assert!(matches!(refusal(4, &[0xff; 4]), Refused::Size(_)));
        let length = |said| Refused::Length { said, expected: 63 };
        assert_eq!(refusal(16, &[0, 0, 0, 62]), length(62));
        assert_eq!(refusal(16, &[0, 0, 0, 0]), length(0));
        assert_eq!(refusal(16, &[0xff; 4]), length(u32::MAX));
    }

    #[test]
    fn another_number_of_hash_functions_is_refused() {
        for hashes in (0..=255).filter(|it| *it != 4) {
            assert_eq!(refusal(21, &[hashes]), Refused::Hashes(hashes));
        }
    }

    #[test]
    fn deletions_and_reserved_octets_are_not_read() {
        let mut body = body();
        body[12..16].fill(0xff);
        body[22..BLOCK_BYTES].fill(0xff);
        assert_eq!(parse(&body).unwrap(), filter());
    }

    #[test]
    fn every_cut_and_every_longer_body_is_refused() {
        let body = body();
        for length in 0..BLOCK_BYTES {
            assert_eq!(parse(&body[..length]), Err(Refused::TooShort));
        }
        for length in BLOCK_BYTES..body.len() {
            let refused = Refused::Body {
                expected: 63,
                actual: length - BLOCK_BYTES,
            };
            assert_eq!(parse(&body[..length]), Err(refused));
        }
        assert!(parse(&[&body[..], &[0]].concat()).is_err());
    }
}
