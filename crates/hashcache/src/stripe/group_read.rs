//! Page groups: one read loads all records that were written side by side with the wanted one
//! (paper, section 3.6).
//!
//! Called by `lookup` when a candidate's entry has a run. The other members become hot, so the next
//! lookups for them are answered from memory. Where an index keeps positions on disk (`log-lru`),
//! the members count as used: the positions of a page stay in memory together, so that the page
//! takes one read next time. A span whose position is on disk is read when it is asked for.
//!
//! Invariants: each member is verified by itself. It becomes hot only if its own header names the
//! group of the wanted record, and if, under its shard's lock, its entry is the newest that could
//! be its name, on a device that counts for it and has not failed. While a run is read, a lookup
//! for another part of it waits for that read instead of making its own (at most [`WAITS_MAX`]
//! times, a span once), and a lookup of what lies before it reads no further than to it. What
//! earlier reads have loaded and is hot is not read again, if it lies at the end of the run
//! (`recent_runs`).
//! Cost: one read of at most 2 MiB, a MAC and a copy a member; a read of its row for each head
//! whose position is on disk, at most [`ROWS_MAX`].

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::Stripe;
use super::read::{FirstRead, FoundRecord};
use super::recent_runs::{RecentRun, RecentRuns};
use crate::address::LogPos;
use crate::disk::{FIRST_READ, Medium, Read};
use crate::format::{Kind, Prelude, RUN_BYTES_MAX, RecordAddress, run_bytes};
use crate::key::KeyHash;
use crate::memory::AlignedBuf;
use crate::memory::Arrival;
use crate::memory::RecordHandle;
use crate::memory::{Marked, marked};
use crate::policy::Located;
use crate::record::Record;
use crate::shard::{LookupTarget, ReadRequest};

/// Rows read for the heads of a run whose positions are on disk. Without its row it is not known
/// whether a head is the newest of its name; the heads beyond are looked up when a caller asks for
/// them.
const ROWS_MAX: usize = 16;

/// How often a lookup waits for runs that others read. The index gives the length of a run up to
/// 1/8 too long, so a run that reaches to the wanted record may be of another group. Then the
/// lookup waits for the next run, or reads. Each time it goes behind the lookups that wait for a
/// thread.
const WAITS_MAX: u32 = 4;
/// The same for a span: only a run of its own object makes it hot.
const SPAN_WAITS_MAX: u32 = 1;

/// What is wanted may lie in a run that another lookup is reading.
pub(super) struct InOtherRun;

/// Runs that are being read with the lookups that wait for them, and those that were read last.
#[derive(Default)]
pub(crate) struct GroupReads(Mutex<Runs>);

#[derive(Default)]
struct Runs {
    in_flight: Vec<RunInFlight>,
    recent: RecentRuns,
}

struct RunInFlight {
    run: Range<LogPos>,
    waiting: Vec<ReadRequest>,
}

impl GroupReads {
    fn lock(&self) -> Marked<MutexGuard<'_, Runs>> {
        // The lists are whole at any time, and lookups that wait must be released.
        marked(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Entry of a run that is being read. When it is dropped, the lookups that waited look again.
struct RunRead<'a> {
    stripe: &'a Arc<Stripe>,
    range: Range<LogPos>,
    /// It ends before the run does.
    is_cut: bool,
    /// What it has loaded.
    loaded: Option<RecentRun>,
}

impl Drop for RunRead<'_> {
    fn drop(&mut self) {
        let mut runs = self.stripe.group_reads.lock();
        let mut in_flight = runs.in_flight.iter();
        let found = in_flight.position(|it| it.run.start == self.range.start);
        let ended = found.map(|n| runs.in_flight.swap_remove(n));
        if let Some(loaded) = self.loaded.take() {
            runs.recent.push(loaded);
        }
        drop(runs);
        for request in ended.into_iter().flat_map(|it| it.waiting) {
            let stripe = Arc::clone(self.stripe);
            self.stripe.pool.run(move || stripe.answer(request, None));
        }
    }
}

impl Stripe {
    /// Leaves `request` with a read of a run that reaches into its window, if there is one; else it
    /// is given back.
    pub(super) fn join_run(&self, request: ReadRequest) -> Option<ReadRequest> {
        if !self.may_join(&request) {
            return Some(request);
        }
        let Some(at) = request.located.newest_in_log() else {
            return Some(request);
        };
        let mut runs = self.group_reads.lock();
        // Lookups of other records in the first window of a run join it too. The lookup that reads
        // the run has passed here before.
        let found = runs.in_flight.iter_mut().find(|it| it.run.contains(&at));
        match found {
            Some(in_flight) => {
                in_flight.waiting.push(ReadRequest {
                    waits: request.waits + 1,
                    ..request
                });
                None
            }
            None => Some(request),
        }
    }

    /// Whether `request` may wait for a run that is being read.
    pub(super) fn may_join(&self, request: &ReadRequest) -> bool {
        let most = match request.wanted.span {
            Some(_) => SPAN_WAITS_MAX,
            None => WAITS_MAX,
        };
        self.index.id.policy.grouped && request.waits < most
    }

    /// Answers `request` if what it asks for became hot while it waited for its turn to be read;
    /// else gives it back.
    pub(super) fn answer_hot(&self, request: ReadRequest) -> Option<ReadRequest> {
        if !self.index.id.policy.grouped {
            return Some(request);
        }
        let key = request.wanted.key;
        let mut shard = self.shard(key);
        let right = |it: &Record| request.wanted.is(it) && !self.bans.judge(it).gone;
        let hot = self.shared.hot.hit(key, right);
        let Some(record) = hot else {
            return Some(request);
        };
        shard.end_read(key, &request.in_flight);
        drop(shard);
        request.promise.set(Some(RecordHandle::Pinned(record)));
        None
    }

    /// The record in the window that begins at `at`, read with the rest of its run; `run` tells how
    /// long that is (`run_code`). `None` when the record has no run or is a span, when the head has
    /// passed it, when there is no memory for more than the record, when the run turns out to be
    /// shorter than the record, and when the device refuses.
    ///
    /// # Errors
    /// Another lookup is reading a run that reaches into this window.
    pub(super) fn read_with_run(
        self: &Arc<Self>,
        wanted: &LookupTarget,
        at: LogPos,
        run: u8,
    ) -> Result<Option<Read>, InOtherRun> {
        if run == 0 || wanted.span.is_some() {
            return Ok(None);
        }
        let Some(first) = self.first_read(at, 0) else {
            return Ok(None);
        };
        let (_, left) = self.log.device_range(at);
        let whole = run_bytes(run).min(left);
        let bytes = whole.min(self.most_at_once(RUN_BYTES_MAX as u64));
        if bytes < whole && bytes < FIRST_READ as u64 {
            return Ok(None);
        }
        // The longest that an entry tells may go on.
        let reaches_end = bytes == whole && whole < RUN_BYTES_MAX as u64;
        // The run begins with the record, somewhere in its window.
        let bytes = (bytes + self.window_rest() as u64).min(left);
        let (run_read, bytes) = self.begins(at, bytes).ok_or(InOtherRun)?;
        Ok(self.read_begun(wanted, &first, run_read, (bytes, reaches_end)))
    }

    /// The record in the window that `first` begins with, read with `bytes` of its run. `None` when
    /// there is no memory for that, when the device refuses, and when the run is too short.
    fn read_begun(
        &self,
        wanted: &LookupTarget,
        first: &FirstRead,
        mut run_read: RunRead<'_>,
        (bytes, reaches_end): (u64, bool),
    ) -> Option<Read> {
        let length = usize::try_from(bytes).ok()?;
        let read = self.medium.read_run_now(first.offset, length)?;
        let counters = &self.medium.counters;
        let cause = if self.shared.hot.dropped_before_use(wanted.key) {
            &counters.repeated_group_reads
        } else {
            &counters.first_group_reads
        };
        cause.add(1);
        let found = match self.find_record(first, &read, wanted.key) {
            Ok(found) => found,
            // A read of the usual length finds out whether it is damaged or the run is too short.
            Err(Read::Damaged) if read.len() < first.length => return None,
            Err(read) => return Some(read),
        };
        let (bytes, at, place) = (read.slice(found.skip..), found.at, found.place);
        drop(read);
        let read = self.read_within(found, &bytes)?;
        if let Read::Record(record) = &read
            && record.fields.group != 0
            && wanted.is(record)
        {
            run_read.loaded = Some(RecentRun {
                range: run_read.range.clone(),
                is_whole: reaches_end && !run_read.is_cut,
                objects: self.keep_siblings(record, (at, place), &bytes),
            });
        }
        // The lookups that wait may read the next run at once: the buffer is free before.
        drop(bytes);
        drop(run_read);
        Some(read)
    }

    /// The record of `wanted` in the window that begins at `at` without the rest of its run, if it
    /// has one; with groups, counts why.
    pub(super) fn read_alone(&self, wanted: &LookupTarget, at: LogPos, run: u8) -> Read {
        let read = self.read_window(at, wanted.key, wanted.expect);
        if self.index.id.policy.grouped
            && let Read::Record(record) = &read
        {
            let counters = &self.medium.counters;
            let cause = match (wanted.span, run, record.fields.group) {
                (Some(_), ..) => &counters.span_reads,
                (None, 0, 0) => &counters.ungrouped_reads,
                (None, 0, _) => &counters.lone_reads,
                (None, ..) => &counters.member_reads,
            };
            cause.add(1);
        }
        read
    }

    /// Whether one of these places lies in a run that is being read or was read last.
    pub(super) fn is_page_known(&self, places: &[LogPos]) -> bool {
        if places.is_empty() || !self.index.id.policy.grouped {
            return false;
        }
        let runs = self.group_reads.lock();
        let is_in_flight = |at: &LogPos| runs.in_flight.iter().any(|it| it.run.contains(at));
        places
            .iter()
            .any(|at| is_in_flight(at) || runs.recent.has(*at))
    }

    /// Notes that a run of so many bytes is being read, and says how many of them are to be read:
    /// to the next run that is being read, or to where all the rest is hot. `None` when a run that
    /// is being read reaches into the window of the record.
    ///
    /// A page asks for its objects in any order, and several at once. Without this, each one that
    /// lies before others that are or were read would cost another read of the same bytes.
    fn begins(self: &Arc<Self>, first: LogPos, bytes: u64) -> Option<(RunRead<'_>, u64)> {
        let unit = u64::from(self.medium.geometry.unit_bytes);
        let whole = first..LogPos(first.0 + bytes / unit);
        let mut runs = self.group_reads.lock();
        // The other read may have begun since this lookup wanted to join one.
        if runs.in_flight.iter().any(|it| it.run.contains(&first)) {
            return None;
        }
        let second_window = LogPos(first.0 + self.index.shape.windows.units);
        let is_hot = |key| self.shared.hot.contains(key);
        let needed = first..runs.recent.end_of(&whole, second_window, is_hot);
        let starts = runs.in_flight.iter().map(|it| it.run.start);
        let next = starts.filter(|start| needed.contains(start)).min();
        let range = first..next.unwrap_or(needed.end);
        let is_cut = range.end < whole.end;
        // What lies before that place may end in the window that begins there.
        let bytes_needed = (range.end.0 - first.0) * unit + self.window_rest() as u64;
        // Lookups name windows. Of the last one, a read that is cut may have a part only.
        let joined_to = if is_cut {
            self.window(range.end)
        } else {
            range.end
        };
        runs.in_flight.push(RunInFlight {
            run: first..joined_to,
            waiting: Vec::new(),
        });
        drop(runs);
        let run_read = RunRead {
            stripe: self,
            range,
            is_cut,
            loaded: None,
        };
        Some((run_read, bytes.min(bytes_needed)))
    }

    /// The record that was found at the start of `bytes`, in memory of its own: it may be held for
    /// long, the run must not. `None` when the run is too short for it or there is no memory.
    fn read_within(&self, found: FoundRecord, bytes: &Bytes) -> Option<Read> {
        let whole = bytes.get(..found.prelude.record_bytes())?;
        let reservation = self.medium.budget.reserve(whole.len() as u64)?;
        let mut own = AlignedBuf::reserved(whole.len(), reservation);
        own.copy_from_slice(whole);
        Some(self.record(found.at, found.prelude, &Bytes::from_owner(own)))
    }

    /// Makes hot what lies behind `first`, for as long as it is of its group. Returns the objects
    /// that can be hot, with `first`.
    fn keep_siblings(
        &self,
        first: &Record,
        (at, place): (LogPos, RecordAddress),
        bytes: &Bytes,
    ) -> Vec<(LogPos, KeyHash)> {
        let alignment = self.log.alignment();
        let prelude = |from: usize| {
            let units = alignment.units(from);
            let place = RecordAddress {
                place: place.place + units,
                ..place
            };
            let prelude = Prelude::decode(bytes.get(from..)?, &self.medium.secret, place)?;
            Some((LogPos(at.0 + units), prelude))
        };
        let step = |prelude: &Prelude| alignment.record(prelude.record_bytes());
        let mut objects = vec![];
        let Some((_, own)) = prelude(0) else {
            return objects;
        };
        let (mut from, mut rows) = (step(&own), ROWS_MAX);
        let is_short = |total: Option<u64>| total.is_some_and(|it| it <= self.hot_object_max());
        // The version of the last head, if that is the newest of its name and its object is short:
        // then the spans behind it are copied.
        let mut short = is_short(first.fields.total).then_some(first.fields.version);
        objects.extend(short.map(|_| (at, first.fields.key)));
        while let Some((at, prelude)) = prelude(from) {
            let fields = &prelude.fields;
            if fields.group != first.fields.group {
                break;
            }
            let next = from + step(&prelude);
            let (key, version) = (fields.key, fields.version);
            let is_head = fields.kind == Kind::Head;
            let has_short_object = is_short(fields.total);
            let sibling = || match self.record(at, prelude, &bytes.slice(from..)) {
                Read::Record(record) => Some(record),
                _ => None,
            };
            if is_head {
                let is_newest = sibling().is_some_and(|it| self.keep_sibling(&it, at, &mut rows));
                short = (is_newest && has_short_object).then_some(version);
                objects.extend(short.map(|_| (at, key)));
            } else if short == Some(version)
                && let Some(span) = sibling()
            {
                // Where a row has to be read to know that it is the newest, it is left out.
                let mut no_rows = 0;
                self.keep_sibling(&span, at, &mut no_rows);
            }
            from = next;
        }
        objects
    }

    /// Whether what lies `at` may be the newest record of `key`, as far as memory knows, or its row
    /// does if that may be read.
    ///
    /// That the newest entry names the window of `at` is enough: if the record were dead, there
    /// would be an entry of a newer window (`policy/log`). This also holds if the entry was made
    /// for another name.
    fn may_be_newest(&self, key: KeyHash, at: LogPos, may_read: bool) -> bool {
        let shard = self.view(key);
        let located = self.locate(&shard, key);
        let lies_there = match located {
            Located::Displaced(_) => may_read,
            _ => located.newest_in_log() == Some(self.window(at)),
        };
        lies_there && !shard.pending.contains_key(&key)
    }

    /// Makes `record`, which lies `at`, hot if it is the newest that could be its name; `rows`: as
    /// many may still be read to know that. Returns whether it is, as far as memory knows.
    fn keep_sibling(&self, record: &Record, at: LogPos, rows: &mut usize) -> bool {
        let key = record.fields.key;
        if !self.may_be_newest(key, at, *rows > 0) {
            return false;
        }
        let is_head = u64::from(record.fields.kind == Kind::Head);
        if self.shared.hot.contains(key) {
            self.medium.counters.prefetched_present.add(is_head);
            return true;
        }
        // Before the lock is taken, for making room may take long.
        let Some(copied) = self.shared.hot.copy(record, Some(at)) else {
            return true;
        };
        let mut shard = self.shard(key);
        let mut located = self.locate(&shard, key);
        if let Located::Displaced(row) = located
            && *rows > 0
            && !self.shared.hot.contains(key)
        {
            *rows -= 1;
            drop(shard);
            // The run that is being read has memory: this must not wait for more.
            let Some((locked, saved)) = self.saved_row(key, row, Medium::read_bytes_now) else {
                return false;
            };
            shard = locked;
            // Meanwhile it may have been put or removed, or may be in memory again.
            located = self.locate(&shard, key);
            if let Located::Displaced(_) = located {
                located = self.locate_in_row(&shard, key, &saved);
            }
        }
        let is_newest = !shard.pending.contains_key(&key)
            && located.newest_in_log() == Some(self.window(at))
            && self.is_in_force(record);
        let wanted = is_newest && !self.shared.hot.contains(key);
        let insert = || self.shared.hot.insert(copied, Arrival::Prefetched);
        if wanted && insert().is_some() {
            self.medium.counters.prefetched.add(is_head);
            if self.index.shape.stays_on_disk() {
                self.touch(&mut shard, key, at, located.run(self.window(at)));
            }
        }
        is_newest
    }
}
