//! What `wrk`, and over TLS `h2load`, ask for in a round, and what they say of it. Before rounds
//! over TLS curl gets one body, which `h2load` does not show.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::Args;

/// Requests of a kind, by 32 connections without pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One object of this size, in memory.
    OneObject(u64),
    /// The same over TLS 1.3 with [`CIPHER`].
    OneObjectOverTls(Protocol, u64),
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

/// What is spoken over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// One request at a time on each connection.
    Http2,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

impl Kind {
    /// Its name in a report.
    pub fn name(self) -> String {
        match self {
            Self::OneObject(size) => format!("hit in memory, {size} B"),
            Self::OneObjectOverTls(protocol, size) => {
                format!("hit in memory, {size} B, TLS and {}", protocol.name())
            }
            Self::ManyObjects => format!("hit in memory, {MANY_OBJECTS} objects"),
            Self::Disk => format!("hit on disk, {DISK_BYTES} B"),
            Self::Miss => format!("miss, {MISS_BYTES} B"),
            Self::Mix => "page mix, 59 % again".to_owned(),
        }
    }

    /// A script for wrk that makes the requests of a round.
    pub fn script(self, round: usize) -> String {
        let path = match self {
            Self::OneObject(size) | Self::OneObjectOverTls(_, size) => {
                format!("'/hit?size={size}'")
            }
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

    /// Has h2load ask for one object of `size` over TLS.
    pub fn run_over_tls(
        args: &Args,
        address: SocketAddr,
        protocol: Protocol,
        size: u64,
    ) -> anyhow::Result<Self> {
        let output = Command::new("taskset")
            .args(["-c", &args.load_processors, "h2load", "-t1", "-c32", "-m1"])
            .args((protocol == Protocol::Http1).then_some("--h1"))
            .arg(format!("--tls13-ciphers={CIPHER}"))
            .arg(format!("-D{}", args.seconds))
            .arg(format!("https://{address}/hit?size={size}"))
            .output()
            .context("cannot run h2load")?;
        let said = String::from_utf8_lossy(&output.stdout);
        Self::read_over_tls(&said).with_context(|| said.into_owned())
    }

    /// An error if any request failed or the cipher is another one.
    fn read_over_tls(said: &str) -> anyhow::Result<Self> {
        let line = |start| said.lines().find_map(|line| line.strip_prefix(start));
        if line("Cipher: ") != Some(CIPHER) {
            bail!("the cipher is not {CIPHER}");
        }
        let counts = line("requests: ").context("h2load does not say how many requests")?;
        let count = |word: &str| {
            let of_word = counts.split(", ").find_map(|it| it.strip_suffix(word));
            of_word.and_then(|number| number.trim().parse::<u64>().ok())
        };
        let statuses = line("status codes: ").context("h2load does not say which status codes")?;
        let (Some(requests), Some(failed)) = (count("done"), count("failed")) else {
            bail!("h2load does not say how many requests succeeded");
        };
        // h2load counts the status code when the head of a response has come, and the request as
        // done when all of the response has. So status codes can be more at the end of the run.
        if failed > 0 || !statuses.ends_with(" 2xx, 0 3xx, 0 4xx, 0 5xx") {
            bail!("requests failed: {counts}; status codes: {statuses}");
        }
        let rate = line("finished in ").and_then(|it| it.split(", ").nth(1));
        let per_second = rate
            .and_then(|rate| rate.split('.').next()?.parse().ok())
            .context("h2load does not say how many a second")?;
        Ok(Self {
            requests,
            per_second,
        })
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

/// What curl gets for one request over TLS.
pub fn body_over_tls(
    address: SocketAddr,
    protocol: Protocol,
    target: &str,
) -> anyhow::Result<Vec<u8>> {
    let flag = match protocol {
        Protocol::Http1 => "--http1.1",
        Protocol::Http2 => "--http2",
    };
    let output = Command::new("curl")
        .args(["-sSfk", "--max-time", "30", flag])
        .arg(format!("https://{address}{target}"))
        .output()
        .context("cannot run curl")?;
    ensure!(
        output.status.success(),
        "curl: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// The cipher of all connections with TLS.
const CIPHER: &str = "TLS_AES_128_GCM_SHA256";
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

    #[test]
    fn a_round_over_tls_counts_if_all_succeeded_with_the_one_cipher() {
        let good = "TLS Protocol: TLSv1.3\nCipher: TLS_AES_128_GCM_SHA256\n\nfinished in 1.00s, \
                    6712.00 req/s, 52.97MB/s\nrequests: 6712 total, 6744 started, 6712 done, 6712 \
                    succeeded, 0 failed, 0 errored, 0 timeout\nstatus codes: 6712 2xx, 0 3xx, 0 \
                    4xx, 0 5xx\n";
        let read = Load::read_over_tls(good).unwrap();
        assert_eq!((read.requests, read.per_second), (6712, 6712));
        let cut_off = good.replace(": 6712 2xx", ": 6713 2xx");
        assert_eq!(Load::read_over_tls(&cut_off).unwrap().requests, 6712);
        for (from, to) in [
            ("_128_", "_256_"),
            (" 0 failed", " 1 failed"),
            ("0 5xx", "1 5xx"),
            ("finished", "ended"),
        ] {
            assert!(
                Load::read_over_tls(&good.replace(from, to)).is_err(),
                "{to}"
            );
        }
    }
}
