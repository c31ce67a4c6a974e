//! Store layout: all sizes and offsets ([`Geometry`]), and the index size in memory (`index`).
//!
//! Invariant: only a `Geometry` can create or open a store, and a `Geometry` is only built from a
//! `Config` and a size, or from a superblock; so no code below ever checks a setting again.

mod index;
#[cfg(test)]
mod tests;

pub(crate) use index::{
    IndexId, IndexPolicy, IndexShape, POSITIONS_HELD, SETS_HELD, checkpoint_parts, meta_parts,
};

use crate::address::Windows;
use crate::bans::MAX_BANS;
use crate::config::Config;
use crate::error::{OpenError, Resize};
use crate::format::{
    BANS_PER_BLOCK, Family, IO_BLOCK, MIN_UNIT, PART_BYTES, PRELUDE_REST_MAX, Superblock,
    round_up_u64,
};
use crate::key::SHARDS;
use crate::object::MAX_NAME;
use crate::policy::WAYS;

/// All sizes and offsets in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) family: Family,
    pub(crate) device_bytes: u64,
    pub(crate) unit_bytes: u32,
    pub(crate) segment_bytes: u32,
    pub(crate) block_bytes: u32,
    pub(crate) ways: u32,
    pub(crate) object_bytes: u32,
    pub(crate) journal_offset: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) checkpoint_offset: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) table_offset: u64,
    pub(crate) sets: u64,
    pub(crate) log_offset: u64,
    pub(crate) segments: u64,
}

const GIB: u64 = 1 << 30;
/// Largest log position unit; a record takes at least one unit.
const UNIT_BYTES_MAX: u64 = 64 << 10;
/// Positions on disk count units in 32 bits, so this is the largest device: 256 TiB.
pub(crate) const DEVICE_BYTES_MAX: u64 = (UNIT_BYTES_MAX << 32) - IO_BLOCK as u64;
/// Room for the two superblocks, and a reserve.
const FRONT_BYTES: u64 = 64 << 10;
/// A segment must hold a batch with the largest record and a footer.
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
const MAX_SEGMENT_BYTES: u64 = 64 << 20;
/// No object is smaller than a unit.
const MIN_OBJECT_BYTES: u32 = 512;
/// Default slot size.
pub(crate) const BLOCK_BYTES: u32 = 8 << 10;
const BLOCK_BYTES_MIN: u32 = 2 << 10;
const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// With fewer segments the log would lose too large a share when it opens the next segment.
const MIN_SEGMENTS: u64 = 4;
/// Slots per 100 objects in a full log: then 95.7 % of the objects are found, with 1.076 slots for
/// each object found.
const SLOTS_PER_100_OBJECTS: u64 = 103;
/// Disk Table slots per 100 objects in a full store: more than 100, because sets fill unevenly.
const TABLE_SLOTS_PER_100_OBJECTS: u64 = 110;

impl Geometry {
    /// The layout of a new store of `size_bytes`.
    pub(crate) fn plan(config: &Config, size_bytes: u64) -> Result<Self, OpenError> {
        let size = size_bytes / IO_BLOCK as u64 * IO_BLOCK as u64;
        if size > DEVICE_BYTES_MAX {
            return Err(OpenError::TooLarge {
                size_bytes,
                most_bytes: DEVICE_BYTES_MAX,
            });
        }
        let unit_bytes = unit_bytes(size);
        let step = u64::from(unit_bytes).max(IO_BLOCK as u64);
        let segment = config
            .segment_bytes
            .map_or_else(|| segment_bytes(size), u64::from);
        let segment = segment
            .clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
            .div_ceil(step)
            * step;
        let block_bytes = block_bytes(config.block_bytes.unwrap_or(BLOCK_BYTES));
        let object_bytes = config.object_bytes.max(MIN_OBJECT_BYTES);
        // With a larger journal ring, removes cause fewer checkpoints (`journal`); but every open
        // reads the whole ring.
        let journal = round_up_u64((size / 256).clamp(64 << 10, 1 << 20), IO_BLOCK as u64);
        let (family, ways) = (config.policy.family(), config.policy.ways());
        let set_bytes = u64::from(block_bytes) * u64::from(ways);
        let checkpoint = {
            let index = IndexShape::largest(
                family,
                ways,
                match family {
                    Family::Log => rows(size, object_bytes),
                    Family::Table => {
                        let bytes = table_bytes(size, object_bytes, block_bytes);
                        (bytes / set_bytes / SHARDS as u64).max(1)
                    }
                },
            );
            checkpoint_parts(size / segment, &index) * PART_BYTES as u64
        };
        let checkpoint_offset = FRONT_BYTES + journal;
        let table_offset = checkpoint_offset + 2 * checkpoint;
        let log_min = (MIN_SEGMENTS + 1) * segment;
        let needed_bytes = table_offset
            + match family {
                Family::Log => log_min,
                Family::Table => log_min + set_bytes * SHARDS as u64,
            };
        let too_small = OpenError::TooSmall {
            size_bytes,
            needed_bytes,
        };
        let room = size.checked_sub(table_offset).ok_or(too_small)?;
        // Each set belongs to one shard, so all shards have equally many sets.
        let sets = match family {
            Family::Log => 0,
            Family::Table => {
                let most = room.saturating_sub(log_min);
                let least = set_bytes * SHARDS as u64;
                let bytes = table_bytes(room, object_bytes, block_bytes).max(least);
                bytes.min(most) / set_bytes / SHARDS as u64 * SHARDS as u64
            }
        };
        let log_offset = table_offset + sets * set_bytes;
        let segments = (size - log_offset) / segment;
        if segments < MIN_SEGMENTS || (family == Family::Table && sets == 0) {
            return Err(OpenError::TooSmall {
                size_bytes,
                needed_bytes,
            });
        }
        Ok(Self {
            family,
            device_bytes: size,
            unit_bytes,
            segment_bytes: u32::try_from(segment).expect("at most 64 MiB"),
            block_bytes,
            ways,
            object_bytes,
            journal_offset: FRONT_BYTES,
            journal_bytes: journal,
            checkpoint_offset,
            checkpoint_bytes: checkpoint,
            table_offset,
            sets,
            log_offset,
            segments,
        })
    }

    /// The layout for this store with a larger `size_bytes`: segments are appended to the log,
    /// followed by checkpoints for the larger index.
    ///
    /// # Errors
    /// Reason why the store cannot have that size.
    pub(crate) fn grown(&self, size_bytes: u64) -> Result<Self, Resize> {
        if self.family == Family::Table {
            return Err(Resize::Table);
        }
        let block = IO_BLOCK as u64;
        let size = size_bytes / block * block;
        // Positions on disk are in units of this size.
        let most_bytes = (u64::from(self.unit_bytes) << 32) - block;
        if size > most_bytes {
            return Err(Resize::Above { most_bytes });
        }
        let segment = u64::from(self.segment_bytes);
        let shard_rows = rows(size, self.object_bytes);
        let index = IndexShape::largest(self.family, self.ways, shard_rows);
        let checkpoint = checkpoint_parts(size / segment, &index) * PART_BYTES as u64;
        // The current areas stay until the new checkpoint is complete.
        let log_end = self.log_offset + (self.segments + 1) * segment;
        let least_bytes = self.device_bytes.max(log_end) + 2 * checkpoint;
        if size < least_bytes {
            // This size also has a slightly larger index.
            let least_bytes = round_up_u64(least_bytes, block) + 4 * PART_BYTES as u64;
            return Err(Resize::Between { least_bytes });
        }
        let checkpoint_offset = size - 2 * checkpoint;
        Ok(Self {
            device_bytes: size,
            checkpoint_offset,
            checkpoint_bytes: checkpoint,
            segments: (checkpoint_offset - self.log_offset) / segment,
            ..self.clone()
        })
    }

    /// The layout in a superblock, if this build could have created it.
    pub(crate) fn from_superblock(sb: &Superblock) -> Option<Self> {
        let geometry = Self {
            family: sb.family,
            device_bytes: sb.device_bytes,
            unit_bytes: sb.unit_bytes,
            segment_bytes: sb.segment_bytes,
            block_bytes: sb.block_bytes,
            ways: sb.ways,
            object_bytes: sb.object_bytes,
            journal_offset: sb.journal_offset,
            journal_bytes: sb.journal_bytes,
            checkpoint_offset: sb.checkpoint_offset,
            checkpoint_bytes: sb.checkpoint_bytes,
            table_offset: sb.table_offset,
            sets: sb.sets,
            log_offset: sb.log_offset,
            segments: sb.segments,
        };
        geometry.is_sound().then_some(geometry)
    }

    /// Writes this layout into `superblock`.
    pub(crate) fn describe_in(&self, superblock: &mut Superblock) {
        superblock.family = self.family;
        superblock.unit_bytes = self.unit_bytes;
        superblock.device_bytes = self.device_bytes;
        superblock.segment_bytes = self.segment_bytes;
        superblock.block_bytes = self.block_bytes;
        superblock.ways = self.ways;
        superblock.object_bytes = self.object_bytes;
        superblock.journal_offset = self.journal_offset;
        superblock.journal_bytes = self.journal_bytes;
        superblock.checkpoint_offset = self.checkpoint_offset;
        superblock.checkpoint_bytes = self.checkpoint_bytes;
        superblock.table_offset = self.table_offset;
        superblock.sets = self.sets;
        superblock.log_offset = self.log_offset;
        superblock.segments = self.segments;
    }

    /// Returns true if sizes and offsets are valid. The superblock checksum's key is stored beside
    /// it, so the checksum detects damage, but not a file that was forged to crash its reader.
    fn is_sound(&self) -> bool {
        let (unit, segment) = (u64::from(self.unit_bytes), u64::from(self.segment_bytes));
        let sizes = unit.is_power_of_two()
            && (MIN_UNIT as u64..=UNIT_BYTES_MAX).contains(&unit)
            && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment)
            && segment.is_multiple_of(unit.max(IO_BLOCK as u64))
            && self.block_bytes == block_bytes(self.block_bytes)
            && (self.ways == 8 || (self.ways == 1 && self.family == Family::Table))
            && self.object_bytes >= MIN_OBJECT_BYTES
            && (8 * IO_BLOCK as u64..=16 << 20).contains(&self.journal_bytes)
            && self.segments >= MIN_SEGMENTS
            && self.capacity() <= 1 << 32
            && (self.family == Family::Log
                || (self.sets > 0 && self.sets.is_multiple_of(SHARDS as u64)));
        if !sizes {
            return false;
        }
        let index = IndexShape::largest(self.family, self.ways, self.shard_rows());
        let checkpoint = checkpoint_parts(self.segments, &index).saturating_mul(PART_BYTES as u64);
        let table = self.sets.saturating_mul(self.set_bytes());
        let log = self.segments.saturating_mul(segment);
        let areas = [
            (self.journal_offset, self.journal_bytes),
            (
                self.checkpoint_offset,
                self.checkpoint_bytes.saturating_mul(2),
            ),
            (self.table_offset, table),
            (self.log_offset, log),
        ];
        // If a store has grown, its checkpoints are behind its log.
        let mut areas = areas;
        areas.sort_unstable();
        let mut end = FRONT_BYTES;
        let in_order = areas.iter().all(|(start, size)| {
            let behind = *start >= end && start.is_multiple_of(IO_BLOCK as u64);
            end = start.saturating_add(*size);
            behind
        });
        in_order && end <= self.device_bytes && checkpoint <= self.checkpoint_bytes
    }

    pub(crate) fn set_bytes(&self) -> u64 {
        u64::from(self.block_bytes) * u64::from(self.ways)
    }

    /// Smallest space for a record on disk: a slot in the Disk Table.
    pub(crate) fn slot_bytes(&self) -> u64 {
        match self.family {
            Family::Log => 0,
            Family::Table => u64::from(self.block_bytes),
        }
    }

    /// Entries in a log index, slots in a Disk Table.
    pub(crate) fn slots(&self) -> u64 {
        match self.family {
            Family::Log => self.shard_rows() * SHARDS as u64 * WAYS as u64,
            Family::Table => self.sets * u64::from(self.ways),
        }
    }

    /// The longest name that the first read can verify: in a Disk Table, the record's first block.
    pub(crate) fn name_bytes_max(&self) -> usize {
        match self.family {
            Family::Log => MAX_NAME,
            Family::Table => (self.block_bytes as usize - PRELUDE_REST_MAX).min(MAX_NAME),
        }
    }

    /// Units in a segment.
    pub(crate) fn segment_units(&self) -> u64 {
        u64::from(self.segment_bytes / self.unit_bytes)
    }

    /// Units in the log.
    pub(crate) fn capacity(&self) -> u64 {
        self.segments.saturating_mul(self.segment_units())
    }

    /// The log's windows. A window is an I/O block, because batches start at block boundaries and a
    /// shorter read costs as much. If units are longer, a window is a unit.
    pub(crate) fn windows(&self) -> Windows {
        let units = (IO_BLOCK as u64 / u64::from(self.unit_bytes)).max(1);
        Windows {
            units,
            count: self.capacity() / units,
        }
    }

    /// Rows in each shard's index, for the largest policy in this family.
    fn shard_rows(&self) -> u64 {
        match self.family {
            Family::Log => rows(self.device_bytes, self.object_bytes),
            Family::Table => self.sets / SHARDS as u64,
        }
    }

    /// Blocks in the remove journal.
    pub(crate) fn journal_blocks(&self) -> u64 {
        self.journal_bytes / IO_BLOCK as u64
    }
}

/// Blocks in each ban area (there are two): enough for all bans, but at most a quarter of the
/// journal.
pub(crate) fn bans_blocks(geometry: &Geometry) -> usize {
    let quarter = usize::try_from(geometry.journal_blocks() / 4).unwrap_or(usize::MAX);
    MAX_BANS.div_ceil(BANS_PER_BLOCK).min(quarter)
}

/// Most bans that fit.
pub(crate) fn bans_max(geometry: &Geometry) -> usize {
    MAX_BANS.min(bans_blocks(geometry) * BANS_PER_BLOCK)
}

/// Bytes for the Disk Table out of `room`, so that table and log are full with the same object
/// count: each object takes a slot, and the rest, if any, is in the log.
///
/// Sizes are assumed to have a Lomax distribution with shape 2 and mean `object_bytes`: many small
/// objects and few very large objects. With this distribution, `mean² / (mean + block)` bytes per
/// object do not fit into a block.
fn table_bytes(room: u64, object_bytes: u32, block_bytes: u32) -> u64 {
    let (mean, block) = (u64::from(object_bytes), u64::from(block_bytes));
    let slots = block * TABLE_SLOTS_PER_100_OBJECTS / 100;
    let tail = mean * mean / (mean + block);
    let share = u128::from(room) * u128::from(slots) / u128::from(slots + tail);
    u64::try_from(share).expect("no more than the room")
}

/// A valid slot size for `asked`: a power of two, and most names fit with their header.
pub(crate) fn block_bytes(asked: u32) -> u32 {
    asked
        .clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)
        .next_power_of_two()
}

/// 64 MiB, or 16 MiB below 64 GiB; halved while the store has fewer than 32 segments, down to 1
/// MiB.
fn segment_bytes(size: u64) -> u64 {
    let wanted = if size >= 64 * GIB { 64 << 20 } else { 16 << 20 };
    let mut segment = wanted;
    while segment > MIN_SEGMENT_BYTES && size / segment < 32 {
        segment /= 2;
    }
    segment
}

/// 512 bytes if 2^32 units are enough, otherwise more.
fn unit_bytes(size: u64) -> u32 {
    let mut unit = MIN_UNIT as u64;
    while size / unit >= 1 << 32 {
        unit *= 2;
    }
    u32::try_from(unit).expect("the largest device has units of 64 KiB")
}

/// Rows in each shard for `size` bytes filled with objects.
fn rows(size: u64, object_bytes: u32) -> u64 {
    let slots = size / u64::from(object_bytes) * SLOTS_PER_100_OBJECTS / 100;
    slots.div_ceil(WAYS as u64 * SHARDS as u64).max(1)
}
