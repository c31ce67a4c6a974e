//! A file for each object: what `simple`, `squid` and `multiple_dirs` share.
//!
//! They choose the directory of an object that is put, by a number, and this remembers it. A file
//! is created and written, read as a whole, or deleted; it is never written again. So each put, and
//! each removal, changes a directory and an inode.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::{length, missing};

pub struct ObjectFiles {
    root: PathBuf,
    name_of: fn(u32) -> String,
    stored: HashMap<u64, Stored>,
    buffer: Vec<u8>,
}

struct Stored {
    directory: u32,
    bytes: u64,
}

impl ObjectFiles {
    /// `name_of` gives the name of a directory below `root`.
    pub fn new(root: &Path, name_of: fn(u32) -> String) -> Self {
        Self {
            root: root.to_owned(),
            name_of,
            stored: HashMap::new(),
            buffer: vec![],
        }
    }

    /// Makes a directory.
    pub fn make(&self, directory: u32) -> io::Result<()> {
        fs::create_dir_all(self.root.join((self.name_of)(directory)))
    }

    /// Stores an object in a directory that was made.
    pub fn put(&mut self, number: u64, directory: u32, content: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(self.path(number, directory))?;
        file.write_all(content)?;
        let bytes = content.len() as u64;
        self.stored.insert(number, Stored { directory, bytes });
        Ok(())
    }

    /// The content of a stored object.
    pub fn get(&mut self, number: u64) -> io::Result<&[u8]> {
        let stored = self.stored.get(&number).ok_or_else(|| missing(number))?;
        let mut file = File::open(self.path(number, stored.directory))?;
        self.buffer.resize(length(stored.bytes)?, 0);
        file.read_exact(&mut self.buffer)?;
        Ok(&self.buffer)
    }

    pub fn remove(&mut self, number: u64) -> io::Result<()> {
        let stored = self.stored.remove(&number).ok_or_else(|| missing(number))?;
        fs::remove_file(self.path(number, stored.directory))
    }

    fn path(&self, number: u64, directory: u32) -> PathBuf {
        let mut path = self.root.join((self.name_of)(directory));
        path.push(format!("{number:08x}"));
        path
    }
}
