//! Pieces: stretches of stored responses that are being fetched, so that two who lack the same
//! bytes cause one fetch.
//!
//! A piece belongs to one version of one object. Whoever lacks bytes *claims* them: either they are
//! on their way already, and the claimant follows that fetch, or the claimant begins one, up
//! to where the next piece begins. What lies far ahead of a fetch is not waited for: it becomes a
//! piece of its own, and the fetch ends where that begins.
//!
//! Called by `request` for what an answer lacks; `fetch` brings it. Shared by all cores.
//!
//! Versions are kept apart by the engine: a piece is written by a filler of the hit it was
//! claimed for, under that hit's version, and followed and read under that version alone. A
//! piece that comes late, after its object was replaced or removed, is found by nobody but
//! those who still answer from the old version. Whether upstream's bytes are of that version is
//! judged in `fetch::range_fetch`.
//!
//! Some origins do not know ranges and send all of the content for each; who asks them for one
//! piece after another has all of it sent as often. Their keys are remembered for a while.
//!
//! Invariant: what a piece has still to bring is in no other piece. What is missing is decided
//! under the lock that a fetch must take to end, so that what has just come is not fetched again;
//! only what has come and cannot be read is. Cost: one lock and a look at the index a claim.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Follower, Hit, PutError, Stream, Writer};
use tokio::sync::watch;
use tokio::time::Instant;

const SHARDS: usize = 32;
/// What lies no further than this ahead of a fetch is waited for.
const WAIT_AHEAD: u64 = 4 << 20;
/// What one claim covers at most, in spans: more is claimed when that has come.
const CLAIM_SPANS: u64 = 4096;
/// Of an object with more holes than this, all is fetched from the first to the last of them.
const HOLES_MAX: usize = 16;
/// How long a key is fetched whole after its origin sent the whole for a part.
const WHOLE_ONLY: Duration = Duration::from_secs(600);
/// Such keys remembered; beyond that the table begins anew.
const REMEMBERED: usize = 4096;

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeStage {
    /// Upstream has been asked.
    Asked,
    /// What was asked for is coming.
    Arriving,
    /// It cannot be had from there now.
    Failed,
    /// It cannot be had any more: upstream has another version.
    Gone,
}

struct InFlightRange {
    start: u64,
    /// Moves down when what lies further ahead becomes a piece of its own.
    end: AtomicU64,
    stream: Arc<Stream>,
    stage: watch::Sender<RangeStage>,
}

type RangeShard = HashMap<u64, Vec<Arc<InFlightRange>>>;

/// All pieces under way.
#[derive(Default)]
pub(crate) struct InFlightRanges {
    shards: [Mutex<RangeShard>; SHARDS],
    whole_only: Mutex<HashMap<Box<[u8]>, Instant>>,
}

/// Whether an origin sends all of the content for a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeOnly {
    Yes,
    No,
}

/// What came of a claim.
pub(crate) enum ClaimOutcome {
    /// The bytes are there after all.
    Stored,
    /// Somebody fetches them.
    Joined(AwaitedRange),
    /// The claimant must fetch them.
    Leader(Box<RangeClaim>, AwaitedRange),
}

/// Bytes on their way.
pub(crate) struct AwaitedRange {
    pub(crate) follower: Follower,
    stage: watch::Receiver<RangeStage>,
}

impl AwaitedRange {
    /// Waits for upstream's answer: what came of asking.
    pub(crate) async fn answered(&mut self) -> RangeStage {
        let answered = self
            .stage
            .wait_for(|stage| *stage != RangeStage::Asked)
            .await;
        answered.map_or(RangeStage::Failed, |stage| *stage)
    }
}

/// A piece in the hands of who fetches it.
pub(crate) struct RangeClaim {
    pub(crate) hit: Hit,
    pub(crate) writer: Writer,
    pub(crate) guard: RangeGuard,
}

/// The place of a piece among those under way; it ends when this is dropped.
pub(crate) struct RangeGuard {
    ranges: Arc<InFlightRanges>,
    version: u64,
    range: Arc<InFlightRange>,
}

impl InFlightRanges {
    fn shard(&self, version: u64) -> MutexGuard<'_, RangeShard> {
        let index = usize::try_from(version % SHARDS as u64).unwrap_or(0);
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the origin of `key` was seen to send all of the content for a part of it.
    pub(crate) fn is_whole_only(&self, key: &[u8], now: Instant) -> bool {
        self.whole_only().get(key).is_some_and(|until| *until > now)
    }

    /// Notes how the origin of `key` answered when asked for a part.
    pub(crate) fn note_whole_only(&self, key: &[u8], whole_only: WholeOnly, now: Instant) {
        let mut keys = self.whole_only();
        match whole_only {
            WholeOnly::Yes => {
                if keys.len() >= REMEMBERED {
                    keys.clear();
                }
                keys.insert(key.into(), now + WHOLE_ONLY);
            }
            WholeOnly::No => {
                keys.remove(key);
            }
        }
    }

    fn whole_only(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Instant>> {
        self.whole_only
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims what `hit` lacks at `at`, and what it lacks behind that up to `end`. `lost` says that
    /// the byte at `at` could not be read, whatever memory says about it.
    pub(crate) fn claim(
        self: &Arc<Self>,
        hit: &Hit,
        at: u64,
        end: u64,
        lost: bool,
    ) -> Result<ClaimOutcome, PutError> {
        let version = hit.version().to_u64();
        let mut shard = self.shard(version);
        let ranges = shard.get(&version).map_or(&[][..], Vec::as_slice);
        for range in ranges {
            if !(range.start..range.end.load(Ordering::Acquire)).contains(&at) {
                continue;
            }
            let written = range.stream.written();
            if lost && at < written {
                // It has been there and is gone: this fetch will not bring it again.
                continue;
            }
            if at > written.saturating_add(WAIT_AHEAD) {
                let span = hit.whole_spans(at..at);
                range.end.store(span.start, Ordering::Release);
            } else if let Some(follower) = range.stream.follow(at) {
                let stage = range.stage.subscribe();
                return Ok(ClaimOutcome::Joined(AwaitedRange { follower, stage }));
            }
        }
        let hole = match lost {
            true => hit.whole_spans(at..at),
            false => match hole(hit, at, end) {
                Some(hole) => hole,
                None => return Ok(ClaimOutcome::Stored),
            },
        };
        let next = ranges.iter().map(|range| range.start);
        let next = next.filter(|start| *start > at).min();
        let end = next.map_or(hole.end, |next| next.min(hole.end));
        let claim = self.insert(&mut shard, hit, hole.start..end)?;
        let (follower, stage) = (claim.writer.follow(at), claim.guard.range.stage.subscribe());
        Ok(ClaimOutcome::Leader(
            Box::new(claim),
            AwaitedRange { follower, stage },
        ))
    }

    /// Claims `range` of an object that has just begun. It begins with a span.
    pub(crate) fn begin(
        self: &Arc<Self>,
        hit: &Hit,
        range: Range<u64>,
    ) -> Result<(RangeClaim, AwaitedRange), PutError> {
        let mut shard = self.shard(hit.version().to_u64());
        let start = range.start;
        let claim = self.insert(&mut shard, hit, range)?;
        let (follower, stage) = (
            claim.writer.follow(start),
            claim.guard.range.stage.subscribe(),
        );
        Ok((claim, AwaitedRange { follower, stage }))
    }

    fn insert(
        self: &Arc<Self>,
        shard: &mut RangeShard,
        hit: &Hit,
        range: Range<u64>,
    ) -> Result<RangeClaim, PutError> {
        let version = hit.version().to_u64();
        let writer = hit.filler(range.start)?;
        let range = Arc::new(InFlightRange {
            start: range.start,
            end: AtomicU64::new(range.end),
            stream: writer.stream(),
            stage: watch::channel(RangeStage::Asked).0,
        });
        shard.entry(version).or_default().push(Arc::clone(&range));
        let guard = RangeGuard {
            ranges: Arc::clone(self),
            version,
            range,
        };
        let hit = hit.clone();
        Ok(RangeClaim { hit, writer, guard })
    }
}

/// What is missing at `at` and behind it up to `end`, in whole spans; `None` if nothing is at `at`.
fn hole(hit: &Hit, at: u64, end: u64) -> Option<Range<u64>> {
    let holes = hit.holes(at..end.min(claim_end(hit, at)));
    let first = holes.first().filter(|hole| hole.start <= at)?;
    let last = match holes.len() > HOLES_MAX {
        true => holes.last()?,
        false => first,
    };
    Some(first.start..last.end)
}

/// Where a claim at `at` ends at the latest.
pub(crate) fn claim_end(hit: &Hit, at: u64) -> u64 {
    let span = hit.whole_spans(at..at);
    at.saturating_add((span.end - span.start).max(1).saturating_mul(CLAIM_SPANS))
}

impl RangeGuard {
    pub(crate) fn start(&self) -> u64 {
        self.range.start
    }

    /// Where it ends, as of now.
    pub(crate) fn end(&self) -> u64 {
        self.range.end.load(Ordering::Acquire)
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.range.stream
    }

    /// Tells those who wait that the bytes are coming.
    pub(crate) fn note_arriving(&self) {
        self.range.stage.send_replace(RangeStage::Arriving);
    }

    /// Tells those who wait that the bytes will never come.
    pub(crate) fn note_gone(&self) {
        self.range.stage.send_replace(RangeStage::Gone);
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut shard = self.ranges.shard(self.version);
        if let Some(ranges) = shard.get_mut(&self.version) {
            ranges.retain(|range| !Arc::ptr_eq(range, &self.range));
            if ranges.is_empty() {
                shard.remove(&self.version);
            }
        }
        drop(shard);
        self.range.stage.send_if_modified(|stage| {
            let asked = *stage == RangeStage::Asked;
            if asked {
                *stage = RangeStage::Failed;
            }
            asked
        });
    }
}

#[cfg(test)]
mod tests;
