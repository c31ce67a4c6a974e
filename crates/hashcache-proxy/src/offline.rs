//! Whether the line to the Internet counts as down. While it does, nothing is sent over it: stale
//! responses are served where RFC 9111 lets a disconnected cache serve them, and other requests
//! fail at once.
//!
//! The operator says so (`admin`, settings), or with [`Offline::Auto`] failures to connect do,
//! which `upstream/connect` reports. They only raise a doubt, because one client can name many
//! origins that are down. `server/probes` then tries origins that were reached before, and finds
//! out when the line is back. `worker` says which hops lie behind the line.
//!
//! Invariant: only origins that clients have chosen are reported, and none of them inside the
//! operator's own network.
//! Cost: one atomic read for each hop; one short lock for each new connection to an origin.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashcache_http::Authority;
use tokio::time::Instant;

use crate::failure::Failure;

/// How the line to the Internet is regarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offline {
    /// As up, whatever fails.
    #[default]
    Off,
    /// As down.
    On,
    /// As down when connections to several origins in a row have failed and probes of others fail
    /// too, until a probe succeeds.
    Auto,
}

impl Offline {
    /// All of them, as they are written.
    pub const WORDS: [(&'static str, Self); 3] =
        [("off", Self::Off), ("on", Self::On), ("auto", Self::Auto)];

    /// As it is written.
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
pub(crate) struct Line {
    is_down: AtomicBool,
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    regarded: Offline,
    /// Origins that could not be reached since one was, oldest first, each once.
    failed: VecDeque<(Authority, Instant)>,
    /// Origins that were reached, the latest last, each once.
    reached: VecDeque<Authority>,
}

impl Line {
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    pub(crate) fn regarded(&self) -> Offline {
        self.state().regarded
    }

    /// Regards the line so from now on.
    pub(crate) fn regard(&self, regarded: Offline) {
        let mut state = self.state();
        state.regarded = regarded;
        state.failed.clear();
        self.set_down(regarded == Offline::On);
    }

    /// Notes the result of an attempt to connect to an origin.
    pub(crate) fn note<T>(&self, origin: &Authority, outcome: &Result<T, Failure>, now: Instant) {
        match outcome {
            Ok(_) => self.note_reached(origin),
            Err(failure) if is_of_line(failure) => self.note_failed(origin, now),
            // A host has answered, or nothing was sent.
            Err(_) => {}
        }
    }

    /// Origins by which to find out whether the line is up; `None`: that is not in question.
    pub(crate) fn probes(&self) -> Option<Vec<Authority>> {
        let state = self.state();
        if state.regarded != Offline::Auto {
            return None;
        }
        let reached = state.reached.iter().rev();
        if self.is_down() {
            let failed = state.failed.iter().map(|(origin, _)| origin);
            return Some(reached.chain(failed).cloned().collect());
        }
        // Few, because requests wait for the result.
        let is_in_doubt = state.failed.len() >= FAILED_MIN;
        is_in_doubt.then(|| reached.take(DOUBT_PROBES).cloned().collect())
    }

    /// Notes which of the probes was reached; `None`: none was.
    pub(crate) fn note_probes(&self, reached: Option<&Authority>) {
        if let Some(origin) = reached {
            self.note_reached(origin);
        }
        let state = self.state();
        let is_in_doubt = self.is_down() || state.failed.len() >= FAILED_MIN;
        if state.regarded == Offline::Auto && is_in_doubt {
            self.set_down(reached.is_none());
        }
    }

    fn note_reached(&self, origin: &Authority) {
        let mut state = self.state();
        state.failed.clear();
        if state.reached.back() == Some(origin) {
            return;
        }
        state.reached.retain(|known| known != origin);
        if state.reached.len() >= REACHED_MAX {
            state.reached.pop_front();
        }
        state.reached.push_back(origin.clone());
    }

    fn note_failed(&self, origin: &Authority, now: Instant) {
        let mut state = self.state();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < FAILED_TIME;
        state
            .failed
            .retain(|(known, at)| known != origin && is_recent(*at));
        if state.failed.len() >= FAILED_MIN {
            state.failed.pop_front();
        }
        state.failed.push_back((origin.clone(), now));
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

/// Whether a failure to connect may be that of the line.
fn is_of_line(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Unreachable
            | Failure::ConnectTimeout(_)
            | Failure::NameError
            | Failure::NameTimeout(_)
    )
}

/// So many origins in a row raise a doubt. Many pages load from fewer, so that one page whose
/// origins are down is no reason.
const FAILED_MIN: usize = 5;
/// Failures count for so long.
const FAILED_TIME: Duration = Duration::from_secs(120);
const REACHED_MAX: usize = 8;
/// Origins that are probed when there is a doubt.
const DOUBT_PROBES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: usize) -> Authority {
        Authority::parse_with_port(&format!("origin{number}.test:80")).unwrap()
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
        // It was the origins.
        line.note_probes(Some(&origin(18)));
        assert!(!line.is_down() && line.probes().is_none());
        // It is the line.
        (0..FAILED_MIN).for_each(|number| failed(&line, number, now));
        line.note_probes(None);
        assert!(line.is_down());
        let probes = line.probes().unwrap();
        assert_eq!(probes[..2], [origin(18), origin(19)]);
        assert_eq!(probes.len(), REACHED_MAX + FAILED_MIN);
        line.note_probes(None);
        assert!(line.is_down());
        line.note_probes(Some(&origin(0)));
        assert!(!line.is_down() && line.probes().is_none());
    }

    #[test]
    fn without_an_origin_that_was_reached_nothing_speaks_for_the_line() {
        let (line, now) = (auto(), Instant::now());
        (0..FAILED_MIN).for_each(|number| failed(&line, number, now));
        assert_eq!(line.probes(), Some(vec![]));
        line.note_probes(None);
        assert!(line.is_down());
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
