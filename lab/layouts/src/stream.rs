//! `STREAM`: one file, written like a log.
//!
//! Each object is written as it comes. A write that fills only a part of a page makes the kernel
//! read the rest of it first, unless the page is in memory: the paper's "small-write problem".

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use super::stream_file::StreamFile;
use super::{Found, Layout, Object, Settings, length};

pub struct Stream {
    stream: StreamFile,
}

impl Stream {
    pub fn new(root: &Path, settings: &Settings) -> io::Result<Self> {
        let stream = StreamFile::new(root, settings.stream_bytes)?;
        Ok(Self { stream })
    }
}

impl Layout for Stream {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        self.stream.place(object.number, content.len() as u64)?;
        let mut rest = content;
        for piece in self.stream.place_of(object.number)?.pieces() {
            let (now, later) = rest.split_at(length(piece.bytes)?);
            self.stream.file().write_all_at(now, piece.offset)?;
            rest = later;
        }
        Ok(())
    }

    fn get(&mut self, number: u64, _: Duration, found: Found<'_>) -> io::Result<()> {
        found(number, self.stream.read(number)?)
    }

    fn remove(&mut self, number: u64, _: Found<'_>) -> io::Result<()> {
        self.stream.remove(number)
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
        Some(self.stream.mean_free_bytes())
    }

    fn slots_of(&self, number: u64) -> Option<(u64, u64)> {
        self.stream.slots_of(number)
    }
}
