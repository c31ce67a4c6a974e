//! Look-ups: hot, then pending, then the policy, then the disk.
//!
//! Called by `cache`. What memory can answer is answered at once; otherwise whoever blocks for the
//! answer reads it, the ring or one of the engine's own threads does for whoever does not, and who
//! asks for the same meanwhile joins that read.
//!
//! Invariant: an answer has the wanted name, and the wanted version if one was named.

use std::sync::Arc;

use bytes::Bytes;

use super::Stripe;
use crate::address::{LogPos, SetId};
use crate::completion::Outcome;
use crate::disk::index_rows;
use crate::disk::table;
use crate::disk::{Medium, Read};
use crate::format::Kind;
use crate::key::KeyHash;
use crate::memory::Kept;
use crate::memory::WriteLocked;
use crate::policy::{Candidates, Epoch, Located};
use crate::record::Record;
use crate::shard::{Found, Pending, Question, Reading, Shard, Wanted};
use crate::stats::Health;
use crate::sync::atomic::Ordering;

/// How many editions of the index file a look-up goes by before it is a miss.
const EDITIONS_MAX: usize = 3;

/// What memory says without changing anything.
pub(crate) enum Recalled {
    /// It is in memory.
    Found(Kept),
    /// It is not stored.
    Nothing,
    /// [`Stripe::lookup`] will say.
    Unsure,
}

/// What memory knows of a key without reading.
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
pub(crate) enum Lookup {
    /// It is in memory.
    Found(Kept),
    /// Memory knows that it is not stored.
    Nothing,
    /// The disk is being asked.
    Asked(Outcome<Found>),
    /// The disk is asked as soon as somebody waits for it.
    Deferred(Deferred),
}

/// A question that nobody waits for yet: who blocks for its answer is to read it, which spares two
/// changes of thread. Dropped, it is asked for those who come later.
pub(crate) struct Deferred {
    stripe: Arc<Stripe>,
    reading: Arc<Reading>,
}

impl Deferred {
    /// Has the disk asked, unless somebody has; returns what it will say.
    pub(crate) fn begin(self) -> Outcome<Found> {
        // By `drop`.
        self.reading.outcome.clone()
    }

    /// Asks the disk on this thread, unless somebody has asked it.
    pub(crate) fn wait(self) -> Found {
        if let Some(question) = self.reading.take_question() {
            self.stripe.answer(*question, None);
        }
        self.reading.outcome.wait()
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if let Some(question) = self.reading.take_question() {
            self.stripe.read_for(question);
        }
    }
}

/// When the disk is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// By the caller, at once.
    Now,
    /// When somebody waits for it.
    Deferred,
}

/// What a look-up comes to without waiting.
pub(super) enum Asked {
    /// Memory knows, or the disk is being asked already.
    Memory(Lookup),
    /// The disk has to be asked.
    Disk(Box<Question>),
}

impl Stripe {
    /// Answers from memory what memory can answer, and has the disk asked otherwise.
    pub(crate) fn lookup(self: &Arc<Self>, wanted: Wanted) -> Lookup {
        match self.ask(wanted, Begin::Deferred) {
            Asked::Memory(lookup) => lookup,
            Asked::Disk(question) => {
                let outcome = question.outcome();
                self.read_for(question);
                Lookup::Asked(outcome)
            }
        }
    }

    /// Has `question` answered by the ring, or by one of the engine's own threads.
    pub(super) fn read_for(self: &Arc<Self>, question: Box<Question>) {
        if let Err(question) = self.submit(question) {
            let stripe = Arc::clone(self);
            self.pool.run(move || stripe.answer(*question, None));
        }
    }

    /// The head of `name`, if it is hot: the shortest way an answer can take.
    pub(crate) fn hot_head(&self, key: KeyHash, name: &[u8]) -> Option<Kept> {
        self.shared.hot.hit(key, self.is_head(name)).map(Kept::Held)
    }

    /// Whether a record is the head of `name`, and counts.
    fn is_head(&self, name: &[u8]) -> impl Fn(&Record) -> bool {
        move |it| it.fields.kind == Kind::Head && it.name == name && !self.rules.judge(it).gone
    }

    /// What memory says of the head of `name`. Threads that ask this at the same time write to
    /// nothing that they have in common.
    pub(crate) fn recall_head(&self, key: KeyHash, name: &[u8]) -> Recalled {
        if let Some(record) = self.hot_head(key, name) {
            return Recalled::Found(record);
        }
        let shard = self.view(key);
        if let Some(pending) = shard.pending.get(&key) {
            return self.of_pending(pending, self.is_head(name));
        }
        // Of what became hot since, the index knows, unless it is to say nothing yet or any more.
        let tells = self.health() == Health::InService
            && shard.removing.is_empty()
            && !shard.policy.notes_look_ups();
        if tells
            && !shard.reading.contains_key(&key)
            && self.locate(&shard, key) == Located::Nowhere
        {
            self.medium.counters.misses.add(1);
            return Recalled::Nothing;
        }
        Recalled::Unsure
    }

    /// What there is to say of a name of which `pending` is the newest record.
    fn of_pending(&self, pending: &Pending, right: impl Fn(&Record) -> bool) -> Recalled {
        if !right(&pending.record) {
            // What it replaced is older, so it is gone too.
            return Recalled::Nothing;
        }
        self.medium.counters.pending_hits.add(1);
        Recalled::Found(pending.hit(&self.medium.budget))
    }

    /// What memory says, or a question for the disk that others can join from now on.
    pub(super) fn ask(self: &Arc<Self>, wanted: Wanted, begin: Begin) -> Asked {
        let mut shard = self.shard(wanted.key);
        // Under the lock, even if the caller has looked without it: meanwhile the record may have
        // moved from pending to hot.
        let right = |it: &Record| wanted.is(it) && !self.rules.judge(it).gone;
        if let Some(record) = self.shared.hot.hit(wanted.key, right) {
            return Asked::Memory(Lookup::Found(Kept::Held(record)));
        }
        if let Some(pending) = shard.pending.get(&wanted.key) {
            return Asked::Memory(match self.of_pending(pending, right) {
                Recalled::Found(record) => Lookup::Found(record),
                Recalled::Nothing | Recalled::Unsure => Lookup::Nothing,
            });
        }
        if let Some(reading) = shard.reading.get(&wanted.key) {
            self.medium.counters.joined_reads.add(1);
            let (outcome, question) = (reading.outcome.clone(), reading.take_question());
            drop(shard);
            // Two want it: neither may have to wait until the other gets round to it.
            if let Some(question) = question {
                self.read_for(question);
            }
            return Asked::Memory(Lookup::Asked(outcome));
        }
        shard.policy.looked_for(wanted.key);
        let located = self.locate(&shard, wanted.key);
        if located == Located::Nowhere {
            self.medium.counters.misses.add(1);
            return Asked::Memory(Lookup::Nothing);
        }
        let question = Box::new(Question::new(&mut shard, wanted, located));
        if begin == Begin::Now {
            return Asked::Disk(question);
        }
        let (stripe, reading) = (Arc::clone(self), Arc::clone(&question.reading));
        // Under the shard's lock: who joins must find it.
        *reading.lock_question() = Some(question);
        Asked::Memory(Lookup::Deferred(Deferred { stripe, reading }))
    }

    /// A question for the disk if the newest candidate for what is wanted lies at `at`, and memory
    /// has no other answer.
    pub(super) fn ask_at(&self, wanted: Wanted, at: LogPos) -> Option<Question> {
        let mut shard = self.shard(wanted.key);
        let known = self.shared.hot.contains(wanted.key)
            || shard.pending.contains_key(&wanted.key)
            || shard.reading.contains_key(&wanted.key);
        let located = self.locate(&shard, wanted.key);
        let lies_there = located.newest_in_log() == Some(at);
        (lies_there && !known).then(|| Question::new(&mut shard, wanted, located))
    }

    /// Where `key` may be found on disk.
    pub(super) fn locate(&self, shard: &Shard, key: KeyHash) -> Located {
        if self.health() != Health::InService || shard.removing.contains_key(&key) {
            return Located::Nowhere;
        }
        shard.policy.locate(key, self.log.head())
    }

    /// Of what could be `key`, what is newer than what lies `at`; `None` when that is not among it,
    /// or something newer is about to be written.
    pub(crate) fn newer(&self, shard: &Shard, key: KeyHash, at: LogPos) -> Option<Vec<LogPos>> {
        if shard.pending.contains_key(&key) {
            return None;
        }
        let Located::Log(candidates) = self.locate(shard, key) else {
            return None;
        };
        let all = candidates.as_slice();
        let own = all.iter().position(|other| *other == at)?;
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

    /// The end of a look-up on disk: makes the record, `found` where it was `located`, hot if it is
    /// still the newest.
    fn found(
        &self,
        wanted: &Wanted,
        found: Option<Record>,
        reading: &Arc<Reading>,
        located: &Located,
    ) -> Found {
        // Before the lock is taken, for making room may take long.
        let mut copied = match &found {
            Some(record) if self.may_become_hot(record, reading) => {
                self.shared.hot.copy(record, record.at)
            }
            _ => None,
        };
        let mut shard = self.shard(wanted.key);
        shard.end_reading(wanted.key, reading);
        let Some(record) = found else {
            self.medium.counters.misses.add(1);
            return None;
        };
        // A rule may have come since it was read. One that has been forgotten since had outlived
        // it.
        let outlived = || record.at.is_some_and(|at| !self.log.is_live(at));
        // In the Disk Table a rule is forgotten after a pass that clears what it took away, and
        // tells the reads of that. A read that a put or a remove has made stale is not told, for it
        // is not known any more: it must not count where a rule may have gone meanwhile.
        let missed_pass = || record.at.is_none() && reading.stale.load(Ordering::Acquire);
        let is_gone =
            self.rules.any() && (self.rules.judge(&record).gone || outlived() || missed_pass());
        if is_gone || reading.gone.load(Ordering::Acquire) {
            self.medium.counters.misses.add(1);
            return None;
        }
        self.medium.counters.disk_hits.add(1);
        // Once the device has failed its names get other owners, who know nothing of this read.
        if self.health() == Health::OutOfService {
            return Some(Kept::alone(record));
        }
        if !reading.stale.load(Ordering::Acquire) {
            match record.at {
                Some(at) => self.touch(&mut shard, wanted.key, at, located.run(at)),
                None => shard.policy.used(wanted.key),
            }
            if let Some(copied) = copied.take() {
                // Rules may have been forgotten that said something of it just now.
                record.hand_down_judged(copied.record());
                if let Some(hot) = self.shared.hot.insert(copied) {
                    return Some(Kept::Held(hot));
                }
            }
        }
        Some(Kept::alone(record))
    }

    /// Whether a record that was read is worth a copy in memory.
    fn may_become_hot(&self, record: &Record, reading: &Reading) -> bool {
        // A span of a large object is not worth the small ones it would push out.
        let whole = record.fields.total.unwrap_or(u64::MAX);
        whole <= self.medium.budget.limit() / 64
            && self.health() != Health::OutOfService
            && !reading.stale.load(Ordering::Acquire)
    }

    /// `key` was served from `at`, from where its run goes on for `run` times 4 KiB. What was
    /// displaced has its place in memory again, with the run that was on disk beside it.
    pub(super) fn touch(&self, shard: &mut Shard, key: KeyHash, at: LogPos, run: u8) {
        let head = self.log.head();
        shard.policy.touch(key, at, head);
        if run > 0 {
            shard.policy.set_run(key, at, run, head);
        }
    }

    /// Answers `question`, with `record` if that is what is wanted, else with what the disk has.
    pub(super) fn answer(self: &Arc<Self>, question: Question, record: Option<Record>) {
        let question = match record {
            Some(_) => Some(question),
            None => self
                .resolve(question)
                .and_then(|it| self.join_run(it))
                .and_then(|it| self.answer_hot(it)),
        };
        let Some(question) = question else {
            return;
        };
        let Question {
            wanted,
            located,
            reading,
            promise,
            ..
        } = question;
        let record = record.filter(|record| wanted.is(record));
        let found = record.or_else(|| self.find(&wanted, &located));
        promise.set(self.found(&wanted, found, &reading, &located));
    }

    /// Answers `question`, of whose candidates the newest was read.
    pub(super) fn answer_from(self: &Arc<Self>, question: Question, read: Read) {
        let wanted = &question.wanted;
        let found = match &question.located {
            Located::Log(candidates) => self.find_in_log(wanted, candidates, Some(read)),
            _ => None,
        };
        let found = self.found(wanted, found, &question.reading, &question.located);
        question.promise.set(found);
    }

    fn find(self: &Arc<Self>, wanted: &Wanted, located: &Located) -> Option<Record> {
        match *located {
            // What was displaced has been resolved.
            Located::Nowhere | Located::Displaced(_) => None,
            Located::Log(ref candidates) => self.find_in_log(wanted, candidates, None),
            Located::Set(set, epoch) => self.find_in_set(wanted, set, epoch),
            Located::Slot(set, slot) => {
                let slot = table::read_slot(&self.medium, set, slot)?;
                self.find_in_slot(wanted, &slot)
            }
        }
    }

    /// `first`: what was read of the newest, if it was.
    fn find_in_log(
        self: &Arc<Self>,
        wanted: &Wanted,
        candidates: &Candidates,
        mut first: Option<Read>,
    ) -> Option<Record> {
        for at in candidates.as_slice() {
            let run = candidates.run(*at);
            let read = first.take();
            let read = read.or_else(|| self.read_with_run(wanted, *at, run));
            match read.unwrap_or_else(|| self.read_log(*at, wanted.expect)) {
                Read::Record(record) if wanted.is(&record) => {
                    if self.is_in_force(&record) {
                        return Some(*record);
                    }
                    // An older version need not have had the label by which this one went: all that
                    // could be one are forgotten.
                    if self.rules.judge(&record).gone {
                        self.forget_candidates(wanted.key, candidates);
                        return None;
                    }
                    // Older ones do not count either, but other names may have an equal tag.
                    let head = self.log.head();
                    self.shard(wanted.key).policy.forget(wanted.key, *at, head);
                }
                // Compare names even when the tag matches: one miss in 32 meets an equal tag, and
                // serving it would be a lie.
                Read::Record(_) => self.medium.counters.false_reads.add(1),
                Read::Passed => {}
                // It could have been the newest version of this name: an older one must not be
                // served in its stead, so all that could be one are forgotten.
                Read::Damaged => {
                    self.medium.counters.damaged.add(1);
                    self.forget_candidates(wanted.key, candidates);
                    return None;
                }
                Read::Refused => {
                    self.forget_candidates(wanted.key, candidates);
                    return None;
                }
                Read::Failed => return None,
            }
        }
        None
    }

    /// Has `question` say where in the log to look, if its row lies on disk; `None` when it was
    /// answered by memory meanwhile.
    fn resolve(&self, question: Question) -> Option<Question> {
        let Located::Displaced(row) = question.located else {
            return Some(question);
        };
        let question = self.answer_hot(question)?;
        let key = question.wanted.key;
        let saved = self.saved_row(key, row, Medium::read_bytes);
        let located = saved.map_or(Located::Nowhere, |(shard, saved)| {
            Located::Log(shard.policy.resolve(key, &saved, self.log.head()))
        });
        Some(Question {
            located,
            ..question
        })
    }

    /// The row of `key` as the edition of the index file has it that counts, read by `read`; empty
    /// when that is not to be had. With the lock of the key's shard, under which it counts.
    ///
    /// As many times as a new edition comes while a row of the old one is read: that is seldom more
    /// than once.
    pub(super) fn saved_row(
        &self,
        key: KeyHash,
        row: u32,
        read: fn(&Medium, u64, usize) -> Option<Bytes>,
    ) -> Option<(WriteLocked<'_, Shard>, Vec<u8>)> {
        let row = self.index.shape.row_number(key.shard(), row);
        for _ in 0..EDITIONS_MAX {
            let edition = self.index.file.edition()?;
            let saved = index_rows::read_row(&self.medium, &self.index, edition, row, read);
            let shard = self.shard(key);
            if self.index.file.edition() == Some(edition) {
                return Some((shard, saved.unwrap_or_default()));
            }
        }
        None
    }

    fn forget_candidates(&self, key: KeyHash, candidates: &Candidates) {
        let mut shard = self.shard(key);
        for at in candidates.as_slice() {
            shard.policy.forget(key, *at, self.log.head());
        }
    }

    /// Whether what was read still counts. A span counts if the head does that leads to it.
    pub(super) fn is_in_force(&self, record: &Record) -> bool {
        let fields = &record.fields;
        fields.kind == Kind::Span
            || self.counts(fields.key, fields.version) && !self.rules.judge(record).gone
    }

    fn find_in_set(&self, wanted: &Wanted, set: SetId, epoch: Epoch) -> Option<Record> {
        let slots = table::read_set(&self.medium, set)?;
        let occupants = table::occupied(&self.medium, &slots);
        let mut shard = self.shard(wanted.key);
        shard.policy.learn_set(set, epoch, &occupants);
        drop(shard);
        let own = slots.iter().filter(|slot| slot.occupant.key == wanted.key);
        let slot = own.max_by_key(|slot| slot.occupant.version)?;
        self.find_in_slot(wanted, slot)
    }

    fn find_in_slot(&self, wanted: &Wanted, slot: &table::Filled) -> Option<Record> {
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
            Read::Passed | Read::Refused | Read::Failed => None,
        }
    }
}
