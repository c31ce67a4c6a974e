//! Which origins of a site are in service: by the results of requests (passive) and of checks
//! (active).
//!
//! Called with every result, and by the balancer for each origin's share. No I/O and no clock: the
//! time is an argument.
//!
//! ```text
//! in service ── 3 failures in a row ──▶ out 10 s, then 20, 40, 60 ──▶ a tenth of its share, 10 s
//! in service ── 3 failed checks ──▶ out until 2 good checks ────────▶ a tenth of its share, 10 s
//! ```
//!
//! Invariant: results of requests never put more than half of the origins out of service: if all
//! fail, the fault is probably elsewhere. Checks may put out all origins. A page that always fails
//! does not put out an origin that answers other requests: otherwise a client could take the origin
//! from all others.
//! Cost: a few comparisons per result.

use std::time::Duration;

use tokio::time::Instant;

/// The result of a request to an origin, for the origin's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response with a status below 500.
    Good,
    /// Another server error. It does not show that the next request fails too, so the origin stays
    /// in service; operators see that it is failing.
    Error,
    /// No response in time, a broken response, or 502, 503 or 504. A single page may be the cause.
    Unable,
    /// No connection.
    Failed,
}

impl Outcome {
    /// The outcome for a response status.
    pub fn from_status(status: http::StatusCode) -> Self {
        match status.as_u16() {
            502..=504 => Self::Unable,
            500.. => Self::Error,
            _ => Self::Good,
        }
    }
}

/// The health of all origins of a site.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    origins: Vec<OriginHealth>,
}

/// The health of an origin.
#[derive(Clone, Debug, Default)]
struct OriginHealth {
    /// Failed requests in a row.
    failures: u32,
    /// The last request that was answered without a failure.
    good_at: Option<Instant>,
    /// The last request failed, or the response was a server error.
    is_failing: bool,
    /// Out of service until then, by the results of requests.
    out_until: Option<Instant>,
    /// How long the origin was out of service the last time.
    out_time: Duration,
    /// Checks in a row with a result that contradicts `is_down`.
    against: u32,
    /// Out of service by checks.
    is_down: bool,
    /// When checks put the origin back into service.
    back_since: Option<Instant>,
}

impl OriginHealth {
    fn is_out(&self, now: Instant) -> bool {
        self.is_down || self.out_until.is_some_and(|until| now < until)
    }

    /// The time at which the origin returned to service, if it has ever been out.
    fn returned(&self) -> Option<Instant> {
        self.out_until.max(self.back_since)
    }
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Out of service for this long, by the results of requests.
    Out(Duration),
    /// Out of service by checks.
    Down,
    /// In service again, by checks.
    Up,
}

impl Health {
    /// All origins are in service.
    pub(crate) fn new(origins: usize) -> Self {
        Self {
            origins: vec![OriginHealth::default(); origins],
        }
    }

    /// Notes the result of a request to origin `n`.
    pub(crate) fn note(&mut self, n: usize, outcome: Outcome, now: Instant) -> Option<Change> {
        let (origins, is_out) = (self.origins.len(), |it: &OriginHealth| it.is_out(now));
        let out = self.origins.iter().filter(|it| is_out(it)).count();
        let origin = self.origins.get_mut(n)?;
        if origin.is_out(now) {
            // The request was sent before the origin was put out. The result must not lengthen the
            // time.
            return None;
        }
        origin.is_failing = outcome != Outcome::Good;
        if matches!(outcome, Outcome::Good | Outcome::Error) {
            (origin.failures, origin.out_time) = (0, Duration::ZERO);
            origin.good_at = Some(now);
            return None;
        }
        origin.failures = origin.failures.saturating_add(1);
        if origin.failures < FAILURES_MAX || (out + 1) * 2 > origins {
            return None;
        }
        let answers_others = |good: Instant| now.duration_since(good) < ANSWERS_TIME;
        if outcome == Outcome::Unable && origin.good_at.is_some_and(answers_others) {
            return None;
        }
        let time = (origin.out_time * 2).clamp(OUT_TIME_MIN, OUT_TIME_MAX);
        (origin.out_time, origin.out_until) = (time, Some(now + time));
        Some(Change::Out(time))
    }

    /// Notes the result of a check on origin `n`.
    pub(crate) fn note_check(&mut self, n: usize, is_good: bool, now: Instant) -> Option<Change> {
        let origin = self.origins.get_mut(n)?;
        origin.is_failing &= !is_good;
        if is_good != origin.is_down {
            origin.against = 0;
            return None;
        }
        origin.against += 1;
        let needed = if origin.is_down {
            GOOD_CHECKS
        } else {
            FAILED_CHECKS
        };
        if origin.against < needed {
            return None;
        }
        origin.against = 0;
        origin.is_down = !is_good;
        if !is_good {
            return Some(Change::Down);
        }
        origin.back_since = Some(now);
        Some(Change::Up)
    }

    /// Returns true if the last request to origin `n` failed, or the response was a server error.
    pub(crate) fn is_failing(&self, n: usize) -> bool {
        self.origins.get(n).is_some_and(|origin| origin.is_failing)
    }

    /// The part of the share that origin `n` gets now, in tenths.
    pub(crate) fn tenths(&self, n: usize, now: Instant) -> u32 {
        let Some(origin) = self.origins.get(n) else {
            return 0;
        };
        if origin.is_out(now) {
            return 0;
        }
        let returned = origin.returned();
        if returned.is_some_and(|since| now.duration_since(since) < RETURN_TIME) {
            1
        } else {
            10
        }
    }
}

/// Failures in a row after which an origin is out of service.
const FAILURES_MAX: u32 = 3;
/// For this long after a good response, failures are taken as failures of single pages. A client
/// can send many requests for such a page, but it cannot keep the origin from answering other
/// requests meanwhile.
const ANSWERS_TIME: Duration = Duration::from_secs(2);
/// Checks in a row that put an origin out of service.
const FAILED_CHECKS: u32 = 3;
/// Checks in a row that put the origin back.
const GOOD_CHECKS: u32 = 2;
/// How long an origin is out of service the first time; it doubles while the origin keeps failing.
const OUT_TIME_MIN: Duration = Duration::from_secs(10);
const OUT_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a returning origin gets a tenth of its share: its caches are cold.
const RETURN_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fail(health: &mut Health, n: usize, times: usize, now: Instant) -> Option<Change> {
        let mut change = None;
        for _ in 0..times {
            change = health.note(n, Outcome::Failed, now);
        }
        change
    }

    #[test]
    fn three_failures_in_a_row_put_an_origin_out_for_ten_seconds() {
        let (mut health, now) = (Health::new(2), Instant::now());
        assert_eq!(fail(&mut health, 0, 2, now), None);
        health.note(0, Outcome::Good, now);
        assert_eq!(fail(&mut health, 0, 2, now), None);
        assert_eq!(fail(&mut health, 0, 1, now), Some(Change::Out(10 * SECOND)));
        assert_eq!(health.tenths(0, now + 9 * SECOND), 0);
        assert_eq!(health.tenths(1, now), 10);
    }

    #[test]
    fn a_page_that_always_fails_does_not_put_out_an_origin_that_answers_others() {
        let (mut health, mut now) = (Health::new(2), Instant::now());
        for _ in 0..20 {
            health.note(0, Outcome::Good, now);
            now += SECOND;
            for _ in 0..50 {
                assert_eq!(health.note(0, Outcome::Unable, now), None);
            }
        }
        // The origin answers no request any more.
        now += SECOND;
        let change = health.note(0, Outcome::Unable, now);
        assert_eq!(change, Some(Change::Out(10 * SECOND)));
        // That there is no connection is no page's fault.
        health.note(1, Outcome::Good, now + 10 * SECOND);
        let change = fail(&mut health, 1, 3, now + 10 * SECOND);
        assert_eq!(change, Some(Change::Out(10 * SECOND)));
    }

    #[test]
    fn an_origin_that_answers_with_errors_is_failing_and_stays_in_service() {
        let (mut health, now) = (Health::new(2), Instant::now());
        for _ in 0..10 {
            let error = Outcome::from_status(http::StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(health.note(0, error, now), None);
        }
        assert!(health.is_failing(0) && !health.is_failing(1));
        assert_eq!(health.tenths(0, now), 10);
        health.note(0, Outcome::from_status(http::StatusCode::NOT_FOUND), now);
        assert!(!health.is_failing(0));
        health.note(
            0,
            Outcome::from_status(http::StatusCode::SERVICE_UNAVAILABLE),
            now,
        );
        assert!(health.is_failing(0));
    }

    #[test]
    fn an_origin_returns_with_a_tenth_of_its_share() {
        let (mut health, now) = (Health::new(2), Instant::now());
        fail(&mut health, 0, 3, now);
        assert_eq!(health.tenths(0, now + 10 * SECOND), 1);
        assert_eq!(health.tenths(0, now + 19 * SECOND), 1);
        assert_eq!(health.tenths(0, now + 20 * SECOND), 10);
    }

    #[test]
    fn the_time_doubles_to_a_minute_and_a_success_ends_that() {
        let (mut health, mut now) = (Health::new(2), Instant::now());
        fail(&mut health, 0, 2, now);
        for seconds in [10, 20, 40, 60, 60] {
            let out = SECOND * seconds;
            assert_eq!(fail(&mut health, 0, 1, now), Some(Change::Out(out)));
            now += out;
        }
        health.note(0, Outcome::Good, now);
        assert_eq!(fail(&mut health, 0, 3, now), Some(Change::Out(10 * SECOND)));
    }

    #[test]
    fn late_failures_of_earlier_requests_do_not_lengthen_the_time() {
        let (mut health, now) = (Health::new(2), Instant::now());
        fail(&mut health, 0, 3, now);
        assert_eq!(fail(&mut health, 0, 50, now + SECOND), None);
        assert_eq!(health.tenths(0, now + 10 * SECOND), 1);
    }

    #[test]
    fn never_more_than_half_of_the_origins_are_out_by_requests() {
        for origins in 1..6 {
            let (mut health, now) = (Health::new(origins), Instant::now());
            for n in 0..origins {
                fail(&mut health, n, 9, now);
            }
            let out = (0..origins).filter(|&n| health.tenths(n, now) == 0);
            assert_eq!(out.count(), origins / 2);
        }
    }

    #[test]
    fn an_origin_out_by_a_check_counts_towards_the_half() {
        let (mut health, now) = (Health::new(2), Instant::now());
        for _ in 0..3 {
            health.note_check(0, false, now);
        }
        assert_eq!(fail(&mut health, 1, 9, now), None);
        assert_eq!(health.tenths(1, now), 10);
    }

    #[test]
    fn three_failed_checks_put_an_origin_out_until_two_are_good() {
        let (mut health, now) = (Health::new(1), Instant::now());
        let mut check = |is_good| health.note_check(0, is_good, now);
        assert_eq!([check(false), check(false), check(true)], [None; 3]);
        assert_eq!([check(false), check(false)], [None; 2]);
        assert_eq!(check(false), Some(Change::Down));
        assert_eq!([check(true), check(false), check(true)], [None; 3]);
        assert_eq!(check(true), Some(Change::Up));
        assert_eq!(health.tenths(0, now + 9 * SECOND), 1);
        assert_eq!(health.tenths(0, now + 10 * SECOND), 10);
    }

    #[test]
    fn checks_may_put_all_origins_out() {
        let (mut health, now) = (Health::new(2), Instant::now());
        for n in [0, 1] {
            for _ in 0..3 {
                health.note_check(n, false, now);
            }
        }
        assert_eq!([health.tenths(0, now), health.tenths(1, now)], [0, 0]);
    }

    #[test]
    fn a_gateway_error_is_a_failure_and_other_errors_are_not() {
        for (status, outcome) in [
            (200, Outcome::Good),
            (404, Outcome::Good),
            (500, Outcome::Error),
            (501, Outcome::Error),
            (502, Outcome::Unable),
            (503, Outcome::Unable),
            (504, Outcome::Unable),
        ] {
            let status = http::StatusCode::from_u16(status).unwrap();
            assert_eq!(Outcome::from_status(status), outcome);
        }
    }
}
