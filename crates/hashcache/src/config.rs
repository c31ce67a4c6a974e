//! The settings of a store ([`Config`]). `geometry` turns them into places and sizes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::device::Device;
use crate::format::Family;
use crate::placement::Placement;

/// How objects are found. `docs/operate/disk-and-memory.md` says which to take when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Everything in a log, 39 bits of memory a slot on 1 TB: fastest.
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

/// How files and block devices are read for callers that do not block.
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
    /// The files or block devices of the store, 1 to 16; a missing file is made when `size_bytes`
    /// is given. A device that was left out for a while is empty when it returns.
    pub paths: Vec<PathBuf>,
    /// Size of each device, bytes; that of what is there already if it is not given. A smaller
    /// store of the log family grows to it and keeps what it has. One of the table family cannot:
    /// it is refused if it is the only device, and taken as it is beside others. So is a larger
    /// one.
    pub size_bytes: Option<u64>,
    /// Memory for everything: index, hot objects, pending writes, buffers.
    pub memory_bytes: u64,
    /// Whether `memory_bytes` limits the whole heap of the process, for a program that is nothing
    /// but a cache. The heap beyond the cache's own reservations is then set aside from it, up to a
    /// quarter. Has an effect on Linux only.
    pub whole_process: bool,
    /// Limit of the memory for hot objects, in slabs of 64 KiB; 0 for a caller that has a cache in
    /// memory of its own, or wants to measure the disk.
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
    /// Which part of a name chooses the device. A store that is opened with another one forgets
    /// what it has.
    pub placement: Placement,
    /// Whether `log` and `log-lru` write objects of one group side by side and read them together,
    /// for 8 more bits a position in memory. May change from one opening to the next.
    pub grouped: bool,
    /// Whether `log` keeps objects that are in use when its head reaches them, for 3 more bits a
    /// slot in memory. May change from one opening to the next.
    pub readmission: bool,
    /// Mean size of an object with its metadata; sizes the index and the Disk Table. Only used when
    /// a store is made.
    pub object_bytes: u32,
    /// Size of a slot of the Disk Table, a power of two from 2 KiB to 1 MiB; at least what the
    /// device reads at once. Names longer than 1,636 bytes take blocks of 4 KiB, and beyond 3,684
    /// of 8 KiB. `None`: that of the store that is there, 8 KiB in a new one.
    pub block_bytes: Option<u32>,
    /// How long a committed object may wait for company in its batch.
    pub batch_delay: Duration,
    /// How often writes are made durable while there are any.
    pub sync_interval: Duration,
    /// How long [`crate::Cache::open`] waits for the index before it returns; recovery then
    /// continues in the background.
    pub open_patience: Duration,
    /// The source of time.
    pub clock: Clock,
    /// How devices that are files are read.
    pub io: Io,
    /// Use these devices instead of opening `paths`.
    pub devices: Vec<Arc<dyn Device>>,
    /// Size of a log segment instead of the one that follows from the size of the store.
    pub segment_bytes: Option<u32>,
    /// Key of the hashes of names in a new store instead of a random one, so that names hash alike
    /// in every run of a benchmark. With a known key a client can choose names that collide, so a
    /// store that clients can reach needs `None`. Ignored when a store is opened. The key of the
    /// MACs on disk is always random: records of an earlier store never verify.
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
