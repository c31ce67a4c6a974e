//! Devices: a file or block device, memory, a device that fails on purpose, or one as slow as a
//! disk.
//!
//! Called by `disk/medium` from the engine's own threads (`io`, `writer`), because calls block.
//! Offsets and lengths are multiples of [`Device::alignment`], buffers are aligned to 4 KiB
//! (`AlignedBuf`).
//!
//! Invariant: only this folder opens, reads and writes the files of a store.

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

/// A device of fixed size: what the engine needs of it to keep a store there.
/// `examples/own_device.rs` implements one.
pub trait Device: Send + Sync {
    /// Size, bytes.
    fn len(&self) -> u64;

    /// Whether nothing fits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What offsets and lengths must be multiples of, bytes; a power of two, at most 4096.
    fn alignment(&self) -> usize {
        512
    }

    /// The file that reads can be handed to the kernel for (io_uring) instead of blocking in
    /// [`Device::read_at`], with the same outcome; none where [`Device::read_at`] does more than
    /// read that file.
    fn file(&self) -> Option<&File> {
        None
    }

    /// Fills `buffer` with the bytes at `offset`.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes `buffer` at `offset`. It may be lost by a power cut until [`Device::sync`] returns.
    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()>;

    /// Makes all writes that have returned durable.
    fn sync(&self) -> io::Result<()>;
}
