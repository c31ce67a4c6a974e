//! `cargo campaign cpu --before FILE`: processor time of this build and of an earlier one.
//!
//! Both builds run the same loads in turn: hits in memory, hits on disk, misses, and large
//! downloads from disk over HTTP/1.1 and HTTP/2. A round runs both, and the order changes from
//! round to round; the figure is the median of the rounds' ratios.
//!
//! Limit: no load takes more than [`PER_MILLE_MAX`] thousandths of what it took before.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use hashcache_testkit::ContentOrigin;
use serde_json::json;

use super::load::{self, Load};
use super::{Args, cpu_ns, micros};
use crate::campaign::Campaign;
use crate::median::median;
use crate::proxy_process::{ProxyCommand, ProxyProcess};
use crate::report::Report;

/// Measures all loads with both builds.
pub(super) fn run(
    args: &Args,
    before: &Path,
    campaign: &mut Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<()> {
    let directory = campaign.folder().to_owned();
    let builds = [
        Build::start(args, before, &directory.join("before"), origin)?,
        Build::start(args, campaign.binary()?, &directory.join("after"), origin)?,
    ];
    let word = args.only.as_deref().unwrap_or_default();
    let kinds = Kind::ALL.into_iter();
    let kinds: Vec<Kind> = kinds.filter(|kind| kind.name().contains(word)).collect();
    ensure!(!kinds.is_empty(), "no load has \"{word}\" in its name");
    for kind in kinds {
        measure(args, &builds, kind, &directory, &mut campaign.report)?;
    }
    Ok(())
}

fn measure(
    args: &Args,
    builds: &[Build; 2],
    kind: Kind,
    directory: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    for build in builds {
        build.round(args, kind, directory, 0)?;
    }
    let mut rounds = vec![];
    for round in 1..=args.rounds {
        let mut cpu = [0; 2];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for index in order {
            cpu[index] = builds[index].round(args, kind, directory, round)?;
        }
        rounds.push(cpu);
    }
    let [before, after] = [0, 1].map(|index| median(&rounds, |cpu| cpu[index]));
    let ratio_of = |cpu: &[u64; 2]| cpu[1] * 1000 / cpu[0].max(1);
    let ratio = median(&rounds, ratio_of);
    let ratios = || rounds.iter().map(ratio_of);
    let verdict = (ratio <= PER_MILLE_MAX).into();
    let shown = |per_mille: u64| format!("{}.{:03}", per_mille / 1000, per_mille % 1000);
    report.figures(
        kind.name(),
        verdict,
        format!(
            "{} of before ({} to {}), bar {}; {} µs before, {} µs now",
            shown(ratio),
            shown(ratios().min().unwrap_or_default()),
            shown(ratios().max().unwrap_or_default()),
            shown(PER_MILLE_MAX),
            micros(before),
            micros(after),
        ),
        json!({ "per_mille": ratio, "rounds_cpu_ns": rounds }),
    );
    Ok(())
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Requests(load::Kind),
    Download(Http),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Http {
    One,
    Two,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Requests(load::Kind::OneObject(1 << 10)),
        Self::Requests(load::Kind::OneObject(100 << 10)),
        Self::Requests(load::Kind::Disk),
        Self::Requests(load::Kind::Miss),
        Self::Download(Http::One),
        Self::Download(Http::Two),
    ];

    fn name(self) -> String {
        match self {
            Self::Requests(kind) => kind.name(),
            Self::Download(Http::One) => "1 MB of a download from disk, HTTP/1.1".into(),
            Self::Download(Http::Two) => "1 MB of a download from disk, HTTP/2".into(),
        }
    }
}

/// The proxies of one build: one with memory for everything, one with little of it.
#[derive(Debug)]
struct Build {
    roomy: ProxyProcess,
    tight: ProxyProcess,
}

impl Build {
    fn start(
        args: &Args,
        binary: &Path,
        directory: &Path,
        origin: &ContentOrigin,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir(directory)?;
        let start = |name: &str, memory: &str| {
            let file = |ending: &str| -> PathBuf { directory.join(format!("{name}.{ending}")) };
            ProxyCommand::new(binary, &file("img"))
                .flag("cache-size", "2GiB")
                .flag("memory", memory)
                .flag("accelerate", format!("http://{}", origin.address()))
                .flag("listen", "127.0.0.1:0")
                .flag("listen", "h2c://127.0.0.1:0")
                .flag("workers", 1)
                .flag("access-log", file("log").display())
                .processors(&args.server_processors)
                .start()
        };
        Ok(Self {
            roomy: start("roomy", "512MiB")?,
            tight: start("tight", "64MiB")?,
        })
    }

    /// Processor time of a request, or of 1 MB of a download, in nanoseconds.
    fn round(
        &self,
        args: &Args,
        kind: Kind,
        directory: &Path,
        round: usize,
    ) -> anyhow::Result<u64> {
        let proxy = match kind {
            Kind::Requests(load::Kind::Disk) | Kind::Download(_) => &self.tight,
            Kind::Requests(_) => &self.roomy,
        };
        let before = cpu_ns(&[proxy.pid()])?;
        let requests = match kind {
            Kind::Download(http) => download(args, proxy, http)?,
            Kind::Requests(kind) => {
                let script = directory.join("load.lua");
                std::fs::write(&script, kind.script(round))?;
                Load::run(args, proxy.address(), &script)?.requests
            }
        };
        let taken = cpu_ns(&[proxy.pid()])?.saturating_sub(before);
        Ok(taken / requests.max(1))
    }
}

/// Megabytes that curl received.
///
/// Each download has a connection of its own: curl 7.88 fails when it uses one without TLS again
/// for HTTP/2, with any server.
fn download(args: &Args, proxy: &ProxyProcess, http: Http) -> anyhow::Result<u64> {
    let (address, flag) = match http {
        Http::One => (proxy.addresses()[0], "--http1.1"),
        Http::Two => (proxy.addresses()[1], "--http2-prior-knowledge"),
    };
    for object in 0..DOWNLOADS {
        let output = Command::new("taskset")
            .args(["-c", &args.load_processors, "curl", "-sSf", flag])
            .args(["-o", "/dev/null", "-w", "%{size_download}"])
            .arg(format!(
                "http://{address}/download/{object}?size={DOWNLOAD_BYTES}"
            ))
            .output()
            .context("cannot run curl")?;
        let received = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && received.parse() == Ok(DOWNLOAD_BYTES),
            "curl received {received} bytes: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(DOWNLOADS * DOWNLOAD_BYTES / 1_000_000)
}

const PER_MILLE_MAX: u64 = 1020;
const DOWNLOADS: u64 = 10;
const DOWNLOAD_BYTES: u64 = 50_000_000;
