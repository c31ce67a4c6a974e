//! A client's bytes, divided into messages: head, body, head, body, ….
//!
//! Called by `stream` with received bytes. No I/O, no clock.
//!
//! Invariant: after [`Inbound::head`] has accepted a head, exactly its body passes through
//! [`Inbound::body`] before the next head is searched. After a refusal no bytes pass.

use super::chunked::Chunked;
use super::head::{CheckedHead, ContentFraming, HeadLimits, Refusal, Scan, Scanned, check};

/// The next part of a message.
#[derive(Clone, Debug)]
enum InboundState {
    Head(Scan),
    Length(u64),
    Chunked(Chunked),
    Nothing,
}

/// The reader of one connection.
#[derive(Clone, Debug)]
pub(super) struct Inbound {
    state: InboundState,
    limits: HeadLimits,
    extension_max: usize,
    /// The lines of the trailer section of the last body.
    trailers: Vec<u8>,
}

/// Result of reading bytes of a head.
#[derive(Clone, Debug)]
pub(super) enum HeadStep {
    /// The head is not complete yet.
    Partial,
    /// The first `taken` bytes are a head; it begins at `start`, and the offsets in `checked` count
    /// from there.
    Accepted {
        start: usize,
        taken: usize,
        checked: CheckedHead,
    },
    Refused(Refusal),
}

impl Inbound {
    pub(super) fn new(limits: HeadLimits, extension_max: usize) -> Self {
        Self {
            state: InboundState::Head(Scan::default()),
            limits,
            extension_max,
            trailers: Vec::new(),
        }
    }

    pub(super) fn wants_head(&self) -> bool {
        matches!(self.state, InboundState::Head(_))
    }

    /// How much content of the current request is missing; `None` if it has none or was refused.
    pub(super) fn content_left(&self) -> Option<u64> {
        match self.state {
            InboundState::Length(left) => Some(left),
            InboundState::Chunked(_) => Some(u64::MAX),
            InboundState::Head(_) | InboundState::Nothing => None,
        }
    }

    /// Whether this client's bytes are no longer read.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, InboundState::Nothing)
    }

    /// Searches a head in `input`, which must begin at the end of the last message and grow from
    /// call to call until a head was accepted.
    pub(super) fn head(&mut self, input: &[u8]) -> HeadStep {
        let InboundState::Head(scan) = &mut self.state else {
            return HeadStep::Partial;
        };
        let outcome = match scan.advance(input, &self.limits) {
            Scanned::Partial => return HeadStep::Partial,
            Scanned::Complete(place) => {
                check(&input[place.clone()], &self.limits).map(|checked| (place, checked))
            }
            Scanned::Refused(refusal) => Err(refusal),
        };
        match outcome {
            Ok((place, checked)) => {
                self.state = match checked.content {
                    ContentFraming::None | ContentFraming::Length(0) => {
                        InboundState::Head(Scan::default())
                    }
                    ContentFraming::Length(length) => InboundState::Length(length),
                    ContentFraming::Chunked => {
                        InboundState::Chunked(Chunked::new(self.extension_max))
                    }
                };
                HeadStep::Accepted {
                    start: place.start,
                    taken: place.end,
                    checked,
                }
            }
            Err(refusal) => {
                self.state = InboundState::Nothing;
                HeadStep::Refused(refusal)
            }
        }
    }

    /// Takes the bytes of `input` that belong to the body, and passes the content in them on;
    /// returns their number.
    ///
    /// # Errors The reason if the body is invalid. No bytes pass after that.
    pub(super) fn body(
        &mut self,
        input: &[u8],
        mut pass: impl FnMut(&[u8]),
    ) -> Result<usize, &'static str> {
        let (taken, complete) = match &mut self.state {
            InboundState::Length(left) => {
                let taken =
                    usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= u64::try_from(taken).expect("usize is no wider than 64 bits");
                pass(&input[..taken]);
                (taken, *left == 0)
            }
            InboundState::Chunked(chunked) => match chunked.advance(input, pass) {
                Ok(taken) => {
                    if chunked.is_complete() {
                        self.trailers = chunked.take_trailers();
                    }
                    (taken, chunked.is_complete())
                }
                Err(reason) => {
                    self.state = InboundState::Nothing;
                    return Err(reason);
                }
            },
            InboundState::Head(_) | InboundState::Nothing => (0, false),
        };
        if complete {
            self.state = InboundState::Head(Scan::default());
        }
        Ok(taken)
    }

    /// The lines of the trailer section of a body that is complete, once.
    pub(super) fn take_trailers(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.trailers)
    }

    /// Whether the last body has trailers that were not taken.
    pub(super) fn has_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    /// Stops reading.
    pub(super) fn stop(&mut self) {
        self.state = InboundState::Nothing;
    }
}
