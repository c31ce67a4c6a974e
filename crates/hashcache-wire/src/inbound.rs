//! A client's bytes, divided into messages: head, body, head, body, ….
//!
//! `stream` calls it with received bytes. No I/O, no clock.
//!
//! Invariant: after [`Inbound::head`] has accepted a head, exactly its body passes through
//! [`Inbound::body`] before the search for the next head. After a refusal no bytes pass.

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

/// The parser of a connection's input.
#[derive(Clone, Debug)]
pub(super) struct Inbound {
    state: InboundState,
    limits: HeadLimits,
    extension_max: usize,
    /// The trailer lines of the last body.
    trailers: Vec<u8>,
}

/// Result of parsing a head.
#[derive(Clone, Debug)]
pub(super) enum HeadStep {
    /// The head is incomplete.
    Partial,
    /// The first `taken` bytes contain a head, which starts at `start`; the offsets in `checked`
    /// are relative to `start`.
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

    /// Missing bytes of the current request content; `None` if there is no content or the request
    /// was refused.
    pub(super) fn content_left(&self) -> Option<u64> {
        match self.state {
            InboundState::Length(left) => Some(left),
            InboundState::Chunked(_) => Some(u64::MAX),
            InboundState::Head(_) | InboundState::Nothing => None,
        }
    }

    /// Returns true if this client's bytes are no longer read.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, InboundState::Nothing)
    }

    /// Searches for a head in `input`, which must start after the last message and grow with each
    /// call until a head is accepted.
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

    /// Takes the bytes of `input` that belong to the body, and calls `pass` with their content;
    /// returns the number of bytes.
    ///
    /// # Errors
    ///
    /// Returns the reason if the body is invalid. No bytes pass after that.
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

    /// The trailer lines of a complete body; later calls return nothing.
    pub(super) fn take_trailers(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.trailers)
    }

    /// Returns true if the last body has trailers that were not taken.
    pub(super) fn has_trailers(&self) -> bool {
        !self.trailers.is_empty()
    }

    /// Stops reading.
    pub(super) fn stop(&mut self) {
        self.state = InboundState::Nothing;
    }
}
