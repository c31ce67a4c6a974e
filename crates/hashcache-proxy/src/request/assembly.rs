//! An answer that is put together from stored content and from content fetched meanwhile.
//!
//! An assembly handles its parts in order. It reads what is stored. Where bytes are missing, or
//! turn out to be missing when they are read, it claims the missing range and follows the fetch of
//! it. All bytes belong to one version: reader, claim and follower are made from one hit, and
//! `fetch::range_fetch` accepts no other bytes.
//!
//! Made by `hit`, read by `body`.
//!
//! Invariant: an assembly ends after the last byte of the last part, or with an error. It is an
//! error if upstream no longer has the version. Memory: one reader or follower; nothing is read
//! ahead of the client beyond that.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Follower, Hit, ReadError};

use crate::failure::Failure;
use crate::fetch::counters::ByteCount;
use crate::fetch::range_fetch::{RangeFetchSpec, fetch_range};
use crate::in_flight_ranges::{AwaitedRange, ClaimOutcome, RangeStage, claim_end};
use crate::store::content::{ContentReader, Payers};
use crate::task::spawn_local;
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
    /// They set memory aside for content that is read.
    payers: Option<Payers>,
    /// The fetch that began before the response did, and the offset where it begins.
    ready: Option<(u64, Follower)>,
    /// The next byte could not be read although the index listed it.
    lost: bool,
    /// Failed attempts since the last byte.
    failures: u32,
}

enum CurrentSource {
    Nothing,
    Reading(Box<ContentReader>),
    Following(Follower),
}

/// Attempts in a row for the same byte.
const FAILURES_MAX: u32 = 4;
/// Pause after a failed attempt, multiplied by the number of failures.
const PAUSE: Duration = Duration::from_millis(100);

/// The missing bytes are no longer available in the stored version.
pub(super) struct VersionLost;

/// How the fetch of the first missing byte began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// Nothing is missing, as far as the index knows.
    Stored,
    /// This request began it.
    Asked,
    /// Another request had begun it.
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
            ready: None,
            lost: false,
            failures: 0,
        }
    }

    /// Makes `payers` set memory aside before content is read, as in [`ContentReader::paid_by`].
    pub(super) fn pay_by(&mut self, payers: Payers) {
        self.payers = Some(payers);
        match std::mem::replace(&mut self.now, CurrentSource::Nothing) {
            CurrentSource::Nothing => {}
            CurrentSource::Reading(reader) => self.read(*reader),
            CurrentSource::Following(follower) => self.follow(follower),
        }
    }

    fn read(&mut self, reader: ContentReader) {
        let reader = match &self.payers {
            Some(payers) => reader.paid_by(payers),
            None => reader,
        };
        self.now = CurrentSource::Reading(Box::new(reader));
    }

    fn follow(&mut self, follower: Follower) {
        self.now = CurrentSource::Following(match &self.payers {
            Some(payers) => follower.paid_by(Arc::clone(&payers.stored)),
            None => follower,
        });
    }

    /// Fetches the first missing byte before the head of the response is sent. If the origin no
    /// longer has this version, another response is still possible then.
    pub(super) async fn prepare(&mut self) -> Result<Prepared, VersionLost> {
        for _ in 0..FAILURES_MAX {
            let Some((at, end)) = self.first_missing() else {
                return Ok(Prepared::Stored);
            };
            if self.spec.validator.is_none() {
                return Err(VersionLost);
            }
            let (mut awaited, prepared) = match self.claim(at, end, false)? {
                Some(claimed) => claimed,
                None => continue,
            };
            if awaited.answered().await != RangeStage::Arriving {
                return Err(VersionLost);
            }
            self.ready = Some((at, awaited.follower));
            return Ok(prepared);
        }
        Err(VersionLost)
    }

    fn first_missing(&self) -> Option<(u64, u64)> {
        if self.spec.stored.pages.is_some() {
            // `hit` has looked.
            return None;
        }
        self.parts.iter().find_map(|part| {
            let BodyPart::Content(range) = part else {
                return None;
            };
            let holes = self.hit.holes(range.clone());
            let first = holes.first()?;
            Some((first.start.max(range.start), range.end))
        })
    }

    /// Claims the byte at `at`; `None` if it turns out to be stored.
    fn claim(
        &self,
        at: u64,
        end: u64,
        lost: bool,
    ) -> Result<Option<(AwaitedRange, Prepared)>, VersionLost> {
        let ranges = &self.worker.common.collapse.ranges;
        match ranges.claim(&self.hit, at, end, lost) {
            Ok(ClaimOutcome::Stored) => Ok(None),
            Ok(ClaimOutcome::Joined(awaited)) => Ok(Some((awaited, Prepared::Joined))),
            Ok(ClaimOutcome::Leader(claim, awaited)) => {
                let (worker, spec) = (Rc::clone(&self.worker), Rc::clone(&self.spec));
                let byte_count = Rc::clone(&self.byte_count);
                spawn_local(fetch_range(worker, spec, *claim, byte_count));
                Ok(Some((awaited, Prepared::Asked)))
            }
            Err(error) => {
                tracing::debug!(%error, "no piece could be begun");
                Err(VersionLost)
            }
        }
    }

    /// The next bytes; `None` at the end.
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
                CurrentSource::Following(follower) => {
                    poll_fn(|context| follower.poll_next(context)).await
                }
            };
            match piece {
                Some(Ok(bytes)) => return Some(Ok(self.consume(bytes))),
                // A reader ends where bytes are missing; a fetched range ends where the next one
                // begins.
                None => self.now = CurrentSource::Nothing,
                Some(Err(ReadError::Missing { .. })) => {
                    self.lost = true;
                    self.fail().await;
                }
                Some(Err(_)) => self.fail().await,
            }
        }
        Some(Err(Failure::ResponseIncomplete))
    }

    /// Cuts `bytes` to the wanted range and moves the range behind them.
    fn consume(&mut self, mut bytes: Bytes) -> Bytes {
        self.failures = 0;
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

    /// Decides where the next bytes of `range` are read from.
    async fn turn(&mut self, range: Range<u64>) {
        let at = range.start;
        if let Some(pages) = &self.spec.stored.pages {
            // The origin has no part of what is stored.
            match self.lost {
                true => self.failures = FAILURES_MAX + 1,
                false => self.read(ContentReader::new(&self.hit, Some(pages), range)),
            }
            return;
        }
        if self.ready.as_ref().is_some_and(|(start, _)| *start == at)
            && let Some((_, follower)) = self.ready.take()
        {
            self.follow(follower);
            return;
        }
        // A range that is being fetched is not read from the store: its bytes may not be there yet.
        let ahead = self.ready.as_ref().map(|(start, _)| *start);
        let end = ahead.map_or(range.end, |start| match start > at {
            true => start.min(range.end),
            false => range.end,
        });
        let end = end.min(claim_end(&self.hit, at));
        let holes = match self.lost {
            true => Vec::new(),
            false => self.hit.holes(at..end),
        };
        let hole = holes.first().map(|hole| hole.start);
        if !self.lost && hole.is_none_or(|hole| hole > at) {
            let end = hole.map_or(end, |hole| hole.min(end));
            self.read(ContentReader::Plain(self.hit.reader(at..end)));
            return;
        }
        let lost = std::mem::take(&mut self.lost);
        match self.claim(at, range.end, lost) {
            Ok(Some((mut awaited, _))) => match awaited.answered().await {
                RangeStage::Arriving => self.follow(awaited.follower),
                RangeStage::Asked | RangeStage::Failed => self.fail().await,
                // No source has the rest of this version.
                RangeStage::Gone => self.failures = FAILURES_MAX + 1,
            },
            Ok(None) => {}
            Err(VersionLost) => self.fail().await,
        }
    }
}
