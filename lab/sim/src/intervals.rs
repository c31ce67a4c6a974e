//! What a replay did in each stretch of the log.
//!
//! The number of requests is not known before the end of the log. So totals are noted after every
//! 64th request at first. Whenever there are twice as many totals as wanted, every other one is
//! dropped and the distance is doubled. Called by `replay` and `rival`.
//!
//! Invariant: intervals follow each other without a gap, and their sums are the figures of the
//! whole replay. Cost: memory for at most twice `INTERVALS` totals.

use serde::Serialize;

/// Figures of one stretch of the log, or of all of it up to a request. JSON has the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Requests that count.
    pub requests: u64,
    /// Those that memory or the disk answered.
    pub hits: u64,
    /// Octets of all responses.
    pub bytes: u64,
    /// Octets of hits.
    pub hit_bytes: u64,
    /// Read requests of the disk.
    pub reads: u64,
    /// Write requests of the disk.
    pub writes: u64,
}

impl Interval {
    /// What was added to `before`.
    fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            hits: self.hits - before.hits,
            bytes: self.bytes - before.bytes,
            hit_bytes: self.hit_bytes - before.hit_bytes,
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
        }
    }
}

/// Collects intervals.
pub struct Intervals {
    /// Requests from one total to the next.
    distance: u64,
    totals: Vec<Interval>,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            distance: DISTANCE_MIN,
            totals: vec![],
        }
    }
}

impl Intervals {
    /// Notes `totals` if so many requests make an interval full. Called after each request.
    pub fn note(&mut self, requests: u64, totals: impl FnOnce() -> Interval) {
        if !requests.is_multiple_of(self.distance) {
            return;
        }
        self.totals.push(totals());
        if self.totals.len() == 2 * INTERVALS {
            let mut number = 0;
            self.totals.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.distance = self.distance.saturating_mul(2);
        }
    }

    /// The intervals, where the replay has ended with these totals. The last one has what follows
    /// the last full one, too: a part of an interval would say little.
    pub fn finish(mut self, totals: Interval) -> Vec<Interval> {
        self.totals.pop();
        self.totals.push(totals);
        let mut before = Interval::default();
        let intervals = self.totals.iter().map(|totals| {
            let interval = totals.since(&before);
            before = *totals;
            interval
        });
        intervals.collect()
    }
}

/// A replay has so many intervals or up to twice as many, if the log is long enough.
const INTERVALS: usize = 60;
/// The ratios of fewer requests than this would say little.
const DISTANCE_MIN: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(requests: u64) -> Vec<Interval> {
        let mut intervals = Intervals::default();
        let total = |requests| Interval {
            requests,
            hits: requests / 3,
            writes: 2 * requests,
            ..Interval::default()
        };
        for requests in 1..=requests {
            intervals.note(requests, || total(requests));
        }
        intervals.finish(total(requests))
    }

    #[test]
    fn a_log_of_any_length_has_a_bounded_number_of_intervals() {
        for requests in [0, 1, 63, 64, 200, 7_679, 7_680, 7_681, 50_000, 1_234_567] {
            let all = intervals(requests);
            let sum = |figure: fn(&Interval) -> u64| all.iter().map(figure).sum::<u64>();
            assert_eq!(sum(|it| it.requests), requests);
            assert_eq!(sum(|it| it.hits), requests / 3);
            assert_eq!(sum(|it| it.writes), 2 * requests);
            assert!(all.len() < 2 * INTERVALS, "{requests}: {}", all.len());
            assert!(requests < 7_680 || all.len() >= INTERVALS, "{requests}");
            // All have as many requests, but for the last one, which has less than twice as many.
            let (last, others) = all.split_last().unwrap();
            let each = others.first().map_or(0, |first| first.requests);
            assert!(others.iter().all(|it| it.requests == each), "{requests}");
            assert!(others.is_empty() || (each..2 * each).contains(&last.requests));
        }
    }
}
