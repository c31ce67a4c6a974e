//! The layouts of WebCoSM (Markatos and others, "Web-Conscious Storage Management for Web
//! Proxies"): how a proxy maps the objects that it stores to the files of a file system.
//!
//! - `object_files`: a file for each object, in one directory, in Squid's 16 × 256 directories, or
//!   in a directory for each server.
//! - `buddy`: a file for each size; objects above a threshold have files of their own.
//! - `stream`: one file that is written like a log (`stream_file`), and `packetizer`: the same in
//!   whole pages.
//! - `lazy_reads`: reads wait until there are ten, and are done in the order of their places.
//! - `locality`: objects wait in a buffer for their server, so that they come to lie side by side.
//! - `watermarks`: which objects the disk keeps, whatever the layout. `replay` has a layout serve
//!   requests; `requests` makes them.
//! - `modelled_disk`: a disk that is as slow as a model, for the file system under them.
//!
//! Used by `cargo campaign layouts`, on a file system whose disk is modelled, and by tests in a
//! temporary directory. Invariant: a layout returns what was put. Like the programs of the paper, a
//! layout keeps in memory where each object lies, and forgets everything when it is dropped.

mod buddy;
mod distances;
mod lazy_reads;
mod locality;
pub mod modelled_disk;
mod object_files;
mod packetizer;
mod replay;
mod requests;
mod space;
mod stream;
mod stream_file;
#[cfg(test)]
mod tests;
mod watermarks;

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use buddy::Buddy;
pub use distances::Distances;
use lazy_reads::LazyReads;
use locality::Locality;
use object_files::ObjectFiles;
use packetizer::Packetizer;
pub use replay::{Counts, Marks, Replay, ReplaySettings, Surroundings};
pub use requests::{Numbering, Request, Shape, Source};
use stream::Stream;

/// An object that is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its number, which stands for its URL.
    pub number: u64,
    /// The number of its origin server.
    pub server: u32,
}

/// Takes the content of an object that was read.
pub type Found<'a> = &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>;

/// How objects lie in files. See the module's head.
///
/// `found` is called once for each `get`: at once, or in a later call of any method that takes it
/// if the layout collects reads.
pub trait Layout {
    /// Stores an object that is not stored now.
    fn put(&mut self, object: Object, content: &[u8]) -> io::Result<()>;

    /// Reads a stored object. `now` is the time by the clock of the disk.
    fn get(&mut self, number: u64, now: Duration, found: Found<'_>) -> io::Result<()>;

    /// Removes a stored object.
    fn remove(&mut self, number: u64, found: Found<'_>) -> io::Result<()>;

    /// Does the reads that have waited long enough at `now`.
    fn due(&mut self, now: Duration, found: Found<'_>) -> io::Result<()>;

    /// Does the reads that wait, and writes what waits in buffers.
    fn finish(&mut self, found: Found<'_>) -> io::Result<()>;

    /// Mean length of a piece of free space in the one file of a stream layout; `None` for others.
    fn mean_free_bytes(&self) -> Option<u64>;

    /// First and last slot of a stored object in the one file of a stream layout; `None` for
    /// others, and while the object waits in a buffer.
    fn slots_of(&self, number: u64) -> Option<(u64, u64)>;
}

/// Which layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file for each object, all in one directory.
    Simple,
    /// A file for each object, in 16 × 256 directories in turn.
    Squid,
    /// A file for each object, in a directory for each server.
    MultipleDirs,
    /// A file for each size.
    Buddy,
    /// One file, written like a log.
    Stream,
    /// The same, written in whole pages.
    StreamPacketizer,
    /// The same, with reads in batches.
    LazyReads,
    /// `StreamPacketizer` behind buffers for each server.
    StreamLoc,
    /// `LazyReads` behind buffers for each server.
    LazyReadsLoc,
}

impl Kind {
    /// All, in the order of the paper's Table 2.
    pub const ALL: [Self; 9] = [
        Self::Simple,
        Self::Squid,
        Self::MultipleDirs,
        Self::Buddy,
        Self::Stream,
        Self::StreamPacketizer,
        Self::LazyReads,
        Self::StreamLoc,
        Self::LazyReadsLoc,
    ];

    /// Its name, as the paper spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Simple => "SIMPLE",
            Self::Squid => "SQUID",
            Self::MultipleDirs => "MULTIPLE-DIRS",
            Self::Buddy => "BUDDY",
            Self::Stream => "STREAM",
            Self::StreamPacketizer => "STREAM-PACKETIZER",
            Self::LazyReads => "LAZY-READS",
            Self::StreamLoc => "STREAM-LOC",
            Self::LazyReadsLoc => "LAZY-READS-LOC",
        }
    }

    /// Requests per second of the paper's Table 2.
    pub fn published(self) -> u32 {
        match self {
            Self::Simple => 18,
            Self::Squid => 27,
            Self::MultipleDirs => 31,
            Self::Buddy => 133,
            Self::Stream => 295,
            Self::StreamPacketizer => 358,
            Self::LazyReads => 396,
            Self::StreamLoc => 460,
            Self::LazyReadsLoc => 495,
        }
    }

    /// An empty layout in the empty directory `root`.
    pub fn open(self, root: &Path, settings: &Settings) -> io::Result<Box<dyn Layout>> {
        Ok(match self {
            Self::Simple => Box::new(ObjectFiles::simple(root, settings)?),
            Self::Squid => Box::new(ObjectFiles::squid(root, settings)?),
            Self::MultipleDirs => Box::new(ObjectFiles::multiple_dirs(root, settings)),
            Self::Buddy => Box::new(Buddy::new(root, settings)?),
            Self::Stream => Box::new(Stream::new(root, settings)?),
            Self::StreamPacketizer => Box::new(Packetizer::new(root, settings)?),
            Self::LazyReads => Box::new(LazyReads::new(root, settings)?),
            Self::StreamLoc => {
                let stream = Packetizer::new(root, settings)?;
                Box::new(Locality::new(stream, settings))
            }
            Self::LazyReadsLoc => {
                let stream = LazyReads::new(root, settings)?;
                Box::new(Locality::new(stream, settings))
            }
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    /// Reads the name of a layout, in any case.
    fn from_str(text: &str) -> Result<Self, String> {
        let known = |kind: &Self| kind.name().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(known).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no layout `{text}`; there are {names}")
        })
    }
}

/// Sizes that layouts have. The default ones are those of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Length of the one file of the stream layouts.
    pub stream_bytes: u64,
    /// `BUDDY`: larger objects have files of their own.
    pub threshold_bytes: u64,
    /// Layouts with a file for each object have ext4 do what UFS did (module `object_files`).
    pub like_ufs: bool,
    /// `STREAM-PACKETIZER` and those that follow it: bytes of a page.
    pub page_bytes: usize,
    /// `LAZY-READS`: reads that wait for each other.
    pub batch: usize,
    /// `LAZY-READS`: how long a read waits at most.
    pub wait_max: Duration,
    /// `…-LOC`: number of buffers.
    pub buffers: usize,
    /// `…-LOC`: bytes of a buffer.
    pub buffer_bytes: usize,
}

impl Settings {
    /// Those of the paper, for a stream of so many bytes. A page of its machine had 8 KiB; the
    /// paper says of the time that a read may wait that it is below a second.
    pub fn new(stream_bytes: u64) -> Self {
        Self {
            stream_bytes,
            threshold_bytes: 128 << 10,
            like_ufs: false,
            page_bytes: 8 << 10,
            batch: 10,
            wait_max: Duration::from_millis(500),
            buffers: 128,
            buffer_bytes: 64 << 10,
        }
    }
}

/// Unit of space in the files of `BUDDY` and `STREAM`.
const SLOT: usize = 512;
const SLOT_BYTES: u64 = SLOT as u64;

/// Slots that so many bytes take; an empty object takes one.
fn slots(bytes: u64) -> u64 {
    bytes.div_ceil(SLOT_BYTES).max(1)
}

/// The error for an object that is not stored. A caller that asks for one has lost count.
fn missing(number: u64) -> io::Error {
    let what = format!("object {number} is not stored");
    io::Error::new(io::ErrorKind::NotFound, what)
}

/// The length of a content, which lies in memory.
fn length(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(io::Error::other)
}
