//! Collapsed forwarding: one fetch serves all requests that wait for the same key, on any core.
//!
//! The first request that misses becomes the *leader* and owns the [`Leader`]; later requests are
//! *followers*. When the head of the response has arrived, the leader announces whether the
//! response may be shared. If it may not, all followers fetch for themselves at once, and the key
//! is remembered, so that later requests do not wait. The wait for an origin's head depends on the
//! origin's recent responses.
//!
//! Called by `request`; `fetch` owns the [`Leader`] during the fetch.
//!
//! Invariants: a follower waits for the head no longer than a fetch may take to its first byte.
//! Dropping the leader releases all followers. Cost: one lock and one map entry per fetch in
//! progress.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::in_flight_ranges::InFlightRanges;
use crate::settings::CollapseWait;
use crate::store::StoredResponse;
use crate::store::follow::ContentStream;

const SHARDS: usize = 32;
/// Keeps the hashes of nonces apart from those of keys.
const NONCE: &str = "variants";
const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// With [`CollapseWait::Lan`], for an origin without a known response time.
const WAIT_UNKNOWN: Duration = Duration::from_secs(1);
/// For an origin whose responses can hardly ever be shared: waiting is in vain, so a page that
/// takes a second must not take more than a tenth longer.
const WAIT_IN_VAIN: Duration = Duration::from_millis(100);
/// How long requests do not wait for a key whose response could not be shared.
const UNSHAREABLE: Duration = Duration::from_secs(120);
/// How long background validation pauses after a failure.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Keys remembered in each shard; when the table is full, it is cleared.
const REMEMBERED: usize = 512;

/// A leader's message to its followers.
#[derive(Clone)]
pub(crate) enum CollapseMsg {
    /// The head has not arrived yet.
    Wait,
    /// The response is being stored and may be followed.
    Shared(Arc<SharedResponse>),
    /// The stored response was validated: look it up again.
    Validated,
    /// The response cannot be shared, or there is none: fetch alone.
    NotShared,
}

/// A response that is being stored.
pub(crate) struct SharedResponse {
    pub(crate) stored: StoredResponse,
    pub(crate) length: Option<u64>,
    /// The origin was asked for a range and sent the whole content.
    pub(crate) ignores_range: bool,
    pub(crate) stream: ContentStream,
}

/// The role of a request in a fetch.
pub(crate) enum Role {
    /// It must fetch, and inform the followers.
    Leader(Leader),
    /// Another request fetches.
    Follower(watch::Receiver<CollapseMsg>),
    /// Another request fetches, but its response will probably not be shareable.
    Alone,
}

#[derive(Default)]
struct CollapseShard {
    fetches: HashMap<Box<[u8]>, (u64, watch::Receiver<CollapseMsg>)>,
    unshareable: HashMap<Box<[u8]>, Instant>,
    failed: HashMap<Box<[u8]>, Instant>,
    origins: HashMap<Box<str>, OriginStats>,
}

/// Averages over about eight recent responses of an origin.
#[derive(Clone, Copy, Default)]
struct OriginStats {
    /// Time to the first byte, milliseconds.
    first_byte_ms: Option<u32>,
    /// Fraction of leaders' responses that could be shared, in units of 1/[`ALL`].
    shared: Option<u32>,
}

/// A fraction of one.
const ALL: u32 = 1 << 10;
/// Requests do not wait for an origin that shares less than this: one response in eight.
const HARDLY_ANY: u32 = ALL / 8;

impl OriginStats {
    fn wait_time(self, wait: CollapseWait, first_byte_time: Duration) -> Duration {
        if matches!(self.shared, Some(..HARDLY_ANY)) {
            return WAIT_IN_VAIN.min(first_byte_time);
        }
        let patience = match (wait, self.first_byte_ms) {
            (CollapseWait::Satellite, _) => first_byte_time,
            (CollapseWait::Within(most), _) => most,
            (CollapseWait::Lan, Some(usual)) => {
                Duration::from_millis(2 * u64::from(usual)).clamp(WAIT_MIN, WAIT_MAX)
            }
            (CollapseWait::Lan, None) => WAIT_UNKNOWN,
        };
        patience.min(first_byte_time)
    }
}

/// Moves `usual` an eighth of the way to `seen`; the first value is taken as it is.
fn smooth(usual: &mut Option<u32>, seen: u32) {
    *usual = Some(usual.map_or(seen, |usual| (usual * 7 + seen) / 8));
}

/// All fetches in progress.
#[derive(Default)]
pub(crate) struct Collapse {
    shards: [Mutex<CollapseShard>; SHARDS],
    hasher: RandomState,
    next: AtomicU64,
    /// Serialises read-modify-write updates of the heads of stored responses.
    heads: [tokio::sync::Mutex<()>; SHARDS],
    /// Number of fetches for which no client waits, by [`Background`].
    background: [AtomicUsize; 2],
    /// Ranges of stored responses that are being fetched.
    pub(crate) ranges: Arc<InFlightRanges>,
}

impl Collapse {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, CollapseShard> {
        self.shards[self.index(key)]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other task changes the head stored under `name`. A lock covers a
    /// thirty-second of all names.
    pub(crate) async fn head(&self, name: &[u8]) -> tokio::sync::MutexGuard<'_, ()> {
        self.heads[self.index(name)].lock().await
    }

    /// A number that no client can guess, for the variant table of `version`.
    pub(crate) fn nonce(&self, version: u64) -> u64 {
        self.hasher.hash_one((NONCE, version))
    }

    fn index(&self, key: &[u8]) -> usize {
        usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0)
    }

    /// Joins the fetch of `key`, or begins it.
    pub(crate) fn join(self: &Arc<Self>, key: &[u8], now: Instant) -> Role {
        let mut shard = self.shard(key);
        if shard.unshareable.get(key).is_some_and(|until| *until > now) {
            return Role::Alone;
        }
        if let Some((_, receiver)) = shard.fetches.get(key) {
            return Role::Follower(receiver.clone());
        }
        let (sender, receiver) = watch::channel(CollapseMsg::Wait);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        shard.fetches.insert(key.into(), (number, receiver));
        Role::Leader(Leader {
            collapse: Arc::clone(self),
            key: key.into(),
            number,
            sender,
        })
    }

    /// The fetch of `key` in progress, for callers that would not begin one.
    pub(crate) fn under_way(&self, key: &[u8]) -> Option<watch::Receiver<CollapseMsg>> {
        let shard = self.shard(key);
        shard.fetches.get(key).map(|(_, receiver)| receiver.clone())
    }

    /// The fetch of `key` is out of date: no further request may join it.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.shard(key).fetches.remove(key);
    }

    /// The same for all keys that `old` selects.
    pub(crate) fn forget_where(&self, old: impl Fn(&[u8]) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.fetches.retain(|key, _| !old(key));
        }
    }

    /// Counts a fetch for which no client waits until the guard is dropped; `None` if there are
    /// `most` of its kind already.
    pub(crate) fn in_background(
        self: &Arc<Self>,
        kind: Background,
        most: usize,
    ) -> Option<BackgroundFetch> {
        let one_more = |under_way| (under_way < most).then_some(under_way + 1);
        let counted = self.background[kind as usize].fetch_update(
            Ordering::Relaxed,
            Ordering::Relaxed,
            one_more,
        );
        counted
            .ok()
            .map(|_| BackgroundFetch(Arc::clone(self), kind))
    }

    /// Whether a validation of `key` failed recently.
    pub(crate) fn failed_lately(&self, key: &[u8], now: Instant) -> bool {
        self.shard(key)
            .failed
            .get(key)
            .is_some_and(|until| *until > now)
    }

    /// Notes that a validation of `key` failed.
    pub(crate) fn failed(&self, key: &[u8], now: Instant) {
        remember(&mut self.shard(key).failed, key, now + RETRY_AFTER);
    }

    /// How long to wait for the head of a fetch from `origin`: as `wait` says, but never longer
    /// than `first_byte_time`, and only shortly if the origin's responses are hardly ever
    /// shareable.
    pub(crate) fn wait_time(
        &self,
        origin: &str,
        wait: CollapseWait,
        first_byte_time: Duration,
    ) -> Duration {
        let shard = self.shard(origin.as_bytes());
        let origin_stats = shard.origins.get(origin).copied().unwrap_or_default();
        origin_stats.wait_time(wait, first_byte_time)
    }

    /// Notes how long `origin` took to send a head.
    pub(crate) fn note_head_time(&self, origin: &str, time: Duration) {
        let millis = u32::try_from(time.as_millis())
            .unwrap_or(u32::MAX)
            .min(1 << 20);
        self.learn(origin, |origin_stats| {
            smooth(&mut origin_stats.first_byte_ms, millis);
        });
    }

    fn learn(&self, origin: &str, note: impl FnOnce(&mut OriginStats)) {
        let mut shard = self.shard(origin.as_bytes());
        if shard.origins.len() >= REMEMBERED && !shard.origins.contains_key(origin) {
            shard.origins.clear();
        }
        match shard.origins.get_mut(origin) {
            Some(known) => note(known),
            None => note(shard.origins.entry(origin.into()).or_default()),
        }
    }
}

fn remember(table: &mut HashMap<Box<[u8]>, Instant>, key: &[u8], until: Instant) {
    if table.len() >= REMEMBERED {
        table.clear();
    }
    table.insert(key.into(), until);
}

/// Why a fetch is made for which no client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Background {
    /// A stored response is validated while it is served.
    Revalidation,
    /// A parent named the resource.
    Hint,
}

/// A fetch in progress for which no client waits.
pub(crate) struct BackgroundFetch(Arc<Collapse>, Background);

impl Drop for BackgroundFetch {
    fn drop(&mut self) {
        self.0.background[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// A fetch in progress. Held by the fetching task.
pub(crate) struct Leader {
    collapse: Arc<Collapse>,
    key: Box<[u8]>,
    number: u64,
    sender: watch::Sender<CollapseMsg>,
}

impl Leader {
    /// The response of `origin` may be shared and is being stored. Further requests may join until
    /// the leader is dropped.
    pub(crate) fn share(&self, origin: &str, response: SharedResponse) {
        self.judged(origin, ALL);
        self.sender
            .send_replace(CollapseMsg::Shared(Arc::new(response)));
    }

    /// `origin` has confirmed the stored response.
    pub(crate) fn validated(self, origin: &str) {
        self.judged(origin, ALL);
        self.sender.send_replace(CollapseMsg::Validated);
    }

    /// The response of `origin` cannot be shared, and most likely neither can the next one.
    pub(crate) fn not_shared(self, origin: &str, now: Instant) {
        self.judged(origin, 0);
        remember(
            &mut self.collapse.shard(&self.key).unshareable,
            &self.key,
            now + UNSHAREABLE,
        );
    }

    /// Counts only leaders' responses: a hundred followers that fetched one page alone are one
    /// observation.
    fn judged(&self, origin: &str, shared: u32) {
        let note = |origin_stats: &mut OriginStats| smooth(&mut origin_stats.shared, shared);
        self.collapse.learn(origin, note);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let mut shard = self.collapse.shard(&self.key);
        // After `forget`, another fetch may have begun under this key.
        if shard
            .fetches
            .get(&self.key)
            .is_some_and(|(number, _)| *number == self.number)
        {
            shard.fetches.remove(&self.key);
        }
        drop(shard);
        self.sender.send_if_modified(|message| {
            let waiting = matches!(message, CollapseMsg::Wait);
            if waiting {
                *message = CollapseMsg::NotShared;
            }
            waiting
        });
    }
}

/// Waits at most `wait_time` for the leader's message.
pub(crate) async fn wait_for_message(
    mut receiver: watch::Receiver<CollapseMsg>,
    wait_time: Duration,
) -> CollapseMsg {
    let wait = receiver.wait_for(|message| !matches!(message, CollapseMsg::Wait));
    match tokio::time::timeout(wait_time, wait).await {
        Ok(Ok(message)) => message.clone(),
        Ok(Err(_)) | Err(_) => CollapseMsg::NotShared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_BYTE_TIME: Duration = Duration::from_secs(60);

    fn patience(collapse: &Collapse, origin: &str) -> Duration {
        collapse.wait_time(origin, CollapseWait::Lan, FIRST_BYTE_TIME)
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_follows_the_first_and_goes_alone_when_that_is_dropped() {
        let collapse = Collapse::new();
        let Role::Leader(leader) = collapse.join(b"k", Instant::now()) else {
            panic!()
        };
        let Role::Follower(receiver) = collapse.join(b"k", Instant::now()) else {
            panic!()
        };
        assert!(matches!(
            collapse.join(b"other", Instant::now()),
            Role::Leader(_)
        ));
        drop(leader);
        assert!(matches!(
            wait_for_message(receiver, WAIT_MAX).await,
            CollapseMsg::NotShared
        ));
        assert!(matches!(
            collapse.join(b"k", Instant::now()),
            Role::Leader(_)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_could_not_be_shared_is_not_waited_for() {
        let collapse = Collapse::new();
        let Role::Leader(leader) = collapse.join(b"k", Instant::now()) else {
            panic!()
        };
        leader.not_shared("h", Instant::now());
        assert!(matches!(collapse.join(b"k", Instant::now()), Role::Alone));
        let later = Instant::now() + UNSHAREABLE + Duration::from_secs(1);
        assert!(matches!(collapse.join(b"k", later), Role::Leader(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_does_not_wait_for_ever() {
        let collapse = Collapse::new();
        let _flight = collapse.join(b"k", Instant::now());
        let Role::Follower(receiver) = collapse.join(b"k", Instant::now()) else {
            panic!()
        };
        let before = Instant::now();
        assert!(matches!(
            wait_for_message(receiver, patience(&collapse, "h")).await,
            CollapseMsg::NotShared
        ));
        assert_eq!(before.elapsed(), WAIT_UNKNOWN);
    }

    #[test]
    fn patience_is_what_was_set_and_never_more_than_a_fetch_may_take() {
        let collapse = Collapse::new();
        collapse.note_head_time("near", Duration::from_millis(10));
        let second = Duration::from_secs(1);
        for origin in ["near", "unknown"] {
            let wait = |wait| collapse.wait_time(origin, wait, FIRST_BYTE_TIME);
            assert_eq!(wait(CollapseWait::Satellite), FIRST_BYTE_TIME);
            assert_eq!(wait(CollapseWait::Within(second)), second);
            for longer in [CollapseWait::Within(2 * FIRST_BYTE_TIME), CollapseWait::Lan] {
                assert!(wait(longer) <= FIRST_BYTE_TIME);
            }
        }
        let most = Duration::from_millis(50);
        assert_eq!(collapse.wait_time("unknown", CollapseWait::Lan, most), most);
    }

    #[tokio::test]
    async fn an_origin_that_hardly_shares_is_not_waited_for_whatever_was_set() {
        let collapse = Collapse::new();
        answer(&collapse, "counter", b"page", Shared::No);
        for wait in [
            CollapseWait::Satellite,
            CollapseWait::Lan,
            CollapseWait::Within(WAIT_MAX),
        ] {
            let patience = collapse.wait_time("counter", wait, FIRST_BYTE_TIME);
            assert_eq!(patience, WAIT_IN_VAIN, "{wait:?}");
        }
    }

    #[test]
    fn patience_follows_the_origin() {
        let collapse = Collapse::new();
        collapse.note_head_time("slow", Duration::from_secs(1));
        assert_eq!(patience(&collapse, "slow"), Duration::from_secs(2));
        collapse.note_head_time("dead", Duration::from_secs(60));
        assert_eq!(patience(&collapse, "dead"), WAIT_MAX);
    }

    /// An origin answers a leader after a second.
    fn answer(collapse: &Arc<Collapse>, origin: &str, key: &[u8], shared: Shared) {
        let Role::Leader(leader) = collapse.join(key, Instant::now()) else {
            panic!()
        };
        collapse.note_head_time(origin, Duration::from_secs(1));
        match shared {
            Shared::Yes => leader.validated(origin),
            Shared::No => leader.not_shared(origin, Instant::now()),
        }
    }

    #[derive(Clone, Copy)]
    enum Shared {
        Yes,
        No,
    }

    #[tokio::test]
    async fn one_answer_that_could_not_be_shared_is_enough_for_an_origin_not_met_before() {
        let collapse = Collapse::new();
        answer(&collapse, "counter", b"page", Shared::No);
        assert_eq!(patience(&collapse, "counter"), WAIT_IN_VAIN);
        assert_eq!(patience(&collapse, "other"), WAIT_UNKNOWN);
        answer(&collapse, "counter", b"style", Shared::Yes);
        assert_eq!(patience(&collapse, "counter"), Duration::from_secs(2));
    }

    #[tokio::test]
    async fn an_origin_with_answers_of_both_kinds_is_waited_for() {
        let collapse = Collapse::new();
        for number in 0..64u8 {
            let shared = match number % 4 {
                0 => Shared::Yes,
                _ => Shared::No,
            };
            answer(&collapse, "shop", &[number], shared);
            assert_eq!(patience(&collapse, "shop"), Duration::from_secs(2));
        }
    }

    #[tokio::test]
    async fn an_origin_that_no_longer_shares_is_waited_for_no_longer() {
        let collapse = Collapse::new();
        answer(&collapse, "h", b"style", Shared::Yes);
        let mut needed = 0;
        while patience(&collapse, "h") != WAIT_IN_VAIN {
            needed += 1;
            answer(&collapse, "h", &[needed], Shared::No);
        }
        assert_eq!(needed, 16);
    }

    #[test]
    fn no_more_origins_are_remembered_than_there_is_room_for() {
        let collapse = Collapse::new();
        for number in 0..2 * SHARDS * REMEMBERED {
            collapse.note_head_time(&number.to_string(), Duration::ZERO);
        }
        for shard in &collapse.shards {
            let origins = shard.lock().unwrap().origins.len();
            assert!(origins <= REMEMBERED, "{origins}");
        }
    }
}
