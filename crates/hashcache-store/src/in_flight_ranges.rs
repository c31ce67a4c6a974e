//! Byte ranges that stored responses lack and that are being fetched. Two requests that lack the
//! same bytes cause a single fetch.
//!
//! A range belongs to a version of an object. A request that lacks bytes *claims* them. If a fetch
//! will deliver them soon, the request follows that fetch; otherwise the request starts a fetch up
//! to the next range. A request does not wait for bytes far ahead of a fetch: these bytes become a
//! separate range, and the earlier fetch stops where that range starts.
//!
//! A fetch may deliver late because of a field that only the leader's request has, or because
//! memory is short and the fetch waits for a slow reader. Therefore a request that has waited for
//! [`AwaitedRange::patience`] takes over the remaining range: the earlier fetch stops there, and
//! all requests that need more bytes follow the new fetch. Each takeover doubles the patience, so
//! that an origin that is slow for everybody does not get many requests for the same range.
//!
//! Called by `request` in the proxy for the bytes that a response lacks; `fetch` in the proxy
//! fetches them. Shared by all cores.
//!
//! The engine keeps versions apart: a range is written by a filler of the hit that the claim names,
//! under the hit's version, and is followed and read only under that version. If the object was
//! replaced or removed meanwhile, only responses that are still being sent from the old version
//! find the range. `fetch/range_fetch` in the proxy checks that the bytes from upstream have that
//! version.
//!
//! Some origins ignore Range and send the whole content each time, so every further range would
//! transfer the whole object again. Such keys are remembered for a while.
//!
//! Invariant: two ranges never cover the same missing byte, unless that byte was lost. Missing
//! bytes are determined under the lock that a finished fetch takes, so bytes that have just been
//! stored are not fetched again, unless they cannot be read. Cost: a lock and an index lookup per
//! claim.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::{Follower, Hit, PutError, Stream, Writer};
use hashcache_base::fair_table::FairTable;
use hashcache_base::share::Network;
use tokio::sync::watch;
use tokio::time::Instant;

const SHARDS: usize = 32;
/// A claim waits for a fetch if the claimed byte is at most this far ahead of the written bytes.
const WAIT_AHEAD: u64 = 4 << 20;
/// Largest claim, in spans. The rest is claimed when these spans have arrived.
const CLAIM_SPANS: u64 = 4096;
/// An object with more holes than this is fetched from the first hole to the last as a single
/// range.
const HOLES_MAX: usize = 16;
/// How long a request waits for bytes from the fetch of another request before it takes over the
/// range. Longer than two round trips by satellite, shorter than the time in which people give up.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this many takeovers of a range, all requests wait for the fetch.
const TAKEOVERS_MAX: u32 = 4;
/// How long a key is fetched whole after the origin has ignored Range.
const WHOLE_ONLY: Duration = Duration::from_secs(600);
/// How many keys with an origin that ignores Range are remembered.
const REMEMBERED: usize = 4096;

/// Fetch state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeStage {
    /// The request was sent upstream.
    Asked,
    /// The content is arriving.
    Arriving,
    /// The fetch failed; a later one may succeed.
    Failed,
    /// Upstream has sent an error, or another response that has no part of this version and does
    /// not show that the version is outdated.
    Refused,
    /// Upstream has another version: the bytes will never be available.
    Gone,
}

struct InFlightRange {
    start: u64,
    /// Decreases when bytes further ahead become a separate range.
    end: AtomicU64,
    stream: Arc<Stream>,
    stage: watch::Sender<RangeStage>,
    /// How often this range was taken over from an earlier fetch.
    takeovers: u32,
}

impl InFlightRange {
    fn extent(&self) -> Range<u64> {
        self.start..self.end.load(Ordering::Acquire)
    }

    fn awaited(&self, follower: Follower) -> AwaitedRange {
        AwaitedRange {
            follower,
            stage: self.stage.subscribe(),
            takeovers: self.takeovers,
        }
    }
}

type RangeShard = HashMap<u64, Vec<Arc<InFlightRange>>>;

/// All ranges that are being fetched.
pub struct InFlightRanges {
    shards: [Mutex<RangeShard>; SHARDS],
    whole_only: Mutex<FairTable<Box<[u8]>, Instant>>,
}

impl Default for InFlightRanges {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            whole_only: Mutex::new(FairTable::new(REMEMBERED)),
        }
    }
}

/// Why bytes are claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The request needs the bytes: they are read or followed if possible.
    Wanted,
    /// The first byte could not be read, although the index may list it. The other bytes in these
    /// spans are not believed to be stored either.
    Lost {
        /// How many spans.
        spans: u64,
    },
    /// The fetch for these bytes has kept this request waiting for too long. If the range has been
    /// taken over more often than `takeovers`, a newer fetch is active, which is not late yet.
    Late {
        /// How often the late fetch was taken over.
        takeovers: u32,
    },
}

/// Result of a claim.
pub enum ClaimOutcome {
    /// The bytes are already stored.
    Stored,
    /// Another request fetches them.
    Joined(AwaitedRange),
    /// The claimant must fetch them.
    Leader(Box<RangeClaim>, AwaitedRange),
}

/// A range that is being fetched, from a follower's view.
pub struct AwaitedRange {
    /// Reads the bytes as they arrive.
    pub follower: Follower,
    stage: watch::Receiver<RangeStage>,
    takeovers: u32,
}

impl AwaitedRange {
    /// The reason for claiming bytes that this fetch has not delivered in time.
    pub fn late(&self) -> Lack {
        let takeovers = self.takeovers;
        Lack::Late { takeovers }
    }

    /// How long a request waits for this fetch if another request started it; `None`: until the
    /// fetch is over.
    pub fn patience(&self) -> Option<Duration> {
        (self.takeovers < TAKEOVERS_MAX).then(|| PATIENCE * (1 << self.takeovers))
    }

    /// Waits until the head of the upstream response arrives or the fetch is over.
    pub async fn answered(&mut self) -> RangeStage {
        let answered = self
            .stage
            .wait_for(|stage| *stage != RangeStage::Asked)
            .await;
        answered.map_or(RangeStage::Failed, |stage| *stage)
    }
}

/// A range to fetch, owned by the fetch.
pub struct RangeClaim {
    /// The object.
    pub hit: Hit,
    /// Writes the fetched bytes into the object.
    pub writer: Writer,
    /// Keeps the range in the list, and informs followers.
    pub guard: RangeGuard,
}

/// Entry of a range in the table; dropping the guard removes the range.
pub struct RangeGuard {
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

    /// Returns true if the origin for `key` has recently ignored Range.
    pub fn is_whole_only(&self, key: &[u8], now: Instant) -> bool {
        self.whole_only().get(key).is_some_and(|until| *until > now)
    }

    /// Notes that the origin for `key` ignored the Range in a request from `client`.
    pub fn note_whole_only(&self, key: &[u8], client: Network, now: Instant) {
        let (until, is_over) = (now + WHOLE_ONLY, |until: &Instant| *until <= now);
        self.whole_only()
            .insert_unless_over(key.into(), until, Some(client), is_over);
    }

    /// Notes that the origin for `key` has sent a range.
    pub fn note_range(&self, key: &[u8]) {
        self.whole_only().remove(key);
    }

    fn whole_only(&self) -> MutexGuard<'_, FairTable<Box<[u8]>, Instant>> {
        self.whole_only
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the bytes in `hit` from `at` to `end`.
    pub fn claim(
        self: &Arc<Self>,
        hit: &Hit,
        at: u64,
        end: u64,
        lack: Lack,
    ) -> Result<ClaimOutcome, PutError> {
        let version = hit.version().to_u64();
        let mut shard = self.shard(version);
        let ranges = shard.get(&version).map_or(&[][..], Vec::as_slice);
        let span = hit.whole_spans(at..at);
        let (mut takeovers, mut late_end) = (0, None);
        for range in ranges {
            if !range.extent().contains(&at) {
                continue;
            }
            let written = range.stream.written();
            if matches!(lack, Lack::Lost { .. }) && span.end <= written {
                // This fetch has already written the byte, and the byte is lost: the fetch will not
                // write it again.
                continue;
            }
            let is_late = match lack {
                Lack::Late { takeovers } => range.takeovers <= takeovers && at >= written,
                Lack::Wanted | Lack::Lost { .. } => false,
            };
            if is_late {
                takeovers = range.takeovers + 1;
                late_end = Some(range.extent().end);
            }
            if is_late || at > written.saturating_add(WAIT_AHEAD) {
                range.end.store(span.start, Ordering::Release);
            } else if let Some(follower) = range.stream.follow(at) {
                return Ok(ClaimOutcome::Joined(range.awaited(follower)));
            }
        }
        let hole = match (lack, late_end) {
            // The late fetch had claimed these bytes and has not written them.
            (_, Some(late_end)) => hit.whole_spans(at..end.min(late_end)),
            (Lack::Lost { spans }, None) => {
                let bytes = (span.end - span.start).saturating_mul(spans.clamp(1, CLAIM_SPANS));
                let last = span.start.saturating_add(bytes).min(end);
                hit.whole_spans(at..last)
            }
            (Lack::Wanted | Lack::Late { .. }, None) => match hole(hit, at, end) {
                Some(hole) => hole,
                None => return Ok(ClaimOutcome::Stored),
            },
        };
        let next = ranges.iter().map(|range| range.start);
        let next = next.filter(|start| *start > at).min();
        let end = next.map_or(hole.end, |next| next.min(hole.end));
        let claim = self.insert(&mut shard, hit, hole.start..end, takeovers)?;
        let awaited = claim.guard.range.awaited(claim.writer.follow(at));
        Ok(ClaimOutcome::Leader(Box::new(claim), awaited))
    }

    /// Claims `range` of an object that has just been created. The range starts where a span
    /// starts.
    pub fn begin(
        self: &Arc<Self>,
        hit: &Hit,
        range: Range<u64>,
    ) -> Result<(RangeClaim, AwaitedRange), PutError> {
        let mut shard = self.shard(hit.version().to_u64());
        let start = range.start;
        let claim = self.insert(&mut shard, hit, range, 0)?;
        let awaited = claim.guard.range.awaited(claim.writer.follow(start));
        Ok((claim, awaited))
    }

    fn insert(
        self: &Arc<Self>,
        shard: &mut RangeShard,
        hit: &Hit,
        range: Range<u64>,
        takeovers: u32,
    ) -> Result<RangeClaim, PutError> {
        let version = hit.version().to_u64();
        let writer = hit.filler(range.start)?;
        let range = Arc::new(InFlightRange {
            start: range.start,
            end: AtomicU64::new(range.end),
            stream: writer.stream(),
            stage: watch::channel(RangeStage::Asked).0,
            takeovers,
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
    let last = if holes.len() > HOLES_MAX {
        holes.last()?
    } else {
        first
    };
    Some(first.start..last.end)
}

/// Upper bound for the end of a claim at `at`.
pub fn claim_end(hit: &Hit, at: u64) -> u64 {
    let span = hit.whole_spans(at..at);
    at.saturating_add((span.end - span.start).max(1).saturating_mul(CLAIM_SPANS))
}

impl RangeGuard {
    /// The first byte of the range.
    pub fn start(&self) -> u64 {
        self.range.start
    }

    /// The current end of the range.
    pub fn end(&self) -> u64 {
        self.range.extent().end
    }

    /// The stream that makes followers of this range.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.range.stream
    }

    /// Notifies followers that the content is arriving.
    pub fn note_arriving(&self) {
        self.range.stage.send_replace(RangeStage::Arriving);
    }

    /// Notifies followers that the upstream response has no part of this version.
    pub fn note_refused(&self) {
        self.range.stage.send_replace(RangeStage::Refused);
    }

    /// Notifies followers that the bytes will never be available.
    pub fn note_gone(&self) {
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
