//! `MULTIPLE-DIRS`: a file for each object, in a directory for each server.
//!
//! A directory is made with the first object of its server, and stays.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::object_files::ObjectFiles;
use super::{Found, Layout, Object};

pub struct MultipleDirs {
    files: ObjectFiles,
    made: HashSet<u32>,
}

impl MultipleDirs {
    pub fn new(root: &Path) -> Self {
        Self {
            files: ObjectFiles::new(root, |server| format!("server-{server}")),
            made: HashSet::new(),
        }
    }
}

impl Layout for MultipleDirs {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        if self.made.insert(object.server) {
            self.files.make(object.server)?;
        }
        self.files.put(object.number, object.server, content)
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
