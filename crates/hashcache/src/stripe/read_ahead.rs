//! Read-ahead: adjacent spans of one object in the log are read in one go.
//!
//! Called by `cache` when a caller reads on. The first span is looked up like any record. Further
//! spans join its read for as long as the index says that they are adjacent, and memory allows.
//!
//! Invariant: memory is reserved without waiting, before any answer is promised. Each record is
//! verified by itself; a record that does not verify is looked up by itself.
//! Cost: one read of at most [`RUN_BYTES`] and some, instead of one a span.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::lookup::{Begin, FirstAnswer};
use super::read::FirstRead;
use super::{Stripe, StripeLookup};
use crate::address::LogPos;
use crate::disk::Read;
use crate::format::{IO_BLOCK, record_bytes};
use crate::key::KeyHash;
use crate::memory::Reservation;
use crate::record::Record;
use crate::shard::{LookupTarget, ReadRequest};

/// Most content read at once: on a spinning disk 1 MiB takes about as long as the seek to it.
const RUN_BYTES: u64 = 1 << 20;
/// A run has at most this share of the memory that is free or held by hot objects only: with many
/// readers each reads less at once. The buffer of a page group's run may be a huge page, which is
/// larger.
const RUN_SHARE: u64 = 16;

/// Records that follow on, the beginnings of their windows, and memory for them.
struct Run {
    requests: Vec<ReadRequest>,
    windows: Vec<LogPos>,
    reservation: Reservation,
}

impl Stripe {
    /// Most content of one object, bytes, that is to be read at once as things are.
    pub(crate) fn spans_at_once(&self) -> u64 {
        self.most_at_once(RUN_BYTES)
    }

    /// What may be read at once of `bytes` as things are.
    pub(super) fn most_at_once(&self, bytes: u64) -> u64 {
        bytes.min(self.shared.available_bytes() / RUN_SHARE)
    }

    /// Looks for `first`, and for as many of those `behind` it as can be read along: so many
    /// answers, in order, one at least.
    ///
    /// All are spans, in their order, each with the length of its content.
    pub(crate) fn lookup_run(
        self: &Arc<Self>,
        first: LookupTarget,
        behind: impl Iterator<Item = LookupTarget>,
    ) -> Vec<StripeLookup> {
        let request = match self.ask(first, Begin::Now) {
            FirstAnswer::Memory(lookup) => return vec![lookup],
            FirstAnswer::Disk(request) => request,
        };
        let run = match self.run(request, behind) {
            Ok(run) => run,
            Err(request) => {
                let outcome = request.outcome();
                self.read_for(request);
                return vec![StripeLookup::Asked(outcome)];
            }
        };
        let asked = run.requests.iter();
        let lookups = asked.map(|it| StripeLookup::Asked(it.outcome())).collect();
        let stripe = Arc::clone(self);
        self.pool.run(move || stripe.answer_run(run));
        lookups
    }

    /// A run that begins with `first`; `first` again if there is none behind it.
    fn run(
        &self,
        first: Box<ReadRequest>,
        behind: impl Iterator<Item = LookupTarget>,
    ) -> Result<Run, Box<ReadRequest>> {
        let Some(at) = first.located.newest_in_log() else {
            return Err(first);
        };
        let mut size = self.bytes_in_log(&first.wanted);
        let (mut requests, mut windows) = (vec![*first], vec![at]);
        let mut reserved: Option<Reservation> = None;
        let (_, left) = self.log.device_range(at);
        let mut bytes = size + self.window_rest();
        // Where the last of them may begin.
        let mut positions = self.in_window(at);
        for wanted in behind {
            let units = self.log.alignment().units(size);
            let moved = |at: &LogPos| LogPos(at.0 + units);
            let next = moved(positions.start())..=moved(positions.end());
            size = self.bytes_in_log(&wanted);
            bytes += size;
            // The first time for the first record too, and for what the device's alignment adds.
            let more = reserved.as_ref().map_or(bytes + 2 * IO_BLOCK, |_| size);
            if bytes as u64 > left {
                break;
            }
            let Some(more) = self.medium.budget.reserve(more as u64) else {
                break;
            };
            let Some((request, window)) = self.ask_within(wanted, &next) else {
                break;
            };
            let within = self.in_window(window);
            positions = *next.start().max(within.start())..=*next.end().min(within.end());
            requests.push(request);
            windows.push(window);
            match &mut reserved {
                Some(all) => all.join(more),
                None => reserved = Some(more),
            }
        }
        match reserved {
            Some(reservation) => Ok(Run {
                requests,
                windows,
                reservation,
            }),
            None => Err(Box::new(requests.remove(0))),
        }
    }

    /// The positions in the window that begins at `at`.
    fn in_window(&self, at: LogPos) -> RangeInclusive<LogPos> {
        at..=LogPos(at.0 + self.index.shape.windows.units - 1)
    }

    /// What a span takes in the log, bytes, if it is as long as expected.
    fn bytes_in_log(&self, wanted: &LookupTarget) -> usize {
        let record = record_bytes(wanted.name.len(), 0, 0, wanted.expect);
        self.log.alignment().record(record)
    }

    fn answer_run(self: &Arc<Self>, run: Run) {
        let last = run.requests.last();
        let last = last.map_or(0, |it| self.bytes_in_log(&it.wanted));
        let keys: Vec<_> = run.requests.iter().map(|it| it.wanted.key).collect();
        let records = self.read_run(&run.windows, &keys, last, run.reservation);
        for (request, record) in run.requests.into_iter().zip(records) {
            self.answer(request, record);
        }
    }

    /// The records of `keys` in `windows`, which lie one behind the other, read at once; the last
    /// takes `last` bytes. `None` for what could not be read or does not verify.
    fn read_run(
        &self,
        windows: &[LogPos],
        keys: &[KeyHash],
        last: usize,
        reservation: Reservation,
    ) -> Vec<Option<Record>> {
        let offset = |at: &LogPos| self.log.device_range(*at).0;
        let [first, .., end] = windows else {
            return Vec::new();
        };
        let (begin, left) = self.log.device_range(*first);
        let end = offset(end) + (self.window_rest() + last) as u64;
        // The window of the last record may begin later than the record would, if its entry is
        // another name's.
        let end = end.min(begin + left);
        // Before they are read: the stamps that they must have by then.
        let first_reads: Vec<_> = windows.iter().map(|at| self.first_read(*at, 0)).collect();
        let bytes = self.medium.read_reserved(begin, end - begin, reservation);
        if self.index.id.policy.grouped && bytes.is_some() {
            self.medium.counters.span_reads.add(1);
        }
        let record = |(key, first): (&KeyHash, Option<FirstRead>)| {
            let first = first?;
            let from = usize::try_from(first.offset - begin).ok()?;
            let bytes = bytes.as_ref()?.slice(from..);
            let found = self.find_record(&first, &bytes, *key).ok()?;
            match self.found_record(found, &bytes) {
                Read::Record(record) => Some(*record),
                Read::Other | Read::Damaged | Read::Passed | Read::Refused | Read::Failed => None,
            }
        };
        keys.iter().zip(first_reads).map(record).collect()
    }
}
