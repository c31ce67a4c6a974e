//! Lookups: hot objects, then pending records, then the policy, then the disk.
//!
//! Called by `cache`. If memory has the answer, it is returned at once. Otherwise the disk is read:
//! by the calling thread if it blocks for the answer, else by the ring or one of the engine's own
//! threads. Callers that ask for the same object meanwhile join that read.
//!
//! Invariant: an answer has the wanted name, and the wanted version if the caller named one.
//! Cost: see `policy` for reads; one lock of a shard in one lane if memory has the answer.

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

/// How often a lookup finds that a run began to be read after it had looked for one to join, until
/// it reads by itself.
const TRIES_MAX: u32 = 8;
/// In how many checkpoints a lookup tries to read a row before it is a miss.
const CHECKPOINTS_MAX: usize = 3;

/// Result of a read-only lookup in memory.
pub(crate) enum Recalled {
    /// It is in memory.
    Found(RecordHandle),
    /// It is not stored.
    Nothing,
    /// [`Stripe::lookup`] will say.
    Unsure,
}

/// What memory knows of a key without a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// It is stored, or another name with an equal tag is.
    Stored,
    /// It is not stored.
    Missing,
    /// Only the disk can tell.
    Unknown,
}

/// An answer from memory, or the read that will give one.
pub(crate) enum StripeLookup {
    /// It is in memory.
    Found(RecordHandle),
    /// Memory knows that it is not stored.
    Nothing,
    /// The disk is being asked.
    Asked(Outcome<Found>),
    /// The disk is read as soon as a caller waits for the answer.
    Deferred(Deferred),
}

/// A read request that no caller waits for yet: a caller that blocks for the answer reads it
/// itself, which spares two changes of thread. If this is dropped, the engine reads it for later
/// callers.
pub(crate) struct Deferred {
    stripe: Arc<Stripe>,
    in_flight: Arc<InFlightRead>,
}

impl Deferred {
    /// Begins the read, unless it has begun; returns what it will find.
    pub(crate) fn begin(self) -> Outcome<Found> {
        // By `drop`.
        self.in_flight.outcome.clone()
    }

    /// Reads on this thread, unless another thread does.
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

/// Whether a lookup may wait for a run that another one is reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JoinRuns {
    Yes,
    No,
}

/// When the disk is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// By the caller, at once.
    Now,
    /// When a caller waits for the answer.
    Deferred,
}

/// Result of a lookup that does not wait.
pub(super) enum FirstAnswer {
    /// Memory knows, or the disk is being asked already.
    Memory(StripeLookup),
    /// The disk has to be asked.
    Disk(Box<ReadRequest>),
}

impl Stripe {
    /// Answers from memory if memory has the answer, else begins a read.
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

    /// Gives `request` to the ring, or to one of the engine's own threads.
    pub(super) fn read_for(self: &Arc<Self>, request: Box<ReadRequest>) {
        if let Err(request) = self.submit(request) {
            let stripe = Arc::clone(self);
            self.pool.run(move || stripe.answer(*request, None));
        }
    }

    /// The head of `name`, if it is hot: the shortest way an answer can take.
    pub(crate) fn hot_head(&self, key: KeyHash, name: &[u8]) -> Option<RecordHandle> {
        self.shared
            .hot
            .hit(key, self.is_head(name))
            .map(RecordHandle::Pinned)
    }

    /// A span of `name`, if it is hot; not counted as a hit.
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

    /// The same for the head of `name`.
    pub(crate) fn hot_head_uncounted(&self, key: KeyHash, name: &[u8]) -> Option<RecordHandle> {
        let record = self.shared.hot.find(key, self.is_head(name))?;
        Some(RecordHandle::Pinned(record))
    }

    /// Whether a record is the head of `name`, and counts.
    fn is_head(&self, name: &[u8]) -> impl Fn(&Record) -> bool {
        move |it| it.fields.kind == Kind::Head && it.name == name && !self.bans.judge(it).gone
    }

    /// Looks up the head of `name` in memory. Threads that do this at the same time write to no
    /// cache line that they share.
    pub(crate) fn recall_head(&self, key: KeyHash, name: &[u8]) -> Recalled {
        if let Some(record) = self.hot_head(key, name) {
            return Recalled::Found(record);
        }
        let shard = self.view(key);
        if let Some(pending) = shard.pending.get(&key) {
            return self.of_pending(pending, self.is_head(name));
        }
        // The record may have moved from pending to hot since the look above. Then the index knows
        // of it, so "nowhere" is true; but only where the index may speak: not before recovery, not
        // while removes are masked, and not where the lookup must be noted.
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

    /// The answer for a name of which `pending` is the newest record.
    fn of_pending(&self, pending: &Pending, right: impl Fn(&Record) -> bool) -> Recalled {
        if !right(&pending.record) {
            // The versions that it replaced are older, so they are gone too.
            return Recalled::Nothing;
        }
        self.medium.counters.pending_hits.add(1);
        Recalled::Found(pending.hit(&self.medium.budget))
    }

    /// The answer from memory, or a read request that others can join from now on.
    pub(super) fn ask(self: &Arc<Self>, wanted: LookupTarget, begin: Begin) -> FirstAnswer {
        let mut shard = self.shard(wanted.key);
        // Under the lock, even if the caller has looked without it: meanwhile the record may have
        // moved from pending to hot.
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
            // Two callers want it now. Neither may depend on when the other one begins to wait.
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
        // Under the shard's lock: a caller that joins the read must find the request in it.
        *in_flight.lock_request() = Some(request);
        FirstAnswer::Memory(StripeLookup::Deferred(Deferred { stripe, in_flight }))
    }

    /// A request for the disk if the newest candidate for what is wanted is the window of a
    /// position among `positions`, and memory has no other answer. Also returns where that window
    /// begins.
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

    /// Where `key` may be found on disk.
    pub(super) fn locate(&self, shard: &Shard, key: KeyHash) -> Located {
        if self.health() != Health::InService || shard.is_removing(key) {
            return Located::Nowhere;
        }
        shard.policy.locate(key, self.log.head())
    }

    /// The candidates for `key` that are newer than the window of `at`. `None` if that is no
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

    /// Whether the index knows of `key`; an equal tag may make it say yes in vain.
    pub(crate) fn contains_hint(&self, key: KeyHash) -> bool {
        self.hint(key) != Hint::Missing
    }

    /// What memory knows of `key`.
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

    /// Ends a lookup on disk: makes the record, `found` where it was `located`, hot if it is still
    /// the newest.
    fn found(
        &self,
        wanted: &LookupTarget,
        found: Option<Record>,
        in_flight: &Arc<InFlightRead>,
        located: &Located,
    ) -> Found {
        // Before the lock is taken, for making room may take long.
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
        // A ban may have been made since the record was read. It may even have been forgotten
        // since: then no record older than it was left on disk, so this record's place was
        // overwritten.
        let outlived = || record.at.is_some_and(|at| !self.log.is_live(at));
        // In the Disk Table a ban is forgotten after a pass that clears the slots it hides. The
        // pass marks the reads in flight for each set as gone. A read that a put or a remove has
        // made stale is not in the shard's map any more, so the pass cannot mark it: it must not
        // count if there are bans.
        let missed_pass = || record.at.is_none() && in_flight.stale.load(Ordering::Acquire);
        let is_gone =
            self.bans.any() && (self.bans.judge(&record).gone || outlived() || missed_pass());
        if is_gone || in_flight.gone.load(Ordering::Acquire) {
            self.medium.counters.misses.add(1);
            return None;
        }
        self.medium.counters.disk_hits.add(1);
        // When a device has failed, other devices own its names. They know nothing of this read, so
        // a newer put or a remove there would not take the record out of the hot objects again.
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
                // Bans may have been forgotten that said something of it just now.
                record.hand_down_judged(copied.record());
                if let Some(hot) = self.shared.hot.insert(copied, Arrival::Wanted) {
                    return Some(RecordHandle::Pinned(hot));
                }
            }
        }
        Some(RecordHandle::alone(record))
    }

    /// Whether a record that was read is worth a copy in memory.
    fn may_become_hot(&self, record: &Record, in_flight: &InFlightRead) -> bool {
        let whole = record.fields.total.unwrap_or(u64::MAX);
        whole <= self.hot_object_max()
            && self.health() != Health::OutOfService
            && !in_flight.stale.load(Ordering::Acquire)
    }

    /// Longest object of which a record that was read becomes hot, bytes of content: a span of a
    /// larger one is not worth the small objects that it would push out.
    pub(super) fn hot_object_max(&self) -> u64 {
        self.medium.budget.limit() / 64
    }

    /// Notes that `key` was served from `at`, and that its run reaches `run` times 4 KiB from
    /// there. A displaced position is in memory again after this, with its run.
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

    /// Answers `request` with `record` if it is the wanted one, else from the disk.
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
                // `join_run` counts this wait, unless the other read has ended by then.
                Err(InOtherRun) => tries += 1,
            }
        };
        let found = self.found(&request.wanted, found, &request.in_flight, &request.located);
        request.promise.set(found);
    }

    /// Answers `request`, of whose candidates the newest was read.
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

    /// The record that is wanted, from the disk.
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

    /// The record that is wanted, in one of the windows of `candidates`. `first`: the read of the
    /// newest candidate, if it was made already.
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
            // If an older candidate lies in a page that is being loaded, this one probably has an
            // equal tag by chance, and its run is that of another page.
            let older = &candidates.as_slice()[n + 1..];
            let read = match first.take() {
                Some(read) => Some(read),
                None if self.is_page_known(older) => None,
                None => match self.read_with_run(wanted, *at, run) {
                    // A lookup that waited would begin with the newest candidate again.
                    Err(InOtherRun) if n > 0 || joins == JoinRuns::No => None,
                    read => read?,
                },
            };
            match read.unwrap_or_else(|| self.read_alone(wanted, *at, run)) {
                Read::Record(record) if wanted.is(&record) => {
                    if self.is_in_force(&record) {
                        return Ok(Some(*record));
                    }
                    // An older version need not have had the label by which this one went: all that
                    // could be one are forgotten.
                    if self.bans.judge(&record).gone {
                        self.forget_candidates(wanted.key, candidates);
                        return Ok(None);
                    }
                    // Older ones do not count either, but other names may have an equal tag.
                    self.forget_candidate(&mut self.shard(wanted.key), wanted.key, *at);
                }
                // Compare names even when the tag matches: one miss in 32 meets an equal tag, and
                // serving it would be a lie.
                Read::Record(_) | Read::Other => self.medium.counters.false_reads.add(1),
                Read::Passed => {}
                // It could have been the newest version of this name: an older one must not be
                // served in its stead, so all that could be one are forgotten.
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

    /// Whether the index still says that `key` may lie in the window that begins at `at`. What is
    /// older than a window that was read in vain counts only if it does (`policy/log`).
    pub(super) fn still_points_to(&self, key: KeyHash, at: LogPos) -> bool {
        let points_to = |log: &dyn LogPolicy| log.points_to(key, at, self.log.head());
        self.view(key).policy.log().is_some_and(points_to)
    }

    /// Has `request` say where in the log to look, if its row lies on disk; `None` when it was
    /// answered by memory meanwhile.
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

    /// The row of `key` in the published checkpoint, read by `read`; empty when it cannot be read.
    /// Returns with the lock of the key's shard held, under which the row stays valid.
    ///
    /// Tries again when a new checkpoint is published while a row of the old one is read, which
    /// seldom happens twice.
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

    /// Where `key` may be found on disk, given its row as it was `saved`.
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

    /// Whether a record that was read still counts. A span counts if the head that names it does.
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
