//! Offline mode: the line to the Internet counts as up or down. While it counts as down, nothing is
//! sent over it: stale responses are served where RFC 9111 lets a disconnected cache serve them,
//! and other requests fail at once.
//!
//! The operator sets the mode (`admin` in the proxy, settings), or with [`Offline::Auto`] failures
//! to connect decide, which `connect` reports. These failures only raise a doubt, because one
//! client can name many origins that are down. `server/probes` in the proxy then tries origins that
//! were reached before, for different clients if possible, and finds out when the line is back. For
//! this it also uses the origins that `worker` in the proxy refuses meanwhile, so that no client
//! decides for all others. `worker` also decides which hops are behind the line.
//!
//! Invariants: only origins that clients have chosen are reported, and no origin inside the
//! operator's own network. The line does not count as down before an origin was reached: without a
//! reached origin, names from a single client could be the only evidence.
//! Cost: an atomic read for each hop; a short lock for each new connection to an origin, and for
//! each request that is refused.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::share::Network;
use hashcache_http::Authority;
use tokio::time::Instant;

/// How the Internet line's state is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offline {
    /// Always up, whatever fails.
    #[default]
    Off,
    /// Always down.
    On,
    /// Down after connections to several origins in a row have failed and probes of other origins
    /// fail too, until a probe succeeds.
    Auto,
}

impl Offline {
    /// All variants with their spelling.
    pub const WORDS: [(&'static str, Self); 3] =
        [("off", Self::Off), ("on", Self::On), ("auto", Self::Auto)];

    /// The spelling in the settings.
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        }
    }
}

/// The line; one for the process.
#[derive(Debug, Default)]
pub struct Line {
    is_down: AtomicBool,
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    regarded: Offline,
    /// Origins that could not be reached since an origin was last reached, oldest first, each once.
    failed: VecDeque<(Chosen, Instant)>,
    reached: Latest,
    /// Origins to which nothing was sent since the line counts as down.
    refused: Latest,
}

/// An origin, and the first client that has chosen it; `None`: the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The origin.
    pub origin: Authority,
    /// The client.
    pub client: Option<Network>,
}

/// The latest origins with a note: the latest is last, each origin is noted once, and few origins
/// are noted per client, so that one client cannot replace the origins of all others.
#[derive(Debug, Default)]
struct Latest(VecDeque<Chosen>);

impl Latest {
    fn note(&mut self, chosen: &Chosen) {
        let is_same = |known: &Chosen| known.origin == chosen.origin;
        if let Some(at) = self.0.iter().position(is_same) {
            // The origin keeps its first client: otherwise a client could take over origins of
            // other clients in order to replace them.
            let known = self.0.remove(at);
            return self.0.extend(known);
        }
        let of_client = |known: &&Chosen| known.client == chosen.client;
        let oldest = match self.0.iter().filter(of_client).count() {
            OF_CLIENT_MAX.. => self.0.iter().position(|known| of_client(&known)),
            _ => (self.0.len() >= LATEST_MAX).then_some(0),
        };
        if let Some(oldest) = oldest {
            self.0.remove(oldest);
        }
        self.0.push_back(chosen.clone());
    }

    /// Iterates from the latest origin to the oldest.
    fn iter(&self) -> impl Iterator<Item = &Chosen> {
        self.0.iter().rev()
    }

    /// Returns a few origins, from different clients if possible.
    fn few(&self) -> Vec<Chosen> {
        let mut first: Vec<&Chosen> = Vec::new();
        let mut further = Vec::new();
        for chosen in self.iter() {
            if first.iter().any(|known| known.client == chosen.client) {
                further.push(chosen);
            } else {
                first.push(chosen);
            }
        }
        let few = first.into_iter().chain(further);
        few.take(DOUBT_PROBES).cloned().collect()
    }
}

impl Line {
    /// Returns true if stored responses are served without a request over the line.
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Returns the operator's setting.
    pub fn regarded(&self) -> Offline {
        self.state().regarded
    }

    /// Changes the operator's setting.
    pub fn regard(&self, regarded: Offline) {
        let mut state = self.state();
        state.regarded = regarded;
        state.failed.clear();
        state.refused.0.clear();
        self.set_down(regarded == Offline::On);
    }

    /// Notes the result of an attempt to connect to an origin.
    pub(crate) fn note<T>(&self, to: &Chosen, outcome: &Result<T, Failure>, now: Instant) {
        match outcome {
            Ok(_) => self.note_reached(to),
            Err(failure) if is_of_line(failure) => self.note_failed(to, now),
            // A host has answered, or nothing was sent.
            Err(_) => {}
        }
    }

    /// Notes an origin to which nothing was sent because the line counts as down.
    pub fn note_refused(&self, to: &Chosen) {
        let mut state = self.state();
        // The operator's setting has priority over probes, and the line may be back by now.
        if state.regarded == Offline::Auto && self.is_down() {
            state.refused.note(to);
        }
    }

    /// Returns origins for probes that test whether the line is up; `None`: no test is needed.
    pub fn probes(&self) -> Option<Vec<Chosen>> {
        let state = self.state();
        if state.regarded != Offline::Auto {
            return None;
        }
        if !self.is_down() {
            // Few, because requests wait for the result.
            return state.is_in_doubt().then(|| state.reached.few());
        }
        let failed = state.failed.iter().map(|(chosen, _)| chosen);
        let all = state.refused.iter().chain(state.reached.iter());
        let mut probes: Vec<Chosen> = Vec::new();
        for chosen in all.chain(failed) {
            if probes.iter().all(|known| known.origin != chosen.origin) {
                probes.push(chosen.clone());
            }
        }
        Some(probes)
    }

    /// Notes which probed origin was reached; `None`: none was reached.
    pub fn note_probes(&self, reached: Option<&Chosen>) {
        if let Some(chosen) = reached {
            self.note_reached(chosen);
        }
        let mut state = self.state();
        if state.regarded == Offline::Auto && (self.is_down() || state.is_in_doubt()) {
            if reached.is_some() {
                state.refused.0.clear();
            }
            self.set_down(reached.is_none());
        }
    }

    fn note_reached(&self, to: &Chosen) {
        let mut state = self.state();
        state.failed.clear();
        state.reached.note(to);
    }

    fn note_failed(&self, to: &Chosen, now: Instant) {
        let mut state = self.state();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < FAILED_TIME;
        state
            .failed
            .retain(|(known, at)| known.origin != to.origin && is_recent(*at));
        if state.failed.len() >= FAILED_MIN {
            state.failed.pop_front();
        }
        state.failed.push_back((to.clone(), now));
    }

    fn set_down(&self, is_down: bool) {
        let before = self.is_down.swap(is_down, Ordering::Relaxed);
        match (before, is_down) {
            (false, true) => tracing::warn!("offline: the line to the Internet counts as down"),
            (true, false) => tracing::info!("online: the line to the Internet counts as up"),
            (true, true) | (false, false) => {}
        }
    }

    fn state(&self) -> MutexGuard<'_, LineState> {
        // A panic under the lock would leave at worst one odd entry, which is replaced.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineState {
    /// Returns true if origins fail, and other origins are known for a probe.
    fn is_in_doubt(&self) -> bool {
        self.failed.len() >= FAILED_MIN && !self.reached.0.is_empty()
    }
}

/// Returns true if a failure to connect may be the line's fault.
fn is_of_line(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Unreachable
            | Failure::ConnectTimeout(_)
            | Failure::NameError
            | Failure::NameTimeout(_)
    )
}

/// Failed origins in a row after which the line is probed. Many pages load from fewer origins, so
/// one page with origins that are all down starts no probe.
const FAILED_MIN: usize = 5;
/// Older failures do not count.
const FAILED_TIME: Duration = Duration::from_secs(120);
/// Maximum number of reached origins that are remembered; refused origins have the same maximum.
const LATEST_MAX: usize = 8;
/// Maximum number of remembered origins per client.
const OF_CLIENT_MAX: usize = 2;
/// Number of origins that are probed after [`FAILED_MIN`] failures.
const DOUBT_PROBES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// An origin that was chosen by a separate client.
    fn origin(number: usize) -> Chosen {
        chosen(number, number)
    }

    fn chosen(number: usize, client: usize) -> Chosen {
        let origin = Authority::parse_with_port(&format!("origin{number}.test:80"));
        Chosen {
            origin: origin.unwrap(),
            client: Some(Network::Child(client as u128)),
        }
    }

    fn reached(line: &Line, to: &Chosen) {
        line.note(to, &Ok(()), Instant::now());
    }

    fn failed(line: &Line, number: usize, now: Instant) {
        line.note(&origin(number), &Err::<(), _>(Failure::Unreachable), now);
    }

    fn auto() -> Line {
        let line = Line::default();
        line.regard(Offline::Auto);
        line
    }

    #[test]
    fn different_origins_in_a_row_raise_a_doubt_and_probes_decide() {
        let (line, now) = (auto(), Instant::now());
        for number in 10..20 {
            line.note(&origin(number), &Ok(()), now);
        }
        for number in 0..FAILED_MIN {
            assert_eq!(line.probes(), None);
            line.note_probes(None);
            assert!(!line.is_down());
            failed(&line, number, now);
        }
        assert_eq!(line.probes(), Some(vec![origin(19), origin(18)]));
        assert!(!line.is_down());
        // A probe works: the origins had failed, not the line.
        line.note_probes(Some(&origin(18)));
        assert!(!line.is_down() && line.probes().is_none());
        // No probe works: the line is down.
        (0..FAILED_MIN).for_each(|number| failed(&line, number, now));
        line.note_probes(None);
        assert!(line.is_down());
        let probes = line.probes().unwrap();
        assert_eq!(probes[..2], [origin(18), origin(19)]);
        assert_eq!(probes.len(), LATEST_MAX + FAILED_MIN);
        line.note_probes(None);
        assert!(line.is_down());
        line.note_probes(Some(&origin(0)));
        assert!(!line.is_down() && line.probes().is_none());
    }

    #[test]
    fn before_an_origin_was_reached_the_line_does_not_count_as_down() {
        let (line, now) = (auto(), Instant::now());
        (0..FAILED_MIN).for_each(|number| failed(&line, number, now));
        assert_eq!(line.probes(), None);
        line.note_probes(None);
        assert!(!line.is_down());
    }

    #[test]
    fn one_client_cannot_replace_the_origins_of_others() {
        let (line, now) = (auto(), Instant::now());
        (0..3).for_each(|number| reached(&line, &origin(number)));
        // Not by taking them over either.
        (0..3).for_each(|number| reached(&line, &chosen(number, 99)));
        (100..200).for_each(|number| reached(&line, &chosen(number, 99)));
        (0..FAILED_MIN).for_each(|number| failed(&line, 50 + number, now));
        // First an origin that client 99 has chosen, then an origin of another client.
        assert_eq!(line.probes(), Some(vec![chosen(199, 99), origin(2)]));
        line.note_probes(None);
        let known = [chosen(199, 99), chosen(198, 99), origin(2), origin(1)];
        assert_eq!(line.probes().unwrap()[..4], known);
    }

    #[test]
    fn one_client_alone_is_probed_by_two_of_its_origins() {
        let (line, now) = (auto(), Instant::now());
        (0..5).for_each(|number| reached(&line, &chosen(number, 1)));
        (0..FAILED_MIN).for_each(|number| failed(&line, 50 + number, now));
        assert_eq!(line.probes(), Some(vec![chosen(4, 1), chosen(3, 1)]));
    }

    #[test]
    fn what_is_refused_while_the_line_counts_as_down_is_probed_first() {
        let (line, now) = (auto(), Instant::now());
        line.note_refused(&origin(1));
        reached(&line, &chosen(100, 99));
        (0..FAILED_MIN).for_each(|number| failed(&line, 50 + number, now));
        line.note_probes(None);
        assert!(line.is_down());
        assert_eq!(line.probes().unwrap()[0], chosen(100, 99));
        // Requests of one client, of others, and one for an origin that was reached.
        (200..300).for_each(|number| line.note_refused(&chosen(number, 99)));
        (1..=LATEST_MAX).for_each(|number| line.note_refused(&origin(number)));
        line.note_refused(&origin(3));
        line.note_refused(&chosen(100, 99));
        let probes = line.probes().unwrap();
        let first = [chosen(100, 99), origin(3), origin(8), origin(7)];
        assert_eq!(probes[..4], first);
        assert_eq!(probes.len(), LATEST_MAX + FAILED_MIN);
        line.note_probes(None);
        assert!(line.is_down());
        line.note_probes(Some(&origin(3)));
        assert!(!line.is_down() && line.probes().is_none());
        // This origin is probed first from here on.
        (0..FAILED_MIN).for_each(|number| failed(&line, 50 + number, now));
        assert_eq!(line.probes(), Some(vec![origin(3), chosen(100, 99)]));
        line.note_probes(None);
        assert_eq!(line.probes().unwrap().len(), 2 + FAILED_MIN);
    }

    #[test]
    fn one_origin_however_often_raises_none() {
        let (line, now) = (auto(), Instant::now());
        (0..100).for_each(|_| failed(&line, 1, now));
        assert_eq!(line.probes(), None);
    }

    #[test]
    fn nor_do_origins_with_one_that_is_reached_between_them() {
        let (line, now) = (auto(), Instant::now());
        for number in 0..100 {
            failed(&line, number, now);
            if number % (FAILED_MIN - 1) == 0 {
                line.note(&origin(1000), &Ok(()), now);
            }
            assert_eq!(line.probes(), None);
        }
    }

    #[test]
    fn nor_do_failures_that_are_long_ago_or_of_the_origins() {
        let (line, begun) = (auto(), Instant::now());
        let later = |number: usize| begun + FAILED_TIME * u32::try_from(number).unwrap() / 4;
        for number in 0..100 {
            failed(&line, number, later(number));
        }
        for number in 0..100 {
            let failures = [
                Failure::ConnectionRefused,
                Failure::NameNotFound,
                Failure::DestinationDenied {
                    address: [10, 0, 0, 1].into(),
                },
                Failure::UpstreamLimit,
            ];
            for failure in failures {
                line.note(&origin(number), &Err::<(), _>(failure), begun);
            }
        }
        assert_eq!(line.probes(), None);
    }

    #[test]
    fn what_the_operator_says_holds_whatever_happens() {
        let (line, now) = (Line::default(), Instant::now());
        (0..100).for_each(|number| failed(&line, number, now));
        line.note_probes(None);
        assert!(!line.is_down() && line.probes().is_none());
        line.regard(Offline::On);
        line.note(&origin(1), &Ok(()), now);
        line.note_probes(Some(&origin(1)));
        assert!(line.is_down() && line.probes().is_none());
        line.regard(Offline::Auto);
        assert!(!line.is_down());
    }
}
