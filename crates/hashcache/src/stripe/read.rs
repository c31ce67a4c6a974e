//! Reads a record in a window of the log, or at a position.
//!
//! The index names a window of a few units (`policy/log`). What is read begins with the window, and
//! the record is found in it by its header.
//!
//! Invariant: a record is returned only after its MAC and page checksums were verified, and only if
//! the head had not passed it when the read was complete. Where no record of the wanted name is
//! found, an intact record of another name must explain that, or it counts as damage.
//! Cost: one read, or two adjacent reads when the record is longer than expected.

use bytes::Bytes;

use super::Stripe;
use crate::address::LogPos;
use crate::disk::{FIRST_READ, Read};
use crate::format::{IO_BLOCK, PRELUDE_REST_MAX, Prelude, RecordAddress, claimed_key};
use crate::key::KeyHash;
use crate::object::MAX_NAME;
use crate::policy::LogPolicy;
use crate::record::Record;

/// What tells a record's name at the least: no prelude is longer.
const PRELUDE_READ: usize = 8 << 10;
const _: () = assert!(MAX_NAME + PRELUDE_REST_MAX <= PRELUDE_READ);

/// A read of a record that lies at one of a few places, and whose length is not known.
#[derive(Clone, Copy)]
pub(super) struct FirstRead {
    /// The first of the places, and what a record there must prove.
    at: LogPos,
    place: RecordAddress,
    /// So many units in a row can be the record's first.
    units: u64,
    pub(super) offset: u64,
    pub(super) length: usize,
    /// To the end of the segment: no record reaches beyond it.
    left: usize,
}

/// A record in what was read first.
pub(super) struct FoundRecord {
    pub(super) at: LogPos,
    pub(super) place: RecordAddress,
    /// Bytes in front of it.
    pub(super) skip: usize,
    pub(super) prelude: Prelude,
}

impl FoundRecord {
    /// Bytes of what was read up to the record's end.
    pub(super) fn end(&self) -> usize {
        self.skip + self.prelude.record_bytes()
    }
}

impl Stripe {
    /// Where the window begins in which `at` lies: what the index says of a record there.
    pub(super) fn window(&self, at: LogPos) -> LogPos {
        self.index.shape.windows.start_of(at)
    }

    /// Bytes of a window beside the unit in which the record begins.
    pub(super) fn window_rest(&self) -> usize {
        let units = self.index.shape.windows.units;
        usize::try_from(units - 1).unwrap_or(0) * self.log.alignment().record(1)
    }

    /// Reads and verifies the record of `key` in the window that begins at a position of the log.
    pub(super) fn read_window(&self, at: LogPos, key: KeyHash, expect: usize) -> Read {
        match self.first_read(at, expect) {
            Some(first) => self.read_log(&first, key),
            None => Read::Passed,
        }
    }

    /// Reads and verifies the record of `key` at a position of the log.
    pub(crate) fn read_exactly(&self, at: LogPos, key: KeyHash, expect: usize) -> Read {
        match self.first_read(at, expect) {
            Some(first) => self.read_log(&FirstRead { units: 1, ..first }, key),
            None => Read::Passed,
        }
    }

    fn read_log(&self, first: &FirstRead, key: KeyHash) -> Read {
        let mut bytes = match self.medium.try_read_bytes(first.offset, first.length) {
            Ok(bytes) => bytes,
            Err(read) => return read,
        };
        let found = match self.find_record(first, &bytes, key) {
            Ok(found) => found,
            Err(read) => return read,
        };
        let whole = found.end();
        if whole > bytes.len() {
            self.medium.counters.rest_reads.add(1);
            bytes = match self.medium.read_rest(first.offset, &bytes, whole) {
                Ok(bytes) => bytes,
                Err(read) => return read,
            };
        }
        self.found_record(found, &bytes)
    }

    /// What is read first of the record in the window that begins at a position of the log; `None`
    /// when the head has passed it.
    pub(super) fn first_read(&self, at: LogPos, expect: usize) -> Option<FirstRead> {
        let place = self.log.place(at)?;
        let (offset, left) = self.log.device_range(at);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let length = if expect == 0 {
            FIRST_READ
        } else {
            // A reader may want a few bytes of content alone.
            (expect + 2048).max(PRELUDE_READ)
        };
        Some(FirstRead {
            at,
            place,
            units: self.index.shape.windows.units,
            offset,
            length: (self.window_rest() + length).min(left),
            left,
        })
    }

    /// The record of `key` in `bytes`, which were read first, if it verifies.
    pub(super) fn find_record(
        &self,
        first: &FirstRead,
        bytes: &Bytes,
        key: KeyHash,
    ) -> Result<FoundRecord, Read> {
        // What headers say costs comparisons. MACs are checked where the name's hash is right, and
        // only if no such record is found, those of the other records.
        let claims = (0..first.units).filter_map(|unit| {
            let (skip, place) = self.place_within(first, unit);
            Some((claimed_key(bytes.get(skip..)?, place)?, unit))
        });
        let own = claims.clone().filter(|(claimed, _)| *claimed == key);
        let mut is_damaged = false;
        for (_, unit) in own {
            match self.record_within(first, bytes, unit) {
                Some(found) => return Ok(found),
                None => is_damaged = true,
            }
        }
        let is_intact = |unit| self.record_within(first, bytes, unit).is_some();
        let others = claims.filter(|(_, unit)| is_intact(*unit));
        let others: Vec<KeyHash> = others.map(|(claimed, _)| claimed).collect();
        let explains = |log: &dyn LogPolicy| log.explains(key, first.at, &others, self.log.head());
        if !is_damaged && self.view(key).policy.log().is_some_and(explains) {
            return Err(Read::Other);
        }
        Err(self.bad(first.at))
    }

    /// Bytes in front of a unit of what is read first, and what a record there must prove.
    fn place_within(&self, first: &FirstRead, unit: u64) -> (usize, RecordAddress) {
        let skip = usize::try_from(unit).unwrap_or(0) * self.log.alignment().record(1);
        let place = RecordAddress {
            place: first.place.place + unit,
            ..first.place
        };
        (skip, place)
    }

    /// The record that begins at a unit of what was read first, if its prelude verifies.
    fn record_within(&self, first: &FirstRead, bytes: &Bytes, unit: u64) -> Option<FoundRecord> {
        let (skip, place) = self.place_within(first, unit);
        let prelude = Prelude::decode(bytes.get(skip..)?, &self.medium.secret, place)?;
        (skip + prelude.record_bytes() <= first.left).then_some(FoundRecord {
            at: LogPos(first.at.0 + unit),
            place,
            skip,
            prelude,
        })
    }

    /// The record that was found in `bytes`, if it is whole.
    pub(super) fn found_record(&self, found: FoundRecord, bytes: &Bytes) -> Read {
        self.record(found.at, found.prelude, &bytes.slice(found.skip..))
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
            Read::Other | Read::Damaged | Read::Passed | Read::Refused | Read::Failed => None,
        }
    }

    /// Whether the window that begins at a position of the log is known to hold no record of `key`
    /// that the index could mean. Not if there is no memory to look at once.
    pub(crate) fn is_of_other(&self, key: KeyHash, at: LogPos) -> bool {
        let Some(first) = self.first_read(at, 0) else {
            return false;
        };
        let bytes = first.length.min(self.window_rest() + PRELUDE_READ) as u64;
        let reservation = self.medium.budget.reserve(bytes + 2 * IO_BLOCK as u64);
        let read = |reservation| self.medium.read_reserved(first.offset, bytes, reservation);
        let Some(bytes) = reservation.and_then(read) else {
            return false;
        };
        let found = self.find_record(&first, &bytes, key);
        matches!(found, Err(Read::Other)) && self.log.is_live(at)
    }

    /// The record whose `prelude` and `bytes` were read at a position of the log, if its pages
    /// verify and the head has not passed it since.
    pub(super) fn record(&self, at: LogPos, prelude: Prelude, bytes: &Bytes) -> Read {
        let Some((metadata, content)) = prelude.body(&self.medium.secret, bytes) else {
            return self.bad(at);
        };
        // In a record of format version 2 page checksums have no key: a rest that was read after
        // the head came round could have been made to fit an old header.
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
