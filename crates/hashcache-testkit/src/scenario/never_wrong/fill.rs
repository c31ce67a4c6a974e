//! A cache filled at a steady rate and killed at the end: what was delivered must be there
//! afterwards.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::client::{Asked, Requester, Way};
use super::objects::Objects;
use super::tally::{READY_WITHIN, percent};
use super::{Options, Victim};
use crate::scenario::Verdict;
use crate::{ContentOptions, ContentOrigin};

/// A fill.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// Requests a second, each for another object.
    pub rate: u32,
    /// How long.
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

/// Plays it; the victim's cache must be empty and large enough for all. The second verdict is
/// [`SPEED`].
///
/// # Errors
/// When there is no port for the origin.
pub async fn fill(
    victim: &mut dyn Victim,
    options: &Options,
    fill: &Fill,
) -> io::Result<Vec<Verdict>> {
    let mut verdict = Verdict::new(format!(
        "a fill of {} s at {} requests/s, killed at its end",
        fill.seconds, fill.rate
    ));
    let content = ContentOptions {
        seed: options.seed,
        ..ContentOptions::default()
    };
    let origin = ContentOrigin::start_thread(content)?;
    let objects = Arc::new(Objects::new(options, &origin));
    let proxy = match victim.start() {
        Ok(proxy) => proxy,
        Err(error) => {
            verdict.fault(error);
            return Ok(vec![verdict]);
        }
    };
    let filling = run(proxy, &objects, options, fill).await;
    victim.kill();
    let (delivered, other) = (filling.delivered, filling.other);

    let since = Instant::now();
    let proxy = match victim.start() {
        Ok(proxy) => proxy,
        Err(error) => {
            verdict.fault(format!("after the kill: {error}"));
            return Ok(vec![verdict]);
        }
    };
    let mut requester = Requester::new(proxy, Arc::clone(&objects));
    let first = requester.ask_for(&target(0), Way::Plain).await;
    let ready = since.elapsed();
    let found = find(proxy, &objects, options, &delivered).await;
    victim.kill();

    let count = delivered.len() as u64;
    let share = percent(found.there, count);
    let rate = count as f64 / filling.time.as_secs_f64();
    // Of what came last, what may be lost when a fill of 15 s must keep 95 %.
    let bar = 100.0 - 75.0 / f64::from(fill.seconds.max(1));
    verdict.seen = format!(
        "{count} delivered, {share:.2} % of them hits afterwards, {bar:.1} % are the bar; {other} \
         not delivered"
    );
    verdict.figure("survived_percent", share);
    verdict.expect(matches!(first, Asked::Right { .. }), || {
        format!("first answer {first:?}")
    });
    verdict.expect(share >= bar, || "below the bar".to_owned());
    verdict.expect(other == 0, || {
        format!("{other} requests of the fill failed")
    });
    for wrong in found.wrong.iter().chain(&filling.wrong).take(10) {
        verdict.fault(wrong.clone());
    }

    let mut speed = Verdict::new(SPEED);
    speed.seen = format!(
        "{rate:.0} delivered a second; ready in {} ms",
        ready.as_millis()
    );
    speed.figure("delivered_per_second", rate);
    speed.figure("ready_ms", ready.as_secs_f64() * 1000.0);
    speed.expect(ready <= READY_WITHIN, || "not ready within 1 s".to_owned());
    // A fill that is much slower is another, easier test.
    speed.expect(rate >= f64::from(fill.rate) * 0.9, || {
        "the machine or the proxy did not reach the rate".to_owned()
    });
    Ok(vec![verdict, speed])
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
) -> Filling {
    let total = u64::from(fill.rate) * u64::from(fill.seconds);
    let next = Arc::new(AtomicU64::new(0));
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
                if number >= total || Instant::now() > end {
                    return all;
                }
                let due = began + Duration::from_secs_f64(number as f64 / rate);
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

/// How many of these are in the cache.
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

/// The name of the verdict on the rate that was reached and on how fast it starts.
pub const SPEED: &str = "the fill reaches its rate, and a start takes 1 s";
const FIND_WITHIN: Duration = Duration::from_secs(300);
