//! Errors, one enum for each undertaking. A miss is never an error, nor is damage found while
//! reading.

use std::io;
use std::path::{Path, PathBuf};

/// Why a store could not be opened or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device could not be read, written or made.
    #[error("cannot use {}", path.display())]
    Device {
        /// The file or device.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds something else; nothing was changed.
    #[error("{} is not a HashCache store", path.display())]
    Foreign {
        /// The file or device.
        path: PathBuf,
    },
    /// Both superblocks are damaged.
    #[error("both superblocks of {} are damaged", path.display())]
    Damaged {
        /// The file or device.
        path: PathBuf,
    },
    /// The file or device ends before its store does.
    #[error("{} has {length} bytes, but its store needs {device_bytes}", path.display())]
    Short {
        /// The file or device.
        path: PathBuf,
        /// Bytes there are.
        length: u64,
        /// Bytes there should be.
        device_bytes: u64,
    },
    /// Written by another version of this program.
    #[error("format version {found}, this build reads 2 to {supported}")]
    Version {
        /// The file or device.
        path: PathBuf,
        /// Version in the superblock.
        found: u32,
        /// The latest that this build reads, and the one that it writes.
        supported: u32,
    },
    /// Another process has it open.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The file or device.
        path: PathBuf,
    },
    /// Too small for even one turn of the log.
    #[error("{size_bytes} bytes are too few for a cache, which needs {needed_bytes}")]
    TooSmall {
        /// What there is.
        size_bytes: u64,
        /// The least that works with these settings.
        needed_bytes: u64,
    },
    /// The store would be larger than positions in it can say.
    #[error("a device of {size_bytes} bytes is too large, the maximum is {most_bytes}")]
    TooLarge {
        /// What was asked for, or what the device has.
        size_bytes: u64,
        /// The most that works.
        most_bytes: u64,
    },
    /// The store was made with other settings that cannot change.
    #[error("the store was made with {field} {found}, not {asked}")]
    Geometry {
        /// The file or device.
        path: PathBuf,
        /// The setting.
        field: &'static str,
        /// Its value in the store.
        found: String,
        /// Its value in the configuration.
        asked: String,
    },
    /// The store's slots are smaller than what this disk reads and writes at the least.
    #[error(
        "the store was made with blocks of {block_bytes} bytes, the disk has sectors of \
         {sector_bytes}"
    )]
    Sectors {
        /// The file or device.
        path: PathBuf,
        /// Size of a slot.
        block_bytes: u32,
        /// Size of a sector: the alignment of direct I/O.
        sector_bytes: usize,
    },
    /// The store has another size, and cannot be given the one that is asked for.
    #[error("the store has {size_bytes} bytes, not {asked_bytes}: {why}")]
    Size {
        /// The file or device.
        path: PathBuf,
        /// What the store has.
        size_bytes: u64,
        /// What was asked for.
        asked_bytes: u64,
        /// Why it stays as it is.
        why: Resize,
    },
    /// The index and the least buffers do not fit into the memory allowed.
    #[error("{memory_bytes} bytes of memory are too few, this store needs {needed_bytes}")]
    Memory {
        /// What was allowed.
        memory_bytes: u64,
        /// The least that works.
        needed_bytes: u64,
    },
    /// The store was opened so often that its versions have come to an end.
    #[error("all versions of the store {} have been given out", path.display())]
    NoVersionsLeft {
        /// The file or device.
        path: PathBuf,
    },
    /// Too many devices, or none.
    #[error("{count} devices were given, a store has 1 to {most}")]
    Devices {
        /// How many were named.
        count: usize,
        /// The most a store can have.
        most: usize,
    },
    /// A device of another store than the others; nothing was changed.
    #[error("{} belongs to another store than {}", path.display(), other.display())]
    OtherStore {
        /// The file or device.
        path: PathBuf,
        /// One that was named before it.
        other: PathBuf,
    },
    /// Two devices of a store with one number: they joined it apart from each other. Nothing was
    /// changed.
    #[error("{} and {} were added to the store separately", path.display(), other.display())]
    Twins {
        /// The file or device.
        path: PathBuf,
        /// One that was named before it.
        other: PathBuf,
    },
    /// Threads or randomness could not be had.
    #[error("the system refused {what}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl OpenError {
    /// The file or device that it is about, if it is about one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Device { path, .. }
            | Self::Foreign { path }
            | Self::Damaged { path }
            | Self::Short { path, .. }
            | Self::Locked { path }
            | Self::OtherStore { path, .. }
            | Self::Twins { path, .. }
            | Self::Version { path, .. }
            | Self::Size { path, .. }
            | Self::Sectors { path, .. }
            | Self::NoVersionsLeft { path }
            | Self::Geometry { path, .. } => Some(path),
            Self::TooSmall { .. }
            | Self::TooLarge { .. }
            | Self::Memory { .. }
            | Self::Devices { .. }
            | Self::System { .. } => None,
        }
    }
}

/// Why a store cannot be given another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Resize {
    /// It would be smaller.
    #[error("a store cannot shrink")]
    Smaller,
    /// A place in the Disk Table follows from the size of the table: in one of another size nothing
    /// would be found.
    #[error("a Disk Table cannot grow")]
    Table,
    /// Its log counts units too small for more.
    #[error("a store can grow to at most {most_bytes} bytes")]
    Above {
        /// The largest size it can have, bytes.
        most_bytes: u64,
    },
    /// There would be no room for another segment and the checkpoints of the larger index.
    #[error("the next larger size is {least_bytes} bytes")]
    Between {
        /// The smallest size that is enough, bytes.
        least_bytes: u64,
    },
}

/// Why an object was not stored. The object is then as if never put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// Name empty, longer than [`crate::MAX_NAME`], or too long for the blocks of the store
    /// ([`crate::Config::block_bytes`]).
    #[error("the name has {length} bytes, but 1 to 4096 are allowed, fewer with small slots")]
    Name {
        /// Its length, bytes.
        length: usize,
    },
    /// Metadata longer than [`crate::MAX_METADATA`].
    #[error("the metadata has {length} bytes, but at most 65536 are allowed")]
    Metadata {
        /// Its length, bytes.
        length: usize,
    },
    /// No memory for writes that wait for the disk.
    #[error("no memory for pending writes")]
    Full,
    /// The content does not have the length that was announced.
    #[error("{written} of {announced} announced bytes were written")]
    Length {
        /// Bytes written.
        written: u64,
        /// Bytes announced.
        announced: u64,
    },
    /// A newer put or a remove of the same name came first.
    #[error("a newer version of the object was stored, or the object was removed")]
    Superseded,
    /// The caller chose to continue without storing.
    #[error("the object was delivered without being stored")]
    Bypassed,
    /// The device has failed or the cache is closed.
    #[error("the store is out of service")]
    OutOfService,
}

/// Why content of a hit could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The content at this offset is no longer, or was never, in the store.
    #[error("content at offset {offset} is not stored")]
    Missing {
        /// First byte that is missing.
        offset: u64,
    },
    /// The put this reader follows was given up.
    #[error("the write was aborted at offset {offset}")]
    Aborted {
        /// Bytes that had been written.
        offset: u64,
    },
}

/// Why a remove could not be made durable. In memory it is in force all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the remove could not be made durable")]
pub struct RemoveError;

/// The policy keeps objects in the Disk Table, which has no lists of what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy `{policy}` keeps no lists of marks; `log` and `log-lru` do")]
pub struct NoLists {
    /// The policy of the store.
    pub policy: &'static str,
}

/// Why a scan cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The policy has no lists.
    #[error(transparent)]
    NoLists(#[from] NoLists),
    /// The index is not known yet, so the scan would leave out what is stored.
    #[error("the index is still being recovered")]
    Recovering,
    /// All devices have failed, or the cache is closed.
    #[error("the store is out of service")]
    OutOfService,
}
