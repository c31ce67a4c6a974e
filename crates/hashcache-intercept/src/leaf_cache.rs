//! An LRU cache of leaf certificates, by host.
//!
//! Called by `authority`, which holds a lock.
//!
//! Invariant: the cache takes at most the memory given to [`LeafCache::new`], plus the last entry.
//! Cost: a lookup in a map per handshake.

use std::sync::Arc;

use hashcache::Reservation;
use lru::LruCache;
use rustls::sign::CertifiedKey;

/// A leaf certificate.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) key: Arc<CertifiedKey>,
    /// Start and end of the validity, seconds since 1970.
    pub(super) not_before: u64,
    pub(super) not_after: u64,
}

impl Leaf {
    /// Memory of the leaf: the certificates, the name, and the entry in the map.
    pub(super) fn bytes(&self, host: &str) -> u64 {
        let chain: usize = self.key.cert.iter().map(|it| it.len()).sum();
        (chain + host.len() + OVERHEAD) as u64
    }
}

/// A leaf with the reservation in the budget.
struct CachedLeaf {
    leaf: Leaf,
    _memory: Option<Reservation>,
}

/// All cached leaves.
pub(super) struct LeafCache {
    by_host: LruCache<Box<str>, CachedLeaf>,
    bytes: u64,
    bytes_max: u64,
}

impl LeafCache {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            by_host: LruCache::unbounded(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Returns the leaf of `host`; counts as a use.
    pub(super) fn get(&mut self, host: &str) -> Option<Leaf> {
        Some(self.by_host.get(host)?.leaf.clone())
    }

    /// Adds `leaf`, replaces an earlier leaf of `host`, and drops the least recently used leaves.
    /// Dropping an entry releases the `memory`.
    pub(super) fn put(&mut self, host: &str, leaf: Leaf, memory: Option<Reservation>) {
        self.bytes += leaf.bytes(host);
        let kept = CachedLeaf {
            leaf,
            _memory: memory,
        };
        if let Some(old) = self.by_host.put(host.into(), kept) {
            self.bytes -= old.leaf.bytes(host);
        }
        while self.bytes > self.bytes_max && self.by_host.len() > 1 {
            let Some((host, oldest)) = self.by_host.pop_lru() else {
                return;
            };
            self.bytes -= oldest.leaf.bytes(&host);
        }
    }

    /// Memory of all entries, bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The entry in the map, the `Arc` and the vectors; rounded up.
const OVERHEAD: usize = 400;

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::sign::any_supported_type;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

    use super::*;

    fn leaf(size: usize, not_after: u64) -> Leaf {
        let key = rcgen::KeyPair::generate().unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let certificate = CertificateDer::from(vec![0; size]);
        let key = CertifiedKey::new(vec![certificate], any_supported_type(&key).unwrap());
        Leaf {
            key: Arc::new(key),
            not_before: 0,
            not_after,
        }
    }

    #[test]
    fn the_least_used_go_first_and_no_more_is_kept_than_allowed() {
        let one = (OVERHEAD + 600 + 1) as u64;
        let mut leaves = LeafCache::new(3 * one);
        for host in ["a", "b", "c"] {
            leaves.put(host, leaf(600, 1), None);
        }
        assert_eq!(leaves.bytes(), 3 * one);
        assert!(leaves.get("a").is_some());
        leaves.put("d", leaf(600, 1), None);
        assert!(leaves.get("b").is_none());
        assert!(
            ["a", "c", "d"]
                .iter()
                .all(|host| leaves.get(host).is_some())
        );
        assert_eq!(leaves.bytes(), 3 * one);
    }

    #[test]
    fn a_host_has_one_leaf() {
        let mut leaves = LeafCache::new(1 << 20);
        leaves.put("a", leaf(600, 1), None);
        leaves.put("a", leaf(700, 2), None);
        assert_eq!(leaves.get("a").unwrap().not_after, 2);
        assert_eq!(leaves.bytes(), (OVERHEAD + 700 + 1) as u64);
        assert_eq!(leaves.by_host.len(), 1);
    }

    #[test]
    fn a_bound_below_one_leaf_keeps_the_last() {
        let mut leaves = LeafCache::new(1);
        leaves.put("a", leaf(600, 1), None);
        leaves.put("b", leaf(600, 1), None);
        assert!(leaves.get("a").is_none() && leaves.get("b").is_some());
    }
}
