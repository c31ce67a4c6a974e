//! Reads and writes on a device: bytes at an offset, in buffers that the memory budget accounts
//! for.
//!
//! Called by all code that reads or writes a device: lookups, the writer thread, recovery.
//!
//! Invariant: no read uses memory outside the budget. A device that fails to read many places is
//! taken out of service.
//! Cost: a counter or two for each read and write.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;

use super::DeviceHealth;
use super::bad_places::BadPlaces;
use crate::clock::Clock;
use crate::device::Device;
use crate::format::{IO_BLOCK, round_up};
use crate::geometry::Geometry;
use crate::key::Secret;
use crate::memory::{AlignedBuf, Budget, BufferPool, HugeBuffers, Reservation};
use crate::record::Record;
use crate::stats::Counters;

/// First read if the record length is unknown: 86 % of web objects are no longer than this.
pub(crate) const FIRST_READ: usize = 16 << 10;
/// Longer reads: for records that do not fit in the first read, and for the head of a large object,
/// which has a page of content, metadata, and the bytes that device alignment adds.
const LONG_READS: [usize; 2] = [40 << 10, 80 << 10];
/// How long a read waits for memory before it gives up and counts as a miss.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// Result from a read at a place.
pub(crate) enum Read {
    /// A genuine record.
    Record(Box<Record>),
    /// No record with the wanted name, but a record with another name that the index could mean.
    Other,
    /// The bytes there do not verify.
    Damaged,
    /// The log head has passed the place.
    Passed,
    /// The device reported an error: the content there is unknown.
    Refused,
    /// There was no memory for the read.
    Failed,
}

/// See the module head.
pub(crate) struct Medium {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) device_id: u16,
    pub(crate) geometry: Geometry,
    pub(crate) secret: Secret,
    pub(crate) clock: Clock,
    pub(crate) budget: Budget,
    pub(crate) counters: Counters,
    pub(crate) health: Arc<DeviceHealth>,
    /// Places where the device fails to read.
    pub(crate) bad_places: BadPlaces,
    /// Size in bytes of the footer that was read last.
    pub(crate) footer_bytes: AtomicUsize,
    /// Buffers for reads with the usual lengths.
    buffers: BufferPool,
    /// Buffers for runs longer than 512 KiB.
    huge_buffers: HugeBuffers,
}

/// Parts from which a [`Medium`] is built.
pub(crate) struct MediumParts {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) device_id: u16,
    pub(crate) geometry: Geometry,
    pub(crate) secret: Secret,
    pub(crate) clock: Clock,
    pub(crate) budget: Budget,
    pub(crate) health: Arc<DeviceHealth>,
    /// How many devices share the budget.
    pub(crate) devices: NonZeroU64,
}

impl Medium {
    pub(crate) fn new(parts: MediumParts) -> Self {
        let MediumParts {
            device,
            device_id,
            geometry,
            secret,
            clock,
            budget,
            health,
            devices,
        } = parts;
        Self {
            buffers: read_buffers(&*device, &budget, devices),
            huge_buffers: HugeBuffers::new(&budget, devices),
            device,
            device_id,
            geometry,
            secret,
            clock,
            budget,
            counters: Counters::default(),
            health,
            bad_places: BadPlaces::default(),
            footer_bytes: AtomicUsize::new(0),
        }
    }

    /// Reads at least `length` bytes at `offset`; `None` if the device fails or there is no memory.
    pub(crate) fn read_bytes(&self, offset: u64, length: usize) -> Option<Bytes> {
        self.try_read_bytes(offset, length).ok()
    }

    /// As [`Medium::read_bytes`], but the error tells if the device or the memory was the cause.
    pub(crate) fn try_read_bytes(&self, offset: u64, length: usize) -> Result<Bytes, Read> {
        let (start, skip, span) = self.widen(offset, length);
        let mut buffer = self.buffer(span).ok_or(Read::Failed)?;
        self.fill(start, &mut buffer).ok_or(Read::Refused)?;
        Ok(Bytes::from_owner(buffer).slice(skip..))
    }

    /// As [`Medium::read_bytes`], but without waiting for memory: for callers that already hold
    /// memory and must not wait for more.
    pub(crate) fn read_bytes_now(&self, offset: u64, length: usize) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, length);
        let mut buffer = self.buffer_now(span)?;
        self.fill(start, &mut buffer)?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }

    /// Reads the first `whole` bytes at `offset`, given the bytes in `first`.
    pub(crate) fn read_rest(
        &self,
        offset: u64,
        first: &Bytes,
        whole: usize,
    ) -> Result<Bytes, Read> {
        let (start, skip, span) = self.widen(offset, whole);
        let mut buffer = self.buffer(span).ok_or(Read::Failed)?;
        // The first read stops at a device block boundary, so the rest starts at a boundary, too.
        let there = skip + first.len();
        buffer[skip..there].copy_from_slice(first);
        self.fill(start + there as u64, &mut buffer[there..])
            .ok_or(Read::Refused)?;
        Ok(Bytes::from_owner(buffer).slice(skip..))
    }

    /// A read widened to the device alignment: start offset, bytes to skip, bytes in total.
    pub(crate) fn widen(&self, offset: u64, length: usize) -> (u64, usize, usize) {
        let alignment = self.device.alignment();
        let skip = usize::try_from(offset % alignment as u64).unwrap_or(0);
        (
            offset - skip as u64,
            skip,
            round_up(skip + length, alignment),
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

    /// A buffer with `bytes` bytes, if memory is available without waiting.
    pub(crate) fn buffer_now(&self, bytes: usize) -> Option<AlignedBuf> {
        self.buffer_if(bytes, |needed| self.budget.reserve(needed))
    }

    fn buffer_if(
        &self,
        bytes: usize,
        reserve: impl FnOnce(u64) -> Option<Reservation>,
    ) -> Option<AlignedBuf> {
        if let Some(spare) = self.buffers.take(bytes) {
            return Some(spare);
        }
        let reservation = reserve(self.buffers.bytes_for(bytes))?;
        Some(self.buffers.make(bytes, reservation))
    }

    /// Reads and counts. Takes the device out of service if it fails at many places.
    pub(crate) fn fill(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.count_read(buffer.len());
        self.outcome(offset, self.device.read_at(offset, buffer))
    }

    /// Counts a read with `bytes` bytes that starts now.
    pub(crate) fn count_read(&self, bytes: usize) {
        self.counters.reads.add(1);
        self.counters.read_bytes.add(bytes as u64);
    }

    /// Counts the outcome of a read. Takes the device out of service if it fails at many places.
    pub(crate) fn outcome<T>(&self, offset: u64, outcome: io::Result<T>) -> Option<T> {
        match outcome {
            Ok(read) => {
                self.bad_places.good();
                Some(read)
            }
            Err(error) => {
                self.counters.read_errors.add(1);
                tracing::warn!(%error, offset, "device failed to read");
                if self.bad_places.refused(offset) {
                    self.health.fail("reading", &error);
                }
                None
            }
        }
    }

    /// Writes and counts. The caller decides what an error means.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.counters.writes.add(1);
        self.counters.written_bytes.add(bytes.len() as u64);
        self.device.write_at(offset, bytes)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.counters.syncs.add(1);
        self.device.sync()
    }

    /// Reads a run as [`Medium::read_bytes_now`] does, but a long run into a huge page if there is
    /// a free huge page. There are few huge pages, so the caller must drop the bytes soon.
    pub(crate) fn read_run_now(&self, offset: u64, length: usize) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, length);
        let huge = self.huge_buffers.take(span, &self.budget);
        let mut buffer = huge.or_else(|| self.buffer_now(span))?;
        self.fill(start, &mut buffer)?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }

    /// Reads at least `length` bytes at `offset` into memory that is reserved already.
    pub(crate) fn read_reserved(
        &self,
        offset: u64,
        length: u64,
        reservation: Reservation,
    ) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, usize::try_from(length).ok()?);
        debug_assert!(span as u64 <= reservation.bytes());
        let mut buffer = AlignedBuf::reserved(span, reservation);
        self.fill(start, &mut buffer)?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }
}

/// Buffers for first reads, which start with a log window or a device block, and for longer reads.
fn read_buffers(device: &dyn Device, budget: &Budget, devices: NonZeroU64) -> BufferPool {
    let added = device.alignment().max(IO_BLOCK);
    let lengths = [FIRST_READ + added].into_iter().chain(LONG_READS);
    BufferPool::new(lengths, budget, devices)
}
