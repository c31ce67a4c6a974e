//! A temporary file for the probe, unlinked before it is used.
//!
//! The file should be as large as the cache will be, because seeks are longer between distant
//! places. Preallocation makes a large file without writing it.
//!
//! Invariant: no file remains on the disk, whatever happens to the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

use crate::device::{FileDevice, FileError};

/// If preallocation is refused, zeros are written, so the file is limited to this size.
const WRITTEN_BYTES_MAX: u64 = 256 << 20;
/// File systems in memory: preallocation takes memory, and there is no seek to measure.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A device of at most `bytes` bytes on the disk under `directory`, and of at most half the free
/// space there.
pub(crate) fn nameless_file(directory: &Path, bytes: u64) -> io::Result<FileDevice> {
    let about = rustix::fs::statvfs(directory)?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    let bytes = bytes.min(free / 2) / 4096 * 4096;
    let path = directory.join(format!(".hashcache-probe-{}", std::process::id()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    let device = made_long(&file, directory, bytes).and_then(|bytes| {
        FileDevice::open(&path, Some(bytes)).map_err(|error| match error {
            FileError::Locked => io::ErrorKind::ResourceBusy.into(),
            FileError::Io(error) => error,
        })
    });
    std::fs::remove_file(&path)?;
    device
}

/// Preallocates the file if that costs nothing, and returns the size that the file should get.
fn made_long(file: &File, directory: &Path, bytes: u64) -> io::Result<u64> {
    let kind = u64::try_from(rustix::fs::statfs(directory)?.f_type).unwrap_or(0);
    let short = bytes.min(WRITTEN_BYTES_MAX);
    if IN_MEMORY.contains(&kind) || bytes == 0 {
        return Ok(short);
    }
    let made = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes);
    if made.is_err() {
        // A part may have been allocated.
        file.set_len(0)?;
    }
    Ok(if made.is_ok() { bytes } else { short })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device as _;

    #[test]
    fn a_nameless_file_is_as_long_as_asked_and_is_not_to_be_seen() {
        let directory = tempfile::tempdir().unwrap();
        let device = nameless_file(directory.path(), (16 << 20) + 5).unwrap();
        assert_eq!(device.len(), 16 << 20);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let content = crate::memory::AlignedBuf::zeroed(4096);
        device.write_at(8 << 20, &content).unwrap();
    }

    #[test]
    fn where_no_file_can_be_made_that_is_told() {
        let directory = tempfile::tempdir().unwrap();
        assert!(nameless_file(&directory.path().join("none"), 1 << 20).is_err());
    }
}
