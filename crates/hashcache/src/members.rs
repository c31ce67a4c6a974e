//! An open store's devices: maps names to stripes, assigns versions, and lets the store continue
//! when a device fails.
//!
//! Called by `cache` for owners, by `stripe` for versions and to check if a record counts, and by
//! `writer` when the device has failed.
//!
//! Invariant: names on a failed device have no other owner until every other device has the new
//! membership on disk. After that no record on the failed device counts, so all removes hold.
//! Cost: one atomic load for a store on one device.

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

/// A device in the store: health, and the queue on which the writing thread receives superblock
/// requests.
pub(crate) struct Peer {
    pub(crate) health: Arc<DeviceHealth>,
    pub(crate) queue: Weak<Queue>,
}

/// Versions reserved at each open, so that no version is assigned twice, even after a crash.
pub(crate) const VERSIONS_RESERVED: u64 = 1 << 40;

/// See the module's head.
pub(crate) struct Members {
    /// One for each stripe, in stripe order.
    devices: Vec<Member>,
    /// A bit for each stripe that owns names.
    live: AtomicU64,
    next_version: AtomicU64,
    /// The first version assigned after this open.
    first_version: u64,
    history: RwLock<History>,
    /// The last durable superblock's serial, for each known device.
    serials: Mutex<BTreeMap<u16, u64>>,
    /// In the same order as `devices`.
    peers: OnceLock<Vec<Peer>>,
    /// Held while the history is changed.
    change: Mutex<()>,
}

impl Members {
    /// All `devices` take part, as in `history`.
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

    /// Number of devices.
    pub(crate) fn count(&self) -> NonZeroU64 {
        NonZeroU64::new(self.devices.len() as u64).unwrap_or(NonZeroU64::MIN)
    }

    /// Sets the devices, in order. Called once, before any device is used.
    pub(crate) fn join(&self, peers: Vec<Peer>) {
        debug_assert_eq!(peers.len(), self.devices.len());
        let joined = self.peers.set(peers);
        debug_assert!(joined.is_ok());
    }

    /// The stripe that owns `key`.
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

    /// Returns true if stripe `n` takes part.
    pub(crate) fn is_live(&self, n: usize) -> bool {
        self.live.load(Ordering::Acquire) & (1 << n) != 0
    }

    /// Returns true if a record on `device` for `key` with `version` counts.
    pub(crate) fn counts(&self, key: KeyHash, version: Version, device: u16) -> bool {
        self.read().counts(key, version.0, device)
    }

    /// The version since which `device` has taken part without a break.
    pub(crate) fn since(&self, device: u16) -> u64 {
        self.read().since(device)
    }

    /// The history, for the superblocks.
    pub(crate) fn history(&self) -> History {
        self.read().clone()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, History> {
        self.history.read().expect("no holder of this lock panics")
    }

    // -- superblocks ---------------------------------------------------------------------------

    /// A superblock on `device` with this serial is durable: the other superblocks must store the
    /// serial.
    pub(crate) fn superblock_is_durable(&self, device: u16, serial: u64) {
        let mut serials = self.lock_serials();
        let known = serials.entry(device).or_insert(serial);
        *known = serial.max(*known);
    }

    /// Each device's last durable serial, for the superblocks.
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

    /// The first version assigned after this open: every earlier put has a lower version.
    pub(crate) fn first_version(&self) -> u64 {
        self.first_version
    }

    /// Recovery found that `version` was already assigned.
    pub(crate) fn version_was_drawn(&self, version: u64) {
        self.next_version
            .fetch_max(version.saturating_add(1), Ordering::Relaxed);
    }

    // -- leaving -------------------------------------------------------------------------------

    /// Continues without the failed devices. Blocks until all other devices have the new membership
    /// on disk; false if there is no other device.
    ///
    /// Called by a failed device's writing thread, after it made sure that no object there can
    /// become hot or pending any more and that its queue takes no more requests. Otherwise two
    /// devices that fail at the same time would wait for each other.
    pub(crate) fn go_on(&self) -> bool {
        let _turn = self.change.lock().expect("no holder of this lock panics");
        loop {
            let staying = self.staying();
            if staying.is_empty() {
                return false;
            }
            let members = staying.iter().map(|(n, _)| self.devices[*n]).collect();
            // Records on the remaining devices count as before, because these devices keep their
            // names.
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
            // A device that fails meanwhile drops its promise, and is left out in the next round.
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
