//! The receiver for one direction: blocks in, content out; requests missing content.
//!
//! Blocks are read as they arrive, even behind a block that waits for an answer, so the questions
//! for a whole window take a single round trip. Content is given in order.
//!
//! Invariant: content is given only after the check was compared. If a block with references does
//! not match, the whole block is requested, but only once; after that the stream is broken. Content
//! is stored only under the name that is computed from it.
//! Cost: 2 to 4 ms per MB; memory is the window, zstd's context (1 MiB) and ten extents.

use std::collections::VecDeque;

use super::cut::{CHUNK_BYTES_MIN, Cutter};
use super::frame::{Block, EXTENT_BYTES_MAX, Extent, Frame, Step};
use super::known::{Chunk, Known};
use super::recent::Recent;
use super::{
    ACKNOWLEDGED_BYTES, BLOCKS_ACCEPTED, BLOCKS_ACKNOWLEDGED, Carried, Key, Name, Near,
    QUESTIONS_MAX, ZSTD_WINDOW_LOG, check,
};
use crate::error::Reason;
use crate::zstd::{Decompressor, Last};

pub(super) struct Receiver {
    key: Key,
    window: u64,
    near: Near,
    decompressor: Option<Box<Decompressor>>,
    reading: Option<Reading>,
    /// Blocks that were read, in order.
    queue: VecDeque<Pending>,
    recent: Recent,
    /// Content of the most recently found extents, with the most recent at the end.
    extents: Vec<(Name, Vec<u8>)>,
    /// Literals since the last extent.
    extent: Vec<u8>,
    /// An extent that is being stored.
    stored: Vec<u8>,
    /// Content that is being given.
    given: Vec<u8>,
    received: u64,
    passed_on: u64,
    acknowledged: u64,
    /// Blocks that were passed on but not acknowledged.
    blocks_passed_on: usize,
    /// Unanswered questions.
    questions: usize,
    finish: Option<u64>,
    finished: bool,
    carried: Carried,
}

/// The step from which [`Receiver::event`] makes an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    Wants(Name),
    Store(Name),
    Content,
    Finished,
}

/// A block with steps that are being executed.
struct Reading {
    steps: Vec<u8>,
    at: usize,
    literals: Vec<u8>,
    literals_at: usize,
    length: usize,
    /// The reference with the extent that is being looked up.
    wants: Option<Wanted>,
    block: Pending,
}

struct Wanted {
    name: Name,
    offset: usize,
    length: usize,
}

/// A block, complete or not.
struct Pending {
    offset: u64,
    check: [u8; 8],
    content: Vec<u8>,
    /// Ranges with missing content that was requested.
    holes: Vec<std::ops::Range<usize>>,
    has_references: bool,
    was_asked_for: bool,
}

impl Receiver {
    pub(super) fn new(key: Key, window: u64) -> Self {
        Self {
            key,
            window,
            near: Near::Takes,
            carried: Carried::default(),
            decompressor: None,
            reading: None,
            queue: VecDeque::new(),
            recent: Recent::default(),
            extents: Vec::new(),
            extent: Vec::new(),
            stored: Vec::new(),
            given: Vec::new(),
            received: 0,
            passed_on: 0,
            acknowledged: 0,
            blocks_passed_on: 0,
            questions: 0,
            finish: None,
            finished: false,
        }
    }

    pub(super) fn set_near(&mut self, near: Near) {
        self.near = near;
    }

    /// Returns true if all content was given and acknowledged.
    pub(super) fn is_done(&self) -> bool {
        self.finished && self.acknowledged == self.passed_on
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.reading.is_some() || !self.queue.is_empty()
    }

    pub(super) fn carried(&self) -> Carried {
        self.carried
    }

    /// Takes a frame. Call this when [`Receiver::advance`] has nothing more to do.
    pub(super) fn take(&mut self, frame: Frame<'_>, out: &mut Vec<u8>) -> Result<(), Reason> {
        match frame {
            Frame::Block(block) if self.finish.is_none() => self.begin(block),
            Frame::Answer {
                offset,
                length,
                data,
            } => self.fill(offset, length, data, out),
            Frame::Finish(length) if self.finish.is_none() => {
                if length != self.received {
                    return Err(Reason::Length);
                }
                self.finish = Some(length);
                Ok(())
            }
            Frame::Block(_) => Err(Reason::Order("BLOCK")),
            _ => Err(Reason::Order("FINISH")),
        }
    }

    /// Gives the extent that [`Event::Wants`](super::Event::Wants) named.
    pub(super) fn give(&mut self, extent: Option<&[u8]>) {
        let wants = self.reading.as_ref().and_then(|it| it.wants.as_ref());
        if let (Some(wants), Some(extent)) = (wants, extent) {
            if self.extents.len() == EXTENTS_HELD {
                self.extents.remove(0);
            }
            self.extents.push((wants.name, extent.to_vec()));
        }
    }

    /// Continues until there is a result. Questions and acknowledgements are written to `out`.
    pub(super) fn advance(
        &mut self,
        known: &Known,
        out: &mut Vec<u8>,
    ) -> Result<Option<Next>, Reason> {
        self.given = Vec::new();
        self.acknowledge(out);
        if let Some(next) = self.read(known, out)? {
            return Ok(Some(next));
        }
        if self.near == Near::Full {
            return Ok(None);
        }
        if self
            .queue
            .front()
            .is_some_and(|block| block.holes.is_empty())
            && let Some(block) = self.queue.pop_front()
        {
            self.given = block.content;
            self.passed_on += self.given.len() as u64;
            self.blocks_passed_on += 1;
            return Ok(Some(Next::Content));
        }
        if self.finish == Some(self.passed_on) && !self.finished {
            self.finished = true;
            return Ok(Some(Next::Finished));
        }
        Ok(None)
    }

    pub(super) fn event(&self, next: Next) -> super::Event<'_> {
        match next {
            Next::Wants(name) => super::Event::Wants(name),
            Next::Store(name) => super::Event::Store(name, &self.stored),
            Next::Content => super::Event::Content(&self.given),
            Next::Finished => super::Event::Finished,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let zstd = self
            .decompressor
            .as_ref()
            .map_or(0, |zstd| zstd.memory_bytes());
        let queue: usize = self
            .queue
            .iter()
            .map(|block| block.content.capacity())
            .sum();
        let reading = self.reading.as_ref().map_or(0, |reading| {
            let steps = reading.steps.capacity() + reading.literals.capacity();
            steps + reading.block.content.capacity()
        });
        let last: usize = self.extents.iter().map(|held| held.1.capacity()).sum();
        let extents = self.extent.capacity() + self.stored.capacity() + self.given.capacity();
        zstd + queue + reading + last + extents
    }

    fn begin(&mut self, block: Block<'_>) -> Result<(), Reason> {
        let waiting = self.received + block.length as u64 - self.acknowledged;
        let blocks = self.queue.len() + self.blocks_passed_on;
        if waiting > self.window || blocks >= BLOCKS_ACCEPTED {
            return Err(Reason::Limit("window"));
        }
        // Each step may cost a read or a put, so the limit is the chunk count, and a few more for
        // chunks that were cut.
        if block.steps.len() > STEP_BYTES_MAX * (block.length / CHUNK_BYTES_MIN + 4) {
            return Err(Reason::Limit("steps"));
        }
        let mut literals = Vec::new();
        if !block.data.is_empty() {
            let mut zstd = match self.decompressor.take() {
                Some(zstd) => zstd,
                None => Box::new(decompressor()?),
            };
            let last = zstd.block(block.data, &mut literals)?;
            self.decompressor = Some(zstd).filter(|_| last == Last::No);
            literals.shrink_to_fit();
        }
        self.reading = Some(Reading {
            steps: block.steps.to_vec(),
            at: 0,
            literals,
            literals_at: 0,
            length: block.length,
            wants: None,
            block: Pending {
                offset: self.received,
                check: block.check,
                content: Vec::with_capacity(block.length),
                holes: Vec::new(),
                has_references: false,
                was_asked_for: false,
            },
        });
        self.received += block.length as u64;
        Ok(())
    }

    /// Executes the steps in the block that is being read.
    fn read(&mut self, known: &Known, out: &mut Vec<u8>) -> Result<Option<Next>, Reason> {
        let Some(mut reading) = self.reading.take() else {
            return Ok(None);
        };
        if let Some(wants) = reading.wants.take() {
            self.refer(&mut reading, &wants, out)?;
        }
        while reading.at < reading.steps.len() {
            let (step, rest) = Step::parse(&reading.steps[reading.at..])?;
            reading.at = reading.steps.len() - rest.len();
            let left = reading.length - reading.block.content.len();
            match step {
                Step::Literal(length) => {
                    let literal = reading.literals_at..reading.literals_at + length;
                    let literal = reading.literals.get(literal).filter(|_| length <= left);
                    let literal = literal.ok_or(MALFORMED)?;
                    if self.extent.len() + length > EXTENT_BYTES_MAX {
                        return Err(Reason::Limit("extent"));
                    }
                    self.carried.literal += length as u64;
                    self.extent.extend_from_slice(literal);
                    reading.block.content.extend_from_slice(literal);
                    reading.literals_at += length;
                }
                Step::Reference {
                    length,
                    extent,
                    offset,
                } => {
                    if length > left {
                        return Err(MALFORMED);
                    }
                    reading.block.has_references = true;
                    self.carried.referred += length as u64;
                    let name = match extent {
                        Extent::Name(name) => name,
                        Extent::Recent(place) => self.recent.name(place).ok_or(MALFORMED)?,
                    };
                    self.recent.note(name);
                    let wants = Wanted {
                        name,
                        offset,
                        length,
                    };
                    if let Some(at) = self.extents.iter().position(|held| held.0 == name) {
                        self.extents[at..].rotate_left(1);
                        self.refer(&mut reading, &wants, out)?;
                        continue;
                    }
                    reading.wants = Some(wants);
                    self.reading = Some(reading);
                    return Ok(Some(Next::Wants(name)));
                }
                Step::EndOfExtent => {
                    if self.extent.is_empty() {
                        return Err(MALFORMED);
                    }
                    std::mem::swap(&mut self.stored, &mut self.extent);
                    self.extent.clear();
                    self.reading = Some(reading);
                    let name = self.key.name(&self.stored);
                    // The sender has stored it too, so content in the other direction may refer to
                    // it.
                    known.enter(name, &chunks(self.key, &self.stored));
                    return Ok(Some(Next::Store(name)));
                }
            }
        }
        let is_whole = reading.block.content.len() == reading.length
            && reading.literals_at == reading.literals.len();
        if !is_whole {
            return Err(MALFORMED);
        }
        let mut block = reading.block;
        if block.holes.is_empty() {
            verify(&mut block, out)?;
        }
        // A block may only close an extent. Such a block takes no room in the window, so it is not
        // held.
        if reading.length > 0 {
            self.queue.push_back(block);
        }
        Ok(None)
    }

    /// Adds a part of the last held extent, or a hole.
    fn refer(
        &mut self,
        reading: &mut Reading,
        wants: &Wanted,
        out: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let content = &mut reading.block.content;
        let (offset, length) = (wants.offset, wants.length);
        let extent = self.extents.last().filter(|held| held.0 == wants.name);
        let part = extent.and_then(|(_, extent)| extent.get(offset..offset + length));
        if let Some(part) = part {
            content.extend_from_slice(part);
            return Ok(());
        }
        if self.questions == QUESTIONS_MAX {
            return Err(Reason::Limit("question"));
        }
        self.questions += 1;
        let from = content.len();
        content.resize(from + length, 0);
        reading.block.holes.push(from..from + length);
        Frame::Ask {
            offset: reading.block.offset + from as u64,
            length,
        }
        .write(out);
        Ok(())
    }

    /// Puts an answer into the hole.
    fn fill(
        &mut self,
        offset: u64,
        length: usize,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let order = Reason::Order("ANSWER");
        let at = self.queue.partition_point(|block| block.offset <= offset);
        let block = at.checked_sub(1).and_then(|at| self.queue.get_mut(at));
        let block = block.ok_or(order)?;
        let from = usize::try_from(offset - block.offset).map_err(|_| order)?;
        let hole = block
            .holes
            .iter()
            .position(|hole| hole.start == from && hole.len() == length);
        let hole = block.holes.swap_remove(hole.ok_or(order)?);
        self.questions = self.questions.saturating_sub(1);
        let mut content = Vec::new();
        decompressor()?.block(data, &mut content)?;
        if content.len() != length {
            return Err(Reason::Malformed("ANSWER"));
        }
        block.content[hole].copy_from_slice(&content);
        if block.holes.is_empty() {
            verify(block, out)?;
        }
        self.carried.answered += length as u64;
        Ok(())
    }

    fn acknowledge(&mut self, out: &mut Vec<u8>) {
        let behind = self.passed_on - self.acknowledged;
        let is_far_behind =
            behind >= ACKNOWLEDGED_BYTES || self.blocks_passed_on >= BLOCKS_ACKNOWLEDGED;
        if is_far_behind || (behind > 0 && self.finish == Some(self.passed_on)) {
            self.acknowledged = self.passed_on;
            self.blocks_passed_on = 0;
            Frame::Ack(self.acknowledged).write(out);
        }
    }
}

/// A sender has no larger window for literals, so a larger window is refused.
fn decompressor() -> Result<Decompressor, Reason> {
    Decompressor::new(Vec::new(), ZSTD_WINDOW_LOG).map_err(Reason::Zstd)
}

/// Cuts an extent into chunks. The extent was made from whole chunks, so these are the sender's
/// chunks, except behind a chunk with a start that was cut off by a pause.
fn chunks(key: Key, extent: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut cutter = Cutter::default();
    let mut from = 0;
    while from < extent.len() {
        let (length, _) = cutter.next(&extent[from..]);
        let chunk = &extent[from..from + length];
        let offset = u16::try_from(from).expect("an extent has 64 KiB at the most");
        let hash = key.hash(chunk);
        chunks.push(Chunk { hash, offset });
        from += length;
    }
    chunks
}

/// Compares a block's content with the check. If the block has references, their extents may have
/// had other content: then the whole block is requested, once.
fn verify(block: &mut Pending, out: &mut Vec<u8>) -> Result<(), Reason> {
    if check(block.offset, &block.content) == block.check {
        return Ok(());
    }
    if !block.has_references || block.was_asked_for {
        return Err(Reason::Check);
    }
    block.was_asked_for = true;
    let length = block.content.len();
    block.holes.push(0..length);
    Frame::Ask {
        offset: block.offset,
        length,
    }
    .write(out);
    Ok(())
}

/// A step for a chunk, and the end of an extent behind it, bytes.
const STEP_BYTES_MAX: usize = 32;

/// Extents with content in memory, so that alternating references read each extent once.
const EXTENTS_HELD: usize = 8;

const MALFORMED: Reason = Reason::Malformed("BLOCK");
