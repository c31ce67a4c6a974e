//! Name hashes, the places computed from them, and page checksums; the only module that hashes with
//! a key.
//!
//! All hashes use the store's secret. Without a key, a client could choose names that share one row
//! (and evict other objects), and a body could contain a forged record of another site.
//! Called by `cache`, `policy` and `format`.
//!
//! Invariant: shard, first row, tag, second row and device choice use disjoint bits of the 128.
//! Many names may share the device bits ([`Placement`]); nothing else uses these bits.

mod page_key;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher13};

use self::page_key::PageKey;
use crate::object::Version;
use crate::placement::Placement;

/// Shards of a stripe: each has a lock, a pending map and a part of the policy.
pub(crate) const SHARDS: usize = 64;

/// 128-bit keyed hash of an object's name, or of a name, a version and a span number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyHash {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Maps use the lowest bits as the bucket. The lowest bits in `low` choose the device, and
        // may be equal for all names on a host.
        state.write_u64(self.high ^ self.low);
    }
}

impl KeyHash {
    /// The shard: the six highest bits.
    pub(crate) fn shard(self) -> usize {
        (self.high >> 58) as usize
    }

    /// First candidate row among `rows` rows in the shard.
    pub(crate) fn first_row(self, rows: u32) -> u32 {
        scale(((self.high << 6) >> 32) as u32, rows)
    }

    /// Second candidate row among `rows` rows in the shard.
    pub(crate) fn second_row(self, rows: u32) -> u32 {
        scale((self.low >> 32) as u32, rows)
    }

    /// The set among `sets` sets in a Disk Table. Uses shard and row bits together, so that a
    /// shard's sets are adjacent.
    pub(crate) fn set(self, sets: u64) -> u64 {
        ((u128::from(self.high) * u128::from(sets)) >> 64) as u64
    }

    /// Eight bytes that are evenly distributed over keys, even over names on the same host.
    pub(crate) fn spread(self) -> [u8; 8] {
        (self.high ^ self.low).to_be_bytes()
    }

    /// The bits that choose the device.
    pub(crate) fn device_bits(self) -> u64 {
        self.low & DEVICE_BITS
    }

    /// The lowest `bits` bits as a tag that is never 0, because 0 marks an empty entry.
    pub(crate) fn tag(self, bits: u32) -> u16 {
        debug_assert!(bits <= 16);
        let tag = self.high & ((1 << bits) - 1);
        u16::try_from(tag).unwrap_or(u16::MAX).max(1)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.high.to_le_bytes());
        bytes[8..].copy_from_slice(&self.low.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        let (mut high, mut low) = ([0; 8], [0; 8]);
        high.copy_from_slice(&bytes[..8]);
        low.copy_from_slice(&bytes[8..]);
        Self {
            high: u64::from_le_bytes(high),
            low: u64::from_le_bytes(low),
        }
    }
}

/// Bits in `low` that choose neither shard nor row nor tag.
const DEVICE_BITS: u64 = 0xffff_ffff;

/// Scales `fraction` of 2^32 to `0..n`. Uses a multiplication, because a division would cost 20
/// cycles.
fn scale(fraction: u32, n: u32) -> u32 {
    ((u64::from(fraction) * u64::from(n)) >> 32) as u32
}

/// Hasher for name prefixes; it takes any byte count at a time.
pub(crate) type PrefixHasher = siphasher::sip::SipHasher13;

/// The store's secret: one half is the key for names, the other for records.
#[derive(Clone)]
pub(crate) struct Secret {
    names: [u8; 16],
    records: [u8; 16],
    /// Derived from `records`. Behind a pointer, because it takes 2 KiB.
    pages: Arc<PageKey>,
    placement: Placement,
}

impl Secret {
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        let (mut names, mut records) = ([0; 16], [0; 16]);
        names.copy_from_slice(&bytes[..16]);
        records.copy_from_slice(&bytes[16..]);
        Self {
            names,
            records,
            // No MAC has so few input bytes, so these words do not depend on any MAC.
            pages: Arc::new(PageKey::new(|n| {
                mac(&records, &[b"page", &n.to_le_bytes()])
            })),
            placement: Placement::NAME,
        }
    }

    /// As `self`, with a rule for the name part that chooses the device.
    pub(crate) fn placed_by(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// Key for the head of `name`.
    pub(crate) fn name(&self, name: &[u8]) -> KeyHash {
        let key = self.whole(name);
        let part = self.placement.part(name);
        if part.len() == name.len() {
            return key;
        }
        KeyHash {
            high: key.high,
            low: (key.low & !DEVICE_BITS) | self.whole(part).device_bits(),
        }
    }

    fn whole(&self, bytes: &[u8]) -> KeyHash {
        let hash = SipHasher13::new_with_key(&self.names).hash(bytes);
        KeyHash {
            high: hash.h1,
            low: hash.h2,
        }
    }

    /// Key for span `span` in version `version` of `name`.
    pub(crate) fn span(&self, name: &[u8], version: Version, span: u32) -> KeyHash {
        // The suffix makes this longer than the longest name, so no name hashes like a span:
        // SipHash's last block contains the length, and the bytes differ for shorter names.
        let mut hasher = SipHasher13::new_with_key(&self.names);
        hasher.write(name);
        hasher.write(&[0xff; 8]);
        hasher.write(&version.0.to_le_bytes());
        hasher.write(&span.to_le_bytes());
        hasher.write(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
        let hash = hasher.finish128();
        KeyHash {
            high: hash.h1,
            low: hash.h2,
        }
    }

    /// Hasher for prefixes. (The other name hashes have 128 bits, so none is equal to a prefix
    /// hash.)
    pub(crate) fn prefix_hasher(&self) -> PrefixHasher {
        PrefixHasher::new_with_key(&self.names)
    }

    /// Label hash; it differs from the prefix hash with the same bytes.
    pub(crate) fn label(&self, label: &[u8]) -> u64 {
        let mut hasher = self.prefix_hasher();
        hasher.write(b"label");
        hasher.write(label);
        hasher.write(&[0xff; 8]);
        // 0 means any label.
        hasher.finish().max(1)
    }

    /// MAC over the concatenation of `parts`.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> u64 {
        mac(&self.records, parts)
    }

    /// A checksum for each page in `bytes`. An attacker cannot choose content with the same
    /// checksum as other content.
    pub(crate) fn page_checksums(&self, bytes: &[u8]) -> impl Iterator<Item = u32> {
        self.pages.checksums(bytes)
    }
}

fn mac(key: &[u8; 16], parts: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A map keyed by hashes that are already random and secret, so hashing them again is unnecessary.
pub(crate) type KeyMap<V> = HashMap<KeyHash, V, BuildHasherDefault<IdentityHasher>>;

/// Uses the last written word as the hash.
#[derive(Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::from_bytes([7; 32])
    }

    #[test]
    fn key_hash_survives_its_bytes() {
        let key = secret().name(b"http://example.org/");
        assert_eq!(KeyHash::from_bytes(key.to_bytes()), key);
    }

    #[test]
    fn names_and_spans_never_share_a_hash() {
        let secret = secret();
        let mut seen = std::collections::HashSet::new();
        for n in 0..1000u32 {
            let name = n.to_le_bytes();
            assert!(seen.insert(secret.name(&name)));
            for span in 0..3 {
                assert!(seen.insert(secret.span(&name, Version(u64::from(n)), span)));
            }
        }
    }

    /// The part of a name before its first `/`.
    fn host(name: &[u8]) -> &[u8] {
        name.split(|byte| *byte == b'/').next().unwrap_or(name)
    }

    #[test]
    fn names_of_one_host_have_the_device_bits_of_the_host_and_no_others_in_common() {
        let by_name = secret();
        let by_host = secret().placed_by(Placement::new(PLACEMENT, host));
        let on = |host: &str, n: u32| format!("{host}/{n}").into_bytes();
        let mut hashes = std::collections::HashSet::new();
        for n in 0..1000 {
            let name = on("a", n);
            let (placed, whole) = (by_host.name(&name), by_name.name(&name));
            assert_eq!(placed.device_bits(), by_name.name(b"a").device_bits());
            assert_eq!(placed.high, whole.high);
            assert_eq!(placed.low >> 32, whole.low >> 32);
            assert_eq!(placed.shard(), whole.shard());
            // The bucket of a map of 2^20 buckets.
            let mut hasher = IdentityHasher::default();
            placed.hash(&mut hasher);
            hashes.insert(hasher.finish() % (1 << 20));
        }
        assert!(hashes.len() > 990, "{}", hashes.len());
        assert_eq!(by_host.name(b"no host"), by_name.name(b"no host"));
        let other = by_host.name(&on("b", 1)).device_bits();
        assert_ne!(other, by_host.name(&on("a", 1)).device_bits());
    }

    const PLACEMENT: std::num::NonZeroU32 = std::num::NonZeroU32::MIN;

    #[test]
    fn rows_and_shards_are_spread_evenly() {
        // All of one host.
        let first = Placement::new(PLACEMENT, |name| &name[..name.len().min(1)]);
        let secret = secret().placed_by(first);
        let (mut first, mut second, mut shards) = ([0; 10], [0; 10], [0; SHARDS]);
        for n in 0..64_000u32 {
            let key = secret.name(&n.to_be_bytes());
            first[key.first_row(10) as usize] += 1;
            second[key.second_row(10) as usize] += 1;
            shards[key.shard()] += 1;
        }
        assert!(
            first
                .iter()
                .chain(&second)
                .all(|n| (6_000..6_800).contains(n))
        );
        assert!(shards.iter().all(|n| (850..1_150).contains(n)));
    }

    #[test]
    fn a_tag_is_never_zero() {
        assert_eq!(KeyHash { high: 0, low: 0 }.tag(9), 1);
        assert_eq!(
            KeyHash {
                high: u64::MAX,
                low: 0
            }
            .tag(9),
            511
        );
    }
}
