//! The sender for one direction: content in, blocks out; answers questions.
//!
//! Invariant: all unacknowledged content is held, so every question about it has an answer. A
//! reference names only extents that the receiver has completely, according to the table. Questions
//! wait while the output is full; a receiver has no more questions than there are references.
//! Cost: 2 to 5 ms per MB; memory is the window, zstd's context (1.5 MiB) and a block.

use std::collections::VecDeque;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::cut::{CHUNK_BYTES_MAX, Cutter};
use super::frame::{self, Block, EXTENT_BYTES_MAX, Frame, LITERAL_BYTES_MAX, Step};
use super::known::{Chunk, Known, Place};
use super::recent::Recent;
use super::{
    ACKNOWLEDGED_BYTES, BLOCKS_ACKNOWLEDGED, BLOCKS_MAX, Carried, Key, Name, OUTPUT_BYTES, check,
    zstd_window_log,
};
use crate::error::Reason;
use crate::limits::BLOCK_BYTES_MAX;
use crate::zstd::{Compressor, Last};

pub(super) struct Sender {
    key: Key,
    window: u64,
    cutter: Cutter,
    /// The current chunk.
    chunk: Vec<u8>,
    /// Chunk bytes that are already in a block, because of a flush.
    early: usize,
    /// The current block.
    content: Vec<u8>,
    steps: Vec<u8>,
    literals: Vec<u8>,
    /// The last step, which may still grow.
    open: Open,
    references: Vec<Referred>,
    recent: Recent,
    extent: Extent,
    compressor: Option<Box<Compressor>>,
    data: Vec<u8>,
    sent: u64,
    acknowledged: u64,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Offsets and lengths that the receiver has requested.
    questions: VecDeque<(u64, usize)>,
    /// Completely sent extents that must be stored, and the extent that is being stored.
    to_store: VecDeque<(Name, Vec<u8>)>,
    stored: Vec<u8>,
    carried: Carried,
    finished: bool,
}

#[derive(Clone, Copy)]
enum Open {
    None,
    Literal(usize),
    Reference {
        start: Place,
        name: Name,
        length: usize,
    },
}

/// Content in a sent block that is a reference to an extent.
#[derive(Clone, Copy)]
struct Referred {
    /// Offset in the block.
    from: usize,
    to: usize,
    extent: u32,
}

/// An unacknowledged block.
struct Held {
    offset: u64,
    content: Box<[u8]>,
    references: Box<[Referred]>,
    /// Content that the receiver may still request, bytes.
    answers_left: usize,
    /// Questions that may still arrive.
    questions_left: usize,
}

/// The current extent.
struct Extent {
    content: Vec<u8>,
    hasher: SipHasher24,
    chunks: Vec<Chunk>,
}

impl Extent {
    fn new(key: Key) -> Self {
        Self {
            content: Vec::new(),
            hasher: key.hasher(),
            chunks: Vec::new(),
        }
    }
}

impl Sender {
    pub(super) fn new(key: Key, window: u64) -> Self {
        Self {
            key,
            window,
            cutter: Cutter::default(),
            chunk: Vec::new(),
            early: 0,
            content: Vec::new(),
            steps: Vec::new(),
            literals: Vec::new(),
            open: Open::None,
            references: Vec::new(),
            recent: Recent::default(),
            extent: Extent::new(key),
            compressor: None,
            data: Vec::new(),
            sent: 0,
            acknowledged: 0,
            held: VecDeque::new(),
            held_bytes: 0,
            questions: VecDeque::new(),
            to_store: VecDeque::new(),
            stored: Vec::new(),
            carried: Carried::default(),
            finished: false,
        }
    }

    pub(super) fn room(&self) -> usize {
        if self.held.len() >= BLOCKS_MAX {
            return 0;
        }
        let used = self.sent + self.collected() as u64 - self.acknowledged;
        usize::try_from(self.window.saturating_sub(used)).unwrap_or(usize::MAX)
    }

    /// Content that is not in a block yet, bytes.
    fn collected(&self) -> usize {
        self.content.len() + self.chunk.len() - self.early
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.collected() > 0
    }

    /// Returns true if an acknowledgement will certainly arrive and open the window: the receiver
    /// acknowledges at these limits at the latest.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.sent - self.acknowledged >= ACKNOWLEDGED_BYTES
            || self.held.len() >= BLOCKS_ACKNOWLEDGED
    }

    pub(super) fn is_done(&self) -> bool {
        self.finished && self.acknowledged == self.sent && self.to_store.is_empty()
    }

    pub(super) fn carried(&self) -> Carried {
        self.carried
    }

    /// The next extent to store; the content is [`Sender::stored`].
    pub(super) fn next_to_store(&mut self) -> Option<Name> {
        let (name, content) = self.to_store.pop_front()?;
        self.stored = content;
        Some(name)
    }

    pub(super) fn stored(&self) -> &[u8] {
        &self.stored
    }

    pub(super) fn push(
        &mut self,
        content: &[u8],
        known: &Known,
        out: &mut Vec<u8>,
    ) -> Result<usize, Reason> {
        if self.finished {
            return Err(Reason::Order("BLOCK"));
        }
        let taken = content.len().min(self.room());
        let mut rest = &content[..taken];
        while !rest.is_empty() {
            let (length, is_end) = self.cutter.next(rest);
            self.chunk.extend_from_slice(&rest[..length]);
            rest = &rest[length..];
            if is_end {
                self.end_chunk(known, out)?;
            }
        }
        Ok(taken)
    }

    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Reason> {
        let begun = self.chunk.len();
        if begun > self.early {
            let part = self.chunk[self.early..].to_vec();
            self.literal(&part);
            self.early = begun;
        }
        self.end_block(out)
    }

    pub(super) fn finish(&mut self, known: &Known, out: &mut Vec<u8>) -> Result<(), Reason> {
        if self.finished {
            return Ok(());
        }
        if !self.chunk.is_empty() {
            self.end_chunk(known, out)?;
        }
        if !self.extent.content.is_empty() {
            self.end_extent(known);
        }
        self.end_block(out)?;
        self.finished = true;
        Frame::Finish(self.sent).write(out);
        Ok(())
    }

    /// Notes a question: the receiver lacks an extent.
    pub(super) fn note_question(&mut self, offset: u64, length: usize) -> Result<(), Reason> {
        let block = held(&mut self.held, offset).ok_or(Reason::Order("ASK"))?;
        let from = usize::try_from(offset - block.offset).unwrap_or(usize::MAX);
        let limit = Reason::Limit("question");
        if from.saturating_add(length) > block.content.len() {
            return Err(limit);
        }
        block.answers_left = block.answers_left.checked_sub(length).ok_or(limit)?;
        block.questions_left = block.questions_left.checked_sub(1).ok_or(limit)?;
        self.questions.push_back((offset, length));
        Ok(())
    }

    /// Answers questions while there is room in `out`.
    pub(super) fn answer_questions(
        &mut self,
        known: &Known,
        out: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        while out.len() < OUTPUT_BYTES
            && let Some((offset, length)) = self.questions.pop_front()
        {
            self.answer(offset, length, known, out)?;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        offset: u64,
        length: usize,
        known: &Known,
        out: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let order = Reason::Order("ASK");
        // A receiver that has acknowledged a block needs no answer for it.
        let block = held(&mut self.held, offset).ok_or(order)?;
        let from = usize::try_from(offset - block.offset).map_err(|_| order)?;
        let to = from.saturating_add(length);
        let content = block.content.get(from..to).ok_or(order)?;
        for referred in &block.references {
            if referred.from < to && from < referred.to {
                known.forget(referred.extent);
            }
        }
        self.carried.answered += length as u64;
        let mut data = Vec::new();
        let window_log = zstd_window_log(self.window);
        let zstd = Compressor::new(Vec::new(), Some(length as u64), window_log);
        let coded = zstd.and_then(|mut zstd| zstd.block(content, Last::Yes, &mut data));
        coded.map_err(Reason::Zstd)?;
        let data = &data;
        Frame::Answer {
            offset,
            length,
            data,
        }
        .write(out);
        Ok(())
    }

    pub(super) fn acknowledge(&mut self, offset: u64) -> Result<(), Reason> {
        if offset > self.sent || offset < self.acknowledged {
            return Err(Reason::Limit("acknowledgement"));
        }
        self.acknowledged = offset;
        while let Some(block) = self.held.front()
            && block.offset + block.content.len() as u64 <= offset
        {
            self.held_bytes -= block.content.len();
            self.held.pop_front();
        }
        Ok(())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let zstd = self
            .compressor
            .as_ref()
            .map_or(0, |zstd| zstd.memory_bytes());
        let chunks = self.extent.chunks.capacity() * size_of::<Chunk>();
        let block = self.content.capacity() + self.literals.capacity() + self.steps.capacity();
        let to_store: usize = self.to_store.iter().map(|it| it.1.capacity()).sum();
        let extents = self.extent.content.capacity() + to_store + self.stored.capacity();
        let questions = self.questions.capacity() * size_of::<(u64, usize)>();
        let buffers = self.data.capacity() + self.chunk.capacity() + questions;
        zstd + chunks + block + buffers + extents + self.held_bytes
    }

    fn end_chunk(&mut self, known: &Known, out: &mut Vec<u8>) -> Result<(), Reason> {
        let chunk = std::mem::take(&mut self.chunk);
        let early = std::mem::take(&mut self.early);
        let hash = self.key.hash(&chunk);
        let next = match self.open {
            Open::Reference { start, length, .. } => {
                u16::try_from(usize::from(start.offset) + length)
                    .ok()
                    .map(|offset| Place { offset, ..start })
            }
            Open::None | Open::Literal(_) => None,
        };
        let found = known.find(hash, next).filter(|_| early < chunk.len());
        // The part that a flush has sent is a literal; the rest becomes a reference.
        let found = found.and_then(|(place, name)| {
            let offset = place.offset.checked_add(u16::try_from(early).ok()?)?;
            Some((Place { offset, ..place }, name))
        });
        if let Some((place, name)) = found {
            self.reference(&chunk[early..], place, name, next);
        } else {
            let offset = self.extent.content.len() - early;
            let offset = u16::try_from(offset).expect("an extent has 64 KiB at the most");
            self.literal(&chunk[early..]);
            self.extent.chunks.push(Chunk { hash, offset });
        }
        // The next chunk may not fit. Extents with boundaries by content would be closed earlier
        // and be smaller, so a run would take more names: 2 % more bytes.
        if self.extent.content.len() + CHUNK_BYTES_MAX > EXTENT_BYTES_MAX {
            self.end_extent(known);
        }
        self.chunk = chunk;
        self.chunk.clear();
        if self.literals.len() + CHUNK_BYTES_MAX > LITERAL_BYTES_MAX
            || self.content.len() + CHUNK_BYTES_MAX > BLOCK_BYTES_MAX
        {
            self.end_block(out)?;
        }
        Ok(())
    }

    fn literal(&mut self, content: &[u8]) {
        if content.is_empty() {
            return;
        }
        self.content.extend_from_slice(content);
        self.literals.extend_from_slice(content);
        self.carried.literal += content.len() as u64;
        self.extent.content.extend_from_slice(content);
        self.extent.hasher.write(content);
        if let Open::Literal(length) = &mut self.open {
            *length += content.len();
        } else {
            self.end_step();
            self.open = Open::Literal(content.len());
        }
    }

    fn reference(&mut self, chunk: &[u8], place: Place, name: Name, next: Option<Place>) {
        self.carried.referred += chunk.len() as u64;
        let from = self.content.len();
        self.content.extend_from_slice(chunk);
        let to = self.content.len();
        if next == Some(place)
            && let Open::Reference { length, .. } = &mut self.open
            && let Some(referred) = self.references.last_mut()
        {
            *length += chunk.len();
            referred.to = to;
            return;
        }
        self.end_step();
        self.open = Open::Reference {
            start: place,
            name,
            length: chunk.len(),
        };
        let extent = place.extent;
        self.references.push(Referred { from, to, extent });
    }

    fn end_step(&mut self) {
        let step = match std::mem::replace(&mut self.open, Open::None) {
            Open::None => return,
            Open::Literal(length) => Step::Literal(length),
            Open::Reference {
                start,
                name,
                length,
            } => {
                let place = self.recent.place(name);
                self.recent.note(name);
                Step::Reference {
                    length,
                    extent: place.map_or(frame::Extent::Name(name), frame::Extent::Recent),
                    offset: usize::from(start.offset),
                }
            }
        };
        step.write(&mut self.steps);
    }

    fn end_extent(&mut self, known: &Known) {
        self.end_step();
        Step::EndOfExtent.write(&mut self.steps);
        let extent = std::mem::replace(&mut self.extent, Extent::new(self.key));
        let name = Name(extent.hasher.finish128().as_u128().to_le_bytes());
        known.enter(name, &extent.chunks);
        self.to_store.push_back((name, extent.content));
    }

    fn end_block(&mut self, out: &mut Vec<u8>) -> Result<(), Reason> {
        self.end_step();
        if self.steps.is_empty() {
            return Ok(());
        }
        self.data.clear();
        if !self.literals.is_empty() {
            let zstd = match self.compressor.take() {
                Some(zstd) => zstd,
                None => {
                    let window_log = zstd_window_log(self.window);
                    let zstd = Compressor::new(Vec::new(), None, window_log);
                    Box::new(zstd.map_err(Reason::Zstd)?)
                }
            };
            let zstd = self.compressor.insert(zstd);
            let coded = zstd.block(&self.literals, Last::No, &mut self.data);
            coded.map_err(Reason::Zstd)?;
        }
        let block = Block {
            length: self.content.len(),
            check: check(self.sent, &self.content),
            steps: &self.steps,
            data: &self.data,
        };
        Frame::Block(block).write(out);
        let content = std::mem::take(&mut self.content).into_boxed_slice();
        let length = content.len();
        if length > 0 {
            let references = std::mem::take(&mut self.references).into_boxed_slice();
            self.held.push_back(Held {
                offset: self.sent,
                content,
                answers_left: 2 * length,
                // One question for each reference, and one for the whole block.
                questions_left: references.len() + 1,
                references,
            });
        }
        self.sent += length as u64;
        self.held_bytes += length;
        self.steps.clear();
        self.literals.clear();
        Ok(())
    }
}

/// The block that has the content at `offset`.
fn held(held: &mut VecDeque<Held>, offset: u64) -> Option<&mut Held> {
    let at = held.partition_point(|block| block.offset <= offset);
    held.get_mut(at.checked_sub(1)?)
}
