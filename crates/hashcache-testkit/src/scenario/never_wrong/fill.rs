//! A cache is filled at a steady rate and the proxy is killed at the end: delivered objects must be
//! in the cache afterwards. If the disk does not keep up at the end, the fill is repeated.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::client::{Asked, Requester};
use super::disk::DiskWatch;
use super::objects::{Objects, Way};
use super::tally::{READY_WITHIN, percent};
use super::{Options, Victim};
use crate::scenario::Verdict;
use crate::{ContentOptions, ContentOrigin};

/// Parameters for a fill.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// Requests a second, each for another object.
    pub rate: u32,
    /// Duration, seconds.
    pub seconds: u32,
}

impl Default for Fill {
    fn default() -> Self {
        Self {
            rate: 4000,
            seconds: 15,
        }
    }
}

/// Plays the fill; the victim's cache must be empty and large enough for all objects. The second
/// verdict is [`SPEED`].
///
/// # Errors
/// If the origin cannot bind a port.
pub async fn fill(
    victim: &mut dyn Victim,
    options: &Options,
    fill: &Fill,
) -> io::Result<Vec<Verdict>> {
    let content = ContentOptions {
        seed: options.seed,
        ..ContentOptions::default()
    };
    let origin = ContentOrigin::start_thread(content)?;
    let objects = Arc::new(Objects::new(options, &origin));
    let mut attempt = 1;
    loop {
        let filled = fill_and_kill(victim, &objects, options, fill, attempt).await;
        match filled {
            Ok(filled) if attempt < ATTEMPTS && filled.was_lost_by_disk(fill) => attempt += 1,
            Ok(filled) => return Ok(vec![filled.verdict(fill), filled.speed(fill)]),
            Err(fault) => {
                let mut verdict = fill.verdict();
                verdict.fault(fault);
                return Ok(vec![verdict]);
            }
        }
    }
}

/// Fills the cache, kills and restarts the proxy, and probes the delivered objects.
async fn fill_and_kill(
    victim: &mut dyn Victim,
    objects: &Arc<Objects>,
    options: &Options,
    fill: &Fill,
    attempt: u64,
) -> Result<Filled, String> {
    let proxy = victim.start()?;
    let disk = DiskWatch::start(victim.admin());
    let filling = run(proxy, objects, options, fill, attempt).await;
    let disk_kept_up = disk.has_written_what_waited(MAY_LOSE);
    victim.kill();
    drop(disk);

    let since = Instant::now();
    let started = victim.start();
    let proxy = started.map_err(|error| format!("after the kill: {error}"))?;
    let mut requester = Requester::new(proxy, Arc::clone(objects));
    let first = requester.ask_for(&target(0), Way::Plain).await;
    let ready = since.elapsed();
    let found = find(proxy, objects, options, &filling.delivered).await;
    victim.kill();
    Ok(Filled {
        filling,
        disk_kept_up,
        first,
        ready,
        found,
    })
}

/// Results from a fill and the kill at its end.
struct Filled {
    filling: Filling,
    /// True if everything that waited for the disk [`MAY_LOSE`] before the kill was written.
    disk_kept_up: bool,
    /// Response to the first request after the kill.
    first: Asked,
    ready: Duration,
    found: Found,
}

impl Filled {
    /// Percentage of the delivered objects that are in the cache after the kill.
    fn share(&self) -> f64 {
        percent(self.found.there, self.filling.delivered.len() as u64)
    }

    fn was_lost_by_disk(&self, fill: &Fill) -> bool {
        let is_right = self.found.wrong.is_empty() && self.filling.wrong.is_empty();
        is_right && !self.disk_kept_up && self.share() < fill.survived_percent_min()
    }

    fn verdict(&self, fill: &Fill) -> Verdict {
        let (share, bar) = (self.share(), fill.survived_percent_min());
        let (delivered, other) = (self.filling.delivered.len(), self.filling.other);
        let mut verdict = fill.verdict();
        verdict.seen = format!(
            "{delivered} delivered, {share:.2} % of them hits afterwards, {bar:.1} % are the bar; \
             {other} not delivered"
        );
        verdict.figure("survived_percent", share);
        verdict.expect(matches!(self.first, Asked::Right { .. }), || {
            format!("first answer {:?}", self.first)
        });
        verdict.expect(share >= bar, || "below the bar".to_owned());
        verdict.expect(other == 0, || {
            format!("{other} requests of the fill failed")
        });
        let wrong = self.found.wrong.iter().chain(&self.filling.wrong);
        for wrong in wrong.take(10) {
            verdict.fault(wrong.clone());
        }
        verdict
    }

    fn speed(&self, fill: &Fill) -> Verdict {
        let rate = self.filling.delivered.len() as f64 / self.filling.time.as_secs_f64();
        let mut speed = Verdict::new(SPEED);
        speed.seen = format!(
            "{rate:.0} delivered a second; ready in {} ms",
            self.ready.as_millis()
        );
        speed.figure("delivered_per_second", rate);
        speed.figure("ready_ms", self.ready.as_secs_f64() * 1000.0);
        speed.expect(self.ready <= READY_WITHIN, || {
            "not ready within 1 s".to_owned()
        });
        // A fill that is much slower would be a different, easier test.
        speed.expect(rate >= f64::from(fill.rate) * 0.9, || {
            "the machine or the proxy did not reach the rate".to_owned()
        });
        speed
    }
}

impl Fill {
    fn verdict(&self) -> Verdict {
        Verdict::new(format!(
            "a fill of {} s at {} requests/s, killed at its end",
            self.seconds, self.rate
        ))
    }

    fn survived_percent_min(&self) -> f64 {
        100.0 - 100.0 * MAY_LOSE.as_secs_f64() / f64::from(self.seconds.max(1))
    }
}

struct Filling {
    delivered: Vec<u64>,
    other: u64,
    wrong: Vec<String>,
    time: Duration,
}

async fn run(
    proxy: std::net::SocketAddr,
    objects: &Arc<Objects>,
    options: &Options,
    fill: &Fill,
    attempt: u64,
) -> Filling {
    let total = u64::from(fill.rate) * u64::from(fill.seconds);
    // Each attempt requests other objects.
    let first = (attempt - 1) * total;
    let next = Arc::new(AtomicU64::new(first));
    let began = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..options.connections {
        let (next, objects, rate) = (Arc::clone(&next), Arc::clone(objects), f64::from(fill.rate));
        // A client that needs more than twice the time has failed already.
        let end = began + Duration::from_secs(u64::from(fill.seconds) * 2);
        workers.spawn(async move {
            let mut requester = Requester::new(proxy, objects);
            let mut all = vec![];
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= first + total || Instant::now() > end {
                    return all;
                }
                let due = began + Duration::from_secs_f64((number - first) as f64 / rate);
                sleep_until(due).await;
                all.push((number, requester.ask_for(&target(number), Way::Plain).await));
            }
        });
    }
    let all = workers.join_all().await;
    let time = began.elapsed();
    let mut filling = Filling {
        delivered: vec![],
        other: 0,
        wrong: vec![],
        time,
    };
    for (number, asked) in all.into_iter().flatten() {
        match asked {
            Asked::Right { .. } => filling.delivered.push(number),
            Asked::Wrong(what) => filling.wrong.push(what),
            _ => filling.other += 1,
        }
    }
    filling
}

struct Found {
    there: u64,
    wrong: Vec<String>,
}

/// Counts the objects of `wanted` that are in the cache.
async fn find(
    proxy: std::net::SocketAddr,
    objects: &Arc<Objects>,
    options: &Options,
    wanted: &[u64],
) -> Found {
    let share = wanted.len().div_ceil(options.connections).max(1);
    let mut asking = JoinSet::new();
    for part in wanted.chunks(share) {
        let (part, objects) = (part.to_vec(), Arc::clone(objects));
        asking.spawn(async move {
            let mut requester = Requester::new(proxy, objects);
            let mut all = vec![];
            for number in part {
                all.push(requester.ask_for(&target(number), Way::OnlyIfCached).await);
            }
            all
        });
    }
    let mut found = Found {
        there: 0,
        wrong: vec![],
    };
    let Ok(all) = timeout(FIND_WITHIN, asking.join_all()).await else {
        found.wrong.push("the probe does not end".to_owned());
        return found;
    };
    for asked in all.into_iter().flatten() {
        match asked {
            Asked::Right { .. } => found.there += 1,
            Asked::NotCached => {}
            Asked::Wrong(what) => found.wrong.push(format!("after the kill: {what}")),
            other => found.wrong.push(format!("{other:?} to only-if-cached")),
        }
    }
    found
}

fn target(number: u64) -> String {
    format!("/fill/{number}")
}

/// Name of the verdict on the reached rate and the start time.
pub const SPEED: &str = "the fill reaches its rate, and a start takes 1 s";
const FIND_WITHIN: Duration = Duration::from_secs(300);
/// The objects of this last period may be lost: a fill of 15 s must keep 95 %.
const MAY_LOSE: Duration = Duration::from_millis(750);
/// A disk that does not keep up at the end may spoil all attempts but the last.
const ATTEMPTS: u64 = 2;
