//! `hashcache sim generate`: the requests of a benchmark as a trace.

use std::io::{BufWriter, IsTerminal as _};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use hashcache_settings::fault::Fault;
use hashcache_sim::source::Source as _;
use hashcache_sim::trace::Writer;
use hashcache_sim::workload::{Generated, Name, Settings, WORKING_SET_MAX, WisconsinSizes};
use indicatif::ProgressBar;

use super::input::progress_bar;

pub const HELP: &str = "\
The trace is CSV with the columns time, client, url, bytes, group (the page that an object belongs
to) and cacheable, at 100 requests/s. Equal flags give equal bytes. For example:
  hashcache sim generate --workload foxy --requests 100000 | hashcache sim replay -";

/// Arguments for `hashcache sim generate`.
#[derive(Args, Clone, Debug)]
pub struct GenerateArgs {
    /// Benchmark
    #[arg(long, value_enum, value_name = "WORKLOAD")]
    workload: Name,
    /// Requests
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    requests: u64,
    /// Seed of everything random
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Clients that take turns [default: 100 of `foxy`, 30 of `wisconsin`, 8 of others]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    clients: Option<u64>,
    /// Newest objects that are requested again [default: an eighth of the requests; `foxy` and
    /// `wisconsin` request all again]
    #[arg(long, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..=WORKING_SET_MAX))]
    working_set: Option<u64>,
    /// Share of requests that repeat an earlier one: of all of `foxy`, of the second half of
    /// `wisconsin` [default: 0.4 and 0.45]
    #[arg(long, value_name = "SHARE")]
    hit_ratio: Option<f64>,
    /// Sizes of `wisconsin`
    #[arg(long, value_enum, value_name = "SIZES", default_value = "uniform")]
    sizes: WisconsinSizes,
}

/// Writes the trace to standard output.
pub fn run(args: &GenerateArgs) -> anyhow::Result<ExitCode> {
    let authors = Settings::new(args.workload, args.seed, args.requests);
    let settings = Settings {
        clients: args.clients.unwrap_or(authors.clients),
        working_set: args.working_set.unwrap_or(authors.working_set),
        hit_ratio: hit_ratio(args)?.unwrap_or(authors.hit_ratio),
        sizes: args.sizes,
        ..authors
    };
    let stdout = std::io::stdout();
    // On a terminal, the lines themselves show the progress.
    let bar = if stdout.is_terminal() {
        ProgressBar::hidden()
    } else {
        progress_bar(Some(args.requests))
    };
    let mut writer = Writer::new(BufWriter::new(stdout.lock()))?;
    let (mut written, mut failed) = (0_u64, None);
    Generated(settings).read(&mut |request| match writer.write(request) {
        Ok(()) => {
            written += 1;
            if written.is_multiple_of(SHOWN_EVERY) {
                bar.set_position(written);
            }
            ControlFlow::Continue(())
        }
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    bar.finish_and_clear();
    match failed {
        Some(error) => Err(error).context(CANNOT),
        None => {
            writer.finish().context(CANNOT)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

const CANNOT: &str = "cannot write the trace to standard output";
/// Requests between two steps of the progress bar.
const SHOWN_EVERY: u64 = 1 << 12;

fn hit_ratio(args: &GenerateArgs) -> Result<Option<f64>, Fault> {
    match args.hit_ratio {
        Some(share) if !(0.0..=1.0).contains(&share) => {
            Err(Fault::new(format!("--hit-ratio: {share} is not a share")).hint("use 0 to 1"))
        }
        Some(_) if !matches!(args.workload, Name::Foxy | Name::Wisconsin) => {
            let what = "--hit-ratio: works only with `foxy` and `wisconsin`";
            Err(Fault::new(what).hint("the hits of others follow from `--working-set`"))
        }
        share => Ok(share),
    }
}
