//! A preallocated file or a block device, accessed with direct I/O (no page cache) if possible.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};

use super::{Device, direct};

/// Reason why a file cannot be used as a device.
#[derive(Debug)]
pub enum FileError {
    /// Another process has the file open.
    Locked,
    /// Error from the system.
    Io(io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for FileError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// A file or block device, locked until this is dropped.
pub struct FileDevice {
    file: File,
    len: u64,
    alignment: usize,
    path: PathBuf,
    is_new: bool,
}

impl FileDevice {
    /// Opens `path` and creates it if it is missing. A file below `size` bytes is extended to
    /// `size` (`None`: the size stays). Space is allocated now, so that other files cannot use it
    /// up later.
    pub fn open(path: &Path, size: Option<u64>) -> Result<Self, FileError> {
        let (file, created) = Self::open_file(path, size.is_some())?;
        lock(&file)?;
        let metadata = file.metadata()?;
        let len = if metadata.file_type().is_block_device() {
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?
        } else if let Some(size) = size.filter(|size| *size > metadata.len()) {
            if let Err(error) = allocate(&file, size) {
                if created {
                    // Do not leave behind a file that was just created and is still empty.
                    let _ = std::fs::remove_file(path);
                } else {
                    let _ = file.set_len(metadata.len());
                }
                return Err(error.into());
            }
            size
        } else {
            metadata.len()
        };
        let alignment = direct::turn_on(&file);
        if alignment.is_none() {
            tracing::info!(path = %path.display(), "direct I/O refused, using the page cache");
        }
        let device = Self {
            file,
            len,
            alignment: alignment.unwrap_or(512),
            path: path.into(),
            is_new: created,
        };
        Ok(device)
    }

    /// Opens the existing `path` as [`FileDevice::open`] does, but without the lock, because
    /// another process may be serving from it. The caller must not write to it.
    pub(crate) fn open_shared(path: &Path) -> Result<Self, FileError> {
        // Also opened for writing: a process without write permission could not serve from it.
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let metadata = file.metadata()?;
        let len = if metadata.file_type().is_block_device() {
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?
        } else if metadata.is_file() {
            metadata.len()
        } else {
            // Returns the error that allocating there would give.
            return Err(rustix::io::Errno::NODEV.into());
        };
        Ok(Self {
            len,
            alignment: direct::alignment_told(&file).unwrap_or(512),
            file,
            path: path.into(),
            is_new: false,
        })
    }

    /// Returns the file, and true if it was just created.
    fn open_file(path: &Path, create: bool) -> Result<(File, bool), FileError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        if Self::is_block_device(path) {
            // Without `O_EXCL` a mounted device could be opened, and the file system there would be
            // destroyed.
            options.custom_flags(i32::try_from(OFlags::EXCL.bits()).map_err(io::Error::other)?);
        }
        match unless_busy(|| options.open(path)) {
            Err(error) if create && error.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                Ok((options.create_new(true).open(path)?, true))
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(FileError::Locked),
            opened => Ok((opened?, false)),
        }
    }

    /// Allocates space for holes in an existing file, so that other files cannot use it up later: a
    /// copied file may have holes. If the free space is too small for all holes, they stay, and a
    /// later write may be refused.
    pub(crate) fn claim(path: &Path) {
        match fill_holes(path) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(path = %path.display(), "not enough space for the whole cache file");
            }
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "space for the cache file not \
                 allocated");
            }
        }
    }

    /// Returns true if `path` is a block device. Such a device has a fixed size.
    pub fn is_block_device(path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device())
    }

    /// Returns true if `open` created the file.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// The path given to `open`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Takes an open-file-description lock. Unlike a POSIX lock it is not lost when some other
/// descriptor of the same file is closed, and unlike a pid file it cannot be left behind.
///
/// Retries for half a second, because a process that was just killed may still be exiting.
fn lock(file: &File) -> Result<(), FileError> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(FileError::Locked)
}

/// Opens a block device, which only one process may have open, with the same retries as `lock`.
fn unless_busy(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    for _ in 1..LOCK_TRIES {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(LOCK_PAUSE);
            }
            opened => return opened,
        }
    }
    open()
}

const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

fn allocate(file: &File, size: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            // The file system cannot preallocate (FAT on a stick): write zeros, so that the space
            // is ours.
            let zeros = vec![0; 1 << 20];
            let mut at = file.metadata()?.len();
            while at < size {
                let step = (size - at).min(zeros.len() as u64);
                let length = usize::try_from(step).map_err(io::Error::other)?;
                file.write_all_at(&zeros[..length], at)?;
                at += step;
            }
            Ok(())
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Returns true if all blocks in the file at `path` are allocated now.
fn fill_holes(path: &Path) -> io::Result<bool> {
    let file = OpenOptions::new().write(true).open(path)?;
    let metadata = file.metadata()?;
    let missing = metadata.len().saturating_sub(metadata.blocks() * 512);
    if missing == 0 || !metadata.is_file() {
        return Ok(true);
    }
    // Check free space first: some file systems take all free space before they refuse.
    let system = rustix::fs::fstatvfs(&file)?;
    if system.f_bavail.saturating_mul(system.f_frsize) < missing {
        return Ok(false);
    }
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, metadata.len()) {
        // If the file system cannot preallocate, zeros were written when the store was created.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

impl Device for FileDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opening_is_refused_while_the_first_lasts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/cache.img");
        let first = FileDevice::open(&path, Some(1 << 20)).unwrap();
        assert_eq!(first.len(), 1 << 20);
        assert!(matches!(
            FileDevice::open(&path, None),
            Err(FileError::Locked)
        ));
        drop(first);
        assert!(FileDevice::open(&path, None).is_ok());
    }

    #[test]
    fn all_space_of_a_file_is_taken_when_it_is_made_and_when_it_is_claimed() {
        let directory = tempfile::tempdir().unwrap();
        let (made, sparse) = (
            directory.path().join("made"),
            directory.path().join("sparse"),
        );
        let space = |path: &Path| std::fs::metadata(path).unwrap().blocks() * 512;
        drop(FileDevice::open(&made, Some(3 << 20)).unwrap());
        assert!(space(&made) >= 3 << 20);
        let file = File::create(&sparse).unwrap();
        file.write_all_at(b"bytes", 1 << 20).unwrap();
        file.set_len(3 << 20).unwrap();
        assert!(space(&sparse) < 1 << 20);
        FileDevice::claim(&sparse);
        assert!(space(&sparse) >= 3 << 20);
        let bytes = std::fs::read(&sparse).unwrap();
        assert_eq!(bytes.len(), 3 << 20);
        assert_eq!(bytes[1 << 20..][..5], *b"bytes");
    }

    #[test]
    fn bytes_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let device = FileDevice::open(&directory.path().join("cache.img"), Some(1 << 20)).unwrap();
        let mut buffer = crate::memory::AlignedBuf::zeroed(8192);
        buffer.fill(7);
        device.write_at(4096, &buffer).unwrap();
        device.sync().unwrap();
        buffer.fill(0);
        device.read_at(4096, &mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
        assert!(device.read_at(1 << 20, &mut buffer).is_err());
    }

    #[test]
    fn a_missing_file_is_not_made_unless_a_size_is_given() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none.img");
        assert!(matches!(
            FileDevice::open(&path, None),
            Err(FileError::Io(_))
        ));
        assert!(!path.exists());
    }
}
