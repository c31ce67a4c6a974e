//! Collapsed forwarding: one fetch serves all requests that wait for the same key, on any core.
//!
//! The first request that misses becomes the *leader* and owns the [`Leader`]; later requests are
//! *followers*. When the response head has arrived, the leader announces its outcome:
//!
//! | outcome | followers |
//! |---|---|
//! | the response is being stored, or a 304 confirmed the stored response | answer from it |
//! | the origin failed | fail too, unless a field of the leader's request may be the cause |
//! | the response is for its client only | fetch for themselves, all at once |
//! | none (its client's limit, a field of its request) | one follower is the next leader |
//!
//! A key with a response for a single client is remembered, so that later requests do not wait. If
//! a leader is slow, a second leader starts beside it (`follower`), not a crowd.
//!
//! Called by `request` in the proxy; `fetch` in the proxy owns the [`Leader`] during the fetch.
//!
//! Invariants: a follower waits for the head no longer than a fetch may take to its first byte.
//! While followers wait, a key gets at most one more leader each time the wait is over, and that
//! wait doubles. Cost: one lock and one map entry per fetch in progress.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::StoredResponse;
use crate::follow::ContentStream;
use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_base::fair_table::FairTable;
use hashcache_base::share::Network;
use hashcache_http::{Authority, VARY_ROW_BYTES_MAX, compared_fields};
use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::in_flight_ranges::InFlightRanges;

mod follower;

pub use self::follower::{AtEnd, Followed, Follower, Succession, WaitTimes};

const SHARDS: usize = 32;
/// If a failed request's fields are longer than this, they are not compared with other requests.
const COMPARED_BYTES_MAX: usize = VARY_ROW_BYTES_MAX;
/// Keeps nonce hashes apart from key hashes.
const NONCE: &str = "variants";
const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// With [`CollapseWait::Lan`], the wait for an origin with unknown response time.
const WAIT_UNKNOWN: Duration = Duration::from_secs(1);
/// For an origin that hardly ever sends shareable responses: waiting does not help there, so a page
/// that takes a second must not take more than a tenth longer.
const WAIT_IN_VAIN: Duration = Duration::from_millis(100);
/// How long requests do not wait for a key after a response that could not be shared.
const UNSHAREABLE: Duration = Duration::from_secs(120);
/// How long background validation pauses after a failure.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Keys and origins remembered in each shard.
const REMEMBERED: usize = 512;

/// How long a request waits for the response head from the fetch of another request (collapsed
/// forwarding).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollapseWait {
    /// As long as the fetch may take to its first byte (`limits.first_byte_time`): on a slow or
    /// distant line a second fetch costs more than the wait saves.
    #[default]
    Satellite,
    /// Twice the origin's usual time to the first byte, between 200 ms and 5 s; one second for an
    /// unknown origin. If origins are near, a second request is better than a long wait.
    Lan,
    /// At most this long.
    Within(Duration),
}

/// A leader's message to its followers.
#[derive(Clone)]
pub(crate) enum CollapseMsg {
    /// The head has not arrived yet.
    Wait,
    /// The response is being stored and may be followed.
    Shared(Arc<SharedResponse>),
    /// The stored response was validated: look it up again.
    Validated(Requester),
    /// The origin failed.
    Failed(SharedFailure),
    /// The response is for its client only: each follower fetches for itself.
    NotShared,
    /// No leader is left, and no leader had an outcome for followers: one follower fetches next.
    NoOutcome,
}

/// The request kind: how much the response may depend on the client. The order matters: a request
/// waits only for a leader of the same or an earlier kind. Otherwise a client could send a field
/// that makes the origin slow, and other clients would wait for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// Without a field that identifies a client or that can make an origin fail.
    Anybody,
    /// With a cookie, credentials, a client address, or a special field that can make an origin
    /// fail.
    OneClient,
    /// With a field that has an unknown effect.
    Unknown,
}

/// A failure at the origin or on the way to it.
#[derive(Clone)]
pub struct SharedFailure {
    pub(crate) failure: Failure,
    /// The failed request's kind.
    pub(crate) requester: Requester,
    pub(crate) client: Network,
    /// If the failure is a response: the failed request's fields by which the origin may have
    /// chosen it (`compared_fields`). `None`: the fields are too long to be compared.
    pub(crate) fields: Option<Arc<[u8]>>,
}

impl SharedFailure {
    /// The failure for a request that `client` sent with `fields`.
    pub fn new(
        failure: Failure,
        requester: Requester,
        (client, fields): (Network, &HeaderMap),
    ) -> Self {
        let compared = || compared_fields(fields, COMPARED_BYTES_MAX).map(Arc::from);
        Self {
            fields: failure.may_be_of_fields().then(compared).flatten(),
            failure,
            requester,
            client,
        }
    }

    /// Returns true if a request with `fields` would fail too, as far as the fields show. An origin
    /// may fail because of any field, even User-Agent or Accept; with the same fields it fails
    /// again. A failure before the origin has read the request holds for every request, but only if
    /// the failed request was of the kind [`Requester::Anybody`]: anybody could have sent it.
    fn holds_for(&self, fields: &HeaderMap) -> bool {
        if self.failure.may_be_of_fields() {
            self.fields.as_deref().is_some_and(|failed| {
                compared_fields(fields, COMPARED_BYTES_MAX).as_deref() == Some(failed)
            })
        } else {
            self.requester == Requester::Anybody
        }
    }
}

/// A response that is being stored.
pub struct SharedResponse {
    /// The response, without the content.
    pub stored: StoredResponse,
    /// Content length in bytes, if the origin has announced it.
    pub length: Option<u64>,
    /// The request upstream had a Range, but the origin sent the whole content.
    pub ignores_range: bool,
    /// The request kind that the response answers.
    pub requester: Requester,
    /// The stream that makes followers of the content.
    pub stream: ContentStream,
}

/// A request's role in a fetch.
pub enum Role {
    /// This request must fetch, and inform the followers.
    Leader(Leader),
    /// Another request fetches.
    Follower(Follower),
    /// Another request fetches, but the response will probably not be shareable.
    Alone,
}

struct CollapseShard {
    fetches: HashMap<Bytes, RoundEntry>,
    /// Requests of this kind, or of a later kind, do not wait until this time.
    unshareable: FairTable<Box<[u8]>, (Instant, Requester)>,
    failed: FairTable<Box<[u8]>, Instant>,
    origins: FairTable<Authority, OriginStats>,
}

impl Default for CollapseShard {
    fn default() -> Self {
        Self {
            fetches: HashMap::new(),
            unshareable: FairTable::new(REMEMBERED),
            failed: FairTable::new(REMEMBERED),
            origins: FairTable::new(REMEMBERED),
        }
    }
}

/// The leaders and followers for a key: several leaders if the first is slow.
struct Round {
    messages: watch::Sender<CollapseMsg>,
    /// Leaders that have not been dropped.
    leaders: AtomicUsize,
}

/// A round that requests may join.
struct RoundEntry {
    round: Arc<Round>,
    /// When the latest leader started.
    last_began: Instant,
    /// Leaders started so far.
    begun: u32,
    /// The earliest kind among all leaders' requests.
    requester: Requester,
}

impl RoundEntry {
    /// When another leader may start. The time between two leaders doubles, so that an origin that
    /// answers nobody does not get everybody's requests. A leader with a cookie may be slow because
    /// of that cookie, so followers with cookies wait for it no longer than [`WAIT_MAX`], whatever
    /// the operator has set.
    fn next_leader_at(&self, first: Duration) -> Instant {
        let first = match self.requester {
            Requester::Anybody => first,
            Requester::OneClient | Requester::Unknown => first.min(WAIT_MAX),
        };
        let doubled = first.saturating_mul(1 << (self.begun - 1).min(8));
        self.last_began + doubled.min(WAIT_MAX.max(first))
    }

    fn one_more(&mut self, collapse: &Arc<Collapse>, key: &Bytes, now: Instant) -> Leader {
        self.last_began = now;
        self.begun = self.begun.saturating_add(1);
        Leader::new(collapse, key, &self.round)
    }
}

/// Averages over an origin's eight or so most recent responses.
#[derive(Clone, Copy, Default)]
struct OriginStats {
    /// Time to the first byte, milliseconds.
    first_byte_ms: Option<u32>,
    /// Shared fraction of leaders' responses, in units of 1/[`ALL`].
    shared: Option<u32>,
}

/// The fraction 1.
const ALL: u32 = 1 << 10;
/// If an origin shares less than this (one response in eight), requests do not wait for it.
const HARDLY_ANY: u32 = ALL / 8;

impl OriginStats {
    fn wait_times(self, wait: CollapseWait, first_byte_time: Duration) -> WaitTimes {
        if matches!(self.shared, Some(..HARDLY_ANY)) {
            let only = WAIT_IN_VAIN.min(first_byte_time);
            return WaitTimes {
                first: only,
                total: only,
                at_end: AtEnd::Alone,
            };
        }
        let patience = match (wait, self.first_byte_ms) {
            (CollapseWait::Satellite, _) => first_byte_time,
            (CollapseWait::Within(most), _) => most,
            (CollapseWait::Lan, Some(usual)) => {
                Duration::from_millis(2 * u64::from(usual)).clamp(WAIT_MIN, WAIT_MAX)
            }
            (CollapseWait::Lan, None) => WAIT_UNKNOWN,
        };
        WaitTimes {
            first: patience.min(first_byte_time),
            total: first_byte_time,
            at_end: AtEnd::Fail,
        }
    }
}

/// Moves `usual` an eighth of the way to `seen`; the first value is taken unchanged.
fn smooth(usual: &mut Option<u32>, seen: u32) {
    *usual = Some(usual.map_or(seen, |usual| (usual * 7 + seen) / 8));
}

/// All fetches in progress.
#[derive(Default)]
pub struct Collapse {
    shards: [Mutex<CollapseShard>; SHARDS],
    hasher: RandomState,
    /// Serialises read-modify-write updates to stored response heads.
    heads: [tokio::sync::Mutex<()>; SHARDS],
    /// Fetches for which no client waits.
    background: Mutex<BackgroundCounts>,
    /// Byte ranges of stored responses that are being fetched.
    pub ranges: Arc<InFlightRanges>,
}

impl Collapse {
    /// Creates the table without any fetch.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn shard(&self, key: &(impl Hash + ?Sized)) -> MutexGuard<'_, CollapseShard> {
        self.shards[self.index(key)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other task changes the head stored under `name`. Each lock covers 1/32 of all
    /// names.
    pub async fn head(&self, name: &[u8]) -> tokio::sync::MutexGuard<'_, ()> {
        self.heads[self.index(name)].lock().await
    }

    /// A number that no client can guess, for the variant table in `version`.
    pub fn nonce(&self, version: u64) -> u64 {
        self.hasher.hash_one((NONCE, version))
    }

    fn index(&self, key: &(impl Hash + ?Sized)) -> usize {
        usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0)
    }

    /// Joins the fetch for `key`, or starts a fetch.
    pub fn join(self: &Arc<Self>, key: &Bytes, requester: Requester, now: Instant) -> Role {
        let mut shard = self.shard(key);
        let unshareable = shard.unshareable.get(&key[..]);
        if unshareable.is_some_and(|(until, kind)| *until > now && requester >= *kind) {
            return Role::Alone;
        }
        if let Some(entry) = shard.fetches.get_mut(key) {
            if requester < entry.requester {
                entry.requester = requester;
                return Role::Leader(entry.one_more(self, key, now));
            }
            return Role::Follower(Follower::new(self, key, requester, &entry.round));
        }
        let round = Arc::new(Round {
            messages: watch::Sender::new(CollapseMsg::Wait),
            leaders: AtomicUsize::new(0),
        });
        let leader = Leader::new(self, key, &round);
        let entry = RoundEntry {
            round,
            last_began: now,
            begun: 1,
            requester,
        };
        shard.fetches.insert(key.clone(), entry);
        Role::Leader(leader)
    }

    /// The fetch for `key` in progress, for callers that would not start a fetch.
    pub fn under_way(self: &Arc<Self>, key: &Bytes) -> Option<Follower> {
        let shard = self.shard(key);
        let entry = shard.fetches.get(key)?;
        // This follower never starts a fetch under this key, so the kind does not matter.
        let requester = Requester::Unknown;
        Some(Follower::new(self, key, requester, &entry.round))
    }

    /// Marks the fetch for `key` as outdated: no further request may join it.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.shard(key).fetches.remove(key);
    }

    /// As [`Self::forget`], for all keys that `old` selects.
    pub(crate) fn forget_where(&self, old: impl Fn(&[u8]) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.fetches.retain(|key, _| !old(key));
        }
    }

    /// Counts a background fetch of `origin` that `client` caused, until the guard is dropped.
    /// `None` if there are already as many fetches of this kind as `bound` allows: an origin that
    /// never answers must not stop validations at all other origins.
    pub fn in_background(
        self: &Arc<Self>,
        kind: Background,
        (client, origin): (Network, &Authority),
        bound: BackgroundBound,
    ) -> Option<BackgroundFetch> {
        let owners = [
            BackgroundOwner::All,
            BackgroundOwner::Client(client),
            BackgroundOwner::Origin(origin.clone()),
        ]
        .map(|owner| (kind, owner));
        let mut counts = self.background();
        let is_full = owners.iter().any(|key| {
            let most = match key.1 {
                BackgroundOwner::All => bound.all,
                BackgroundOwner::Client(_) | BackgroundOwner::Origin(_) => bound.of_one,
            };
            counts.get(key).is_some_and(|count| *count >= most)
        });
        if is_full {
            return None;
        }
        for key in &owners {
            *counts.entry(key.clone()).or_default() += 1;
        }
        drop(counts);
        Some(BackgroundFetch(Arc::clone(self), owners))
    }

    fn background(&self) -> MutexGuard<'_, BackgroundCounts> {
        self.background
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a validation for `key` failed recently.
    pub fn failed_lately(&self, key: &[u8], now: Instant) -> bool {
        self.shard(key)
            .failed
            .get(key)
            .is_some_and(|until| *until > now)
    }

    /// Notes that a validation for `key` failed; `client` caused it.
    pub fn failed(&self, key: &[u8], client: Network, now: Instant) {
        let (until, is_over) = (now + RETRY_AFTER, |until: &Instant| *until <= now);
        self.shard(key)
            .failed
            .insert_unless_over(key.into(), until, Some(client), is_over);
    }

    /// How long to wait for the head from `origin`: according to `wait`, but never longer than
    /// `first_byte_time`, and only shortly if the origin's responses are hardly ever shareable.
    pub fn wait_times(
        &self,
        origin: &Authority,
        wait: CollapseWait,
        first_byte_time: Duration,
    ) -> WaitTimes {
        let shard = self.shard(origin);
        let origin_stats = shard.origins.get(origin).copied().unwrap_or_default();
        origin_stats.wait_times(wait, first_byte_time)
    }

    /// Notes how long `origin` took to send a head to `client`.
    pub fn note_head_time(&self, (client, origin): (Network, &Authority), time: Duration) {
        let millis = u32::try_from(time.as_millis())
            .unwrap_or(u32::MAX)
            .min(1 << 20);
        self.learn((client, origin), |origin_stats| {
            smooth(&mut origin_stats.first_byte_ms, millis);
        });
    }

    fn learn(&self, (client, origin): (Network, &Authority), note: impl FnOnce(&mut OriginStats)) {
        let mut shard = self.shard(origin);
        if let Some(known) = shard.origins.get_mut(origin) {
            return note(known);
        }
        let mut new = OriginStats::default();
        note(&mut new);
        shard.origins.insert(origin.clone(), new, Some(client));
    }
}

/// Reason for a background fetch, for which no client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Background {
    /// A stored response is validated while it is served.
    Revalidation,
    /// A parent named the resource.
    Hint,
}

/// Maximum number of background fetches of the same kind.
#[derive(Clone, Copy, Debug)]
pub struct BackgroundBound {
    /// For all origins and clients together.
    pub all: usize,
    /// For a single origin, and for a single client.
    pub of_one: usize,
}

/// The owners that a background fetch counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum BackgroundOwner {
    All,
    Client(Network),
    Origin(Authority),
}

type BackgroundCounts = HashMap<(Background, BackgroundOwner), usize>;

/// A background fetch in progress.
pub struct BackgroundFetch(Arc<Collapse>, [(Background, BackgroundOwner); 3]);

impl Drop for BackgroundFetch {
    fn drop(&mut self) {
        let mut counts = self.0.background();
        for key in &self.1 {
            if let Some(count) = counts.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(key);
                }
            }
        }
    }
}

/// A fetch in progress. Held by the fetching task.
pub struct Leader {
    collapse: Arc<Collapse>,
    key: Bytes,
    round: Arc<Round>,
}

impl Leader {
    /// Counts another leader in `round`; the caller holds the lock of the key's shard.
    fn new(collapse: &Arc<Collapse>, key: &Bytes, round: &Arc<Round>) -> Self {
        round.leaders.fetch_add(1, Ordering::Relaxed);
        Self {
            collapse: Arc::clone(collapse),
            key: key.clone(),
            round: Arc::clone(round),
        }
    }

    /// Announces that the origin's response to the client may be shared and is being stored.
    /// Further requests may join until the leader is dropped.
    pub fn share(&self, from: (Network, &Authority), response: SharedResponse) {
        self.judged(from, ALL);
        self.tell(CollapseMsg::Shared(Arc::new(response)));
    }

    /// Announces that the origin has confirmed the stored response, in reply to a request of this
    /// kind.
    pub fn validated(self, from: (Network, &Authority), requester: Requester) {
        self.judged(from, ALL);
        self.tell(CollapseMsg::Validated(requester));
    }

    /// Announces that the origin failed, unless another leader may still succeed. Each follower
    /// then judges if the follower's request would fail too.
    pub fn failed(self, failure: SharedFailure) {
        if self.round.leaders.load(Ordering::Relaxed) == 1 {
            self.tell(CollapseMsg::Failed(failure));
        }
    }

    /// Notes that the origin's response to a request of this kind cannot be shared, and that the
    /// next response most likely cannot either. This is no evidence for requests of an earlier
    /// kind: otherwise a client could send a field that makes the response unstorable, and all
    /// clients' requests would go to the origin.
    pub fn not_shared(self, from: (Network, &Authority), requester: Requester, now: Instant) {
        if requester < Requester::Unknown {
            self.judged(from, 0);
        }
        let mut shard = self.collapse.shard(&self.key);
        let known = shard.unshareable.get(&self.key[..]);
        let known = known.filter(|(until, _)| *until > now);
        let kind = known.map_or(requester, |(_, kind)| requester.min(*kind));
        let until = (now + UNSHAREABLE, kind);
        let is_over = |(until, _): &(Instant, Requester)| *until <= now;
        shard
            .unshareable
            .insert_unless_over(self.key[..].into(), until, Some(from.0), is_over);
        drop(shard);
        self.for_one(requester);
    }

    /// Announces that this response is for its client only, which is no evidence about the next
    /// response. A leader of an earlier kind may still get a response for all clients.
    pub fn for_one(self, requester: Requester) {
        let shard = self.collapse.shard(&self.key);
        let entry = shard.fetches.get(&self.key);
        let has_plainer_leader = entry.is_some_and(|entry| {
            Arc::ptr_eq(&entry.round, &self.round) && entry.requester < requester
        });
        drop(shard);
        if !has_plainer_leader {
            self.tell(CollapseMsg::NotShared);
        }
    }

    /// Only the first outcome counts: later leaders started because it was late.
    fn tell(&self, outcome: CollapseMsg) {
        self.round.messages.send_if_modified(|message| {
            let is_first = matches!(message, CollapseMsg::Wait);
            if is_first {
                *message = outcome;
            }
            is_first
        });
    }

    /// Counts only leaders' responses: a hundred followers that fetched one page for themselves are
    /// a single observation.
    fn judged(&self, from: (Network, &Authority), shared: u32) {
        let note = |origin_stats: &mut OriginStats| smooth(&mut origin_stats.shared, shared);
        self.collapse.learn(from, note);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let mut shard = self.collapse.shard(&self.key);
        // Under the lock, so that no follower becomes a leader of a round that is closed here.
        let is_last = self.round.leaders.fetch_sub(1, Ordering::Relaxed) == 1;
        let has_outcome = !matches!(*self.round.messages.borrow(), CollapseMsg::Wait);
        // A response that a leader has stored is found in the store, so later requests need not
        // join a slower leader's round. After `forget`, the entry may be for another round.
        if (is_last || has_outcome)
            && shard
                .fetches
                .get(&self.key)
                .is_some_and(|entry| Arc::ptr_eq(&entry.round, &self.round))
        {
            shard.fetches.remove(&self.key);
        }
        drop(shard);
        if is_last {
            self.tell(CollapseMsg::NoOutcome);
        }
    }
}

#[cfg(test)]
mod tests;
