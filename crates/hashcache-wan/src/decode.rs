//! The receiver's side of a transfer: frames in, checked content out.
//!
//! The caller pushes bytes from the link, then takes events until [`Event::More`]:
//!
//! - [`Event::Head`]: the caller looks up the dictionary that HEAD names. If it is missing, the
//!   caller drops the transfer and sends the request again without a dictionary: no client has got
//!   content yet.
//! - [`Event::Wants`]: the caller reads this part of the dictionary and gives it.
//! - [`Event::Content`]: checked content, for clients and the store.
//! - [`Event::End`]: the content is complete and the digest is correct.
//!
//! Invariant: content is given only after the check was compared, and `End` only after the digest
//! over all content was compared. No input causes a panic or an allocation beyond the limits. After
//! an error, every call returns that error.
//! Cost: 1 to 5 ms per MB; memory is at most [`crate::limits::TRANSFER_BYTES_MAX`] plus the
//! caller's last push.

use std::ops::Range;

use crate::digest::{Check, Digest, HeadMark, Running};
use crate::error::Reason;
use crate::frame::{self, Dictionary, Frame, Head};
use crate::limits::{SEGMENT_BYTES_MAX, WINDOW_LOG, WINDOW_LOG_MIN};
use crate::stats::Totals;
use crate::stretch::Held;
use crate::zstd::{Decompressor, Last};

/// Dictionaries that the receiver would use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Offered dictionary's length, bytes.
    pub offered: Option<u64>,
    /// Maximum length of a dictionary that the sender may name, bytes; 0: none.
    pub named_max: u64,
}

/// A step of the receiver.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Nothing without more bytes from the link.
    More,
    /// The head of the transfer.
    Head(&'a Head),
    /// These dictionary bytes must be given.
    Wants(Range<u64>),
    /// The next content bytes.
    Content(&'a [u8]),
    /// The content is complete.
    End(Digest),
}

/// Reads a transfer's frames.
pub struct Decoder {
    offer: Offer,
    input: Vec<u8>,
    /// Bytes in `input` that were read.
    used: usize,
    state: State,
    head: Option<Head>,
    mark: HeadMark,
    dictionary: Option<u64>,
    held: Held,
    /// Content that may still arrive with the current stretch.
    segment_left: u64,
    content: Vec<u8>,
    digest: Running,
    broken: Option<Reason>,
    totals: Totals,
}

enum State {
    /// HEAD is next.
    Begin,
    /// No zstd frame is open.
    Between,
    /// STRETCH has arrived, and no block since.
    Stretched,
    /// A zstd frame is open.
    Open(Box<Decompressor>),
    /// END has arrived.
    Ended,
}

enum Step {
    More,
    Head,
    Again,
    Content,
    End(Digest),
}

impl Decoder {
    /// Starts to read a transfer for which `offer` was made.
    pub fn new(offer: Offer) -> Self {
        Self {
            offer,
            input: Vec::new(),
            used: 0,
            state: State::Begin,
            head: None,
            mark: HeadMark::default(),
            dictionary: None,
            held: Held::default(),
            segment_left: 0,
            content: Vec::new(),
            digest: Running::default(),
            broken: None,
            totals: Totals::default(),
        }
    }

    /// Adds bytes from the link. Call this after [`Decoder::next`] has returned [`Event::More`].
    pub fn push(&mut self, bytes: &[u8]) {
        if self.broken.is_some() {
            return;
        }
        self.input.drain(..self.used);
        self.used = 0;
        self.input.extend_from_slice(bytes);
        self.totals.frame_bytes += bytes.len() as u64;
    }

    /// Gives dictionary bytes, from the start of the wanted range.
    pub fn give(&mut self, bytes: &[u8]) {
        self.held.give(bytes);
    }

    /// The next step.
    ///
    /// # Errors
    /// A frame is damaged, out of order or beyond a limit.
    #[expect(
        clippy::should_implement_trait,
        reason = "an event borrows from the decoder"
    )]
    pub fn next(&mut self) -> Result<Event<'_>, Reason> {
        loop {
            if let Some(reason) = self.broken {
                return Err(reason);
            }
            if let Some(missing) = self.held.missing() {
                return Ok(Event::Wants(missing));
            }
            let input = std::mem::take(&mut self.input);
            let step = self.step(&input[self.used..]);
            self.input = input;
            return match step {
                Ok(Step::Again) => continue,
                Ok(Step::More) => Ok(Event::More),
                Ok(Step::Head) => Ok(Event::Head(self.head.as_ref().expect("just read"))),
                Ok(Step::Content) => Ok(Event::Content(&self.content)),
                Ok(Step::End(digest)) => Ok(Event::End(digest)),
                Err(reason) => {
                    self.broken = Some(reason);
                    self.state = State::Ended;
                    self.input = Vec::new();
                    self.used = 0;
                    Err(reason)
                }
            };
        }
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Memory that this transfer holds now, bytes.
    pub fn memory_bytes(&self) -> usize {
        let open = match &self.state {
            State::Open(decompressor) => decompressor.memory_bytes(),
            _ => 0,
        };
        open + self.held.memory_bytes() + self.content.capacity() + self.input.capacity()
    }

    fn step(&mut self, input: &[u8]) -> Result<Step, Reason> {
        let Some((frame, used)) = frame::parse(input)? else {
            return Ok(Step::More);
        };
        let out_of_order = Err(Reason::Order(frame.name()));
        self.used += used;
        match (frame, &self.state) {
            (Frame::Head(head), State::Begin) => {
                self.mark = HeadMark::from_frame(&input[..used]);
                self.begin(head)
            }
            (Frame::Stretch(range), State::Between | State::Open(_)) => {
                // Only one stretch per segment: more would cost reads without content.
                let begins_segment = self.digest.length().is_multiple_of(SEGMENT_BYTES_MAX);
                if range.end > self.dictionary.unwrap_or(0) || !begins_segment {
                    return Err(Reason::Limit("stretch"));
                }
                self.close();
                self.held.want(range);
                self.state = State::Stretched;
                Ok(Step::Again)
            }
            (Frame::Zstd(data, check), State::Between | State::Stretched | State::Open(_)) => {
                self.read_zstd(data, check)
            }
            (Frame::Raw(content, check), State::Between | State::Open(_)) => {
                self.close();
                self.content.clear();
                self.content.extend_from_slice(content);
                self.totals.raw_bytes += content.len() as u64;
                self.check_content(check)
            }
            (Frame::End { length, digest }, State::Between | State::Open(_)) => {
                if input.len() > used {
                    return Err(Reason::Malformed("END"));
                }
                self.end(length, digest)
            }
            (Frame::Abort(reason), State::Between | State::Stretched | State::Open(_)) => {
                Err(Reason::Aborted(reason))
            }
            _ => out_of_order,
        }
    }

    fn begin(&mut self, head: Head) -> Result<Step, Reason> {
        self.dictionary = match &head.dictionary {
            Dictionary::None => None,
            Dictionary::Offered => Some(self.offer.offered.ok_or(Reason::Order("dictionary"))?),
            Dictionary::Named { length, .. } if *length <= self.offer.named_max => Some(*length),
            Dictionary::Named { .. } => return Err(Reason::Limit("dictionary")),
        };
        self.head = Some(head);
        self.state = State::Between;
        Ok(Step::Head)
    }

    fn read_zstd(&mut self, data: &[u8], check: Check) -> Result<Step, Reason> {
        let mut open = match std::mem::replace(&mut self.state, State::Between) {
            State::Open(open) => open,
            state => {
                let mut prefix = Vec::new();
                if matches!(state, State::Stretched) {
                    self.segment_left = SEGMENT_BYTES_MAX;
                    prefix = self.held.take();
                }
                let open = Decompressor::new(prefix, self.window_log());
                Box::new(open.map_err(Reason::Zstd)?)
            }
        };
        let last = open.block(data, &mut self.content)?;
        if open.has_prefix() {
            let left = self.segment_left.checked_sub(self.content.len() as u64);
            self.segment_left = left.ok_or(Reason::Limit("segment"))?;
        }
        self.state = State::Open(open);
        if last == Last::Yes {
            self.close();
        }
        self.check_content(check)
    }

    /// Closes a zstd frame, if it is open.
    fn close(&mut self) {
        if let State::Open(open) = std::mem::replace(&mut self.state, State::Between)
            && open.has_prefix()
        {
            self.held.put_back(open.into_prefix());
        }
    }

    /// Compares a block's content with the check.
    fn check_content(&mut self, check: Check) -> Result<Step, Reason> {
        let mut digest = self.digest.clone();
        digest.update(&self.content);
        if digest.check(self.mark) != check {
            return Err(Reason::Check);
        }
        if self
            .announced()
            .is_some_and(|length| digest.length() > length)
        {
            return Err(Reason::Length);
        }
        self.digest = digest;
        self.totals.content_bytes = self.digest.length();
        Ok(Step::Content)
    }

    fn announced(&self) -> Option<u64> {
        self.head.as_ref().and_then(|head| head.length)
    }

    /// The largest window that a zstd frame may have: no more than the content.
    fn window_log(&self) -> u32 {
        let bytes = self.announced().unwrap_or(u64::MAX).min(SEGMENT_BYTES_MAX);
        bytes
            .next_power_of_two()
            .ilog2()
            .clamp(WINDOW_LOG_MIN, WINDOW_LOG)
    }

    fn end(&mut self, length: u64, digest: Digest) -> Result<Step, Reason> {
        let come = self.digest.length();
        if length != come || self.announced().is_some_and(|announced| announced != come) {
            return Err(Reason::Length);
        }
        if digest != self.digest.digest() {
            return Err(Reason::Check);
        }
        self.close();
        self.state = State::Ended;
        Ok(Step::End(digest))
    }
}
