//! A device and how it is read and written: bytes at an offset, in memory that is accounted for.
//!
//! Called by everything that reads or writes a device: lookups, the writing thread, recovery.
//!
//! Invariant: no read takes memory that the budget does not know of. A device that cannot read many
//! places is taken out of service.
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

/// First read of a record whose length is not known: 86 % of web objects are no longer.
pub(crate) const FIRST_READ: usize = 16 << 10;
/// Longer reads: of records that the first read does not hold whole, and of the head of a large
/// object, which has a page of content, metadata, and what the device's alignment adds.
const LONG_READS: [usize; 2] = [40 << 10, 80 << 10];
/// How long a read waits for memory before it gives up and is a miss.
const MEMORY_PATIENCE: Duration = Duration::from_secs(2);

/// What one read of one place came to.
pub(crate) enum Read {
    /// A genuine record.
    Record(Box<Record>),
    /// None of the wanted name, but one of another name that the index could mean.
    Other,
    /// What was there does not verify.
    Damaged,
    /// The log's head has passed it.
    Passed,
    /// The device reported an error: its content there is unknown.
    Refused,
    /// There was no memory for it.
    Failed,
}

/// See the module's head.
pub(crate) struct Medium {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) device_id: u16,
    pub(crate) geometry: Geometry,
    pub(crate) secret: Secret,
    pub(crate) clock: Clock,
    pub(crate) budget: Budget,
    pub(crate) counters: Counters,
    pub(crate) health: Arc<DeviceHealth>,
    /// Where the device refuses to be read.
    pub(crate) bad_places: BadPlaces,
    /// Bytes of the footer that was read last.
    pub(crate) footer_bytes: AtomicUsize,
    /// Buffers for reads of the usual lengths.
    buffers: BufferPool,
    /// Buffers for runs of more than 512 KiB.
    huge_buffers: HugeBuffers,
}

/// What a [`Medium`] is made of.
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

    /// The same, if there is memory for it at once: for callers that hold memory already and must
    /// not wait for more.
    pub(crate) fn read_bytes_now(&self, offset: u64, length: usize) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, length);
        let mut buffer = self.buffer_now(span)?;
        self.fill(start, &mut buffer)?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }

    /// The first `whole` bytes from `offset` on, of which `first` are there already.
    pub(crate) fn read_rest(
        &self,
        offset: u64,
        first: &Bytes,
        whole: usize,
    ) -> Result<Bytes, Read> {
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

    /// A buffer of `bytes` bytes if there is memory for it at once.
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

    /// Reads, counting, and takes the device out when it refuses many places.
    pub(crate) fn fill(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.count_read(buffer.len());
        self.outcome(offset, self.device.read_at(offset, buffer))
    }

    /// A read of so many bytes begins.
    pub(crate) fn count_read(&self, bytes: usize) {
        self.counters.reads.add(1);
        self.counters.read_bytes.add(bytes as u64);
    }

    /// What the device said to a read: counted, and the device taken out when it refuses many
    /// places.
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

    /// The bytes of a run, as [`Medium::read_bytes_now`] reads them; if they are many, into a huge
    /// page where there is one. There are few of those: the caller drops them soon.
    pub(crate) fn read_run_now(&self, offset: u64, length: usize) -> Option<Bytes> {
        let (start, skip, span) = self.widen(offset, length);
        let huge = self.huge_buffers.take(span, &self.budget);
        let mut buffer = huge.or_else(|| self.buffer_now(span))?;
        self.fill(start, &mut buffer)?;
        Some(Bytes::from_owner(buffer).slice(skip..))
    }

    /// At least `length` bytes from `offset` on, in memory that is set aside already.
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

/// Buffers for first reads, which begin with a window of the log or a block of the device, and for
/// longer ones.
fn read_buffers(device: &dyn Device, budget: &Budget, devices: NonZeroU64) -> BufferPool {
    let added = device.alignment().max(IO_BLOCK);
    let lengths = [FIRST_READ + added].into_iter().chain(LONG_READS);
    BufferPool::new(lengths, budget, devices)
}
