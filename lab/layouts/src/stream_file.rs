//! The one file of the stream layouts: where each object lies in it.
//!
//! `stream` and `packetizer` write to it in their ways; reads are the same.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::space::{Extent, Space};
use super::{SLOT_BYTES, length, missing, slots};

pub struct StreamFile {
    file: File,
    space: Space,
    places: HashMap<u64, Place>,
    buffer: Vec<u8>,
}

/// Where an object lies.
pub struct Place {
    extents: Vec<Extent>,
    bytes: u64,
}

impl StreamFile {
    pub fn new(root: &Path, bytes: u64) -> io::Result<Self> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(root.join("stream"))?;
        Ok(Self {
            file,
            space: Space::new(bytes / SLOT_BYTES),
            places: HashMap::new(),
            buffer: vec![],
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Chooses the place of an object that is not stored, and remembers it.
    pub fn place(&mut self, number: u64, bytes: u64) -> io::Result<()> {
        let extents = self.space.take(slots(bytes));
        let extents = extents.ok_or(io::ErrorKind::StorageFull)?;
        self.places.insert(number, Place { extents, bytes });
        Ok(())
    }

    pub fn place_of(&self, number: u64) -> io::Result<&Place> {
        self.places.get(&number).ok_or_else(|| missing(number))
    }

    pub fn read(&mut self, number: u64) -> io::Result<&[u8]> {
        let place = self.places.get(&number).ok_or_else(|| missing(number))?;
        self.buffer.resize(length(place.bytes)?, 0);
        let mut rest = self.buffer.as_mut_slice();
        for piece in place.pieces() {
            let (now, later) = rest.split_at_mut(length(piece.bytes)?);
            self.file.read_exact_at(now, piece.offset)?;
            rest = later;
        }
        Ok(&self.buffer)
    }

    pub fn remove(&mut self, number: u64) -> io::Result<()> {
        let place = self.places.remove(&number).ok_or_else(|| missing(number))?;
        for extent in place.extents {
            self.space.release(extent);
        }
        Ok(())
    }

    /// First and last slot of a stored object.
    pub fn slots_of(&self, number: u64) -> Option<(u64, u64)> {
        let extents = &self.places.get(&number)?.extents;
        let (first, last) = (extents.first()?, extents.last()?);
        Some((first.start, last.start + last.slots - 1))
    }

    /// Mean length of a piece of free space.
    pub fn mean_free_bytes(&self) -> u64 {
        self.space.mean_free_slots() * SLOT_BYTES
    }
}

/// A part of an object in one place.
#[derive(Clone, Copy)]
pub struct Piece {
    /// In the file.
    pub offset: u64,
    /// Of the object.
    pub bytes: u64,
    /// Unused bytes of the last slot.
    pub padding: u64,
}

impl Place {
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let mut left = self.bytes;
        self.extents.iter().map(move |extent| {
            let room = extent.slots * SLOT_BYTES;
            let bytes = room.min(left);
            left -= bytes;
            Piece {
                offset: extent.start * SLOT_BYTES,
                bytes,
                padding: room - bytes,
            }
        })
    }

    /// Offset of the first byte.
    pub fn start(&self) -> u64 {
        self.pieces().next().map_or(0, |piece| piece.offset)
    }
}
