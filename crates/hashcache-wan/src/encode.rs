//! The sender's side of a transfer: content in, frames out.
//!
//! The caller pushes content as it arrives and sends the frames that are appended to its buffer. If
//! the encoder wants a dictionary stretch ([`Encoder::wants`]), the caller reads it, gives it
//! ([`Encoder::give`]), and pushes the rest. Nothing here waits.
//!
//! With a dictionary, each 2 MiB segment is a zstd frame with a stretch as the prefix. Without a
//! dictionary, the content is a single zstd frame, or raw for each 2 MiB in which the first block
//! saved less than a twentieth.
//!
//! Invariant: the content of a block and all before it can be restored from the frames up to that
//! block, so the receiver never waits for later content.
//! Cost: 3 to 12 ms per MB of content; memory is at most [`crate::limits::TRANSFER_BYTES_MAX`].

use std::ops::Range;

use crate::digest::{Digest, HeadMark, Running};
use crate::error::EncodeError;
use crate::frame::{Dictionary, Frame, Head};
use crate::limits::{BLOCK_BYTES_MAX, SEGMENT_BYTES_MAX, WINDOW_LOG};
use crate::stats::Totals;
use crate::stretch::{self, Held};
use crate::zstd::{Compressor, Last};

/// Writes a transfer's frames.
pub struct Encoder {
    head: Head,
    /// Set when HEAD is written.
    mark: Option<HeadMark>,
    /// Dictionary length, while it is used.
    dictionary: Option<u64>,
    held: Held,
    coding: Coding,
    /// The segment's content and data so far, bytes.
    segment: Segment,
    /// Consecutive segments for which the dictionary did not help.
    useless: u32,
    /// Content in the block that is being collected.
    block: Vec<u8>,
    block_bytes: usize,
    data: Vec<u8>,
    digest: Running,
    totals: Totals,
}

/// The current block coding.
enum Coding {
    /// The next block decides.
    Undecided,
    Zstd(Box<Compressor>),
    Raw,
}

#[derive(Clone, Copy, Default)]
struct Segment {
    content: u64,
    data: u64,
}

impl Segment {
    /// Returns true if coding saved at least a twentieth.
    fn is_worth_it(self) -> bool {
        self.data + self.content / 20 <= self.content
    }
}

impl Encoder {
    /// Starts a transfer. `offered` is the length of the dictionary that the receiver offered, if
    /// `head` uses it.
    pub fn new(head: Head, offered: u64) -> Self {
        let dictionary = match &head.dictionary {
            Dictionary::None => None,
            Dictionary::Offered => Some(offered),
            Dictionary::Named { length, .. } => Some(*length),
        };
        let mut encoder = Self {
            head,
            mark: None,
            dictionary: dictionary.filter(|&length| length > 0),
            held: Held::default(),
            coding: Coding::Undecided,
            segment: Segment::default(),
            useless: 0,
            block: Vec::new(),
            block_bytes: BLOCK_BYTES,
            data: Vec::new(),
            digest: Running::default(),
            totals: Totals::default(),
        };
        encoder.want_stretch();
        encoder
    }

    /// The dictionary bytes that must be given before more content is taken.
    pub fn wants(&self) -> Option<Range<u64>> {
        self.dictionary.and_then(|_| self.held.missing())
    }

    /// Gives dictionary bytes, from the start of the wanted range.
    pub fn give(&mut self, bytes: &[u8]) {
        self.held.give(bytes);
    }

    /// Continues without the dictionary, because it cannot be read.
    pub fn give_up_dictionary(&mut self) {
        self.dictionary = None;
        self.held = Held::default();
        if self.mark.is_none() {
            self.head.dictionary = Dictionary::None;
        }
    }

    /// Takes content and appends frames to `out`. Returns how many bytes it took: less than all if
    /// the encoder first wants a dictionary stretch.
    ///
    /// # Errors
    /// [`EncodeError::Length`] if there is more content than announced; also if zstd has no memory.
    pub fn push(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<usize, EncodeError> {
        self.begin(out);
        let come = self.collected() + content.len() as u64;
        if let Some(announced) = self.head.length
            && come > announced
        {
            let written = come;
            return Err(EncodeError::Length { announced, written });
        }
        let mut rest = content;
        while !rest.is_empty() && self.wants().is_none() {
            let room = self.block_room();
            let (now, later) = rest.split_at(rest.len().min(room));
            self.block.extend_from_slice(now);
            rest = later;
            if now.len() == room {
                let is_end = self.head.length == Some(self.collected());
                self.end_block(if is_end { Last::Yes } else { Last::No }, out)?;
            }
        }
        Ok(content.len() - rest.len())
    }

    /// Closes the current block, so that the receiver gets all bytes so far. For content that
    /// arrives slowly: each block costs 12 bytes and more.
    ///
    /// # Errors
    /// As [`Encoder::push`].
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.begin(out);
        if self.block.is_empty() {
            return Ok(());
        }
        self.end_block(Last::No, out)
    }

    /// Finishes the transfer. Returns the content digest.
    ///
    /// # Errors
    /// [`EncodeError::Length`] if there is less content than announced; also if zstd has no memory.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<(Digest, Totals), EncodeError> {
        self.begin(out);
        let written = self.collected();
        if let Some(announced) = self.head.length
            && written != announced
        {
            return Err(EncodeError::Length { announced, written });
        }
        if !self.block.is_empty() {
            self.end_block(Last::Yes, out)?;
        }
        let digest = self.digest.digest();
        self.write(
            &Frame::End {
                length: written,
                digest,
            },
            out,
        );
        Ok((digest, self.totals))
    }

    /// Aborts the transfer, because the content source has failed.
    pub fn abort(mut self, reason: u8, out: &mut Vec<u8>) {
        self.begin(out);
        self.write(&Frame::Abort(reason), out);
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Memory that this transfer holds now, bytes.
    pub fn memory_bytes(&self) -> usize {
        let coding = match &self.coding {
            Coding::Zstd(compressor) => compressor.memory_bytes(),
            Coding::Undecided | Coding::Raw => 0,
        };
        coding + self.held.memory_bytes() + self.block.capacity() + self.data.capacity()
    }

    /// Content bytes taken so far.
    fn collected(&self) -> u64 {
        self.digest.length() + self.block.len() as u64
    }

    fn block_room(&self) -> usize {
        let segment_left = SEGMENT_BYTES_MAX - self.segment.content;
        let segment_left = usize::try_from(segment_left).unwrap_or(usize::MAX);
        self.block_bytes.min(segment_left) - self.block.len()
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.mark.is_none() {
            let from = out.len();
            self.write(&Frame::Head(self.head.clone()), out);
            self.mark = Some(HeadMark::from_frame(&out[from..]));
        }
    }

    fn write(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) {
        let from = out.len();
        frame.write(out);
        self.totals.frame_bytes += (out.len() - from) as u64;
    }

    fn want_stretch(&mut self) {
        if let Some(length) = self.dictionary {
            let at = self.digest.length();
            self.held.want(stretch::for_segment(length, at));
        }
    }

    /// Sends the current block.
    fn end_block(&mut self, last: Last, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let block = std::mem::take(&mut self.block);
        let mut data = std::mem::take(&mut self.data);
        self.digest.update(&block);
        let check = self.digest.check(self.mark.unwrap_or_default());
        let saves = self.segment.is_worth_it();
        self.segment.content += block.len() as u64;
        let ends_segment = self.segment.content == SEGMENT_BYTES_MAX;
        // The following content then gets a fresh decision and a separate zstd frame.
        let is_given_up = ends_segment && (self.dictionary.is_some() || !saves);
        let is_first = matches!(self.coding, Coding::Undecided);
        if is_first {
            self.open(block.len(), last, out)?;
        }
        data.clear();
        if let Coding::Zstd(compressor) = &mut self.coding {
            let ends_frame = last == Last::Yes || is_given_up;
            let last = if ends_frame { Last::Yes } else { Last::No };
            let coded = compressor.block(&block, last, &mut data);
            coded.map_err(EncodeError::Zstd)?;
            let first = Segment {
                content: block.len() as u64,
                data: data.len() as u64,
            };
            if is_first && self.dictionary.is_none() && !first.is_worth_it() {
                self.coding = Coding::Raw;
            }
        }
        if matches!(self.coding, Coding::Raw) {
            self.segment.data += block.len() as u64;
            self.totals.raw_bytes += block.len() as u64;
            self.block_bytes = BLOCK_BYTES;
            self.write(&Frame::Raw(&block, check), out);
        } else {
            self.segment.data += data.len() as u64;
            self.block_bytes = if data.len() < block.len() / 16 {
                BLOCK_BYTES_MAX
            } else {
                BLOCK_BYTES
            };
            self.write(&Frame::Zstd(&data, check), out);
        }
        self.totals.content_bytes = self.digest.length();
        self.block = block;
        self.block.clear();
        self.data = data;
        if ends_segment {
            self.end_segment(is_given_up);
        }
        Ok(())
    }

    /// Opens a zstd frame for a block of `block` bytes and the following blocks.
    fn open(&mut self, block: usize, last: Last, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let before = self.digest.length() - block as u64;
        let left = match (last, self.head.length) {
            (Last::Yes, _) => Some(block as u64),
            (Last::No, length) => length.map(|length| length - before),
        };
        let (prefix, length) = if self.dictionary.is_some() {
            self.write(&Frame::Stretch(self.held.range()), out);
            let length = left.map(|left| left.min(SEGMENT_BYTES_MAX));
            (self.held.take(), length)
        } else {
            // Longer content has the same window, and may change to raw before the end.
            (Vec::new(), left.filter(|&left| left <= SEGMENT_BYTES_MAX))
        };
        let compressor = Compressor::new(prefix, length, WINDOW_LOG).map_err(EncodeError::Zstd)?;
        self.coding = Coding::Zstd(Box::new(compressor));
        Ok(())
    }

    /// `is_given_up`: no zstd frame continues in the next segment.
    fn end_segment(&mut self, is_given_up: bool) {
        let segment = std::mem::take(&mut self.segment);
        if self.dictionary.is_some() {
            if let Coding::Zstd(compressor) = std::mem::replace(&mut self.coding, Coding::Undecided)
            {
                self.held.put_back(compressor.into_prefix());
            }
            self.useless = if segment.is_worth_it() {
                0
            } else {
                self.useless + 1
            };
            if self.useless == USELESS_MAX {
                self.give_up_dictionary();
            }
            if self.head.length != Some(self.digest.length()) {
                self.want_stretch();
            }
        } else if is_given_up || matches!(self.coding, Coding::Raw) {
            self.coding = Coding::Undecided;
        }
    }
}

/// Content in a block that does not compress well, bytes: it takes 2 s on a 256 kbit/s link.
const BLOCK_BYTES: usize = 64 << 10;

/// After this many segments that saved less than a twentieth, the dictionary is no longer used.
const USELESS_MAX: u32 = 4;
