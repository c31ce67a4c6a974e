//! Store settings ([`Config`]). `geometry` turns them into offsets and sizes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::device::Device;
use crate::format::Family;
use crate::placement::Placement;

/// Policy for finding objects. `docs/operate/disk-and-memory.md` recommends a policy for each case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyKind {
    /// All objects in a log, 39 bits of memory a slot on 1 TB: fastest.
    #[default]
    Log,
    /// A set-associative table on disk, no memory for an index.
    Set,
    /// A table on disk with one place for each object, no memory for an index: the baseline.
    Basic,
    /// As `set`, with 11 bits of memory a slot: misses cost no read.
    SetMem,
    /// As `set-mem`, only for recently used sets, a configurable share ([`Config::held_share`]);
    /// other sets are read.
    SetMemLru,
    /// As `log`, with positions in memory only for recently used objects, a configurable share
    /// ([`Config::held_share`]); other objects cost one more read. 31 bits of memory a slot.
    LogLru,
}

impl PolicyKind {
    /// All policies, from least memory to most.
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

    /// Slots in a Disk Table set, entries in an index row.
    pub(crate) fn ways(self) -> u32 {
        match self {
            Self::Basic => 1,
            Self::Set | Self::SetMemLru | Self::SetMem | Self::LogLru | Self::Log => 8,
        }
    }

    /// Returns true if slots are listed in the log before they are written. This is needed if
    /// memory must know their content after a crash. (`set-mem-lru` reads a set before it uses it.)
    pub(crate) fn keeps_lists(self) -> bool {
        self == Self::SetMem
    }

    /// Policy name, as in the configuration.
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

/// Rows that a name may be in.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row, as published.
    One,
    /// Two rows; an insert replaces the oldest entry among both. A ninth tag bit pays for the
    /// second row.
    #[default]
    Two,
}

/// Method for reading files and block devices for callers that do not block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// By io_uring if the kernel allows it, otherwise by threads.
    #[default]
    Auto,
    /// By threads that block.
    Threads,
    /// By io_uring; if the kernel refuses it (not built in, turned off, filtered by a container),
    /// opening is an error.
    Uring,
}

/// Settings for opening or creating a store.
#[derive(Clone)]
pub struct Config {
    /// The files or block devices for the store, 1 to 16; a missing file is created if `size_bytes`
    /// is given. A device that was left out for a while is empty when it returns.
    pub paths: Vec<PathBuf>,
    /// Size for each device, bytes; if not given, the current size. A smaller store with a log
    /// policy grows to this size and keeps all objects. A table store cannot grow: it is refused if
    /// it is the only device, and keeps the old size if there are others. A larger store is treated
    /// in the same way.
    pub size_bytes: Option<u64>,
    /// Memory for everything: index, hot objects, pending writes, buffers.
    pub memory_bytes: u64,
    /// If true, `memory_bytes` limits the process's whole heap, for a program that is only a cache.
    /// Then the heap beyond the cache's own reservations is set aside, up to a quarter of
    /// `memory_bytes`. Has an effect only on Linux.
    pub whole_process: bool,
    /// Limit for hot object memory, bytes, which is taken in slabs of 64 KiB; 0 for a caller that
    /// has a memory cache already, or that measures the disk.
    pub hot_bytes_max: u64,
    /// Policy for finding objects.
    pub policy: PolicyKind,
    /// Candidate rows for a key in the `log` index. May change at each open.
    pub rows: Rows,
    /// Share in memory, in 1/100. For `log-lru`, the share is over positions, in steps of an eighth
    /// and never all or none; `None`: 50. For `set-mem-lru`, the share is over sets, at least one
    /// in each shard; `None`: 40. Above half, `set-mem` takes hardly more memory and holds all
    /// sets. May change at each open.
    pub held_share: Option<u8>,
    /// The name part that chooses the device. A store that is opened with another placement forgets
    /// all objects.
    pub placement: Placement,
    /// If true, `log` and `log-lru` write objects in the same group next to each other and read
    /// them together, for 8 more bits a position in memory. May change at each open.
    pub grouped: bool,
    /// If true, `log` keeps recently used objects when the head reaches them, for 3 more bits a
    /// slot in memory. May change at each open.
    pub readmission: bool,
    /// Mean object size with metadata; determines the index and Disk Table sizes. Only used when a
    /// store is created.
    pub object_bytes: u32,
    /// Disk Table slot size, a power of two from 2 KiB to 1 MiB; at least the device's smallest
    /// read. Names longer than 1,636 bytes need 4 KiB blocks, and beyond 3,684 bytes 8 KiB. `None`:
    /// unchanged in an existing store, 8 KiB in a new store.
    pub block_bytes: Option<u32>,
    /// Longest time that a committed object waits for others in the batch.
    pub batch_delay: Duration,
    /// Interval between syncs while there are unsynced writes.
    pub sync_interval: Duration,
    /// Longest time that [`crate::Cache::open`] waits for the index before it returns; recovery
    /// then continues in the background.
    pub open_patience: Duration,
    /// The source of time.
    pub clock: Clock,
    /// Method for reading devices that are files.
    pub io: Io,
    /// Use these devices instead of opening `paths`.
    pub devices: Vec<Arc<dyn Device>>,
    /// Log segment size; by default it depends on the store size.
    pub segment_bytes: Option<u32>,
    /// Key for name hashes in a new store, instead of a random key, so that names hash equally in
    /// every benchmark run. With a known key a client can choose names that collide, so a store
    /// that clients can reach needs `None`. Ignored when an existing store is opened. The key for
    /// MACs on disk is always random, so records from an earlier store never verify.
    pub name_secret: Option<[u8; 16]>,
}

impl Config {
    /// Defaults for a store at `path`: 64 MiB of memory, policy `log`, 8 KiB objects.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            paths: vec![path.into()],
            size_bytes: None,
            memory_bytes: 64 << 20,
            whole_process: false,
            hot_bytes_max: u64::MAX,
            policy: PolicyKind::Log,
            rows: Rows::Two,
            held_share: None,
            placement: Placement::NAME,
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
            name_secret: None,
        }
    }

    /// A store on `device`, for tests and for the caller's own devices.
    pub fn on_device(device: Arc<dyn Device>) -> Self {
        Self::on_devices(vec![device])
    }

    /// A store on the caller's own devices.
    pub fn on_devices(devices: Vec<Arc<dyn Device>>) -> Self {
        Self {
            devices,
            ..Self::new("device")
        }
    }
}
