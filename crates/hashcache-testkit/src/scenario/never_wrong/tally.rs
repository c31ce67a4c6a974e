//! Counts from a run, and the limits for them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::client::Asked;
use super::objects::{Committed, Objects, Way};
use super::{Came, Options};
use crate::Counts;
use crate::scenario::Verdict;

/// Counts from all rounds.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    requests: u64,
    hits: u64,
    bytes: u64,
    wrong: Vec<String>,
    /// Responses that were detectably cut short, which a kill may cause.
    cut: u64,
    ended_by_kill: u64,
    /// Requests started more than [`CALM_AFTER`] after a restart and not failed because of a kill.
    calm: u64,
    calm_failed: u64,
    failures: BTreeMap<String, u64>,
    probed: u64,
    /// Responses to a probe that were neither the object nor 504.
    probe_faults: Vec<String>,
    survived: u64,
    probed_late: u64,
    survived_late: u64,
    /// Rounds that were repeated because the disk did not keep up.
    again: u32,
    started: u32,
    start_faults: Vec<String>,
    listening_max: Duration,
    ready_max: Duration,
}

impl Tally {
    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn not_started(&self, why: String) {
        self.sums().start_faults.push(why);
    }

    /// Counts a round that is repeated because the disk did not keep up.
    pub(super) fn again(&self) {
        self.sums().again += 1;
    }

    /// Records the time from the start of the process to the report that it listens, and to the
    /// first response.
    pub(super) fn ready(&self, listening: Duration, answered: Duration) {
        let mut sums = self.sums();
        sums.started += 1;
        sums.listening_max = sums.listening_max.max(listening);
        sums.ready_max = sums.ready_max.max(answered);
    }

    /// Counts a request of the load; called when the time of the kill is known.
    pub(super) fn came(&self, objects: &Objects, came: &Came, restarted: Instant, killed: Instant) {
        let mut sums = self.sums();
        sums.requests += 1;
        let by_kill = came.ended >= killed;
        let succeeded = match &came.asked {
            Asked::Right { hit, bytes } => {
                sums.hits += u64::from(*hit);
                sums.bytes += bytes;
                // After a hit on an object that is not committed: no complete response was observed
                // when the object was stored, so this first hit counts as the commit.
                if came.way == Way::Plain && (!hit || !objects.is_committed(came.object)) {
                    objects.commit(came.object, came.ended);
                }
                true
            }
            Asked::Wrong(what) => {
                sums.wrong.push(what.clone());
                false
            }
            Asked::Cut => {
                sums.cut += 1;
                false
            }
            Asked::NotCached | Asked::Failed(_) => false,
        };
        if !succeeded && by_kill {
            sums.ended_by_kill += 1;
            return;
        }
        if !succeeded {
            let what = match &came.asked {
                Asked::Failed(what) => what.clone(),
                other => format!("{other:?}"),
            };
            *sums.failures.entry(what).or_default() += 1;
        }
        if came.began > restarted + CALM_AFTER {
            sums.calm += 1;
            sums.calm_failed += u64::from(!succeeded);
        }
    }

    /// Counts a probe, which is a request with `only-if-cached`.
    pub(super) fn probed(&self, objects: &Objects, committed: &Committed, asked: &Asked) {
        let mut sums = self.sums();
        let there = match asked {
            Asked::Right { .. } => true,
            Asked::Wrong(what) => {
                sums.wrong.push(format!("after a restart: {what}"));
                true
            }
            // A truncated object counts as lost; the client can detect the truncation.
            Asked::NotCached | Asked::Cut => false,
            other => {
                let target = objects.target(committed.object);
                let what = format!("{other:?} to only-if-cached");
                *sums.failures.entry(what).or_default() += 1;
                sums.probe_faults
                    .push(format!("{target} after a restart: {other:?}"));
                return;
            }
        };
        if committed.must_survive {
            sums.probed += 1;
            sums.survived += u64::from(there);
        } else {
            sums.probed_late += 1;
            sums.survived_late += u64::from(there);
        }
    }

    /// Returns a one-line summary.
    pub(super) fn line(&self) -> String {
        let sums = self.sums();
        format!(
            "{} requests, {} hits, {} wrong, {} cut, {} failed; survived {} of {}, ready in {} ms",
            sums.requests,
            sums.hits,
            sums.wrong.len(),
            sums.cut,
            sums.failures.values().sum::<u64>(),
            sums.survived,
            sums.probed,
            sums.ready_max.as_millis()
        )
    }

    pub(super) fn verdicts(&self, options: &Options, origin: &Counts) -> Vec<Verdict> {
        let sums = self.sums();
        vec![
            sums.no_lie(options, origin),
            sums.success(),
            sums.readiness(options),
            sums.survival(options),
        ]
    }
}

impl Sums {
    fn no_lie(&self, options: &Options, origin: &Counts) -> Verdict {
        let mut verdict = Verdict::new("no wrong or short body taken for whole");
        verdict.seen = format!(
            "{} requests, {} MB, {} hits; {} asked of the origin; {} seen as cut short",
            self.requests,
            self.bytes / 1_000_000,
            self.hits,
            origin.requests,
            self.cut
        );
        verdict.figure("requests", self.requests as f64);
        verdict.figure("wrong", self.wrong.len() as f64);
        verdict.expect(self.requests > u64::from(options.objects) / 2, || {
            "too few requests to tell".to_owned()
        });
        verdict.expect(self.wrong.is_empty(), || {
            let some: Vec<_> = self.wrong.iter().take(10).collect();
            format!("{} wrong, such as {some:?}", self.wrong.len())
        });
        verdict
    }

    fn success(&self) -> Verdict {
        let mut verdict = Verdict::new("requests begun > 1 s after a restart succeed at once");
        let share = percent(self.calm - self.calm_failed, self.calm);
        verdict.seen = format!(
            "{share:.3} % of {}, 99.5 % are the bar; {} others ended by a kill; failures {:?}",
            self.calm, self.ended_by_kill, self.failures
        );
        verdict.figure("succeeded_percent", share);
        verdict.expect(self.calm > 0, || "none to judge".to_owned());
        verdict.expect(share >= 99.5, || "below the bar".to_owned());
        verdict
    }

    fn readiness(&self, options: &Options) -> Verdict {
        let mut verdict = Verdict::new(READINESS);
        verdict.seen = format!(
            "{} starts; listening within {} ms, first answer within {} ms",
            self.started,
            self.listening_max.as_millis(),
            self.ready_max.as_millis()
        );
        verdict.figure("ready_ms_max", self.ready_max.as_secs_f64() * 1000.0);
        for fault in self.start_faults.iter().take(10) {
            verdict.fault(fault.clone());
        }
        let starts = options.kills + self.again + 1;
        verdict.expect(self.started == starts, || {
            format!("{} starts of {starts}", self.started)
        });
        verdict.expect(self.ready_max <= READY_WITHIN, || {
            "above the bar".to_owned()
        });
        verdict
    }

    fn survival(&self, options: &Options) -> Verdict {
        let mut verdict = Verdict::new("committed > 1 s before a kill, still a hit");
        let share = percent(self.survived, self.probed);
        verdict.seen = format!(
            "{share:.2} % of {}, 99 % are the bar; of those within the last second {:.2} % of {}; \
             {} rounds played again, as the disk did not keep up",
            self.probed,
            percent(self.survived_late, self.probed_late),
            self.probed_late,
            self.again
        );
        verdict.figure("survived_percent", share);
        for fault in self.probe_faults.iter().take(10) {
            verdict.fault(fault.clone());
        }
        verdict.expect(self.probed > u64::from(options.objects) / 4, || {
            "too few to judge".to_owned()
        });
        verdict.expect(share >= 99.0, || "below the bar".to_owned());
        verdict
    }
}

pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// Name of the verdict on the start time.
pub const READINESS: &str = "ready within 1 s of the start";
const CALM_AFTER: Duration = Duration::from_secs(1);
pub(super) const READY_WITHIN: Duration = Duration::from_secs(1);
