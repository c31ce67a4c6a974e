//! A response that is assembled from stored content and from content fetched meanwhile.
//!
//! An assembly handles its parts in order. Stored bytes are read. Where bytes are missing, or turn
//! out to be missing when they are read, the assembly claims the missing range and follows the
//! fetch for it. All bytes belong to one version: reader, claim and follower are made from the same
//! hit, and `fetch::range_fetch` accepts no other bytes.
//!
//! The fetch of another request may be late because of that request. After some time without
//! content ([`patience`]) the assembly takes over the rest of the range.
//!
//! Made by `hit`, read by `body`.
//!
//! Invariants: an assembly finishes after the last byte of the last part, or with an error. It is
//! an error if upstream no longer has the version. Before the head is sent ([`Assembly::prepare`]),
//! all bytes of an incomplete object are known to be stored, or upstream has started to send the
//! first missing bytes. Memory: one reader or follower; nothing is read ahead of the client beyond
//! that.

mod patience;
mod unsure;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Follower, Hit, ReadError};
use hashcache_base::failure::Failure;
use hashcache_base::task::spawn_local;
use hashcache_store::content::{ContentReader, Payers};
use hashcache_store::in_flight_ranges::{AwaitedRange, ClaimOutcome, Lack, RangeStage, claim_end};
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::patience::{Late, Patience};
use self::unsure::first_to_fetch;
use crate::fetch::counters::ByteCount;
use crate::fetch::range_fetch::{NoRange, RangeFetchSpec, RangeReply, end_version, fetch_range};
use crate::fetch::{Answered, AskFailure};
use crate::worker::Worker;

/// A part of a response's content.
pub(super) enum BodyPart {
    /// A part header of `multipart/byteranges`.
    Text(Bytes),
    /// A range of the stored content.
    Content(Range<u64>),
}

/// The content of a response.
pub(crate) struct Assembly {
    worker: Rc<Worker>,
    spec: Rc<RangeFetchSpec>,
    hit: Hit,
    byte_count: ByteCount,
    parts: VecDeque<BodyPart>,
    now: CurrentSource,
    /// Callbacks that reserve memory for content that is read.
    payers: Option<Payers>,
    /// True if this request has already started the fetch for the first missing bytes, together
    /// with the object.
    has_begun: bool,
    /// The fetch that started before the response, and the offset at which it starts.
    ready: Option<(u64, Arrival)>,
    /// Reason why the next bytes cannot be read.
    lack: Lack,
    /// Spans that are claimed when the next span is lost. Doubles with each claim: an object that
    /// lost a span usually lacks the spans after it, too, and each claim is a request.
    lost_spans: u64,
    /// True if bytes that the index listed were lost.
    is_damaged: bool,
    /// Failed attempts since the last byte.
    failures: u32,
}

enum CurrentSource {
    Nothing,
    Reading(Box<ContentReader>),
    Following(Box<Arrival>),
}

/// Content that a fetch delivers.
struct Arrival {
    follower: Follower,
    /// Time limit; `None`: this response has started the fetch.
    patience: Option<Patience>,
    /// Reason for claiming the bytes when they are late.
    late: Lack,
}

/// Attempts in a row for the same byte.
const FAILURES_MAX: u32 = 4;
/// Pause after a failed attempt, multiplied by the number of failures.
const PAUSE: Duration = Duration::from_millis(100);

/// Reason why a response cannot be started.
pub(super) enum Unprepared {
    /// The missing bytes are no longer available in the stored version, or another request could
    /// not fetch them: another attempt may succeed.
    VersionLost,
    /// Upstream has no part of the stored version for this request.
    Unusable,
    /// Upstream has answered with an error or a redirect, which answers this request, too.
    Answered(Box<Answered>),
    /// The request to upstream failed.
    Failed(AskFailure),
    /// Bytes are missing, and the request must not be forwarded.
    NotCached,
}

impl From<NoRange> for Unprepared {
    fn from(why: NoRange) -> Self {
        match why {
            NoRange::Answered(answered) => Self::Answered(answered),
            NoRange::Failed(failed) => Self::Failed(failed),
            NoRange::Unusable => Self::Unusable,
        }
    }
}

/// Permission to fetch missing bytes from upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MayAsk {
    Yes,
    No,
}

/// No fetch could be started.
struct NoClaim;

/// Start of the fetch for the first missing byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// Nothing is missing, as far as the index knows.
    Stored,
    /// This request started the fetch.
    Asked,
    /// Another request had started the fetch.
    Joined,
}

impl Assembly {
    pub(super) fn new(
        worker: &Rc<Worker>,
        spec: RangeFetchSpec,
        hit: &Hit,
        parts: VecDeque<BodyPart>,
        byte_count: ByteCount,
    ) -> Self {
        Self {
            worker: Rc::clone(worker),
            spec: Rc::new(spec),
            hit: hit.clone(),
            byte_count,
            parts,
            now: CurrentSource::Nothing,
            payers: None,
            has_begun: false,
            ready: None,
            lack: Lack::Wanted,
            lost_spans: 1,
            is_damaged: false,
            failures: 0,
        }
    }

    /// Records that this request started the fetch for the first missing bytes.
    pub(super) fn note_begun(&mut self) {
        self.has_begun = true;
    }

    /// Makes `payers` reserve memory before content is read, as in [`ContentReader::paid_by`].
    pub(super) fn pay_by(&mut self, payers: Payers) {
        self.payers = Some(payers);
        match std::mem::replace(&mut self.now, CurrentSource::Nothing) {
            CurrentSource::Nothing => {}
            CurrentSource::Reading(reader) => self.read(*reader),
            CurrentSource::Following(arrival) => self.follow(*arrival),
        }
    }

    fn read(&mut self, reader: ContentReader) {
        let reader = match &self.payers {
            Some(payers) => reader.paid_by(payers),
            None => reader,
        };
        self.now = CurrentSource::Reading(Box::new(reader));
    }

    fn follow(&mut self, arrival: Arrival) {
        let follower = match &self.payers {
            Some(payers) => arrival.follower.paid_by(Arc::clone(&payers.stored)),
            None => arrival.follower,
        };
        self.now = CurrentSource::Following(Box::new(Arrival {
            follower,
            ..arrival
        }));
    }

    /// Ensures that the response can be sent before the head is sent: fetches the first byte that
    /// is missing. If the origin no longer has this version, another response is still possible
    /// then.
    pub(super) async fn prepare(&mut self, may_ask: MayAsk) -> Result<Prepared, Unprepared> {
        let mut lack = Lack::Wanted;
        for _ in 0..FAILURES_MAX {
            let missing = match self.first_unsure().await {
                Some(unsure) => Some(unsure),
                None => self.first_missing(),
            };
            let Some((at, end, why)) = missing else {
                return Ok(Prepared::Stored);
            };
            if may_ask == MayAsk::No {
                return Err(Unprepared::NotCached);
            }
            if self.spec.validator.is_none() {
                return Err(Unprepared::VersionLost);
            }
            if lack == Lack::Wanted {
                lack = why;
            }
            let (reply, mut no_range) = oneshot::channel();
            let claimed = self.claim(at, end, (lack, Some(reply)));
            let Ok(claimed) = claimed else {
                return Err(Unprepared::VersionLost);
            };
            let Some((mut awaited, how)) = claimed else {
                lack = Lack::Wanted;
                continue;
            };
            let prepared = match how {
                Prepared::Joined if self.has_begun => Prepared::Asked,
                how => how,
            };
            let Some(stage) = self.answered(&mut awaited, prepared).await else {
                lack = awaited.late();
                continue;
            };
            match (stage, no_range.try_recv()) {
                (RangeStage::Arriving, _) => {
                    self.ready = Some((at, Arrival::new(awaited, prepared)));
                    return Ok(prepared);
                }
                (_, Ok(why)) => return Err(why.into()),
                (_, Err(_)) => return Err(Unprepared::VersionLost),
            }
        }
        Err(Unprepared::VersionLost)
    }

    /// Waits for the head of a fetch; `None`: another request has started the fetch, and the head
    /// is late.
    async fn answered(&self, awaited: &mut AwaitedRange, how: Prepared) -> Option<RangeStage> {
        let patience = awaited.patience().filter(|_| how == Prepared::Joined);
        match patience {
            Some(patience) => timeout(patience, awaited.answered()).await.ok(),
            None => Some(awaited.answered().await),
        }
    }

    /// The first byte that must be fetched, in a span that memory does not know to be stored and
    /// that a read does not find; with the end offset of the part and the reason for the claim.
    async fn first_unsure(&self) -> Option<(u64, u64, Lack)> {
        // A complete object was stored whole, and loses a span only by damage or age.
        if self.hit.is_complete() || self.spec.stored.pages.is_some() {
            return None;
        }
        for part in &self.parts {
            if let BodyPart::Content(range) = part
                && !self.hit.is_known(range.clone())
                && let Some(at) = first_to_fetch(&self.hit, range).await
            {
                let spans = u64::MAX;
                return Some((at, range.end, Lack::Lost { spans }));
            }
        }
        None
    }

    /// The first byte that memory knows to be missing, with the end offset of the part and the
    /// reason for the claim.
    fn first_missing(&self) -> Option<(u64, u64, Lack)> {
        if self.spec.stored.pages.is_some() {
            // `hit` has already checked the pages.
            return None;
        }
        self.parts.iter().find_map(|part| {
            let BodyPart::Content(range) = part else {
                return None;
            };
            let holes = self.hit.holes(range.clone());
            let first = holes.first()?;
            Some((first.start.max(range.start), range.end, Lack::Wanted))
        })
    }

    /// Claims the byte at `at`; `None` if it turns out to be stored.
    fn claim(
        &self,
        at: u64,
        end: u64,
        (lack, reply): (Lack, RangeReply),
    ) -> Result<Option<(AwaitedRange, Prepared)>, NoClaim> {
        let ranges = &self.worker.common.collapse.ranges;
        match ranges.claim(&self.hit, at, end, lack) {
            Ok(ClaimOutcome::Stored) => Ok(None),
            Ok(ClaimOutcome::Joined(awaited)) => Ok(Some((awaited, Prepared::Joined))),
            Ok(ClaimOutcome::Leader(claim, awaited)) => {
                let (worker, spec) = (Rc::clone(&self.worker), Rc::clone(&self.spec));
                let byte_count = Rc::clone(&self.byte_count);
                spawn_local(fetch_range(worker, spec, *claim, byte_count, reply));
                Ok(Some((awaited, Prepared::Asked)))
            }
            Err(error) => {
                tracing::debug!(%error, "no piece could be begun");
                Err(NoClaim)
            }
        }
    }

    /// The next bytes; `None` after the last byte.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Failure>> {
        while self.failures <= FAILURES_MAX {
            let range = match self.parts.front()? {
                BodyPart::Content(range) if range.is_empty() => {
                    self.parts.pop_front();
                    self.now = CurrentSource::Nothing;
                    continue;
                }
                BodyPart::Content(range) => range.clone(),
                BodyPart::Text(_) => match self.parts.pop_front() {
                    Some(BodyPart::Text(text)) => return Some(Ok(text)),
                    _ => continue,
                },
            };
            let piece = match &mut self.now {
                CurrentSource::Nothing => {
                    self.turn(range).await;
                    continue;
                }
                CurrentSource::Reading(reader) => {
                    poll_fn(|context| reader.poll_next(context)).await
                }
                CurrentSource::Following(arrival) => match arrival.next().await {
                    Ok(piece) => piece,
                    Err(Late) => {
                        self.lack = arrival.late;
                        self.now = CurrentSource::Nothing;
                        continue;
                    }
                },
            };
            match piece {
                Some(Ok(bytes)) => return Some(Ok(self.consume(bytes))),
                // A reader stops where bytes are missing; a fetched range stops where the next
                // range starts.
                None => self.now = CurrentSource::Nothing,
                Some(Err(ReadError::Missing { .. })) => {
                    let spans = self.lost_spans;
                    self.lack = Lack::Lost { spans };
                    self.lost_spans = spans.saturating_mul(2);
                    self.is_damaged = true;
                    self.fail().await;
                }
                Some(Err(_)) => self.fail().await,
            }
        }
        if self.is_damaged {
            // Otherwise the next request would be promised the lost bytes again.
            end_version(&self.worker, &self.spec.name, &self.hit).await;
        }
        Some(Err(Failure::ResponseIncomplete))
    }

    /// Cuts `bytes` to the wanted range and moves the range past them.
    fn consume(&mut self, mut bytes: Bytes) -> Bytes {
        self.failures = 0;
        if matches!(self.now, CurrentSource::Reading(_)) {
            self.lost_spans = 1;
        }
        if let Some(BodyPart::Content(range)) = self.parts.front_mut() {
            let left = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
            bytes.truncate(left);
            range.start += bytes.len() as u64;
        }
        bytes
    }

    async fn fail(&mut self) {
        self.now = CurrentSource::Nothing;
        self.failures += 1;
        // The first failure is expected: the index listed a byte that the disk no longer has.
        if self.failures > 1 {
            tokio::time::sleep(PAUSE * self.failures).await;
        }
    }

    /// Decides the source of the next bytes of `range`.
    async fn turn(&mut self, range: Range<u64>) {
        let at = range.start;
        if let Some(pages) = &self.spec.stored.pages {
            // The origin cannot supply a part of text stored in pages.
            match self.lack {
                Lack::Wanted => self.read(ContentReader::new(&self.hit, Some(pages), range)),
                Lack::Lost { .. } | Lack::Late { .. } => self.failures = FAILURES_MAX + 1,
            }
            return;
        }
        if self.ready.as_ref().is_some_and(|(start, _)| *start == at)
            && let Some((_, arrival)) = self.ready.take()
        {
            self.follow(arrival);
            return;
        }
        // A range that is being fetched is not read from the store, because the bytes may not be
        // there yet.
        let ahead = self.ready.as_ref().map(|(start, _)| *start);
        let end = ahead.map_or(range.end, |start| {
            if start > at {
                start.min(range.end)
            } else {
                range.end
            }
        });
        let end = end.min(claim_end(&self.hit, at));
        let lack = std::mem::replace(&mut self.lack, Lack::Wanted);
        if lack == Lack::Wanted {
            let hole = self.hit.holes(at..end).first().map(|hole| hole.start);
            if hole.is_none_or(|hole| hole > at) {
                let end = hole.map_or(end, |hole| hole.min(end));
                self.read(ContentReader::Plain(self.hit.reader(at..end)));
                return;
            }
        }
        match self.claim(at, range.end, (lack, None)) {
            Ok(Some((mut awaited, how))) => match self.answered(&mut awaited, how).await {
                Some(RangeStage::Arriving) => self.follow(Arrival::new(awaited, how)),
                None => self.lack = awaited.late(),
                // If the origin answers with an error, this response sends no further request.
                Some(RangeStage::Refused) if how == Prepared::Asked => {
                    self.failures = FAILURES_MAX + 1;
                }
                Some(RangeStage::Asked | RangeStage::Failed | RangeStage::Refused) => {
                    self.fail().await;
                }
                // No source has the rest of this version.
                Some(RangeStage::Gone) => self.failures = FAILURES_MAX + 1,
            },
            Ok(None) => {}
            Err(NoClaim) => self.fail().await,
        }
    }
}

impl Arrival {
    fn new(awaited: AwaitedRange, how: Prepared) -> Self {
        let patience = awaited.patience().filter(|_| how == Prepared::Joined);
        Self {
            late: awaited.late(),
            follower: awaited.follower,
            patience: patience.map(Patience::new),
        }
    }

    async fn next(&mut self) -> Result<Option<Result<Bytes, ReadError>>, Late> {
        let follower = &mut self.follower;
        match &mut self.patience {
            Some(patience) => patience.next(follower).await,
            None => Ok(poll_fn(|context| follower.poll_next(context)).await),
        }
    }
}
