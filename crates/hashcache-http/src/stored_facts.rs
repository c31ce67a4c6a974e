//! The facts that a hit needs from a stored response, as plain numbers.
//!
//! `storable` computes them when a response is stored, and the proxy keeps the bytes in the
//! object's metadata. `reuse` and `validate` read them at every hit, so that no fields must be
//! parsed again.
//!
//! Invariant: bytes that `to_bytes` has not written in this layout decode to `None`.
//! Cost: 48 bytes per response.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | layout, 1 |
//! | 1 | 1 | source of the lifetime |
//! | 2 | 2 | status |
//! | 4 | 2 | flags |
//! | 6 | 2 | kinds of the fields of the request that the content answers, and bit 15; or 0 |
//! | 8 | 4 | age on arrival, seconds |
//! | 12 | 4 | lifetime, seconds |
//! | 16 | 4 | stale-while-revalidate, seconds |
//! | 20 | 4 | stale-if-error, seconds |
//! | 24 | 8 | time of arrival |
//! | 32 | 8 | Date |
//! | 40 | 8 | Last-Modified; all ones when there is none |
//!
//! Integers are little-endian, times in seconds since 1970. Builds without the kinds have written 0
//! there, and reject responses that have them: after a downgrade to such a build these responses
//! are fetched again.

use http::{StatusCode, Version};

use crate::age::current_age;
use crate::date::{Seconds, UnixTime};
use crate::freshness::{Lifetime, LifetimeSource};
use crate::request_fields::FieldKinds;

/// Size of [`StoredFacts`] in bytes.
pub const FACTS_BYTES: usize = 48;

/// The facts of a stored response that a hit needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredFacts {
    /// Stored status.
    pub status: StatusCode,
    /// Lifetime and source.
    pub lifetime: Lifetime,
    /// Age on arrival.
    pub initial_age: Seconds,
    /// Time of arrival or last validation.
    pub response_time: UnixTime,
    /// Date, or the time of arrival if the response had none.
    pub date: UnixTime,
    /// Last-Modified.
    pub last_modified: Option<UnixTime>,
    /// How long past the lifetime the response may be served during a validation.
    pub stale_while_revalidate: Seconds,
    /// How long past the lifetime the response may be served in place of an error.
    pub stale_if_error: Seconds,
    /// The boolean facts.
    pub flags: FactFlags,
    /// The kinds of fields in the request that the content answers, so that a 304 does not restore
    /// a lifetime that they forbid. `None`: the response was stored by a build that did not keep
    /// them.
    pub asked_with: Option<FieldKinds>,
}

/// The boolean facts in [`StoredFacts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FactFlags(u16);

impl FactFlags {
    /// Must not be used without validation (`no-cache`).
    pub const NO_CACHE: FactFlags = FactFlags(1);
    /// Must not be served stale (`must-revalidate`, `proxy-revalidate`, `s-maxage`).
    pub const NEVER_STALE: FactFlags = FactFlags(1 << 1);
    /// Does not change while fresh, because the origin (RFC 8246) or a rule declares it.
    pub const IMMUTABLE: FactFlags = FactFlags(1 << 2);
    /// Has an ETag.
    pub const ETAG: FactFlags = FactFlags(1 << 3);
    /// The ETag is strong.
    pub const STRONG_ETAG: FactFlags = FactFlags(1 << 4);
    /// Has a Vary row, which the request must match.
    pub const VARIES: FactFlags = FactFlags(1 << 5);
    /// Content is not to be transformed.
    pub const NO_TRANSFORM: FactFlags = FactFlags(1 << 6);

    /// Was received over HTTP/1.0.
    const HTTP_1_0: FactFlags = FactFlags(1 << 7);
    /// Was received over HTTP/2.
    const HTTP_2: FactFlags = FactFlags(1 << 8);
    /// Has a content coding that the request cannot have caused, so the coding was not negotiated:
    /// every client gets it.
    pub const ANY_CODING: FactFlags = FactFlags(1 << 9);
    /// May be made for a single user, because of a cookie, and has no stated lifetime: it never
    /// gets another lifetime, and is never used without validation (with `NO_CACHE`).
    pub const PERSONAL: FactFlags = FactFlags(1 << 10);

    const ALL: u16 = (1 << 11) - 1;

    /// These flags, plus `flag` if `set` is true.
    #[must_use]
    pub fn with(self, flag: FactFlags, set: bool) -> FactFlags {
        FactFlags(if set { self.0 | flag.0 } else { self.0 })
    }

    /// Returns true if `flag` is set.
    pub fn has(self, flag: FactFlags) -> bool {
        self.0 & flag.0 != 0
    }
}

impl StoredFacts {
    /// These facts for a response received over this version of HTTP.
    #[must_use]
    pub fn received_in(mut self, version: Version) -> StoredFacts {
        let FactFlags(flags) = self.flags;
        let others = flags & !(FactFlags::HTTP_1_0.0 | FactFlags::HTTP_2.0);
        self.flags = FactFlags(others)
            .with(FactFlags::HTTP_1_0, version < Version::HTTP_11)
            .with(FactFlags::HTTP_2, version == Version::HTTP_2);
        self
    }

    /// The HTTP version over which the response was received, for Via.
    pub fn received(&self) -> Version {
        match () {
            () if self.flags.has(FactFlags::HTTP_1_0) => Version::HTTP_10,
            () if self.flags.has(FactFlags::HTTP_2) => Version::HTTP_2,
            () => Version::HTTP_11,
        }
    }

    /// The age now (RFC 9111 4.2.3).
    pub fn age(&self, now: UnixTime) -> Seconds {
        current_age(self.initial_age, self.response_time, now)
    }

    /// The remaining lifetime; negative if stale.
    pub fn ttl(&self, now: UnixTime) -> i64 {
        i64::from(self.lifetime.seconds.get()) - i64::from(self.age(now).get())
    }

    /// Returns true if the response is fresh. A response with a response time in the future is not:
    /// the clock was wrong then or is wrong now, and only a validation can show the age.
    pub fn is_fresh(&self, now: UnixTime) -> bool {
        self.ttl(now) > 0 && self.response_time <= now
    }

    /// Returns true if a conditional request is possible: ETag or Last-Modified is present.
    pub fn has_validator(&self) -> bool {
        self.flags.has(FactFlags::ETAG) || self.last_modified.is_some()
    }

    /// Facts computed from newer fields of the response with the facts `stored`. Facts about the
    /// request that the content answers stay as in `stored`.
    #[must_use]
    pub fn with_request_of(mut self, stored: &StoredFacts) -> StoredFacts {
        self.asked_with = stored.asked_with;
        let before = |flag| stored.flags.has(flag);
        self.flags = self
            .flags
            .with(FactFlags::VARIES, before(FactFlags::VARIES))
            .with(FactFlags::ANY_CODING, before(FactFlags::ANY_CODING));
        if !before(FactFlags::ANY_CODING) {
            self.flags.0 &= !FactFlags::ANY_CODING.0;
        }
        let is_stated = matches!(
            self.lifetime.source,
            LifetimeSource::SMaxage | LifetimeSource::MaxAge | LifetimeSource::Expires
        );
        if before(FactFlags::PERSONAL) && !is_stated {
            self.flags = self.flags.with(FactFlags::PERSONAL, true);
            self.flags = self.flags.with(FactFlags::NO_CACHE, true);
            self.lifetime = Lifetime {
                seconds: Seconds::ZERO,
                source: LifetimeSource::None,
            };
        }
        self
    }

    /// The bytes to store with the response.
    pub fn to_bytes(&self) -> [u8; FACTS_BYTES] {
        let mut out = [0; FACTS_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[LAYOUT, source_to_byte(self.lifetime.source)]);
        put(2, &self.status.as_u16().to_le_bytes());
        put(4, &self.flags.0.to_le_bytes());
        let kinds = self.asked_with.map_or(0, |kinds| RECORDED | kinds.bits());
        put(6, &kinds.to_le_bytes());
        put(8, &self.initial_age.get().to_le_bytes());
        put(12, &self.lifetime.seconds.get().to_le_bytes());
        put(16, &self.stale_while_revalidate.get().to_le_bytes());
        put(20, &self.stale_if_error.get().to_le_bytes());
        put(24, &self.response_time.0.to_le_bytes());
        put(32, &self.date.0.to_le_bytes());
        put(
            40,
            &self
                .last_modified
                .map_or(NO_TIME, |time| time.0)
                .to_le_bytes(),
        );
        out
    }

    /// Parses stored bytes; `None` if they are not in this layout.
    pub fn from_bytes(bytes: &[u8]) -> Option<StoredFacts> {
        let bytes: &[u8; FACTS_BYTES] = bytes.try_into().ok()?;
        let flags = u16_at(bytes, 4);
        if bytes[0] != LAYOUT || flags & !FactFlags::ALL != 0 {
            return None;
        }
        let asked_with = match u16_at(bytes, 6) {
            0 => None,
            kinds if kinds & RECORDED == 0 => return None,
            kinds => Some(FieldKinds::from_bits(kinds & !RECORDED)?),
        };
        let last_modified = u64_at(bytes, 40);
        Some(StoredFacts {
            status: StatusCode::from_u16(u16_at(bytes, 2)).ok()?,
            lifetime: Lifetime {
                seconds: seconds_at(bytes, 12)?,
                source: source_from_byte(bytes[1])?,
            },
            initial_age: seconds_at(bytes, 8)?,
            response_time: UnixTime(u64_at(bytes, 24)),
            date: UnixTime(u64_at(bytes, 32)),
            last_modified: (last_modified != NO_TIME).then_some(UnixTime(last_modified)),
            stale_while_revalidate: seconds_at(bytes, 16)?,
            stale_if_error: seconds_at(bytes, 20)?,
            flags: FactFlags(flags),
            asked_with,
        })
    }
}

const SOURCES: [LifetimeSource; 8] = [
    LifetimeSource::None,
    LifetimeSource::SMaxage,
    LifetimeSource::MaxAge,
    LifetimeSource::Expires,
    LifetimeSource::Rule,
    LifetimeSource::Immutable,
    LifetimeSource::Heuristic,
    LifetimeSource::Negative,
];

fn source_to_byte(source: LifetimeSource) -> u8 {
    let at = SOURCES.iter().position(|&known| known == source);
    let at = at.expect("the table holds every source, see the test");
    u8::try_from(at).expect("eight sources")
}

fn source_from_byte(byte: u8) -> Option<LifetimeSource> {
    SOURCES.get(usize::from(byte)).copied()
}

fn u16_at(bytes: &[u8; FACTS_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8; FACTS_BYTES], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

fn seconds_at(bytes: &[u8; FACTS_BYTES], at: usize) -> Option<Seconds> {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    let number = u32::from_le_bytes(four);
    (number <= Seconds::MAX.get()).then(|| Seconds::new(u64::from(number)))
}

const LAYOUT: u8 = 1;

/// Distinguishes a request without any field that counts (bit set) from an unknown request (0).
const RECORDED: u16 = 1 << 15;

const NO_TIME: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> StoredFacts {
        StoredFacts {
            status: StatusCode::OK,
            lifetime: Lifetime {
                seconds: Seconds::new(60),
                source: LifetimeSource::MaxAge,
            },
            initial_age: Seconds::new(5),
            response_time: UnixTime(1000),
            date: UnixTime(998),
            last_modified: Some(UnixTime(7)),
            stale_while_revalidate: Seconds::new(1),
            stale_if_error: Seconds::new(2),
            flags: FactFlags::default().with(FactFlags::ETAG, true),
            asked_with: Some(FieldKinds::COOKIE.and(FieldKinds::ANY_AUTHORIZATION)),
        }
    }

    #[test]
    fn the_version_of_a_response_survives_storage() {
        assert_eq!(facts().received(), Version::HTTP_11);
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            let stored = facts().received_in(Version::HTTP_2).received_in(version);
            let read = StoredFacts::from_bytes(&stored.to_bytes()).unwrap();
            assert_eq!(read.received(), version);
            assert!(read.flags.has(FactFlags::ETAG));
        }
    }

    #[test]
    fn facts_survive_storage() {
        for source in SOURCES {
            let mut facts = facts();
            facts.lifetime.source = source;
            assert_eq!(StoredFacts::from_bytes(&facts.to_bytes()), Some(facts));
        }
        for asked_with in [None, Some(FieldKinds::default())] {
            let plain = StoredFacts {
                last_modified: None,
                asked_with,
                ..facts()
            };
            assert_eq!(StoredFacts::from_bytes(&plain.to_bytes()), Some(plain));
        }
    }

    #[test]
    fn the_layout_is_the_tables() {
        let bytes = facts().to_bytes();
        assert_eq!(bytes[..8], [1, 2, 200, 0, 8, 0, 1, 0x81]);
        assert_eq!(
            bytes[8..24],
            [5, 0, 0, 0, 60, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]
        );
        assert_eq!(bytes[24..32], 1000_u64.to_le_bytes());
        assert_eq!(bytes[32..40], 998_u64.to_le_bytes());
        assert_eq!(bytes[40..], 7_u64.to_le_bytes());
    }

    #[test]
    fn bytes_of_another_layout_are_refused() {
        let good = facts().to_bytes();
        assert_eq!(StoredFacts::from_bytes(&good[1..]), None);
        for (at, byte) in [
            (0, 2),
            (1, 8),
            (3, 0xff),
            (5, 0x80),
            // Kinds without the bit `RECORDED`, and an unknown kind.
            (7, 1),
            (7, 0x82),
            (11, 0x81),
            (23, 0xff),
        ] {
            let mut bad = good;
            bad[at] = byte;
            assert_eq!(StoredFacts::from_bytes(&bad), None, "byte {at}");
        }
    }

    #[test]
    fn a_response_from_the_future_is_not_fresh() {
        assert!(facts().is_fresh(UnixTime(1000)));
        assert!(facts().is_fresh(UnixTime(1054)));
        assert!(!facts().is_fresh(UnixTime(1055)));
        assert!(!facts().is_fresh(UnixTime(999)));
    }
}
