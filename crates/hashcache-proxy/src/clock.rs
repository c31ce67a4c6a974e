//! What time it is, on a box that may have no battery for its clock.
//!
//! Freshness, `Date`, the access log and certificates all ask here. Time is an anchor plus
//! `CLOCK_BOOTTIME`, which counts through a suspend and which nobody can set. The system clock is
//! compared each second: a step forward moves the anchor, a step back is noticed and not followed,
//! so that a stored response never grows younger. At start the time is the latest of the system
//! clock, the last time known before the power went, and the day this release was made.
//!
//! When three origins agree in their `Date`, and with them most of those met within the hour, they
//! are believed about a clock that is behind, and they clear or confirm a suspicion. Origins of one
//! network, and one host on several ports, are one: who may name what is fetched could else make up
//! as many as he likes. Where we are ahead of them nothing moves before a restart,
//! but then the time that is kept for the restart is theirs: one bad hour does not last for ever.
//!
//! Invariant: `now` never goes back while the process lives.
//! Cost: `now` is one read of a clock in user space and one atomic load.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashcache_http::Host;
use rustix::time::{ClockId, clock_gettime};

use crate::kept_file::replace;

/// Milliseconds since 1970, as told by [`Clock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnixMillis(pub(crate) u64);

impl UnixMillis {
    /// Whole seconds since 1970.
    pub(crate) const fn seconds(self) -> u64 {
        self.0 / 1000
    }

    /// Milliseconds within the second.
    pub(crate) const fn subsec_millis(self) -> u64 {
        self.0 % 1000
    }
}

/// The clock of the process; one, shared by all workers.
#[derive(Debug)]
pub(crate) struct Clock {
    source: Source,
    /// Wall time minus boot time; only ever raised.
    anchor_ms: AtomicU64,
    suspect: AtomicBool,
    evidence: Mutex<Evidence>,
    /// Where the last known time is kept.
    path: Option<PathBuf>,
}

impl Clock {
    /// Starts from the system clock and the last time known in `path`, if there is one.
    ///
    /// A file that cannot be read or makes no sense is as none: it will be written anew.
    pub(crate) fn start(path: Option<PathBuf>) -> Self {
        Self::with_source(Source::System, path)
    }

    fn with_source(source: Source, path: Option<PathBuf>) -> Self {
        let known_ms = path
            .as_deref()
            .and_then(last_known)
            .map_or(0, |seconds| seconds * 1000);
        let (boot, wall) = (source.boot_ms(), source.wall_ms());
        let start = wall.max(known_ms).max(RELEASED_SECONDS * 1000);
        let clock = Self {
            source,
            anchor_ms: AtomicU64::new(start.saturating_sub(boot)),
            suspect: AtomicBool::new(false),
            evidence: Mutex::new(Evidence::default()),
            path,
        };
        clock.tick();
        clock
    }

    /// The time.
    pub(crate) fn now(&self) -> UnixMillis {
        UnixMillis(
            self.source
                .boot_ms()
                .saturating_add(self.anchor_ms.load(Relaxed)),
        )
    }

    /// Whether the time may be wrong by more than seconds, for all we know.
    pub(crate) fn suspect(&self) -> bool {
        self.suspect.load(Relaxed)
    }

    /// Compares with the system clock and follows it forward; `keep` does this each second.
    pub(crate) fn tick(&self) {
        let mut evidence = self.evidence();
        let (boot, wall) = (self.source.boot_ms(), self.source.wall_ms());
        let now = boot.saturating_add(self.anchor_ms.load(Relaxed));
        if wall > now.saturating_add(STEP_MS) {
            self.forward(wall.saturating_sub(boot), &mut evidence);
        }
        evidence.system_behind = wall.saturating_add(STEP_MS) < now;
        self.suspect.store(evidence.suspect(), Relaxed);
    }

    /// Notes the `Date` (seconds since 1970) of a response that `host` made just now at `peer`.
    ///
    /// To be called for responses without `Age` only: others were made at an earlier time.
    pub(crate) fn hint(&self, host: &Host, peer: IpAddr, date: u64) {
        if !(RELEASED_SECONDS..BELIEVABLE_SECONDS).contains(&date) {
            return;
        }
        let mut evidence = self.evidence();
        let boot = self.source.boot_ms();
        // `Date` has lost its fraction; half a second is the mean of what was lost.
        evidence.note(Note {
            host: host.clone(),
            network: network(peer),
            boot_ms: boot,
            anchor_ms: (date * 1000 + 500).saturating_sub(boot),
        });
        let Some(agreed) = evidence.agreed(boot) else {
            return;
        };
        let anchor = self.anchor_ms.load(Relaxed);
        if agreed > anchor.saturating_add(DISAGREE_MS) {
            self.forward(agreed, &mut evidence);
            evidence.hosts = Hosts::Agree;
        } else if agreed.saturating_add(DISAGREE_MS) < anchor {
            evidence.hosts = Hosts::SayWeAreAhead { anchor_ms: agreed };
        } else {
            evidence.hosts = Hosts::Agree;
        }
        evidence.system_behind = self.source.wall_ms().saturating_add(STEP_MS)
            < boot.saturating_add(self.anchor_ms.load(Relaxed));
        self.suspect.store(evidence.suspect(), Relaxed);
    }

    /// Keeps the time for the next start; the file is replaced as a whole or not at all.
    pub(crate) fn persist(&self) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let anchor = match self.evidence().hosts {
            Hosts::SayWeAreAhead { anchor_ms } => anchor_ms,
            Hosts::Silent | Hosts::Agree => self.anchor_ms.load(Relaxed),
        };
        let seconds = self.source.boot_ms().saturating_add(anchor) / 1000;
        replace(path, format!("{seconds}\n").as_bytes())
    }

    /// Watches the system clock each second and keeps the time each minute; never ends.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failing = false;
        for count in 0u64.. {
            second.tick().await;
            self.tick();
            if count % PERSIST_SECONDS != 0 {
                continue;
            }
            let clock = Arc::clone(&self);
            let kept = tokio::task::spawn_blocking(move || clock.persist()).await;
            let error = match kept {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(error) => Some(io::Error::other(error)),
            };
            // Once per spell of failure: a disk that is full stays full for a while.
            if let (Some(error), false) = (&error, failing) {
                tracing::warn!(%error, "last known time not kept");
            }
            failing = error.is_some();
        }
    }

    /// Moves the anchor forward, or not at all.
    fn forward(&self, anchor_ms: u64, evidence: &mut Evidence) {
        if self.anchor_ms.fetch_max(anchor_ms, Relaxed) < anchor_ms {
            // What the hosts said was about the time we had.
            evidence.hosts = Hosts::Silent;
        }
    }

    fn evidence(&self) -> std::sync::MutexGuard<'_, Evidence> {
        self.evidence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What speaks for and against the time we tell.
#[derive(Debug, Default)]
struct Evidence {
    /// The system clock is behind ours: it stepped back, or started behind the last known time.
    system_behind: bool,
    hosts: Hosts,
    notes: Vec<Note>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Hosts {
    /// Too few have spoken since the anchor moved.
    #[default]
    Silent,
    Agree,
    SayWeAreAhead {
        anchor_ms: u64,
    },
}

/// The latest `Date` of one host.
#[derive(Debug)]
struct Note {
    host: Host,
    network: IpAddr,
    boot_ms: u64,
    anchor_ms: u64,
}

impl Evidence {
    fn suspect(&self) -> bool {
        match self.hosts {
            Hosts::SayWeAreAhead { .. } => true,
            Hosts::Agree => false,
            Hosts::Silent => self.system_behind,
        }
    }

    fn note(&mut self, new: Note) {
        self.notes
            .retain(|note| note.host != new.host && note.network != new.network);
        if self.notes.len() == NOTES
            && let Some(oldest) = (0..NOTES).min_by_key(|&at| self.notes[at].boot_ms)
        {
            self.notes.swap_remove(oldest);
        }
        self.notes.push(new);
    }

    /// The anchor on which most recent hosts agree, three at least.
    fn agreed(&mut self, boot_ms: u64) -> Option<u64> {
        self.notes
            .retain(|note| boot_ms.saturating_sub(note.boot_ms) <= NOTE_LIFE_MS);
        let mut anchors: Vec<u64> = self.notes.iter().map(|note| note.anchor_ms).collect();
        anchors.sort_unstable();
        // A strict majority: of two crowds that contradict each other neither is believed.
        let crowd = (anchors.len() / 2 + 1).max(AGREEING_HOSTS);
        anchors
            .windows(crowd)
            .find(|window| window[crowd - 1] - window[0] <= AGREE_MS)
            .map(|window| window[crowd / 2])
    }
}

/// What one owner has of addresses at the least: 256 of them, or the /48 of a site.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !0xff).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 80 << 80).into(),
    }
}

/// Where boot time and wall time come from.
enum Source {
    System,
    #[cfg(test)]
    Scripted(Arc<tests::Script>),
}

impl Source {
    fn boot_ms(&self) -> u64 {
        match self {
            Self::System => read_ms(ClockId::Boottime),
            #[cfg(test)]
            Self::Scripted(script) => script.boot_ms.load(Relaxed),
        }
    }

    fn wall_ms(&self) -> u64 {
        match self {
            Self::System => read_ms(ClockId::Realtime),
            #[cfg(test)]
            Self::Scripted(script) => script.wall_ms.load(Relaxed),
        }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

/// Both clocks stand before 1970 only if set so; that is as good as 1970.
fn read_ms(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000;
    seconds.saturating_mul(1000).saturating_add(millis)
}

fn last_known(path: &Path) -> Option<u64> {
    let mut text = String::new();
    File::open(path)
        .ok()?
        .take(32)
        .read_to_string(&mut text)
        .ok()?;
    let seconds = text.trim_end().parse().ok()?;
    // A damaged file must not send us to a year from which there is no way back.
    (RELEASED_SECONDS..BELIEVABLE_SECONDS)
        .contains(&seconds)
        .then_some(seconds)
}

/// 2026-11-01: no earlier than this can it be, for this release did not exist.
const RELEASED_SECONDS: u64 = 1_793_491_200;
/// Twenty years on; what is told or kept beyond is not believed.
const BELIEVABLE_SECONDS: u64 = RELEASED_SECONDS + 20 * 365 * 86_400;
/// A difference to the system clock that is a step and no drift.
const STEP_MS: u64 = 2_000;
/// Hosts agree when their clocks are this close; `Date` is in seconds and lines are slow.
const AGREE_MS: u64 = 10_000;
/// What hosts must differ from us by to be right and we wrong.
const DISAGREE_MS: u64 = 60_000;
const AGREEING_HOSTS: usize = 3;
/// More than one who fills them with hosts of his own has networks.
const NOTES: usize = 64;
const NOTE_LIFE_MS: u64 = 3_600_000;
const PERSIST_SECONDS: u64 = 60;

#[cfg(test)]
mod tests;
