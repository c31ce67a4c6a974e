//! `cargo campaign restart`: kill a cache (SIGKILL) and start it again: how long until the first
//! hit, and how many of its objects are still hits; ours and other caches, in one run.
//!
//! Each server is alone with an ext4 file system of its own on a loop device, and in a memory group
//! of its own. It is filled until the objects are hits, and killed with all its processes after a
//! pause. Its file system is unmounted and mounted again, so that nothing of it is in the page
//! cache. This is what a crash of the program leaves, not what a power cut leaves: what the kernel
//! had taken is on the disk. Traffic Server writes its directory once a minute, and one that has
//! never done so has nothing; so its pause is longer than that.
//!
//! The first hit is looked for with objects that are in no sample. Time counts from the start of
//! the process. Of two samples, one is asked for right after the first hit, the other one later,
//! when caches that read their store at the start have had time to do that. Needs root.
//!
//! Limit: ours gives no wrong answer.

use std::time::Duration;

use anyhow::ensure;
use fastrand::Rng;
use hashcache_testkit::ContentOrigin;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::campaign::Campaign;
use crate::contestant::{self, Contestant, Front, Room, Which};
use crate::median::median;
use crate::object_load::{Answers, ObjectLoad};
use crate::report::{Report, Verdict};
use crate::rivals::Kind;
use crate::stopped;

/// Arguments of `restart`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the servers with this word in their name, such as `Squid` or `grouped`; with several,
    /// those with any of them
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// Objects that are stored
    #[arg(long, default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    objects: u64,
    /// Bytes of each object
    #[arg(long, default_value_t = 7_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    object_bytes: u64,
    /// Kills of each server; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Memory of each server, page cache included, MiB
    #[arg(long, default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=65_536))]
    memory: u32,
    /// Requests a second with which servers are filled, at most
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(1..))]
    fill_rate: u64,
    /// Seconds between the last request and the kill
    #[arg(long, default_value_t = 5)]
    pause: u64,
    /// The same for Traffic Server, which writes its directory once a minute
    #[arg(long, default_value_t = 70)]
    directory_pause: u64,
    /// Seconds between the start and the second sample
    #[arg(long, default_value_t = 10)]
    settle: u64,
    /// Objects of a sample
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    sample: u64,
    /// Seed of the samples
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Measures all servers.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    stopped::unless_told(measure_all(args, campaign)).await
}

async fn measure_all(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(
        args.sample * 3 <= args.objects,
        "two samples and the objects of the first hit need more than {} objects",
        args.objects
    );
    let origin = contestant::origin()?;
    for which in Which::selected(&args.only)? {
        let name = which.name();
        if let Some(lack) = lack(which) {
            campaign.report.skip(name, format!("not run: {lack}"));
            continue;
        }
        match measure(args, which, campaign, &origin).await {
            Ok(runs) => tell(which, &runs, &mut campaign.report),
            Err(error) if which.is_ours() => return Err(error.context(name)),
            Err(error) => campaign.report.skip(name, format!("not run: {error:#}")),
        }
    }
    Ok(())
}

/// Why a server cannot take part, if that is so.
fn lack(which: Which) -> Option<&'static str> {
    match which {
        _ if !which.is_installed() => Some("not installed"),
        Which::Rival(Kind::VarnishFile) => {
            Some("its store does not outlast the process: Debian's Varnish has no persistent one")
        }
        _ => None,
    }
}

/// What one kill showed.
#[derive(Clone, Debug, Default)]
struct Run {
    /// From the start of the process until it listens, and until the first hit.
    listens_ms: u64,
    first_hit_ms: Option<u64>,
    /// Of 1000 requests.
    hits_before: u64,
    hits_at_once: u64,
    hits_later: u64,
    wrong: u64,
    first_wrong: Option<String>,
}

impl Run {
    fn add(&mut self, answers: Answers) -> u64 {
        let hits = answers.hits_per_mille();
        self.wrong += answers.wrong;
        self.first_wrong = self.first_wrong.take().or(answers.first_wrong);
        hits
    }
}

async fn measure(
    args: &Args,
    which: Which,
    campaign: &Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<Vec<Run>> {
    let folder = tempfile::tempdir_in(campaign.folder())?;
    let place = (origin.address(), folder.path());
    let room = room(args, which);
    let mut contestant = Contestant::start((which, Front::Site), room, campaign, place)?;
    let mut runs = vec![];
    for run in 0..args.runs {
        runs.push(kill_once(args, which, args.seed + run, &mut contestant, origin).await?);
    }
    drop(contestant);
    folder.close()?;
    Ok(runs)
}

fn room(args: &Args, which: Which) -> Room {
    let store_mib = which.store_mib(args.objects);
    Room {
        disk_mib: Room::disk_mib(store_mib, args.objects),
        ..Room::divided(which, args.memory, store_mib)
    }
}

/// Between the last request and the kill.
fn pause(args: &Args, which: Which) -> Duration {
    Duration::from_secs(match which {
        Which::Rival(Kind::TrafficServer) => args.directory_pause,
        _ => args.pause,
    })
}

async fn kill_once(
    args: &Args,
    which: Which,
    seed: u64,
    contestant: &mut Contestant,
    origin: &ContentOrigin,
) -> anyhow::Result<Run> {
    let load = ObjectLoad {
        origin,
        bytes: args.object_bytes,
        connections: CONNECTIONS,
        per_second: args.fill_rate,
    };
    let mut run = Run::default();
    let filled = load.fill(contestant.address()?, args.objects).await?;
    run.hits_before = run.add(filled);
    let mut objects: Vec<u64> = (0..args.objects).collect();
    Rng::with_seed(seed).shuffle(&mut objects);
    let sample = usize::try_from(args.sample)?;
    let later = objects.split_off(objects.len() - sample);
    let at_once = objects.split_off(objects.len() - sample);
    sleep(pause(args, which)).await;
    contestant.kill()?;

    let begun = Instant::now();
    contestant.start_again()?;
    let server = contestant.address()?;
    run.listens_ms = millis(begun);
    for object in objects {
        let answers = load.ask(server, vec![object]).await?;
        if run.add(answers) == 1000 {
            run.first_hit_ms = Some(millis(begun));
            break;
        }
        if begun.elapsed() > PATIENCE {
            break;
        }
        sleep(LOOK_TIME).await;
    }
    run.hits_at_once = run.add(load.ask(server, at_once).await?);
    sleep_until(begun + Duration::from_secs(args.settle)).await;
    run.hits_later = run.add(load.ask(server, later).await?);
    Ok(run)
}

fn millis(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn tell(which: Which, runs: &[Run], report: &mut Report) {
    let median = |figure: fn(&Run) -> u64| median(runs, figure);
    // A start without a hit takes longer than every other one.
    let first_hit_ms = median(|run| run.first_hit_ms.unwrap_or(u64::MAX));
    let first_hit_ms = (first_hit_ms < u64::MAX).then_some(first_hit_ms);
    let wrong: u64 = runs.iter().map(|run| run.wrong).sum();
    let first_hit = match first_hit_ms {
        Some(ms) => format!("first hit after {ms} ms"),
        None => "no hit".to_owned(),
    };
    let mut detail = format!(
        "listens after {} ms, {first_hit}; hits of 1000: {} before, {} at once, {} later",
        median(|run| run.listens_ms),
        median(|run| run.hits_before),
        median(|run| run.hits_at_once),
        median(|run| run.hits_later),
    );
    if let Some(first) = runs.iter().find_map(|run| run.first_wrong.as_ref()) {
        detail += &format!("; {wrong} wrong answers, first: {first}");
    }
    let verdict = match which {
        Which::Ours { .. } => (wrong == 0).into(),
        Which::Rival(_) => Verdict::Told,
    };
    let figures = json!({
        "listens_ms": median(|run| run.listens_ms),
        "first_hit_ms": first_hit_ms,
        "runs_first_hit_ms": runs.iter().map(|run| run.first_hit_ms).collect::<Vec<_>>(),
        "hits_before_per_mille": median(|run| run.hits_before),
        "hits_at_once_per_mille": median(|run| run.hits_at_once),
        "hits_later_per_mille": median(|run| run.hits_later),
        "wrong": wrong,
    });
    report.figures(which.name(), verdict, detail, figures);
}

const CONNECTIONS: usize = 16;
/// After this, a cache that had no hit has lost its objects.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_TIME: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_answer_of_ours_fails_the_run_and_one_of_a_rival_is_told() {
        let run = |wrong| Run {
            wrong,
            ..Run::default()
        };
        let holds = |which, wrong| {
            let mut report = Report::new("test", false);
            tell(which, &[run(0), run(wrong)], &mut report);
            report.finish().is_ok()
        };
        assert!(holds(contestant::OURS, 0));
        assert!(!holds(contestant::OURS, 1));
        assert!(holds(Which::Rival(Kind::SquidAufs), 1));
    }
}
