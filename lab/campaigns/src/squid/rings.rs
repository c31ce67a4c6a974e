//! Loops: a request that would go round between Squid and our proxy ends.

use anyhow::{Context as _, ensure};

use super::Bench;
use super::ours::{self, Feature, Ours, peer};
use super::process::{Settings, Squid};
use super::site::{UNKNOWN, ask};

/// Plays both cases.
pub async fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let name = "a loop back to our proxy ends";
    if bench.wants(name) {
        let outcome = own_via(bench).await;
        bench.campaign.report.outcome(name, outcome);
    }
    let name = "a ring of Squid and our proxy ends";
    if bench.wants(name) {
        match bench.abilities.lack(Feature::Peers) {
            Some(lack) => bench.campaign.report.skip(name, lack),
            None => {
                let outcome = ring(bench).await;
                bench.campaign.report.outcome(name, outcome);
            }
        }
    }
    Ok(())
}

/// Our proxy refuses what has passed through it and through a Squid after it.
async fn own_via(bench: &Bench<'_>) -> anyhow::Result<String> {
    let site = &bench.site;
    let ours = Ours::start(bench.campaign, "loop", site.address(), "")?;
    let url = site.url("loop of ours", UNKNOWN);
    site.fetch(ours.address(), &url, &[]).await?;
    let request = site.requests(&url).remove(0);
    let via = request.field("Via").context("no Via")?;
    let mut settings = Settings::new("loop");
    settings.peers = format!(
        "cache_peer {} parent {} 0 no-query\nnever_direct allow all",
        ours::address(),
        ours.address().port()
    );
    let squid = Squid::start(&bench.installed, bench.campaign.folder(), &settings)?;
    let again = site.url("loop of ours", "again");
    let refused = ask(squid.http, &again, &[("Via", via)]).await?;
    ensure!(
        refused.status == 508,
        "status {} with Via: {via}",
        refused.status
    );
    site.expect_requests(&again, 0)?;
    Ok(format!("508 through Squid to Via: {via}"))
}

/// Each is the other's parent: the client has an answer, and nobody asks more than twice.
async fn ring(bench: &Bench<'_>) -> anyhow::Result<String> {
    let site = &bench.site;
    let port = ours::free_port()?;
    let mut settings = Settings::new("ring");
    settings.peers = format!(
        "cache_peer {} parent {port} 0 no-query\nnever_direct allow all",
        ours::address()
    );
    let folder = bench.campaign.folder();
    let squid = Squid::start(&bench.installed, folder, &settings)?;
    let table = peer(folder, &squid, "parent", Feature::Peers, None)?;
    let ours = Ours::start_at(bench.campaign, "ring", port, site.address(), &table)?;
    let mut seen = vec![];
    for (name, proxy) in [("ours", ours.address()), ("Squid", squid.http)] {
        let url = site.url("ring", name);
        let status = ask(proxy, &url, &[]).await?.status;
        ensure!(
            matches!(status, 200 | 403 | 502 | 508),
            "status {status} from {name}"
        );
        let asked = site.requests(&url).len();
        ensure!(asked <= 1, "the origin was asked {asked} times");
        for log in [&squid.log, &ours.log] {
            let lines = log.count(&url)?;
            ensure!(
                lines <= 2,
                "{lines} requests at one proxy for one of a client"
            );
        }
        seen.push(format!("{status} from {name}"));
    }
    Ok(seen.join(", "))
}
