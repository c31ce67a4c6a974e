//! `cargo campaign h2spec`: every case of h2spec against the real proxy, in strict mode.
//!
//! Starts an origin and a proxy in front of it with a certificate of its own, on ports that the
//! system chooses. h2spec connects through TLS and, with prior knowledge, in clear text.
//!
//! Invariant: a run passes only if h2spec reports that as many cases passed as exist, with none
//! skipped; in clear text, all but the case that is a request in HTTP/1.1 there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Origin, Script};

use crate::campaign::Campaign;
use crate::certificate::Certificate;

/// Arguments of `h2spec`.
#[derive(clap::Args)]
pub struct Args {
    /// The program h2spec (github.com/summerwind/h2spec)
    #[arg(long, value_name = "PATH")]
    h2spec: PathBuf,
}

/// Plays all cases on both kinds of connection.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    let origin = Origin::start(|_| {
        let fields = [
            ("Content-Type", "text/plain"),
            ("Cache-Control", "max-age=60"),
        ];
        Script::response(200, &fields, "a page of some bytes").read_body()
    });
    let origin = origin.await.context("cannot start an origin")?;
    let certificate = Certificate::make(campaign.folder())?;
    let command = campaign.proxy()?;
    let mut proxy = command
        .flag("cache-size", "256MiB")
        .flag("memory", "32MiB")
        .flag("accelerate", format!("http://{}", origin.address()))
        .flag("listen", "https://127.0.0.1:0")
        .flag("listen", "h2c://127.0.0.1:0")
        .flag("tls-cert", certificate.file.display())
        .flag("tls-key", certificate.key_file.display())
        .start()?;
    let addresses = proxy.addresses().to_vec();
    for (way, address) in WAYS.iter().zip(addresses) {
        campaign
            .report
            .outcome(way.name, play(&args.h2spec, address, way));
    }
    campaign.check_running("", &mut proxy)
}

/// A kind of connection.
struct Way {
    name: &'static str,
    flags: &'static [&'static str],
    /// A case that cannot pass on it.
    without: Option<&'static str>,
}

const WAYS: [Way; 2] = [
    Way {
        name: "TLS",
        flags: &["-t", "-k"],
        without: None,
    },
    Way {
        name: "prior knowledge",
        flags: &[],
        // In clear text, bytes that are not an HTTP/2 preface are a request in HTTP/1.1 and are
        // answered as one.
        without: Some("Sends invalid connection preface"),
    },
];

fn play(h2spec: &Path, address: SocketAddr, way: &Way) -> anyhow::Result<String> {
    let output = Command::new(h2spec)
        .args(["-h", "127.0.0.1", "-S", "-p"])
        .arg(address.port().to_string())
        .args(way.flags)
        .output()
        .with_context(|| format!("cannot run {}", h2spec.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let sum = said.lines().rev().find_map(Sum::read);
    let sum = sum.with_context(|| format!("h2spec told no sum: {said}"))?;
    let failures = said.split_once("Failures:").map_or("", |(_, rest)| rest);
    let is_known = |name: &str| failures.contains(name) && failures.matches('×').count() == 1;
    let left_out = u32::from(way.without.is_some_and(is_known));
    ensure!(sum.is_whole_but(left_out), "{sum:?}\n{failures}");
    Ok(format!("{} of {} cases", sum.passed, sum.cases))
}

/// The last line of h2spec.
#[derive(Debug, PartialEq, Eq)]
struct Sum {
    cases: u32,
    passed: u32,
    skipped: u32,
    failed: u32,
}

impl Sum {
    /// Reads `146 tests, 146 passed, 0 skipped, 0 failed`.
    fn read(line: &str) -> Option<Self> {
        let mut parts = line.trim().split(", ");
        let mut next = |word: &str| {
            let (number, what) = parts.next()?.split_once(' ')?;
            number.parse().ok().filter(|_| what == word)
        };
        Some(Self {
            cases: next("tests")?,
            passed: next("passed")?,
            skipped: next("skipped")?,
            failed: next("failed")?,
        })
    }

    fn is_whole_but(&self, left_out: u32) -> bool {
        self.cases >= CASES && self.passed + left_out == self.cases
    }
}

/// Cases of version 2.6 in strict mode; a run with fewer cases is incomplete.
const CASES: u32 = 146;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sum_without_gaps_passes() {
        let read = |line| Sum::read(line).map(|sum| sum.is_whole_but(0));
        assert_eq!(
            read("146 tests, 146 passed, 0 skipped, 0 failed"),
            Some(true)
        );
        assert_eq!(
            read("146 tests, 145 passed, 0 skipped, 1 failed"),
            Some(false)
        );
        assert_eq!(
            read("146 tests, 145 passed, 1 skipped, 0 failed"),
            Some(false)
        );
        assert_eq!(
            read("12 tests, 12 passed, 0 skipped, 0 failed"),
            Some(false)
        );
        assert_eq!(read("Finished in 1.2 seconds"), None);
    }
}
