//! A stripe: the Disk Table and the log on a device, with all their state in memory.
//!
//! `cache` looks up and puts records, `writer` writes them to the device, `store/recover` fills the
//! index. This file changes the state: it puts and removes records. The reading files are `lookup`,
//! `read`, `ring_read`, `read_ahead` and `group_read`; `scan` and `walk` list objects.
//!
//! Invariant: bytes leave the stripe only after MAC, name, version and page checksums were
//! verified. The log head is compared with the record position after the read: the writer moves the
//! head before it overwrites, so a record that is still live then was read whole.

mod group_read;
mod load_sets;
mod lookup;
mod peek;
mod read;
mod read_ahead;
mod recent_runs;
mod ring_read;
mod scan;
mod walk;

use std::ops::Range;
use std::sync::Arc;

use group_read::GroupReads;
pub(crate) use lookup::{Deferred, Hint, Recalled, StripeLookup};
pub(crate) use scan::StripeScan;
pub(crate) use walk::{StripeWalk, WalkPlace};

use crate::address::LogPos;
use crate::bans::Bans;
use crate::device::Ring;
use crate::disk::circular_log::LogMap;
use crate::disk::{Index, Medium};
use crate::format::{Family, Removed};
use crate::geometry::bans_max;
use crate::hidden::{HiddenRanges, KeyRange};
use crate::io::Pool;
use crate::key::{KeyHash, SHARDS};
use crate::members::Peer;
use crate::memory::{Arrival, Copied, ReadLocked, WriteLocked};
use crate::object::Version;
use crate::policy::Located;
use crate::record::Record;
use crate::shard::{Pending, PutToken, PutsInProgress, Shard};
use crate::shared::Shared;
use crate::stats::Health;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::write_queue::{Caller, NAME_BYTES, Queue, Removal, Removing};

/// See the module head.
pub(crate) struct Stripe {
    pub(crate) medium: Medium,
    pub(crate) index: Index,
    pub(crate) log: LogMap,
    pub(crate) shared: Arc<Shared>,
    pub(crate) bans: Bans,
    pub(crate) queue: Arc<Queue>,
    pub(crate) pool: Pool,
    /// Serves simple reads, if the kernel allows a ring.
    pub(crate) ring: Option<Ring>,
    /// The puts in progress for each shard, reachable without the shard lock.
    puts: Box<[Arc<PutsInProgress>]>,
    group_reads: GroupReads,
    /// Disk Table slots that were written. Incremented under the shard lock when a record leaves
    /// the pending map, so a walk notices that a record moved while a set was read.
    slots_written: AtomicU64,
}

/// Result from a put or an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// Accepted: lookups find the new version.
    Yes,
    /// Rejected: a newer put, remove or ban exists.
    Superseded,
    /// An update of metadata conflicts with another update, or with the put that it updates, which
    /// is still in progress.
    Busy,
    /// The store has failed or is closed.
    OutOfService,
    /// There is no memory for an object that is kept only in memory.
    NoRoom,
}

/// How lookups skip a removed name that may still be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mask {
    /// By an entry for the name.
    Name,
    /// By the bit for the key range of the name.
    Range,
}

/// Parts from which a stripe is built.
pub(crate) struct Parts {
    pub(crate) medium: Medium,
    pub(crate) index: Index,
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) pool: Pool,
    pub(crate) ring: Option<Ring>,
}

impl Stripe {
    pub(crate) fn new(parts: Parts) -> Self {
        let (medium, index) = (parts.medium, parts.index);
        Self {
            log: LogMap::new(&medium.geometry, medium.device_id),
            bans: Bans::new(&medium.secret, bans_max(&medium.geometry)),
            puts: index.views().map(|it| Arc::clone(&it.puts)).collect(),
            medium,
            index,
            shared: parts.shared,
            queue: parts.queue,
            pool: parts.pool,
            ring: parts.ring,
            group_reads: GroupReads::default(),
            slots_written: AtomicU64::new(0),
        }
    }

    /// This device as the other devices of the store see it.
    pub(crate) fn peer(&self) -> Peer {
        Peer {
            health: Arc::clone(&self.medium.health),
            queue: Arc::downgrade(&self.queue),
        }
    }

    /// See [`Index::shard`].
    pub(crate) fn shard(&self, key: KeyHash) -> WriteLocked<'_, Shard> {
        self.index.shard(key)
    }

    pub(crate) fn shard_at(&self, n: usize) -> WriteLocked<'_, Shard> {
        self.index.shard_at(n)
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = WriteLocked<'_, Shard>> {
        self.index.shards()
    }

    /// See [`Index::view`].
    pub(crate) fn view(&self, key: KeyHash) -> ReadLocked<'_, Shard> {
        self.index.view(key)
    }

    pub(crate) fn view_at(&self, n: usize) -> ReadLocked<'_, Shard> {
        self.index.view_at(n)
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = ReadLocked<'_, Shard>> {
        self.index.views()
    }

    /// Index entries with live records. Costs a walk over the index.
    pub(crate) fn live_entries(&self) -> u64 {
        let head = self.log.head();
        self.views().map(|shard| shard.policy.live(head)).sum()
    }

    pub(crate) fn draw_version(&self) -> Version {
        self.shared.members.draw_version()
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.shared.members.next_version()
    }

    /// Recovery found a record with `version`, so later versions must be higher.
    pub(crate) fn version_was_drawn(&self, version: u64) {
        self.shared.members.version_was_drawn(version);
    }

    /// Returns true if this device may serve a head with this version. False if another device
    /// owned the name since then.
    fn counts(&self, key: KeyHash, version: Version) -> bool {
        self.shared
            .members
            .counts(key, version, self.medium.device_id)
    }

    pub(crate) fn health(&self) -> Health {
        self.medium.health.get()
    }

    /// Finishes recovery: applies the removes that were made in the meantime to the recovered
    /// index.
    pub(crate) fn recovered(&self) {
        let forgotten = self.forget_removing(0..SHARDS);
        if forgotten > 0 {
            tracing::warn!(
                shards = forgotten,
                of = SHARDS,
                "too many removes during recovery: their shards of the index are forgotten"
            );
            self.medium.counters.forgotten.add(1);
        }
        self.medium.health.recovered();
        if self.medium.geometry.family == Family::Log {
            // The index now knows all names, so the names that were hidden since have been
            // forgotten in it, too.
            for mut shard in self.shards() {
                shard.hidden = HiddenRanges::default();
            }
        }
    }

    /// Forgets the keys that are being removed: recovery may have loaded them after the remove
    /// started. Returns how many shards were forgotten whole, because there was no memory for the
    /// names of removes.
    pub(crate) fn forget_removing(&self, shards: Range<usize>) -> usize {
        let mut forgotten = 0;
        for mut shard in shards.map(|n| self.shard_at(n)) {
            if shard.hidden.any() && shard.policy.log_mut().is_some() {
                // The log index cannot tell the names of a hidden range from other names.
                shard.policy.clear();
                forgotten += 1;
            }
            let removing: Vec<KeyHash> = shard.removing.keys().copied().collect();
            for key in removing {
                self.forget(&mut shard, key);
            }
        }
        forgotten
    }

    /// Counts a slot write for `pending`: see [`Shard::written`].
    pub(crate) fn slot_was_written(&self, shard: &mut Shard, pending: &Arc<Pending>) -> bool {
        self.slots_written.fetch_add(1, Ordering::AcqRel);
        shard.written(pending)
    }

    /// Returns true if the index maps `key` to the window of `at`. To be called only if all index
    /// positions are in memory.
    pub(crate) fn indexes(&self, key: KeyHash, at: LogPos) -> bool {
        match self.view(key).policy.locate(key, self.log.head()) {
            Located::Log(candidates) => candidates.as_slice().contains(&self.window(at)),
            _ => false,
        }
    }

    /// Takes the device out of service. Objects in memory are still served.
    pub(crate) fn fail(&self, what: &'static str, error: &std::io::Error) {
        self.medium.health.fail(what, error);
    }

    /// Drops all pending records.
    pub(crate) fn abandon(&self) {
        let mut dropped = Vec::new();
        for mut shard in self.shards() {
            dropped.append(&mut shard.abandon());
        }
    }

    /// Stops all reads and writes. Hot objects are still served.
    pub(crate) fn end(&self) {
        self.medium.health.end();
        self.abandon();
    }

    /// Forgets all index entries that could be for `key`. Returns true if there were any.
    pub(crate) fn forget(&self, shard: &mut Shard, key: KeyHash) -> bool {
        shard.policy.forget_all(key, self.log.head())
    }

    /// Removes `key` with a new version: lookups find no older version after this call. Also
    /// returns true if an older version may have existed.
    pub(crate) fn remove(&self, key: KeyHash) -> (Version, bool) {
        let mut shard = self.shard(key);
        let (version, known, dropped) = self.remove_from(&mut shard, key, Mask::Name);
        drop(shard);
        drop(dropped);
        (version, known)
    }

    /// Removes `key` without memory for the name: if the disk may hold the name, the key range is
    /// hidden together with other keys until the writer has cleared that range. There is no
    /// notification when that is done.
    pub(crate) fn remove_with_range(&self, key: KeyHash) {
        let mut shard = self.shard(key);
        let (_, known, dropped) = self.remove_from(&mut shard, key, Mask::Range);
        drop(shard);
        drop(dropped);
        if known && self.medium.geometry.family == Family::Table {
            self.queue.clear_hidden();
        }
        if self.health() == Health::Recovering {
            self.queue.hid_in_recovery();
        }
    }

    /// Supersedes puts of `key` that are in progress, if memory knows that no version is stored.
    /// Returns true if memory knows that.
    pub(crate) fn remove_absent(&self, key: KeyHash) -> bool {
        // First with the read lock: the write lock would block lookups.
        if !self.is_absent(&self.view(key), key) {
            return false;
        }
        let mut shard = self.shard(key);
        if !self.is_absent(&shard, key) {
            return false;
        }
        let _ = shard.supersede(key, self.draw_version());
        // A copy in memory that was never written to the device.
        self.shared.hot.remove(key);
        true
    }

    /// Returns true if memory knows that neither the queue nor the disk has a version of `key`.
    /// Always false before recovery is over, and while an earlier remove is not yet on disk.
    fn is_absent(&self, shard: &Shard, key: KeyHash) -> bool {
        if shard.pending.contains_key(&key) {
            return false;
        }
        match self.health() {
            Health::OutOfService => true,
            Health::Recovering => false,
            Health::InService => {
                let head = self.log.head();
                !shard.is_removing(key) && shard.policy.locate(key, head) == Located::Nowhere
            }
        }
    }

    /// As [`Stripe::remove`], with the shard lock held by the caller. Returns the pending record,
    /// which the caller must drop after releasing the lock: a drop releases memory and may run
    /// wakers.
    fn remove_from(
        &self,
        shard: &mut Shard,
        key: KeyHash,
        mask: Mask,
    ) -> (Version, bool, Option<Arc<Pending>>) {
        // Draw the version and forget the key under one lock. Recovery does not apply this remove
        // to a checkpoint that starts later, so the key must be gone before such a checkpoint can
        // lock the shard and save it.
        let version = self.draw_version();
        let dropped = shard.supersede(key, version);
        self.shared.hot.remove(key);
        // Both: a pending record may have an older version on disk.
        let known = self.forget(shard, key) | dropped.is_some();
        // A table policy cannot forget a filled slot: lookups skip the key (`is_removing`) until
        // the slot is cleared on disk. If memory knows that there is no such slot, lookups need not
        // skip anything. During recovery the index of a log is not complete: `recovered` forgets
        // the key again.
        let is_table = self.medium.geometry.family == Family::Table;
        let masked = match self.health() {
            Health::InService => is_table && (known || shard.is_removing(key)),
            Health::Recovering => true,
            Health::OutOfService => false,
        };
        match mask {
            _ if !masked => {}
            Mask::Name => {
                shard.removing.insert(key, version);
            }
            Mask::Range => shard.hidden.hide(KeyRange::from_key(key), version),
        }
        (version, known || masked, dropped)
    }

    /// Removes each name with a pending record that a ban matches by label. An older version on
    /// disk need not have that label: if the pending record were lost in a crash, lookups would
    /// find the older version. To be called after each new ban, before the ban is made durable.
    /// Returns the removes that must be durable before the ban is, and true if pending records must
    /// be durable, too: a soft ban must leave the objects that it makes stale.
    ///
    /// No matching record becomes pending in the meantime ([`Stripe::put_head`] checks the bans
    /// under the same lock), and no matching pending record is replaced before this function has
    /// seen it.
    ///
    /// Memory: a remove is smaller than the pending record that it removes.
    pub(crate) fn remove_barred(&self) -> (Vec<Removed>, bool) {
        let mut removed = Vec::new();
        let mut any_stale = false;
        for n in 0..SHARDS {
            let mut gone = Vec::new();
            for (key, pending) in &self.view_at(n).pending {
                let judged = self.bans.judge_labels(&pending.record);
                any_stale |= judged.stale;
                if judged.gone {
                    gone.push(*key);
                }
            }
            if gone.is_empty() {
                continue;
            }
            let mut shard = self.shard_at(n);
            let mut dropped = Vec::with_capacity(gone.len());
            for key in gone {
                // Between the two locks another remove may have taken the record away.
                if self.has_barred_pending(&shard, key) {
                    let (version, _, pending) = self.remove_from(&mut shard, key, Mask::Name);
                    removed.push(Removed { key, version });
                    dropped.extend(pending);
                }
            }
            drop(shard);
            drop(dropped);
        }
        (removed, any_stale)
    }

    /// Returns true if a ban matches the pending record of `key` by label. Then the older versions
    /// of the name must be removed, too.
    fn has_barred_pending(&self, shard: &Shard, key: KeyHash) -> bool {
        let pending = shard.pending.get(&key);
        pending.is_some_and(|it| self.bans.judge_labels(&it.record).gone)
    }

    /// Starts a put of `key` and draws a version for it.
    pub(crate) fn begin(&self, key: KeyHash) -> Arc<PutToken> {
        self.puts[key.shard()].begin(key, false, || self.draw_version())
    }

    /// Starts an update of the stored `version` of `key`.
    pub(crate) fn begin_update(&self, key: KeyHash, version: Version) -> Arc<PutToken> {
        self.puts[key.shard()].begin(key, true, || version)
    }

    /// Finishes a put or an update.
    pub(crate) fn end_put(&self, key: KeyHash, token: &Arc<PutToken>) {
        self.puts[key.shard()].end(key, token);
    }

    /// Returns the lowest version of all puts in progress, or the next version if there are none.
    pub(crate) fn oldest_begun(&self) -> Version {
        // Drawn first: a put that starts between the two lines has a higher version.
        let next = self.draw_version();
        let oldest = self.puts.iter().filter_map(|it| it.oldest());
        oldest.min().unwrap_or(next)
    }

    /// Evicts the hot objects that bans match, because these bans are about to be forgotten.
    pub(crate) fn let_go_of_barred(&self) {
        self.shared
            .hot
            .remove_all(|record| self.bans.judge(record).is_barred());
    }

    /// Makes `pending` the newest record of the name and queues it for the writer, unless the put
    /// of `token` was superseded.
    pub(crate) fn put_head(&self, pending: &Arc<Pending>, token: &Arc<PutToken>) -> Accepted {
        let fields = &pending.record.fields;
        let mut shard = self.shard(fields.key);
        if let Some(refused) = self.refuses(&shard, &pending.record, token) {
            return refused;
        }
        if token.is_update && !shard.outruns(fields.key, token) {
            return Accepted::Busy;
        }
        let older = shard.supersede(fields.key, fields.version);
        let Ok(other) = shard.put(Arc::clone(pending)) else {
            return Accepted::Superseded;
        };
        self.shared.hot.remove(fields.key);
        drop(shard);
        drop((older, other));
        self.push(pending);
        Accepted::Yes
    }

    /// Makes a copy of `record` in memory the newest record of the name, unless the put of `token`
    /// was superseded. The copy is not written. An older version that may be on the device is
    /// removed, and the remove becomes durable soon: otherwise lookups would find the older version
    /// again when the copy is evicted, or after a crash.
    pub(crate) fn put_hot(&self, record: &Record, token: &Arc<PutToken>) -> Accepted {
        let fields = &record.fields;
        // Before the lock is taken, because making room may take long.
        let Some(copied) = self.shared.hot.copy_unwritten(record) else {
            return Accepted::NoRoom;
        };
        // Most of these names have no older version; then the reservation is released.
        let reserved = self.medium.budget.reserve(NAME_BYTES);
        if !self
            .queue
            .lets_in(fields.key, Caller::Nobody, reserved.as_ref())
        {
            return Accepted::NoRoom;
        }
        let (accepted, removed, older) = self.put_copied(record, token, copied);
        drop(older);
        let Some(version) = removed else {
            self.queue.needs_no_removal();
            return accepted;
        };
        let removed = Removed {
            key: fields.key,
            version,
        };
        let removal = Removal {
            what: Removing::Name(removed),
            done: Vec::new(),
            reservation: reserved,
        };
        self.queue.push_removal(removal, Caller::Nobody);
        accepted
    }

    /// The locked part of [`Stripe::put_hot`]. Also returns the version of the remove if older
    /// versions need one, and records to be dropped after the lock is released.
    fn put_copied(
        &self,
        record: &Record,
        token: &Arc<PutToken>,
        copied: Copied,
    ) -> (Accepted, Option<Version>, Vec<Arc<Pending>>) {
        let fields = &record.fields;
        let mut shard = self.shard(fields.key);
        if let Some(refused) = self.refuses(&shard, record, token) {
            return (refused, None, Vec::new());
        }
        if token.is_update && !shard.outruns(fields.key, token) {
            return (Accepted::Busy, None, Vec::new());
        }
        let older = shard.supersede(fields.key, fields.version);
        // Before recovery is over, and while a remove is not done yet, the index cannot rule out an
        // older version.
        let tells = self.health() == Health::InService && !shard.is_removing(fields.key);
        let is_alone =
            older.is_none() && tells && self.locate(&shard, fields.key) == Located::Nowhere;
        let removed = (!is_alone).then(|| self.remove_from(&mut shard, fields.key, Mask::Name));
        let accepted = match self.shared.hot.insert(copied, Arrival::Wanted) {
            Some(_) => Accepted::Yes,
            None => Accepted::NoRoom,
        };
        drop(shard);
        let mut dropped: Vec<_> = older.into_iter().collect();
        let version = removed.map(|(version, _, pending)| {
            dropped.extend(pending);
            version
        });
        (accepted, version, dropped)
    }

    /// Returns why a head must not become the newest record of the name. To be called under the
    /// shard lock.
    fn refuses(&self, shard: &Shard, record: &Record, token: &PutToken) -> Option<Accepted> {
        if self.health() == Health::OutOfService {
            return Some(Accepted::OutOfService);
        }
        // A later ban finds this record among the pending records, and lookups check the bans
        // again. If the record replaced a pending record that a ban matches, `remove_barred` would
        // not see that older versions on disk must be removed, too.
        let is_superseded = token.superseded.load(Ordering::Acquire)
            || self.bans.judge(record).is_barred()
            || self.has_barred_pending(shard, record.fields.key);
        is_superseded.then_some(Accepted::Superseded)
    }

    /// Queues a span for the writer. Until it is written, lookups find it in memory.
    pub(crate) fn put_span(&self, pending: &Arc<Pending>) -> Accepted {
        let key = pending.record.fields.key;
        let mut shard = self.shard(key);
        if self.health() == Health::OutOfService {
            return Accepted::OutOfService;
        }
        let Ok(other) = shard.put(Arc::clone(pending)) else {
            return Accepted::Superseded;
        };
        self.shared.hot.remove(key);
        drop(shard);
        drop(other);
        self.push(pending);
        Accepted::Yes
    }

    fn push(&self, pending: &Arc<Pending>) {
        self.medium.counters.puts.add(1);
        self.queue
            .push(Arc::clone(pending), self.medium.clock.monotone());
    }

    /// Drops entries that the log head has passed from the rows that belong to `segment`. In a lap
    /// this covers every row once.
    pub(crate) fn sweep(&self, segment: u64) {
        let segments = self.medium.geometry.segments;
        for mut shard in self.shards() {
            // With a Disk Table the log holds only tails, to which no entry points.
            let Some(log) = shard.policy.log_mut() else {
                return;
            };
            let rows = u64::from(log.rows());
            let row = |part: u64| u32::try_from(rows * part / segments).unwrap_or(u32::MAX);
            log.sweep(row(segment)..row(segment + 1), self.log.head());
        }
    }
}

#[cfg(test)]
mod race_tests;
#[cfg(test)]
mod window_tests;
