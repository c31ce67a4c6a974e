//! A file system on a modelled disk.
//!
//! FUSE file, loop device, mount, each removed when it is dropped, in the opposite order.

use std::path::Path;

use hashcache::device::{DiskModel, Pace};
use hashcache_sim::modelled_disk::ModelledDisk;

use crate::loop_mount::{LoopDevice, Mount, run};

/// How files lie on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4 as it is made today
    Ext4,
    /// The same, but each change of a directory is on the disk before the call returns
    Ext4Dirsync,
    /// The nearest to the file systems of 1999 that this kernel has: no journal, changes of
    /// directories at once, directories without an index, and tables of blocks
    Old,
}

impl FileSystem {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4Dirsync => "ext4-dirsync",
            Self::Old => "old",
        }
    }

    /// Options of `mkfs.ext4`.
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 | Self::Ext4Dirsync => &[],
            Self::Old => &[
                "-O",
                "^has_journal,^dir_index,^extent,^64bit,^flex_bg,^metadata_csum,^huge_file",
            ],
        }
    }

    /// Options of `mount`.
    pub fn mount_options(self) -> &'static str {
        match self {
            Self::Ext4 => "noatime",
            Self::Ext4Dirsync | Self::Old => "noatime,dirsync",
        }
    }
}

/// See the module's head. Its parts are dropped in this order.
pub struct Disk {
    mount: Mount,
    _device: LoopDevice,
    modelled: ModelledDisk,
}

impl Disk {
    /// Makes one of `bytes` with its directories in `folder`. Needs root.
    pub fn make(
        folder: &Path,
        bytes: u64,
        model: DiskModel,
        seed: u32,
        file_system: FileSystem,
    ) -> anyhow::Result<Self> {
        let modelled =
            ModelledDisk::mount(&folder.join("device"), bytes, model, Pace::Modelled, seed)?;
        let device = LoopDevice::attach(&modelled.disk())?;
        device.sort_requests()?;
        // Otherwise the kernel goes on making the file system while the layout is measured.
        let at_once = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let words = ["-q", "-m", "0", "-b", "4096", "-i", "4096", "-E", at_once];
        let words = [&words, file_system.features(), &[device.path()]].concat();
        run("mkfs.ext4", &words)?;
        let options = file_system.mount_options();
        let mount = Mount::make(device.path(), options, folder.join("files"))?;
        Ok(Self {
            mount,
            _device: device,
            modelled,
        })
    }

    /// Where the file system is mounted.
    pub fn directory(&self) -> &Path {
        self.mount.directory()
    }

    /// The modelled disk.
    pub fn modelled(&self) -> &ModelledDisk {
        &self.modelled
    }
}
