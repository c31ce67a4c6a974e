//! The objects of a run: all objects, the objects requested so far, and the objects that must be in
//! the cache.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::{AGAIN_MAX, Options};
use crate::ContentOrigin;
use crate::content::{self, Content};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    /// Bytes 100 to 1123.
    Range,
    OnlyIfCached,
}

/// All objects; an object is identified by a number.
#[derive(Debug)]
pub(super) struct Objects {
    seed: u64,
    /// Number of objects in all rounds, without repeated rounds.
    count: u32,
    large_bytes: (u64, u64),
    authority: String,
    /// All objects below this number have been requested.
    introduced: AtomicU32,
    /// Objects requested by the end of the previous round.
    base: AtomicU32,
    states: Mutex<Vec<State>>,
    /// Objects committed before this time must be in the cache; `None` until the first kill.
    safe_until: Mutex<Option<Instant>>,
}

/// Object state.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Time at which a client had the complete response, which was not from the cache.
    committed: Option<Instant>,
    /// True if the object has been probed since then.
    probed: bool,
}

/// An object that a client has received completely, judged by the last kill's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committed {
    pub(super) object: u32,
    /// True if the object was committed long enough before the kill that it must have survived.
    pub(super) must_survive: bool,
}

impl Objects {
    pub(super) fn new(options: &Options, origin: &ContentOrigin) -> Self {
        // Repeated rounds add more objects.
        let states = options.objects + options.objects.div_ceil(options.kills.max(1)) * AGAIN_MAX;
        Self {
            seed: options.seed,
            count: options.objects,
            large_bytes: options.large_bytes,
            authority: origin.address().to_string(),
            introduced: AtomicU32::new(0),
            base: AtomicU32::new(0),
            states: Mutex::new(vec![State::default(); states as usize]),
            safe_until: Mutex::new(None),
        }
    }

    /// The object for testing that a proxy is ready.
    pub(super) fn ready(&self) -> u32 {
        u32::MAX
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Path and query for an object.
    pub(super) fn target(&self, object: u32) -> String {
        if is_large(object) {
            let (from, to) = self.large_bytes;
            // Uniform over the logarithm, as sizes on the web are.
            let share = f64::from(object / LARGE_EVERY % 16) / 15.0;
            let size = from as f64 * (to as f64 / from as f64).powf(share);
            format!("/object/{object}?size={size:.0}")
        } else if is_short_lived(object) {
            format!("/object/{object}?max-age=1")
        } else {
            format!("/object/{object}")
        }
    }

    /// The expected body; `length` is the declared length.
    pub(super) fn content(&self, target: &str, length: u64) -> Content {
        content::body_for(self.seed, target, 0, length)
    }

    /// Objects requested by the end of `round`, out of `rounds`.
    pub(super) fn quota(&self, round: u32, rounds: u32) -> u32 {
        let quota = u64::from(self.count) * u64::from(round) / u64::from(rounds.max(1));
        u32::try_from(quota).unwrap_or(self.count)
    }

    /// Returns true if three quarters of the new objects of a round have been requested.
    pub(super) fn are_most_asked_for(&self, quota: u32) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        let asked_for = self.introduced.load(Ordering::Relaxed) - base;
        4 * u64::from(asked_for) >= 3 * u64::from(quota.saturating_sub(base))
    }

    /// Chooses an object to request, when `share` of the round is over, and the kind of request.
    pub(super) fn choose(&self, quota: u32, share: f64, random: &mut Random) -> Option<(u32, Way)> {
        let base = self.base.load(Ordering::Relaxed);
        let due = f64::from(base) + f64::from(quota - base) * share.min(1.0);
        let next = self.introduced.load(Ordering::Relaxed);
        let is_due = next < quota && f64::from(next) < due;
        if is_due
            && self
                .introduced
                .compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            return Some((next, Way::Plain));
        }
        if next == 0 {
            return None;
        }
        let mut object = random.below(next);
        // Large objects are rare on the web, and without this draw they would be nearly all bytes.
        if is_large(object) && random.below(20) > 0 {
            object = random.below(next);
        }
        let way = if random.below(40) == 0 {
            Way::Range
        } else {
            Way::Plain
        };
        Some((object, way))
    }

    /// Records that a client has received the complete object, which was not in the cache before.
    pub(super) fn commit(&self, object: u32, at: Instant) {
        if let Some(state) = lock(&self.states).get_mut(object as usize) {
            *state = State {
                committed: Some(at),
                probed: false,
            };
        }
    }

    /// Records that the object is not in the cache; this has been counted.
    pub(super) fn forget(&self, object: u32) {
        if let Some(state) = lock(&self.states).get_mut(object as usize) {
            state.committed = None;
        }
    }

    /// Returns true if a client has received the complete object.
    pub(super) fn is_committed(&self, object: u32) -> bool {
        let states = lock(&self.states);
        states
            .get(object as usize)
            .is_some_and(|state| state.committed.is_some())
    }

    /// Records a kill; objects committed before `safe_until` must have survived.
    pub(super) fn killed(&self, safe_until: Instant) {
        *lock(&self.safe_until) = Some(safe_until);
        let introduced = self.introduced.load(Ordering::Relaxed);
        self.base.store(introduced, Ordering::Relaxed);
    }

    /// Returns the objects that should be in the cache: all, or the objects committed since the
    /// last probe and one in 16 of the others.
    pub(super) fn committed(&self, all: bool) -> Vec<Committed> {
        let safe_until = *lock(&self.safe_until);
        let mut wanted = vec![];
        for (object, state) in (0..).zip(lock(&self.states).iter_mut()) {
            let Some(at) = state.committed else { continue };
            // Short-lived objects are stale by now, so 504 to `only-if-cached` would be correct.
            if is_short_lived(object) || (state.probed && !all && object % 16 != 0) {
                continue;
            }
            state.probed = true;
            let must_survive = safe_until.is_none_or(|safe_until| at < safe_until);
            wanted.push(Committed {
                object,
                must_survive,
            });
        }
        wanted
    }
}

fn is_large(object: u32) -> bool {
    object % LARGE_EVERY == LARGE_EVERY / 2
}

fn is_short_lived(object: u32) -> bool {
    object % 10 == 3
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SplitMix64: the same seed gives the same choices.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Returns an independent generator.
    pub(super) fn split(&mut self) -> Self {
        Self(self.next())
    }

    pub(super) fn below(&mut self, end: u32) -> u32 {
        let high = (self.next() >> 32) * u64::from(end);
        u32::try_from(high >> 32).unwrap_or(0)
    }

    /// Returns a number from `from` to `to`, inclusive; `to` must not be less than `from`.
    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }
}

const LARGE_EVERY: u32 = 500;
