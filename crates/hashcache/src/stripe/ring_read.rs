//! Reads that a ring does: the newest candidate for a look-up, and the rest of it if it is longer
//! than expected.
//!
//! Called by `lookup`. What is simple ends on the ring's own thread: the record verifies and is
//! what was asked for. Whatever else was found, or has to be waited for, is the threads' business.
//!
//! Invariant: memory for a read is set aside without waiting, before it is submitted, and stays so
//! until it is done, whoever still wants it.
//! Cost: verifying a record and copying it where it becomes hot, 2 µs for 16 KiB, between two calls
//! to the kernel.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::Stripe;
use super::read::FirstRead;
use crate::address::LogPos;
use crate::device::Request;
use crate::disk::Read;
use crate::format::Prelude;
use crate::memory::AlignedBuf;
use crate::policy::Located;
use crate::shard::Question;

/// Where the newest candidate lies, and what is read of it first.
struct Candidate {
    at: LogPos,
    first: FirstRead,
    /// Bytes before the record that the device's alignment adds.
    skip: usize,
}

impl Stripe {
    /// Leaves `question` to the ring; gives it back where there is none, where something else than
    /// the log is to be read or more than one record at once, and where memory is short.
    pub(super) fn submit(self: &Arc<Self>, question: Box<Question>) -> Result<(), Box<Question>> {
        if self.ring.is_none() || self.index.id.policy.grouped {
            return Err(question);
        }
        let Located::Log(candidates) = &question.located else {
            return Err(question);
        };
        let newest = candidates.as_slice().first().copied();
        let first = newest.and_then(|at| Some((at, self.first_read(at, question.wanted.expect)?)));
        let Some((at, first)) = first else {
            return Err(question);
        };
        let (start, skip, span) = self.medium.widen(first.offset, first.length);
        let Some(buffer) = self.medium.buffer_now(span) else {
            return Err(question);
        };
        let stripe = Arc::clone(self);
        let candidate = Candidate { at, first, skip };
        self.submit_read(Request {
            offset: start,
            buffer,
            filled: 0,
            done: Box::new(move |read| stripe.first_came(question, candidate, read)),
        });
        Ok(())
    }

    /// Has the ring read, or a thread when it is closed.
    fn submit_read(self: &Arc<Self>, request: Request) {
        self.medium
            .count_read(request.buffer.len() - request.filled);
        let request = match &self.ring {
            Some(ring) => ring.read(request),
            None => Err(request),
        };
        if let Err(mut request) = request {
            let stripe = Arc::clone(self);
            self.pool.run(move || {
                let at = request.offset + request.filled as u64;
                let rest = &mut request.buffer[request.filled..];
                let read = stripe.medium.device.read_at(at, rest);
                (request.done)(read.map(|()| request.buffer));
            });
        }
    }

    /// What was to be read first of the newest candidate is there.
    fn first_came(
        self: &Arc<Self>,
        question: Box<Question>,
        candidate: Candidate,
        read: io::Result<AlignedBuf>,
    ) {
        let Some(bytes) = self.came(&candidate, read) else {
            return self.conclude(question, Read::Refused);
        };
        let prelude = match self.prelude(candidate.at, &candidate.first, &bytes) {
            Ok(prelude) => prelude,
            Err(read) => return self.conclude(question, read),
        };
        let whole = prelude.record_bytes();
        if whole <= bytes.len() {
            let read = self.record(candidate.at, prelude, &bytes);
            return self.conclude(question, read);
        }
        let (start, skip, span) = self.medium.widen(candidate.first.offset, whole);
        let Some(mut buffer) = self.medium.buffer_now(span) else {
            // A thread can wait for it.
            let stripe = Arc::clone(self);
            return self.pool.run(move || stripe.answer(*question, None));
        };
        // What was read ends on a boundary of the device, so the rest begins on one.
        let filled = skip + bytes.len();
        buffer[skip..filled].copy_from_slice(&bytes);
        let stripe = Arc::clone(self);
        self.submit_read(Request {
            offset: start,
            buffer,
            filled,
            done: Box::new(move |read| stripe.rest_came(question, &candidate, prelude, read)),
        });
    }

    /// All of the newest candidate is there.
    fn rest_came(
        self: &Arc<Self>,
        question: Box<Question>,
        candidate: &Candidate,
        prelude: Prelude,
        read: io::Result<AlignedBuf>,
    ) {
        let read = match self.came(candidate, read) {
            Some(bytes) => self.record(candidate.at, prelude, &bytes),
            None => Read::Refused,
        };
        self.conclude(question, read);
    }

    fn came(&self, candidate: &Candidate, read: io::Result<AlignedBuf>) -> Option<Bytes> {
        let buffer = self.medium.outcome(candidate.first.offset, read)?;
        Some(Bytes::from_owner(buffer).slice(candidate.skip..))
    }

    /// Answers `question`, here if that is simple.
    fn conclude(self: &Arc<Self>, question: Box<Question>, read: Read) {
        let simple = match &read {
            Read::Record(record) => question.wanted.is(record) && self.is_in_force(record),
            Read::Failed => true,
            Read::Damaged | Read::Passed | Read::Refused => false,
        };
        if simple {
            return self.answer_from(*question, read);
        }
        let stripe = Arc::clone(self);
        self.pool.run(move || stripe.answer_from(*question, read));
    }
}
