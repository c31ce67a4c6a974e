//! Page groups: a single read loads all records that were written next to the wanted record (paper,
//! section 3.6).
//!
//! Called by `lookup` if the entry of a candidate has a run. The other members become hot, so the
//! next lookups for them are answered from memory. If an index keeps positions on disk (`log-lru`),
//! the members count as used: the positions of a page stay in memory together, so that the page
//! takes a single read next time. A span with a position on disk is read only when a caller looks
//! it up.
//!
//! Invariants: each member is verified separately. A member becomes hot only if the header of the
//! member names the group of the wanted record, and if, under the shard lock, its entry is the
//! newest that could be for this name, on a device that counts for it and has not failed. While a
//! run is read, a lookup for another part of the run waits for that read instead of reading (at
//! most [`WAITS_MAX`] times, a span once), and a lookup for a record in front of the run reads only
//! up to the run. Records at the end of a run that earlier reads loaded and that are still hot are
//! not read again (`recent_runs`).
//! Cost: a read of at most 2 MiB, a MAC and a copy for each member; a row read for each head with a
//! position on disk, at most [`ROWS_MAX`].

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

/// Rows read for the heads of a run with positions on disk. Without the row it is not known if a
/// head is the newest version; further heads are looked up only when a caller wants them.
const ROWS_MAX: usize = 16;

/// How often a lookup waits for runs that others read. The run length in the index may be up to 1/8
/// too long, so a run that reaches to the wanted record may belong to another group. Then the
/// lookup waits for the next run, or reads. Each time it is queued behind the lookups that wait for
/// a thread.
const WAITS_MAX: u32 = 4;
/// As [`WAITS_MAX`], for a span: only a run of the same object makes it hot.
const SPAN_WAITS_MAX: u32 = 1;

/// Error: the wanted record may be in a run that another lookup is reading.
pub(super) struct InOtherRun;

/// Runs that are being read, with the lookups that wait for them, and runs that were read recently.
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
        // Poison is ignored: the lists are consistent at any time, and waiting lookups must be
        // released.
        marked(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Registration of a run that is being read. On drop, the lookups that waited look again.
struct RunRead<'a> {
    stripe: &'a Arc<Stripe>,
    range: Range<LogPos>,
    /// True if the range stops before the end of the run.
    is_cut: bool,
    /// The objects that this read has loaded.
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
    /// If a run that reaches into the window of `request` is being read, `request` waits for it;
    /// otherwise it is given back.
    pub(super) fn join_run(&self, request: ReadRequest) -> Option<ReadRequest> {
        if !self.may_join(&request) {
            return Some(request);
        }
        let Some(at) = request.located.newest_in_log() else {
            return Some(request);
        };
        let mut runs = self.group_reads.lock();
        // Lookups of other records in the first window of a run join it, too. The lookup that reads
        // the run has passed this check before.
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

    /// Returns true if `request` may wait for a run that is being read.
    pub(super) fn may_join(&self, request: &ReadRequest) -> bool {
        let most = match request.wanted.span {
            Some(_) => SPAN_WAITS_MAX,
            None => WAITS_MAX,
        };
        self.index.id.policy.grouped && request.waits < most
    }

    /// Answers `request` if the wanted record became hot while the request was queued; otherwise
    /// gives it back.
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

    /// Reads the record in the window that starts at `at` together with the rest of the run; `run`
    /// is the run length (`run_code`). `None` if the record has no run or is a span, if the log
    /// head has passed it, if there is no memory for more than the record, if the run is shorter
    /// than the record, or if the device returns an error.
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
        // A run with the longest length that an entry can encode may continue beyond it.
        let reaches_end = bytes == whole && whole < RUN_BYTES_MAX as u64;
        // The run starts with the record, somewhere in the window.
        let bytes = (bytes + self.window_rest() as u64).min(left);
        let (run_read, bytes) = self.begins(at, bytes).ok_or(InOtherRun)?;
        Ok(self.read_begun(wanted, &first, run_read, (bytes, reaches_end)))
    }

    /// Reads the record in the window that `first` starts with, together with `bytes` bytes of the
    /// run. `None` if there is no memory for that, if the device returns an error, or if the run is
    /// too short.
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
            // A read of the usual length decides if the record is damaged or the run is too short.
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
        // Free the buffer first: the waiting lookups may read the next run as soon as `run_read` is
        // dropped.
        drop(bytes);
        drop(run_read);
        Some(read)
    }

    /// Reads the `wanted` record in the window that starts at `at` without the rest of the run, if
    /// it has a run. With groups, counts the cause.
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

    /// Returns true if any of these places is in a run that is being read or was read recently.
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

    /// Registers a run of `bytes` bytes as being read. Also returns how many bytes to read: up to
    /// the next run that is being read, or to the place where all later objects are hot. `None` if
    /// a run that is being read reaches into the window of the record.
    ///
    /// A page requests objects in any order, and several at once. Without this, each object in
    /// front of others that are or were read would cost another read of the same bytes.
    fn begins(self: &Arc<Self>, first: LogPos, bytes: u64) -> Option<(RunRead<'_>, u64)> {
        let unit = u64::from(self.medium.geometry.unit_bytes);
        let whole = first..LogPos(first.0 + bytes / unit);
        let mut runs = self.group_reads.lock();
        // The other read may have started since this lookup tried to join a run.
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
        // A record before that place may reach into the window that starts there.
        let bytes_needed = (range.end.0 - first.0) * unit + self.window_rest() as u64;
        // Lookups name windows. A read that is cut may have only a part of the last window.
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

    /// Copies the record at the start of `bytes` into a separate buffer: the record may be held for
    /// long, the run buffer must not be. `None` if the run is too short for it or there is no
    /// memory.
    fn read_within(&self, found: FoundRecord, bytes: &Bytes) -> Option<Read> {
        let whole = bytes.get(..found.prelude.record_bytes())?;
        let reservation = self.medium.budget.reserve(whole.len() as u64)?;
        let mut own = AlignedBuf::reserved(whole.len(), reservation);
        own.copy_from_slice(whole);
        Some(self.record(found.at, found.prelude, &Bytes::from_owner(own)))
    }

    /// Makes the records behind `first` hot, as long as they are in the same group. Returns the
    /// objects that can be hot, including `first`.
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
        // The version of the last head, if it is the newest version and the object is short: then
        // the spans behind it are copied.
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
                // If a row read is needed to know that the span is the newest, the span is left
                // out.
                let mut no_rows = 0;
                self.keep_sibling(&span, at, &mut no_rows);
            }
            from = next;
        }
        objects
    }

    /// Returns true if the record at `at` may be the newest record of `key`, as far as memory
    /// knows. A position on disk gives true if `may_read`.
    ///
    /// If the newest entry names the window of `at`, no further check is needed: if the record were
    /// dead, there would be an entry for a newer window (`policy/log`). This also holds if the
    /// entry was made for another name.
    fn may_be_newest(&self, key: KeyHash, at: LogPos, may_read: bool) -> bool {
        let shard = self.view(key);
        let located = self.locate(&shard, key);
        let lies_there = match located {
            Located::Displaced(_) => may_read,
            _ => located.newest_in_log() == Some(self.window(at)),
        };
        lies_there && !shard.pending.contains_key(&key)
    }

    /// Makes `record`, which is stored at `at`, hot if it is the newest that could be for this
    /// name. `rows`: how many row reads are left to find that out. Returns true if it is the
    /// newest, as far as memory knows.
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
        // Before the lock is taken, because making room may take long.
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
            // The run that is being read already holds memory, so this must not wait for more.
            let Some((locked, saved)) = self.saved_row(key, row, Medium::read_bytes_now) else {
                return false;
            };
            shard = locked;
            // In the meantime the object may have been put or removed, or the position may be in
            // memory again.
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
