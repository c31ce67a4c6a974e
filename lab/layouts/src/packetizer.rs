//! `STREAM-PACKETIZER`: `STREAM`, but written in whole pages.
//!
//! What is written waits in memory until its page is full, or until a write does not continue it.
//! The rest of an object's last slot is written as zeros, so that the next object continues it. A
//! page that waits is written before any of its bytes is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use super::stream_file::{Piece, StreamFile};
use super::{Found, Layout, Object, SLOT, Settings, length};

pub struct Packetizer {
    stream: StreamFile,
    page: Page,
}

/// The beginning of a page that waits for its rest.
struct Page {
    page_bytes: usize,
    /// In the file.
    offset: u64,
    waiting: Vec<u8>,
}

impl Packetizer {
    pub fn new(root: &Path, settings: &Settings) -> io::Result<Self> {
        let page = Page {
            page_bytes: settings.page_bytes,
            offset: 0,
            waiting: Vec::with_capacity(settings.page_bytes),
        };
        Ok(Self {
            stream: StreamFile::new(root, settings.stream_bytes)?,
            page,
        })
    }

    /// Offset of the first byte of a stored object.
    pub fn start(&self, number: u64) -> io::Result<u64> {
        Ok(self.stream.place_of(number)?.start())
    }
}

impl Page {
    fn end(&self) -> u64 {
        self.offset + self.waiting.len() as u64
    }

    fn overlaps(&self, offset: u64, bytes: u64) -> bool {
        offset < self.end() && self.offset < offset + bytes
    }

    fn write(&mut self, file: &File, offset: u64, content: &[u8]) -> io::Result<()> {
        if offset != self.end() {
            self.flush(file)?;
            self.offset = offset;
        }
        let mut rest = content;
        while !rest.is_empty() {
            let filled = length(self.end() % self.page_bytes as u64)?;
            let (now, later) = rest.split_at(rest.len().min(self.page_bytes - filled));
            self.waiting.extend_from_slice(now);
            rest = later;
            if filled + now.len() == self.page_bytes {
                self.flush(file)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.waiting, self.offset)?;
        self.offset = self.end();
        self.waiting.clear();
        Ok(())
    }
}

impl Layout for Packetizer {
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()> {
        let Self { stream, page } = self;
        stream.place(object.number, content.len() as u64)?;
        let mut rest = content;
        for piece in stream.place_of(object.number)?.pieces() {
            let (now, later) = rest.split_at(length(piece.bytes)?);
            page.write(stream.file(), piece.offset, now)?;
            let padding = &ZEROS[..length(piece.padding)?];
            page.write(stream.file(), piece.offset + piece.bytes, padding)?;
            rest = later;
        }
        Ok(())
    }

    fn get(&mut self, number: u64, _: Duration, found: Found<'_>) -> io::Result<()> {
        let Self { stream, page } = self;
        let place = stream.place_of(number)?;
        let waits = |piece: Piece| page.overlaps(piece.offset, piece.bytes);
        if place.pieces().any(waits) {
            page.flush(stream.file())?;
        }
        found(number, stream.read(number)?)
    }

    fn remove(&mut self, number: u64, _: Found<'_>) -> io::Result<()> {
        self.stream.remove(number)
    }

    fn due(&mut self, _: Duration, _: Found<'_>) -> io::Result<()> {
        // No read waits.
        Ok(())
    }

    fn finish(&mut self, _: Found<'_>) -> io::Result<()> {
        self.page.flush(self.stream.file())
    }

    fn mean_free_bytes(&self) -> Option<u64> {
        Some(self.stream.mean_free_bytes())
    }

    fn slots_of(&self, number: u64) -> Option<(u64, u64)> {
        self.stream.slots_of(number)
    }
}

/// A slot of padding at most, of an object that is empty.
const ZEROS: [u8; SLOT] = [0; SLOT];
