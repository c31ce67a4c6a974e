//! Page-group runs that were read recently, with the objects that each run loaded: objects that are
//! hot need not be read again.
//!
//! Called by `group_read`. A run is read from the wanted record to the end of the run, and a page
//! requests objects in any order. So a later read for an object in front of loaded objects, or
//! between them, would read the same bytes again.
//!
//! Invariant: this is only a hint. If a read leaves heads out, they are hot at that moment; if a
//! head or a span is evicted before it is looked up, that costs a read.
//! Cost: at most [`OBJECTS_MAX`] objects of 24 bytes in [`RUNS_MAX`] runs for a device (100 KiB),
//! and a lookup in the hot objects for each known object in a run to be read.

use std::collections::VecDeque;
use std::ops::Range;

use crate::address::LogPos;
use crate::key::KeyHash;

/// Known objects in all runs on a device: 40 pages of 100 objects.
const OBJECTS_MAX: usize = 4096;
/// Known runs, also runs without an object that can be hot: a few for each page that clients are
/// loading.
const RUNS_MAX: usize = 128;

/// A run that was read.
pub(super) struct RecentRun {
    /// The log range that was read.
    pub(super) range: Range<LogPos>,
    /// True if the run was read to the end: records behind the range belong to other groups.
    pub(super) is_whole: bool,
    /// Objects in the run that can be hot, with their positions.
    pub(super) objects: Vec<(LogPos, KeyHash)>,
}

/// The most recent runs on a device, oldest first.
#[derive(Default)]
pub(super) struct RecentRuns {
    runs: VecDeque<RecentRun>,
    objects: usize,
}

impl RecentRuns {
    /// Adds a run. Replaces the runs within it, and the oldest runs if there are too many.
    pub(super) fn push(&mut self, mut run: RecentRun) {
        run.objects.shrink_to_fit();
        let is_within = |it: &RecentRun| {
            let within = run.range.start <= it.range.start && it.range.end <= run.range.end;
            within && (run.is_whole || !it.is_whole)
        };
        self.runs.retain(|it| !is_within(it));
        self.runs.push_back(run);
        self.objects = self.runs.iter().map(|it| it.objects.len()).sum();
        while self.objects > OBJECTS_MAX || self.runs.len() > RUNS_MAX {
            let Some(oldest) = self.runs.pop_front() else {
                return;
            };
            self.objects -= oldest.objects.len();
        }
    }

    /// Returns true if `at` is in a known run.
    pub(super) fn has(&self, at: LogPos) -> bool {
        self.runs.iter().any(|it| it.range.contains(&at))
    }

    /// Returns where a read of `run` may stop because all known objects behind that place are hot:
    /// at the end of the run or earlier. The wanted record starts before `earliest`, so a read
    /// never stops before that, nor before the next object.
    pub(super) fn end_of(
        &self,
        run: &Range<LogPos>,
        earliest: LogPos,
        is_hot: impl Fn(KeyHash) -> bool,
    ) -> LogPos {
        let mut end = run.end;
        loop {
            let reaches_end = |it: &&RecentRun| {
                let covers = it.range.end >= end || it.is_whole && it.range.end > run.start;
                covers && it.range.start < end
            };
            let Some(known) = self.runs.iter().rev().find(reaches_end) else {
                return end;
            };
            let within = earliest..end;
            let objects = known.objects.iter().rev();
            for (at, key) in objects.filter(|(at, _)| within.contains(at)) {
                if !is_hot(*key) {
                    return end;
                }
                end = *at;
            }
            if known.range.start < earliest {
                return end;
            }
            end = end.min(known.range.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn key(n: u64) -> KeyHash {
        KeyHash { high: n, low: n }
    }

    /// Objects at every tenth position of the range, each with its position as key.
    fn run(range: Range<u64>, is_whole: bool) -> RecentRun {
        let places = range.clone().filter(|at| at % 10 == 0);
        RecentRun {
            range: LogPos(range.start)..LogPos(range.end),
            is_whole,
            objects: places.map(|at| (LogPos(at), key(at))).collect(),
        }
    }

    fn runs(all: impl IntoIterator<Item = RecentRun>) -> RecentRuns {
        let mut runs = RecentRuns::default();
        all.into_iter().for_each(|it| runs.push(it));
        runs
    }

    /// Where a read of this range stops, with all objects hot except `missing`.
    fn end(runs: &RecentRuns, range: Range<u64>, missing: &[u64]) -> u64 {
        let missing: BTreeSet<u64> = missing.iter().copied().collect();
        let is_hot = |key: KeyHash| !missing.contains(&key.high);
        let earliest = LogPos(range.start + 1);
        runs.end_of(&(LogPos(range.start)..LogPos(range.end)), earliest, is_hot)
            .0
    }

    #[test]
    fn without_a_run_that_reaches_the_end_all_is_read() {
        assert_eq!(end(&runs([]), 10..90, &[]), 90);
        assert_eq!(end(&runs([run(20..80, false)]), 10..90, &[]), 90);
        assert_eq!(end(&runs([run(100..200, true)]), 10..90, &[]), 90);
        // A whole run of the previous group.
        assert_eq!(end(&runs([run(0..10, true)]), 10..90, &[]), 90);
    }

    #[test]
    fn what_lies_before_a_hot_run_is_read_to_it() {
        assert_eq!(end(&runs([run(40..90, false)]), 10..90, &[]), 40);
        // The lengths of runs are rounded.
        assert_eq!(end(&runs([run(40..88, true)]), 10..90, &[]), 40);
        let both = runs([run(40..90, false), run(20..40, false)]);
        assert_eq!(end(&both, 10..90, &[]), 20);
    }

    #[test]
    fn a_read_ends_behind_the_last_object_that_is_missing() {
        let all = runs([run(40..90, true)]);
        assert_eq!(end(&all, 10..90, &[60]), 70);
        assert_eq!(end(&all, 10..90, &[80]), 90);
        assert_eq!(end(&all, 10..90, &[40]), 50);
        assert_eq!(end(&all, 10..90, &[40, 60]), 70);
        // The newest run counts.
        let newer = runs([run(40..90, true), run(60..90, true)]);
        assert_eq!(end(&newer, 10..90, &[50]), 60);
    }

    #[test]
    fn a_run_takes_the_place_of_those_within_it() {
        let again = runs((0..10).map(|_| run(40..90, true)));
        assert_eq!((again.runs.len(), again.objects), (1, 5));
        let parts = [run(40..60, false), run(60..90, false), run(100..120, false)];
        let longer = runs(parts.into_iter().chain([run(40..90, true)]));
        assert_eq!((longer.runs.len(), longer.objects), (2, 7));
        // A run that was cut does not tell that the run stops there.
        let cut = runs([run(60..90, true), run(40..90, false)]);
        assert_eq!(end(&cut, 10..95, &[]), 40);
    }

    #[test]
    fn an_object_between_hot_ones_is_read_to_the_next_object() {
        let all = runs([run(10..90, true)]);
        assert_eq!(end(&all, 50..95, &[50]), 60);
        assert_eq!(end(&all, 50..95, &[50, 70]), 80);
        // Objects in front of the wanted object do not matter.
        assert_eq!(end(&all, 50..95, &[20, 50]), 60);
        // Behind the last known object, no object is known to be hot.
        assert_eq!(end(&all, 80..95, &[80]), 95);
    }

    #[test]
    fn the_oldest_runs_are_forgotten() {
        let long = |start: u64| run(start..start + 10_000, true);
        let all = runs((0..9).map(|n| long(n * 10_000)));
        assert!(all.objects <= OBJECTS_MAX);
        assert_eq!(end(&all, 0..10_000, &[]), 10_000);
        assert_eq!(end(&all, 80_000..90_000, &[]), 80_010);
        let too_long = runs([run(0..50_000, true)]);
        assert_eq!((too_long.runs.len(), too_long.objects), (0, 0));
        let empty = runs((0..1000).map(|n| run(n * 10 + 1..n * 10 + 9, true)));
        assert_eq!((empty.runs.len(), empty.objects), (RUNS_MAX, 0));
    }
}
