//! A stripe: the Disk Table and log of one device, with all state in memory that belongs to them.
//!
//! `cache` asks it for records, `writer` writes for it, `store/recover` fills it. This file changes
//! its state: it puts and removes records. `lookup` answers; `read`, `ring_read`, `read_ahead` and
//! `group_read` read; `scan` lists.
//!
//! Invariant: bytes leave the stripe only after MAC, name, version and page checksums were
//! verified. The log's head is compared with the record's position after the read: the writer moves
//! the head before it overwrites, so a record that is still live then was read whole.

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

/// See the module's head.
pub(crate) struct Stripe {
    pub(crate) medium: Medium,
    pub(crate) index: Index,
    pub(crate) log: LogMap,
    pub(crate) shared: Arc<Shared>,
    pub(crate) bans: Bans,
    pub(crate) queue: Arc<Queue>,
    pub(crate) pool: Pool,
    /// Serves simple reads, where the kernel allows a ring.
    pub(crate) ring: Option<Ring>,
    /// Those of the shards, which can be reached without a shard's lock.
    puts: Box<[Arc<PutsInProgress>]>,
    group_reads: GroupReads,
    /// Slots of the Disk Table that were written; counted under the lock of their shard, when their
    /// records leave the pending ones.
    slots_written: AtomicU64,
}

/// Whether a put was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is found from now on.
    Yes,
    /// There was a newer put, remove or ban before it.
    Superseded,
    /// An update of metadata met another one, or the put it belongs to, still under way.
    Busy,
    /// The store has failed or is closed.
    OutOfService,
    /// There is no memory for an object that is kept in memory alone.
    NoRoom,
}

/// How lookups skip a name that is removed and may still be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mask {
    /// By an entry of its own.
    Name,
    /// By the bit of its range of keys.
    Range,
}

/// The parts a stripe is made of.
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

    /// This device, as the others of the store know it.
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

    /// Entries of the index whose records are still there. Costs a walk over the index.
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

    /// Recovery found `version` given out.
    pub(crate) fn version_was_drawn(&self, version: u64) {
        self.shared.members.version_was_drawn(version);
    }

    /// Whether the record of a head counts here: not if its name belonged to another device since.
    fn counts(&self, key: KeyHash, version: Version) -> bool {
        self.shared
            .members
            .counts(key, version, self.medium.device_id)
    }

    pub(crate) fn health(&self) -> Health {
        self.medium.health.get()
    }

    /// Recovery is over. Applies the removes that were made meanwhile to the recovered index.
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
            // The index knows all names now: what was hidden since has been forgotten in it, too.
            for mut shard in self.shards() {
                shard.hidden = HiddenRanges::default();
            }
        }
    }

    /// Forgets the keys that are being removed: recovery may have loaded them after the remove
    /// began. Returns how many shards were forgotten whole, because removes found no room for their
    /// names.
    pub(crate) fn forget_removing(&self, shards: Range<usize>) -> usize {
        let mut forgotten = 0;
        for mut shard in shards.map(|n| self.shard_at(n)) {
            if shard.hidden.any() && shard.policy.log_mut().is_some() {
                // The index of the log does not tell the names of a range from others.
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

    /// `pending` was written to its slot: see [`Shard::written`].
    pub(crate) fn slot_was_written(&self, shard: &mut Shard, pending: &Arc<Pending>) -> bool {
        self.slots_written.fetch_add(1, Ordering::AcqRel);
        shard.written(pending)
    }

    /// Whether the index, which has all its positions in memory, says that `key` lies at `at`, or
    /// in its window.
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

    /// Ends all reads and writes. Hot objects are still served.
    pub(crate) fn end(&self) {
        self.medium.health.end();
        self.abandon();
    }

    /// Forgets all that could be `key`; whether there was any.
    pub(crate) fn forget(&self, shard: &mut Shard, key: KeyHash) -> bool {
        shard.policy.forget_all(key, self.log.head())
    }

    /// Removes `key` with a version that this draws: from now on no older version is found. Also
    /// returns whether there may have been one.
    pub(crate) fn remove(&self, key: KeyHash) -> (Version, bool) {
        let mut shard = self.shard(key);
        let (version, known, dropped) = self.remove_from(&mut shard, key, Mask::Name);
        drop(shard);
        drop(dropped);
        (version, known)
    }

    /// Removes `key` without memory for its name: hides it with a range of other keys if the disk
    /// may hold it, until the writer has cleared that range. No caller learns when that is.
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

    /// Has puts of `key` in progress give way, if memory knows that no version of it is stored.
    /// Returns whether it does.
    pub(crate) fn remove_absent(&self, key: KeyHash) -> bool {
        // First without the lock that keeps lookups waiting.
        if !self.is_absent(&self.view(key), key) {
            return false;
        }
        let mut shard = self.shard(key);
        if !self.is_absent(&shard, key) {
            return false;
        }
        let _ = shard.supersede(key, self.draw_version());
        // A copy that was never written.
        self.shared.hot.remove(key);
        true
    }

    /// Whether memory knows that neither the queue nor the disk has a version of `key`. Not before
    /// recovery is over, and not while the disk does not show a remove yet.
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

    /// The same under the lock of the key's shard. Returns the pending record, to be dropped
    /// without the lock: a drop releases memory and may run wakers.
    fn remove_from(
        &self,
        shard: &mut Shard,
        key: KeyHash,
        mask: Mask,
    ) -> (Version, bool, Option<Arc<Pending>>) {
        // The version is drawn and the key forgotten under one lock. Recovery does not apply this
        // remove to a checkpoint that begins later, so the key must be gone before such a
        // checkpoint can lock the shard and save it.
        let version = self.draw_version();
        let dropped = shard.supersede(key, version);
        self.shared.hot.remove(key);
        // Both: a pending record may have an older version on disk.
        let known = self.forget(shard, key) | dropped.is_some();
        // A table's policy cannot forget a filled slot: lookups skip the key (`is_removing`) until
        // the slot is cleared on disk. Where memory knows that there is none, nothing is to be
        // skipped.
        // During recovery the index of a log is not complete: `recovered` forgets the key again.
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
            Mask::Range => shard.hidden.hide(KeyRange::of(key), version),
        }
        (version, known || masked, dropped)
    }

    /// Takes away each name whose pending record a ban bars by its label, because an older version
    /// on disk need not have that label: were the pending record lost in a crash, the older version
    /// would answer. To be called behind each new ban, before the ban is made durable. Returns
    /// the removes that must be durable before the ban is, and whether pending records must be: a
    /// soft ban must leave what it makes stale.
    ///
    /// No record that the ban bars becomes pending meanwhile ([`Stripe::put_head`] asks under the
    /// same lock), and none that is pending is replaced before this has seen it.
    ///
    /// Memory: a remove is smaller than the pending record that it takes away.
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

    /// Whether the pending record of `key` is barred by its label and must take older versions of
    /// its name with it.
    fn has_barred_pending(&self, shard: &Shard, key: KeyHash) -> bool {
        let pending = shard.pending.get(&key);
        pending.is_some_and(|it| self.bans.judge_labels(&it.record).gone)
    }

    /// Begins a put of `key`, with a version of its own.
    pub(crate) fn begin(&self, key: KeyHash) -> Arc<PutToken> {
        self.puts[key.shard()].begin(key, false, || self.draw_version())
    }

    /// Begins an update of `version` of `key`.
    pub(crate) fn begin_update(&self, key: KeyHash, version: Version) -> Arc<PutToken> {
        self.puts[key.shard()].begin(key, true, || version)
    }

    /// Ends a put or an update.
    pub(crate) fn end_put(&self, key: KeyHash, token: &Arc<PutToken>) {
        self.puts[key.shard()].end(key, token);
    }

    /// The lowest version of a put that is under way; the next one when there is none.
    pub(crate) fn oldest_begun(&self) -> Version {
        // Drawn first: a put that begins between the two lines has a higher version.
        let next = self.draw_version();
        let oldest = self.puts.iter().filter_map(|it| it.oldest());
        oldest.min().unwrap_or(next)
    }

    /// Evicts the hot objects that bans bar, because these bans are about to be forgotten.
    pub(crate) fn let_go_of_barred(&self) {
        self.shared
            .hot
            .remove_all(|record| self.bans.judge(record).is_barred());
    }

    /// Makes `pending` the newest record of its name and queues it to be written, unless the put of
    /// `token` was superseded.
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

    /// Makes a copy of `record` in memory the newest record of its name, unless the put of `token`
    /// was superseded. It is not written. An older version that may lie on the device is removed,
    /// durably soon: otherwise it would be found again when the copy is evicted, or after a crash.
    pub(crate) fn put_hot(&self, record: &Record, token: &Arc<PutToken>) -> Accepted {
        let fields = &record.fields;
        // Before the lock is taken, for making room may take long.
        let Some(copied) = self.shared.hot.copy_unwritten(record) else {
            return Accepted::NoRoom;
        };
        // Most of these names have no older version, and then this is given back.
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

    /// The part of [`Stripe::put_hot`] under the lock. Also returns the version of the remove that
    /// older versions need, and records to be dropped without the lock.
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
        // Before recovery is over, and where a remove is not done yet, the index cannot tell.
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

    /// Why a head must not become the newest record of its name, asked under the lock of its shard.
    fn refuses(&self, shard: &Shard, record: &Record, token: &PutToken) -> Option<Accepted> {
        if self.health() == Health::OutOfService {
            return Some(Accepted::OutOfService);
        }
        // A ban that is made after this finds the record among the pending ones, and lookups ask
        // the bans again. If the record replaced a pending one that a ban bars, `remove_barred`
        // would not see that older versions on disk must be removed too.
        let is_superseded = token.superseded.load(Ordering::Acquire)
            || self.bans.judge(record).is_barred()
            || self.has_barred_pending(shard, record.fields.key);
        is_superseded.then_some(Accepted::Superseded)
    }

    /// Has a span written. Until then it is served from memory.
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

    /// Drops entries that the head has passed from the rows that belong to `segment`: from every
    /// row once a lap.
    pub(crate) fn sweep(&self, segment: u64) {
        let segments = self.medium.geometry.segments;
        for mut shard in self.shards() {
            // In the Disk Table the log holds tails only, to which no entry points.
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
