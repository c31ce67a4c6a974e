//! Decodes content that a parent sends in frames, and returns checked content.
//!
//! A part of [`ResponseBody`](super::ResponseBody), for responses on a link that declare frames.
//! `hashcache_wan` reads the frames.
//!
//! Invariants: content is returned only after the check was compared, and a clean end only after
//! the digest of all content was compared. Trailers follow the frames as they follow other content.
//! Cost: 1 to 5 ms a MB, and a copy.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hashcache::Reservation;
use hashcache_base::failure::{Failure, LinkFault};
use hashcache_wan::decode::{Decoder, Event};
use hashcache_wan::digest::Digest;
use hashcache_wan::error::Reason;
use hashcache_wan::frame::{Dictionary, Head};
use http_body::Frame;
use tokio::time::Instant;

use hashcache_link::coding::Dictionaries;
use hashcache_link::counters::{IN, LinkCounters};
use hashcache_link::dictionary::{DictionaryReader, StoredContent};
use hashcache_link::usage::{DictionaryKind, LinkUsage, ResumeReason};

/// Reads the frames in a response.
pub(super) struct Unframing {
    decoder: Decoder,
    counters: Arc<LinkCounters>,
    /// The host that the content belongs to.
    host: Box<str>,
    kind: Option<DictionaryKind>,
    dictionary: Option<DictionaryReader>,
    /// The step that was read before the response head was passed on.
    first: Option<Step>,
    /// Content that is still to arrive, bytes, if known.
    left: Option<u64>,
    /// Present when all content was checked.
    digest: Option<Digest>,
    _memory: Option<Reservation>,
}

/// The next step.
pub(super) enum Step {
    /// The transfer has started.
    Head(Head),
    /// The next content bytes.
    Content(Bytes),
    Trailers(Frame<Bytes>),
}

/// The reason why there is no more content.
#[derive(Debug)]
pub(super) enum Fault {
    /// The connection, or the parent's content source.
    Upstream(Failure),
    /// The frames are damaged or incomplete.
    Frames(Reason),
    /// The dictionary cannot be read completely.
    Dictionary,
}

impl Unframing {
    pub(super) fn new(
        dictionaries: &Dictionaries,
        counters: Arc<LinkCounters>,
        host: Box<str>,
    ) -> Self {
        Self {
            counters,
            host,
            kind: None,
            decoder: Decoder::new(dictionaries.offer()),
            dictionary: None,
            first: None,
            left: None,
            digest: None,
            _memory: None,
        }
    }

    /// Notes the head, with the dictionary and the memory for the content.
    pub(super) fn begin(
        &mut self,
        head: &Head,
        dictionary: Option<StoredContent>,
        memory: Option<Reservation>,
    ) {
        self.left = head.length;
        self.kind = match head.dictionary {
            Dictionary::None => None,
            Dictionary::Offered => Some(DictionaryKind::Offered),
            Dictionary::Named { .. } => Some(DictionaryKind::Named),
        };
        if let Some(kind) = self.kind {
            self.counters.coding.dictionary(kind, true);
        }
        self.dictionary = dictionary.map(|content| {
            let counters = Arc::clone(&self.counters);
            DictionaryReader::new(content, counters)
        });
        self._memory = memory;
    }

    /// Returns counters for the frames so far.
    pub(super) fn usage(&self) -> LinkUsage {
        LinkUsage::new(self.decoder.totals(), self.kind)
    }

    /// Puts back a step that was taken before the response head was passed on.
    pub(super) fn put_back(&mut self, first: Step) {
        self.first = Some(first);
    }

    /// Content that is still to arrive, bytes, if known.
    pub(super) fn left(&self) -> Option<u64> {
        self.left
    }

    /// The digest of the content, after all of it was returned.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.digest.filter(|_| self.first.is_none())
    }

    /// Polls the next content or trailers; `wire` polls the link.
    pub(super) fn poll_content(
        &mut self,
        context: &mut Context<'_>,
        mut wire: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let first = self.first.take();
        let step = match first {
            Some(first) => Ok(Some(first)),
            None => ready!(self.poll_step(context, &mut wire)),
        };
        Poll::Ready(match step {
            Ok(Some(Step::Content(content))) => {
                let given = content.len() as u64;
                self.left = self.left.map(|left| left.saturating_sub(given));
                Some(Ok(Frame::data(content)))
            }
            Ok(Some(Step::Trailers(trailers))) => Some(Ok(trailers)),
            // The decoder allows only a single head.
            Ok(Some(Step::Head(_))) => Some(Err(Failure::Link(LinkFault::Frames))),
            Ok(None) => None,
            Err(fault) => {
                let failure = fault.into();
                if failure == Failure::Link(LinkFault::Frames) {
                    self.counters.coding.resumed(ResumeReason::Frames);
                }
                Some(Err(failure))
            }
        })
    }

    /// Polls the next step; `None` after the end.
    pub(super) fn poll_step(
        &mut self,
        context: &mut Context<'_>,
        mut wire: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>>,
    ) -> Poll<Result<Option<Step>, Fault>> {
        loop {
            if self.digest.is_some() {
                return match ready!(wire(context)) {
                    None => Poll::Ready(Ok(None)),
                    Some(Err(failure)) => Poll::Ready(Err(Fault::Upstream(failure))),
                    Some(Ok(frame)) if frame.is_trailers() => {
                        Poll::Ready(Ok(Some(Step::Trailers(frame))))
                    }
                    Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => continue,
                    Some(Ok(_)) => Poll::Ready(Err(Fault::Frames(Reason::Malformed("END")))),
                };
            }
            let begun = Instant::now();
            let event = self.decoder.next();
            self.counters.coding.worked(IN, begun.elapsed());
            return Poll::Ready(match event {
                Err(reason) => Err(Fault::Frames(reason)),
                Ok(Event::Head(head)) => Ok(Some(Step::Head(head.clone()))),
                Ok(Event::Content(content)) => {
                    Ok(Some(Step::Content(Bytes::copy_from_slice(content))))
                }
                Ok(Event::End(digest)) => {
                    self.digest = Some(digest);
                    continue;
                }
                Ok(Event::Wants(wanted)) => {
                    let piece = match &mut self.dictionary {
                        Some(dictionary) => ready!(dictionary.poll_read(context, wanted)),
                        None => None,
                    };
                    match piece {
                        Some(piece) => {
                            self.decoder.give(&piece);
                            continue;
                        }
                        None => Err(Fault::Dictionary),
                    }
                }
                Ok(Event::More) => match ready!(wire(context)) {
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            self.decoder.push(&data);
                        }
                        continue;
                    }
                    Some(Err(failure)) => Err(Fault::Upstream(failure)),
                    None => Err(Fault::Frames(Reason::Cut)),
                },
            });
        }
    }
}

impl Drop for Unframing {
    fn drop(&mut self) {
        let (coding, totals) = (&self.counters.coding, self.decoder.totals());
        coding.carried(IN, totals, self.kind);
        self.counters.sites.note(&self.host, totals);
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Upstream(failure) => failure,
            // As without frames: the source stopped early, and frames may be used again.
            Fault::Frames(Reason::Cut | Reason::Aborted(_)) => Self::ResponseIncomplete,
            Fault::Dictionary => {
                tracing::debug!("a dictionary could not be read to its end");
                Self::Link(LinkFault::Frames)
            }
            Fault::Frames(reason) => {
                tracing::warn!(%reason, "frames of a link are damaged");
                Self::Link(LinkFault::Frames)
            }
        }
    }
}

impl std::fmt::Debug for Unframing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unframing")
            .field("totals", &self.decoder.totals())
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
