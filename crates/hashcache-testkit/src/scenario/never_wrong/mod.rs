//! A proxy is killed repeatedly under load: it may lose objects, but it must not serve wrong
//! content, and it must start again.
//!
//! Each round starts the proxy, requests objects that were stored before the kill, loads the proxy
//! with requests for content known byte by byte, and kills the proxy at a random moment. A last
//! phase, [`fill`](fn@fill), fills a cache at a steady rate and kills the proxy at the end. If the
//! disk did not keep up before the kill of a round, the round is repeated, because the lost objects
//! were not written yet.
//!
//! Invariant: a body is checked if it is complete according to the framing; a body that the kill
//! cut short is an error only if it looks complete.

mod client;
mod disk;
mod fill;
mod objects;
mod tally;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Verdict;
use crate::{ContentOptions, ContentOrigin};

use client::{Asked, Requester};
use disk::DiskWatch;
pub use fill::{Fill, SPEED, fill};
use objects::{Objects, Random, Way};
pub use tally::READINESS;
use tally::Tally;

/// A proxy that can be started and killed; its cache survives both.
pub trait Victim {
    /// Starts the proxy; returns when it reports that it listens.
    ///
    /// # Errors
    /// The reason why the proxy does not listen, as text.
    fn start(&mut self) -> Result<SocketAddr, String>;

    /// Kills the proxy without an orderly shutdown, as a power failure would.
    fn kill(&mut self);

    /// Returns the admin listener of the running proxy; its metrics show whether the disk keeps up.
    /// Without it, every loss counts.
    fn admin(&self) -> Option<SocketAddr> {
        None
    }
}

/// Run size.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of kills.
    pub kills: u32,
    /// Number of objects; one in 500 is large.
    pub objects: u32,
    /// Concurrent connections.
    pub connections: usize,
    /// Seed for sizes, contents, choices and kill times.
    pub seed: u64,
    /// Shortest and longest time from the load's start to the kill, milliseconds.
    pub round_millis: (u64, u64),
    /// Smallest and largest size for large objects, bytes.
    pub large_bytes: (u64, u64),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kills: 30,
            objects: 20_000,
            connections: 64,
            seed: 1,
            round_millis: (300, 4500),
            large_bytes: (5_000_000, 200_000_000),
        }
    }
}

impl Options {
    /// A few kills in less than half a minute.
    #[must_use]
    pub fn short() -> Self {
        Self {
            kills: 3,
            objects: 2000,
            round_millis: (1500, 3500),
            ..Self::default()
        }
    }
}

/// Plays all rounds; `progress` gets a line after each kill.
///
/// # Errors
/// If the origin cannot bind a port.
pub async fn play(
    victim: &mut dyn Victim,
    options: &Options,
    mut progress: impl FnMut(&str),
) -> io::Result<Vec<Verdict>> {
    let content = ContentOptions {
        seed: options.seed,
        ..ContentOptions::default()
    };
    let origin = ContentOrigin::start_thread(content)?;
    let objects = Arc::new(Objects::new(options, &origin));
    let tally = Arc::new(Tally::default());
    let mut random = Random::new(options.seed);
    let (mut round, mut again) = (0, 0);
    while round < options.kills + again {
        let Some(proxy) = begin(victim, &objects, &tally).await else {
            break;
        };
        let restarted = Instant::now();
        if round > 0 {
            probe(proxy, &objects, &tally, options, Probed::Recent).await;
        }
        let quota = objects.quota(round + 1, options.kills);
        let time = random.between(options.round_millis.0, options.round_millis.1);
        let time = Duration::from_millis(time);
        let load = Load {
            proxy,
            restarted,
            objects: Arc::clone(&objects),
            tally: Arc::clone(&tally),
            quota,
            time,
        };
        let kill = load.run_and_kill(victim, options, &mut random).await;
        let safe_until = if !kill.disk_kept_up && again < AGAIN_MAX {
            again += 1;
            tally.again();
            // Objects from earlier rounds have survived a kill, or are known to be lost.
            restarted
        } else {
            kill.at - SAFE_AFTER
        };
        objects.killed(safe_until);
        round += 1;
        progress(&format!(
            "kill {round} of {} after {:.1} s; {}",
            options.kills + again,
            time.as_secs_f64(),
            tally.line()
        ));
    }
    if let Some(proxy) = begin(victim, &objects, &tally).await {
        probe(proxy, &objects, &tally, options, Probed::All).await;
        victim.kill();
    }
    let counts = origin.counts();
    Ok(tally.verdicts(options, &counts))
}

/// Starts the proxy and sends it a request; returns `None` if the proxy does not start.
async fn begin(
    victim: &mut dyn Victim,
    objects: &Arc<Objects>,
    tally: &Tally,
) -> Option<SocketAddr> {
    let since = Instant::now();
    let proxy = match victim.start() {
        Ok(proxy) => proxy,
        Err(error) => {
            tally.not_started(error);
            return None;
        }
    };
    let listening = since.elapsed();
    let mut requester = Requester::new(proxy, Arc::clone(objects));
    let asked = requester.ask(objects.ready(), Way::Plain).await;
    if !matches!(asked, Asked::Right { .. }) {
        tally.not_started(format!("the first request was answered {asked:?}"));
    }
    tally.ready(listening, since.elapsed());
    Some(proxy)
}

/// Objects to probe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probed {
    /// Objects committed since the last probe, and some of the older objects.
    Recent,
    All,
}

/// Requests committed objects, from the cache only.
async fn probe(
    proxy: SocketAddr,
    objects: &Arc<Objects>,
    tally: &Arc<Tally>,
    options: &Options,
    probed: Probed,
) {
    let wanted = objects.committed(probed == Probed::All);
    let share = wanted.len().div_ceil(options.connections).max(1);
    let mut asking = JoinSet::new();
    for part in wanted.chunks(share) {
        let (part, objects, tally) = (part.to_vec(), Arc::clone(objects), Arc::clone(tally));
        asking.spawn(async move {
            let mut requester = Requester::new(proxy, Arc::clone(&objects));
            for committed in part {
                let asked = requester.ask(committed.object, Way::OnlyIfCached).await;
                tally.probed(&objects, &committed, &asked);
                if matches!(asked, Asked::NotCached) {
                    objects.forget(committed.object);
                }
            }
        });
    }
    asking.join_all().await;
}

/// The load of one round.
#[derive(Clone)]
struct Load {
    proxy: SocketAddr,
    restarted: Instant,
    objects: Arc<Objects>,
    tally: Arc<Tally>,
    /// Objects requested by the end of the round, earlier rounds included.
    quota: u32,
    time: Duration,
}

/// A finished request, with start and end time.
struct Came {
    began: Instant,
    ended: Instant,
    object: u32,
    way: Way,
    asked: Asked,
}

/// The kill after a round.
struct Kill {
    at: Instant,
    /// True if everything that waited for the disk [`SAFE_AFTER`] before the kill was written.
    disk_kept_up: bool,
}

impl Load {
    async fn run_and_kill(
        &self,
        victim: &mut dyn Victim,
        options: &Options,
        random: &mut Random,
    ) -> Kill {
        let disk = DiskWatch::start(victim.admin());
        let stop = Arc::new(AtomicBool::new(false));
        let began = Instant::now();
        let mut workers = JoinSet::new();
        for _ in 0..options.connections {
            let (load, stop, random) = (self.clone(), Arc::clone(&stop), random.split());
            workers.spawn(async move { load.work(&stop, began, random).await });
        }
        sleep(self.time).await;
        // A machine that is too slow for the objects of the round gets more time.
        while !self.objects.are_most_asked_for(self.quota) && began.elapsed() < 10 * self.time {
            sleep(LOOK_PAUSE).await;
        }
        let disk_kept_up = disk.has_written_what_waited(SAFE_AFTER);
        // Taken before the signal: a request that finishes later may have been cut short by the
        // kill.
        let killed = Instant::now();
        victim.kill();
        drop(disk);
        stop.store(true, Ordering::Relaxed);
        for came in workers.join_all().await.into_iter().flatten() {
            self.tally
                .came(&self.objects, &came, self.restarted, killed);
        }
        let at = killed;
        Kill { at, disk_kept_up }
    }

    async fn work(&self, stop: &AtomicBool, began: Instant, mut random: Random) -> Vec<Came> {
        let mut requester = Requester::new(self.proxy, Arc::clone(&self.objects));
        let mut all = vec![];
        while !stop.load(Ordering::Relaxed) {
            // New objects are spread evenly over the round, so that some are always recent at the
            // kill.
            let share = began.elapsed().as_secs_f64() / self.time.as_secs_f64();
            let Some((object, way)) = self.objects.choose(self.quota, share, &mut random) else {
                tokio::task::yield_now().await;
                continue;
            };
            let begun = Instant::now();
            let asked = requester.ask(object, way).await;
            let failed = matches!(asked, Asked::Failed(_) | Asked::Cut);
            all.push(Came {
                began: begun,
                ended: Instant::now(),
                object,
                way,
                asked,
            });
            if failed {
                // A proxy that is not running would refuse thousands of connections a second.
                sleep(AFTER_FAILURE).await;
            }
        }
        all
    }
}

const LOOK_PAUSE: Duration = Duration::from_millis(20);
const AFTER_FAILURE: Duration = Duration::from_millis(5);
/// Minimum object age at the kill for which survival is required.
const SAFE_AFTER: Duration = Duration::from_secs(1);
/// Maximum repeated rounds; all other rounds are judged, however slow the disk is.
const AGAIN_MAX: u32 = 3;
