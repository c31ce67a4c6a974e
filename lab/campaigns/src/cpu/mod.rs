//! `cargo campaign cpu`: processor time of a request, ours and that of other caches, in one run.
//!
//! Beside other caches, see `table`. With `--before FILE`, an earlier build takes their place, see
//! `paired`; with `--sites NUMBER`, one proxy has one site and the other has so many, see `sites`.

mod load;
mod paired;
mod sites;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};
use hashcache_testkit::{ContentOptions, ContentOrigin};
use nix::errno::Errno;
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::campaign::Campaign;
use crate::real_clients::tool::is_installed;
use crate::stopped;

/// Arguments of `cpu`.
#[derive(clap::Args)]
pub struct Args {
    /// Compare with this binary, an earlier build, instead of other caches
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Only the loads with this word in their name: hit, disk, miss; beside other caches TLS, mix
    /// and "no log", with --before download
    #[arg(long, value_name = "WORD", conflicts_with = "sites")]
    only: Option<String>,
    /// Compare a proxy with this many sites and one with one site, instead of other caches
    #[arg(long, value_name = "NUMBER", conflicts_with = "before")]
    sites: Option<u16>,
    /// Rounds of each server and load
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds a round takes
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Processors of the servers, as `taskset` takes them
    #[arg(long, default_value = "1")]
    server_processors: String,
    /// Give each server a file system of its own, on a loop device, and this much memory, page
    /// cache included, MiB; beside other caches only; needs root
    #[arg(long, value_name = "MIB", conflicts_with_all = ["before", "sites"])]
    #[arg(value_parser = clap::value_parser!(u32).range(64..=65_536))]
    group_memory: Option<u32>,
    /// Processors of the load
    #[arg(long, default_value = "0")]
    load_processors: String,
}

/// Measures what the arguments ask for.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "at least one round is needed");
    let mut programs = vec!["wrk", "taskset"];
    if args.before.is_some() {
        programs.push("curl");
    } else if args.sites.is_none() && table::measures_tls(args) {
        programs.extend(["h2load", "curl"]);
    }
    for program in programs {
        ensure!(is_installed(program), "{program} is not installed");
    }
    let origin = ContentOrigin::start_thread(ContentOptions {
        max_age: 86_400,
        ..ContentOptions::default()
    })?;
    if let Some(before) = &args.before {
        return paired::run(args, before, campaign, &origin);
    }
    if let Some(sites) = args.sites {
        return sites::run(args, sites, campaign, &origin).await;
    }
    stopped::unless_told(table::run(args, campaign, &origin)).await
}

/// Processor time of these processes so far, in nanoseconds, as the scheduler counts it, with that
/// of threads that have ended. A process that has ended counts nothing.
pub fn cpu_ns(pids: &[u32]) -> anyhow::Result<u64> {
    let mut time = Duration::ZERO;
    for pid in pids {
        let of_process = || {
            let pid = Pid::from_raw(i32::try_from(*pid).map_err(|_| Errno::ESRCH)?);
            ClockId::pid_cpu_clock_id(pid)?.now()
        };
        // nginx's cache loader ends after a minute.
        match of_process() {
            Ok(taken) => time += Duration::from(taken),
            Err(Errno::ESRCH | Errno::EINVAL) => {}
            Err(error) => bail!("no processor time of process {pid}: {error}"),
        }
    }
    Ok(u64::try_from(time.as_nanos())?)
}

fn micros(ns: u64) -> String {
    format!("{}.{:02}", ns / 1000, ns % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_has_that_of_threads_that_have_ended() {
        let own = [std::process::id()];
        let before = cpu_ns(&own).unwrap();
        let taken = || Duration::from(ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap());
        let time = Duration::from_millis(20);
        std::thread::spawn(move || while taken() < time {})
            .join()
            .unwrap();
        let taken = Duration::from_nanos(cpu_ns(&own).unwrap() - before);
        assert!(taken >= time, "{taken:?}");
        // No process has this number.
        assert_eq!(cpu_ns(&[1 << 22]).unwrap(), 0);
    }

    #[test]
    fn microseconds_have_two_decimals() {
        assert_eq!(micros(12_345), "12.34");
    }
}
