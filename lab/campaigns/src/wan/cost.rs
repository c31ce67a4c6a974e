//! Section `cpu`: processor time of both boxes for each MB, and their memory.
//!
//! Processor time is what the scheduler has counted for all threads of a box while the newer
//! releases came: fetching from the origin, storing, TLS and HTTP/2 included. Memory is sampled in
//! cgroups, as `memory-limit` does, while 64 transfers or 64 TCP streams are under way at once.
//!
//! Limits: 20 ms a MB at the parent and 10 ms at the child; 12 MiB a transfer; no more than
//! `--memory` and 24 MiB in all.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_wan::decode::{Decoder, Event, Offer};
use hashcache_wan::encode::Encoder;
use hashcache_wan::frame::{Dictionary, Head};
use serde_json::json;
use tokio::task::JoinSet;

use super::answers::{Outcome, fetch_retrying};
use super::boxes::{Pair, Settings, Used};
use super::chunks::{self, Server, receive};
use super::content::{self, Urls};
use super::made;
use super::packages::{Releases, SAME_PATH};
use super::site::{Served, Site};
use super::{Args, Progress};
use crate::campaign::Campaign;
use crate::cgroup::Cgroup;
use crate::memory_limit::{Sampler, mib};
use crate::report::show_bytes;

/// Plays the section.
pub async fn run(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    let releases = if args.short {
        vec![("made".to_owned(), made::releases(20, 400_000))]
    } else {
        let directory = args.packages()?;
        let sets = SAME_PATH.iter().filter(|set| args.plays_set(set.name));
        let sets = sets.map(|set| {
            let name = set.name.replace([' ', '.'], "-");
            anyhow::Ok((name, set.changed(&directory)?))
        });
        sets.collect::<anyhow::Result<_>>()?
    };
    progress.expect(2 * releases.len() as u64 + 3);
    for part in [Part::Content, Part::Chunks] {
        let (mut plain, mut sum) = (0, Used::default());
        for (name, releases) in &releases {
            let (bytes, used) = part.measure(campaign, name, releases).await?;
            campaign.report.tell(
                format!("processor time, {}, {name}", part.name()),
                shown(bytes, used),
            );
            (plain, sum) = (plain + bytes, sum.and(used));
            progress.step();
        }
        let of = |ns: u64| ns as f64 / plain.max(1) as f64;
        let (parent, child) = (of(sum.parent_ns), of(sum.child_ns));
        campaign.report.figures(
            format!("processor time, {}, all", part.name()),
            (parent <= PARENT_MAX && child <= CHILD_MAX).into(),
            format!(
                "{}, bars {PARENT_MAX} and {CHILD_MAX} ms",
                shown(plain, sum)
            ),
            json!({ "parent_ms_per_mb": parent, "child_ms_per_mb": child, "bytes": plain }),
        );
    }
    campaign
        .report
        .outcome("memory of a transfer", codec_memory());
    progress.step();
    for part in [Part::Content, Part::Chunks] {
        let what = format!("memory with {TRANSFERS} {}", part.plural());
        let outcome = crowd(args, campaign, part).await;
        campaign.report.outcome(what, outcome);
        progress.step();
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Content,
    Chunks,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Chunks => "TCP streams",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Content => "transfers",
            Self::Chunks => "TCP streams",
        }
    }

    /// Content of the newer release, and what it has taken.
    async fn measure(
        self,
        campaign: &Campaign,
        name: &str,
        releases: &Releases,
    ) -> anyhow::Result<(u64, Used)> {
        let name = format!("cpu-{name}");
        Ok(match self {
            Self::Content => {
                let it = content::measure(campaign, &name, releases, Urls::Same).await?;
                (it.plain, it.used)
            }
            Self::Chunks => {
                let it = chunks::measure(campaign, &name, releases).await?;
                (it.plain, it.used)
            }
        })
    }
}

fn shown(bytes: u64, used: Used) -> String {
    // Nanoseconds a byte are milliseconds a MB.
    let of = |ns: u64| ns as f64 / bytes.max(1) as f64;
    format!(
        "parent {:.1} ms a MB, child {:.1} ms, of {}",
        of(used.parent_ns),
        of(used.child_ns),
        show_bytes(bytes)
    )
}

/// The most that both ends of one transfer hold, with the longest stretches there are; each by its
/// own count, which a test of `hashcache-wan` compares with what zstd says.
fn codec_memory() -> anyhow::Result<String> {
    let old = made::text(1, 9_000_000);
    let new = made::edited(2, &old);
    let head = Head {
        length: None,
        version: 1,
        dictionary: Dictionary::Offered,
    };
    let length = old.len() as u64;
    let mut encoder = Encoder::new(head, length);
    let mut decoder = Decoder::new(Offer {
        offered: Some(length),
        named_max: 0,
    });
    let part = |wanted: std::ops::Range<u64>| -> anyhow::Result<&[u8]> {
        let range = usize::try_from(wanted.start)?..usize::try_from(wanted.end)?;
        old.get(range).context("beyond the dictionary")
    };
    let (mut most, mut rest, mut received) = ([0, 0], &new[..], 0);
    while !rest.is_empty() {
        while let Some(wanted) = encoder.wants() {
            encoder.give(part(wanted)?);
        }
        let mut frames = Vec::new();
        let taken = encoder.push(&rest[..rest.len().min(64 << 10)], &mut frames)?;
        rest = &rest[taken..];
        if rest.is_empty() {
            encoder.flush(&mut frames)?;
        }
        most[0] = most[0].max(encoder.memory_bytes() + frames.capacity());
        for piece in frames.chunks(16 << 10) {
            decoder.push(piece);
            loop {
                match decoder.next()? {
                    Event::More => break,
                    Event::Wants(wanted) => decoder.give(part(wanted)?),
                    Event::Content(bytes) => received += bytes.len(),
                    Event::Head(_) | Event::End(_) => {}
                }
                most[1] = most[1].max(decoder.memory_bytes());
            }
        }
    }
    ensure!(received == new.len(), "{received} of {} bytes", new.len());
    let [parent, child] = most.map(|bytes| bytes as u64);
    let told = format!(
        "parent {}, child {}, bar {}",
        mib(parent),
        mib(child),
        mib(TRANSFER_BYTES_MAX)
    );
    ensure!(parent.max(child) <= TRANSFER_BYTES_MAX, "{told}");
    Ok(told)
}

/// Many transfers at once over a slow link, each box in a cgroup of its own.
async fn crowd(args: &Args, campaign: &Campaign, part: Part) -> anyhow::Result<String> {
    let groups = [Arc::new(Cgroup::memory()?), Arc::new(Cgroup::memory()?)];
    let server = Server::start().await?;
    let site = Site::start().await?;
    let mut settings = Settings::new(&format!("crowd-{part:?}").to_lowercase());
    settings.memory = MEMORY_MIB;
    settings.cache = 2048;
    settings.forward = Some(server.address);
    settings.cgroups = groups
        .each_ref()
        .map(|group| Some(group.directory().to_owned()));
    let mut pair = Pair::start(campaign, &settings).await?;
    let bytes = if args.short { 200_000 } else { 4_000_000 };
    let objects: Vec<_> = (0..TRANSFERS)
        .map(|n| Arc::new(made::text(n, bytes)))
        .collect();
    server.set(Arc::clone(&objects[0]));
    // The older versions are on both boxes, and the boxes at rest, when the memory is looked at.
    wave(part, &pair, &site, &objects)
        .await
        .context("the first versions")?;
    let mut samplers = Vec::new();
    for group in &groups {
        samplers.push(Sampler::start(Arc::clone(group))?);
    }
    pair.slow(RATE, Duration::from_millis(50));
    let next = objects.iter().zip(1000..);
    let objects: Vec<_> = next
        .map(|(old, seed)| Arc::new(made::edited(seed, old)))
        .collect();
    server.set(Arc::clone(&objects[0]));
    wave(part, &pair, &site, &objects)
        .await
        .context("the next versions")?;
    pair.check()?;
    let bar = (MEMORY_MIB << 20) + BESIDE_BYTES;
    let mut told = vec![];
    let mut is_well = true;
    for (sampler, name) in samplers.iter_mut().zip(["child", "parent"]) {
        let peak = sampler.take_peak();
        sampler.stop()?;
        is_well &= peak.sum() <= bar;
        told.push(format!("{name} {}", peak.show()));
    }
    let told = format!(
        "{}; bar {} ({MEMORY_MIB} MiB and 24)",
        told.join(", "),
        mib(bar)
    );
    ensure!(is_well, "{told}");
    Ok(told)
}

/// All transfers at once; every byte is compared.
async fn wave(
    part: Part,
    pair: &Pair,
    site: &Site,
    objects: &[Arc<Vec<u8>>],
) -> anyhow::Result<()> {
    let mut clients = JoinSet::new();
    for (number, object) in objects.iter().enumerate() {
        let path = format!("/crowd/{number}");
        site.set(&path, Served::stale(object));
        let (url, object) = (site.url(&path), Arc::clone(object));
        match part {
            Part::Content => {
                let address = pair.address()?;
                clients.spawn(async move {
                    // A box without memory for a transfer answers 503, and a client returns.
                    let outcome = fetch_retrying(address, &url, &object).await;
                    ensure!(outcome == Outcome::Right, "{url}: {outcome:?}");
                    Ok(())
                });
            }
            Part::Chunks => {
                let (address, content) = (pair.forward()?, Arc::clone(&objects[0]));
                clients.spawn(async move { receive(address, &content).await });
            }
        }
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(())
}

const PARENT_MAX: f64 = 20.0;
const CHILD_MAX: f64 = 10.0;
const TRANSFER_BYTES_MAX: u64 = 12 << 20;
const TRANSFERS: u64 = 64;
const MEMORY_MIB: u64 = 64;
/// What a proxy may take beside `--memory`, as in `memory-limit`.
const BESIDE_BYTES: u64 = 24 << 20;
/// All transfers are under way for some seconds.
const RATE: u64 = 40_000_000;
