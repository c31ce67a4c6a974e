//! Errors, one enum for each operation. A miss is never an error, nor is damage found while
//! reading.

use std::io;
use std::path::{Path, PathBuf};

/// Reason why a store could not be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device could not be read, written or created.
    #[error("cannot use {}", path.display())]
    Device {
        /// The file or device.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// The file holds foreign data; nothing was changed.
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
    /// The file or device is shorter than the store.
    #[error("{} has {length} bytes, but its store needs {device_bytes}", path.display())]
    Short {
        /// The file or device.
        path: PathBuf,
        /// Actual size, bytes.
        length: u64,
        /// Required size, bytes.
        device_bytes: u64,
    },
    /// The store was written by another version of this program.
    #[error("format version {found}, this build reads 2 to {supported}")]
    Version {
        /// The file or device.
        path: PathBuf,
        /// Version in the superblock.
        found: u32,
        /// The latest version that this build can read; also the version that it writes.
        supported: u32,
    },
    /// Another process has the device open.
    #[error("{} is in use by another process", path.display())]
    Locked {
        /// The file or device.
        path: PathBuf,
    },
    /// Too small for even a single log lap.
    #[error("{size_bytes} bytes are too few for a cache, which needs {needed_bytes}")]
    TooSmall {
        /// The actual size, bytes.
        size_bytes: u64,
        /// The smallest size that works with these settings.
        needed_bytes: u64,
    },
    /// The store would be too large for the position format.
    #[error("a device of {size_bytes} bytes is too large, the maximum is {most_bytes}")]
    TooLarge {
        /// The configured size, or the device's size.
        size_bytes: u64,
        /// The largest size that works.
        most_bytes: u64,
    },
    /// The store was made with other settings that cannot change.
    #[error("the store was made with {field} {found}, not {asked}")]
    Geometry {
        /// The file or device.
        path: PathBuf,
        /// The setting.
        field: &'static str,
        /// Value in the store.
        found: String,
        /// Value in the configuration.
        asked: String,
    },
    /// The store's slots are smaller than the smallest read or write on this disk.
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
    /// The store has another size, and cannot be resized to the configured size.
    #[error("the store has {size_bytes} bytes, not {asked_bytes}: {why}")]
    Size {
        /// The file or device.
        path: PathBuf,
        /// Actual size, bytes.
        size_bytes: u64,
        /// Configured size, bytes.
        asked_bytes: u64,
        /// Reason why the size stays.
        why: Resize,
    },
    /// The index and the minimal buffers do not fit into the allowed memory.
    #[error("{memory_bytes} bytes of memory are too few, this store needs {needed_bytes}")]
    Memory {
        /// Allowed memory, bytes.
        memory_bytes: u64,
        /// The smallest memory that works, bytes.
        needed_bytes: u64,
    },
    /// All versions are used up, because the store was opened too often.
    #[error("all versions of the store {} have been given out", path.display())]
    NoVersionsLeft {
        /// The file or device.
        path: PathBuf,
    },
    /// Too many devices, or none.
    #[error("{count} devices were given, a store has 1 to {most}")]
    Devices {
        /// Configured devices.
        count: usize,
        /// Most devices that a store can have.
        most: usize,
    },
    /// This device belongs to another store than the others; nothing was changed.
    #[error("{} belongs to another store than {}", path.display(), other.display())]
    OtherStore {
        /// The file or device.
        path: PathBuf,
        /// A device that is configured before this device.
        other: PathBuf,
    },
    /// Two devices of a store have the same number, because they joined it separately. Nothing was
    /// changed.
    #[error("{} and {} were added to the store separately", path.display(), other.display())]
    Twins {
        /// The file or device.
        path: PathBuf,
        /// A device that is configured before this device.
        other: PathBuf,
    },
    /// The system refused threads or random bytes.
    #[error("the system refused {what}")]
    System {
        /// The refused resource.
        what: &'static str,
        /// Error from the system.
        source: io::Error,
    },
}

impl OpenError {
    /// The file or device that this error is about, if any.
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

/// Reason why a store cannot be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Resize {
    /// The new size would be smaller.
    #[error("a store cannot shrink")]
    Smaller,
    /// An object's slot depends on the Disk Table's size: in a table of another size no object
    /// would be found.
    #[error("a Disk Table cannot grow")]
    Table,
    /// The log's units are too small for a larger store.
    #[error("a store can grow to at most {most_bytes} bytes")]
    Above {
        /// The largest possible size, bytes.
        most_bytes: u64,
    },
    /// There would be no room for another segment and the larger index's checkpoints.
    #[error("the next larger size is {least_bytes} bytes")]
    Between {
        /// The smallest sufficient size, bytes.
        least_bytes: u64,
    },
}

/// Reason why an object was not stored. The store is then as if the put had not happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// Name empty, longer than [`crate::MAX_NAME`], or too long for the blocks of the store
    /// ([`crate::Config::block_bytes`]).
    #[error("the name has {length} bytes, but 1 to 4096 are allowed, fewer with small slots")]
    Name {
        /// Name length, bytes.
        length: usize,
    },
    /// Metadata longer than [`crate::MAX_METADATA`].
    #[error("the metadata has {length} bytes, but at most 65536 are allowed")]
    Metadata {
        /// Metadata length, bytes.
        length: usize,
    },
    /// No memory for writes that wait for the disk.
    #[error("no memory for pending writes")]
    Full,
    /// The content does not have the announced length.
    #[error("{written} of {announced} announced bytes were written")]
    Length {
        /// Bytes written.
        written: u64,
        /// Bytes announced.
        announced: u64,
    },
    /// A newer put, or a remove, of this name was first.
    #[error("a newer version of the object was stored, or the object was removed")]
    Superseded,
    /// The caller chose to continue without storing.
    #[error("the object was delivered without being stored")]
    Bypassed,
    /// The device has failed or the cache is closed.
    #[error("the store is out of service")]
    OutOfService,
}

/// Reason why a hit's content could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The content at this offset is no longer in the store, or never was.
    #[error("content at offset {offset} is not stored")]
    Missing {
        /// First missing byte.
        offset: u64,
    },
    /// The put that this reader follows was aborted.
    #[error("the write was aborted at offset {offset}")]
    Aborted {
        /// Bytes written before that.
        offset: u64,
    },
}

/// The remove could not be made durable. In memory it is effective nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the remove could not be made durable")]
pub struct RemoveError;

/// The policy stores objects in the Disk Table, which has no lists of written records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy `{policy}` keeps no lists of marks; `log` and `log-lru` do")]
pub struct NoLists {
    /// The policy of the store.
    pub policy: &'static str,
}

/// Reason why a scan cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The policy has no lists.
    #[error(transparent)]
    NoLists(#[from] NoLists),
    /// The index is not complete yet, so the scan would miss stored objects.
    #[error("the index is still being recovered")]
    Recovering,
    /// All devices have failed, or the cache is closed.
    #[error("the store is out of service")]
    OutOfService,
}
