//! Direct I/O: turning it on, and which alignment the disk asks for.
//!
//! Called by `file`, once an opening.
//!
//! Invariant: the alignment is what every place of the file asks for. It is never probed on space
//! that was allocated and not written yet: ext4 and XFS answer a read there with zeros, whatever
//! its alignment, and refuse the same read when data are there.
//! Cost: one system call where the kernel tells the alignment; elsewhere at most five reads, and a
//! write of 4 KiB where nothing was written yet.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use crate::memory::AlignedBuf;

/// What buffers are aligned to, and the largest alignment that the engine's accesses have.
const ALIGNMENT_MAX: usize = 4096;

/// Turns direct I/O on and returns the alignment it asks for; `None` when it is refused.
pub(super) fn turn_on(file: &File) -> Option<usize> {
    let alignment = match told(file) {
        ReportedAlignment::Bytes(bytes) => Some(bytes),
        ReportedAlignment::Refused => return None,
        ReportedAlignment::Nothing => None,
    };
    let flags = rustix::fs::fcntl_getfl(file).ok()?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).ok()?;
    // Some file systems accept the flag and then refuse every read: one is tried even where the
    // alignment is known.
    let alignment = match alignment {
        Some(bytes) => is_accepted(file, bytes).then_some(bytes),
        None => probed(file),
    };
    if alignment.is_none() {
        rustix::fs::fcntl_setfl(file, flags).ok()?;
    }
    alignment
}

/// The alignment that direct I/O would ask for, if the kernel tells it. Writes nothing.
pub(super) fn alignment_told(file: &File) -> Option<usize> {
    match told(file) {
        ReportedAlignment::Bytes(bytes) => Some(bytes),
        ReportedAlignment::Refused | ReportedAlignment::Nothing => None,
    }
}

/// What the kernel says without being tried.
#[derive(Debug, PartialEq, Eq)]
enum ReportedAlignment {
    /// Offsets, lengths and buffers are to be aligned to this.
    Bytes(usize),
    /// There is no direct I/O here, or none with the engine's buffers.
    Refused,
    /// It does not tell: Linux before 6.1, or this file system.
    Nothing,
}

fn told(file: &File) -> ReportedAlignment {
    let is_block_device =
        |file: &File| Ok::<_, io::Error>(file.metadata()?.file_type().is_block_device());
    if is_block_device(file).unwrap_or(false) {
        // Older kernels tell this of a block device too, unlike `statx`.
        return match rustix::fs::ioctl_blksszget(file) {
            Ok(bytes) => usable(bytes),
            Err(_) => ReportedAlignment::Nothing,
        };
    }
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(it) if it.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            usable(it.stx_dio_offset_align.max(it.stx_dio_mem_align))
        }
        Ok(_) | Err(_) => ReportedAlignment::Nothing,
    }
}

/// `bytes` as an alignment; 0 stands for no direct I/O.
fn usable(bytes: u32) -> ReportedAlignment {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && bytes <= ALIGNMENT_MAX => {
            ReportedAlignment::Bytes(bytes.max(SECTOR))
        }
        _ => ReportedAlignment::Refused,
    }
}

/// The least alignment with which written bytes can be read.
fn probed(file: &File) -> Option<usize> {
    let mut first = AlignedBuf::zeroed(ALIGNMENT_MAX);
    file.read_exact_at(&mut first, 0).ok()?;
    if first.iter().all(|byte| *byte == 0) {
        // Perhaps it was never written. Zeros written over zeros change nothing, whatever the file
        // is.
        file.write_all_at(&first, 0).ok()?;
    }
    let mut alignments = (0..)
        .map(|n| SECTOR << n)
        .take_while(|it| *it <= ALIGNMENT_MAX);
    alignments.find(|bytes| is_accepted(file, *bytes))
}

/// Whether a read with no more than this alignment is answered.
fn is_accepted(file: &File, bytes: usize) -> bool {
    let mut buffer = AlignedBuf::zeroed(ALIGNMENT_MAX);
    // At this offset an alignment smaller than the disk's is an error, not a wider read. A file
    // shorter than that has nothing to read.
    let offset = if bytes < ALIGNMENT_MAX {
        bytes as u64
    } else {
        0
    };
    file.read_at(&mut buffer[..bytes], offset).is_ok()
}

const SECTOR: usize = crate::format::MIN_UNIT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alignment_that_buffers_do_not_have_is_no_direct_io() {
        assert_eq!(usable(0), ReportedAlignment::Refused);
        assert_eq!(usable(1), ReportedAlignment::Bytes(512));
        assert_eq!(usable(512), ReportedAlignment::Bytes(512));
        assert_eq!(usable(4096), ReportedAlignment::Bytes(4096));
        assert_eq!(usable(3000), ReportedAlignment::Refused);
        assert_eq!(usable(65536), ReportedAlignment::Refused);
    }

    #[test]
    fn a_probe_finds_what_the_kernel_tells_and_changes_no_byte() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for content in [vec![0; 8192], vec![7; 8192]] {
            std::fs::write(&path, &content).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            let ReportedAlignment::Bytes(told) = told(&file) else {
                eprintln!("skipped: the kernel tells nothing of {}", path.display());
                return;
            };
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT).unwrap();
            let found = probed(&file).unwrap();
            drop(file);
            assert_eq!(found, told);
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }
}
