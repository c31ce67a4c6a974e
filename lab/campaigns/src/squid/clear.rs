//! Each tells the other by HTCP to forget a URL (CLR): obeyed only where the settings say so.
//!
//! Squid sends CLR after a POST; our proxy does for the method PURGE.

use anyhow::{bail, ensure};

use super::Bench;
use super::ours::{self, Feature, Ours, udp_peer};
use super::process::{Settings, Squid};
use super::site::{KNOWN, Site, ask, send};

/// Plays all cases.
pub async fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let name = "CLR";
    if !bench.wants(name) {
        return Ok(());
    }
    if let Some(lack) = bench.abilities.lack(Feature::Htcp) {
        bench.campaign.report.skip(name, lack);
        return Ok(());
    }
    for (what, is_obeyed) in [("ignored", false), ("obeyed", true)] {
        let outcome = of_squid(bench, is_obeyed).await;
        let row = format!("{name} of Squid is {what}");
        bench.campaign.report.outcome(row, outcome);
        let outcome = of_ours(bench, is_obeyed).await;
        let row = format!("{name} of our proxy is {what}");
        bench.campaign.report.outcome(row, outcome);
    }
    Ok(())
}

/// A POST through Squid: our proxy forgets the URL, or not.
async fn of_squid(bench: &Bench<'_>, is_obeyed: bool) -> anyhow::Result<String> {
    let (case, more) = if is_obeyed {
        ("clr of squid obeyed", "clear = true\n")
    } else {
        ("clr of squid ignored", "")
    };
    let (mut squid, mut ours) = pair(bench, case, "", more)?;
    let (site, url) = (&bench.site, bench.site.url(case, KNOWN));
    site.fetch(ours.address(), &url, &[]).await?;
    let posted = send("POST", squid.http, &url, &[("Content-Length", "0")]).await?;
    ensure!(posted.status == 200, "status {} to POST", posted.status);
    let result = if is_obeyed { "gone" } else { "refused" };
    wait_for(&ours, &format!("clears_total{{result=\"{result}\"}}")).await?;
    site.fetch(ours.address(), &url, &[]).await?;
    // The first request, the POST, and the last one.
    site.expect_requests(&url, if is_obeyed { 3 } else { 2 })?;
    squid.check().and_then(|()| ours.check())?;
    Ok(format!("counted as {result}"))
}

/// A PURGE at our proxy: Squid forgets the URL, or not.
async fn of_ours(bench: &Bench<'_>, is_obeyed: bool) -> anyhow::Result<String> {
    let (case, squids) = if is_obeyed {
        ("clr of ours obeyed", "htcp_clr_access allow all")
    } else {
        // Squid's default; it does not answer then.
        ("clr of ours ignored", "htcp_clr_access deny all")
    };
    let (mut squid, mut ours) = pair(bench, case, squids, "send_clear = true\n")?;
    let (site, url) = (&bench.site, bench.site.url(case, KNOWN));
    site.fetch(squid.http, &url, &[]).await?;
    // Our proxy knows Squid's address once Squid has answered.
    wait_for(&ours, "replies_total{reply=\"miss\"}").await?;
    let purged = send("PURGE", ours.address(), &url, &[]).await?;
    ensure!(purged.status == 200, "status {} to PURGE", purged.status);
    let result = if is_obeyed { "gone" } else { "no_reply" };
    wait_for(&ours, &format!("clears_sent_total{{result=\"{result}\"}}")).await?;
    still_answers(site, &squid, &url, is_obeyed).await?;
    squid.check().and_then(|()| ours.check())?;
    Ok(format!("counted as {result}"))
}

async fn still_answers(
    site: &Site,
    squid: &Squid,
    url: &str,
    is_cleared: bool,
) -> anyhow::Result<()> {
    let stored = ask(squid.http, url, &[("Cache-Control", "only-if-cached")]).await?;
    let wanted = if is_cleared { 504 } else { 200 };
    ensure!(stored.status == wanted, "Squid says {}", stored.status);
    site.expect_requests(url, 1)
}

/// A Squid and a proxy of ours that are siblings by HTCP, with more lines in Squid's configuration
/// and in our table about Squid.
fn pair(bench: &Bench<'_>, case: &str, squids: &str, more: &str) -> anyhow::Result<(Squid, Ours)> {
    let name = case.replace(' ', "");
    let (port, udp) = (ours::free_port()?, ours::free_udp_port()?);
    let mut settings = Settings::new(&name);
    settings.peers = format!(
        "cache_peer {} sibling {port} {udp} name=ours htcp\n{squids}",
        ours::address()
    );
    let squid = Squid::start(&bench.installed, bench.campaign.folder(), &settings)?;
    let table = udp_peer(squid.places, "sibling", Feature::Htcp, udp) + more;
    let ours = Ours::start_at(bench.campaign, &name, port, bench.site.address(), &table)?;
    Ok((squid, ours))
}

/// Waits until a counter of HTCP is not zero.
async fn wait_for(ours: &Ours, counter: &str) -> anyhow::Result<()> {
    let counter = format!("hashcache_htcp_{counter} ");
    for _ in 0..LOOKS {
        let page = ours.process.admin_page("/metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix(&counter));
        if value.is_some_and(|value| value.trim() != "0") {
            return Ok(());
        }
        tokio::time::sleep(LOOK_TIME).await;
    }
    bail!("{counter}stays 0")
}

const LOOKS: u32 = 500;
const LOOK_TIME: std::time::Duration = std::time::Duration::from_millis(20);
