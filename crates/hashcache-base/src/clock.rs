//! The time of day, for machines that may have no battery for the clock.
//!
//! Freshness, `Date`, the access log and certificate checks use this clock. The time is an anchor
//! plus `CLOCK_BOOTTIME`, because that clock counts through a suspend and no program can set it. At
//! the start the time is the latest of three: the system clock, the last known time before the
//! power failed (the kept time), and the release day of this version. The system clock is compared
//! each second: a step forward moves the anchor, a step back only makes the time suspect.
//!
//! The system clock is *plausible* while it is after the release, and not further behind our time
//! than a quartz clock can be wrong (`SYSTEM_WRONG_MS`). Then the system clock decides, and `Date`
//! fields from origins move the time by no more than that. Otherwise the time is taken from
//! origins, under four rules:
//!
//! - Only an origin with a verified certificate is a witness. Otherwise an attacker could name
//!   three hosts in a page, or change responses on the path.
//! - A certificate limits the dates that the owner may claim: no date outside the validity, and no
//!   date more than `STEP_MAX_SECONDS` after the start of the validity. So the certificate limits a
//!   false date.
//! - Three witnesses must agree, and must be the majority of all witnesses within the hour. Origins
//!   in the same network, and one host on several ports, count as one witness.
//! - The time may move back, so that honest witnesses can correct it without a restart. A response
//!   that was stored "in the future" is stale and is validated.
//!
//! Verifying a certificate needs the time, and the time needs verified certificates. While our time
//! is based only on the kept time, a certificate that becomes valid after our time is checked at
//! the start of that validity: an authority has signed that this moment is past. If most witnesses
//! show certificates that are not valid at our time, each certificate is checked within that
//! certificate's validity, until the witnesses agree on the time. Neither happens while the system
//! clock is plausible.
//!
//! Cost: `now` reads a clock in user space and one atomic variable.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashcache_http::Host;
use rustix::time::{ClockId, clock_gettime};

use crate::state_file::{Link, open_regular, replace};

#[cfg(any(test, feature = "testing"))]
mod testing;
pub mod zone;

/// Milliseconds since 1970 on our [`Clock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// Whole seconds since 1970.
    pub const fn seconds(self) -> u64 {
        self.0 / 1000
    }

    /// Milliseconds within the second.
    pub const fn subsec_millis(self) -> u64 {
        self.0 % 1000
    }
}

/// The clock of the process; all workers share it.
#[derive(Debug)]
pub struct Clock {
    source: TimeSource,
    /// Wall time minus boot time.
    anchor_ms: AtomicU64,
    suspect: AtomicBool,
    evidence: Mutex<Samples>,
    /// File for the last known time.
    path: Option<PathBuf>,
}

impl Clock {
    /// Starts from the system clock and from the last known time in `path`, if there is a file.
    ///
    /// An unreadable or invalid file counts as missing, and will be replaced.
    pub fn start(path: Option<PathBuf>) -> Self {
        Self::with_source(TimeSource::System, path)
    }

    fn with_source(source: TimeSource, path: Option<PathBuf>) -> Self {
        let known_ms = path
            .as_deref()
            .and_then(last_known)
            .map_or(0, |seconds| seconds * 1000);
        let (boot, wall) = (source.boot_ms(), source.wall_ms());
        let told = if is_believable(wall) { wall } else { 0 };
        let start = told.max(known_ms).max(RELEASED_SECONDS * 1000);
        let clock = Self {
            source,
            anchor_ms: AtomicU64::new(start.saturating_sub(boot)),
            suspect: AtomicBool::new(false),
            evidence: Mutex::new(Samples::default()),
            path,
        };
        clock.tick();
        clock
    }

    /// The current time.
    pub fn now(&self) -> UnixMillis {
        UnixMillis(
            self.source
                .boot_ms()
                .saturating_add(self.anchor_ms.load(Relaxed)),
        )
    }

    /// Returns true if the time may be wrong by more than seconds.
    pub fn suspect(&self) -> bool {
        self.suspect.load(Relaxed)
    }

    /// Compares our time with the system clock and follows it forward; `keep` calls this each
    /// second.
    pub fn tick(&self) {
        let mut evidence = self.evidence();
        let (boot, wall) = (self.source.boot_ms(), self.source.wall_ms());
        let now = boot.saturating_add(self.anchor_ms.load(Relaxed));
        if wall > now.saturating_add(STEP_MS) && is_believable(wall) {
            self.anchor_ms.store(wall.saturating_sub(boot), Relaxed);
            // The verdict is about the old time: the witnesses' dates were compared with that.
            evidence.verdict = ClockVerdict::Open;
        }
        self.conclude(&evidence, boot, wall);
    }

    /// Notes that `host` at `peer` has just shown a verified certificate with this validity.
    pub fn verified(&self, host: &Host, peer: IpAddr, validity: Validity) {
        let mut evidence = self.evidence();
        let boot_ms = self.source.boot_ms();
        // The last date from this host still counts: the host has proved the same name again.
        let says = match evidence.of(host) {
            Some(SampleTime::Time { anchor_ms, .. }) => SampleTime::Time {
                anchor_ms,
                validity,
            },
            _ => SampleTime::Nothing { validity },
        };
        evidence.note(host, peer, boot_ms, says);
    }

    /// Notes that the certificate of `host` at `peer` is valid, but not at our time.
    pub fn out_of_time(&self, host: &Host, peer: IpAddr) {
        let mut evidence = self.evidence();
        let boot_ms = self.source.boot_ms();
        evidence.note(host, peer, boot_ms, SampleTime::OutOfTime);
        if evidence.most_are_out_of_time(boot_ms) {
            evidence.verdict = ClockVerdict::OutOfTime;
        }
        self.conclude(&evidence, boot_ms, self.source.wall_ms());
    }

    /// Notes the `Date` (seconds since 1970) of a response that `host` at `peer` has just made.
    /// Counts only if [`Clock::verified`] was called for the host before.
    ///
    /// Only for responses over TLS without `Age`: other responses may be old.
    pub fn hint(&self, host: &Host, peer: IpAddr, date: u64) {
        let mut evidence = self.evidence();
        let validity = match evidence.of(host) {
            Some(SampleTime::Nothing { validity } | SampleTime::Time { validity, .. }) => validity,
            Some(SampleTime::OutOfTime) | None => return,
        };
        if !validity.bears(date) || !is_believable(date.saturating_mul(1000)) {
            return;
        }
        let (boot, wall) = (self.source.boot_ms(), self.source.wall_ms());
        // `Date` has lost the fraction of a second: half a second on average.
        let anchor_ms = (date * 1000 + 500).saturating_sub(boot);
        let says = SampleTime::Time {
            anchor_ms,
            validity,
        };
        evidence.note(host, peer, boot, says);
        if let Some(agreed) = evidence.agreed(boot) {
            evidence.verdict = self.follow(agreed, boot, wall);
        }
        self.conclude(&evidence, boot, wall);
    }

    /// Moves to the anchor on which the witnesses agree, within the limits on the trust in them.
    fn follow(&self, agreed: u64, boot: u64, wall: u64) -> ClockVerdict {
        let anchor = self.anchor_ms.load(Relaxed);
        if agreed.abs_diff(anchor) <= DISAGREE_MS {
            return ClockVerdict::Agree;
        }
        let system = wall.saturating_sub(boot);
        if !is_plausible(wall, boot.saturating_add(anchor)) {
            self.anchor_ms.store(agreed, Relaxed);
            return ClockVerdict::Agree;
        }
        // Compared with the system clock and not with our time, so that steps do not add up.
        if agreed.abs_diff(system) > SYSTEM_WRONG_MS {
            return ClockVerdict::Contradict;
        }
        self.anchor_ms.store(agreed.max(system), Relaxed);
        ClockVerdict::Agree
    }

    /// The time at which to check a certificate with this validity, seconds since 1970.
    pub fn certificate_time(&self, validity: Validity) -> u64 {
        let now = self.now();
        if is_plausible(self.source.wall_ms(), now.0) {
            return now.seconds();
        }
        let now = now.seconds();
        match self.evidence().verdict {
            ClockVerdict::Agree | ClockVerdict::Contradict => now,
            ClockVerdict::Open => now.max(validity.not_before),
            ClockVerdict::OutOfTime => now
                .min(validity.not_after)
                .max(validity.not_before)
                .max(RELEASED_SECONDS),
        }
    }

    fn conclude(&self, evidence: &Samples, boot: u64, wall: u64) {
        let now = boot.saturating_add(self.anchor_ms.load(Relaxed));
        let suspect = match evidence.verdict {
            ClockVerdict::Contradict | ClockVerdict::OutOfTime => true,
            ClockVerdict::Agree => false,
            ClockVerdict::Open => wall.saturating_add(STEP_MS) < now || !is_believable(wall),
        };
        self.suspect.store(suspect, Relaxed);
    }

    /// Saves the time for the next start; the file is replaced as a whole or not at all.
    pub fn persist(&self) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let seconds = self.now().seconds();
        replace(path, format!("{seconds}\n").as_bytes())
    }

    /// Compares the system clock each second and saves the time each minute; never returns.
    pub async fn keep(self: Arc<Self>) {
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
            // Logged once per series of failures: a full disk stays full for a while.
            if let (Some(error), false) = (&error, failing) {
                tracing::warn!(%error, "last known time not saved");
            }
            failing = error.is_some();
        }
    }

    fn evidence(&self) -> std::sync::MutexGuard<'_, Samples> {
        self.evidence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The validity of a certificate, seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first valid second.
    pub not_before: u64,
    /// The last valid second.
    pub not_after: u64,
}

impl Validity {
    /// Returns true if the owner of the certificate may claim this date.
    fn bears(self, date: u64) -> bool {
        let last = self.not_after;
        let last = last.min(self.not_before.saturating_add(STEP_MAX_SECONDS));
        (self.not_before..=last).contains(&date)
    }
}

/// Recent samples from the witnesses.
#[derive(Debug, Default)]
struct Samples {
    verdict: ClockVerdict,
    notes: Vec<HostSample>,
}

/// The view of most witnesses.
#[derive(Clone, Copy, Debug, Default)]
enum ClockVerdict {
    /// Too few samples since the time was moved.
    #[default]
    Open,
    /// The witnesses agree with our time.
    Agree,
    /// The witnesses have another time, but the system clock is plausible and decides.
    Contradict,
    /// The witnesses' certificates are not valid at our time.
    OutOfTime,
}

/// The latest sample from a host.
#[derive(Debug)]
struct HostSample {
    host: Host,
    network: IpAddr,
    boot_ms: u64,
    says: SampleTime,
}

#[derive(Clone, Copy, Debug)]
enum SampleTime {
    /// The host was verified, and has sent no date yet.
    Nothing { validity: Validity },
    /// The host has sent a date.
    Time { anchor_ms: u64, validity: Validity },
    /// The host's certificate is not valid at our time.
    OutOfTime,
}

impl Samples {
    fn of(&self, host: &Host) -> Option<SampleTime> {
        let note = self.notes.iter().find(|note| note.host == *host)?;
        Some(note.says)
    }

    fn note(&mut self, host: &Host, peer: IpAddr, boot_ms: u64, says: SampleTime) {
        let network = network(peer);
        self.notes
            .retain(|note| note.host != *host && note.network != network);
        if self.notes.len() == NOTES
            && let Some(oldest) = (0..NOTES).min_by_key(|&at| self.notes[at].boot_ms)
        {
            self.notes.swap_remove(oldest);
        }
        self.notes.push(HostSample {
            host: host.clone(),
            network,
            boot_ms,
            says,
        });
    }

    /// The anchor on which most recent witnesses agree, three at least.
    fn agreed(&mut self, boot_ms: u64) -> Option<u64> {
        let spoken = self.spoken(boot_ms);
        let times = self.notes.iter().filter_map(|note| match note.says {
            SampleTime::Time { anchor_ms, .. } => Some(anchor_ms),
            SampleTime::Nothing { .. } | SampleTime::OutOfTime => None,
        });
        let mut anchors: Vec<u64> = times.collect();
        anchors.sort_unstable();
        // A strict majority: if two equal groups contradict each other, neither counts.
        let crowd = (spoken / 2 + 1).max(AGREEING_HOSTS);
        anchors
            .windows(crowd)
            .find(|window| window[crowd - 1] - window[0] <= AGREE_MS)
            .map(|window| window[crowd / 2])
    }

    fn most_are_out_of_time(&mut self, boot_ms: u64) -> bool {
        let spoken = self.spoken(boot_ms);
        let out = self.notes.iter();
        let out = out.filter(|note| matches!(note.says, SampleTime::OutOfTime));
        out.count() >= (spoken / 2 + 1).max(AGREEING_HOSTS)
    }

    /// Number of recent witnesses that have shown a date or an out-of-time certificate.
    fn spoken(&mut self, boot_ms: u64) -> usize {
        self.notes
            .retain(|note| boot_ms.saturating_sub(note.boot_ms) <= NOTE_LIFE_MS);
        let spoken = self.notes.iter();
        spoken
            .filter(|note| !matches!(note.says, SampleTime::Nothing { .. }))
            .count()
    }
}

/// Returns true if the time is possible: after this release, and within 20 years of it.
fn is_believable(ms: u64) -> bool {
    (RELEASED_SECONDS..BELIEVABLE_SECONDS).contains(&(ms / 1000))
}

/// Returns true if the system clock, which shows `wall`, is plausible compared to `now`.
fn is_plausible(wall: u64, now: u64) -> bool {
    is_believable(wall) && wall.saturating_add(SYSTEM_WRONG_MS) >= now
}

/// The network of `peer` that has a single owner at least: 256 IPv4 addresses, or the IPv6 /48 of a
/// site.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !0xff).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 80 << 80).into(),
    }
}

/// Where boot time and wall time are read.
enum TimeSource {
    System,
    #[cfg(any(test, feature = "testing"))]
    Scripted(Arc<testing::Script>),
}

impl TimeSource {
    fn boot_ms(&self) -> u64 {
        match self {
            Self::System => read_ms(ClockId::Boottime),
            #[cfg(any(test, feature = "testing"))]
            Self::Scripted(script) => script.boot_ms.load(Relaxed),
        }
    }

    fn wall_ms(&self) -> u64 {
        match self {
            Self::System => read_ms(ClockId::Realtime),
            #[cfg(any(test, feature = "testing"))]
            Self::Scripted(script) => script.wall_ms.load(Relaxed),
        }
    }
}

impl std::fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

/// A system clock before 1970 was set so on purpose; 1970 is as good.
fn read_ms(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000;
    seconds.saturating_mul(1000).saturating_add(millis)
}

fn last_known(path: &Path) -> Option<u64> {
    let mut text = String::new();
    open_regular(path, Link::Refused)
        .ok()?
        .take(32)
        .read_to_string(&mut text)
        .ok()?;
    let seconds = text.trim_end().parse().ok()?;
    // A damaged file must not lead to a year from which the clock cannot return.
    (RELEASED_SECONDS..BELIEVABLE_SECONDS)
        .contains(&seconds)
        .then_some(seconds)
}

/// 2026-11-01, the build date: the time cannot be earlier, because this release did not exist.
/// Changed by hand for each release: a date from the build machine would make every build
/// different.
const RELEASED_SECONDS: u64 = 1_793_491_200;
/// Twenty years later; later dates are not possible.
const BELIEVABLE_SECONDS: u64 = RELEASED_SECONDS + 20 * 365 * 86_400;
/// A larger difference to the system clock is a step, not drift.
const STEP_MS: u64 = 2_000;
/// How much a plausible system clock can be wrong: a bad quartz loses 100 parts in a million, which
/// is ten minutes in ten weeks without a time server.
const SYSTEM_WRONG_MS: u64 = 600_000;
/// A witness may claim a date at most this long after the certificate becomes valid: public
/// authorities sign for at most 398 days (CA/Browser Forum, section 6.3.2), plus two for skew.
/// Private authorities sign for decades.
const STEP_MAX_SECONDS: u64 = 400 * 86_400;
/// Hosts agree if their clocks differ by at most this. `Date` has a resolution of a second, and
/// lines are slow.
const AGREE_MS: u64 = 10_000;
/// If the difference is larger than this, the hosts are right and our time is wrong.
const DISAGREE_MS: u64 = 60_000;
const AGREEING_HOSTS: usize = 3;
/// More samples than an attacker has networks to fill the table with.
const NOTES: usize = 64;
const NOTE_LIFE_MS: u64 = 3_600_000;
const PERSIST_SECONDS: u64 = 60;

#[cfg(test)]
mod tests;
