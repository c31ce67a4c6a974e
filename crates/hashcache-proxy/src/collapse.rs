//! Collapsed forwarding: one fetch serves all who wait for the same key, on any core.
//!
//! The first to miss becomes the *leader* and owns the [`Leader`]; who comes later *follows* it.
//! When the response's head has come, the leader says whether it may be shared; if not, all go at
//! once, and the key is remembered so that the next ones do not even wait. What an origin's answers
//! were like says how long its next ones are worth waiting for.
//!
//! Called by `request`; the flight travels with `fetch`.
//!
//! Invariant: a follower waits for the head no longer than a fetch may take to its first byte; a
//! flight that is dropped lets everyone go. Cost: one lock and one map entry per fetch in progress.

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

const SHARDS: usize = 32;
/// Sets the hashes of nonces apart from those of keys.
const NONCE: &str = "variants";
const WAIT_MIN: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// With [`CollapseWait::Lan`], for an origin not met before.
const WAIT_UNKNOWN: Duration = Duration::from_secs(1);
/// For an origin whose answers hardly ever can be shared. Waiting would be in vain, and whoever
/// waited for a page of a second would have it a tenth later than alone.
const WAIT_IN_VAIN: Duration = Duration::from_millis(100);
/// How long a key that could not be shared is not waited for.
const UNSHAREABLE: Duration = Duration::from_secs(120);
/// How long a revalidation in the background is not tried again after a failure.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Keys remembered in each shard; beyond that the table begins anew.
const REMEMBERED: usize = 512;

/// What followers are told.
#[derive(Clone)]
pub(crate) enum CollapseMsg {
    /// The head has not come yet.
    Wait,
    /// It is being stored, and this is how to read along.
    Shared(Arc<SharedResponse>),
    /// What is stored is good again: look once more.
    Validated,
    /// It cannot be shared, or there is none: go alone.
    NotShared,
}

/// A response that is being stored.
pub(crate) struct SharedResponse {
    pub(crate) stored: StoredResponse,
    pub(crate) length: Option<u64>,
    /// The origin was asked for a range and sent all of it.
    pub(crate) ignores_range: bool,
    pub(crate) stream: Arc<hashcache::Stream>,
}

/// The part a request has in a fetch.
pub(crate) enum Role {
    /// It must fetch, and tell the others.
    Leader(Leader),
    /// Somebody else fetches.
    Follower(watch::Receiver<CollapseMsg>),
    /// Somebody else fetches, but what comes cannot be shared, as far as is known.
    Alone,
}

#[derive(Default)]
struct CollapseShard {
    fetches: HashMap<Box<[u8]>, (u64, watch::Receiver<CollapseMsg>)>,
    unshareable: HashMap<Box<[u8]>, Instant>,
    failed: HashMap<Box<[u8]>, Instant>,
    origins: HashMap<Box<str>, OriginStats>,
}

/// What an origin's answers were like, smoothed over the last eight or so.
#[derive(Clone, Copy, Default)]
struct OriginStats {
    /// Time to the first byte, milliseconds.
    first_byte_ms: Option<u32>,
    /// Share of the answers to leaders that their followers could have too, parts of [`ALL`].
    shared: Option<u32>,
}

/// A share of one.
const ALL: u32 = 1 << 10;
/// An origin that shares less than this is not waited for: one answer in eight.
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

/// `usual`, moved an eighth of the way to `seen`; what is seen first is all that is known.
fn smooth(usual: &mut Option<u32>, seen: u32) {
    *usual = Some(usual.map_or(seen, |usual| (usual * 7 + seen) / 8));
}

/// All fetches in progress.
#[derive(Default)]
pub(crate) struct Collapse {
    shards: [Mutex<CollapseShard>; SHARDS],
    hasher: RandomState,
    next: AtomicU64,
    /// Held by who reads the head of a stored response and writes it back changed.
    heads: [tokio::sync::Mutex<()>; SHARDS],
    /// Validations under way that nobody waits for.
    background: AtomicUsize,
    /// Parts of stored responses that are being fetched.
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

    /// Waits until nobody else changes the head stored under `name`, or one of a thirty-second of
    /// all others.
    pub(crate) async fn head(&self, name: &[u8]) -> tokio::sync::MutexGuard<'_, ()> {
        self.heads[self.index(name)].lock().await
    }

    /// A number that nobody outside can know, for the variant table of `version`.
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

    /// The fetch of `key` that is under way, for those who would not begin one.
    pub(crate) fn under_way(&self, key: &[u8]) -> Option<watch::Receiver<CollapseMsg>> {
        let shard = self.shard(key);
        shard.fetches.get(key).map(|(_, receiver)| receiver.clone())
    }

    /// What is under way for `key` is out of date: nobody may join it any more.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.shard(key).fetches.remove(key);
    }

    /// The same for all keys that are `old`.
    pub(crate) fn forget_where(&self, old: impl Fn(&[u8]) -> bool) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.fetches.retain(|key, _| !old(key));
        }
    }

    /// Counts a validation that nobody waits for, until what is returned is dropped; `None` when
    /// there are `most` already.
    pub(crate) fn in_background(self: &Arc<Self>, most: usize) -> Option<BackgroundValidation> {
        let one_more = |under_way| (under_way < most).then_some(under_way + 1);
        let counted = self
            .background
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.ok().map(|_| BackgroundValidation(Arc::clone(self)))
    }

    /// Whether a revalidation of `key` failed a moment ago.
    pub(crate) fn failed_lately(&self, key: &[u8], now: Instant) -> bool {
        self.shard(key)
            .failed
            .get(key)
            .is_some_and(|until| *until > now)
    }

    /// Notes that a revalidation of `key` failed.
    pub(crate) fn failed(&self, key: &[u8], now: Instant) {
        remember(&mut self.shard(key).failed, key, now + RETRY_AFTER);
    }

    /// How long to wait for the head of a fetch from `origin`, which fails if it takes longer than
    /// `first_byte_time`: as `wait` says, and not so long if what comes then is hardly ever shared.
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

    /// Notes how long `origin` took for a head.
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
        note(shard.origins.entry(origin.into()).or_default());
    }
}

fn remember(table: &mut HashMap<Box<[u8]>, Instant>, key: &[u8], until: Instant) {
    if table.len() >= REMEMBERED {
        table.clear();
    }
    table.insert(key.into(), until);
}

/// A validation under way that nobody waits for.
pub(crate) struct BackgroundValidation(Arc<Collapse>);

impl Drop for BackgroundValidation {
    fn drop(&mut self) {
        self.0.background.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A fetch in progress, in the hands of who fetches.
pub(crate) struct Leader {
    collapse: Arc<Collapse>,
    key: Box<[u8]>,
    number: u64,
    sender: watch::Sender<CollapseMsg>,
}

impl Leader {
    /// The response of `origin` may be shared and is being stored; more may join until the flight
    /// ends.
    pub(crate) fn share(&self, origin: &str, response: SharedResponse) {
        self.judged(origin, ALL);
        self.sender
            .send_replace(CollapseMsg::Shared(Arc::new(response)));
    }

    /// What is stored was confirmed by `origin`.
    pub(crate) fn validated(self, origin: &str) {
        self.judged(origin, ALL);
        self.sender.send_replace(CollapseMsg::Validated);
    }

    /// The response of `origin` cannot be shared, nor, most likely, the next one.
    pub(crate) fn not_shared(self, origin: &str, now: Instant) {
        self.judged(origin, 0);
        remember(
            &mut self.collapse.shard(&self.key).unshareable,
            &self.key,
            now + UNSHAREABLE,
        );
    }

    /// Only a leader's answer counts: a hundred who went alone for one page learned one thing.
    fn judged(&self, origin: &str, shared: u32) {
        let note = |origin_stats: &mut OriginStats| smooth(&mut origin_stats.shared, shared);
        self.collapse.learn(origin, note);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let mut shard = self.collapse.shard(&self.key);
        // After `forget`, another flight may have begun under this key.
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

/// Waits until followers are told something, at most for `wait_time`.
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

    /// An origin answers a leader, in a second.
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
