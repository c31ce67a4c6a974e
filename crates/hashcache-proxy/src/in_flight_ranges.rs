//! Ranges of stored responses that are being fetched, so that two requests that lack the same bytes
//! cause one fetch.
//!
//! A range belongs to one version of one object. A request that lacks bytes *claims* them. If a
//! fetch will bring them soon, the request follows that fetch; otherwise it begins a fetch of its
//! own, up to where the next range begins. Bytes far ahead of a fetch are not waited for: they
//! become a range of their own, and the earlier fetch ends where that range begins.
//!
//! Called by `request` for the bytes that a response lacks; `fetch` fetches them. Shared by all
//! cores.
//!
//! The engine keeps versions apart: a range is written by a filler of the hit that it was claimed
//! for, under that hit's version, and is followed and read under that version alone. If the object
//! was replaced or removed meanwhile, only responses that are still sent from the old version find
//! the range. `fetch::range_fetch` checks whether upstream's bytes are of that version.
//!
//! Some origins ignore Range and send all of the content each time, so every further range would
//! transfer the whole object again. Their keys are remembered for a while.
//!
//! Invariant: two ranges never cover the same missing byte. Missing bytes are determined under the
//! lock that a fetch takes when it ends, so bytes that have just been stored are not fetched again,
//! unless they cannot be read. Cost: one lock and one look at the index per claim.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Follower, Hit, PutError, Stream, Writer};
use tokio::sync::watch;
use tokio::time::Instant;

const SHARDS: usize = 32;
/// A claim waits for a fetch whose written bytes end at most this far before the claimed byte.
const WAIT_AHEAD: u64 = 4 << 20;
/// Largest claim, in spans. The rest is claimed when these have arrived.
const CLAIM_SPANS: u64 = 4096;
/// An object with more holes than this is fetched from the first hole to the last in one range.
const HOLES_MAX: usize = 16;
/// How long a key is fetched whole after its origin has ignored Range.
const WHOLE_ONLY: Duration = Duration::from_secs(600);
/// Number of such keys; when the table is full, it is cleared.
const REMEMBERED: usize = 4096;

/// State of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeStage {
    /// The request was sent upstream.
    Asked,
    /// The content is arriving.
    Arriving,
    /// The fetch failed; a later one may succeed.
    Failed,
    /// Upstream has another version: the bytes will never be available.
    Gone,
}

struct InFlightRange {
    start: u64,
    /// Decreases when bytes further ahead become a range of their own.
    end: AtomicU64,
    stream: Arc<Stream>,
    stage: watch::Sender<RangeStage>,
}

type RangeShard = HashMap<u64, Vec<Arc<InFlightRange>>>;

/// All ranges that are being fetched.
#[derive(Default)]
pub(crate) struct InFlightRanges {
    shards: [Mutex<RangeShard>; SHARDS],
    whole_only: Mutex<HashMap<Box<[u8]>, Instant>>,
}

/// Whether an origin ignores Range and sends all of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeOnly {
    Yes,
    No,
}

/// Result of a claim.
pub(crate) enum ClaimOutcome {
    /// The bytes are stored after all.
    Stored,
    /// Another request fetches them.
    Joined(AwaitedRange),
    /// The claimant must fetch them.
    Leader(Box<RangeClaim>, AwaitedRange),
}

/// A range that is being fetched, as a follower sees it.
pub(crate) struct AwaitedRange {
    pub(crate) follower: Follower,
    stage: watch::Receiver<RangeStage>,
}

impl AwaitedRange {
    /// Waits for the head of upstream's response, or for the end of the fetch.
    pub(crate) async fn answered(&mut self) -> RangeStage {
        let answered = self
            .stage
            .wait_for(|stage| *stage != RangeStage::Asked)
            .await;
        answered.map_or(RangeStage::Failed, |stage| *stage)
    }
}

/// A range to fetch, owned by the fetch.
pub(crate) struct RangeClaim {
    pub(crate) hit: Hit,
    pub(crate) writer: Writer,
    pub(crate) guard: RangeGuard,
}

/// Entry of a range in the table; dropping it removes the range.
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

    /// Whether the origin of `key` was seen to ignore Range.
    pub(crate) fn is_whole_only(&self, key: &[u8], now: Instant) -> bool {
        self.whole_only().get(key).is_some_and(|until| *until > now)
    }

    /// Notes whether the origin of `key` ignored Range.
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

    /// Claims the missing bytes of `hit` from `at` on, up to `end`. `lost`: the byte at `at` could
    /// not be read, even if the index lists it.
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
                // This fetch has written the byte already, and it is gone: the fetch will not write
                // it again.
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

    /// Claims `range` of an object that has just begun. The range begins with a span.
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

/// The hole at `at`, up to `end`, in whole spans; `None` if the byte at `at` is stored.
fn hole(hit: &Hit, at: u64, end: u64) -> Option<Range<u64>> {
    let holes = hit.holes(at..end.min(claim_end(hit, at)));
    let first = holes.first().filter(|hole| hole.start <= at)?;
    let last = match holes.len() > HOLES_MAX {
        true => holes.last()?,
        false => first,
    };
    Some(first.start..last.end)
}

/// The largest possible end of a claim at `at`.
pub(crate) fn claim_end(hit: &Hit, at: u64) -> u64 {
    let span = hit.whole_spans(at..at);
    at.saturating_add((span.end - span.start).max(1).saturating_mul(CLAIM_SPANS))
}

impl RangeGuard {
    pub(crate) fn start(&self) -> u64 {
        self.range.start
    }

    /// The current end of the range.
    pub(crate) fn end(&self) -> u64 {
        self.range.end.load(Ordering::Acquire)
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.range.stream
    }

    /// Notifies followers that the content is arriving.
    pub(crate) fn note_arriving(&self) {
        self.range.stage.send_replace(RangeStage::Arriving);
    }

    /// Notifies followers that the bytes will never be available.
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
