//! The ten-second probe: measures random reads per second and a disk's sequential write rate.
//!
//! A read from a fresh preallocated file takes a microsecond and reads nothing, so the probe reads
//! only written extents: on a blank device, 1 MiB extents that it first writes, spread over the
//! whole device; on a store's device, extents that it finds written. Called by `measure`.
//!
//! Invariant: only zeros are overwritten ([`probe_blank`]), or nothing at all ([`probe_written`]).
//! Cost: the given time, and one more operation for each kind of measurement.

mod nameless;

use std::io;
use std::ops::Range;
use std::time::Duration;

pub(crate) use nameless::nameless_file;

use crate::clock::Clock;
use crate::device::Device;
use crate::memory::AlignedBuf;
use crate::plan::{DiskRates, ReadCost, Tolerance, set_bytes};

/// Result of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// Random 16 KiB reads per second, one after the other.
    pub reads_per_s: f64,
    /// As `reads_per_s`, with eight reads in flight.
    pub reads_per_s_deep: f64,
    /// Sequential write rate including the sync, bytes per second; `None` if nothing may be
    /// written.
    pub write_bytes_per_s: Option<f64>,
    /// Random reads of other sizes, one after the other, smallest first.
    pub read_costs: Vec<ReadCost>,
    /// Number of 1 MiB extents that were read.
    pub extents: usize,
}

impl Probe {
    /// Rates for a prediction. It uses the deep read rate, because the engine keeps several reads
    /// in flight.
    pub fn rates(&self) -> DiskRates {
        let seeks_per_s = self.reads_per_s_deep.max(self.reads_per_s);
        let assumed = DiskRates::with_seeks(seeks_per_s);
        DiskRates {
            write_bytes_per_s: self.write_bytes_per_s.unwrap_or(assumed.write_bytes_per_s),
            ..assumed
        }
    }

    /// The set size that is read nearly as fast as a single block.
    pub fn set_bytes(&self) -> u32 {
        set_bytes(
            &self.read_costs,
            Tolerance::from_reads_per_s(self.reads_per_s),
        )
    }
}

/// Reason why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// Too few extents fit.
    #[error("{size_bytes} bytes are too few to measure a disk, {needed_bytes} are needed")]
    TooSmall {
        /// Device size.
        size_bytes: u64,
        /// The smallest size that works.
        needed_bytes: u64,
    },
    /// The device holds data, which the probe would have overwritten.
    #[error("the data at byte {offset} would be overwritten")]
    NotBlank {
        /// Extent start.
        offset: u64,
    },
    /// The store holds too little data: reading space that was never written measures nothing.
    #[error("only {found} MiB of it contain data, too few to measure a disk")]
    NothingWritten {
        /// Extents found.
        found: usize,
    },
    /// The device failed.
    #[error("the device failed")]
    Device(#[from] io::Error),
}

const EXTENT: u64 = 1 << 20;
const EXTENT_LEN: usize = 1 << 20;
/// Extents to read; a power of two, for [`spread`].
const EXTENTS: usize = 256;
/// With fewer extents the disk's own cache answers.
const EXTENTS_MIN: usize = 8;
/// Adjacent extents for the write measurement.
const RUN: u64 = 64;
/// Read size for measuring seeks.
const READ_LEN: usize = 16 << 10;
const DEPTH: u64 = 8;
/// Possible set sizes, and a block for comparison.
const READ_LENS: [usize; 7] = [
    4 << 10,
    READ_LEN,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
];
/// The search for written extents stops after this many attempts, whatever the clock.
const TRIES: usize = 4096;
/// Bytes read at the start and at the end of an extent, to check if it is written.
const LOOK_LEN: usize = 64 << 10;

/// Measures a device that holds only zeros. Takes about `budget`.
///
/// # Errors
/// [`ProbeError::NotBlank`] before any extent with data is overwritten; see [`ProbeError`].
pub fn probe_blank(
    device: &dyn Device,
    budget: Duration,
    clock: &Clock,
) -> Result<Probe, ProbeError> {
    let room = device.len() / EXTENT;
    if room < EXTENTS_MIN as u64 {
        return Err(ProbeError::TooSmall {
            size_bytes: device.len(),
            needed_bytes: EXTENTS_MIN as u64 * EXTENT,
        });
    }
    let writing = Writing {
        device,
        clock,
        content: incompressible(),
    };
    let run = RUN.min(room);
    let rate = writing.run(run, budget / 10)?;
    let extents = writing.spread(room, run, budget / 10 * 3)?;
    let mut probe = read(device, &extents, budget / 10 * 6, clock)?;
    probe.write_bytes_per_s = Some(rate);
    Ok(probe)
}

/// Measures a device that holds a store, by reading written extents in `area`. Writes nothing.
/// Takes about `budget`.
///
/// # Errors
/// See [`ProbeError`].
pub fn probe_written(
    device: &dyn Device,
    area: Range<u64>,
    budget: Duration,
    clock: &Clock,
) -> Result<Probe, ProbeError> {
    let extents = written_extents(device, area, budget / 10 * 3, clock)?;
    if extents.len() < EXTENTS_MIN {
        return Err(ProbeError::NothingWritten {
            found: extents.len(),
        });
    }
    read(device, &extents, budget / 10 * 6, clock)
}

/// Parameters for writing extents.
struct Writing<'a> {
    device: &'a dyn Device,
    clock: &'a Clock,
    content: AlignedBuf,
}

impl Writing<'_> {
    /// Writes the first `count` extents in sequence and returns the rate in bytes per second.
    fn run(&self, count: u64, budget: Duration) -> Result<f64, ProbeError> {
        for n in 0..count {
            self.must_be_blank(n * EXTENT)?;
        }
        let start = self.clock.monotone();
        let mut written = 0;
        while written < count && (written == 0 || self.clock.monotone() - start < budget) {
            self.device.write_at(written * EXTENT, &self.content)?;
            written += 1;
        }
        self.device.sync()?;
        let seconds = seconds_since(start, self.clock);
        Ok((written * EXTENT) as f64 / seconds)
    }

    /// Writes extents spread over the whole device and returns their offsets. The first `run`
    /// extents are not used if the others are enough. Stops when the time is over, but not before a
    /// few are written.
    fn spread(&self, room: u64, run: u64, budget: Duration) -> Result<Vec<u64>, ProbeError> {
        let start = self.clock.monotone();
        let (first, count) = if room >= run + EXTENTS_MIN as u64 {
            (run, (room - run).min(EXTENTS as u64))
        } else {
            (0, room)
        };
        let mut offsets = Vec::new();
        for step in (0..EXTENTS as u64).map(spread).filter(|step| *step < count) {
            if offsets.len() >= EXTENTS_MIN && self.clock.monotone() - start >= budget {
                break;
            }
            let offset = (first + step * (room - first) / count) * EXTENT;
            // Extents that were written sequentially are not blank any more.
            if first > 0 {
                self.must_be_blank(offset)?;
            }
            self.device.write_at(offset, &self.content)?;
            offsets.push(offset);
        }
        self.device.sync()?;
        Ok(offsets)
    }

    fn must_be_blank(&self, offset: u64) -> Result<(), ProbeError> {
        let mut buffer = AlignedBuf::zeroed(EXTENT_LEN);
        self.device.read_at(offset, &mut buffer)?;
        if is_zero(&buffer) {
            Ok(())
        } else {
            Err(ProbeError::NotBlank { offset })
        }
    }
}

/// Written extents in `area`, chosen at random.
fn written_extents(
    device: &dyn Device,
    area: Range<u64>,
    budget: Duration,
    clock: &Clock,
) -> io::Result<Vec<u64>> {
    let first = area.start.div_ceil(EXTENT);
    let room = (area.end.min(device.len()) / EXTENT).saturating_sub(first);
    let (start, mut draw) = (clock.monotone(), SplitMix(1));
    let mut found = Vec::new();
    let mut look = AlignedBuf::zeroed(LOOK_LEN);
    for step in 0..TRIES {
        let time_is_over = clock.monotone() - start >= budget;
        if room == 0 || found.len() >= EXTENTS || (time_is_over && step > 0) {
            break;
        }
        let offset = (first + draw.below(room)) * EXTENT;
        // Check start and end: the log's open segment is written only up to some point.
        let mut is_written = !found.contains(&offset);
        for at in [offset, offset + EXTENT - LOOK_LEN as u64] {
            if is_written {
                device.read_at(at, &mut look)?;
                is_written = !is_zero(&look);
            }
        }
        if is_written {
            found.push(offset);
        }
    }
    Ok(found)
}

/// Reads at random positions in `extents`, for about `budget`.
fn read(
    device: &dyn Device,
    extents: &[u64],
    budget: Duration,
    clock: &Clock,
) -> Result<Probe, ProbeError> {
    let reading = Reading {
        device,
        extents,
        clock,
    };
    let reads_per_s = reading.rate(READ_LEN, 1, budget / 3)?;
    let reads_per_s_deep = reading.rate(READ_LEN, DEPTH, budget / 3)?;
    let mut read_costs = Vec::new();
    let others = u32::try_from(READ_LENS.len()).unwrap_or(1);
    for len in READ_LENS {
        let reads_per_s = match len {
            READ_LEN => reads_per_s,
            _ => reading.rate(len, 1, budget / 3 / others)?,
        };
        read_costs.push(ReadCost {
            bytes: u32::try_from(len).unwrap_or(u32::MAX),
            reads_per_s,
        });
    }
    Ok(Probe {
        reads_per_s,
        reads_per_s_deep,
        write_bytes_per_s: None,
        read_costs,
        extents: extents.len(),
    })
}

/// Parameters for reading from extents.
struct Reading<'a> {
    device: &'a dyn Device,
    extents: &'a [u64],
    clock: &'a Clock,
}

impl Reading<'_> {
    /// Reads per second, for reads of `len` bytes, with `depth` in flight.
    fn rate(&self, len: usize, depth: u64, budget: Duration) -> io::Result<f64> {
        let start = self.clock.monotone();
        let reads = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..depth)
                .map(|n| scope.spawn(move || self.reads(len, n, start + budget)))
                .collect();
            // This thread reads too.
            let mut reads = self.reads(len, 0, start + budget);
            for thread in threads {
                let others = thread.join().unwrap_or_else(|panic| {
                    std::panic::resume_unwind(panic);
                });
                reads = reads.and_then(|reads| Ok(reads + others?));
            }
            reads
        })?;
        Ok(reads as f64 / seconds_since(start, self.clock))
    }

    /// Reads one block after the other until `end`, at least one, and returns the read count.
    fn reads(&self, len: usize, seed: u64, end: Duration) -> io::Result<u64> {
        let mut draw = SplitMix(seed << 32 | len as u64);
        let mut buffer = AlignedBuf::zeroed(len);
        let places = (EXTENT - len as u64) / STEP + 1;
        let mut reads = 0;
        while reads == 0 || self.clock.monotone() < end {
            let extent = usize::try_from(draw.below(self.extents.len() as u64)).unwrap_or(0);
            let offset = self.extents[extent] + draw.below(places) * STEP;
            self.device.read_at(offset, &mut buffer)?;
            reads += 1;
        }
        Ok(reads)
    }
}

/// Reads start at multiples of this, which every device accepts.
const STEP: u64 = 4096;

/// Pseudo-random numbers, equal in every run (splitmix64).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// The n-th of [`EXTENTS`] numbers, in an order with every prefix evenly spread: if the clock stops
/// the probe early, it has still covered the whole device.
fn spread(n: u64) -> u64 {
    n.reverse_bits() >> (u64::BITS - EXTENTS.trailing_zeros())
}

/// Bytes that no disk or file system can compress.
fn incompressible() -> AlignedBuf {
    let (mut content, mut draw) = (AlignedBuf::zeroed(EXTENT_LEN), SplitMix(7));
    for word in content.chunks_exact_mut(8) {
        word.copy_from_slice(&draw.next().to_le_bytes());
    }
    content
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Never 0, because a clock may be coarse.
fn seconds_since(start: Duration, clock: &Clock) -> f64 {
    (clock.monotone().saturating_sub(start))
        .as_secs_f64()
        .max(1e-6)
}

#[cfg(test)]
mod tests;
