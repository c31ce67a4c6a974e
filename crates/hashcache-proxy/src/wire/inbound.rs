//! What comes from one client, cut into messages: head, body, head, body, ….
//!
//! Called by `stream` with bytes as they come; says what hyper may have of them. No I/O, no clock.
//!
//! Invariant: after [`Inbound::head`] accepted a head, exactly its body passes through
//! [`Inbound::body`] before the next head is looked for; after a refusal nothing passes any more.

use super::chunked::Chunked;
use super::head::{Checked, Content, HeadLimits, Refusal, Scan, Scanned, check};

/// The part of a message that comes next.
#[derive(Clone, Debug)]
enum Part {
    Head(Scan),
    Length(u64),
    Chunked(Chunked),
    Nothing,
}

/// The reader of one connection.
#[derive(Clone, Debug)]
pub(super) struct Inbound {
    part: Part,
    limits: HeadLimits,
    extension_max: usize,
}

/// What became of the bytes of a head.
#[derive(Clone, Debug)]
pub(super) enum HeadStep {
    /// The end is not there yet.
    Partial,
    /// The first `taken` bytes are a head; it begins at `start`, and the places in `checked` count
    /// from there.
    Accepted {
        start: usize,
        taken: usize,
        checked: Checked,
    },
    Refused(Refusal),
}

impl Inbound {
    pub(super) fn new(limits: HeadLimits, extension_max: usize) -> Self {
        Self {
            part: Part::Head(Scan::default()),
            limits,
            extension_max,
        }
    }

    pub(super) fn wants_head(&self) -> bool {
        matches!(self.part, Part::Head(_))
    }

    /// How much content of the request under way may still come; `None` where there is none, or the
    /// request was refused.
    pub(super) fn content_left(&self) -> Option<u64> {
        match self.part {
            Part::Length(left) => Some(left),
            Part::Chunked(_) => Some(u64::MAX),
            Part::Head(_) | Part::Nothing => None,
        }
    }

    /// Whether nothing more is to be read from this client.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.part, Part::Nothing)
    }

    /// Looks for a head in `input`, which must begin where the last message ended and grow from
    /// call to call until a head was accepted.
    pub(super) fn head(&mut self, input: &[u8]) -> HeadStep {
        let Part::Head(scan) = &mut self.part else {
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
                self.part = match checked.content {
                    Content::None | Content::Length(0) => Part::Head(Scan::default()),
                    Content::Length(length) => Part::Length(length),
                    Content::Chunked => Part::Chunked(Chunked::new(self.extension_max)),
                };
                HeadStep::Accepted {
                    start: place.start,
                    taken: place.end,
                    checked,
                }
            }
            Err(refusal) => {
                self.part = Part::Nothing;
                HeadStep::Refused(refusal)
            }
        }
    }

    /// Passes on what of `input` belongs to the body; returns how much of it does.
    ///
    /// # Errors
    /// The reason, when the body has no meaning. Nothing passes after that.
    pub(super) fn body(
        &mut self,
        input: &[u8],
        mut pass: impl FnMut(&[u8]),
    ) -> Result<usize, &'static str> {
        let (taken, complete) = match &mut self.part {
            Part::Length(left) => {
                let taken =
                    usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= u64::try_from(taken).expect("usize is no wider than 64 bits");
                pass(&input[..taken]);
                (taken, *left == 0)
            }
            Part::Chunked(chunked) => match chunked.advance(input, pass) {
                Ok(taken) => (taken, chunked.is_complete()),
                Err(reason) => {
                    self.part = Part::Nothing;
                    return Err(reason);
                }
            },
            Part::Head(_) | Part::Nothing => (0, false),
        };
        if complete {
            self.part = Part::Head(Scan::default());
        }
        Ok(taken)
    }

    /// Reads nothing more.
    pub(super) fn stop(&mut self) {
        self.part = Part::Nothing;
    }
}
