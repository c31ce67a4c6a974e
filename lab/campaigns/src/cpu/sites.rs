//! `cargo campaign cpu --sites 100`: processor time of a hit in memory behind many sites, compared
//! with one.
//!
//! Two proxies of the same build serve the same number of objects: one has all of them in one site,
//! the other has one in each site. Each round starts both anew, because where the memory of a
//! process lies changes its time by some percent. The figure is the median of the rounds' ratios;
//! on a shared machine, `--rounds 31 --seconds 1` brings it within about 2 %.
//!
//! Limit: many sites take at most [`PER_MILLE_MAX`] thousandths of the time with one.

use std::path::Path;

use anyhow::ensure;
use hashcache_testkit::{Client, ContentOrigin};
use serde_json::json;

use super::load::Load;
use super::{Args, cpu_ns, micros};
use crate::campaign::Campaign;
use crate::median::median;
use crate::proxy_process::ProxyProcess;

/// Measures both proxies.
pub(super) async fn run(
    args: &Args,
    sites: u16,
    campaign: &mut Campaign,
    origin: &ContentOrigin,
) -> anyhow::Result<()> {
    ensure!(sites > 0, "at least one site is needed");
    let mut rounds = vec![];
    for round in 0..args.rounds {
        let folder = campaign.folder().join(format!("round-{round}"));
        std::fs::create_dir(&folder)?;
        let fronts = [
            Front::start(args, (1, sites), campaign, origin, &folder.join("one")).await?,
            Front::start(args, (sites, sites), campaign, origin, &folder.join("many")).await?,
        ];
        for front in &fronts {
            front.round(args)?;
        }
        let asked = origin.counts().requests;
        let mut cpu = [0; 2];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for index in order {
            cpu[index] = fronts[index].round(args)?;
        }
        rounds.push(cpu);
        ensure!(
            origin.counts().requests == asked,
            "some requests were no hits"
        );
        drop(fronts);
        std::fs::remove_dir_all(&folder)?;
    }
    let [one, many] = [0, 1].map(|index| median(&rounds, |cpu| cpu[index]));
    let ratio = median(&rounds, |cpu| cpu[1] * 1000 / cpu[0].max(1));
    let shown = |per_mille: u64| format!("{}.{:03}", per_mille / 1000, per_mille % 1000);
    campaign.report.figures(
        format!("hit in memory behind {sites} sites, to one site"),
        (ratio <= PER_MILLE_MAX).into(),
        format!(
            "{}, bar {}; {} µs with one, {} µs with {sites}",
            shown(ratio),
            shown(PER_MILLE_MAX),
            micros(one),
            micros(many),
        ),
        json!({ "per_mille": ratio, "rounds_cpu_ns": rounds }),
    );
    Ok(())
}

/// A proxy and the load for it.
#[derive(Debug)]
struct Front {
    proxy: ProxyProcess,
    script: std::path::PathBuf,
}

impl Front {
    /// Starts a proxy and has it store all objects, `objects` in `sites`.
    async fn start(
        args: &Args,
        (sites, objects): (u16, u16),
        campaign: &Campaign,
        origin: &ContentOrigin,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir(folder)?;
        let tables: String = (0..sites)
            .map(|n| {
                format!(
                    "[[site]]\nhosts = [\"{}\"]\norigins = [\"http://{}\"]\n",
                    host(n),
                    origin.address()
                )
            })
            .collect();
        let config = folder.join("hashcache.toml");
        std::fs::write(&config, tables)?;
        let proxy = campaign
            .proxy()?
            .flag("config", config.display())
            .flag("cache-size", "1GiB")
            .flag("workers", 1)
            .without("access-log")
            .flag("access-log", folder.join("log").display())
            .flag("log-format", "combined")
            .processors(&args.server_processors)
            .start()?;
        for _ in 0..3 {
            let mut client = Client::connect(proxy.address()).await?;
            for n in 0..objects {
                let fields = [("Host", &*host(n % sites))];
                client.request("GET", &path(n), &fields).await?;
                let response = client.read_response("GET").await?;
                ensure!(response.status == 200, "status {}", response.status);
            }
        }
        let script = folder.join("load.lua");
        std::fs::write(&script, script_for(sites, objects))?;
        Ok(Self { proxy, script })
    }

    /// Processor time of a hit, nanoseconds.
    fn round(&self, args: &Args) -> anyhow::Result<u64> {
        let before = cpu_ns(&[self.proxy.pid()])?;
        let requests = Load::run(args, self.proxy.address(), &self.script)?.requests;
        let taken = cpu_ns(&[self.proxy.pid()])?.saturating_sub(before);
        Ok(taken / requests.max(1))
    }
}

fn host(n: u16) -> String {
    format!("www.site-{n:03}.test")
}

fn path(n: u16) -> String {
    format!("/hit/{n:03}?size=1024")
}

/// Makes requests for all objects in turn.
fn script_for(sites: u16, objects: u16) -> String {
    let requests: String = (0..objects)
        .map(|n| {
            let (path, host) = (path(n), host(n % sites));
            format!("all[{n}] = wrk.format('GET', '{path}', {{ ['Host'] = '{host}' }})\n")
        })
        .collect();
    format!(
        "all = {{}}\ninit = function()\n{requests}end\nn = 0\nrequest = function()\n  \
         n = n + 1\n  return all[n % {objects}]\nend\n"
    )
}

const PER_MILLE_MAX: u64 = 1030;
