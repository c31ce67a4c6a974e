//! What `wrk` asks for in a round, and what it says of it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::Args;

/// Requests of a kind, by 32 connections without pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One object of this size, in memory.
    OneObject(u64),
    /// [`MANY_OBJECTS`] objects in turn, in memory.
    ManyObjects,
    /// Objects of [`DISK_BYTES`] in turn, five times as much as the memory of a proxy that has
    /// little of it.
    Disk,
    /// Objects that nobody has asked for before, which are stored.
    Miss,
    /// Pages: 59 % of the requests are for one of [`MIX_OBJECTS`] objects, more for the first than
    /// for the last; the others as [`Kind::Miss`].
    Mix,
}

impl Kind {
    /// Its name in a report.
    pub fn name(self) -> String {
        match self {
            Self::OneObject(size) => format!("hit in memory, {size} B"),
            Self::ManyObjects => format!("hit in memory, {MANY_OBJECTS} objects"),
            Self::Disk => format!("hit on disk, {DISK_BYTES} B"),
            Self::Miss => format!("miss, {MISS_BYTES} B"),
            Self::Mix => "page mix, 59 % again".to_owned(),
        }
    }

    /// A script for wrk that makes the requests of a round.
    pub fn script(self, round: usize) -> String {
        let path = match self {
            Self::OneObject(size) => format!("'/hit?size={size}'"),
            Self::ManyObjects => format!("sized('/many/', n % {MANY_OBJECTS})"),
            // Every object in turn: none of them is asked for again while it is in memory.
            Self::Disk => format!("'/disk/' .. (n % {DISK_OBJECTS}) .. '?size={DISK_BYTES}'"),
            Self::Miss => format!("'/miss/{round}/' .. n .. '?size={MISS_BYTES}'"),
            Self::Mix => format!(
                "n * 61 % 100 < 59 and sized('/mix/', math.floor({MIX_OBJECTS} * \
                 math.random() ^ 2)) or sized('/mix/{round}/', n)"
            ),
        };
        script(&path, round)
    }

    /// A script that asks for all objects that [`Kind::script`] asks for again.
    pub fn filling(self) -> String {
        match self {
            Self::Mix => script(&format!("sized('/mix/', n % {MIX_OBJECTS})"), 0),
            _ => self.script(0),
        }
    }
}

/// `sized` gives each number a size of 2 to 24 KB.
fn script(path: &str, seed: usize) -> String {
    format!(
        "n = 0\nmath.randomseed({seed})\nsized = function(path, n)\n  return path .. n .. '?size=' \
         .. (2000 + n * 7919 % 22000)\nend\nrequest = function()\n  n = n + 1\n  return \
         wrk.format('GET', {path})\nend\n"
    )
}

/// The output of wrk for one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub requests: u64,
    pub per_second: u64,
}

impl Load {
    /// Has wrk make the requests of a script.
    pub fn run(args: &Args, address: SocketAddr, script: &Path) -> anyhow::Result<Self> {
        let output = Command::new("taskset")
            .args(["-c", &args.load_processors, "wrk", "-t1", "-c32", "-s"])
            .arg(script)
            .arg(format!("-d{}s", args.seconds))
            .arg(format!("http://{address}/"))
            .output()
            .context("cannot run wrk")?;
        let said = String::from_utf8_lossy(&output.stdout);
        Self::read(&said).with_context(|| said.into_owned())
    }

    /// An error if any request failed.
    fn read(said: &str) -> anyhow::Result<Self> {
        for bad in ["Non-2xx", "Socket errors"] {
            if let Some(line) = said.lines().find(|line| line.contains(bad)) {
                bail!("requests failed: {}", line.trim());
            }
        }
        let total = said.lines().find(|line| line.contains(" requests in "));
        let requests = total
            .and_then(|line| line.split_whitespace().next()?.parse().ok())
            .context("wrk does not say how many requests")?;
        let rate = said
            .lines()
            .find_map(|line| line.strip_prefix("Requests/sec:"));
        let per_second = rate
            .and_then(|rate| rate.trim().split('.').next()?.parse().ok())
            .context("wrk does not say how many a second")?;
        Ok(Self {
            requests,
            per_second,
        })
    }
}

const MANY_OBJECTS: u64 = 1_000;
/// 300 MB.
const DISK_OBJECTS: u64 = 3_000;
const DISK_BYTES: u64 = 100_000;
const MISS_BYTES: u64 = 8_192;
/// 260 MB.
const MIX_OBJECTS: u64 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_with_failed_requests_does_not_count() {
        let good = "  2 threads\n  1234 requests in 3.00s, 5MB read\nRequests/sec:    411.33\n";
        let read = Load::read(good).unwrap();
        assert_eq!((read.requests, read.per_second), (1234, 411));
        let bad = format!("{good}  Non-2xx or 3xx responses: 7\n");
        assert!(
            Load::read(&bad)
                .unwrap_err()
                .to_string()
                .contains("responses: 7")
        );
        assert!(Load::read("").is_err());
    }
}
