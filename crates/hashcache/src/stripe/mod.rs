//! A stripe: the table and log of one device with everything in memory that belongs to them.
//!
//! `cache` asks it for records, `writer` writes for it, `store/recover` fills it. Here its state
//! changes: records are put and removed. `lookup` answers; `read`, `ring_read`, `read_ahead` and
//! `group_read` read.
//!
//! Invariant: bytes leave only after MAC, name, version and page checksums were verified, and the
//! head had not passed them when the read was complete.

mod group_read;
mod load_sets;
mod lookup;
mod read;
mod read_ahead;
mod ring_read;

use std::ops::Range;
use std::sync::Arc;

use group_read::RunsUnderWay;
pub(crate) use lookup::{Deferred, Hint, Lookup, Recalled};

use crate::address::LogPos;
use crate::bans::Rules;
use crate::device::Ring;
use crate::disk::circular_log::LogMap;
use crate::disk::{Index, Medium};
use crate::format::{Family, Removed};
use crate::geometry::rules_max;
use crate::io::Pool;
use crate::key::{KeyHash, SHARDS};
use crate::members::Peer;
use crate::memory::{ReadLocked, WriteLocked};
use crate::object::Version;
use crate::policy::Located;
use crate::shard::{Beginnings, Begun, Pending, Shard};
use crate::shared::Shared;
use crate::stats::Health;
use crate::sync::atomic::Ordering;
use crate::write_queue::Queue;

/// See the module's head.
pub(crate) struct Stripe {
    pub(crate) medium: Medium,
    pub(crate) index: Index,
    pub(crate) log: LogMap,
    pub(crate) shared: Arc<Shared>,
    pub(crate) rules: Rules,
    pub(crate) queue: Arc<Queue>,
    pub(crate) pool: Pool,
    /// Reads what it can, where the kernel lets it.
    pub(crate) ring: Option<Ring>,
    /// Those of the shards.
    begun: Box<[Arc<Beginnings>]>,
    runs_under_way: RunsUnderWay,
}

/// What became of a record that is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is found from now on.
    Yes,
    /// A newer put, a remove or a rule came first.
    Superseded,
    /// An update of metadata met another one, or the put it belongs to, still under way.
    Busy,
    /// The store has failed or is closed.
    OutOfService,
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
            rules: Rules::new(&medium.secret, rules_max(&medium.geometry)),
            begun: index.views().map(|it| Arc::clone(&it.begun)).collect(),
            medium,
            index,
            shared: parts.shared,
            queue: parts.queue,
            pool: parts.pool,
            ring: parts.ring,
            runs_under_way: RunsUnderWay::default(),
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

    /// The index is known. What was removed while it was not is forgotten now.
    pub(crate) fn recovered(&self) {
        self.forget_removing(0..SHARDS);
        self.medium.health.recovered();
    }

    /// Forgets what is being removed: recovery may have learned of it after that began.
    pub(crate) fn forget_removing(&self, shards: Range<usize>) {
        for mut shard in shards.map(|n| self.shard_at(n)) {
            let removing: Vec<KeyHash> = shard.removing.keys().copied().collect();
            for key in removing {
                self.forget(&mut shard, key);
            }
        }
    }

    /// Whether the index, which has all its positions in memory, says that `key` lies at `at`.
    pub(crate) fn indexes(&self, key: KeyHash, at: LogPos) -> bool {
        match self.view(key).policy.locate(key, self.log.head()) {
            Located::Log(candidates) => candidates.as_slice().contains(&at),
            _ => false,
        }
    }

    /// Takes the device out; what is in memory is still served.
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

    /// Nothing is read or written any more; what is hot is still served.
    pub(crate) fn end(&self) {
        self.medium.health.end();
        self.abandon();
    }

    /// Forgets all that could be `key`; whether there was any.
    pub(crate) fn forget(&self, shard: &mut Shard, key: KeyHash) -> bool {
        shard.policy.forget_all(key, self.log.head())
    }

    /// Takes `key` away as of a version that this draws: from now on no older one is found. Also
    /// says whether anything may have been there.
    pub(crate) fn remove(&self, key: KeyHash) -> (Version, bool) {
        let mut shard = self.shard(key);
        let (version, known, dropped) = self.remove_from(&mut shard, key);
        drop(shard);
        drop(dropped);
        (version, known)
    }

    /// The same under the lock of the key's shard. What was pending is returned, to be let go of
    /// without the lock.
    fn remove_from(
        &self,
        shard: &mut Shard,
        key: KeyHash,
    ) -> (Version, bool, Option<Arc<Pending>>) {
        // Drawn and forgotten under one lock: a checkpoint that begins later sees it gone.
        let version = self.draw_version();
        let dropped = shard.supersede(key, version);
        self.shared.hot.remove(key);
        // Both: a pending record may have an older version on disk.
        let known = self.forget(shard, key) | dropped.is_some();
        // What the policy cannot forget is masked until the remove is on disk. (The index of the
        // log family is not known yet during recovery, `recovered` forgets again.)
        let masked = match self.health() {
            Health::InService => self.medium.geometry.family == Family::Table,
            Health::Recovering => true,
            Health::OutOfService => false,
        };
        if masked {
            shard.removing.insert(key, version);
        }
        (version, known || masked, dropped)
    }

    /// Takes away each name whose pending record a rule bars by its label, because an older version
    /// on disk need not have that label: were the pending record lost in a crash, the older version
    /// would answer. To be called behind each new rule, before the rule is made durable. Returns
    /// the removes that must be durable before the rule is, and whether pending records must be: a
    /// soft rule must leave what it makes stale.
    ///
    /// No record that the rule bars becomes pending meanwhile ([`Stripe::put_head`] asks under the
    /// same lock), and none that is pending is replaced before this has seen it.
    ///
    /// Memory: a remove is smaller than the pending record that it takes away.
    pub(crate) fn remove_barred(&self) -> (Vec<Removed>, bool) {
        let mut removed = Vec::new();
        let mut any_stale = false;
        for n in 0..SHARDS {
            let mut gone = Vec::new();
            for (key, pending) in &self.view_at(n).pending {
                let judged = self.rules.judge_labels(&pending.record);
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
                // Another remove may have come in between the two locks.
                if self.has_barred_pending(&shard, key) {
                    let (version, _, pending) = self.remove_from(&mut shard, key);
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
        pending.is_some_and(|it| self.rules.judge_labels(&it.record).gone)
    }

    /// A put of `key` begins, with a version of its own.
    pub(crate) fn begin(&self, key: KeyHash) -> Arc<Begun> {
        self.begun[key.shard()].begin(key, false, || self.draw_version())
    }

    /// An update of `version` of `key` begins.
    pub(crate) fn begin_update(&self, key: KeyHash, version: Version) -> Arc<Begun> {
        self.begun[key.shard()].begin(key, true, || version)
    }

    /// What began is over.
    pub(crate) fn end_begun(&self, key: KeyHash, begun: &Arc<Begun>) {
        self.begun[key.shard()].end(key, begun);
    }

    /// The lowest version of a put that is under way; the next one when there is none.
    pub(crate) fn oldest_begun(&self) -> Version {
        // Drawn first: what begins meanwhile is newer.
        let next = self.draw_version();
        let begun = self.begun.iter().filter_map(|it| it.oldest());
        begun.min().unwrap_or(next)
    }

    /// Takes out of the hot objects what rules bar: they are about to be forgotten.
    pub(crate) fn let_go_of_barred(&self) {
        self.shared
            .hot
            .remove_all(|record| self.rules.judge(record).is_barred());
    }

    /// Makes `pending` the newest record of its name and has it written, unless something came
    /// first.
    pub(crate) fn put_head(&self, pending: &Arc<Pending>, begun: &Arc<Begun>) -> Accepted {
        let fields = &pending.record.fields;
        let mut shard = self.shard(fields.key);
        if self.health() == Health::OutOfService {
            return Accepted::OutOfService;
        }
        if begun.superseded.load(Ordering::Acquire) {
            return Accepted::Superseded;
        }
        // Asked under the lock, and by look-ups again: a rule that comes now bars what is pending.
        if self.rules.judge(&pending.record).is_barred() {
            return Accepted::Superseded;
        }
        // In its place this would hide from `remove_barred` that older versions must go.
        if self.has_barred_pending(&shard, fields.key) {
            return Accepted::Superseded;
        }
        if begun.is_update && !shard.outruns(fields.key, begun) {
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

    /// Drops entries the head has passed from the rows of `shards` that belong to `segment`: every
    /// row once a lap.
    pub(crate) fn sweep(&self, segment: u64, shards: Range<usize>) {
        let segments = self.medium.geometry.segments;
        for mut shard in shards.map(|n| self.shard_at(n)) {
            let rows = u64::from(shard.policy.rows());
            let row = |part: u64| u32::try_from(rows * part / segments).unwrap_or(u32::MAX);
            shard
                .policy
                .sweep(row(segment)..row(segment + 1), self.log.head());
        }
    }
}
