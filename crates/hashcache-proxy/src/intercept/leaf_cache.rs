//! The certificates that were made lately, by host, the least used given up first.
//!
//! Called by `authority` under its lock.
//!
//! Invariant: what is kept takes no more memory than [`LeafCache::new`] was told, but for the last
//! one added. Cost: a map of hosts and one of their order; both are looked up once a handshake.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hashcache::Reservation;
use rustls::sign::CertifiedKey;

/// A leaf that was made.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub(super) key: Arc<CertifiedKey>,
    /// From when to when it holds, seconds since 1970.
    pub(super) not_before: u64,
    pub(super) not_after: u64,
}

impl Leaf {
    /// Memory that it takes: its certificates, its name twice, and its places in the maps.
    pub(super) fn bytes(&self, host: &str) -> u64 {
        let chain: usize = self.key.cert.iter().map(|it| it.len()).sum();
        (chain + 2 * host.len() + OVERHEAD) as u64
    }
}

/// A leaf with the turn of its last use, and its part of a budget.
struct CachedLeaf {
    used: u64,
    leaf: Leaf,
    _memory: Option<Reservation>,
}

/// All that are kept.
pub(super) struct LeafCache {
    by_host: HashMap<Box<str>, CachedLeaf>,
    /// Hosts by the turn of their last use.
    by_use: BTreeMap<u64, Box<str>>,
    turn: u64,
    bytes: u64,
    bytes_max: u64,
}

impl LeafCache {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            by_host: HashMap::new(),
            by_use: BTreeMap::new(),
            turn: 0,
            bytes: 0,
            bytes_max,
        }
    }

    /// The leaf of `host`, which counts as a use.
    pub(super) fn get(&mut self, host: &str) -> Option<Leaf> {
        let kept = self.by_host.get_mut(host)?;
        self.turn += 1;
        if let Some(host) = self.by_use.remove(&kept.used) {
            self.by_use.insert(self.turn, host);
        }
        kept.used = self.turn;
        Some(kept.leaf.clone())
    }

    /// Keeps `leaf` in place of any other of `host`, and gives up those not used for long.
    /// `memory` is given back with it.
    pub(super) fn put(&mut self, host: &str, leaf: Leaf, memory: Option<Reservation>) {
        self.remove(host);
        self.turn += 1;
        self.bytes += leaf.bytes(host);
        let kept = CachedLeaf {
            used: self.turn,
            leaf,
            _memory: memory,
        };
        self.by_host.insert(host.into(), kept);
        self.by_use.insert(self.turn, host.into());
        while self.bytes > self.bytes_max && self.by_host.len() > 1 {
            let Some((_, oldest)) = self.by_use.first_key_value() else {
                return;
            };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    /// Memory that all of them take, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn remove(&mut self, host: &str) {
        if let Some(kept) = self.by_host.remove(host) {
            self.by_use.remove(&kept.used);
            self.bytes -= kept.leaf.bytes(host);
        }
    }
}

/// Places in both maps, the `Arc` and the vectors; rounded up.
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
        let one = (OVERHEAD + 600 + 2) as u64;
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
        assert_eq!(leaves.bytes(), (OVERHEAD + 700 + 2) as u64);
        assert_eq!(leaves.by_use.len(), 1);
    }

    #[test]
    fn a_bound_below_one_leaf_keeps_the_last() {
        let mut leaves = LeafCache::new(1);
        leaves.put("a", leaf(600, 1), None);
        leaves.put("b", leaf(600, 1), None);
        assert!(leaves.get("a").is_none() && leaves.get("b").is_some());
    }
}
