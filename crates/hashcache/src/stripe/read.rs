//! Reading and writing the device: a record at a place of the log, bytes at an offset.
//!
//! Invariant: a record leaves here only after its MAC and page checksums were verified, and if the
//! head had not passed it when the read was complete.
//! Cost: one read, or two that follow on when the record is longer than expected.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Stripe;
use crate::device::Device;
use crate::format::{BLOCK, Prelude, RecordPlace, SECTOR};
use crate::key::KeyHash;
use crate::memory::{AlignedBuf, Budget, Reservation, Spares};
use crate::policy::LogPos;
use crate::record::Record;

/// First read of a record whose length is not known: 86 % of web objects are no longer.
pub(super) const FIRST_READ: usize = 16 << 10;
/// What tells a record's name at the least: no prelude is longer.
const PRELUDE_READ: u64 = 8 << 10;
/// How long a read waits for memory before it gives up and is a miss.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// Buffers for first reads, with what the device's alignment adds to them.
pub(super) fn spares(device: &dyn Device, budget: &Budget) -> Arc<Spares> {
    let added = if device.alignment() > SECTOR {
        device.alignment()
    } else {
        0
    };
    Spares::new(FIRST_READ + added, budget)
}

/// What one read of one place came to.
pub(crate) enum Read {
    /// A genuine record.
    Record(Box<Record>),
    /// What was there does not verify.
    Damaged,
    /// The log's head has passed it.
    Passed,
    /// The device refused: nobody knows what lies there.
    Refused,
    /// There was no memory for it.
    Failed,
}

/// A read of a record whose length is not known.
pub(super) struct FirstRead {
    /// What the record must prove to lie at.
    place: RecordPlace,
    pub(super) offset: u64,
    pub(super) length: usize,
    /// To the end of the segment: no record goes on beyond.
    left: usize,
}

impl Stripe {
    /// Reads and verifies the record at a position of the log.
    pub(crate) fn read_log(&self, at: LogPos, expect: usize) -> Read {
        let Some(first) = self.first_read(at, expect) else {
            return Read::Passed;
        };
        let mut bytes = match self.try_read_bytes(first.offset, first.length) {
            Ok(bytes) => bytes,
            Err(read) => return read,
        };
        let prelude = match self.prelude(at, &first, &bytes) {
            Ok(prelude) => prelude,
            Err(read) => return read,
        };
        let whole = prelude.record_bytes();
        if whole > bytes.len() {
            bytes = match self.read_rest(first.offset, &bytes, whole) {
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
        Prelude::decode(bytes, &self.secret, first.place)
            .filter(|prelude| prelude.record_bytes() <= first.left)
            .ok_or_else(|| self.bad(at))
    }

    /// The record at a position of the log where it takes `bytes` bytes, if there is memory for it
    /// at once.
    pub(crate) fn read_at_once(&self, at: LogPos, bytes: u64) -> Option<Record> {
        let place = self.log.place(at)?;
        let (offset, left) = self.log.device_range(at);
        let bytes = bytes.min(left);
        let reservation = self.budget.reserve(bytes + 2 * BLOCK as u64)?;
        let bytes = self.read_reserved(offset, bytes, reservation)?;
        let prelude = Prelude::decode(&bytes, &self.secret, place)?;
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
        let reservation = self.budget.reserve(bytes + 2 * BLOCK as u64)?;
        let bytes = self.read_reserved(offset, bytes, reservation)?;
        let prelude = Prelude::decode(&bytes, &self.secret, place)?;
        self.log.is_live(at).then_some(prelude.fields.key)
    }

    /// The record whose `prelude` and `bytes` were read at a position of the log, if its pages
    /// verify and the head has not come round to it since.
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

    /// At least `length` bytes from `offset` on; `None` when the device or the memory refuses.
    pub(crate) fn read_bytes(&self, offset: u64, length: usize) -> Option<Bytes> {
        self.try_read_bytes(offset, length).ok()
    }

    /// The same, and which of them refused.
    pub(crate) fn try_read_bytes(&self, offset: u64, length: usize) -> Result<Bytes, Read> {
        let (start, skip, span) = self.widen(offset, length);
        let mut buffer = self.buffer(span).ok_or(Read::Failed)?;
        self.fill(start, &mut buffer).ok_or(Read::Refused)?;
        Ok(Bytes::from_owner(buffer).slice(skip..))
    }

    /// The same, if there is memory for it at once: for who holds some already.
    pub(super) fn read_bytes_now(&self, offset: u64, length: usize) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, length);
        let mut buffer = self.buffer_now(span)?;
        self.fill(start, &mut buffer)?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }

    /// The first `whole` bytes from `offset` on, of which `first` are there already.
    fn read_rest(&self, offset: u64, first: &Bytes, whole: usize) -> Result<Bytes, Read> {
        let (start, skip, span) = self.widen(offset, whole);
        let mut buffer = self.buffer(span).ok_or(Read::Failed)?;
        // What was read ends on a boundary of the device, so the rest begins on one.
        let there = skip + first.len();
        buffer[skip..there].copy_from_slice(first);
        self.fill(start + there as u64, &mut buffer[there..])
            .ok_or(Read::Refused)?;
        Ok(Bytes::from_owner(buffer).slice(skip..))
    }

    /// A read widened to the device's alignment: where it starts, bytes to skip, bytes in all.
    pub(super) fn widen(&self, offset: u64, length: usize) -> (u64, usize, usize) {
        let alignment = self.device.alignment();
        let skip = usize::try_from(offset % alignment as u64).unwrap_or(0);
        (
            offset - skip as u64,
            skip,
            crate::format::round_up(skip + length, alignment),
        )
    }

    fn buffer(&self, bytes: usize) -> Option<AlignedBuf> {
        self.buffer_if(bytes, |needed| {
            let reservation = self.budget.reserve_blocking(needed, MEMORY_PATIENCE);
            if reservation.is_none() {
                self.counters.no_memory.add(1);
            }
            reservation
        })
    }

    /// A buffer of `bytes` bytes if there is memory for it at once.
    pub(super) fn buffer_now(&self, bytes: usize) -> Option<AlignedBuf> {
        self.buffer_if(bytes, |needed| self.budget.reserve(needed))
    }

    fn buffer_if(
        &self,
        bytes: usize,
        reserve: impl FnOnce(u64) -> Option<Reservation>,
    ) -> Option<AlignedBuf> {
        if let Some(spare) = self.spares.take(bytes) {
            return Some(spare);
        }
        let reservation = reserve(self.spares.bytes_for(bytes))?;
        Some(self.spares.make(bytes, reservation))
    }

    /// Reads, counting, and takes the device out when it refuses many places.
    pub(crate) fn fill(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.count_read(buffer.len());
        self.outcome(offset, self.device.read_at(offset, buffer))
    }

    /// A read of so many bytes begins.
    pub(super) fn count_read(&self, bytes: usize) {
        self.counters.reads.add(1);
        self.counters.read_bytes.add(bytes as u64);
    }

    /// What the device said to a read: counted, and the device taken out when it refuses many
    /// places.
    pub(super) fn outcome<T>(&self, offset: u64, outcome: io::Result<T>) -> Option<T> {
        match outcome {
            Ok(read) => {
                self.bad_places.good();
                Some(read)
            }
            Err(error) => {
                self.counters.read_errors.add(1);
                tracing::warn!(%error, offset, "device failed to read");
                if self.bad_places.refused(offset) {
                    self.fail("reading", &error);
                }
                None
            }
        }
    }

    /// Writes, counting. The caller decides what an error means.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.counters.writes.add(1);
        self.counters.written_bytes.add(bytes.len() as u64);
        self.device.write_at(offset, bytes)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.counters.syncs.add(1);
        self.device.sync()
    }
}
