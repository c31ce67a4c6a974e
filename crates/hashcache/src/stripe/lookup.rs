//! Lookups: first the hot objects, then the pending records, then the policy, then the disk.
//!
//! Called by `cache`. If memory has the answer, it is returned at once. Otherwise the disk is read:
//! by the calling thread if it blocks for the answer, otherwise by the ring or by an engine thread.
//! Callers that look up the same object in the meantime join that read.
//!
//! Invariant: an answer has the wanted name, and the wanted version if the caller named a version.
//! Cost: see `policy` for reads; a shard lock in one lane if memory has the answer.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use super::Stripe;
use super::group_read::InOtherRun;
use crate::address::{LogPos, SetId};
use crate::completion::Outcome;
use crate::disk::index_rows;
use crate::disk::table;
use crate::disk::{Medium, Read};
use crate::format::Kind;
use crate::key::KeyHash;
use crate::memory::Arrival;
use crate::memory::RecordHandle;
use crate::memory::WriteLocked;
use crate::object::Version;
use crate::policy::{Candidates, Epoch, Located, LogPolicy};
use crate::record::Record;
use crate::shard::{Found, InFlightRead, LookupTarget, Pending, ReadRequest, Shard};
use crate::stats::Health;
use crate::sync::atomic::Ordering;

/// A lookup looks for a run to join before it reads. If it finds this many times that another
/// thread started a run just after that check, it reads by itself.
const TRIES_MAX: u32 = 8;
/// Checkpoints in which a lookup tries to read a row. After that it is a miss.
const CHECKPOINTS_MAX: usize = 3;

/// Result of a read-only lookup in memory.
pub(crate) enum Recalled {
    /// The record is in memory.
    Found(RecordHandle),
    /// The object is not stored.
    Nothing,
    /// Memory cannot tell: call [`Stripe::lookup`].
    Unsure,
}

/// Knowledge about a key without a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// Stored, or another name with an equal tag is stored.
    Stored,
    /// Not stored.
    Missing,
    /// Only a read can tell.
    Unknown,
}

/// An answer from memory, or the read that will give one.
pub(crate) enum StripeLookup {
    /// The record is in memory.
    Found(RecordHandle),
    /// Memory knows that the object is not stored.
    Nothing,
    /// A read is in progress.
    Asked(Outcome<Found>),
    /// The read starts as soon as a caller waits for the answer.
    Deferred(Deferred),
}

/// A read request without a waiting caller: a caller that blocks for the answer reads by itself,
/// which saves two thread switches. If this value is dropped, the engine reads for later callers.
pub(crate) struct Deferred {
    stripe: Arc<Stripe>,
    in_flight: Arc<InFlightRead>,
}

impl Deferred {
    /// Starts the read, unless it has started. Returns the outcome to wait for.
    pub(crate) fn begin(self) -> Outcome<Found> {
        // `drop` starts it.
        self.in_flight.outcome.clone()
    }

    /// Reads on this thread, unless another thread is reading.
    pub(crate) fn wait(self) -> Found {
        if let Some(request) = self.in_flight.take_request() {
            self.stripe.answer(*request, None);
        }
        self.in_flight.outcome.wait()
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if let Some(request) = self.in_flight.take_request() {
            self.stripe.read_for(request);
        }
    }
}

/// Permission to wait for a run that another lookup is reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinRuns {
    Yes,
    No,
}

/// When to start a disk read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// At once, by the caller.
    Now,
    /// When a caller waits for the answer.
    Deferred,
}

/// Result of the lookup step that does not wait.
pub(super) enum FirstAnswer {
    /// Memory has the answer, or a read is in progress.
    Memory(StripeLookup),
    /// A disk read is needed.
    Disk(Box<ReadRequest>),
}

impl Stripe {
    /// Answers from memory if possible, otherwise starts a read.
    pub(crate) fn lookup(self: &Arc<Self>, wanted: LookupTarget) -> StripeLookup {
        match self.ask(wanted, Begin::Deferred) {
            FirstAnswer::Memory(lookup) => lookup,
            FirstAnswer::Disk(request) => {
                let outcome = request.outcome();
                self.read_for(request);
                StripeLookup::Asked(outcome)
            }
        }
    }

    /// Gives `request` to the ring, or to an engine thread.
    pub(super) fn read_for(self: &Arc<Self>, request: Box<ReadRequest>) {
        if let Err(request) = self.submit(request) {
            let stripe = Arc::clone(self);
            self.pool.run(move || stripe.answer(*request, None));
        }
    }

    /// Returns the head of `name` if it is hot. This is the fastest path for a hit.
    pub(crate) fn hot_head(&self, key: KeyHash, name: &[u8]) -> Option<RecordHandle> {
        self.shared
            .hot
            .hit(key, self.is_head(name))
            .map(RecordHandle::Pinned)
    }

    /// Returns a span of `name` if it is hot. Not counted as a hit.
    pub(crate) fn hot_span(
        &self,
        key: KeyHash,
        name: &Bytes,
        (version, span): (Version, u32),
    ) -> Option<RecordHandle> {
        let is_it = |it: &Record| {
            it.fields.kind == Kind::Span
                && (it.fields.version, it.fields.span) == (version, span)
                && it.name == *name
                && !self.bans.judge(it).gone
        };
        let record = self.shared.hot.find(key, is_it)?;
        Some(RecordHandle::Pinned(record))
    }

    /// As [`Stripe::hot_head`], but not counted as a hit.
    pub(crate) fn hot_head_uncounted(&self, key: KeyHash, name: &[u8]) -> Option<RecordHandle> {
        let record = self.shared.hot.find(key, self.is_head(name))?;
        Some(RecordHandle::Pinned(record))
    }

    /// Returns a filter that matches the head of `name` if no ban removes it.
    fn is_head(&self, name: &[u8]) -> impl Fn(&Record) -> bool {
        move |it| it.fields.kind == Kind::Head && it.name == name && !self.bans.judge(it).gone
    }

    /// Looks up the head of `name` in memory. Threads that do this at the same time write to no
    /// shared cache line.
    pub(crate) fn recall_head(&self, key: KeyHash, name: &[u8]) -> Recalled {
        if let Some(record) = self.hot_head(key, name) {
            return Recalled::Found(record);
        }
        let shard = self.view(key);
        if let Some(pending) = shard.pending.get(&key) {
            return self.of_pending(pending, self.is_head(name));
        }
        // The record may have moved from pending to hot since the check above. Then the index knows
        // it, so "nowhere" is true. This holds only if the index is complete and the lookup has no
        // side effects: not before recovery is over, not while removes are masked, and not if the
        // policy must note the lookup.
        let tells = self.health() == Health::InService
            && shard.removing.is_empty()
            && !shard.hidden.any()
            && !shard.policy.notes_look_ups();
        if tells
            && !shard.in_flight.contains_key(&key)
            && self.locate(&shard, key) == Located::Nowhere
        {
            self.medium.counters.misses.add(1);
            return Recalled::Nothing;
        }
        Recalled::Unsure
    }

    /// The answer for a name if `pending` is the newest record.
    fn of_pending(&self, pending: &Pending, right: impl Fn(&Record) -> bool) -> Recalled {
        if !right(&pending.record) {
            // The versions that this record replaced are older, so they are gone, too.
            return Recalled::Nothing;
        }
        self.medium.counters.pending_hits.add(1);
        Recalled::Found(pending.hit(&self.medium.budget))
    }

    /// The answer from memory, or a read request that later callers can join.
    pub(super) fn ask(self: &Arc<Self>, wanted: LookupTarget, begin: Begin) -> FirstAnswer {
        let mut shard = self.shard(wanted.key);
        // Check again under the lock, even if the caller has checked without it: in the meantime
        // the record may have moved from pending to hot.
        let right = |it: &Record| wanted.is(it) && !self.bans.judge(it).gone;
        if let Some(record) = self.shared.hot.hit(wanted.key, right) {
            return FirstAnswer::Memory(StripeLookup::Found(RecordHandle::Pinned(record)));
        }
        if let Some(pending) = shard.pending.get(&wanted.key) {
            return FirstAnswer::Memory(match self.of_pending(pending, right) {
                Recalled::Found(record) => StripeLookup::Found(record),
                Recalled::Nothing | Recalled::Unsure => StripeLookup::Nothing,
            });
        }
        if let Some(in_flight) = shard.in_flight.get(&wanted.key) {
            self.medium.counters.joined_reads.add(1);
            let (outcome, request) = (in_flight.outcome.clone(), in_flight.take_request());
            drop(shard);
            // Two callers want the record now. Neither may depend on when the other caller starts
            // to wait.
            if let Some(request) = request {
                self.read_for(request);
            }
            return FirstAnswer::Memory(StripeLookup::Asked(outcome));
        }
        if let Some(table) = shard.policy.table_mut() {
            table.looked_for(wanted.key);
        }
        let located = self.locate(&shard, wanted.key);
        if located == Located::Nowhere {
            self.medium.counters.misses.add(1);
            return FirstAnswer::Memory(StripeLookup::Nothing);
        }
        let request = Box::new(ReadRequest::new(&mut shard, wanted, located));
        if begin == Begin::Now {
            return FirstAnswer::Disk(request);
        }
        let (stripe, in_flight) = (Arc::clone(self), Arc::clone(&request.in_flight));
        // Under the shard lock: a caller that joins the read must find the request in it.
        *in_flight.lock_request() = Some(request);
        FirstAnswer::Memory(StripeLookup::Deferred(Deferred { stripe, in_flight }))
    }

    /// Returns a disk request if memory has no other answer and the newest candidate for the wanted
    /// record is a window with a position among `positions`. Also returns the start of that window.
    pub(super) fn ask_within(
        &self,
        wanted: LookupTarget,
        positions: &RangeInclusive<LogPos>,
    ) -> Option<(ReadRequest, LogPos)> {
        let mut shard = self.shard(wanted.key);
        let known = self.shared.hot.contains(wanted.key)
            || shard.pending.contains_key(&wanted.key)
            || shard.in_flight.contains_key(&wanted.key);
        let located = self.locate(&shard, wanted.key);
        let windows = self.window(*positions.start())..=self.window(*positions.end());
        let window = located.newest_in_log().filter(|at| windows.contains(at))?;
        (!known).then(|| (ReadRequest::new(&mut shard, wanted, located), window))
    }

    /// Returns where `key` may be on disk.
    pub(super) fn locate(&self, shard: &Shard, key: KeyHash) -> Located {
        if self.health() != Health::InService || shard.is_removing(key) {
            return Located::Nowhere;
        }
        shard.policy.locate(key, self.log.head())
    }

    /// The candidates for `key` that are newer than the window of `at`. `None` if that window is no
    /// candidate, or if a newer record is pending.
    pub(crate) fn newer(&self, shard: &Shard, key: KeyHash, at: LogPos) -> Option<Vec<LogPos>> {
        if shard.pending.contains_key(&key) {
            return None;
        }
        let Located::Log(candidates) = self.locate(shard, key) else {
            return None;
        };
        let all = candidates.as_slice();
        let own = all.iter().position(|other| *other == self.window(at))?;
        Some(all[..own].to_vec())
    }

    /// Returns true if the index has an entry for `key`. An equal tag may give a false positive.
    pub(crate) fn contains_hint(&self, key: KeyHash) -> bool {
        self.hint(key) != Hint::Missing
    }

    /// Knowledge about `key` in memory, without a read.
    pub(crate) fn hint(&self, key: KeyHash) -> Hint {
        let shard = self.view(key);
        if shard.pending.contains_key(&key) {
            return Hint::Stored;
        }
        match self.locate(&shard, key) {
            Located::Nowhere => Hint::Missing,
            Located::Set(..) => Hint::Unknown,
            Located::Log(_) | Located::Displaced(_) | Located::Slot(..) => Hint::Stored,
        }
    }

    /// Finishes a disk lookup: makes the record that was `found` hot if it is still the newest.
    /// `located` is where the index had placed it.
    fn found(
        &self,
        wanted: &LookupTarget,
        found: Option<Record>,
        in_flight: &Arc<InFlightRead>,
        located: &Located,
    ) -> Found {
        // Before the lock is taken, because making room may take long.
        let mut copied = match &found {
            Some(record) if self.may_become_hot(record, in_flight) => {
                self.shared.hot.copy(record, record.at)
            }
            _ => None,
        };
        let mut shard = self.shard(wanted.key);
        shard.end_read(wanted.key, in_flight);
        let Some(record) = found else {
            self.medium.counters.misses.add(1);
            return None;
        };
        // A ban may have been made since the record was read. The ban may even have been forgotten
        // since: then no record older than the ban was left on disk, so the place of this record
        // was overwritten.
        let outlived = || record.at.is_some_and(|at| !self.log.is_live(at));
        // In the Disk Table a ban is forgotten after a pass that clears the slots that the ban
        // hides. The pass marks the reads in flight for each set as gone. A read that a put or a
        // remove has made stale is no longer in the shard map, so the pass cannot mark it: if there
        // are bans, such a read must not count.
        let missed_pass = || record.at.is_none() && in_flight.stale.load(Ordering::Acquire);
        let is_gone =
            self.bans.any() && (self.bans.judge(&record).gone || outlived() || missed_pass());
        if is_gone || in_flight.gone.load(Ordering::Acquire) {
            self.medium.counters.misses.add(1);
            return None;
        }
        self.medium.counters.disk_hits.add(1);
        // When a device has failed, other devices own its names. They do not know this read, so a
        // newer put or a remove there would not take the record out of the hot objects again.
        if self.health() == Health::OutOfService {
            return Some(RecordHandle::alone(record));
        }
        if !in_flight.stale.load(Ordering::Acquire) {
            match record.at {
                Some(at) => {
                    let run = located.run(self.window(at));
                    self.touch(&mut shard, wanted.key, at, run);
                }
                None => {
                    if let Some(table) = shard.policy.table_mut() {
                        table.used(wanted.key);
                    }
                }
            }
            if let Some(copied) = copied.take() {
                // A ban that matched a moment ago may have been forgotten since, so pass the
                // verdict on.
                record.hand_down_judged(copied.record());
                if let Some(hot) = self.shared.hot.insert(copied, Arrival::Wanted) {
                    return Some(RecordHandle::Pinned(hot));
                }
            }
        }
        Some(RecordHandle::alone(record))
    }

    /// Returns true if a record that was read is worth a copy in memory.
    fn may_become_hot(&self, record: &Record, in_flight: &InFlightRead) -> bool {
        let whole = record.fields.total.unwrap_or(u64::MAX);
        whole <= self.hot_object_max()
            && self.health() != Health::OutOfService
            && !in_flight.stale.load(Ordering::Acquire)
    }

    /// Maximum object size, in content bytes, for a record that was read to become hot: a span of a
    /// larger object is not worth the small objects that it would push out.
    pub(super) fn hot_object_max(&self) -> u64 {
        self.medium.budget.limit() / 64
    }

    /// Notes that `key` was served from `at`, and that the run is `run` times 4 KiB long from
    /// there. After this a displaced position is in memory again, with the run.
    pub(super) fn touch(&self, shard: &mut Shard, key: KeyHash, at: LogPos, run: u8) {
        let head = self.log.head();
        let Some(log) = shard.policy.log_mut() else {
            return;
        };
        log.touch(key, at, head);
        if run > 0 {
            log.set_run(key, at, run, head);
        }
    }

    /// Answers `request` with `record` if that is the wanted record, otherwise from the disk.
    pub(super) fn answer(self: &Arc<Self>, request: ReadRequest, record: Option<Record>) {
        let (mut request, mut record, mut tries) = (request, record, 0);
        let found = loop {
            if let Some(record) = record.take() {
                if request.wanted.is(&record) {
                    break Some(record);
                }
            } else {
                let left = self
                    .resolve(request)
                    .and_then(|it| self.join_run(it))
                    .and_then(|it| self.answer_hot(it));
                let Some(left) = left else {
                    return;
                };
                request = left;
            }
            let joins = if self.may_join(&request) && tries < TRIES_MAX {
                JoinRuns::Yes
            } else {
                JoinRuns::No
            };
            match self.find(&request, joins) {
                Ok(found) => break found,
                // `join_run` counts this wait, unless the other read has finished by then.
                Err(InOtherRun) => tries += 1,
            }
        };
        let found = self.found(&request.wanted, found, &request.in_flight, &request.located);
        request.promise.set(found);
    }

    /// Answers `request` after the newest candidate was read.
    pub(super) fn answer_from(self: &Arc<Self>, request: ReadRequest, read: Read) {
        let wanted = &request.wanted;
        let found = match &request.located {
            Located::Log(candidates) => {
                let found = self.find_in_log(wanted, candidates, Some(read), JoinRuns::No);
                found.unwrap_or_default()
            }
            _ => None,
        };
        let found = self.found(wanted, found, &request.in_flight, &request.located);
        request.promise.set(found);
    }

    /// Reads the wanted record from the disk.
    ///
    /// # Errors
    /// As `find_in_log`.
    fn find(
        self: &Arc<Self>,
        request: &ReadRequest,
        joins: JoinRuns,
    ) -> Result<Option<Record>, InOtherRun> {
        let wanted = &request.wanted;
        Ok(match request.located {
            // `resolve` has replaced displaced positions by log positions.
            Located::Nowhere | Located::Displaced(_) => None,
            Located::Log(ref candidates) => {
                return self.find_in_log(wanted, candidates, None, joins);
            }
            Located::Set(set, epoch) => self.find_in_set(wanted, set, epoch),
            Located::Slot(set, slot) => table::read_slot(&self.medium, set, slot)
                .and_then(|slot| self.find_in_slot(wanted, &slot)),
        })
    }

    /// Searches the windows of `candidates` for the wanted record. `first`: the read of the newest
    /// candidate, if it was made already.
    ///
    /// # Errors
    /// With [`JoinRuns::Yes`], another lookup is reading a run that reaches into the window of the
    /// newest candidate.
    fn find_in_log(
        self: &Arc<Self>,
        wanted: &LookupTarget,
        candidates: &Candidates,
        mut first: Option<Read>,
        joins: JoinRuns,
    ) -> Result<Option<Record>, InOtherRun> {
        for (n, at) in candidates.as_slice().iter().enumerate() {
            if n > 0 && !self.still_points_to(wanted.key, *at) {
                continue;
            }
            let run = candidates.run(*at);
            // If an older candidate is in a page that is being loaded, this candidate probably has
            // an equal tag by chance, and the run belongs to another page.
            let older = &candidates.as_slice()[n + 1..];
            let read = match first.take() {
                Some(read) => Some(read),
                None if self.is_page_known(older) => None,
                None => match self.read_with_run(wanted, *at, run) {
                    // A lookup that waited would start with the newest candidate again.
                    Err(InOtherRun) if n > 0 || joins == JoinRuns::No => None,
                    read => read?,
                },
            };
            match read.unwrap_or_else(|| self.read_alone(wanted, *at, run)) {
                Read::Record(record) if wanted.is(&record) => {
                    if self.is_in_force(&record) {
                        return Ok(Some(*record));
                    }
                    // An older version need not have the label that the ban matched, so all entries
                    // that could be for this name are forgotten.
                    if self.bans.judge(&record).gone {
                        self.forget_candidates(wanted.key, candidates);
                        return Ok(None);
                    }
                    // Older versions do not count either, but other names may have an equal tag.
                    self.forget_candidate(&mut self.shard(wanted.key), wanted.key, *at);
                }
                // Compare names even if the tag matches: one miss in 32 meets an equal tag, and the
                // object served would be wrong.
                Read::Record(_) | Read::Other => self.medium.counters.false_reads.add(1),
                Read::Passed => {}
                // The damaged record could have been the newest version of this name. An older
                // version must not be served instead, so all entries that could be for this name
                // are forgotten.
                Read::Damaged => {
                    self.medium.counters.damaged.add(1);
                    self.forget_candidates(wanted.key, candidates);
                    return Ok(None);
                }
                Read::Refused => {
                    self.forget_candidates(wanted.key, candidates);
                    return Ok(None);
                }
                Read::Failed => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns true if the index still has an entry for `key` in the window that starts at `at`.
    /// After a window was read in vain, older candidates count only if this is true (`policy/log`).
    pub(super) fn still_points_to(&self, key: KeyHash, at: LogPos) -> bool {
        let points_to = |log: &dyn LogPolicy| log.points_to(key, at, self.log.head());
        self.view(key).policy.log().is_some_and(points_to)
    }

    /// Resolves a row on disk to log positions, so that `request` can be read; `None` if memory
    /// answered it in the meantime.
    fn resolve(&self, request: ReadRequest) -> Option<ReadRequest> {
        let Located::Displaced(row) = request.located else {
            return Some(request);
        };
        let request = self.answer_hot(request)?;
        let key = request.wanted.key;
        let saved = self.saved_row(key, row, Medium::read_bytes);
        let located = saved.map_or(Located::Nowhere, |(shard, saved)| {
            self.locate_in_row(&shard, key, &saved)
        });
        Some(ReadRequest { located, ..request })
    }

    /// Reads the row of `key` from the published checkpoint with `read`; the row is empty if it
    /// cannot be read. Returns with the shard lock held, and the row stays valid under that lock.
    ///
    /// Tries again if a new checkpoint is published while a row of the old checkpoint is read,
    /// which seldom happens twice.
    pub(super) fn saved_row(
        &self,
        key: KeyHash,
        row: u32,
        read: fn(&Medium, u64, usize) -> Option<Bytes>,
    ) -> Option<(WriteLocked<'_, Shard>, Vec<u8>)> {
        let row = self.index.shape.row_number(key.shard(), row);
        for _ in 0..CHECKPOINTS_MAX {
            let checkpoint_id = self.index.file.checkpoint_id()?;
            let saved = index_rows::read_row(&self.medium, &self.index, checkpoint_id, row, read);
            self.medium
                .counters
                .row_reads
                .add(u64::from(saved.is_some()));
            let shard = self.shard(key);
            if self.index.file.checkpoint_id() == Some(checkpoint_id) {
                return Some((shard, saved.unwrap_or_default()));
            }
        }
        None
    }

    /// Returns where `key` may be on disk, given the `saved` row.
    pub(super) fn locate_in_row(&self, shard: &Shard, key: KeyHash, saved: &[u8]) -> Located {
        let log = shard.policy.log();
        log.map_or(Located::Nowhere, |log| {
            Located::Log(log.resolve(key, saved, self.log.head()))
        })
    }

    fn forget_candidates(&self, key: KeyHash, candidates: &Candidates) {
        let mut shard = self.shard(key);
        for at in candidates.as_slice() {
            self.forget_candidate(&mut shard, key, *at);
        }
    }

    fn forget_candidate(&self, shard: &mut Shard, key: KeyHash, at: LogPos) {
        if let Some(log) = shard.policy.log_mut() {
            log.forget(key, at, self.log.head());
        }
    }

    /// Returns true if a record that was read still counts. A span counts if the head that names it
    /// does.
    pub(super) fn is_in_force(&self, record: &Record) -> bool {
        let fields = &record.fields;
        fields.kind == Kind::Span
            || self.counts(fields.key, fields.version) && !self.bans.judge(record).gone
    }

    fn find_in_set(&self, wanted: &LookupTarget, set: SetId, epoch: Epoch) -> Option<Record> {
        let read = table::read_set(&self.medium, set)?;
        if read.is_sound {
            let occupants = table::occupied(&self.medium, &read.filled);
            let mut shard = self.shard(wanted.key);
            if let Some(table) = shard.policy.table_mut() {
                table.learn_set(set, epoch, &occupants);
            }
        }
        let own = read
            .filled
            .iter()
            .filter(|slot| slot.occupant.key == wanted.key);
        let slot = own.max_by_key(|slot| slot.occupant.version)?;
        self.find_in_slot(wanted, slot)
    }

    fn find_in_slot(&self, wanted: &LookupTarget, slot: &table::Filled) -> Option<Record> {
        if slot.occupant.key != wanted.key {
            self.medium.counters.false_reads.add(1);
            return None;
        }
        match table::read_record(&self.medium, &self.log, slot) {
            Read::Record(record) => {
                Some(*record).filter(|record| wanted.is(record) && self.is_in_force(record))
            }
            Read::Damaged => {
                self.medium.counters.damaged.add(1);
                None
            }
            Read::Other | Read::Passed | Read::Refused | Read::Failed => None,
        }
    }
}
