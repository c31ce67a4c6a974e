//! `hashcache sim consistency`: measures how current the responses of a cache hierarchy are, and
//! the cost, for each scheme that keeps caches current.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use hashcache_http::Seconds;
use hashcache_settings::fault::Fault;
use hashcache_sim::consistency::{Counts, Crossing, Scheme, Settings, crossing, simulate};
use hashcache_sim::median::median;
use hashcache_workload::draw::whole;
use serde_json::{Value, json};

use super::input::progress_bar;

pub const HELP: &str = "\
Section 4 of the Harvest paper, with the rules by which the proxy stores and serves. The schemes:
  fixed               one lifetime for all objects, then they are discarded (Harvest)
  validated           one lifetime for all objects, then they are validated
  while-revalidating  the same, and the old content is served meanwhile, for as long again
  doubling            a minute, doubled each time the object proves unchanged (`adaptive`)
  heuristic           a tenth of the time since the last change, the default of the proxy
  invalidation        origins tell the caches that have an object when it changes
  group-purge         origins tell all caches at which site an object has changed
Lifetimes are the most that `doubling` and `heuristic` give. Each figure is the median of all runs.
Equal flags print equal figures, on every machine.";

/// Arguments for `hashcache sim consistency`.
#[derive(Args, Clone, Debug)]
pub struct ConsistencyArgs {
    /// Lifetimes, in days, 0 to 24855
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "DAYS",
        value_parser = days,
        default_value = "1,2,3,5,7,10,14,21,30,60"
    )]
    lifetimes: Vec<f64>,
    /// Objects at all origins
    #[arg(long, default_value_t = 4600, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    objects: u32,
    /// Sites of the objects
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sites: u32,
    /// Caches below each cache
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    fan_out: u32,
    /// Levels of caches
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3))]
    levels: u32,
    /// Requests per day at each of the lowest caches
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests_per_day: u32,
    /// Seed of the first run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs, with seeds that follow each other
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The medians of a scheme.
struct Row {
    scheme: Scheme,
    /// Lifetime in days, if the scheme has any.
    days: Option<f64>,
    stale: f64,
    waits: f64,
    bytes: f64,
    messages: f64,
    origin: f64,
}

/// Simulates and prints the result.
pub fn run(args: &ConsistencyArgs) -> anyhow::Result<ExitCode> {
    args.check_copies()?;
    let mut lifetimes = args.lifetimes.clone();
    lifetimes.sort_by(f64::total_cmp);
    let schemes = schemes(&lifetimes);
    let bar = progress_bar(Some(u64::from(args.runs) * schemes.len() as u64));
    let runs: Vec<Vec<Counts>> = (0..args.runs)
        .map(|run| {
            let settings = args.settings(args.seed.wrapping_add(u64::from(run)));
            let counts = schemes.iter().map(|(scheme, _)| {
                let counts = simulate(&settings, *scheme);
                bar.inc(1);
                counts
            });
            counts.collect()
        })
        .collect();
    bar.finish_and_clear();
    let rows: Vec<Row> = schemes
        .iter()
        .enumerate()
        .map(|(index, (scheme, days))| Row::new(*scheme, *days, &runs, index))
        .collect();
    let crossings =
        CROSSINGS.map(|with_lifetime| (with_lifetime, crossings(with_lifetime, &schemes, &runs)));
    let text = if args.json {
        format!("{:#}\n", json_of(args, &rows, &crossings))
    } else {
        text_of(&rows, &crossings)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

impl ConsistencyArgs {
    /// Checks the number of copies: each cache has room for a copy of each object.
    fn check_copies(&self) -> Result<(), Fault> {
        let caches = self.settings(self.seed).caches();
        let copies = caches.saturating_mul(self.objects.into());
        if copies <= COPIES_MAX {
            return Ok(());
        }
        let fault = Fault::new(format!(
            "--objects, --fan-out, --levels: {caches} caches of {} objects have {copies} copies, \
             more than {COPIES_MAX}",
            self.objects
        ));
        Err(fault.hint("use fewer objects, a smaller fan-out or fewer levels"))
    }

    fn settings(&self, seed: u64) -> Settings {
        Settings {
            objects: self.objects,
            sites: self.sites,
            fan_out: self.fan_out,
            levels: self.levels,
            requests_per_day: f64::from(self.requests_per_day),
            seed,
            ..Settings::default()
        }
    }
}

/// Makes a scheme from a lifetime.
type WithLifetime = fn(Seconds) -> Scheme;

fn schemes(lifetimes: &[f64]) -> Vec<(Scheme, Option<f64>)> {
    let with_lifetime: [WithLifetime; 5] = [
        Scheme::Fixed,
        Scheme::Validated,
        Scheme::WhileRevalidating,
        Scheme::Doubling,
        Scheme::Heuristic,
    ];
    let mut schemes = vec![];
    for scheme in with_lifetime {
        schemes.extend(
            lifetimes
                .iter()
                .map(|days| (scheme(seconds(*days)), Some(*days))),
        );
    }
    schemes.extend([(Scheme::Invalidation, None), (Scheme::GroupPurge, None)]);
    schemes
}

/// Parses a lifetime from `--lifetimes`.
fn days(text: &str) -> Result<f64, String> {
    let days: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..=DAYS_MAX).contains(&days) {
        // Avoids -0.
        Ok(days.abs())
    } else {
        Err(format!("a lifetime must be 0 to {DAYS_MAX} days"))
    }
}

fn seconds(days: f64) -> Seconds {
    Seconds::new(whole(days * 86_400.0))
}

impl Row {
    /// The medians of the counts under scheme `index`.
    fn new(scheme: Scheme, days: Option<f64>, runs: &[Vec<Counts>], index: usize) -> Self {
        let of = |figure: fn(&Counts) -> u64| {
            let counts = runs.iter().map(|run| &run[index]);
            let figures = counts.map(|counts| counts.per_request(figure(counts)));
            median(figures, f64::total_cmp).expect("there is a run")
        };
        Self {
            scheme,
            days,
            stale: of(|counts| counts.stale),
            waits: of(|counts| counts.waits),
            bytes: of(|counts| counts.link_bytes),
            messages: of(|counts| counts.messages),
            origin: of(|counts| counts.origin_requests),
        }
    }

    fn json(&self) -> Value {
        json!({
            "scheme": self.scheme.to_string(),
            "lifetime_days": self.days,
            "stale_share": self.stale,
            "waits_per_request": self.waits,
            "link_bytes_per_request": self.bytes,
            "messages_per_request": self.messages,
            "origin_requests_per_request": self.origin,
        })
    }
}

/// Finds the lifetime at which a scheme costs as many bytes as `invalidation`, in each run that has
/// such a lifetime.
fn crossings(
    with_lifetime: WithLifetime,
    schemes: &[(Scheme, Option<f64>)],
    runs: &[Vec<Counts>],
) -> Vec<Crossing> {
    let place = |wanted: Scheme| schemes.iter().position(|(scheme, _)| *scheme == wanted);
    let found = runs.iter().filter_map(|run| {
        let own = schemes
            .iter()
            .zip(run)
            .filter_map(|((scheme, days), counts)| {
                let days = (*days)?;
                (*scheme == with_lifetime(seconds(days))).then_some((days, *counts))
            });
        crossing(&own.collect::<Vec<_>>(), &run[place(Scheme::Invalidation)?])
    });
    found.collect()
}

fn json_of(
    args: &ConsistencyArgs,
    rows: &[Row],
    crossings: &[(WithLifetime, Vec<Crossing>)],
) -> Value {
    let crossings = crossings.iter().filter_map(|(scheme, found)| {
        let (days, stale_share) = medians(found)?;
        Some(json!({
            "scheme": scheme(Seconds::ZERO).to_string(),
            "costs_as_much_as": Scheme::Invalidation.to_string(),
            "lifetime_days": days,
            "stale_share": stale_share,
            "runs": found.len(),
        }))
    });
    json!({
        "objects": args.objects,
        "sites": args.sites,
        "fan_out": args.fan_out,
        "levels": args.levels,
        "requests_per_day": args.requests_per_day,
        "seed": args.seed,
        "runs": args.runs,
        "schemes": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "crossings": crossings.collect::<Vec<_>>(),
    })
}

fn text_of(rows: &[Row], crossings: &[(WithLifetime, Vec<Crossing>)]) -> String {
    let mut text = String::from(
        "scheme              lifetime   stale   wait  bytes a request  messages  of the origin\n",
    );
    for row in rows {
        let days = row
            .days
            .map_or_else(String::new, |days| format!("{days} d"));
        let _ = writeln!(
            text,
            "{:<18} {days:>9} {:>6.1} % {:>4.0} % {:>16.0} {:>9.4} {:>14.4}",
            row.scheme,
            row.stale * 100.0,
            row.waits * 100.0,
            row.bytes,
            row.messages,
            row.origin,
        );
    }
    for (scheme, found) in crossings {
        let scheme = scheme(Seconds::ZERO);
        let _ = match medians(found) {
            Some((days, stale)) => writeln!(
                text,
                "{scheme} costs as many bytes as invalidation with {days:.1} days; then {:.0} % of \
                 the requests are stale",
                stale * 100.0
            ),
            None => writeln!(
                text,
                "{scheme} costs as many bytes as invalidation at none of these lifetimes"
            ),
        };
    }
    text
}

fn medians(found: &[Crossing]) -> Option<(f64, f64)> {
    let of = |figure: fn(&Crossing) -> f64| median(found.iter().map(figure), f64::total_cmp);
    of(|it| it.days).zip(of(|it| it.stale_share))
}

/// The longest lifetime in the rules ([`Seconds::MAX`], 2^31 seconds), in whole days.
const DAYS_MAX: f64 = 24_855.0;
/// Most object copies in all caches, which must fit in memory: about 3 GB.
const COPIES_MAX: u64 = 1 << 25;
/// Schemes for which the cost is compared with invalidation. The paper compares only the first.
const CROSSINGS: [WithLifetime; 2] = [Scheme::Fixed, Scheme::Validated];
