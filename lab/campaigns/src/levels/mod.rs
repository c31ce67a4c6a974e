//! `cargo campaign levels`: what each level of proxies adds to the time of a response (Harvest,
//! figure 7).
//!
//! Ten clients fetch objects of an origin directly, through one proxy, and through a child and its
//! parent. Each client asks for one object of each kind in turn, so that other load of the machine
//! affects all of them. There are two cases: nobody has the object, so that each level misses; and
//! the proxy beside the origin, the top, has it in memory.
//!
//! Invariant: no object is requested twice, but by the request that stores it at the top; the
//! origin's count of requests shows it.
//!
//! Limit: in both cases, each level adds at most [`ADDED_MAX`] to the median.

mod plot;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{BodyEnd, Client, ContentOptions, ContentOrigin};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::campaign::Campaign;
use crate::durations::{Durations, millis};
use crate::proxy_process::ProxyProcess;
use crate::report::Verdict;
use plot::Curve;

/// Arguments of `levels`.
#[derive(clap::Args)]
pub struct Args {
    /// Requests of each client in each case and through each number of levels
    #[arg(long, default_value_t = 500)]
    requests: usize,
    /// Clients at the same time
    #[arg(long, default_value_t = 10)]
    clients: usize,
    /// Size of each object in bytes
    #[arg(long, default_value_t = 8 << 10)]
    size: u64,
    /// A tenth of the requests
    #[arg(long)]
    short: bool,
    /// Write the distributions of the times as a picture (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Args {
    fn requests(&self) -> usize {
        if self.short {
            (self.requests / 10).max(1)
        } else {
            self.requests
        }
    }
}

/// Measures both cases.
pub async fn run(args: &Args, campaign: &mut Campaign) -> anyhow::Result<()> {
    ensure!(
        args.clients > 0 && args.requests > 0,
        "at least one client and one request are needed"
    );
    let origin = ContentOrigin::start_thread(ContentOptions {
        max_age: 86_400,
        ..ContentOptions::default()
    })?;
    let mut chains = vec![];
    for levels in 0..=LEVELS_MAX {
        chains.push(Chain::start(campaign, origin.address(), levels)?);
    }
    let places: Vec<Place> = chains.iter().map(Chain::place).collect();
    let ask = |case, what, requests| Asked {
        case,
        what,
        requests,
        clients: args.clients,
        size: args.size,
        origin: origin.address(),
    };
    // Connections are opened and code is paged in before anything is measured.
    ask("first", What::Measured, FIRST_REQUESTS)
        .all(&places)
        .await?;
    let mut curves = vec![];
    for case in Case::ALL {
        let requests = args.requests();
        if case == Case::TopHit {
            let stored = ask(case.word(), What::StoredAtTop, requests);
            stored.all(&places).await?;
        }
        let before = origin.counts().requests;
        let times = ask(case.word(), What::Measured, requests)
            .all(&places)
            .await?;
        let asked = origin.counts().requests - before;
        let each = (args.clients * requests) as u64;
        let expected = match case {
            Case::Miss => each * places.len() as u64,
            // Without a proxy, the origin answers.
            Case::TopHit => each,
        };
        campaign.report.check(
            format!("{}: requests to the origin", case.word()),
            asked == expected,
            format!("{asked}, expected {expected}"),
        );
        judge(case, &times, campaign);
        curves.extend(times.into_iter().enumerate().map(|(levels, times)| Curve {
            levels,
            is_hit: case == Case::TopHit,
            times,
        }));
    }
    for chain in &mut chains {
        for (level, process) in chain.proxies.iter_mut().enumerate() {
            campaign.check_running(&format!("level {} of {}", level + 1, chain.levels), process)?;
        }
    }
    if let Some(path) = &args.svg {
        fs::write(path, plot::picture(&curves))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The rows of a case: the times through each number of levels, and what each level adds.
fn judge(case: Case, times: &[Durations], campaign: &mut Campaign) {
    for (levels, times) in times.iter().enumerate() {
        let of = |per_mille| times.quantile(per_mille);
        campaign.report.figures(
            format!("{}, {levels} levels", case.word()),
            Verdict::Told,
            format!(
                "median {} ms, 90 % within {} ms, 99 % within {} ms; {} requests",
                millis(of(500)),
                millis(of(900)),
                millis(of(990)),
                times.count()
            ),
            json!({
                "median_us": micros(of(500)),
                "p90_us": micros(of(900)),
                "p99_us": micros(of(990)),
                "mean_us": micros(times.mean()),
                "requests": times.count(),
            }),
        );
    }
    for (level, pair) in times.windows(2).enumerate() {
        let added =
            |per_mille| micros(pair[1].quantile(per_mille)) - micros(pair[0].quantile(per_mille));
        let shown = |us: i64| format!("{:.2}", us as f64 / 1000.0);
        campaign.report.figures(
            format!("{}, level {} adds", case.word(), level + 1),
            (added(500) <= micros(ADDED_MAX)).into(),
            format!(
                "{} ms to the median, bar {} ms ({} ms to the 90th percentile)",
                shown(added(500)),
                millis(ADDED_MAX),
                shown(added(900))
            ),
            json!({ "median_us": added(500), "p90_us": added(900) }),
        );
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// Where the objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// Only the origin.
    Miss,
    /// The proxy beside the origin, in memory.
    TopHit,
}

impl Case {
    const ALL: [Self; 2] = [Self::Miss, Self::TopHit];

    /// Its name in the report; URLs are made from it too.
    fn word(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::TopHit => "hit at the top",
        }
    }
}

/// Proxies of which each fetches through the next one, and the last one from the origin.
struct Chain {
    levels: usize,
    origin: SocketAddr,
    /// The top first.
    proxies: Vec<ProxyProcess>,
}

/// Where requests of a chain are sent.
#[derive(Clone, Copy, Debug)]
struct Place {
    levels: usize,
    clients: SocketAddr,
    top: SocketAddr,
}

impl Chain {
    fn start(campaign: &Campaign, origin: SocketAddr, levels: usize) -> anyhow::Result<Self> {
        let mut proxies: Vec<ProxyProcess> = vec![];
        for _ in 0..levels {
            let mut command = campaign
                .proxy()?
                .flag("cache-size", "1GiB")
                .flag("memory", "256MiB");
            if let Some(parent) = proxies.last() {
                // A child that went to the origin would be one level less.
                command = command.flag("parent", parent.url()).flag("direct", "never");
            }
            proxies.push(command.start()?);
        }
        Ok(Self {
            levels,
            origin,
            proxies,
        })
    }

    fn place(&self) -> Place {
        let address =
            |proxy: Option<&ProxyProcess>| proxy.map_or(self.origin, ProxyProcess::address);
        Place {
            levels: self.levels,
            clients: address(self.proxies.last()),
            top: address(self.proxies.first()),
        }
    }
}

/// What requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The top stores the objects.
    StoredAtTop,
    /// The time of each one is noted.
    Measured,
}

/// Requests of all clients.
#[derive(Clone, Copy, Debug)]
struct Asked {
    case: &'static str,
    what: What,
    requests: usize,
    clients: usize,
    size: u64,
    origin: SocketAddr,
}

impl Asked {
    /// Sends them all; returns the times through each chain.
    async fn all(self, places: &[Place]) -> anyhow::Result<Vec<Durations>> {
        let mut clients = JoinSet::new();
        for client in 0..self.clients {
            let places = places.to_vec();
            clients.spawn(async move { self.one_client(client, &places).await });
        }
        let mut all = vec![vec![]; places.len()];
        while let Some(times) = clients.join_next().await {
            for (all, times) in all.iter_mut().zip(times.context("a client panicked")??) {
                all.extend(times);
            }
        }
        Ok(all.into_iter().map(Durations::new).collect())
    }

    async fn one_client(
        self,
        client: usize,
        places: &[Place],
    ) -> anyhow::Result<Vec<Vec<Duration>>> {
        let mut connections = vec![];
        for place in places {
            let to = match self.what {
                What::StoredAtTop => place.top,
                What::Measured => place.clients,
            };
            connections.push(Client::connect(to).await?);
        }
        let mut times = vec![vec![]; places.len()];
        for request in 0..self.requests {
            for turn in 0..places.len() {
                // No chain is always the one after the same other.
                let at = (turn + request + client) % places.len();
                let levels = places[at].levels;
                if levels == 0 && self.what == What::StoredAtTop {
                    continue;
                }
                let case = self.case.replace(' ', "-");
                let path = format!("/{case}/{levels}/{client}/{request}?size={}", self.size);
                let target = match levels {
                    0 => path,
                    _ => format!("http://{}{path}", self.origin),
                };
                let begun = Instant::now();
                let asked = tokio::time::timeout(ANSWER_TIME, connections[at].get(&target, &[]));
                let response = asked
                    .await
                    .with_context(|| format!("no answer: {target}"))??;
                times[at].push(begun.elapsed());
                ensure!(
                    response.status == 200
                        && response.end == BodyEnd::Complete
                        && response.body.len() as u64 == self.size,
                    "{target} through {levels} levels: status {}, {} bytes",
                    response.status,
                    response.body.len()
                );
            }
        }
        Ok(times)
    }
}

/// A child and its parent.
const LEVELS_MAX: usize = 2;
const ADDED_MAX: Duration = Duration::from_millis(1);
const FIRST_REQUESTS: usize = 20;
/// Much longer than an answer takes, so that a proxy that hangs does not hang the campaign.
const ANSWER_TIME: Duration = Duration::from_secs(20);
