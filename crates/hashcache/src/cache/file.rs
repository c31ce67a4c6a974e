//! Objects as files: open, read, write, seek, close (paper, section 4).
//!
//! For programs that are written against files. All calls may block, as those of files do: they
//! call `wait` inside. A file opened for reading is one version of its object. A later put or
//! remove of the name does not change what is read. If the log overwrites that version, the read
//! fails; it never returns other bytes. A file opened for writing is a put: nobody finds the object
//! before [`CachedFile::close`].
//!
//! Cost: a read passes on pieces of up to 64 KiB and asks for the next 256 KiB ahead. A seek within
//! the current piece is free; any other seek costs a read when the next byte is asked for.

use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};

use bytes::{Buf, Bytes};

use super::read::wait;
use super::{Cache, Hit, Put, Reader, Writer};
use crate::error::PutError;
use crate::object::{PAGE, Version};

/// What a file is opened for.
#[derive(Clone, Debug)]
pub enum OpenFile {
    /// To read an object that is stored.
    Read,
    /// To put an object, with what this says of it.
    Write(Put),
}

/// An object opened as a file, see [`Cache::open_file`].
pub struct CachedFile(Face);

enum Face {
    Reading(Reading),
    Writing(Writing),
}

struct Reading {
    hit: Hit,
    reader: Reader,
    /// What the reader gave last and nobody has taken yet; ends where the reader is.
    piece: Bytes,
}

struct Writing {
    cache: Cache,
    writer: Writer,
}

impl Cache {
    /// Opens an object as a file. Blocks.
    ///
    /// # Errors
    /// To read: [`io::ErrorKind::NotFound`] on a miss. To write: a [`PutError`], as the error's
    /// inner one.
    pub fn open_file(&self, name: &[u8], purpose: OpenFile) -> io::Result<CachedFile> {
        let face = match purpose {
            OpenFile::Read => Face::Reading(Reading::open(self, name)?),
            OpenFile::Write(put) => Face::Writing(Writing::open(self, name, &put)?),
        };
        Ok(CachedFile(face))
    }
}

impl CachedFile {
    /// The object that is read; `None` of a file that is written.
    pub fn hit(&self) -> Option<&Hit> {
        match &self.0 {
            Face::Reading(reading) => Some(&reading.hit),
            Face::Writing(_) => None,
        }
    }

    /// Ends the use of the file. What was written is found from now on; a file that is dropped
    /// without this was never written. Returns the version that was read or written.
    ///
    /// # Errors
    /// A [`PutError`], as the error's inner one: the object is not stored then.
    pub fn close(self) -> io::Result<Version> {
        match self.0 {
            Face::Reading(reading) => Ok(reading.hit.version()),
            Face::Writing(writing) => writing.writer.commit().map_err(io_error),
        }
    }

    fn reading(&mut self) -> io::Result<&mut Reading> {
        match &mut self.0 {
            Face::Reading(reading) => Ok(reading),
            Face::Writing(_) => Err(unsupported("the file is open for writing")),
        }
    }
}

impl Reading {
    fn open(cache: &Cache, name: &[u8]) -> io::Result<Self> {
        let hit = cache.get(name).wait().ok_or(io::ErrorKind::NotFound)?;
        let (reader, piece) = (hit.reader(0..u64::MAX), Bytes::new());
        Ok(Self { hit, reader, piece })
    }

    fn position(&self) -> u64 {
        self.reader.offset() - self.piece.len() as u64
    }

    fn fill(&mut self) -> io::Result<&[u8]> {
        if self.piece.is_empty()
            && let Some(piece) = wait(|context| self.reader.poll_next(context))
        {
            self.piece = piece.map_err(io::Error::other)?;
        }
        Ok(&self.piece)
    }

    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position().checked_add_signed(by),
            SeekFrom::End(by) => self
                .hit
                .content_len()
                .ok_or_else(|| unsupported("the length is not known yet"))?
                .checked_add_signed(by),
        };
        let target = target.ok_or(io::ErrorKind::InvalidInput)?;
        let ahead = target.checked_sub(self.position());
        match ahead.and_then(|ahead| usize::try_from(ahead).ok()) {
            Some(ahead) if ahead <= self.piece.len() => self.piece.advance(ahead),
            _ => {
                self.piece = Bytes::new();
                self.reader = self.hit.reader(target..u64::MAX);
            }
        }
        Ok(target)
    }
}

impl Writing {
    fn open(cache: &Cache, name: &[u8], put: &Put) -> io::Result<Self> {
        let writer = with_room(cache, || cache.intend(name)?.writer(put.clone()))?;
        let cache = cache.clone();
        Ok(Self { cache, writer })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Not all at once: what a large buffer needs may be more than the cache has in all.
        let now = &bytes[..bytes.len().min(PAGE)];
        with_room(&self.cache, || self.writer.write(now))?;
        if !self.writer.is_stored() {
            return Err(io_error(PutError::OutOfService));
        }
        Ok(now.len())
    }
}

/// Repeats what finds no memory after pending writes have gone to disk, which is waited for.
fn with_room<T>(cache: &Cache, mut attempt: impl FnMut() -> Result<T, PutError>) -> io::Result<T> {
    for _ in 0..FLUSHES_MAX {
        match attempt() {
            Err(PutError::Full) if cache.flush().wait() => {}
            outcome => return outcome.map_err(io_error),
        }
    }
    attempt().map_err(io_error)
}

/// So often a write waits for the disk to make room: others may take what it made. When it is still
/// not enough, memory is held by something that no flush frees.
const FLUSHES_MAX: usize = 8;

fn io_error(error: PutError) -> io::Error {
    let kind = match error {
        PutError::Name { .. } | PutError::Metadata { .. } | PutError::Length { .. } => {
            io::ErrorKind::InvalidInput
        }
        PutError::Full => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

fn unsupported(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Content that has gone is an error with a [`crate::ReadError`] within.
impl Read for CachedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let reading = self.reading()?;
        if buffer.is_empty() {
            return Ok(0);
        }
        let length = reading.fill()?.len().min(buffer.len());
        reading.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// Pieces as they lie in memory, not copied.
impl BufRead for CachedFile {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reading()?.fill()
    }

    fn consume(&mut self, length: usize) {
        if let Face::Reading(reading) = &mut self.0 {
            reading.piece.advance(length.min(reading.piece.len()));
        }
    }
}

/// Takes up to 64 KiB at a time. Where there is no memory for pending writes, it waits until those
/// there are have gone to disk; [`io::ErrorKind::OutOfMemory`] when that makes no room.
impl Write for CachedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Face::Writing(writing) => writing.write(bytes),
            Face::Reading(_) => Err(unsupported("the file is open for reading")),
        }
    }

    /// Does nothing: an object that is not complete is not made durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Anywhere in what is read, beyond its end too. What is written comes in order: there a seek may
/// only ask where it is.
impl Seek for CachedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            Face::Reading(reading) => reading.seek(to),
            Face::Writing(writing) => {
                let written = writing.writer.written();
                match to {
                    SeekFrom::Current(0) | SeekFrom::End(0) => Ok(written),
                    SeekFrom::Start(offset) if offset == written => Ok(written),
                    _ => Err(unsupported("an object is written in order")),
                }
            }
        }
    }
}
