//! Section `pages`: how long a page takes over a long link.
//!
//! A page of 20 objects on three levels, 300 kB: a document, what it names, what that names. A
//! client like a browser, with six connections to the child, asks for each level when the one above
//! is complete. The parent knows the page from two other clients, fewer of which it would not name
//! the objects of; the link is warm.
//!
//! In the second case the child has an older version of each object, whose lifetime is over; the
//! new one is fresh again.
//!
//! Limits: 1.7 s at 10 Mbit/s and a round trip of 600 ms, which needs the parent's hints; 1.8 s
//! for a page that has changed, at 256 kbit/s and 500 ms.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use hashcache_testkit::{BodyEnd, Client};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::boxes::{Pair, Settings, Side};
use super::made;
use super::site::{Served, Site};
use super::{Args, Progress};
use crate::campaign::Campaign;

/// Objects of each level of the page.
const LEVELS: [usize; 3] = [1, 9, 10];
/// Each of the 20 objects: 300 kB in all.
const OBJECT_BYTES: usize = 15_000;
const CONNECTIONS: usize = 6;

/// One row.
struct Case {
    name: &'static str,
    bits_per_second: u64,
    round_trip: Duration,
    bar: Duration,
    /// Whether the child has an older version.
    is_known: bool,
}

const CASES: [Case; 2] = [
    Case {
        name: "new page, 10 Mbit/s and 600 ms",
        bits_per_second: 10_000_000,
        round_trip: Duration::from_millis(600),
        bar: Duration::from_millis(1700),
        is_known: false,
    },
    Case {
        name: "changed page, 256 kbit/s and 500 ms",
        bits_per_second: 256_000,
        round_trip: Duration::from_millis(500),
        bar: Duration::from_millis(1800),
        is_known: true,
    },
];

/// Plays the section.
pub async fn run(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    let rounds = if args.short { 1 } else { ROUNDS };
    progress.expect(CASES.len() as u64 * rounds);
    for (case, number) in CASES.iter().zip(0..) {
        let mut times = vec![];
        for round in 0..rounds {
            times.push(case.play(campaign, number * ROUNDS + round).await?);
            progress.step();
        }
        times.sort_unstable();
        let median = times[times.len() / 2];
        campaign.report.figures(
            case.name,
            (median <= case.bar).into(),
            format!(
                "{:.2} s in the median of {rounds} ({:.2} to {:.2}), bar {:.1} s",
                median.as_secs_f64(),
                times[0].as_secs_f64(),
                times[times.len() - 1].as_secs_f64(),
                case.bar.as_secs_f64()
            ),
            json!({
                "median_s": median.as_secs_f64(),
                "bar_s": case.bar.as_secs_f64(),
            }),
        );
    }
    Ok(())
}

impl Case {
    async fn play(&self, campaign: &Campaign, number: u64) -> anyhow::Result<Duration> {
        let site = Site::start().await?;
        let pair = Pair::start(campaign, &Settings::new(&format!("page-{number}"))).await?;
        let page = Page::new(number);
        // Other clients of the parent have seen the page, so the parent knows what belongs to it.
        page.serve(&site, self.is_known.then_some(OLD_LIFETIME));
        for last in [2, 3] {
            let from = IpAddr::from([127, 0, 0, last]);
            let parent = pair.process(Side::Parent)?.address();
            page.load((from, parent), &site).await?;
        }
        let from = IpAddr::from([127, 0, 0, 1]);
        let page = if self.is_known {
            page.load((from, pair.address()?), &site).await?;
            let next = page.next();
            next.serve(&site, None);
            tokio::time::sleep(OLD_LIFETIME + Duration::from_secs(1)).await;
            next
        } else {
            page
        };
        // A warm link has carried something.
        let other = Arc::new(made::text(number + 500, 100_000));
        site.set("/other", Served::fresh(&other));
        let mut client = Client::connect(pair.address()?).await?;
        client.get(&site.url("/other"), &[]).await?;
        pair.slow(self.bits_per_second, self.round_trip);
        let begun = Instant::now();
        page.load((from, pair.address()?), &site).await?;
        Ok(begun.elapsed())
    }
}

/// The content of a page's objects, level by level.
struct Page(Vec<Vec<Arc<Vec<u8>>>>);

impl Page {
    fn new(number: u64) -> Self {
        let mut seed = number << 8;
        let mut object = || {
            seed += 1;
            Arc::new(made::text(seed, OBJECT_BYTES))
        };
        let levels = LEVELS.iter();
        Self(
            levels
                .map(|&count| (0..count).map(|_| object()).collect())
                .collect(),
        )
    }

    /// The next version of every object.
    fn next(&self) -> Self {
        let next = |object: &Arc<Vec<u8>>| Arc::new(made::edited(7, object));
        let levels = self.0.iter();
        Self(
            levels
                .map(|level| level.iter().map(next).collect())
                .collect(),
        )
    }

    /// Without a `lifetime`, the objects are fresh for a day.
    fn serve(&self, site: &Site, lifetime: Option<Duration>) {
        for (level, objects) in self.0.iter().enumerate() {
            for (number, object) in objects.iter().enumerate() {
                let served = match lifetime {
                    Some(lifetime) => Served::fresh_for(object, lifetime),
                    None => Served::fresh(object),
                };
                site.set(&path(level, number), served);
            }
        }
    }

    /// Loads all levels as a browser does.
    async fn load(&self, (from, proxy): (IpAddr, SocketAddr), site: &Site) -> anyhow::Result<()> {
        let page = site.url(&path(0, 0));
        for (level, objects) in self.0.iter().enumerate() {
            let mut clients = JoinSet::new();
            for first in 0..CONNECTIONS.min(objects.len()) {
                let share: Vec<_> = (first..objects.len())
                    .step_by(CONNECTIONS)
                    .map(|number| (site.url(&path(level, number)), Arc::clone(&objects[number])))
                    .collect();
                let page = page.clone();
                clients.spawn(async move {
                    let mut client = Client::connect_from(from, proxy).await?;
                    for (url, content) in share {
                        let referer = [("Referer", page.as_str())];
                        let fields = match level {
                            0 => &[][..],
                            _ => &referer[..],
                        };
                        let answer = client.get(&url, fields).await?;
                        ensure!(
                            answer.status == 200
                                && answer.end == BodyEnd::Complete
                                && answer.body == *content,
                            "{url}: status {}, {:?}, {} bytes",
                            answer.status,
                            answer.end,
                            answer.body.len()
                        );
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(client) = clients.join_next().await {
                client??;
            }
        }
        Ok(())
    }
}

fn path(level: usize, number: usize) -> String {
    match level {
        0 => "/page.html".to_owned(),
        _ => format!("/level{level}/{number}.js"),
    }
}

const ROUNDS: u64 = 5;
/// Of the older version of a page: longer than it takes to load it.
const OLD_LIFETIME: Duration = Duration::from_secs(3);
