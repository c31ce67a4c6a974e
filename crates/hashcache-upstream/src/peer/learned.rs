//! The contents of a peer's store, according to the cache digest and the updates of the digest.
//!
//! In the proxy, `route` looks up URLs, `fetch` gets the digest and reports the result of each hop,
//! and `peers` passes updates on.
//!
//! Invariants: a wrong digest costs a hop and never causes a wrong response. The copy's memory is
//! reserved. A single fetch of a digest at a time, and none without a request that was looked up.
//! Cost of a lookup: a lock and four octets of the copy. All other data of a lookup is in 64
//! octets, because it is seldom in the processor's cache when a miss needs it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache::Reservation;
use hashcache_peers::filter::Filter;
use hashcache_peers::key::Key;
use hashcache_peers::update::{Position, Step, Update};
use http::HeaderValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::peer::PROBE_DUE;

/// Knowledge about a peer's store. `state` is locked before `lookup`.
#[derive(Debug, Default)]
pub struct Learned {
    lookup: CacheLine<Mutex<Lookup>>,
    state: Mutex<State>,
    /// Wakes requests that wait for the first fetch.
    tried: Notify,
}

/// The part that every lookup needs.
#[derive(Debug, Default)]
struct Lookup {
    /// The peer's filter.
    copy: Option<Filter>,
    /// The peer gets no requests now because of the digest.
    is_paused: bool,
    /// A request needed the digest since the last fetch, or an update was missed.
    is_wanted: bool,
}

/// Aligned to a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheLine<T>(T);

const _: () = assert!(size_of::<CacheLine<Mutex<Lookup>>>() == 64);

#[derive(Debug, Default)]
struct State {
    copy: Option<DigestCopy>,
    was_tried: bool,
    is_fetching: bool,
    /// Next fetch time; `None`: at once.
    due: Option<Instant>,
    /// Failed fetches in a row.
    failures: u32,
    /// Refusals in a row among these failures: the peer answers, but has no usable digest.
    refusals: u32,
    /// The digest is due after a missing update.
    has_gap: bool,
    /// Fetches in a row that missing updates caused, without a fitting update in between.
    gaps: u32,
    /// Results from the last hops to the peer, newest in bit 0; 1: the peer did not have the
    /// response.
    results: u64,
    /// The peer gets no requests until this time.
    paused: Option<Instant>,
    counts: LearnedCounts,
}

/// Data about the copy of the peer's filter; present if the copy is present.
#[derive(Debug)]
struct DigestCopy {
    _memory: Reservation,
    /// The last update in the copy, if the peer's entity tag contains it.
    position: Option<Position>,
    entity_tag: Option<HeaderValue>,
    fetched: Instant,
}

/// A peer's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnedCounts {
    /// Number of times when the digest contained a response that the peer did not have.
    pub false_hits: u64,
    /// Updates applied.
    pub updates_received: u64,
    /// Updates that did not follow directly on the copy.
    pub updates_missed: u64,
    /// Updates sent to the peer.
    pub updates_sent: u64,
}

/// A digest's answer about a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no digest.
    Unknown,
    /// There is no digest, but the peer may be making a first digest.
    BeingMade,
    /// There is no digest, and no fetch was tried.
    NeverTried,
    /// The peer has the response, or a false positive.
    Yes,
    /// The peer did not have the response when the digest was made.
    No,
    /// The digest was wrong too often: send no requests to the peer now.
    Paused,
}

/// A digest fetch in progress.
#[derive(Debug)]
pub struct Begun {
    /// The entity tag of the digest in the copy.
    pub entity_tag: Option<HeaderValue>,
}

/// A digest that was fetched.
#[derive(Debug)]
pub struct Received {
    /// The digest.
    pub filter: Filter,
    /// The digest's memory.
    pub memory: Reservation,
    /// The position from which updates complete it.
    pub position: Option<Position>,
    /// For the next fetch's condition.
    pub entity_tag: Option<HeaderValue>,
}

/// The result of a digest fetch.
#[derive(Debug)]
pub enum Learning {
    /// A new digest, and the time until the peer makes the next digest.
    New(Received, Duration),
    /// The digest equals the copy; the time as in `New`.
    Same(Duration),
    /// The peer did not answer.
    Failed,
    /// The peer's answer cannot be used.
    Refused,
}

impl Learned {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lookup(&self) -> MutexGuard<'_, Lookup> {
        self.lookup.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the digest's answer about a URL; notes that the digest is needed.
    pub fn verdict(&self, key: &Key) -> Verdict {
        let mut lookup = self.lookup();
        lookup.is_wanted = true;
        match &lookup.copy {
            _ if lookup.is_paused => return Verdict::Paused,
            Some(copy) if copy.contains(key) => return Verdict::Yes,
            Some(_) => return Verdict::No,
            None => {}
        }
        drop(lookup);
        let state = self.state();
        match state.copy {
            // Fetched just now.
            Some(_) => Verdict::Unknown,
            None if (1..=BEING_MADE_MAX).contains(&state.refusals) => Verdict::BeingMade,
            None if state.was_tried => Verdict::Unknown,
            None => Verdict::NeverTried,
        }
    }

    /// Clears a pause that is over. Returns true if the digest must be fetched now.
    pub fn is_due(&self, now: Instant) -> bool {
        let mut state = self.state();
        let mut lookup = self.lookup();
        state.paused = state.paused.filter(|end| *end > now);
        lookup.is_paused = state.paused.is_some();
        lookup.is_wanted && !state.is_fetching && state.due.is_none_or(|due| due <= now)
    }

    /// Returns true if requests need the digest, and there is no digest or the digest missed an
    /// update.
    pub fn is_awaited(&self) -> bool {
        let state = self.state();
        self.lookup().is_wanted && (state.copy.is_none() || state.has_gap)
    }

    /// Starts a digest fetch, unless another task does.
    pub fn begin(&self) -> Option<Begun> {
        let mut state = self.state();
        let may_begin = !std::mem::replace(&mut state.is_fetching, true);
        may_begin.then(|| Begun {
            entity_tag: state.copy.as_ref().and_then(DigestCopy::entity_tag),
        })
    }

    /// Notes the result of the fetch.
    pub fn end(&self, learning: Learning, now: Instant) {
        let mut state = self.state();
        state.is_fetching = false;
        state.was_tried = true;
        let mut lookup = self.lookup();
        lookup.is_wanted = false;
        state.has_gap = false;
        let pause = match learning {
            Learning::New(received, fresh) => {
                (state.failures, state.refusals) = (0, 0);
                lookup.copy = Some(received.filter);
                state.copy = Some(DigestCopy {
                    _memory: received.memory,
                    position: received.position,
                    entity_tag: received.entity_tag,
                    fetched: now,
                });
                fresh + AFTER_EXPIRY
            }
            Learning::Same(fresh) => {
                (state.failures, state.refusals) = (0, 0);
                if let Some(copy) = &mut state.copy {
                    copy.fetched = now;
                }
                fresh + AFTER_EXPIRY
            }
            Learning::Failed => state.back_off(),
            Learning::Refused => {
                lookup.copy = None;
                state.copy = None;
                state.refusals = state.refusals.saturating_add(1);
                state.back_off()
            }
        };
        state.due = Some(now + with_jitter(pause));
        drop((lookup, state));
        self.tried.notify_waiters();
    }

    /// Waits until the digest was fetched once, or a fetch failed.
    pub async fn tried(&self) {
        loop {
            let mut notified = std::pin::pin!(self.tried.notified());
            // After this line no wake-up is lost.
            notified.as_mut().enable();
            if self.state().was_tried {
                return;
            }
            notified.await;
        }
    }

    /// Takes an update that the peer has sent. If the update does not follow on the copy, the
    /// digest becomes due.
    pub fn take_update(&self, update: &Update<'_>, now: Instant) {
        let mut state = self.state();
        let mut lookup = self.lookup();
        let position = update.position();
        let step = match &state.copy {
            Some(DigestCopy {
                position: Some(known),
                ..
            }) => known.step_to(position),
            _ => Step::Gap,
        };
        let is_applied = match (step, &mut state.copy, &mut lookup.copy) {
            (Step::Old, ..) => return,
            (Step::Next, Some(copy), Some(filter)) => {
                copy.position = Some(position);
                update.apply(filter).is_ok()
            }
            _ => false,
        };
        if is_applied {
            state.counts.updates_received += 1;
            state.gaps = 0;
            return;
        }
        state.counts.updates_missed += 1;
        if let Some(copy) = &mut state.copy {
            // Later updates do not follow on it either.
            copy.position = None;
            copy.entity_tag = None;
        }
        lookup.is_wanted = true;
        if !state.is_fetching && !std::mem::replace(&mut state.has_gap, true) {
            // Anybody can forge updates that cause a fetch, so the pauses grow.
            let pause = GAP_PAUSE * (1 << state.gaps.min(GAPS_MAX));
            state.due = match state.gaps {
                0 => None,
                _ => Some(now + with_jitter(pause)),
            };
            state.gaps += 1;
            PROBE_DUE.notify_waiters();
        }
    }

    /// Notes whether the peer had a response that the digest contains.
    pub fn note_result(&self, had_it: bool, now: Instant) {
        let mut state = self.state();
        state.results = state.results << 1 | u64::from(!had_it);
        state.counts.false_hits += u64::from(!had_it);
        if state.results.count_ones() > FALSE_HITS_MAX {
            state.results = 0;
            state.paused = Some(now + FALSE_HIT_PAUSE);
            let mut lookup = self.lookup();
            lookup.is_paused = true;
            lookup.is_wanted = true;
            state.due = None;
            if let Some(copy) = &mut state.copy {
                // Fetch the whole digest, even if the peer sees no change.
                copy.entity_tag = None;
                copy.position = None;
            }
            PROBE_DUE.notify_waiters();
        }
    }

    /// Counts an update that was sent to the peer.
    pub fn count_sent(&self) {
        self.state().counts.updates_sent += 1;
    }

    /// Returns the results of the fetches and updates so far.
    pub fn counts(&self) -> LearnedCounts {
        self.state().counts
    }

    /// Entries in the copy, and the time since it was fetched.
    pub fn size_and_age(&self, now: Instant) -> Option<(u32, Duration)> {
        let state = self.state();
        let copy = state.copy.as_ref()?;
        let entries = self.lookup().copy.as_ref()?.entries();
        Some((entries, now.saturating_duration_since(copy.fetched)))
    }
}

impl State {
    fn back_off(&mut self) -> Duration {
        let pause = BACK_OFF_MIN * (1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        pause.min(BACK_OFF_MAX)
    }
}

impl DigestCopy {
    /// Returns the tag by which the peer detects changes; with all updates this is the tag of the
    /// last update.
    fn entity_tag(&self) -> Option<HeaderValue> {
        match self.position {
            Some(position) => Some(entity_tag(position)),
            None => self.entity_tag.clone(),
        }
    }
}

/// Builds the entity tag of our filter, or of a filter from a peer that sends updates:
/// `"EPOCH-SERIAL"`.
pub fn entity_tag(Position { epoch, serial }: Position) -> HeaderValue {
    let text = format!("\"{epoch}-{serial}\"");
    HeaderValue::try_from(text).expect("digits and quotes are visible characters")
}

/// Parses the position in an entity tag of that form.
pub fn position(tag: &HeaderValue) -> Option<Position> {
    let text = tag.to_str().ok()?;
    let text = text.strip_prefix('"')?.strip_suffix('"')?;
    let (epoch, serial) = text.split_once('-')?;
    Some(Position {
        epoch: epoch.parse().ok()?,
        serial: serial.parse().ok()?,
    })
}

/// Multiplies by 0.9 to 1.1, so that several proxies do not send requests together for ever.
fn with_jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// Added to a digest's lifetime, as Squid does: a peer makes the next digest only after that
/// lifetime.
const AFTER_EXPIRY: Duration = Duration::from_secs(5 * 60);
/// If a peer has refused at most this often, in the first 16 seconds, it may still be making the
/// first digest.
const BEING_MADE_MAX: u32 = 6;
/// Pause after the first failure, doubled after each further failure: a peer that has just started
/// has no digest yet.
const BACK_OFF_MIN: Duration = Duration::from_millis(250);
const BACK_OFF_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// Pause before the second fetch in a row that missing updates cause; doubled for each further
/// fetch, up to [`GAPS_MAX`] times.
const GAP_PAUSE: Duration = Duration::from_secs(5);
const GAPS_MAX: u32 = 6;
/// More failures than this in the last 64 hops are too many: a quarter.
const FALSE_HITS_MAX: u32 = 16;
const FALSE_HIT_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use hashcache::device::MemoryDevice;
    use hashcache::{Cache, Config};
    use hashcache_peers::filter::{Bit, Size};
    use hashcache_peers::update::{Changes, parse};

    use super::*;

    fn memory() -> Reservation {
        let mut config = Config::on_device(std::sync::Arc::new(MemoryDevice::new(16 << 20)));
        config.memory_bytes = 16 << 20;
        Cache::open(config).unwrap().reserve(1).unwrap()
    }

    fn size() -> Size {
        Size::new(100, 10).unwrap()
    }

    fn key(n: u32) -> Key {
        Key::of_get(format!("http://x.test/{n}").as_bytes())
    }

    const AT: Position = Position {
        epoch: 7,
        serial: 3,
    };

    /// A digest with the entry 1.
    fn received(position: Option<Position>) -> Learning {
        let mut filter = Filter::empty(size()).unwrap();
        filter.insert(&key(1));
        let received = Received {
            filter,
            memory: memory(),
            position,
            entity_tag: position.map(entity_tag),
        };
        Learning::New(received, Duration::ZERO)
    }

    fn learned(position: Option<Position>) -> Learned {
        let learned = Learned::default();
        assert!(learned.begin().is_some() && learned.begin().is_none());
        learned.end(received(position), Instant::now());
        learned
    }

    fn send(learned: &Learned, position: Position, bits: &[u32]) {
        let mut changes = Changes::new(size(), bits.to_vec(), |_| Bit::Set);
        let datagram = changes.datagram(position);
        learned.take_update(&parse(&datagram).unwrap(), Instant::now());
    }

    fn bits(n: u32) -> Vec<u32> {
        let mut filter = Filter::empty(size()).unwrap();
        filter.insert(&key(n)).as_slice().to_vec()
    }

    #[tokio::test(start_paused = true)]
    async fn a_digest_is_fetched_when_needed_and_again_after_ten_minutes_at_most() {
        let learned = Learned::default();
        assert!(!learned.is_due(Instant::now()));
        assert_eq!(learned.verdict(&key(1)), Verdict::NeverTried);
        assert!(learned.is_due(Instant::now()));
        assert!(learned.begin().unwrap().entity_tag.is_none());
        assert!(!learned.is_due(Instant::now()));
        learned.end(received(None), Instant::now());
        learned.tried().await;
        assert_eq!(learned.verdict(&key(1)), Verdict::Yes);
        assert_eq!(learned.verdict(&key(2)), Verdict::No);
        tokio::time::advance(AFTER_EXPIRY.mul_f64(0.89)).await;
        assert!(!learned.is_due(Instant::now()));
        tokio::time::advance(AFTER_EXPIRY.mul_f64(0.22)).await;
        assert!(learned.is_due(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_refuses_six_times_may_be_making_its_digest_and_then_not() {
        let learned = Learned::default();
        for _ in 0..6 {
            learned.begin().unwrap();
            learned.end(Learning::Refused, Instant::now());
            assert_eq!(learned.verdict(&key(1)), Verdict::BeingMade);
        }
        learned.begin().unwrap();
        learned.end(Learning::Refused, Instant::now());
        assert_eq!(learned.verdict(&key(1)), Verdict::Unknown);
        // One that does not answer is not at work.
        let silent = Learned::default();
        silent.begin().unwrap();
        silent.end(Learning::Failed, Instant::now());
        assert_eq!(silent.verdict(&key(1)), Verdict::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_repeated_after_a_quarter_of_a_second_up_to_two_hours() {
        let learned = Learned::default();
        let doubled = (0..15).map(|failure| 0.25 * f64::from(1 << failure));
        for (failure, seconds) in doubled.chain([7200.0, 7200.0]).enumerate() {
            learned.begin().unwrap();
            learned.end(Learning::Failed, Instant::now());
            assert_eq!(learned.verdict(&key(1)), Verdict::Unknown);
            tokio::time::advance(Duration::from_secs_f64(seconds * 0.89)).await;
            assert!(!learned.is_due(Instant::now()), "{failure}");
            tokio::time::advance(Duration::from_secs_f64(seconds * 0.22)).await;
            assert!(learned.is_due(Instant::now()), "{failure}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_digest_that_is_refused_takes_the_copy_away_and_silence_does_not() {
        let learned = learned(None);
        learned.begin().unwrap();
        learned.end(Learning::Failed, Instant::now());
        assert_eq!(learned.verdict(&key(1)), Verdict::Yes);
        learned.begin().unwrap();
        learned.end(Learning::Refused, Instant::now());
        assert_eq!(learned.verdict(&key(1)), Verdict::BeingMade);
    }

    #[tokio::test(start_paused = true)]
    async fn updates_in_order_are_applied_and_a_gap_or_a_new_epoch_makes_the_digest_due() {
        let learned = learned(Some(AT));
        let next = AT.next();
        send(&learned, next, &bits(2));
        assert_eq!(learned.verdict(&key(2)), Verdict::Yes);
        assert_eq!(learned.counts().updates_received, 1);
        // A copy of an earlier one.
        send(&learned, AT, &[]);
        assert!(!learned.is_due(Instant::now()));
        assert_eq!(learned.begin().unwrap().entity_tag.unwrap(), "\"7-4\"");
        learned.end(Learning::Same(Duration::ZERO), Instant::now());
        send(&learned, next.next().next(), &bits(3));
        assert_eq!(learned.verdict(&key(3)), Verdict::No);
        assert_eq!(learned.counts().updates_missed, 1);
        assert!(learned.is_due(Instant::now()));
        assert_eq!(learned.begin().unwrap().entity_tag, None);
        learned.end(received(Some(AT)), Instant::now());
        let epoch = AT.epoch + 1;
        send(&learned, Position { epoch, ..AT }, &[]);
        // The second one in a row waits, in case that somebody forges them.
        assert!(!learned.is_due(Instant::now()));
        tokio::time::advance(GAP_PAUSE * 3).await;
        assert!(learned.is_due(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_wrong_too_often_is_not_asked_for_a_minute() {
        let learned = learned(Some(AT));
        for n in 0..64 {
            learned.note_result(n % 4 != 0, Instant::now());
        }
        assert_eq!(learned.verdict(&key(1)), Verdict::Yes);
        assert_eq!(learned.counts().false_hits, 16);
        // The oldest of the 64 was wrong too, so they are still a quarter after the next one.
        learned.note_result(false, Instant::now());
        assert_eq!(learned.verdict(&key(1)), Verdict::Yes);
        learned.note_result(false, Instant::now());
        assert_eq!(learned.verdict(&key(1)), Verdict::Paused);
        assert!(learned.is_due(Instant::now()));
        assert_eq!(learned.begin().unwrap().entity_tag, None);
        learned.end(received(Some(AT)), Instant::now());
        assert_eq!(learned.verdict(&key(1)), Verdict::Paused);
        tokio::time::advance(FALSE_HIT_PAUSE).await;
        learned.is_due(Instant::now());
        assert_eq!(learned.verdict(&key(1)), Verdict::Yes);
    }

    #[test]
    fn an_entity_tag_says_the_position_it_was_made_of() {
        assert_eq!(position(&entity_tag(AT)), Some(AT));
        for wrong in ["\"7-x\"", "7-3", "W/\"7-3\"", "\"73\"", "\"99999999999-1\""] {
            assert_eq!(position(&HeaderValue::from_static(wrong)), None, "{wrong}");
        }
    }
}
