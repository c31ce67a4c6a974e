//! Any TCP stream over the link: literals, and references to content that went over it before.
//!
//! For traffic without whole objects: uploads, backups, databases, file servers. Each end of a
//! stream has a [`Stream`]; all streams of a link share a table of what the other end has
//! ([`Known`]) and a store at each end.
//!
//! - The sender cuts content at places that depend on the content (`cut`): chunks of 2 KiB. A
//!   chunk that is known becomes a reference, another one a literal, compressed with zstd.
//! - Literals that follow each other make an **extent** of 64 KiB at the most. Both ends compute
//!   its [`Name`], and both store it as one object of the engine: so either end may refer to it
//!   later. A reference names an extent and a range in it, so a run of 28 chunks costs 20 bytes on
//!   the link and one read.
//! - If the receiver lacks an extent that is referred to, it asks for that content and gets it as a
//!   literal. The sender holds what is not acknowledged, so it can always answer.
//!
//! The policy `log` suits extents, and with groups a run of 1 MiB is one read. An index of extents
//! is a thirtieth of an index of chunks: 1 TB are 17 million objects.
//!
//! Names: SipHash-2-4 with 128 bits, under a key that only this pair of stores has. Without the key
//! nobody can make two extents of one name. It takes 1 ms a MB on every machine, HMAC-SHA-256 five
//! on those without SHA instructions. Names need not be proof against the other end: each block
//! has a check of its content by SHA-256 as well.
//!
//! Boundaries have one level: an extent ends where it is full. Nested levels of 16 and 128 KiB were
//! left out: a reference to a range already names a long run, and extents that end at a coarse
//! boundary are smaller, so that a run of them took 2 % more on the link.
//!
//! Invariant: content is given only after the check of its block was compared. Both windows are
//! bounded: a sender never holds more than its window that is not acknowledged, a receiver refuses
//! more. An end keeps reading from the link while its near end takes nothing
//! ([`Stream::set_near`]), so two full ends cannot wait for each other.
//! Cost: 2 to 5 ms a MB for the sender, 2 to 4 for the receiver; memory of a busy end is
//! [`Windows::memory_bytes`] at the most, of a stream that has sent nothing, none.

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

/// How much content may be under way in each direction that is not acknowledged, bytes.
///
/// Each end sends the other the window in which it receives; a sender uses no more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Content that this end holds until it is acknowledged.
    pub send: u64,
    /// Content that this end holds until its near end has taken it.
    pub receive: u64,
}

impl Windows {
    /// The smallest window in either direction: a block has to fit.
    pub const BYTES_MIN: u64 = BLOCK_BYTES_MAX as u64;
    /// The largest: enough for 10 Mbit/s over 600 ms when three quarters are saved.
    pub const BYTES_MAX: u64 = 3 << 20;

    /// Windows of `bytes` in both directions, within the limits above.
    pub fn both(bytes: u64) -> Self {
        let bytes = bytes.clamp(Self::BYTES_MIN, Self::BYTES_MAX);
        Self {
            send: bytes,
            receive: bytes,
        }
    }

    /// Memory that a [`Stream`] with these windows holds at the most, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let zstd = match zstd_window_log(self.send) {
            ZSTD_WINDOW_LOG => ZSTD_BYTES,
            _ => ZSTD_BYTES_SMALL,
        };
        self.send + self.receive + zstd + BESIDE_BYTES
    }
}

/// zstd's window for literals of a sender with this window, as a power of two.
fn zstd_window_log(send: u64) -> u32 {
    if send >= 1 << 20 {
        ZSTD_WINDOW_LOG
    } else {
        ZSTD_WINDOW_LOG_SMALL
    }
}

/// Half a mebibyte, because there may be many streams.
const ZSTD_WINDOW_LOG: u32 = 19;
/// Where memory is short.
const ZSTD_WINDOW_LOG_SMALL: u32 = 17;
/// A compressor's context with those windows, bytes.
const ZSTD_BYTES: u64 = 1600 << 10;
const ZSTD_BYTES_SMALL: u64 = 800 << 10;
/// A decompressor's context, the block that is made and the one that is read, input, answers, and
/// extents, bytes.
const BESIDE_BYTES: u64 = 3 << 20;

/// Blocks that a sender has in the window at the most: each takes memory beside its content. Small
/// ones are those of a near end that pauses after every few bytes.
const BLOCKS_MAX: usize = 1024;
/// Blocks that a receiver accepts: a sender may end several at once.
const BLOCKS_ACCEPTED: usize = BLOCKS_MAX + 512;
/// A receiver acknowledges what it has passed on once it is so much, bytes or blocks. A sender may
/// rely on it.
const ACKNOWLEDGED_BYTES: u64 = BLOCK_BYTES_MAX as u64 / 2;
const BLOCKS_ACKNOWLEDGED: usize = 64;
/// Questions of a receiver that wait for an answer at the most: one for each chunk of the largest
/// window, and one for each block.
const QUESTIONS_MAX: usize = 4096;
const _: () = assert!(
    (QUESTIONS_MAX - BLOCKS_MAX) as u64 * cut::CHUNK_BYTES_MIN as u64 >= Windows::BYTES_MAX
);

/// Frames that wait in the output of an end beyond which no question is answered, bytes.
pub const OUTPUT_BYTES: usize = 64 << 10;

/// The key of a pair of stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// Name of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name(pub [u8; 16]);

impl Key {
    /// The name under which the engine has the extent `name`. It depends on the key as well, so
    /// that a child can refer to no extent that came from another child.
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

/// The check of a block: its place and its content.
fn check(offset: u64, content: &[u8]) -> [u8; 8] {
    let mut running = Running::default();
    running.update(&offset.to_le_bytes());
    running.update(content);
    let digest = running.digest().0;
    std::array::from_fn(|at| digest[at])
}

/// What the end of a stream learns.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Nothing without more bytes from the link.
    More,
    /// This extent is to be looked up in the store, and given ([`Stream::give`]).
    Wants(Name),
    /// This extent is to be stored: it was sent or received.
    Store(Name, &'a [u8]),
    /// The next bytes for the near end of the connection. They count as passed on with the next
    /// call.
    Content(&'a [u8]),
    /// The far end has sent all: half-close.
    Finished,
}

/// Whether the near end of a connection takes content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Near {
    /// [`Stream::next`] may give content.
    #[default]
    Takes,
    /// Its buffers are full: content stays in the window.
    Full,
}

/// Content of one direction by the way it went over the link, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// As literals.
    pub literal: u64,
    /// As references.
    pub referred: u64,
    /// As answers to questions, which count as references too.
    pub answered: u64,
}

/// One end of a TCP stream over the link.
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
    /// One end of a stream between two stores that share `key`. `windows.send` is no more than what
    /// the other end is ready to receive.
    pub fn new(key: Key, windows: Windows) -> Self {
        Self {
            sender: Sender::new(key, windows.send),
            receiver: Receiver::new(key, windows.receive),
            input: Vec::new(),
            used: 0,
            broken: None,
        }
    }

    /// Says whether the near end takes content. While it is full, [`Stream::next`] gives none, and
    /// continues with everything else.
    pub fn set_near(&mut self, near: Near) {
        self.receiver.set_near(near);
    }

    /// Whether both directions have ended and nothing more is to be sent or answered.
    pub fn is_done(&self) -> bool {
        self.sender.is_done() && self.receiver.is_done()
    }

    /// Whether content was taken that no block has yet: [`Stream::flush`] would send it.
    pub fn has_unsent(&self) -> bool {
        self.sender.has_unsent()
    }

    /// Whether an acknowledgement is sure to come. Without room it opens the window again; if none
    /// is sure, what was taken has to be flushed.
    pub fn awaits_acknowledgement(&self) -> bool {
        self.sender.awaits_acknowledgement()
    }

    /// Whether content has arrived that was not given yet.
    pub fn has_waiting(&self) -> bool {
        self.receiver.has_waiting()
    }

    /// What was received so far, and what was sent.
    pub fn carried(&self) -> [Carried; 2] {
        [self.receiver.carried(), self.sender.carried()]
    }

    /// Takes content from the near end and appends frames to `out`. Returns how much it took: less
    /// than all when the window is full.
    ///
    /// # Errors
    /// When zstd has no memory, and after [`Stream::finish`].
    pub fn push(
        &mut self,
        content: &[u8],
        known: &Known,
        out: &mut Vec<u8>,
    ) -> Result<usize, Reason> {
        self.sender.push(content, known, out)
    }

    /// Sends what was taken. To be called when the near end pauses: what is cut here is not found
    /// again as a whole chunk.
    ///
    /// # Errors
    /// When zstd has no memory.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Reason> {
        self.sender.flush(out)
    }

    /// The near end has sent all: half-close. The other direction stays open.
    ///
    /// # Errors
    /// When zstd has no memory.
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

    /// Gives what [`Event::Wants`] asked for, or says that it is not there.
    pub fn give(&mut self, extent: Option<&[u8]>) {
        self.receiver.give(extent);
    }

    /// The next step. Appends frames for the other end to `out`; questions wait for an answer
    /// while it has [`OUTPUT_BYTES`], until the next call.
    ///
    /// # Errors
    /// When a frame is damaged, out of order or beyond a limit: both connections have to be reset.
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

    /// Memory that this end holds now, bytes.
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

/// What is to be said next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Nothing,
    /// An extent that was sent is to be stored.
    StoreSent(Name),
    Received(receive::Next),
}
