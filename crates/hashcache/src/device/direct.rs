//! Direct I/O: turns it on and finds the alignment that the disk requires.
//!
//! Called by `file`, once per open.
//!
//! Invariant: the alignment is large enough everywhere in the file. The alignment is never probed
//! in space that was allocated and not written yet: there, ext4 and XFS answer a read with zeros at
//! any alignment, and refuse the same read once there are data.
//! Cost: one system call if the kernel reports the alignment; otherwise at most five reads, and a
//! write of 4 KiB if nothing was written yet.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};

use rustix::fs::{AtFlags, OFlags, StatxFlags};

use crate::memory::AlignedBuf;

/// Buffer alignment, and the largest alignment that the engine's accesses have.
const ALIGNMENT_MAX: usize = 4096;

/// Turns direct I/O on and returns the required alignment; `None` if direct I/O is refused.
pub(super) fn turn_on(file: &File) -> Option<usize> {
    let alignment = match told(file) {
        ReportedAlignment::Bytes(bytes) => Some(bytes),
        ReportedAlignment::Refused => return None,
        ReportedAlignment::Nothing => None,
    };
    let flags = rustix::fs::fcntl_getfl(file).ok()?;
    rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).ok()?;
    // Some file systems accept the flag and then refuse every read. So a read is tried even if the
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

/// The alignment that direct I/O would require, if the kernel reports it. Writes nothing.
pub(super) fn alignment_told(file: &File) -> Option<usize> {
    match told(file) {
        ReportedAlignment::Bytes(bytes) => Some(bytes),
        ReportedAlignment::Refused | ReportedAlignment::Nothing => None,
    }
}

/// The kernel's report, without a trial read.
#[derive(Debug, PartialEq, Eq)]
enum ReportedAlignment {
    /// Required alignment for offsets, lengths and buffers.
    Bytes(usize),
    /// Direct I/O is not available, or not with the engine's buffers.
    Refused,
    /// No report: Linux before 6.1, or a file system without this report.
    Nothing,
}

fn told(file: &File) -> ReportedAlignment {
    let is_block_device =
        |file: &File| Ok::<_, io::Error>(file.metadata()?.file_type().is_block_device());
    if is_block_device(file).unwrap_or(false) {
        // For a block device older kernels report this too, unlike `statx`.
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

/// Checks `bytes` as an alignment; 0 means no direct I/O.
fn usable(bytes: u32) -> ReportedAlignment {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && bytes <= ALIGNMENT_MAX => {
            ReportedAlignment::Bytes(bytes.max(SECTOR))
        }
        _ => ReportedAlignment::Refused,
    }
}

/// Finds the smallest alignment that works for reads in written space.
fn probed(file: &File) -> Option<usize> {
    let mut first = AlignedBuf::zeroed(ALIGNMENT_MAX);
    file.read_exact_at(&mut first, 0).ok()?;
    if first.iter().all(|byte| *byte == 0) {
        // The space may never have been written. Zeros written over zeros change nothing, in any
        // file.
        file.write_all_at(&first, 0).ok()?;
    }
    let mut alignments = (0..)
        .map(|n| SECTOR << n)
        .take_while(|it| *it <= ALIGNMENT_MAX);
    alignments.find(|bytes| is_accepted(file, *bytes))
}

/// Returns true if a read with only this alignment succeeds.
fn is_accepted(file: &File, bytes: usize) -> bool {
    let mut buffer = AlignedBuf::zeroed(ALIGNMENT_MAX);
    // At this offset, a length below the disk's alignment is an error and not a wider read. In a
    // file shorter than the offset there is nothing to read.
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
