//! Any TCP stream over the link: literals, and references to content that was sent before.
//!
//! For traffic without whole objects: uploads, backups, databases, file servers. Each side of a
//! stream has a [`Stream`]; all streams on a link share a table of the content that the other side
//! has ([`Known`]) and a store on each side.
//!
//! - The sender cuts content at positions that depend on the content (`cut`), into 2 KiB chunks. A
//!   known chunk becomes a reference, another chunk a literal, compressed with zstd.
//! - Consecutive literals make an **extent** of at most 64 KiB. Both sides compute the [`Name`],
//!   and both store it as an engine object, so both sides may refer to it later. A reference names
//!   an extent and a range in it, so a run of 28 chunks costs 20 bytes on the link and a single
//!   read.
//! - If the receiver lacks a referenced extent, it requests that content and gets it as a literal.
//!   The sender holds all unacknowledged content, so it can always answer.
//!
//! The policy `log` suits extents, and with groups a 1 MiB run is a single read. An extent index is
//! a thirtieth of a chunk index: 1 TB has 17 million objects.
//!
//! Names: SipHash-2-4 with 128 bits, under a key that only this pair of stores has. Without the key
//! nobody can make two extents with the same name. It takes 1 ms per MB on every machine;
//! HMAC-SHA-256 takes 5 ms without SHA instructions. Names need not be secure against the other
//! side, because each block also has a SHA-256 check of the content.
//!
//! There is only one level of boundaries: an extent is closed when it is full. Nested 16 and 128
//! KiB levels were left out: a reference to a range already covers a long run, and extents with
//! coarse boundaries are smaller, so that a run of them took 2 % more on the link.
//!
//! Invariant: content is given only after the block's check was compared. Both windows are bounded:
//! a sender never holds more unacknowledged content than the window, and a receiver refuses more. A
//! side keeps reading from the link while the near end takes nothing ([`Stream::set_near`]), so two
//! full sides cannot wait for each other.
//! Cost: 2 to 5 ms per MB for the sender, 2 to 4 for the receiver; memory on a busy side is at most
//! [`Windows::memory_bytes`], and none for a stream that has sent nothing.

mod cut;
mod frame;
mod known;
mod receive;
mod recent;
mod send;

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use crate::digest::Running;
use crate::error::Reason;
use crate::limits::BLOCK_BYTES_MAX;
pub use frame::EXTENT_BYTES_MAX;
use frame::Frame;
pub use known::Known;
use receive::Receiver;
use send::Sender;

/// Maximum unacknowledged content in each direction, bytes.
///
/// Each side sends the receive window to the other side; a sender uses no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Content that this side holds until it is acknowledged.
    pub send: u64,
    /// Content that this side holds until the near end has taken it.
    pub receive: u64,
}

impl Windows {
    /// The smallest window in either direction: a block must fit.
    pub const BYTES_MIN: u64 = BLOCK_BYTES_MAX as u64;
    /// The largest window: enough for 10 Mbit/s over 600 ms if three quarters are saved.
    pub const BYTES_MAX: u64 = 3 << 20;

    /// Windows of `bytes` in both directions, within the limits above.
    pub fn both(bytes: u64) -> Self {
        let bytes = bytes.clamp(Self::BYTES_MIN, Self::BYTES_MAX);
        Self {
            send: bytes,
            receive: bytes,
        }
    }

    /// Maximum memory for a [`Stream`] with these windows, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let zstd = match zstd_window_log(self.send) {
            ZSTD_WINDOW_LOG => ZSTD_BYTES,
            _ => ZSTD_BYTES_SMALL,
        };
        self.send + self.receive + zstd + BESIDE_BYTES
    }
}

/// zstd's window for literals from a sender with this window, as a power of two.
fn zstd_window_log(send: u64) -> u32 {
    if send >= 1 << 20 {
        ZSTD_WINDOW_LOG
    } else {
        ZSTD_WINDOW_LOG_SMALL
    }
}

/// Half a mebibyte, because there may be many streams.
const ZSTD_WINDOW_LOG: u32 = 19;
/// For boxes with little memory.
const ZSTD_WINDOW_LOG_SMALL: u32 = 17;
/// A compressor's context with these windows, bytes.
const ZSTD_BYTES: u64 = 1600 << 10;
const ZSTD_BYTES_SMALL: u64 = 800 << 10;
/// A decompressor's context, the block being made and the block being read, input, answers, and
/// extents, bytes.
const BESIDE_BYTES: u64 = 3 << 20;

/// Maximum number of blocks in a sender's window: each block takes memory besides the content.
/// Small blocks are made if the near end pauses after every few bytes.
const BLOCKS_MAX: usize = 1024;
/// Blocks that a receiver accepts: a sender may close several blocks at once.
const BLOCKS_ACCEPTED: usize = BLOCKS_MAX + 512;
/// A receiver acknowledges the content that it has passed on after this many bytes or blocks. A
/// sender may rely on this.
const ACKNOWLEDGED_BYTES: u64 = BLOCK_BYTES_MAX as u64 / 2;
const BLOCKS_ACKNOWLEDGED: usize = 64;
/// Maximum number of a receiver's unanswered questions: one for each chunk in the largest window,
/// and one for each block.
const QUESTIONS_MAX: usize = 4096;
const _: () = assert!(
    (QUESTIONS_MAX - BLOCKS_MAX) as u64 * cut::CHUNK_BYTES_MIN as u64 >= Windows::BYTES_MAX
);

/// If this many frame bytes wait in the output, no more questions are answered.
pub const OUTPUT_BYTES: usize = 64 << 10;

/// The key of a pair of stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// The name of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name(pub [u8; 16]);

impl Key {
    /// The name of the engine object for the extent `name`. This name also depends on the key, so
    /// that a child cannot refer to an extent from another child.
    pub fn object(&self, name: Name) -> [u8; 26] {
        let mut object = *b"\0c........................";
        object[2..10].copy_from_slice(&self.hash(b"pair").to_le_bytes()[..8]);
        object[10..].copy_from_slice(&name.0);
        object
    }

    fn hasher(&self) -> SipHasher24 {
        SipHasher24::new_with_key(&self.0)
    }

    fn hash(&self, content: &[u8]) -> u128 {
        let mut hasher = self.hasher();
        hasher.write(content);
        hasher.finish128().as_u128()
    }

    /// The name of an extent.
    pub fn name(&self, extent: &[u8]) -> Name {
        Name(self.hash(extent).to_le_bytes())
    }
}

/// The check of a block, over the offset and content.
fn check(offset: u64, content: &[u8]) -> [u8; 8] {
    let mut running = Running::default();
    running.update(&offset.to_le_bytes());
    running.update(content);
    let digest = running.digest().0;
    std::array::from_fn(|at| digest[at])
}

/// A step of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Nothing without more bytes from the link.
    More,
    /// Look up this extent in the store, and give it ([`Stream::give`]).
    Wants(Name),
    /// Store this extent, which was sent or received.
    Store(Name, &'a [u8]),
    /// The next bytes for the connection's near end. The next call counts them as passed on.
    Content(&'a [u8]),
    /// The far end has sent all content: half-close.
    Finished,
}

/// State of the near end of a connection: it takes content, or it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Near {
    /// [`Stream::next`] may give content.
    #[default]
    Takes,
    /// The buffers are full: content stays in the window.
    Full,
}

/// Content in a direction by the way in which it was sent, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// As literals.
    pub literal: u64,
    /// As references.
    pub referred: u64,
    /// As answers to questions; these bytes also count as references.
    pub answered: u64,
}

/// One side of a TCP stream over the link.
pub struct Stream {
    sender: Sender,
    receiver: Receiver,
    input: Vec<u8>,
    used: usize,
    broken: Option<Reason>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Stream {
    /// Creates one side of a stream between two stores that share `key`. `windows.send` must not
    /// exceed the other side's receive window.
    pub fn new(key: Key, windows: Windows) -> Self {
        Self {
            sender: Sender::new(key, windows.send),
            receiver: Receiver::new(key, windows.receive),
            input: Vec::new(),
            used: 0,
            broken: None,
        }
    }

    /// Sets the near end's state. While it is full, [`Stream::next`] gives no content, and
    /// continues with everything else.
    pub fn set_near(&mut self, near: Near) {
        self.receiver.set_near(near);
    }

    /// Returns true if both directions are finished and nothing is left to send or answer.
    pub fn is_done(&self) -> bool {
        self.sender.is_done() && self.receiver.is_done()
    }

    /// Returns true if content was taken that is not in a block yet: [`Stream::flush`] would send
    /// it.
    pub fn has_unsent(&self) -> bool {
        self.sender.has_unsent()
    }

    /// Returns true if an acknowledgement will certainly arrive. This opens a full window again; if
    /// it returns false, the taken content must be flushed.
    pub fn awaits_acknowledgement(&self) -> bool {
        self.sender.awaits_acknowledgement()
    }

    /// Returns true if content has arrived that was not given yet.
    pub fn has_waiting(&self) -> bool {
        self.receiver.has_waiting()
    }

    /// Content received so far, and content sent so far.
    pub fn carried(&self) -> [Carried; 2] {
        [self.receiver.carried(), self.sender.carried()]
    }

    /// Takes content from the near end and appends frames to `out`. Returns how many bytes it took:
    /// less than all if the window is full.
    ///
    /// # Errors
    /// zstd has no memory, or [`Stream::finish`] was called before.
    pub fn push(
        &mut self,
        content: &[u8],
        known: &Known,
        out: &mut Vec<u8>,
    ) -> Result<usize, Reason> {
        self.sender.push(content, known, out)
    }

    /// Sends all taken content. Call this when the near end pauses: a chunk that is cut here is not
    /// found again as a whole chunk.
    ///
    /// # Errors
    /// zstd has no memory.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Reason> {
        self.sender.flush(out)
    }

    /// Notes that the near end has sent all content: half-close. The other direction stays open.
    ///
    /// # Errors
    /// zstd has no memory.
    pub fn finish(&mut self, known: &Known, out: &mut Vec<u8>) -> Result<(), Reason> {
        self.sender.finish(known, out)
    }

    /// Bytes that [`Stream::push`] would take now.
    pub fn room(&self) -> usize {
        self.sender.room()
    }

    /// Adds bytes from the link.
    pub fn push_link(&mut self, bytes: &[u8]) {
        if self.broken.is_none() {
            self.input.drain(..self.used);
            self.used = 0;
            self.input.extend_from_slice(bytes);
        }
    }

    /// Gives the extent that [`Event::Wants`] named; `None` if the extent is missing.
    pub fn give(&mut self, extent: Option<&[u8]>) {
        self.receiver.give(extent);
    }

    /// The next step. Appends frames for the other side to `out`; while `out` has [`OUTPUT_BYTES`],
    /// questions wait for an answer until the next call.
    ///
    /// # Errors
    /// A frame is damaged, out of order or beyond a limit: both connections must be reset.
    pub fn next(&mut self, known: &Known, out: &mut Vec<u8>) -> Result<Event<'_>, Reason> {
        if let Some(reason) = self.broken {
            return Err(reason);
        }
        match self.advance(known, out) {
            Ok(Step::StoreSent(name)) => Ok(Event::Store(name, self.sender.stored())),
            Ok(Step::Received(step)) => Ok(self.receiver.event(step)),
            Ok(Step::Nothing) => Ok(Event::More),
            Err(reason) => {
                self.broken = Some(reason);
                self.input = Vec::new();
                self.used = 0;
                Err(reason)
            }
        }
    }

    /// Memory that this side holds now, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.sender.memory_bytes() + self.receiver.memory_bytes() + self.input.capacity()
    }

    fn advance(&mut self, known: &Known, out: &mut Vec<u8>) -> Result<Step, Reason> {
        self.sender.answer_questions(known, out)?;
        loop {
            if let Some(name) = self.sender.next_to_store() {
                return Ok(Step::StoreSent(name));
            }
            if let Some(step) = self.receiver.advance(known, out)? {
                return Ok(Step::Received(step));
            }
            let input = &self.input[self.used..];
            let Some((frame, used)) = frame::parse(input)? else {
                return Ok(Step::Nothing);
            };
            match frame {
                Frame::Ask { offset, length } => {
                    self.sender.note_question(offset, length)?;
                    self.sender.answer_questions(known, out)?;
                }
                Frame::Ack(offset) => self.sender.acknowledge(offset)?,
                frame => self.receiver.take(frame, out)?,
            }
            self.used += used;
        }
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Nothing,
    /// A sent extent must be stored.
    StoreSent(Name),
    Received(receive::Next),
}
