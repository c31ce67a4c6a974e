//! Read-ahead: adjacent spans of one object in the log are read together.
//!
//! Called by `cache` when a caller reads on. The first span is looked up like any record. Further
//! spans join its read as long as the index has them in adjacent positions and memory allows.
//!
//! Invariant: memory is reserved without waiting, before any answer is promised. Each record is
//! verified separately; a record that does not verify is looked up separately.
//! Cost: a read of at most [`RUN_BYTES`] plus record overhead, instead of a read for each span.

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
/// A run takes at most 1/16 of the memory that is free or held only by hot objects: with many
/// readers each reads less at once. The buffer for a page-group run may be a huge page, which is
/// larger.
const RUN_SHARE: u64 = 16;

/// Requests for adjacent records, the start of each window, and memory for the records.
struct Run {
    requests: Vec<ReadRequest>,
    windows: Vec<LogPos>,
    reservation: Reservation,
}

impl Stripe {
    /// Most content bytes of an object to read at once, under the current memory use.
    pub(crate) fn spans_at_once(&self) -> u64 {
        self.most_at_once(RUN_BYTES)
    }

    /// `bytes`, reduced to the amount that may be read at once under the current memory use.
    pub(super) fn most_at_once(&self, bytes: u64) -> u64 {
        bytes.min(self.shared.available_bytes() / RUN_SHARE)
    }

    /// Looks up `first`, and as many spans `behind` it as can be read together with it. Returns one
    /// answer for each of these spans, in order, and at least one answer.
    ///
    /// All targets are spans, in their order, each with the content length.
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

    /// Builds a run that starts with `first`; gives `first` back if no span behind it can join.
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
        // Positions where the last record may start.
        let mut positions = self.in_window(at);
        for wanted in behind {
            let units = self.log.alignment().units(size);
            let moved = |at: &LogPos| LogPos(at.0 + units);
            let next = moved(positions.start())..=moved(positions.end());
            size = self.bytes_in_log(&wanted);
            bytes += size;
            // The first reservation also covers the first record and the bytes that device
            // alignment adds.
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

    /// The positions in the window that starts at `at`.
    fn in_window(&self, at: LogPos) -> RangeInclusive<LogPos> {
        at..=LogPos(at.0 + self.index.shape.windows.units - 1)
    }

    /// Bytes that a span takes in the log, if it is as long as expected.
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

    /// Reads the records of `keys` in `windows`, which are adjacent, with a single read; the last
    /// record takes `last` bytes. `None` for a record that could not be read or does not verify.
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
        // The window for the last record may start later than the record would, if the entry
        // belongs to another name.
        let end = end.min(begin + left);
        // Before the read: these stamps are the ones that the records must have.
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
