//! `hashcache sim stats`: statistics about a log.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use hashcache_settings::units::about_size;
use hashcache_sim::source::Tally;
use hashcache_sim::stats::{self, Stats};
use serde_json::json;

use super::input::InputArgs;

pub const HELP: &str = "\
A cache without bounds misses only the first request for each URL, and what may not be stored: no
other cache has more hits on this log. Sizes are those of URLs, each with the last size that counts.
A hit counts with the size of its own request.
Lines that are no requests are counted and the first five are named on standard error. The exit
status is 0 all the same, and 2 with `--strict`.";

/// Arguments for `hashcache sim stats`.
#[derive(Args, Clone, Debug)]
pub struct StatsArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Counts the requests and prints the result.
pub fn run(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    let mut input = args.input.open(1)?;
    let stats = stats::count(&mut input.files, args.input.view)?;
    let tally = input.files.tally().clone();
    drop(input);
    let text = if args.json {
        format!("{}\n", json_of(args, &stats, &tally)?)
    } else {
        text_of(&stats, &tally)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn json_of(args: &StatsArgs, stats: &Stats, tally: &Tally) -> anyhow::Result<serde_json::Value> {
    let mut json = serde_json::to_value(stats)?;
    json["view"] = json!(args.input.view.name());
    json["damaged_lines"] = json!(tally.damaged);
    json["hit_ratio"] = json!(stats.hit_ratio());
    json["byte_hit_ratio"] = json!(stats.byte_hit_ratio());
    Ok(json)
}

fn text_of(stats: &Stats, tally: &Tally) -> String {
    let sizes = stats.sizes;
    let clients = match stats.clients {
        0 => "not named".to_owned(),
        clients => clients.to_string(),
    };
    let rows = [
        ("requests", stats.requests.to_string()),
        (
            "without a size",
            format!("{}, left out", stats.without_size),
        ),
        ("not to be stored", stats.uncacheable.to_string()),
        ("damaged lines", tally.damaged.to_string()),
        ("URLs", stats.urls.to_string()),
        ("clients", clients),
        ("bytes", about_size(stats.bytes)),
        ("bytes of all URLs", about_size(stats.working_set_bytes)),
        (
            "size of a URL",
            format!(
                "median {}, mean {}, 99 % below {}, at most {}",
                about_size(sizes.median),
                about_size(sizes.mean),
                about_size(sizes.percentile_99),
                about_size(sizes.largest),
            ),
        ),
        ("time", about_time(stats.seconds)),
        (
            "cache without bounds",
            format!(
                "{:.1} % of requests are hits, {:.1} % of bytes",
                stats.hit_ratio() * 100.0,
                stats.byte_hit_ratio() * 100.0,
            ),
        ),
    ];
    rows.map(|(name, value)| format!("{name:<21} {value}\n"))
        .concat()
}

/// Formats a time in the largest unit that gives at least 2.
fn about_time(seconds: f64) -> String {
    let units = [("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)];
    match units.iter().find(|(_, unit)| seconds >= 2.0 * unit) {
        Some((name, unit)) => format!("{:.1} {name}", seconds / unit),
        None => format!("{seconds:.1} seconds"),
    }
}
