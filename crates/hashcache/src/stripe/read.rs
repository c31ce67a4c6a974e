//! Reads a record in a window of the log, or at an exact position.
//!
//! The index names a window of a few units (`policy/log`). A read starts at the window start, and
//! the record is found in the window by the header.
//!
//! Invariant: a record is returned only after the MAC and page checksums were verified, and only if
//! the log head had not passed it when the read was complete. If no record of the wanted name is
//! found, an intact record of another name must explain that; otherwise it counts as damage.
//! Cost: a read, or two adjacent reads if the record is longer than expected.

use bytes::Bytes;

use super::Stripe;
use crate::address::LogPos;
use crate::disk::{FIRST_READ, Read};
use crate::format::{IO_BLOCK, PRELUDE_REST_MAX, Prelude, RecordAddress, claimed_key};
use crate::key::KeyHash;
use crate::object::MAX_NAME;
use crate::policy::LogPolicy;
use crate::record::Record;

/// Minimum read to learn the name of a record: no prelude is longer.
const PRELUDE_READ: usize = 8 << 10;
const _: () = assert!(MAX_NAME + PRELUDE_REST_MAX <= PRELUDE_READ);

/// The first read for a record of unknown length, which may be at any of a few places.
#[derive(Clone, Copy)]
pub(super) struct FirstRead {
    /// The first of the places, and the address that a record there must prove.
    at: LogPos,
    place: RecordAddress,
    /// Number of consecutive units in which the record may start.
    units: u64,
    pub(super) offset: u64,
    pub(super) length: usize,
    /// Bytes up to the end of the segment: no record reaches beyond it.
    left: usize,
}

/// A record in the bytes of the first read.
pub(super) struct FoundRecord {
    pub(super) at: LogPos,
    pub(super) place: RecordAddress,
    /// Bytes in front of the record.
    pub(super) skip: usize,
    pub(super) prelude: Prelude,
}

impl FoundRecord {
    /// Bytes of the read up to the end of the record.
    pub(super) fn end(&self) -> usize {
        self.skip + self.prelude.record_bytes()
    }
}

impl Stripe {
    /// Start of the window that contains `at`: the index stores only this for a record.
    pub(super) fn window(&self, at: LogPos) -> LogPos {
        self.index.shape.windows.start_of(at)
    }

    /// Window size in bytes, without the unit in which the record starts.
    pub(super) fn window_rest(&self) -> usize {
        let units = self.index.shape.windows.units;
        usize::try_from(units - 1).unwrap_or(0) * self.log.alignment().record(1)
    }

    /// Reads and verifies the record of `key` in the window that starts at a log position.
    pub(super) fn read_window(&self, at: LogPos, key: KeyHash, expect: usize) -> Read {
        match self.first_read(at, expect) {
            Some(first) => self.read_log(&first, key),
            None => Read::Passed,
        }
    }

    /// Reads and verifies the record of `key` at a log position.
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

    /// The first read for a record in the window that starts at a log position; `None` if the log
    /// head has passed it.
    pub(super) fn first_read(&self, at: LogPos, expect: usize) -> Option<FirstRead> {
        let place = self.log.place(at)?;
        let (offset, left) = self.log.device_range(at);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let length = if expect == 0 {
            FIRST_READ
        } else {
            // The caller may expect only a few bytes of content.
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

    /// Finds and verifies the record of `key` in the `bytes` of the first read.
    pub(super) fn find_record(
        &self,
        first: &FirstRead,
        bytes: &Bytes,
        key: KeyHash,
    ) -> Result<FoundRecord, Read> {
        // The claimed keys in the headers cost only comparisons. MACs are checked where the name
        // hash matches; the MACs of other records are checked only if no such record is found.
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

    /// Bytes in front of a unit of the first read, and the address that a record there must prove.
    fn place_within(&self, first: &FirstRead, unit: u64) -> (usize, RecordAddress) {
        let skip = usize::try_from(unit).unwrap_or(0) * self.log.alignment().record(1);
        let place = RecordAddress {
            place: first.place.place + unit,
            ..first.place
        };
        (skip, place)
    }

    /// The record that starts at a unit of the first read, if the prelude verifies.
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

    /// Reads the record at a log position, where it takes `bytes` bytes, if memory is available
    /// without waiting.
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

    /// Returns true if the window that starts at a log position certainly holds no record of `key`
    /// that the index could mean. False if no memory is available to check.
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

    /// The record with `prelude`, read as `bytes` at a log position, if the pages verify and the
    /// log head has not passed it since.
    pub(super) fn record(&self, at: LogPos, prelude: Prelude, bytes: &Bytes) -> Read {
        let Some((metadata, content)) = prelude.body(&self.medium.secret, bytes) else {
            return self.bad(at);
        };
        // In format version 2 the page checksums have no key: if the rest of a record was read
        // after the log had wrapped, it could have been crafted to fit an old header.
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

    /// Classifies a record that does not verify: it is damage only if the record is still live.
    pub(super) fn bad(&self, at: LogPos) -> Read {
        if self.log.is_live(at) {
            Read::Damaged
        } else {
            Read::Passed
        }
    }
}
