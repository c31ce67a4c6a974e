//! `SIMPLE`: a file for each object, all in one directory.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::object_files::ObjectFiles;
use super::{Found, Layout, Object};

pub struct Simple {
    files: ObjectFiles,
}

impl Simple {
    pub fn new(root: &Path) -> io::Result<Self> {
        let files = ObjectFiles::new(root, |_| "objects".to_owned());
        files.make(DIRECTORY)?;
        Ok(Self { files })
    }
}

impl Layout for Simple {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        self.files.put(object.number, DIRECTORY, content)
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

const DIRECTORY: u32 = 0;
