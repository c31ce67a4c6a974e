//! `cargo campaign index-memory`: memory that a stored object takes, in our index and in those of
//! other caches, in one run.
//!
//! Each server is started twice with an empty store: with room for few objects and for many. Each
//! time it is filled until the objects are hits, as far as it keeps them. Its memory is that of its
//! processes and what they share, without pages of files: what `rss` and `shmem` of its memory
//! group say. The figure is the difference of the two, for each object that is stored. So it has
//! both what a cache reserves for the size of its store and what it allocates for each object. All
//! else is equal: the memory for objects is full both times, and what our engine has there and in
//! pending writes by its own count, which gives way to its index, is left out. Needs root.
//!
//! Limit: ours gives no wrong answer.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::ContentOrigin;
use serde_json::json;
use tokio::time::sleep;

use crate::campaign::Campaign;
use crate::contestant::{self, Contestant, Front, Room, Which};
use crate::object_load::ObjectLoad;
use crate::report::{Report, Verdict};
use crate::stopped;

/// Arguments of `index-memory`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the servers with this word in their name, such as `Squid` or `grouped`; with several,
    /// those with any of them
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// Objects that are stored the first time
    #[arg(long, default_value_t = 50_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    few: u64,
    /// Objects that are stored the second time
    #[arg(long, default_value_t = 300_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    many: u64,
    /// Bytes of each object
    #[arg(long, default_value_t = 7_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    object_bytes: u64,
    /// Runs of each server; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Memory of each server, page cache included, MiB
    #[arg(long, default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u32).range(128..=65_536))]
    memory: u32,
    /// Requests a second with which servers are filled, at most
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(1..))]
    fill_rate: u64,
    /// Seconds between the last request and the reading of the memory
    #[arg(long, default_value_t = 10)]
    settle: u64,
}

/// Measures all servers.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(args.few < args.many, "--few must be less than --many");
    stopped::unless_told(measure_all(args, campaign)).await
}

async fn measure_all(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let origin = contestant::origin()?;
    for which in Which::selected(&args.only)? {
        let name = which.name();
        if !which.is_installed() {
            campaign.report.skip(name, "not run: not installed");
            continue;
        }
        let mut runs = vec![];
        let outcome = async {
            for _ in 0..args.runs {
                let few = measure(args, which, args.few, campaign, &origin).await?;
                let many = measure(args, which, args.many, campaign, &origin).await?;
                runs.push((few, many));
            }
            anyhow::Ok(())
        };
        match outcome.await {
            Ok(()) => tell(which, &runs, &mut campaign.report),
            Err(error) if which.is_ours() => return Err(error.context(name)),
            Err(error) => campaign.report.skip(name, format!("not run: {error:#}")),
        }
    }
    Ok(())
}

/// What one server showed with one number of objects.
#[derive(Clone, Copy, Debug, Default)]
struct Filled {
    objects: u64,
    /// Of 1000 requests for them.
    hits: u64,
    /// Without those for objects in memory, as far as a cache counts them.
    empty_bytes: u64,
    bytes: u64,
    /// Index by its own count.
    own_index_bytes: Option<u64>,
    wrong: u64,
}

impl Filled {
    /// Objects that are stored, as far as requests tell.
    fn stored(&self) -> u64 {
        self.objects * self.hits / 1000
    }
}

async fn measure(
    args: &Args,
    which: Which,
    objects: u64,
    campaign: &Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<Filled> {
    let folder = tempfile::tempdir_in(campaign.folder())?;
    let place = (origin.address(), folder.path());
    let store_mib = which.store_mib(objects);
    let room = Room {
        memory_mib: args.memory,
        objects_mib: OBJECTS_MIB,
        store_mib,
        disk_mib: Room::disk_mib(store_mib, objects),
        model: None,
    };
    let contestant = Contestant::start((which, Front::Site), room, campaign, place)?;
    let load = ObjectLoad {
        origin,
        bytes: args.object_bytes,
        connections: CONNECTIONS,
        per_second: args.fill_rate,
    };
    let (empty_bytes, _) = memory(&contestant)?;
    let answers = load.fill(contestant.address()?, objects).await?;
    // What was written is no longer pending then, and freed memory was given back.
    sleep(Duration::from_secs(args.settle)).await;
    let (bytes, own_index_bytes) = memory(&contestant)?;
    drop(contestant);
    folder.close()?;
    Ok(Filled {
        objects,
        hits: answers.hits_per_mille(),
        empty_bytes,
        bytes,
        own_index_bytes,
        wrong: answers.wrong,
    })
}

/// Memory without that for objects, and the index by the server's own count.
fn memory(contestant: &Contestant) -> anyhow::Result<(u64, Option<u64>)> {
    let all = contestant.memory()?;
    let Some(engine) = contestant.engine()? else {
        return Ok((all, None));
    };
    let count = |name: &str| {
        let count = engine[name].as_u64();
        count.with_context(|| format!("/stats has no engine.{name}"))
    };
    let objects = count("hot_bytes")? + count("pending_bytes")?;
    Ok((all.saturating_sub(objects), Some(count("index_bytes")?)))
}

/// Bytes for each object, in tenths; the median of the runs. Noise can make it less than nothing.
fn tenths_each(runs: &[(Filled, Filled)], figure: impl Fn(&Filled) -> u64) -> i64 {
    let difference = |few: u64, many: u64| many.cast_signed() - few.cast_signed();
    let mut all: Vec<i64> = runs
        .iter()
        .map(|(few, many)| {
            let bytes = difference(figure(few), figure(many));
            bytes * 10 / difference(few.stored(), many.stored()).max(1)
        })
        .collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn show_tenths(tenths: i64) -> String {
    let sign = if tenths < 0 { "-" } else { "" };
    let tenths = tenths.unsigned_abs();
    format!("{sign}{}.{}", tenths / 10, tenths % 10)
}

fn tell(which: Which, runs: &[(Filled, Filled)], report: &mut Report) {
    let each = tenths_each(runs, |it| it.bytes);
    let reserved = tenths_each(runs, |it| it.empty_bytes);
    let both = || runs.iter().flat_map(|(few, many)| [few, many]);
    let hits = both().map(|it| it.hits).min().unwrap_or_default();
    let wrong: u64 = both().map(|it| it.wrong).sum();
    let counts = runs.iter().all(|(_, many)| many.own_index_bytes.is_some());
    let own = counts.then(|| tenths_each(runs, |it| it.own_index_bytes.unwrap_or_default()));
    let mut detail = format!(
        "{} bytes an object, of these {} reserved for the store when it is empty",
        show_tenths(each),
        show_tenths(reserved),
    );
    if let Some(own) = own {
        detail += &format!(", index by its own count {}", show_tenths(own));
    }
    detail += &format!("; at least {hits} of 1000 objects were hits");
    if wrong > 0 {
        detail += &format!("; {wrong} wrong answers");
    }
    let verdict = match which {
        Which::Ours { .. } => (wrong == 0).into(),
        Which::Rival(_) => Verdict::Told,
    };
    let single = |run: &(Filled, Filled)| tenths_each(&[*run], |it| it.bytes);
    let figures = json!({
        "tenths_of_bytes_each": each,
        "runs_tenths_of_bytes_each": runs.iter().map(single).collect::<Vec<_>>(),
        "reserved_tenths_of_bytes_each": reserved,
        "own_index_tenths_of_bytes_each": own,
        "few_bytes": runs.first().map(|(few, _)| few.bytes),
        "many_bytes": runs.first().map(|(_, many)| many.bytes),
        "hits_per_mille_min": hits,
        "wrong": wrong,
    });
    report.figures(which.name(), verdict, detail, figures);
}

const CONNECTIONS: usize = 16;
/// Little, so that it is full; ours has its index there too.
const OBJECTS_MIB: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_the_difference_for_each_object() {
        let filled = |objects, bytes| Filled {
            objects,
            hits: 1000,
            bytes,
            ..Filled::default()
        };
        let run = |bytes| (filled(10, 5_000), filled(110, bytes));
        let runs = [run(15_000), run(4_990), run(7_340)];
        assert_eq!(tenths_each(&runs, |it| it.bytes), 234);
        assert_eq!(show_tenths(234), "23.4");
        assert_eq!(show_tenths(tenths_each(&runs[1..2], |it| it.bytes)), "-0.1");
    }
}
