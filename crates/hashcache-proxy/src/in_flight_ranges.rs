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
pub(crate) enum Stage {
    /// Upstream has been asked.
    Asked,
    /// What was asked for is coming.
    Coming,
    /// It cannot be had from there now.
    Failed,
    /// It cannot be had any more: upstream has another version.
    Over,
}

struct Piece {
    start: u64,
    /// Moves down when what lies further ahead becomes a piece of its own.
    end: AtomicU64,
    stream: Arc<Stream>,
    stage: watch::Sender<Stage>,
}

type Shard = HashMap<u64, Vec<Arc<Piece>>>;

/// All pieces under way.
#[derive(Default)]
pub(crate) struct Pieces {
    shards: [Mutex<Shard>; SHARDS],
    whole_only: Mutex<HashMap<Box<[u8]>, Instant>>,
}

/// Whether an origin sends all of the content for a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeOnly {
    Yes,
    No,
}

/// What came of a claim.
pub(crate) enum Claimed {
    /// The bytes are there after all.
    Stored,
    /// Somebody fetches them.
    Joined(Awaited),
    /// The claimant must fetch them.
    Lead(Box<Claim>, Awaited),
}

/// Bytes on their way.
pub(crate) struct Awaited {
    pub(crate) follower: Follower,
    stage: watch::Receiver<Stage>,
}

impl Awaited {
    /// Waits for upstream's answer: what came of asking.
    pub(crate) async fn answered(&mut self) -> Stage {
        let answered = self.stage.wait_for(|stage| *stage != Stage::Asked).await;
        answered.map_or(Stage::Failed, |stage| *stage)
    }
}

/// A piece in the hands of who fetches it.
pub(crate) struct Claim {
    pub(crate) hit: Hit,
    pub(crate) writer: Writer,
    pub(crate) ticket: Ticket,
}

/// The place of a piece among those under way; it ends when this is dropped.
pub(crate) struct Ticket {
    pieces: Arc<Pieces>,
    version: u64,
    piece: Arc<Piece>,
}

impl Pieces {
    fn shard(&self, version: u64) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(version % SHARDS as u64).unwrap_or(0);
        self.shards[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the origin of `key` was seen to send all of the content for a part of it.
    pub(crate) fn comes_whole_only(&self, key: &[u8], now: Instant) -> bool {
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
    ) -> Result<Claimed, PutError> {
        let version = hit.version().to_u64();
        let mut shard = self.shard(version);
        let pieces = shard.get(&version).map_or(&[][..], Vec::as_slice);
        for piece in pieces {
            if !(piece.start..piece.end.load(Ordering::Acquire)).contains(&at) {
                continue;
            }
            let written = piece.stream.written();
            if lost && at < written {
                // It has been there and is gone: this fetch will not bring it again.
                continue;
            }
            if at > written.saturating_add(WAIT_AHEAD) {
                let span = hit.whole_spans(at..at);
                piece.end.store(span.start, Ordering::Release);
            } else if let Some(follower) = piece.stream.follow(at) {
                let stage = piece.stage.subscribe();
                return Ok(Claimed::Joined(Awaited { follower, stage }));
            }
        }
        let hole = match lost {
            true => hit.whole_spans(at..at),
            false => match hole(hit, at, end) {
                Some(hole) => hole,
                None => return Ok(Claimed::Stored),
            },
        };
        let next = pieces.iter().map(|piece| piece.start);
        let next = next.filter(|start| *start > at).min();
        let end = next.map_or(hole.end, |next| next.min(hole.end));
        let claim = self.insert(&mut shard, hit, hole.start..end)?;
        let (follower, stage) = (
            claim.writer.follow(at),
            claim.ticket.piece.stage.subscribe(),
        );
        Ok(Claimed::Lead(Box::new(claim), Awaited { follower, stage }))
    }

    /// Claims `range` of an object that has just begun. It begins with a span.
    pub(crate) fn begin(
        self: &Arc<Self>,
        hit: &Hit,
        range: Range<u64>,
    ) -> Result<(Claim, Awaited), PutError> {
        let mut shard = self.shard(hit.version().to_u64());
        let start = range.start;
        let claim = self.insert(&mut shard, hit, range)?;
        let (follower, stage) = (
            claim.writer.follow(start),
            claim.ticket.piece.stage.subscribe(),
        );
        Ok((claim, Awaited { follower, stage }))
    }

    fn insert(
        self: &Arc<Self>,
        shard: &mut Shard,
        hit: &Hit,
        range: Range<u64>,
    ) -> Result<Claim, PutError> {
        let version = hit.version().to_u64();
        let writer = hit.filler(range.start)?;
        let piece = Arc::new(Piece {
            start: range.start,
            end: AtomicU64::new(range.end),
            stream: writer.stream(),
            stage: watch::channel(Stage::Asked).0,
        });
        shard.entry(version).or_default().push(Arc::clone(&piece));
        let ticket = Ticket {
            pieces: Arc::clone(self),
            version,
            piece,
        };
        let hit = hit.clone();
        Ok(Claim {
            hit,
            writer,
            ticket,
        })
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

impl Ticket {
    pub(crate) fn start(&self) -> u64 {
        self.piece.start
    }

    /// Where it ends, as of now.
    pub(crate) fn end(&self) -> u64 {
        self.piece.end.load(Ordering::Acquire)
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.piece.stream
    }

    /// Tells those who wait that the bytes are coming.
    pub(crate) fn comes(&self) {
        self.piece.stage.send_replace(Stage::Coming);
    }

    /// Tells those who wait that the bytes will never come.
    pub(crate) fn over(&self) {
        self.piece.stage.send_replace(Stage::Over);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut shard = self.pieces.shard(self.version);
        if let Some(pieces) = shard.get_mut(&self.version) {
            pieces.retain(|piece| !Arc::ptr_eq(piece, &self.piece));
            if pieces.is_empty() {
                shard.remove(&self.version);
            }
        }
        drop(shard);
        self.piece.stage.send_if_modified(|stage| {
            let asked = *stage == Stage::Asked;
            if asked {
                *stage = Stage::Failed;
            }
            asked
        });
    }
}

#[cfg(test)]
mod tests;
