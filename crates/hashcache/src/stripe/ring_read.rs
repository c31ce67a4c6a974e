//! Reads by the ring (`device/uring`): the newest candidate of a lookup, and the rest of the record
//! if it is longer than expected.
//!
//! Called by `lookup`. The simple case finishes on the ring thread: the record verifies and is the
//! wanted record. All other cases move to the engine threads, because they may need more reads. If
//! the wanted record is missing, the check for another name that explains it runs on the ring
//! thread, under the shard lock for reading and with at most as many MACs as a window has units.
//!
//! Invariant: memory for a read is reserved without waiting before the read is submitted, and stays
//! reserved until the read is done, even if no caller wants it any more.
//! Cost: between two system calls, verifying a record and copying it if it becomes hot: 2 µs for 16
//! KiB.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::Stripe;
use super::read::{FirstRead, FoundRecord};
use crate::device::Request;
use crate::disk::Read;
use crate::memory::AlignedBuf;
use crate::policy::Located;
use crate::shard::ReadRequest;

/// The first read for the newest candidate.
struct Candidate {
    first: FirstRead,
    /// Bytes before the candidate that device alignment adds.
    skip: usize,
}

impl Stripe {
    /// Submits `request` to the ring. Gives it back if there is no ring, if it needs a read outside
    /// the log or several records at once, or if memory is short.
    pub(super) fn submit(
        self: &Arc<Self>,
        request: Box<ReadRequest>,
    ) -> Result<(), Box<ReadRequest>> {
        if self.ring.is_none() || self.index.id.policy.grouped {
            return Err(request);
        }
        let Located::Log(candidates) = &request.located else {
            return Err(request);
        };
        let newest = candidates.as_slice().first().copied();
        let first = newest.and_then(|at| self.first_read(at, request.wanted.expect));
        let Some(first) = first else {
            return Err(request);
        };
        let (start, skip, span) = self.medium.widen(first.offset, first.length);
        let Some(buffer) = self.medium.buffer_now(span) else {
            return Err(request);
        };
        let stripe = Arc::clone(self);
        let candidate = Candidate { first, skip };
        self.submit_read(Request {
            offset: start,
            buffer,
            filled: 0,
            done: Box::new(move |read| stripe.first_came(request, candidate, read)),
        });
        Ok(())
    }

    /// Reads by the ring, or by a thread if the ring is closed.
    fn submit_read(self: &Arc<Self>, ring_request: Request) {
        self.medium
            .count_read(ring_request.buffer.len() - ring_request.filled);
        let ring_request = match &self.ring {
            Some(ring) => ring.read(ring_request),
            None => Err(ring_request),
        };
        if let Err(mut ring_request) = ring_request {
            let stripe = Arc::clone(self);
            self.pool.run(move || {
                let at = ring_request.offset + ring_request.filled as u64;
                let rest = &mut ring_request.buffer[ring_request.filled..];
                let read = stripe.medium.device.read_at(at, rest);
                (ring_request.done)(read.map(|()| ring_request.buffer));
            });
        }
    }

    /// Called when the first read for the newest candidate is done.
    fn first_came(
        self: &Arc<Self>,
        request: Box<ReadRequest>,
        candidate: Candidate,
        read: io::Result<AlignedBuf>,
    ) {
        let Some(bytes) = self.came(&candidate, read) else {
            return self.conclude(request, Read::Refused);
        };
        let found = match self.find_record(&candidate.first, &bytes, request.wanted.key) {
            Ok(found) => found,
            Err(read) => return self.conclude(request, read),
        };
        let whole = found.end();
        if whole <= bytes.len() {
            let read = self.found_record(found, &bytes);
            return self.conclude(request, read);
        }
        let (start, skip, span) = self.medium.widen(candidate.first.offset, whole);
        let Some(mut buffer) = self.medium.buffer_now(span) else {
            // A thread can wait for memory.
            let stripe = Arc::clone(self);
            return self.pool.run(move || stripe.answer(*request, None));
        };
        self.medium.counters.rest_reads.add(1);
        // The first read stops at a block boundary of the device, so the rest starts at a block
        // boundary, too.
        let filled = skip + bytes.len();
        buffer[skip..filled].copy_from_slice(&bytes);
        let stripe = Arc::clone(self);
        self.submit_read(Request {
            offset: start,
            buffer,
            filled,
            done: Box::new(move |read| stripe.rest_came(request, &candidate, found, read)),
        });
    }

    /// Called when the newest candidate was read completely.
    fn rest_came(
        self: &Arc<Self>,
        request: Box<ReadRequest>,
        candidate: &Candidate,
        found: FoundRecord,
        read: io::Result<AlignedBuf>,
    ) {
        let read = match self.came(candidate, read) {
            Some(bytes) => self.found_record(found, &bytes),
            None => Read::Refused,
        };
        self.conclude(request, read);
    }

    fn came(&self, candidate: &Candidate, read: io::Result<AlignedBuf>) -> Option<Bytes> {
        let buffer = self.medium.outcome(candidate.first.offset, read)?;
        Some(Bytes::from_owner(buffer).slice(candidate.skip..))
    }

    /// Answers `request`, on this thread if no more reads are needed.
    fn conclude(self: &Arc<Self>, request: Box<ReadRequest>, read: Read) {
        let simple = match &read {
            Read::Record(record) => request.wanted.is(record) && self.is_in_force(record),
            Read::Failed => true,
            Read::Other | Read::Damaged | Read::Passed | Read::Refused => false,
        };
        if simple {
            return self.answer_from(*request, read);
        }
        let stripe = Arc::clone(self);
        self.pool.run(move || stripe.answer_from(*request, read));
    }
}
