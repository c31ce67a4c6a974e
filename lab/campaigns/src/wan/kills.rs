//! Section `kills`: one of the boxes is killed in the middle of transfers, again and again.
//!
//! Clients fetch objects that take half a second on the link: some without a dictionary, some as
//! differences from an older version. At a random moment one box is killed as by a power cut and
//! started again with its cache.
//!
//! What "completed by resume" means depends on the box. If the parent is killed, the child holds
//! its clients' connections and has to resume from the parent that returns: a client asks once.
//! If the child is killed, the connections of its clients die with it, and no program could keep
//! them: a client asks again for what is missing, as download tools do, and that must complete.
//!
//! Limits: no wrong byte, no short answer that looks whole; 95 % of the answers that the kill met
//! are completed. A campaign of fewer kills than the full one meets too few answers to tell 94 %
//! from 95 %: it fails if so many failures have a probability below 1 in 1,000 at 95 %. The short
//! form is part of every test run, with programs that are not optimised: it kills the parent when
//! the answers have begun, for of those without a head none can be resumed; and if a restart took
//! long, as on a busy machine, the answers of its round do not count for the share, and another
//! round is played.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::answers::{Outcome, fetch, fetch_retrying};
use super::boxes::{Pair, Settings, Side};
use super::made;
use super::site::{Served, Site};
use super::{Args, Progress};
use crate::campaign::Campaign;

/// Plays the section.
pub async fn run(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    let kills = args.kills();
    progress.expect(kills);
    let benches = (kills / 10).clamp(1, BENCHES);
    let mut playing = JoinSet::new();
    for number in 0..benches {
        let share = kills / benches + u64::from(number < kills % benches);
        let bench = Bench::start(args, campaign, number).await?;
        let progress = progress.clone();
        playing.spawn(async move { bench.play(share, &progress).await });
    }
    let mut counts = [Counts::default(), Counts::default()];
    while let Some(played) = playing.join_next().await {
        let played = played.context("a bench panicked")??;
        for (sum, counts) in counts.iter_mut().zip(played) {
            sum.add(counts);
        }
    }
    for (side, counts) in Side::BOTH.into_iter().zip(counts) {
        tell(campaign, side, &counts);
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Counts {
    kills: u64,
    /// Answers that ended after the kill.
    met: u64,
    completed: u64,
    failed: Vec<String>,
    wrong: Vec<String>,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.kills += other.kills;
        self.met += other.met;
        self.completed += other.completed;
        self.failed.extend(other.failed);
        self.wrong.extend(other.wrong);
    }
}

fn tell(campaign: &mut Campaign, side: Side, counts: &Counts) {
    let Counts {
        kills,
        met,
        completed,
        failed,
        wrong,
    } = counts;
    let what = format!("{kills} kills of the {}", side.name());
    let shown = |list: &[String]| {
        let shown = list.iter().take(SHOWN);
        shown
            .map(|it| format!("\n        {it}"))
            .collect::<String>()
    };
    campaign.report.figures(
        format!("{what}: wrong or short answers"),
        wrong.is_empty().into(),
        format!("{}, bar 0{}", wrong.len(), shown(wrong)),
        json!({ "kills": kills, "wrong": wrong.len() }),
    );
    let share = *completed as f64 * 100.0 / (*met).max(1) as f64;
    let lost_max = lost_max(*met);
    let how = match side {
        Side::Child => "after the client asked again for what was missing",
        Side::Parent => "by the child's resume, clients ask once",
    };
    campaign.report.figures(
        format!("{what}: answers completed"),
        (*met > 0 && met - completed <= lost_max).into(),
        format!(
            "{share:.1} % of {met} {how}, bar {COMPLETED_MIN} % ({lost_max} may fail){}",
            shown(failed)
        ),
        json!({ "met": met, "completed": completed, "percent": share }),
    );
}

/// How many of `met` answers may fail: 5 % of many; of few, the most that chance explains.
fn lost_max(met: u64) -> u64 {
    let lost_percent = 100 - COMPLETED_MIN;
    if met >= MET_MANY {
        return met * u64::from(lost_percent) / 100;
    }
    let bar = f64::from(lost_percent) / 100.0;
    // The binomial distribution: the probability of exactly `lost` failures, and of more.
    let mut exactly = (1.0 - bar).powf(met as f64);
    let mut more = 1.0 - exactly;
    let mut lost = 0;
    while more > CHANCE && lost < met {
        exactly *= (met - lost) as f64 / (lost + 1) as f64 * bar / (1.0 - bar);
        more -= exactly;
        lost += 1;
    }
    lost
}

/// A pair and what it serves.
struct Bench {
    number: u64,
    is_short: bool,
    pair: Pair,
    site: Site,
    /// What changes: the same URL, a new version each round.
    changing: Arc<Vec<u8>>,
    random: fastrand::Rng,
}

impl Bench {
    async fn start(args: &Args, campaign: &Campaign, number: u64) -> anyhow::Result<Self> {
        let mut settings = Settings::new(&format!("kills-{number}"));
        settings.cache = 512;
        let bench = Self {
            number,
            is_short: args.short,
            pair: Pair::start(campaign, &settings).await?,
            site: Site::start().await?,
            changing: Arc::new(made::noise(number, OBJECT_BYTES)),
            random: fastrand::Rng::with_seed(number),
        };
        bench.pair.slow(RATE, Duration::from_millis(20));
        Ok(bench)
    }

    async fn play(mut self, kills: u64, progress: &Progress) -> anyhow::Result<[Counts; 2]> {
        let mut counts = [Counts::default(), Counts::default()];
        let (mut kill, mut round) = (0, 0);
        while kill < kills {
            let side = Side::BOTH[usize::try_from((kill + self.number) % 2)?];
            let may_repeat = self.is_short && round - kill < 2 * kills;
            let counts = &mut counts[side as usize];
            let counted = self.round(round, side, may_repeat, counts).await;
            let counted =
                counted.with_context(|| format!("pair {}, round {round}", self.number))?;
            round += 1;
            if counted {
                kill += 1;
                progress.step();
            }
        }
        self.pair.check()?;
        Ok(counts)
    }

    /// Returns whether the round counts for the share: not if it may be repeated and the restart
    /// took long.
    async fn round(
        &mut self,
        round: u64,
        side: Side,
        may_repeat: bool,
        counts: &mut Counts,
    ) -> anyhow::Result<bool> {
        let mut clients = JoinSet::new();
        let address = self.pair.address()?;
        let before = self.pair.received_bytes();
        for (path, content) in self.objects(round) {
            let url = self.site.url(&path);
            clients.spawn(async move {
                let outcome = match side {
                    Side::Child => fetch_retrying(address, &url, &content).await,
                    Side::Parent => fetch(address, &url, &content).await,
                };
                (path, outcome, Instant::now())
            });
        }
        let pause = match (self.is_short, side) {
            (true, Side::Parent) => {
                self.until_begun(before).await?;
                0..KILL_AFTER_MS
            }
            _ => 30..KILL_WITHIN_MS,
        };
        sleep(Duration::from_millis(self.random.u64(pause))).await;
        let killed = Instant::now();
        self.pair.kill(side)?;
        // Starting a process blocks.
        tokio::task::block_in_place(|| self.pair.start_again(side))?;
        let is_counted = killed.elapsed() <= RESTART_TIME || !may_repeat;
        while let Some(answered) = clients.join_next().await {
            let (path, outcome, ended) = answered?;
            let shown = |what: &str| format!("pair {}, round {round}, {path}: {what}", self.number);
            let is_met = is_counted && ended > killed;
            counts.met += u64::from(is_met);
            match outcome {
                Outcome::Right => counts.completed += u64::from(is_met),
                Outcome::Visible(what) if is_counted => counts.failed.push(shown(&what)),
                Outcome::Visible(_) => {}
                Outcome::Wrong(what) => counts.wrong.push(shown(&what)),
            }
        }
        counts.kills += u64::from(is_counted);
        // A request makes the child connect at once; left alone, it would wait longer each time.
        let warm = Arc::new(b"warm".to_vec());
        self.site.set("/warm", Served::no_store(&warm));
        let warmed = fetch_retrying(self.pair.address()?, &self.site.url("/warm"), &warm).await;
        ensure!(warmed == Outcome::Right, "no link afterwards: {warmed:?}");
        Ok(is_counted)
    }

    /// Waits until so much of the answers has arrived at the child, where `before` bytes had, that
    /// each has a head.
    async fn until_begun(&self, before: u64) -> anyhow::Result<()> {
        let since = Instant::now();
        while self.pair.received_bytes() < before + BEGUN_BYTES {
            ensure!(since.elapsed() < BEGIN_TIME, "the answers do not begin");
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Serves the objects of a round: new ones, and a new version of an old one.
    fn objects(&mut self, round: u64) -> Vec<(String, Arc<Vec<u8>>)> {
        self.site.clear();
        let seed = self.number << 32 | round << 8;
        // Half of it is new, so that it takes time on the link as well.
        let half = self.changing.len() / 2;
        let new = made::noise(seed, OBJECT_BYTES / 2);
        self.changing = Arc::new(match round % 2 {
            0 => [&self.changing[..half], &new].concat(),
            _ => [&new, &self.changing[half..]].concat(),
        });
        let object =
            |number: u64, content: Vec<u8>| (format!("/{round}/{number}"), Arc::new(content));
        let mut objects = vec![
            object(1, made::noise(seed + 1, OBJECT_BYTES)),
            object(2, made::noise(seed + 2, OBJECT_BYTES)),
            object(3, made::text(seed + 3, 3 * OBJECT_BYTES)),
        ];
        for (path, content) in &objects {
            self.site.set(path, Served::fresh(content));
        }
        self.site.set("/changing", Served::stale(&self.changing));
        objects.push(("/changing".to_owned(), Arc::clone(&self.changing)));
        objects
    }
}

/// Pairs that are played at the same time.
const BENCHES: u64 = 3;
const OBJECT_BYTES: usize = 300_000;
/// All objects of a round take half a second.
const RATE: u64 = 16_000_000;
const KILL_WITHIN_MS: u64 = 450;
/// A sixth of the bytes of a round.
const BEGUN_BYTES: u64 = 150_000;
const BEGIN_TIME: Duration = Duration::from_secs(30);
/// What remains takes about 400 ms.
const KILL_AFTER_MS: u64 = 300;
/// The child's three attempts to resume are over soon after. A machine that is not busy needs a
/// fraction of this to start a box again.
const RESTART_TIME: Duration = Duration::from_millis(500);
/// Percent.
const COMPLETED_MIN: u8 = 95;
/// From this number of answers on, the bar counts as it stands.
const MET_MANY: u64 = 1_000;
/// A row of fewer answers fails if this many failures or more are less probable than this.
const CHANCE: f64 = 0.001;
/// Failures that a row shows.
const SHOWN: usize = 5;

#[cfg(test)]
mod tests {
    use super::lost_max;

    #[test]
    fn few_answers_fail_only_by_more_than_chance_and_many_by_the_bar() {
        // Percent points of the binomial distribution with p = 0.05.
        assert_eq!(lost_max(0), 0);
        assert_eq!(lost_max(1), 1);
        assert_eq!(lost_max(36), 7);
        assert_eq!(lost_max(100), 13);
        assert_eq!(lost_max(1_000), 50);
        assert_eq!(lost_max(3_600), 180);
    }
}
