//! An ext4 file system on a loop device, which can be made slow: its reads and writes are limited,
//! or its image is a modelled disk that takes its time.
//!
//! Each server under test has one of its own. Invariant: dropping a [`ServerDisk`] removes mount,
//! loop device and image, however far its making came. The loop device bypasses the page cache of
//! the image: otherwise that memory would count for the server.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use hashcache::Clock;
use hashcache::device::{DiskModel, Pace};
use hashcache_layouts::modelled_disk::ModelledDisk;

use crate::cgroup::{Cgroup, limit_kernel_writes};
use crate::loop_mount::{LoopDevice, Mount};

/// See the module's head. Its parts are dropped in this order.
pub struct ServerDisk {
    mount: Mount,
    device: LoopDevice,
    image: Image,
}

impl ServerDisk {
    /// Makes one of this size with its files in `folder`. It is fast until it is slowed. With
    /// `model`, the image is a modelled disk, whose bytes lie in the memory of this process. Needs
    /// root.
    pub fn make(folder: &Path, bytes: u64, model: Option<DiskModel>) -> anyhow::Result<Self> {
        let image = match model {
            None => Image::File(ImageFile::make(folder.join("disk.img"), bytes)?),
            Some(model) => {
                let directory = folder.join("device");
                let disk = ModelledDisk::mount(&directory, bytes, model, Pace::Modelled, SEED)?;
                Image::Modelled(disk)
            }
        };
        let device = LoopDevice::attach(&image.path())?;
        if model.is_some() {
            device.sort_requests()?;
        }
        device.make_ext4(&[], &["-m", "0"])?;
        let mount = Mount::make(device.path(), "noatime", folder.join("disk"))?;
        Ok(Self {
            mount,
            device,
            image,
        })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        self.mount.directory()
    }

    /// Makes it slow. A modelled disk takes its time. Else the reads, and the writes, of the
    /// processes in `group` are limited to so many a second, and the writes that the kernel does
    /// for them: those have a limit of their own.
    pub fn slow(&self, group: &Cgroup, per_second: u32) -> anyhow::Result<()> {
        match &self.image {
            Image::Modelled(disk) => {
                disk.set_pace(Pace::Real(Clock::system()));
                Ok(())
            }
            Image::File(_) => {
                group.limit_disk(self.device.number(), per_second)?;
                limit_kernel_writes(self.device.number(), per_second)
            }
        }
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
        // On a slow disk the last writes of the file system take minutes.
        match &self.image {
            Image::Modelled(disk) => disk.set_pace(Pace::Modelled),
            // Fails only if there are no such groups, and then there was no limit.
            Image::File(_) => drop(limit_kernel_writes(self.device.number(), 0)),
        }
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

enum Image {
    File(ImageFile),
    Modelled(ModelledDisk),
}

impl Image {
    fn path(&self) -> PathBuf {
        match self {
            Self::File(file) => file.path.clone(),
            Self::Modelled(disk) => disk.disk(),
        }
    }
}

struct ImageFile {
    path: PathBuf,
}

impl ImageFile {
    fn make(path: PathBuf, bytes: u64) -> anyhow::Result<Self> {
        let file =
            File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let image = Self { path };
        file.set_len(bytes)?;
        Ok(image)
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        // The folder of the campaign is removed as well.
        let _ = fs::remove_file(&self.path);
    }
}

/// Where the platter of a modelled disk stands at the first request.
const SEED: u32 = 1;
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
