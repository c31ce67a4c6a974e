//! An answer put together of what is stored and what is fetched meanwhile.
//!
//! Goes through its parts in order. What is stored is read; where something is missing, or turns
//! out to be missing when it is read, a piece is claimed and followed. All of it is of one version:
//! reader, claim and follower come from one hit, and `fetch::range_fetch` lets no other bytes in.
//!
//! Called by `hit` and read by `body`. Invariant: it ends after the last byte of the last part
//! or with an error; if upstream no longer has the version, that is an error. Memory: what a reader
//! or follower holds, and nothing ahead of the client beyond that.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Follower, Hit, Payer, ReadError, Reader};

use crate::failure::Failure;
use crate::fetch::counters::ByteCount;
use crate::fetch::range_fetch::{RangeFetchSpec, fetch_range};
use crate::in_flight_ranges::{AwaitedRange, ClaimOutcome, RangeStage, claim_end};
use crate::worker::Worker;

/// A part of an answer's content.
pub(super) enum BodyPart {
    /// What stands between ranges.
    Text(Bytes),
    /// A stretch of the stored content.
    Content(Range<u64>),
}

/// The content of an answer.
pub(crate) struct Assembly {
    worker: Rc<Worker>,
    spec: Rc<RangeFetchSpec>,
    hit: Hit,
    byte_count: ByteCount,
    parts: VecDeque<BodyPart>,
    now: CurrentSource,
    /// Sets memory aside for what is read from disk.
    payer: Option<Payer>,
    /// What was asked for before the answer began, and where it begins.
    ready: Option<(u64, Follower)>,
    /// The next byte could not be read.
    lost: bool,
    /// Since the last byte.
    failures: u32,
}

enum CurrentSource {
    Nothing,
    Reading(Reader),
    Following(Follower),
}

/// Times in a row that the same byte is tried for.
const FAILURES_MAX: u32 = 4;
/// Pause after a failure, times the number of them.
const PAUSE: Duration = Duration::from_millis(100);

/// What is missing cannot be had as it was stored.
pub(super) struct VersionLost;

/// How the first missing byte came to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// Nothing is missing, as far as is known.
    Stored,
    /// It was asked for.
    Asked,
    /// Somebody else had asked for it.
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
            payer: None,
            ready: None,
            lost: false,
            failures: 0,
        }
    }

    /// Has `payer` asked before content is read from disk, as in [`Reader::paid_by`].
    pub(super) fn pay_by(&mut self, payer: Payer) {
        self.payer = Some(payer);
        match std::mem::replace(&mut self.now, CurrentSource::Nothing) {
            CurrentSource::Nothing => {}
            CurrentSource::Reading(reader) => self.read(reader),
            CurrentSource::Following(follower) => self.follow(follower),
        }
    }

    fn read(&mut self, reader: Reader) {
        self.now = CurrentSource::Reading(match &self.payer {
            Some(payer) => reader.paid_by(Arc::clone(payer)),
            None => reader,
        });
    }

    fn follow(&mut self, follower: Follower) {
        self.now = CurrentSource::Following(match &self.payer {
            Some(payer) => follower.paid_by(Arc::clone(payer)),
            None => follower,
        });
    }

    /// Has the first missing byte come before the answer's head is sent, so that an origin which no
    /// longer has this version is noticed while another answer is still possible.
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
        self.parts.iter().find_map(|part| {
            let BodyPart::Content(range) = part else {
                return None;
            };
            let holes = self.hit.holes(range.clone());
            let first = holes.first()?;
            Some((first.start.max(range.start), range.end))
        })
    }

    /// Claims the byte at `at`; `None` when it is there after all.
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
                tokio::task::spawn_local(fetch_range(worker, spec, *claim, byte_count));
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
                Some(Ok(bytes)) => return Some(Ok(self.note_head_time(bytes))),
                // A reader ends where something is missing, a piece where the next one begins.
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

    /// Cuts `bytes` to what is wanted and goes on behind them.
    fn note_head_time(&mut self, mut bytes: Bytes) -> Bytes {
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
        // The first time is no fault of anybody: what memory took for stored was not.
        if self.failures > 1 {
            tokio::time::sleep(PAUSE * self.failures).await;
        }
    }

    /// Finds out where the bytes of `range` are to come from.
    async fn turn(&mut self, range: Range<u64>) {
        let at = range.start;
        if self.ready.as_ref().is_some_and(|(start, _)| *start == at)
            && let Some((_, follower)) = self.ready.take()
        {
            self.follow(follower);
            return;
        }
        // What is being fetched already is not read: it may not be there yet.
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
            self.read(self.hit.reader(at..end));
            return;
        }
        let lost = std::mem::take(&mut self.lost);
        match self.claim(at, range.end, lost) {
            Ok(Some((mut awaited, _))) => match awaited.answered().await {
                RangeStage::Arriving => self.follow(awaited.follower),
                RangeStage::Asked | RangeStage::Failed => self.fail().await,
                // Nobody has the rest of this version.
                RangeStage::Gone => self.failures = FAILURES_MAX + 1,
            },
            Ok(None) => {}
            Err(VersionLost) => self.fail().await,
        }
    }
}
