//! The FUSE side of a modelled disk: two files in one directory.
//!
//! The kernel's requests come one after another on one thread, which is the arm of the disk: in
//! real time it sleeps while the arm is at work, and requests wait meanwhile.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};
use hashcache::device::{Device as _, ThrottleDevice};

use super::figures::{TEXT_MAX, text};

pub struct FileSystem {
    device: Arc<ThrottleDevice>,
}

impl FileSystem {
    pub fn new(device: Arc<ThrottleDevice>) -> Self {
        Self { device }
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            DISK_INODE => (FileType::RegularFile, 0o600, self.device.len()),
            FIGURES_INODE => (FileType::RegularFile, 0o400, TEXT_MAX as u64),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// What a read of one of the files gets. The kernel may ask for more than the file has: a
    /// reader goes on until it gets nothing.
    fn content(&self, inode: INodeNo, offset: u64, size: u32) -> io::Result<Vec<u8>> {
        if inode == FIGURES_INODE {
            let text = text(&self.device.figures());
            let (from, size) = (usize::try_from(offset), usize::try_from(size));
            let rest = from.ok().and_then(|from| text.as_bytes().get(from..));
            let rest = rest.unwrap_or_default();
            return Ok(rest[..rest.len().min(size.map_err(io::Error::other)?)].to_owned());
        }
        let left = self.device.len().saturating_sub(offset);
        let length = u64::from(size).min(left);
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.device.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    fn change(&self, inode: INodeNo, offset: u64, content: &[u8]) -> io::Result<u32> {
        if inode != DISK_INODE {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.device.write_at(offset, content)?;
        u32::try_from(content.len()).map_err(io::Error::other)
    }
}

impl Filesystem for FileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Requests as large as the loop device makes them, or as large as the kernel allows.
        if let Err(most) = config.set_max_write(REQUEST_MAX) {
            let _ = config.set_max_write(most);
        }
        let wanted = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_MAX_PAGES;
        config
            .add_capabilities(wanted)
            .map_err(|_| io::Error::from(io::ErrorKind::Unsupported))
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let inode = match name.to_str() {
            Some(DISK) => DISK_INODE,
            Some(FIGURES) => FIGURES_INODE,
            _ => return reply.error(Errno::ENOENT),
        };
        match self.attributes(inode) {
            Some(attributes) => reply.entry(&KEEP, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&KEEP, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.content(inode, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        content: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.change(inode, offset, content) {
            Ok(written) => reply.written(written),
            Err(_) => reply.error(Errno::EIO),
        }
    }
}

pub const DISK: &str = "disk";
pub const FIGURES: &str = "figures";
const DISK_INODE: INodeNo = INodeNo(2);
const FIGURES_INODE: INodeNo = INodeNo(3);
const REQUEST_MAX: u32 = 1 << 20;
/// How long the kernel may keep attributes, which never change.
const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use hashcache::device::{DiskModel, MemoryDevice, Pace};

    use super::*;

    #[test]
    fn a_read_behind_the_end_of_a_file_gets_nothing() {
        let memory = Arc::new(MemoryDevice::new(1 << 20));
        let device = ThrottleDevice::new(memory, DiskModel::HDD_7200, Pace::Modelled, 0);
        let files = FileSystem::new(Arc::new(device));
        let read = |inode, offset, size| files.content(inode, offset, size).unwrap();
        let whole = read(FIGURES_INODE, 0, 4096);
        assert_eq!(whole, b"0 0 0 0 0 0\n");
        assert_eq!(read(FIGURES_INODE, 4, 2), whole[4..6]);
        assert_eq!(read(FIGURES_INODE, 10, 4096), whole[10..]);
        let end = whole.len() as u64;
        assert!(read(FIGURES_INODE, end, 4096).is_empty());
        assert!(read(FIGURES_INODE, u64::MAX, 4096).is_empty());
        assert_eq!(read(DISK_INODE, (1 << 20) - 4096, 8192).len(), 4096);
        assert!(read(DISK_INODE, 1 << 20, 4096).is_empty());
    }
}
