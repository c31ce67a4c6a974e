//! An ext4 file system on a loop device, whose reads and writes can be limited.
//!
//! Each server under test has one of its own. Invariant: dropping a [`ServerDisk`] removes mount,
//! loop device and image, however far its making came. The loop device bypasses the page cache of
//! the image: otherwise that memory would count for the server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::cgroup::{Cgroup, limit_kernel_writes};
use crate::loop_mount::{LoopDevice, Mount, run};

/// See the module's head. Its parts are dropped in this order.
#[derive(Debug)]
pub struct ServerDisk {
    mount: Mount,
    device: LoopDevice,
    _image: Image,
}

impl ServerDisk {
    /// Makes one of this size with its files in `folder`. Needs root.
    pub fn make(folder: &Path, bytes: u64) -> anyhow::Result<Self> {
        let image = Image::make(folder.join("disk.img"), bytes)?;
        let device = LoopDevice::attach(&image.path)?;
        let device_path = device.path();
        // Otherwise the kernel goes on making the file system while the server is measured.
        let at_once = "lazy_itable_init=0,lazy_journal_init=0";
        run("mkfs.ext4", &["-q", "-m", "0", "-E", at_once, device_path])?;
        let mount = Mount::make(device_path, "noatime", folder.join("disk"))?;
        Ok(Self {
            mount,
            device,
            _image: image,
        })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        self.mount.directory()
    }

    /// Limits the reads, and the writes, of the processes in `group` to so many a second, and the
    /// writes that the kernel does for them: those have a limit of their own.
    pub fn limit(&self, group: &Cgroup, per_second: u32) -> anyhow::Result<()> {
        group.limit_disk(self.device.number(), per_second)?;
        limit_kernel_writes(self.device.number(), per_second)
    }

    /// Takes all of it out of the page cache. No process may have a file of it open.
    pub fn remount(&self) -> anyhow::Result<()> {
        self.mount.remount()
    }

    /// Waits until all that was written lies on it.
    pub fn sync(&self) -> anyhow::Result<()> {
        Ok(rustix::fs::syncfs(File::open(self.directory())?)?)
    }

    /// What it has done so far.
    pub fn figures(&self) -> anyhow::Result<Figures> {
        let path = self.device.directory().join("stat");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Figures::parse(&text).with_context(|| format!("{} says {text:?}", path.display()))
    }
}

impl Drop for ServerDisk {
    fn drop(&mut self) {
        // Fails only if there are no such groups, and then there was no limit. With a limit, the
        // last writes of the file system take minutes.
        let _ = limit_kernel_writes(self.device.number(), 0);
    }
}

/// Operations of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
}

impl Figures {
    /// Reads a file `stat` of a block device.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> = text
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        Some(Self {
            reads: *fields.first()?,
            read_bytes: fields.get(2)? * SECTOR_BYTES,
            writes: *fields.get(4)?,
            written_bytes: fields.get(6)? * SECTOR_BYTES,
        })
    }

    /// What was done since it was `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            written_bytes: self.written_bytes - before.written_bytes,
        }
    }
}

#[derive(Debug)]
struct Image {
    path: PathBuf,
}

impl Image {
    fn make(path: PathBuf, bytes: u64) -> anyhow::Result<Self> {
        let file =
            File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let image = Self { path };
        file.set_len(bytes)?;
        Ok(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // The folder of the campaign is removed as well.
        let _ = fs::remove_file(&self.path);
    }
}

/// The unit of `stat`, whatever the disk.
const SECTOR_BYTES: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_read_from_the_kernels_counters() {
        let text = " 10 1 160 5 4 2 24 7 0 9 12 0 0 0 0 0 0\n";
        let figures = Figures::parse(text).unwrap();
        let expected = Figures {
            reads: 10,
            read_bytes: 80 << 10,
            writes: 4,
            written_bytes: 12 << 10,
        };
        assert_eq!(figures, expected);
        assert_eq!(figures.since(expected), Figures::default());
        assert_eq!(Figures::parse("10 1 160"), None);
        assert_eq!(Figures::parse("what"), None);
    }
}
