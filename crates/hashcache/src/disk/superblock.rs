//! Writing the superblock: two copies are written in turn, so that one copy is always whole.
//!
//! Called by `store` when it opens and closes, and by `writer`.
//!
//! Invariant: the newer copy is never overwritten.
//! Cost: a write and a sync.

use std::io;

use crate::device::Device;
use crate::format::{SUPERBLOCK_BYTES, Superblock};
use crate::memory::AlignedBuf;

/// Writes the superblock with the next serial to the place of the older copy, and makes it durable.
pub(crate) fn write_superblock(device: &dyn Device, superblock: &mut Superblock) -> io::Result<()> {
    superblock.serial += 1;
    let mut bytes = AlignedBuf::zeroed(SUPERBLOCK_BYTES);
    bytes.copy_from_slice(&superblock.encode());
    device.write_at(superblock.serial % 2 * SUPERBLOCK_BYTES as u64, &bytes)?;
    device.sync()
}
