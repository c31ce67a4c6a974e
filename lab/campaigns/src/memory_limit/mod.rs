//! `cargo campaign memory-limit`: the memory that the proxy needs in addition to `--memory`.
//!
//! A proxy alone in a cgroup serves one very large object, many large ones at once and very many
//! small ones; each load runs twice, first with misses, then with hits. The first run has no limit,
//! and the proxy's memory is sampled every 20 ms. The second run has a hard limit, page cache
//! included, under which the kernel must not kill the proxy. The client checks every byte in both.
//! Between the loads, the hostile clients of module `hostile` connect.
//!
//! Limit: anonymous and shared memory never exceed `--memory` by more than 24 MiB, and `--memory`
//! plus 40 MiB are enough for everything.

mod hostile;
mod sampler;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use hashcache_testkit::{BodyEnd, Client, ContentOptions, ContentOrigin, content};
use serde_json::json;
use tokio::task::JoinSet;

use crate::campaign::Campaign;
use crate::cgroup::Cgroup;
use crate::proxy_process::ProxyProcess;
use crate::report::{Report, show_bytes};
use hostile::Hostile;
pub use hostile::allow_many_files;
pub use sampler::Sampler;

/// Arguments of `memory-limit`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The proxy's `--memory`, MiB
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Size of the very large object, bytes
    #[arg(long, default_value_t = 5 << 30)]
    large: u64,
    /// Downloads of 50 MB at once
    #[arg(long, default_value_t = 64)]
    downloads: u64,
    /// Small objects, sized as on the web
    #[arg(long, default_value_t = 100_000)]
    objects: u64,
    /// Clients that download an object of 100 MB each at 1 KB a second
    #[arg(long, default_value_t = 200)]
    slow: u64,
    /// Idle connections, and then as many that do not finish a head
    #[arg(long, default_value_t = 4000)]
    clients: u64,
    /// Run only the hostile clients: half a minute
    #[arg(long)]
    hostile: bool,
}

/// Runs both parts and reports the peaks.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    allow_many_files()?;
    let origin = ContentOrigin::start_thread(ContentOptions {
        // An object that became stale between the loads would be fetched again.
        max_age: 86_400,
        ..ContentOptions::default()
    })?;
    let allowed = args.memory << 20;
    watched(args, campaign, &origin, allowed).await?;
    if !args.hostile {
        limited(args, campaign, &origin, allowed).await?;
    }
    Ok(())
}

/// Without a limit; samples the memory all the time.
async fn watched(
    args: &Args,
    campaign: &mut Campaign,
    origin: &ContentOrigin,
    allowed: u64,
) -> anyhow::Result<()> {
    // Dropped in this order after an error as well: sampler, proxy, then the empty group.
    let group = Arc::new(Cgroup::memory()?);
    let proxy = start(args, campaign, &group)?;
    let report = &mut campaign.report;
    let mut sampler = Sampler::start(group.clone())?;
    let idle = sampler.take_peak();
    report.tell("after the start", idle.show());
    let mut worst = idle;
    let loads: &[Load] = if args.hostile { &[] } else { &Load::ALL };
    for load in loads {
        let outcome = load.run(args, &proxy, origin).await;
        let peak = sampler.take_peak();
        worst = worst.max(peak);
        report.outcome(
            format!("without limit: {}", load.show(args)),
            outcome.map(|told| format!("{told}; peak {}", peak.show())),
        );
    }
    for clients in Hostile::ALL {
        let outcome = clients.run(args, &proxy).await;
        let peak = sampler.take_peak();
        worst = worst.max(peak);
        report.outcome(
            clients.show(args),
            outcome.map(|told| format!("{told}; peak {}", peak.show())),
        );
    }
    let bar = allowed + PEAK_BESIDE;
    report.figures(
        "anonymous + shared memory at the peak",
        (worst.sum() <= bar).into(),
        format!(
            "{}, bar {} ({} + {})",
            worst.show(),
            mib(bar),
            mib(allowed),
            mib(PEAK_BESIDE)
        ),
        json!({
            "peak": worst.sum(),
            "anonymous": worst.anonymous,
            "shared": worst.shared,
            "bar": bar,
        }),
    );
    end(proxy, "without limit", report)?;
    sampler.stop()
}

/// With a hard limit of the kernel.
async fn limited(
    args: &Args,
    campaign: &mut Campaign,
    origin: &ContentOrigin,
    allowed: u64,
) -> anyhow::Result<()> {
    let group = Cgroup::memory()?;
    let limit = allowed + LIMIT_BESIDE;
    group.limit(limit)?;
    let mut proxy = start(args, campaign, &group)?;
    let report = &mut campaign.report;
    for load in Load::ALL {
        let outcome = load.run(args, &proxy, origin).await;
        let what = format!("within {}: {}", mib(limit), load.show(args));
        report.outcome(what, outcome);
    }
    let killed = group.count("memory.oom_control", "oom_kill ")?;
    let ended = proxy.ended()?;
    let most = group.number("memory.max_usage_in_bytes")?;
    let refused = group.number("memory.failcnt")?;
    let fate = match ended {
        None => "it still runs".to_owned(),
        Some(status) => format!("it ended with {status}: {}", proxy.said()),
    };
    report.figures(
        format!("within {}: no kill", mib(limit)),
        (killed == 0 && ended.is_none()).into(),
        format!(
            "{killed} kills, {fate}; most in use {}, page cache reclaimed {refused} times",
            mib(most)
        ),
        json!({ "oom_kills": killed, "limit": limit, "max_usage": most, "failcnt": refused }),
    );
    end(proxy, "within the limit", report)
}

/// A proxy alone in `group`, with a cache that is large enough for all requested objects.
fn start(args: &Args, campaign: &Campaign, group: &Cgroup) -> anyhow::Result<ProxyProcess> {
    let web = args.objects * WEB_MEAN_BYTES;
    let content = args.large + args.downloads * DOWNLOAD_BYTES + web;
    let command = campaign.proxy()?;
    command
        // The memory of the default access log counts too.
        .without("access-log")
        .flag("cache-size", content + content / 4 + (1 << 30))
        .flag("max-object-size", args.large.max(1 << 30))
        .flag("memory", format!("{}MiB", args.memory))
        .cgroup(group.directory())
        .start()
}

fn end(proxy: ProxyProcess, what: &str, report: &mut Report) -> anyhow::Result<()> {
    let status = proxy.terminate()?;
    let told = format!("asked to stop, it ended with {status}");
    report.check(format!("{what}: a clean end"), status.success(), told);
    Ok(())
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Large,
    LargeAgain,
    Downloads,
    DownloadsAgain,
    Small,
    SmallAgain,
}

impl Load {
    const ALL: [Self; 6] = [
        Self::Large,
        Self::LargeAgain,
        Self::Downloads,
        Self::DownloadsAgain,
        Self::Small,
        Self::SmallAgain,
    ];

    fn show(self, args: &Args) -> String {
        let what = match self {
            Self::Large | Self::LargeAgain => format!("an object of {}", mib(args.large)),
            Self::Downloads | Self::DownloadsAgain => {
                format!("{} downloads of 50 MB", args.downloads)
            }
            Self::Small | Self::SmallAgain => format!("{} small objects", args.objects),
        };
        if self.is_again() {
            format!("{what}, again")
        } else {
            what
        }
    }

    fn is_again(self) -> bool {
        matches!(
            self,
            Self::LargeAgain | Self::DownloadsAgain | Self::SmallAgain
        )
    }

    /// Requests all objects of this load and checks their content.
    async fn run(
        self,
        args: &Args,
        proxy: &ProxyProcess,
        origin: &ContentOrigin,
    ) -> anyhow::Result<String> {
        let before = origin.counts();
        let (clients, targets): (u64, Vec<String>) = match self {
            Self::Large | Self::LargeAgain => (1, vec![format!("/large?size={}", args.large)]),
            Self::Downloads | Self::DownloadsAgain => (
                args.downloads,
                (0..args.downloads)
                    .map(|n| format!("/download/{n}?size={DOWNLOAD_BYTES}"))
                    .collect(),
            ),
            Self::Small | Self::SmallAgain => (
                SMALL_CLIENTS,
                (0..args.objects).map(|n| format!("/small/{n}")).collect(),
            ),
        };
        let bytes = fetch_all(proxy, origin, clients, Arc::new(targets)).await?;
        let sent = origin.counts().body_bytes - before.body_bytes;
        // Otherwise the memory measured was not that of hits. Some objects may be missing: the
        // proxy gives up puts for which there is no memory.
        ensure!(
            !self.is_again() || sent <= bytes / 2,
            "right, but {} of {} came from the origin again",
            show_bytes(sent),
            show_bytes(bytes)
        );
        Ok(format!(
            "{} right, {} of it from the origin",
            show_bytes(bytes),
            show_bytes(sent)
        ))
    }
}

/// Requests all targets with this many clients at once; returns the number of bytes received.
async fn fetch_all(
    proxy: &ProxyProcess,
    origin: &ContentOrigin,
    clients: u64,
    targets: Arc<Vec<String>>,
) -> anyhow::Result<u64> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (targets, next) = (targets.clone(), next.clone());
        let (address, at) = (proxy.address(), origin.address());
        tasks.spawn(async move {
            let mut client = Client::connect(address).await?;
            let mut bytes = 0;
            loop {
                let turn = usize::try_from(next.fetch_add(1, Relaxed))?;
                let Some(target) = targets.get(turn) else {
                    return anyhow::Ok(bytes);
                };
                let url = format!("http://{at}{target}");
                bytes += fetch(&mut client, &url, target)
                    .await
                    .with_context(|| format!("{target}, after {bytes} bytes of others"))?;
            }
        });
    }
    let mut bytes = 0;
    while let Some(done) = tasks.join_next().await {
        bytes += done??;
    }
    Ok(bytes)
}

/// Requests one object and compares it while it is received; returns its size.
pub async fn fetch(client: &mut Client, url: &str, target: &str) -> anyhow::Result<u64> {
    let size = target.split_once("size=").map(|(_, size)| size.parse());
    let size = match size {
        Some(size) => size?,
        None => content::web_size(SEED, target),
    };
    let expected = content::body_for(SEED, target, 0, size);
    let (mut came, mut wrong) = (0_u64, None);
    client.request("GET", url, &[]).await?;
    let response = client.read_response_to("GET", |part| {
        if wrong.is_none() {
            wrong = content::verify(&expected, came, part).err();
        }
        came += part.len() as u64;
    });
    let response = tokio::time::timeout(RESPONSE_TIME, response)
        .await
        .map_err(|_| anyhow!("not complete in {RESPONSE_TIME:?}"))??;
    ensure!(response.status == 200, "status {}", response.status);
    ensure!(wrong.is_none(), "wrong byte at {wrong:?}");
    ensure!(
        response.end == BodyEnd::Complete && came == size,
        "{came} of {size} bytes, {:?}",
        response.end
    );
    ensure!(response.complaints.is_empty(), "{:?}", response.complaints);
    Ok(size)
}

/// A number of bytes in MiB, the unit of the limits.
pub fn mib(bytes: u64) -> String {
    let tenths = (bytes * 10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

const SEED: u64 = 1;
const PEAK_BESIDE: u64 = 24 << 20;
const LIMIT_BESIDE: u64 = 40 << 20;
const DOWNLOAD_BYTES: u64 = 50_000_000;
/// Mean of sizes as on the web, rounded up.
const WEB_MEAN_BYTES: u64 = 10_000;
const SMALL_CLIENTS: u64 = 32;
/// Enough for 5 GiB on a machine that has other load as well.
const RESPONSE_TIME: Duration = Duration::from_secs(10 * 60);
