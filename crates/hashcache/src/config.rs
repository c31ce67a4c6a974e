//! What was asked for ([`Config`]) and what was built ([`Geometry`]).
//!
//! Invariant: only a `Geometry` can make or open a store, and it can only be had from a `Config`
//! and a size, or from a superblock; so no code below ever checks a setting again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::device::Device;
use crate::error::{OpenError, Resize};
use crate::format::{
    BLOCK, Family, PART_BODY, PART_BYTES, PRELUDE_REST_MAX, SECTOR, Superblock, round_up_u64,
};
use crate::index_file::ROW_CHECK;
use crate::key::SHARDS;
use crate::object::MAX_NAME;
use crate::policy::{
    SLOT_BITS, WAYS, entry_bits, held_sets_bits, place_bits, row_bits, saved_row_bytes, spill_bytes,
};

/// How objects are found. `docs/OPERATING.md` says which to take when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Everything in a log, 48 bits of memory a slot: fastest.
    #[default]
    Log,
    /// A set-associative table on disk, no memory at all.
    Set,
    /// A table on disk with one place for each object, no memory at all: the baseline.
    Basic,
    /// The table of `set`, of which memory knows 11 bits a slot: misses cost no read.
    SetMem,
    /// The same for the sets used last, a share of all ([`Config::held_share`]); others are read.
    SetMemLru,
    /// The log of `log`, with positions in memory only for the objects used last, a share of all
    /// ([`Config::held_share`]); others take one read more. 31 bits of memory a slot.
    LogLru,
}

impl PolicyKind {
    /// All there are, from least memory to most.
    pub const ALL: [Self; 6] = [
        Self::Basic,
        Self::Set,
        Self::SetMemLru,
        Self::SetMem,
        Self::LogLru,
        Self::Log,
    ];

    pub(crate) fn family(self) -> Family {
        match self {
            Self::Log | Self::LogLru => Family::Log,
            Self::Basic | Self::Set | Self::SetMemLru | Self::SetMem => Family::Table,
        }
    }

    /// Slots in a set of the Disk Table, entries in a row of the index.
    pub(crate) fn ways(self) -> u32 {
        match self {
            Self::Basic => 1,
            Self::Set | Self::SetMemLru | Self::SetMem | Self::LogLru | Self::Log => 8,
        }
    }

    /// Whether slots are listed in the log before they are written: where memory must know after a
    /// crash what they hold. (`set-mem-lru` reads a set before it uses it.)
    pub(crate) fn keeps_lists(self) -> bool {
        self == Self::SetMem
    }

    /// Its one spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Set => "set",
            Self::SetMem => "set-mem",
            Self::SetMemLru => "set-mem-lru",
            Self::LogLru => "log-lru",
            Self::Log => "log",
        }
    }
}

impl std::str::FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL
                .map(|kind| format!("`{}`", kind.name()))
                .join(", ");
            format!("no policy `{text}`, there are {names}")
        })
    }
}

/// How many rows of slots a name may be in.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One, as published.
    One,
    /// Two, an insert replacing the oldest of both: a ninth tag bit pays for the second row.
    #[default]
    Two,
}

/// Who reads files and block devices for those who do not block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// The kernel by io_uring where it lets us, else threads.
    #[default]
    Auto,
    /// Threads that block.
    Threads,
    /// The kernel by io_uring; where it refuses (none in it, turned off, filtered away in a
    /// container), opening is an error.
    Uring,
}

/// What is asked of a store.
#[derive(Clone)]
pub struct Config {
    /// Files or block devices that keep the store between them, 1 to 16; a file is made when it is
    /// missing and `size_bytes` is given. One that is left out comes back empty.
    pub paths: Vec<PathBuf>,
    /// Size of each device, bytes; that of what is there already if it is not given. A smaller
    /// store of the log family grows to it and keeps what it has. One of the table family cannot:
    /// it is refused if it is the only device, and taken as it is beside others. So is a larger
    /// one.
    pub size_bytes: Option<u64>,
    /// Memory for everything: index, hot objects, pending writes, buffers.
    pub memory_bytes: u64,
    /// Most of it that objects on disk take to be answered at once, in slabs of 64 KiB; 0 for a
    /// caller that has a cache in memory of its own, or wants to see what the disk does.
    pub hot_bytes_max: u64,
    /// How objects are found.
    pub policy: PolicyKind,
    /// Candidate rows of a key in the index of `log`. May change from one opening to the next.
    pub rows: Rows,
    /// Share that memory holds, in 1/100. Of the positions with `log-lru`, in steps of one in eight
    /// and never all or none; `None`: 50. Of the sets with `set-mem-lru`, at least one in each
    /// shard; `None`: 40. Above half, `set-mem` takes
    /// hardly more and holds them all. May change from one
    /// opening to the next.
    pub held_share: Option<u8>,
    /// Whether `log` and `log-lru` write objects of one group side by side and read them together,
    /// for 8 more bits a position in memory. May change from one opening to the next.
    pub grouped: bool,
    /// Whether `log` keeps what is in use when it comes round to it. May change from one opening to
    /// the next.
    pub readmission: bool,
    /// Mean size of an object with its metadata; sizes the index. Only used when a store is made.
    pub object_bytes: u32,
    /// Size of a slot of the Disk Table, a power of two from 2 KiB to 1 MiB; at least what the
    /// device reads at once. Names longer than 1,636 bytes take blocks of 4 KiB, and beyond 3,684
    /// of 8 KiB. `None`: that of the store that is there, 8 KiB in a new one.
    pub block_bytes: Option<u32>,
    /// How long a committed object may wait for company in its batch.
    pub batch_delay: Duration,
    /// How often writes are made durable while there are any.
    pub sync_interval: Duration,
    /// How long [`crate::Cache::open`] waits for the index before it returns and goes on behind.
    pub open_patience: Duration,
    /// Where time comes from.
    pub clock: Clock,
    /// Who reads devices that are files.
    pub io: Io,
    /// Use these devices instead of opening `paths`.
    pub devices: Vec<Arc<dyn Device>>,
    /// Size of a log segment instead of the one that follows from the size of the store.
    pub segment_bytes: Option<u32>,
}

impl Config {
    /// Defaults for a store at `path`: 64 MiB of memory, policy `log`, 8 KiB objects.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            paths: vec![path.into()],
            size_bytes: None,
            memory_bytes: 64 << 20,
            hot_bytes_max: u64::MAX,
            policy: PolicyKind::Log,
            rows: Rows::Two,
            held_share: None,
            grouped: false,
            readmission: false,
            object_bytes: 8 << 10,
            block_bytes: None,
            batch_delay: Duration::from_millis(250),
            sync_interval: Duration::from_secs(5),
            open_patience: Duration::from_millis(800),
            clock: Clock::system(),
            io: Io::Auto,
            devices: Vec::new(),
            segment_bytes: None,
        }
    }

    /// A store on `device`, for tests and for devices of the caller's own.
    pub fn on_device(device: Arc<dyn Device>) -> Self {
        Self::on_devices(vec![device])
    }

    /// A store on several devices of the caller's own.
    pub fn on_devices(devices: Vec<Arc<dyn Device>>) -> Self {
        Self {
            devices,
            ..Self::new("device")
        }
    }
}

/// What was built: every size and place in a store.
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
/// Room for the two superblocks and what may come beside them.
const FRONT_BYTES: u64 = 64 << 10;
/// A segment must hold a batch with the largest record and its footer.
const MIN_SEGMENT_BYTES: u64 = 1 << 20;
const MAX_SEGMENT_BYTES: u64 = 64 << 20;
/// No object is smaller than a unit.
const MIN_OBJECT_BYTES: u32 = 512;
/// Size of slots unless told otherwise.
pub(crate) const BLOCK_BYTES: u32 = 8 << 10;
const BLOCK_BYTES_MIN: u32 = 2 << 10;
const BLOCK_BYTES_MAX: u32 = 1 << 20;
/// With fewer segments the log would lose too much of itself when it opens the next one.
const MIN_SEGMENTS: u64 = 4;
/// Slots for each 100 objects of a full log: 95.7 % of them are found then, at 51.7 bits for each
/// of those (49.4 for each that the log holds).
const SLOTS_PER_100_OBJECTS: u64 = 103;
/// Share of the device, in 1/100, that the Disk Table takes: the rest is for tails.
const TABLE_SHARE: u64 = 50;

impl Geometry {
    /// The layout of a new store of `size_bytes`.
    pub(crate) fn plan(config: &Config, size_bytes: u64) -> Result<Self, OpenError> {
        let size = size_bytes / BLOCK as u64 * BLOCK as u64;
        let unit_bytes = unit_bytes(size);
        let step = u64::from(unit_bytes).max(BLOCK as u64);
        let segment = config
            .segment_bytes
            .map_or_else(|| segment_bytes(size), u64::from);
        let segment = segment
            .clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
            .div_ceil(step)
            * step;
        let block_bytes = block_bytes(config.block_bytes.unwrap_or(BLOCK_BYTES));
        let object_bytes = config.object_bytes.max(MIN_OBJECT_BYTES);
        let journal = round_up_u64((size / 1024).clamp(64 << 10, 1 << 20), BLOCK as u64);
        let (family, ways) = (config.policy.family(), config.policy.ways());
        let set_bytes = u64::from(block_bytes) * u64::from(ways);
        let checkpoint = {
            let index = IndexShape::largest(
                family,
                ways,
                match family {
                    Family::Log => rows(size, object_bytes),
                    Family::Table => size / 100 * TABLE_SHARE / set_bytes / SHARDS as u64,
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
                // Half of what is left is the Disk Table's, at least a set a shard.
                Family::Table => {
                    let table_min = (set_bytes + 1) * SHARDS as u64;
                    2 * log_min.max(table_min) + BLOCK as u64
                }
            };
        let too_small = OpenError::TooSmall {
            size_bytes,
            needed_bytes,
        };
        let room = size.checked_sub(table_offset).ok_or(too_small)?;
        // Sets of a shard must be its own, so each shard has equally many.
        let sets = match family {
            Family::Log => 0,
            Family::Table => room / 100 * TABLE_SHARE / set_bytes / SHARDS as u64 * SHARDS as u64,
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

    /// The layout of this store with `size_bytes`, which is more than it has: segments are appended
    /// to its log, and behind them lie checkpoints of the larger index.
    ///
    /// # Errors
    /// Why it cannot have that size.
    pub(crate) fn grown(&self, size_bytes: u64) -> Result<Self, Resize> {
        if self.family == Family::Table {
            return Err(Resize::Table);
        }
        let block = BLOCK as u64;
        let size = size_bytes / block * block;
        // Positions are on disk, in units of this size.
        let most_bytes = (u64::from(self.unit_bytes) << 32) - block;
        if size > most_bytes {
            return Err(Resize::Above { most_bytes });
        }
        let segment = u64::from(self.segment_bytes);
        let shard_rows = rows(size, self.object_bytes);
        let index = IndexShape::largest(self.family, self.ways, shard_rows);
        let checkpoint = checkpoint_parts(size / segment, &index) * PART_BYTES as u64;
        // All that lies there now stays until the new checkpoint is whole.
        let log_end = self.log_offset + (self.segments + 1) * segment;
        let least_bytes = self.device_bytes.max(log_end) + 2 * checkpoint;
        if size < least_bytes {
            // With its own, slightly larger, index.
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

    /// The layout a superblock describes, if it is one this build could have made.
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

    /// Whether sizes and places make sense. The superblock's checksum has the secret beside it, so
    /// it tells damage, not a file that somebody made up to crash its reader.
    fn is_sound(&self) -> bool {
        let (unit, segment) = (u64::from(self.unit_bytes), u64::from(self.segment_bytes));
        let sizes = unit.is_power_of_two()
            && (SECTOR as u64..=1 << 16).contains(&unit)
            && (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment)
            && segment.is_multiple_of(unit.max(BLOCK as u64))
            && self.block_bytes == block_bytes(self.block_bytes)
            && (self.ways == 8 || (self.ways == 1 && self.family == Family::Table))
            && self.object_bytes >= MIN_OBJECT_BYTES
            && (8 * BLOCK as u64..=16 << 20).contains(&self.journal_bytes)
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
        // Checkpoints of a store that has grown lie behind its log.
        let mut areas = areas;
        areas.sort_unstable();
        let mut end = FRONT_BYTES;
        let in_order = areas.iter().all(|(start, size)| {
            let behind = *start >= end && start.is_multiple_of(BLOCK as u64);
            end = start.saturating_add(*size);
            behind
        });
        in_order && end <= self.device_bytes && checkpoint <= self.checkpoint_bytes
    }

    pub(crate) fn set_bytes(&self) -> u64 {
        u64::from(self.block_bytes) * u64::from(self.ways)
    }

    /// Entries an index of the log family has room for, places of a Disk Table.
    pub(crate) fn slots(&self) -> u64 {
        match self.family {
            Family::Log => self.shard_rows() * SHARDS as u64 * WAYS as u64,
            Family::Table => self.sets * u64::from(self.ways),
        }
    }

    /// The longest name whose record proves itself in what memory reads first: of a slot, its
    /// block.
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

    /// Rows in each shard's index: what a policy of this family has at most.
    fn shard_rows(&self) -> u64 {
        match self.family {
            Family::Log => rows(self.device_bytes, self.object_bytes),
            Family::Table => self.sets / SHARDS as u64,
        }
    }

    /// What the index of `policy` looks like in this store.
    pub(crate) fn index(&self, policy: IndexPolicy) -> IndexShape {
        let of_rows = |bits: u32| {
            let rows = if bits == 0 { 0 } else { self.shard_rows() };
            let row_bytes = WAYS * bits as usize / 8;
            IndexShape {
                shard_rows: u32::try_from(rows).unwrap_or(u32::MAX),
                row_bytes,
                check_bytes: 0,
                memory_bytes: rows * (SHARDS * row_bytes) as u64,
                widened_bytes: 0,
            }
        };
        match policy.kind {
            PolicyKind::Basic | PolicyKind::Set => of_rows(0),
            PolicyKind::SetMemLru => IndexShape {
                memory_bytes: self.held_sets_bytes(policy),
                ..of_rows(0)
            },
            PolicyKind::SetMem => of_rows(SLOT_BITS),
            PolicyKind::Log => of_rows(entry_bits(policy.rows, policy.grouped)),
            PolicyKind::LogLru => IndexShape {
                row_bytes: saved_row_bytes(policy.grouped),
                check_bytes: ROW_CHECK,
                memory_bytes: self.log_lru_bytes(policy),
                widened_bytes: self.shard_rows()
                    * (WAYS - policy.positions_held()) as u64
                    * u64::from(place_bits(policy.grouped) / 8),
                ..of_rows(row_bits(policy.grouped, policy.positions_held()))
            },
        }
    }

    /// Displaced positions that may wait for a checkpoint in each shard with `log-lru`: one in 128
    /// slots, 2^20 in all; in a small store more, for batches are not smaller there.
    pub(crate) fn spilled(&self, policy: IndexPolicy) -> usize {
        let rows = usize::try_from(self.shard_rows()).unwrap_or(usize::MAX);
        let wanted = (rows * WAYS / 128).clamp(512, (1 << 20) / SHARDS);
        wanted.min(rows * (WAYS - policy.positions_held()))
    }

    fn log_lru_bytes(&self, policy: IndexPolicy) -> u64 {
        let row_bytes = u64::from(row_bits(policy.grouped, policy.positions_held()) / 8);
        let shard = self.shard_rows() * row_bytes + spill_bytes(self.spilled(policy));
        shard * SHARDS as u64
    }

    /// Sets that each shard holds at most with `set-mem-lru`.
    pub(crate) fn held_sets(&self, policy: IndexPolicy) -> usize {
        let held = self.shard_rows() * u64::from(policy.held_share.clamp(1, 100)) / 100;
        usize::try_from(held.max(1)).unwrap_or(usize::MAX)
    }

    /// What they take in all shards, bytes.
    fn held_sets_bytes(&self, policy: IndexPolicy) -> u64 {
        let rows = self.held_sets(policy);
        let known = (rows * WAYS) as u64 * u64::from(SLOT_BITS);
        let bits = known + held_sets_bits(self.shard_rows(), rows);
        bits.div_ceil(8) * SHARDS as u64
    }

    /// Blocks in the remove journal.
    pub(crate) fn journal_blocks(&self) -> u64 {
        self.journal_bytes / BLOCK as u64
    }
}

/// A policy with what decides about the form of its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexPolicy {
    pub(crate) kind: PolicyKind,
    pub(crate) rows: Rows,
    /// In 1/100.
    pub(crate) held_share: u8,
    pub(crate) grouped: bool,
}

/// Share of positions that `log-lru` holds unless told otherwise, in 1/100: half, as published
/// (section 3.5).
pub(crate) const POSITIONS_HELD: u8 = 50;
/// Share of sets that `set-mem-lru` holds unless told otherwise, in 1/100: the larger of the
/// paper's two (section 5.2).
pub(crate) const SETS_HELD: u8 = 40;

/// Added to the code of a policy whose entries hold the lengths of runs.
const GROUPED_CODE: u8 = 128;

impl IndexPolicy {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            kind: config.policy,
            rows: config.rows,
            held_share: config
                .held_share
                .unwrap_or(Self::default_share(config.policy)),
            grouped: config.grouped && config.policy.family() == Family::Log,
        }
    }

    fn default_share(kind: PolicyKind) -> u8 {
        match kind {
            PolicyKind::LogLru => POSITIONS_HELD,
            _ => SETS_HELD,
        }
    }

    /// Positions in each row of `log-lru`.
    pub(crate) fn positions_held(self) -> usize {
        ((WAYS * usize::from(self.held_share) + 50) / 100).clamp(1, WAYS - 1)
    }

    /// What stands for it on disk.
    pub(crate) fn code(self) -> u8 {
        let plain = self.plain_code();
        if self.grouped {
            plain + GROUPED_CODE
        } else {
            plain
        }
    }

    fn plain_code(self) -> u8 {
        match (self.kind, self.rows) {
            (PolicyKind::Log, Rows::Two) => 1,
            (PolicyKind::Set, _) => 2,
            (PolicyKind::Log, Rows::One) => 3,
            (PolicyKind::Basic, _) => 4,
            (PolicyKind::SetMem, _) => 5,
            (PolicyKind::SetMemLru, _) => 6,
            (PolicyKind::LogLru, _) => 7,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let grouped = code >= GROUPED_CODE;
        let policy = |kind, rows| Self {
            kind,
            rows,
            held_share: Self::default_share(kind),
            grouped,
        };
        let all = PolicyKind::ALL.into_iter();
        let forms = [Rows::Two, Rows::One];
        all.flat_map(|kind| forms.map(|rows| policy(kind, rows)))
            .find(|it| it.code() == code)
    }
}

/// Which index a store has, and since when nobody but its policy has written to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexId {
    pub(crate) policy: IndexPolicy,
    /// The first version of that time; 0: since the store was made.
    pub(crate) since: u64,
}

/// What memory holds of a store, and checkpoints save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexShape {
    /// Rows in each shard.
    pub(crate) shard_rows: u32,
    /// As checkpoints save them.
    pub(crate) row_bytes: usize,
    /// What stands behind each row there, where rows are read one by one.
    check_bytes: usize,
    memory_bytes: u64,
    widened_bytes: u64,
}

impl IndexShape {
    /// The largest that a policy of `family` can have: policies may change, places on disk not.
    fn largest(family: Family, ways: u32, shard_rows: u64) -> Self {
        let packed = |bits: u32| WAYS * bits as usize / 8;
        let row_bytes = match family {
            Family::Log => {
                packed(entry_bits(Rows::Two, true)).max(saved_row_bytes(true) + ROW_CHECK)
            }
            Family::Table if ways == 1 => 0,
            Family::Table => packed(SLOT_BITS),
        };
        Self {
            shard_rows: u32::try_from(shard_rows).unwrap_or(u32::MAX),
            row_bytes,
            check_bytes: 0,
            memory_bytes: 0,
            widened_bytes: 0,
        }
    }

    /// Rows of all shards.
    pub(crate) fn rows(&self) -> u64 {
        u64::from(self.shard_rows) * SHARDS as u64
    }

    /// Memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Memory that a shard takes besides while positions that lie on disk are in memory too, bytes.
    pub(crate) fn widened_bytes(&self) -> u64 {
        self.widened_bytes
    }

    /// The number of a shard's row among all shards' rows.
    pub(crate) fn row_number(&self, shard: usize, row: u32) -> u64 {
        shard as u64 * u64::from(self.shard_rows) + u64::from(row)
    }

    /// Bytes of a row in a checkpoint, with the check behind it.
    pub(crate) fn saved_row_bytes(&self) -> usize {
        self.row_bytes + self.check_bytes
    }

    /// Whether rows are read from the last checkpoint one by one.
    pub(crate) fn stays_on_disk(&self) -> bool {
        self.check_bytes > 0
    }

    /// Rows whose bytes fit into a part of a checkpoint.
    pub(crate) fn rows_per_part(&self) -> u64 {
        (PART_BODY / self.saved_row_bytes().max(1)) as u64
    }
}

/// A size of slots that can be: a power of two, and most names fit with their header.
pub(crate) fn block_bytes(asked: u32) -> u32 {
    asked
        .clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)
        .next_power_of_two()
}

/// 64 MiB, 16 MiB below 64 GiB; smaller for stores of which that would be too large a share.
fn segment_bytes(size: u64) -> u64 {
    let wanted = if size >= 64 * GIB { 64 << 20 } else { 16 << 20 };
    let mut segment = wanted;
    while segment > MIN_SEGMENT_BYTES && size / segment < 32 {
        segment /= 2;
    }
    segment
}

/// 512 bytes as long as 2^32 of them reach, then more.
fn unit_bytes(size: u64) -> u32 {
    let mut unit = SECTOR as u64;
    while size / unit >= 1 << 32 {
        unit *= 2;
    }
    u32::try_from(unit).expect("even 2^63 bytes take units below 2^32")
}

/// Rows of each shard for `size` bytes full of objects.
fn rows(size: u64, object_bytes: u32) -> u64 {
    let slots = size / u64::from(object_bytes) * SLOTS_PER_100_OBJECTS / 100;
    slots.div_ceil(WAYS as u64 * SHARDS as u64).max(1)
}

/// Parts that hold the state of the log and all rows.
pub(crate) fn checkpoint_parts(segments: u64, index: &IndexShape) -> u64 {
    let rows = if index.row_bytes == 0 {
        0
    } else {
        index.rows()
    };
    meta_parts(segments) + rows.div_ceil(index.rows_per_part())
}

/// Parts that hold the state of the log: a few words and a stamp per segment.
pub(crate) fn meta_parts(segments: u64) -> u64 {
    (segments * 8 + 128).div_ceil(PART_BODY as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{LogLru, SetMemLru};

    fn plan(size: u64) -> Result<Geometry, OpenError> {
        Geometry::plan(&Config::new("x"), size)
    }

    #[test]
    fn a_terabyte_takes_less_than_900_mb_of_index() {
        let geometry = plan(1_000_000_000_000).unwrap();
        let index = geometry.index(IndexPolicy::of(&Config::new("x"))).bytes();
        assert!(index < 900_000_000, "{index}");
        assert_eq!(geometry.segment_bytes, 64 << 20);
        assert_eq!(geometry.unit_bytes, 512);
    }

    #[test]
    fn a_terabyte_takes_less_than_530_mb_with_log_lru_and_what_waits_less_than_a_bit_a_slot() {
        let config = Config {
            policy: PolicyKind::LogLru,
            ..Config::new("x")
        };
        let geometry = Geometry::plan(&config, 1_000_000_000_000).unwrap();
        let index = geometry.index(IndexPolicy::of(&config));
        assert!(index.bytes() < 530_000_000, "{}", index.bytes());
        let slots = index.rows() * 8;
        assert!((31 * slots / 8..32 * slots / 8).contains(&index.bytes()));
        let grouped = Config {
            grouped: true,
            ..config
        };
        let index = geometry.index(IndexPolicy::of(&grouped));
        assert!((35 * slots / 8..36 * slots / 8).contains(&index.bytes()));
    }

    #[test]
    fn the_code_on_disk_tells_every_form_and_areas_have_room_for_rows_of_56_bytes() {
        for kind in [PolicyKind::Log, PolicyKind::LogLru] {
            for grouped in [false, true] {
                let config = Config {
                    policy: kind,
                    grouped,
                    ..Config::new("x")
                };
                let policy = IndexPolicy::of(&config);
                assert_eq!(policy.grouped, grouped);
                let geometry = Geometry::plan(&config, 1 << 30).unwrap();
                assert!(geometry.index(policy).saved_row_bytes() <= 56);
                assert_eq!(IndexPolicy::from_code(policy.code()), Some(policy));
            }
        }
        let largest = IndexShape::largest(Family::Log, 8, 1);
        assert_eq!(largest.saved_row_bytes(), 56);
    }

    #[test]
    fn what_is_told_of_the_index_is_what_its_parts_take() {
        for size in [1 << 30, 20 << 30, 100 << 30_u64] {
            let planned = |policy, grouped| {
                let config = Config {
                    policy,
                    grouped,
                    ..Config::new("x")
                };
                let geometry = Geometry::plan(&config, size).unwrap();
                (geometry, IndexPolicy::of(&config))
            };
            let is_near = |told: u64, shard: u64| {
                // Not told: a word of padding for each array.
                let taken = shard * SHARDS as u64;
                let off = told.abs_diff(taken);
                assert!(off <= 80 * SHARDS as u64, "{size}: {told}, {taken}");
            };
            for grouped in [false, true] {
                let (geometry, policy) = planned(PolicyKind::LogLru, grouped);
                let index = geometry.index(policy);
                let (held, spilled) = (policy.positions_held(), geometry.spilled(policy));
                let capacity = geometry.capacity();
                let log = LogLru::new(grouped, index.shard_rows, capacity, held, spilled);
                is_near(index.bytes(), log.bytes());
            }
            let (geometry, policy) = planned(PolicyKind::SetMemLru, false);
            let here = geometry.sets / SHARDS as u64;
            let sets = SetMemLru::new(geometry.sets, 0, here, geometry.held_sets(policy));
            is_near(geometry.index(policy).bytes(), sets.bytes());
        }
    }

    #[test]
    fn beyond_two_tebibytes_units_grow() {
        let unit = |tib: u64| plan(tib << 40).unwrap().unit_bytes;
        assert_eq!(
            [unit(1), unit(2), unit(4), unit(8)],
            [512, 1024, 2048, 4096]
        );
    }

    #[test]
    fn areas_do_not_overlap_and_end_within_the_device() {
        for policy in PolicyKind::ALL {
            for size in [64 << 20, 1 << 30, 100 << 30, 3 << 40u64] {
                let config = Config {
                    policy,
                    ..Config::new("x")
                };
                let g = Geometry::plan(&config, size).unwrap();
                assert!(g.journal_offset + g.journal_bytes <= g.checkpoint_offset);
                assert!(g.checkpoint_offset + 2 * g.checkpoint_bytes <= g.table_offset);
                assert!(g.table_offset + g.sets * g.set_bytes() <= g.log_offset);
                assert!(g.log_offset + g.segments * u64::from(g.segment_bytes) <= size);
                assert!(g.capacity() <= 1 << 32);
                assert!(g.is_sound());
            }
        }
    }

    #[test]
    fn settings_that_cannot_be_are_rounded_to_ones_that_can() {
        for (segment, block, object) in [(0, 0, 0), (1, 5000, 1), (u32::MAX, u32::MAX, u32::MAX)] {
            let config = Config {
                segment_bytes: Some(segment),
                block_bytes: Some(block),
                object_bytes: object,
                policy: PolicyKind::Set,
                ..Config::new("x")
            };
            assert!(Geometry::plan(&config, 4 << 30).unwrap().is_sound());
        }
    }

    #[test]
    fn a_layout_that_nobody_could_have_made_is_refused() {
        let good = plan(1 << 30).unwrap();
        assert!(good.is_sound());
        let bad: [fn(&mut Geometry); 9] = [
            |g| g.unit_bytes = 0,
            |g| g.unit_bytes = 1 << 30,
            |g| g.segment_bytes = 0,
            |g| g.segments = u64::MAX,
            |g| g.checkpoint_bytes = u64::MAX,
            |g| g.checkpoint_bytes = 0,
            |g| g.journal_offset = 0,
            |g| g.log_offset = g.table_offset - 4096,
            |g| g.device_bytes = 1,
        ];
        for change in bad {
            let mut geometry = good.clone();
            change(&mut geometry);
            assert!(!geometry.is_sound(), "{geometry:?}");
        }
    }

    #[test]
    fn a_device_too_small_for_a_log_is_refused_with_the_size_it_needs() {
        for policy in PolicyKind::ALL {
            for block_bytes in [2 << 10, 8 << 10, 1 << 20].map(Some) {
                let config = Config {
                    policy,
                    block_bytes,
                    ..Config::new("x")
                };
                let mut size = 1 << 20;
                // A larger store takes a larger checkpoint: a few steps come to one that will do.
                for _ in 0..10 {
                    match Geometry::plan(&config, size) {
                        Ok(_) => break,
                        Err(OpenError::TooSmall { needed_bytes, .. }) => {
                            assert!(needed_bytes > size, "{policy:?} {size}");
                            size = needed_bytes;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(Geometry::plan(&config, size).is_ok(), "{policy:?} {size}");
            }
        }
    }
}
