//! Reads a record at a log position.
//!
//! Invariant: a record is returned only after its MAC and page checksums were verified, and only if
//! the head had not passed it when the read was complete.
//! Cost: one read, or two adjacent reads when the record is longer than expected.

use bytes::Bytes;

use super::Stripe;
use crate::address::LogPos;
use crate::disk::{FIRST_READ, Read};
use crate::format::{IO_BLOCK, Prelude, RecordAddress};
use crate::key::KeyHash;
use crate::record::Record;

/// What tells a record's name at the least: no prelude is longer.
const PRELUDE_READ: u64 = 8 << 10;

/// A read of a record whose length is not known.
pub(super) struct FirstRead {
    /// What the record must prove to lie at.
    place: RecordAddress,
    pub(super) offset: u64,
    pub(super) length: usize,
    /// To the end of the segment: no record reaches beyond it.
    left: usize,
}

impl Stripe {
    /// Reads and verifies the record at a position of the log.
    pub(crate) fn read_log(&self, at: LogPos, expect: usize) -> Read {
        let Some(first) = self.first_read(at, expect) else {
            return Read::Passed;
        };
        let mut bytes = match self.medium.try_read_bytes(first.offset, first.length) {
            Ok(bytes) => bytes,
            Err(read) => return read,
        };
        let prelude = match self.prelude(at, &first, &bytes) {
            Ok(prelude) => prelude,
            Err(read) => return read,
        };
        let whole = prelude.record_bytes();
        if whole > bytes.len() {
            self.medium.counters.rest_reads.add(1);
            bytes = match self.medium.read_rest(first.offset, &bytes, whole) {
                Ok(bytes) => bytes,
                Err(read) => return read,
            };
        }
        self.record(at, prelude, &bytes)
    }

    /// What is read first of the record at a position of the log; `None` when the head has passed
    /// it.
    pub(super) fn first_read(&self, at: LogPos, expect: usize) -> Option<FirstRead> {
        let place = self.log.place(at)?;
        let (offset, left) = self.log.device_range(at);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let length = if expect == 0 {
            FIRST_READ
        } else {
            expect + 2048
        };
        Some(FirstRead {
            place,
            offset,
            length: length.min(left),
            left,
        })
    }

    /// The prelude in `bytes`, which were read first, if it verifies.
    pub(super) fn prelude(
        &self,
        at: LogPos,
        first: &FirstRead,
        bytes: &Bytes,
    ) -> Result<Prelude, Read> {
        Prelude::decode(bytes, &self.medium.secret, first.place)
            .filter(|prelude| prelude.record_bytes() <= first.left)
            .ok_or_else(|| self.bad(at))
    }

    /// The record at a position of the log where it takes `bytes` bytes, if there is memory for it
    /// at once.
    pub(crate) fn read_at_once(&self, at: LogPos, bytes: u64) -> Option<Record> {
        let place = self.log.place(at)?;
        let (offset, left) = self.log.device_range(at);
        let bytes = bytes.min(left);
        let reservation = self.medium.budget.reserve(bytes + 2 * IO_BLOCK as u64)?;
        let bytes = self.medium.read_reserved(offset, bytes, reservation)?;
        let prelude = Prelude::decode(&bytes, &self.medium.secret, place)?;
        match self.record(at, prelude, &bytes) {
            Read::Record(record) => Some(*record),
            Read::Damaged | Read::Passed | Read::Refused | Read::Failed => None,
        }
    }

    /// Under which key the record at a position of the log is found, if there is memory to look at
    /// once.
    pub(crate) fn key_at(&self, at: LogPos) -> Option<KeyHash> {
        let place = self.log.place(at)?;
        let (offset, left) = self.log.device_range(at);
        let bytes = PRELUDE_READ.min(left);
        let reservation = self.medium.budget.reserve(bytes + 2 * IO_BLOCK as u64)?;
        let bytes = self.medium.read_reserved(offset, bytes, reservation)?;
        let prelude = Prelude::decode(&bytes, &self.medium.secret, place)?;
        self.log.is_live(at).then_some(prelude.fields.key)
    }

    /// The record whose `prelude` and `bytes` were read at a position of the log, if its pages
    /// verify and the head has not passed it since.
    pub(super) fn record(&self, at: LogPos, prelude: Prelude, bytes: &Bytes) -> Read {
        let Some((metadata, content)) = prelude.body(bytes) else {
            return self.bad(at);
        };
        // Page checksums have no key: a rest that was read after the head came round could have
        // been made to fit an old header.
        if !self.log.is_live(at) {
            return Read::Passed;
        }
        Read::Record(Box::new(Record {
            fields: prelude.fields,
            name: prelude.name,
            metadata,
            content: if content.is_empty() {
                Vec::new()
            } else {
                vec![content]
            },
            at: Some(at),
            storage: crate::object::Storage::Disk,
            judged: std::sync::atomic::AtomicU64::default(),
        }))
    }

    /// What does not verify is damage only if it was still to be there.
    pub(super) fn bad(&self, at: LogPos) -> Read {
        if self.log.is_live(at) {
            Read::Damaged
        } else {
            Read::Passed
        }
    }
}
