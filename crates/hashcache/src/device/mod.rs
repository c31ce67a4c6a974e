//! Devices: a file or block device, a device in memory, a device that fails on purpose, and a
//! device that is as slow as a disk.
//!
//! Called by `disk/medium` from the engine's own threads (`io`, `writer`), because calls block.
//! Offsets and lengths are aligned to [`Device::alignment`], buffers are aligned to 4 KiB
//! (`AlignedBuf`).
//!
//! Invariant: only this folder opens, reads and writes a store's files.

mod direct;
mod disk_model;
mod fault;
mod file;
#[cfg(test)]
pub(crate) mod hooked;
mod memory;
mod space;
mod throttle;
mod uring;

use std::fs::File;
use std::io;

pub use disk_model::{DiskModel, DiskModelError};
pub use fault::{Fault, FaultDevice};
pub use file::{FileDevice, FileError};
pub use memory::MemoryDevice;
pub(crate) use space::{SpaceRequest, refusals as space_refusals};
pub use throttle::{Pace, ThrottleDevice, ThrottleFigures};
pub(crate) use uring::{Request, Ring};

/// A device of fixed size: all that the engine needs to keep a store there.
/// `examples/own_device.rs` implements this trait.
pub trait Device: Send + Sync {
    /// Size, bytes.
    fn len(&self) -> u64;

    /// Returns true if the size is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Alignment for offsets and lengths, bytes; a power of two, at most 4096.
    fn alignment(&self) -> usize {
        512
    }

    /// The file for reads by io_uring, which do not block in [`Device::read_at`] and must have the
    /// same outcome. `None` if [`Device::read_at`] does more than read that file.
    fn file(&self) -> Option<&File> {
        None
    }

    /// Fills `buffer` with the bytes at `offset`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes `buffer` at `offset`. A power cut may lose the write until [`Device::sync`] returns.
    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()>;

    /// Makes all writes that have returned durable.
    fn sync(&self) -> io::Result<()>;
}
