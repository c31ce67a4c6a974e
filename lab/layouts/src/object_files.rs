//! A file for each object: `SIMPLE`, `SQUID` and `MULTIPLE-DIRS`, which differ in the directories.
//!
//! - `SIMPLE`: one directory.
//! - `SQUID`: 16 directories of 256 directories each, in turn. The paper: "The first level contains
//!   16 directories (named 0..F), each of which contains 256 sub-directories (named 00..FF). Files
//!   are stored in the second level directories in a round robin manner."
//! - `MULTIPLE-DIRS`: a directory for each server, which is made with the first object of the
//!   server, and stays.
//!
//! A file is created and written, read as a whole, or deleted; it is never written again. So each
//! put, and each removal, changes a directory and an inode. `BUDDY` keeps its large objects so.
//!
//! With [`Settings::like_ufs`] ext4 is made to do what UFS did:
//!
//! - A call that makes or deletes a file waits until the inode is on the disk: the new one before
//!   anything is written to it, the empty one after the name is gone. Contents are written later.
//! - A new directory gets a group of blocks with few other directories. ext4 chooses such a group
//!   only if the parent is marked as the top of a hierarchy; else it takes one near the parent.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::{Found, Layout, Object, Settings, length, missing};

/// See the module's head.
pub struct ObjectFiles {
    root: PathBuf,
    directories: Directories,
    like_ufs: bool,
    stored: HashMap<u64, Stored>,
    buffer: Vec<u8>,
}

struct Stored {
    directory: u32,
    bytes: u64,
}

/// Which directories there are, by numbers.
enum Directories {
    One,
    InTurn { next: u32 },
    OfServers { made: HashSet<u32> },
}

impl ObjectFiles {
    /// `SIMPLE`, below `root`.
    pub fn simple(root: &Path, settings: &Settings) -> io::Result<Self> {
        let files = Self::new(root, settings, Directories::One);
        files.make(0)?;
        Ok(files)
    }

    /// `SQUID`, below `root`.
    pub fn squid(root: &Path, settings: &Settings) -> io::Result<Self> {
        let files = Self::new(root, settings, Directories::InTurn { next: 0 });
        (0..IN_TURN).try_for_each(|directory| files.make(directory))?;
        Ok(files)
    }

    /// `MULTIPLE-DIRS`, below `root`.
    pub fn multiple_dirs(root: &Path, settings: &Settings) -> Self {
        let made = HashSet::new();
        Self::new(root, settings, Directories::OfServers { made })
    }

    fn new(root: &Path, settings: &Settings, directories: Directories) -> Self {
        Self {
            root: root.to_owned(),
            directories,
            like_ufs: settings.like_ufs,
            stored: HashMap::new(),
            buffer: vec![],
        }
    }

    fn make(&self, directory: u32) -> io::Result<()> {
        let path = self.directory(directory);
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent)?;
        if self.like_ufs {
            mark_as_top(parent)?;
        }
        fs::create_dir_all(&path)?;
        if self.like_ufs {
            File::open(&path)?.sync_all()?;
        }
        Ok(())
    }

    /// The directory for an object that is put.
    fn choose(&mut self, object: Object) -> io::Result<u32> {
        match &mut self.directories {
            Directories::One => Ok(0),
            Directories::InTurn { next } => {
                let chosen = *next;
                *next = (chosen + 1) % IN_TURN;
                Ok(chosen)
            }
            Directories::OfServers { made } => {
                if made.insert(object.server) {
                    self.make(object.server)?;
                }
                Ok(object.server)
            }
        }
    }

    fn directory(&self, number: u32) -> PathBuf {
        self.root.join(match self.directories {
            Directories::One => "objects".to_owned(),
            Directories::InTurn { .. } => format!("{:X}/{:02X}", number / 256, number % 256),
            Directories::OfServers { .. } => format!("server-{number}"),
        })
    }

    fn path(&self, number: u64, directory: u32) -> PathBuf {
        self.directory(directory).join(format!("{number:08x}"))
    }
}

impl Layout for ObjectFiles {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        let directory = self.choose(object)?;
        let mut file = File::create_new(self.path(object.number, directory))?;
        if self.like_ufs {
            file.sync_all()?;
        }
        file.write_all(content)?;
        let bytes = content.len() as u64;
        self.stored
            .insert(object.number, Stored { directory, bytes });
        Ok(())
    }

    fn get(&mut self, number: u64, _: Duration, found: Found<'_>) -> io::Result<()> {
        let stored = self.stored.get(&number).ok_or_else(|| missing(number))?;
        let mut file = File::open(self.path(number, stored.directory))?;
        self.buffer.resize(length(stored.bytes)?, 0);
        file.read_exact(&mut self.buffer)?;
        found(number, &self.buffer)
    }

    fn remove(&mut self, number: u64, _: Found<'_>) -> io::Result<()> {
        let stored = self.stored.remove(&number).ok_or_else(|| missing(number))?;
        let path = self.path(number, stored.directory);
        if !self.like_ufs {
            return fs::remove_file(path);
        }
        let file = File::options().write(true).open(&path)?;
        fs::remove_file(path)?;
        // Else content that was not written yet would be written now.
        file.set_len(0)?;
        file.sync_all()
    }

    fn due(&mut self, _: Duration, _: Found<'_>) -> io::Result<()> {
        // No read waits.
        Ok(())
    }

    fn finish(&mut self, _: Found<'_>) -> io::Result<()> {
        // Nothing waits.
        Ok(())
    }

    fn mean_free_bytes(&self) -> Option<u64> {
        None
    }

    fn slots_of(&self, _: u64) -> Option<(u64, u64)> {
        None
    }
}

/// Has ext4 spread the directories that are made in this one over the groups of the disk.
fn mark_as_top(directory: &Path) -> io::Result<()> {
    let directory = File::open(directory)?;
    let flags = ioctl_getflags(&directory)?;
    if !flags.contains(IFlags::TOPDIR) {
        ioctl_setflags(&directory, flags | IFlags::TOPDIR)?;
    }
    Ok(())
}

const IN_TURN: u32 = 16 * 256;
