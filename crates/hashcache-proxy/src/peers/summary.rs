//! Builds our own summary, keeps it up to date, and sends updates.
//!
//! Run by `server` on the main thread; the scan of a build has a separate thread, because it waits
//! for the disk.
//!
//! Invariants: there is a summary only while a peer wants it. At most one build runs at a time, and
//! uses at most 1/20 of the time of a disk. No peer gets more than 1 Mbit/s of updates.
//! Cost: one wake-up a second; four while such peers exist and their updates are useful. A build
//! reads the lists of the log, 56 bytes per object, and needs the memory of a second filter
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use hashcache::{Cache, Observation, Reservation};
use hashcache_peers::filter::{
    BITS_PER_ENTRY, Filter, SMALL_FILTER_BITS_PER_ENTRY, SQUID_BITS_PER_ENTRY, Size,
};
use hashcache_store::summary::{Summary, Threshold, Updates, memory_bytes};
use hashcache_upstream::peer::{Peer, PeerSummary};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::worker::Common;

/// Keeps the summary until the process stops. `is_ending` returns true if clients are no longer
/// accepted.
pub(crate) async fn keep(common: Arc<Common>, cache: Cache, is_ending: impl Fn() -> bool) {
    let mut keeper = Keeper {
        common,
        cache,
        observation: None,
        build: None,
        built: None,
        updates: Updates::NotSent,
        reports: 0,
        has_complained: false,
    };
    while !is_ending() {
        keeper.step();
        sleep(keeper.pause()).await;
    }
}

struct Keeper {
    common: Arc<Common>,
    cache: Cache,
    /// The engine's reports; present while a peer wants the summary.
    observation: Option<Observation>,
    build: Option<Build>,
    /// The last build's time and result.
    built: Option<(Instant, Built)>,
    updates: Updates,
    /// Reports in the last step.
    reports: usize,
    /// True if the reason for a missing summary was logged.
    has_complained: bool,
}

/// A running build. Its thread stops soon after this is dropped.
struct Build {
    ended: Receiver<Built>,
    is_given_up: Arc<AtomicBool>,
}

impl Drop for Build {
    fn drop(&mut self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}

/// Build result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Built {
    Done,
    /// The smallest filter does not fit in the memory.
    NoMemory,
    /// The store is not ready or is out of service, or the policy has no lists.
    NoStore,
}

impl Keeper {
    /// Returns the time until the next step.
    fn pause(&self) -> Duration {
        match self.build {
            // Peers that start at the same time request the first summary at once.
            Some(_) => TICK_BUILDING,
            None if self.reports > REPORTS_MANY => TICK,
            // Without peers that want a summary there is no observation.
            None if self.observation.is_some() && self.common.summary.is_used() => TICK,
            None if self.common.summary.has_updates() => TICK,
            None => TICK_QUIET,
        }
    }

    fn step(&mut self) {
        let peers = self.common.live().routes.peers().to_vec();
        let wants = |wanted: fn(PeerSummary) -> bool| {
            peers.iter().any(|peer| wanted(peer.settings.summary))
        };
        if !wants(|it| it != PeerSummary::None) {
            self.turn_off();
            return;
        }
        let can_send = self.common.queries.icp.address().is_some();
        let updates = if can_send && wants(|it| it == PeerSummary::Updates) {
            Updates::Sent
        } else {
            Updates::NotSent
        };
        let now = self.common.now();
        let common = Arc::clone(&self.common);
        let summary = &common.summary;
        let before = std::mem::replace(&mut self.updates, updates);
        if (before, updates) == (Updates::NotSent, Updates::Sent) {
            summary.begin_epoch(now);
        }
        if self.observation.is_none() {
            match self.observe() {
                Some(observation) => self.observation = Some(observation),
                None => return,
            }
        }
        self.reports = summary.absorb(updates, now);
        self.build_if_due();
        let threshold = Threshold {
            permille: common.live().settings.summary_permille,
        };
        summary.make_updates(threshold, (Instant::now(), now));
        self.send(&peers);
    }

    fn turn_off(&mut self) {
        self.reports = 0;
        if self.observation.take().is_some() {
            self.build = None;
            self.built = None;
            self.updates = Updates::NotSent;
            self.has_complained = false;
            self.common.summary.turn_off();
        }
    }

    fn observe(&mut self) -> Option<Observation> {
        let summary = Arc::clone(&self.common.summary);
        let clock = Arc::clone(&self.common.clock);
        let now = move || hashcache_http::UnixTime(clock.now().seconds());
        match self.cache.observe(move |event| summary.note(event, now())) {
            Ok(observation) => Some(observation),
            Err(error) => {
                self.complain(&format!("{error}"));
                None
            }
        }
    }

    fn complain(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.has_complained, true) {
            warn!(reason, "no summary for peers");
        }
    }

    fn build_if_due(&mut self) {
        if let Some(build) = &self.build {
            let ended = match build.ended.try_recv() {
                Ok(ended) => ended,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => Built::NoStore,
            };
            self.build = None;
            self.built = Some((Instant::now(), ended));
            self.ended(ended);
            return;
        }
        let summary = &self.common.summary;
        let is_due = match self.built {
            None => true,
            Some((at, Built::Done)) => {
                let is_old = at.elapsed() >= BUILD_PAUSE_MAX;
                is_old || summary.is_outdated() && at.elapsed() >= BUILD_PAUSE_MIN
            }
            Some((at, Built::NoStore)) => at.elapsed() >= STORE_PAUSE,
            Some((at, Built::NoMemory)) => at.elapsed() >= MEMORY_PAUSE,
        };
        if is_due {
            self.begin_build();
        }
    }

    fn ended(&mut self, ended: Built) {
        let common = Arc::clone(&self.common);
        let summary = &common.summary;
        match ended {
            Built::Done => {
                // Apply the reports from the time of the build first.
                summary.absorb(self.updates, common.now());
                summary.end_build(self.updates, common.now());
                self.has_complained = false;
                let (entries, bits) = summary.size().unwrap_or_default();
                info!(entries, bits, "summary for peers built");
            }
            Built::NoMemory => {
                let reason = "it does not fit into `memory`, not even with 5 bits an object";
                self.complain(reason);
                // An old summary would become more and more wrong.
                summary.turn_off();
            }
            Built::NoStore => summary.abandon_build(),
        }
    }

    fn begin_build(&mut self) {
        let (tell, ended) = sync_channel(1);
        let is_given_up = Arc::<AtomicBool>::default();
        let scanning = Scanning {
            common: Arc::clone(&self.common),
            cache: self.cache.clone(),
            is_given_up: Arc::clone(&is_given_up),
        };
        let started = thread::Builder::new()
            .name("summary".into())
            .spawn(move || {
                // Fails if the build was given up.
                let _ = tell.send(scanning.run());
            });
        match started {
            Ok(_) => self.build = Some(Build { ended, is_given_up }),
            Err(error) => {
                self.complain(&format!("no thread: {error}"));
                self.built = Some((Instant::now(), Built::NoMemory));
            }
        }
    }

    /// Sends waiting updates, as many as a peer may get in a tick.
    fn send(&self, peers: &[Arc<Peer>]) {
        let next = || self.common.summary.next_update();
        let room = updates_in(self.pause());
        let datagrams: Vec<_> = std::iter::from_fn(next).take(room).collect();
        if datagrams.is_empty() {
            return;
        }
        for peer in peers {
            if peer.settings.summary != PeerSummary::Updates {
                continue;
            }
            // Sent in a row, so that the peer wakes only once.
            for datagram in &datagrams {
                if self.common.queries.send_update(peer, datagram) {
                    peer.learned.count_sent();
                }
            }
        }
    }
}

/// Input for the scan thread.
struct Scanning {
    common: Arc<Common>,
    cache: Cache,
    is_given_up: Arc<AtomicBool>,
}

impl Scanning {
    fn run(self) -> Built {
        let summary = &self.common.summary;
        let Some((filter, memory)) = self.filter(summary) else {
            return Built::NoMemory;
        };
        if self.is_given_up.load(Ordering::Relaxed) {
            return Built::NoStore;
        }
        summary.begin_build(filter, memory);
        let Ok(mut scan) = self.cache.scan() else {
            return Built::NoStore;
        };
        let mut owed = Duration::ZERO;
        loop {
            let begun = Instant::now();
            let Some(step) = scan.next() else {
                return Built::Done;
            };
            summary.add_scanned(&step.objects, self.common.now());
            if step.read_bytes > 0 {
                owed += pause_after(begun.elapsed());
            }
            if owed >= PAUSE_MIN && !self.pause(std::mem::take(&mut owed)) {
                return Built::NoStore;
            }
            if self.is_given_up.load(Ordering::Relaxed) {
                return Built::NoStore;
            }
        }
    }

    /// Returns a filter for all stored objects, with as many bits per entry as the memory allows.
    fn filter(&self, summary: &Summary) -> Option<(Filter, Reservation)> {
        let stats = self.cache.stats();
        let capacity = summary.capacity_for(stats.live_entries);
        let small_max = SMALL_FILTER_MAX.min(stats.memory_limit_bytes / SMALL_FILTER_PART);
        let small = std::iter::once(SMALL_FILTER_BITS_PER_ENTRY);
        let bits = small.chain((SQUID_BITS_PER_ENTRY..=BITS_PER_ENTRY).rev());
        bits.filter_map(|bits| {
            let size = Size::new(capacity, bits).ok()?;
            if bits == SMALL_FILTER_BITS_PER_ENTRY && u64::from(size.octets()) > small_max {
                return None;
            }
            let memory = self.cache.reserve_bulk(memory_bytes(size.octets()))?;
            Some((Filter::empty(size).ok()?, memory))
        })
        .next()
    }

    /// Waits; returns `false` if the build was given up meanwhile.
    fn pause(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_given_up.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(TICK));
        }
        false
    }
}

/// Returns how many updates a peer may get until the next step, after `pause`.
fn updates_in(pause: Duration) -> usize {
    let pause = pause.min(TICK).as_millis();
    usize::try_from(UPDATES_PER_SECOND * pause / 1000).unwrap_or(usize::MAX)
}

/// Returns how long a scan must leave the disk idle after using it for `time`, so that it uses 1/20
/// of the time.
fn pause_after(time: Duration) -> Duration {
    time * 19
}

/// Size limits for a small filter: this part of the memory, and this many octets.
const SMALL_FILTER_PART: u64 = 64;
const SMALL_FILTER_MAX: u64 = 16 << 20;
const TICK: Duration = Duration::from_millis(250);
const TICK_BUILDING: Duration = Duration::from_millis(50);
/// Tick with nothing to send, while no peer wants or uses the summary.
const TICK_QUIET: Duration = Duration::from_secs(1);
/// Shortest pause of a scan: on a fast disk, sleeping and waking up after each read would cost
/// about as much processor time as the read.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// If a step has more reports, the next step follows soon: a queue of reports has room for eight
/// times as many.
const REPORTS_MANY: usize = 512;
/// Maximum updates that a peer gets in a second: 1 Mbit.
const UPDATES_PER_SECOND: u128 = 87;
/// Octets of an update with IP and UDP headers.
#[cfg(test)]
const UPDATE_OCTETS: usize = 1428;
/// Minimum time between two builds, while the store is written to quickly.
const BUILD_PAUSE_MIN: Duration = Duration::from_secs(5);
/// Maximum filter age: removed and stale objects are still in it.
const BUILD_PAUSE_MAX: Duration = Duration::from_secs(6 * 60 * 60);
/// Pause before another attempt if the store is not ready or is out of service.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Pause before another attempt if there was no memory.
const MEMORY_PAUSE: Duration = Duration::from_secs(5 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_takes_a_twentieth_of_the_time() {
        let busy = Duration::from_millis(30);
        assert_eq!(
            busy.as_secs_f64() / (busy + pause_after(busy)).as_secs_f64(),
            0.05
        );
    }

    #[test]
    fn updates_take_at_most_a_megabit_a_second() {
        for pause in [TICK, TICK_BUILDING, TICK_QUIET] {
            let octets = (updates_in(pause) * UPDATE_OCTETS) as f64;
            let rate = octets * 8.0 / pause.as_secs_f64();
            assert!(octets > 0.0 && rate <= 1e6, "{pause:?}: {rate}");
        }
    }
}
