//! A file system on a modelled disk.
//!
//! FUSE file, loop device, mount, each removed when it is dropped, in the opposite order.

use std::fs;
use std::path::{Path, PathBuf};

use hashcache::device::{DiskModel, Pace};
use hashcache_layouts::modelled_disk::ModelledDisk;

use crate::loop_mount::{LoopDevice, Mount};

/// How files lie on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FileSystem {
    /// ext4 as it is made today
    Ext4,
    /// The same, but each change of a directory is on the disk before the call returns
    Ext4Dirsync,
    /// The nearest to UFS in 1999 that this kernel has: no journal, changes of directories at once,
    /// directories without an index, tables of blocks, small groups; layouts with a file for each
    /// object wait for inodes, and have directories spread over the disk
    Ufs,
}

impl FileSystem {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4Dirsync => "ext4-dirsync",
            Self::Ufs => "ufs",
        }
    }

    /// Options of `mkfs.ext4`.
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 | Self::Ext4Dirsync => &[],
            // Groups of 8 MiB: cylinder groups of UFS had 16 cylinders.
            Self::Ufs => &[
                "-O",
                "^has_journal,^dir_index,^extent,^64bit,^flex_bg,^metadata_csum,^huge_file",
                "-g",
                "2048",
            ],
        }
    }

    /// Options of `mount`.
    pub fn mount_options(self) -> &'static str {
        match self {
            Self::Ext4 => "noatime",
            Self::Ext4Dirsync | Self::Ufs => "noatime,dirsync",
        }
    }
}

/// See the module's head. Its parts are dropped in this order.
pub struct Disk {
    root: PathBuf,
    _mount: Mount,
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
        let blocks = ["-m", "0", "-b", "4096", "-i", "4096"];
        // ext4 chooses the group of a new directory by a hash of its name.
        let hash_seed = format!("hash_seed={seed:08x}-0000-4000-8000-000000000000");
        device.make_ext4(&[&hash_seed], &[&blocks, file_system.features()].concat())?;
        let options = file_system.mount_options();
        let mount = Mount::make(device.path(), options, folder.join("files"))?;
        let root = mount.directory().join("cache");
        fs::create_dir(&root)?;
        Ok(Self {
            root,
            _mount: mount,
            _device: device,
            modelled,
        })
    }

    /// The directory for the files of a layout.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The modelled disk.
    pub fn modelled(&self) -> &ModelledDisk {
        &self.modelled
    }
}
