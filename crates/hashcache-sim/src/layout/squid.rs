//! `SQUID`: a file for each object, in 16 directories of 256 directories each, in turn.
//!
//! The paper: "The first level contains 16 directories (named 0..F), each of which contains 256
//! sub-directories (named 00..FF). Files are stored in the second level directories in a round
//! robin manner."

use std::io;
use std::path::Path;
use std::time::Duration;

use super::object_files::ObjectFiles;
use super::{Found, Layout, Object};

pub struct Squid {
    files: ObjectFiles,
    next: u32,
}

impl Squid {
    pub fn new(root: &Path) -> io::Result<Self> {
        let files = ObjectFiles::new(root, name_of);
        (0..DIRECTORIES).try_for_each(|directory| files.make(directory))?;
        Ok(Self { files, next: 0 })
    }
}

impl Layout for Squid {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        let directory = self.next;
        self.next = (directory + 1) % DIRECTORIES;
        self.files.put(object.number, directory, content)
    }

    fn get(&mut self, number: u64, _: Duration, found: Found<'_>) -> io::Result<()> {
        found(number, self.files.get(number)?)
    }

    fn remove(&mut self, number: u64, _: Found<'_>) -> io::Result<()> {
        self.files.remove(number)
    }

    fn due(&mut self, _: Duration, _: Found<'_>) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: Found<'_>) -> io::Result<()> {
        Ok(())
    }

    fn mean_free_bytes(&self) -> Option<u64> {
        None
    }
}

fn name_of(directory: u32) -> String {
    format!("{:X}/{:02X}", directory / 256, directory % 256)
}

const DIRECTORIES: u32 = 16 * 256;
