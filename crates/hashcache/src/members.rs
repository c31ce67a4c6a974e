//! The devices of an open store: which stripe a name belongs to, which versions were given out, and
//! how the store continues when a device fails.
//!
//! `cache` asks it for owners, `stripe` for versions and whether a record counts, `writer` tells it
//! that its device has failed.
//!
//! Invariant: names of a device that failed have no owner but it until every other device has the
//! new membership on disk. From then on nothing that lies on it counts, so all removes hold.
//! Cost: a load for a store on one device.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, Weak};

use crate::completion::promise;
use crate::disk::DeviceHealth;
use crate::key::KeyHash;
use crate::membership::{History, Member, better};
use crate::object::Version;
use crate::stats::Health;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::write_queue::Queue;

/// A device that takes part: whether it is in service, and how its writing thread is asked for a
/// superblock.
pub(crate) struct Peer {
    pub(crate) health: Arc<DeviceHealth>,
    pub(crate) queue: Weak<Queue>,
}

/// Versions set aside at each opening: no version is given out twice, even after a crash.
pub(crate) const VERSIONS_RESERVED: u64 = 1 << 40;

/// See the module's head.
pub(crate) struct Members {
    /// Of each stripe, in the order of stripes.
    devices: Vec<Member>,
    /// A bit for each stripe that names belong to.
    live: AtomicU64,
    next_version: AtomicU64,
    /// The first version of this opening.
    first_version: u64,
    history: RwLock<History>,
    /// Serial of the last durable superblock of each device that is known.
    serials: Mutex<BTreeMap<u16, u64>>,
    /// In the order of `devices`.
    peers: OnceLock<Vec<Peer>>,
    /// Held while the history is changed.
    change: Mutex<()>,
}

impl Members {
    /// All of `devices` take part, as `history` says they do.
    pub(crate) fn new(devices: Vec<Member>, history: History, next_version: u64) -> Self {
        let live = devices
            .iter()
            .enumerate()
            .fold(0, |live, (n, _)| live | 1 << n);
        Self {
            devices,
            live: AtomicU64::new(live),
            next_version: AtomicU64::new(next_version),
            first_version: next_version,
            history: RwLock::new(history),
            serials: Mutex::default(),
            peers: OnceLock::new(),
            change: Mutex::default(),
        }
    }

    /// How many devices take part.
    pub(crate) fn count(&self) -> NonZeroU64 {
        NonZeroU64::new(self.devices.len() as u64).unwrap_or(NonZeroU64::MIN)
    }

    /// The devices, in their order; once, before any of them is used.
    pub(crate) fn join(&self, peers: Vec<Peer>) {
        debug_assert_eq!(peers.len(), self.devices.len());
        let joined = self.peers.set(peers);
        debug_assert!(joined.is_ok());
    }

    /// Number of the stripe that `key` belongs to.
    pub(crate) fn owner(&self, key: KeyHash) -> usize {
        let live = self.live.load(Ordering::Acquire);
        if live.count_ones() <= 1 {
            return usize::try_from(live.trailing_zeros()).unwrap_or(0);
        }
        let members = self.devices.iter().enumerate();
        let best = members
            .filter(|(n, _)| live & (1 << n) != 0)
            .reduce(|best, other| {
                let better = better(*best.1, *other.1, key);
                if better == *best.1 { best } else { other }
            });
        best.map_or(0, |(n, _)| n)
    }

    /// Whether the stripe of this number takes part.
    pub(crate) fn is_live(&self, n: usize) -> bool {
        self.live.load(Ordering::Acquire) & (1 << n) != 0
    }

    /// Whether what `device` holds of `key` under `version` counts.
    pub(crate) fn counts(&self, key: KeyHash, version: Version, device: u16) -> bool {
        self.read().counts(key, version.0, device)
    }

    /// The version from which on `device` has taken part without a break.
    pub(crate) fn since(&self, device: u16) -> u64 {
        self.read().since(device)
    }

    /// For the superblocks.
    pub(crate) fn history(&self) -> History {
        self.read().clone()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, History> {
        self.history.read().expect("no holder of this lock panics")
    }

    // -- superblocks ---------------------------------------------------------------------------

    /// A superblock of `device` with this serial is durable: the others are to remember it.
    pub(crate) fn superblock_is_durable(&self, device: u16, serial: u64) {
        let mut serials = self.lock_serials();
        let known = serials.entry(device).or_insert(serial);
        *known = serial.max(*known);
    }

    /// For the superblocks: the last durable serial of each device.
    pub(crate) fn heard(&self) -> BTreeMap<u16, u64> {
        self.lock_serials().clone()
    }

    fn lock_serials(&self) -> MutexGuard<'_, BTreeMap<u16, u64>> {
        self.serials.lock().expect("no holder of this lock panics")
    }

    // -- versions ------------------------------------------------------------------------------

    pub(crate) fn draw_version(&self) -> Version {
        Version(self.next_version.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.next_version.load(Ordering::Relaxed)
    }

    /// The first version of this opening: all that was put before has a lower one.
    pub(crate) fn first_version(&self) -> u64 {
        self.first_version
    }

    /// Recovery found `version` given out.
    pub(crate) fn version_was_drawn(&self, version: u64) {
        self.next_version
            .fetch_max(version.saturating_add(1), Ordering::Relaxed);
    }

    // -- leaving -------------------------------------------------------------------------------

    /// The other devices continue without those that have failed. Blocks until all of them have
    /// that on disk; false when there is no other.
    ///
    /// Called by the writing thread of a device that has failed, when nothing of it can become hot
    /// or pending any more and its queue takes no more requests: two that fail at once would wait
    /// for each other otherwise.
    pub(crate) fn go_on(&self) -> bool {
        let _turn = self.change.lock().expect("no holder of this lock panics");
        loop {
            let staying = self.staying();
            if staying.is_empty() {
                return false;
            }
            let members = staying.iter().map(|(n, _)| self.devices[*n]).collect();
            // Records on devices that stay count as before: these devices keep the names they own.
            self.history
                .write()
                .expect("no holder of this lock panics")
                .change(self.draw_version().0, members);
            let asked: Vec<_> = staying
                .iter()
                .map(|(_, queue)| {
                    let (done, outcome) = promise();
                    queue.push_superblock(done);
                    outcome
                })
                .collect();
            // One that fails meanwhile drops its promise, and is not asked again.
            if asked.iter().all(|outcome| outcome.wait()) {
                let live = staying.iter().fold(0, |live, (n, _)| live | 1 << n);
                self.live.store(live, Ordering::Release);
                return true;
            }
        }
    }

    fn staying(&self) -> Vec<(usize, Arc<Queue>)> {
        let peers = self.peers.get().into_iter().flatten().enumerate();
        peers
            .filter(|(_, peer)| peer.health.get() != Health::OutOfService)
            .filter_map(|(n, peer)| Some((n, peer.queue.upgrade()?)))
            .collect()
    }
}
