//! A disk that takes as long as one of a model, as a file: kernel, file systems and other programs
//! use it like any disk, by way of a loop device.
//!
//! A FUSE file system with two files. `disk` has the bytes, which lie in memory as far as they were
//! written; each read and write of it is charged by [`ThrottleDevice`], in the order in which the
//! kernel sends them. `figures` says what the disk has done so far, for a process that has to know
//! its clock.
//!
//! Used by `cargo campaign layouts` and `slow-disk`. Needs root and `/dev/fuse`. Invariant: neither
//! file goes through the page cache, so each read and write of `disk` is charged.

mod figures;
mod file_system;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption};
use hashcache::device::{DiskModel, MemoryDevice, Pace, ThrottleDevice, ThrottleFigures};

pub use figures::FiguresFile;
use file_system::{DISK, FIGURES, FileSystem};

/// A mounted disk. Dropping it removes it; what used it must have ended.
pub struct ModelledDisk {
    directory: PathBuf,
    device: Arc<ThrottleDevice>,
    _session: BackgroundSession,
}

impl ModelledDisk {
    /// Mounts an empty disk of `bytes` at `directory`, which is made if it is not there. `seed`
    /// says where the platter stands at the first request.
    pub fn mount(
        directory: &Path,
        bytes: u64,
        model: DiskModel,
        pace: Pace,
        seed: u32,
    ) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let memory = MemoryDevice::new(usize::try_from(bytes).map_err(io::Error::other)?);
        let device = Arc::new(ThrottleDevice::new(Arc::new(memory), model, pace, seed));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("hashcache-modelled-disk".to_owned())];
        let session = fuser::spawn_mount(FileSystem::new(device.clone()), directory, &config)?;
        Ok(Self {
            directory: directory.to_owned(),
            device,
            _session: session,
        })
    }

    /// The file with the bytes.
    pub fn disk(&self) -> PathBuf {
        self.directory.join(DISK)
    }

    /// The file that [`FiguresFile`] reads.
    pub fn figures_file(&self) -> PathBuf {
        self.directory.join(FIGURES)
    }

    /// Changes whether requests take their time, from the next one on.
    pub fn set_pace(&self, pace: Pace) {
        self.device.set_pace(pace);
    }

    /// What it has done so far.
    pub fn figures(&self) -> ThrottleFigures {
        self.device.figures()
    }
}
