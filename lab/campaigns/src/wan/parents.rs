//! Section `parents`: a parent that is no HashCache.
//!
//! Debian's Squid as the parent of a child with a key: plain HTTP goes through it as through any
//! parent, and `hashcache link status` says why nothing is coded. With a pin for it, there is no
//! link and no fallback in clear.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::Client;
use tokio::time::sleep;

use super::boxes::{Side, child_of, pin};
use super::made;
use super::site::{Served, Site};
use super::{Args, Progress};
use crate::campaign::Campaign;
use crate::proxy_process::ProxyProcess;
use crate::squid::process::{Installed, Settings, Squid};

/// Plays the section.
pub async fn run(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    progress.expect(2);
    let installed = Installed::find(args.squid.as_deref())?;
    campaign.report.tell("Squid", &installed.version);
    let folder = campaign.folder().join("parents");
    fs::create_dir(&folder)?;
    let mut squid = Squid::start(&installed, &folder, &Settings::new("wanparent"))?;
    let site = Site::start().await?;
    let own_pin = pin(campaign.binary()?, &folder, Side::Child)?;
    let in_plain = format!(
        "direct = \"never\"\n[[peer]]\nname = \"squid\"\nurl = \"http://{}\"\n",
        squid.http
    );
    let outcome = plain(campaign, &folder, &in_plain, &site, &squid).await;
    campaign
        .report
        .outcome("Squid as the parent, in plain HTTP", outcome);
    progress.step();
    let pinned = child_of(squid.http, &own_pin);
    let outcome = pinned_squid(campaign, &folder, &pinned, &site).await;
    campaign
        .report
        .outcome("Squid as a parent with a pin", outcome);
    campaign
        .report
        .outcome("Squid still runs", squid.check().map(|()| String::new()));
    Ok(())
}

fn start(campaign: &Campaign, folder: &Path, config: &str) -> anyhow::Result<ProxyProcess> {
    let file = folder.join("child.toml");
    fs::write(&file, config)?;
    campaign
        .proxy()?
        .flag("config", file.display())
        .flag("link-dir", folder.join(Side::Child.name()).display())
        .flag("memory", "64MiB")
        .start()
}

/// What `hashcache link status` says of a box.
fn status(campaign: &Campaign, admin: Option<SocketAddr>) -> anyhow::Result<String> {
    let admin = admin.context("no admin listener")?.to_string();
    let said = Command::new(campaign.binary()?)
        .args(["link", "status", "--config", "/dev/null", "--admin", &admin])
        .output()
        .context("cannot run `link status`")?;
    let code = said.status.code();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    ensure!(code == Some(1), "`link status` ended with {code:?}: {text}");
    Ok(text)
}

async fn plain(
    campaign: &Campaign,
    folder: &Path,
    config: &str,
    site: &Site,
    squid: &Squid,
) -> anyhow::Result<String> {
    let child = start(campaign, folder, config)?;
    let mut content = made::text(1, 300_000);
    let mut client = Client::connect(child.address()).await?;
    for version in 0..3 {
        site.set("/page", Served::stale(&Arc::new(content.clone())));
        let answer = client.get(&site.url("/page"), &[]).await?;
        ensure!(answer.status == 200, "status {}", answer.status);
        ensure!(answer.body == content, "version {version}: wrong bytes");
        let field = answer.field("Hashcache-Link");
        ensure!(field.is_none(), "the client sees {field:?}");
        content = made::edited(version, &content);
    }
    let [first, ..] = squid.log.about::<3>(&site.url("/page")).await?;
    let requests = site.origin.requests();
    let told = requests
        .iter()
        .find_map(|request| request.field("Hashcache-Link"));
    ensure!(told.is_none(), "the origin sees {told:?}");
    let said = status(campaign, child.admin())?;
    ensure!(
        ["squid", "plain", "pin"]
            .iter()
            .all(|word| said.contains(word)),
        "3 versions came over {}, but `link status` does not say why nothing is coded: {said}",
        first.hierarchy
    );
    Ok(format!(
        "3 versions over {}; status: {}",
        first.hierarchy,
        one_line(&said)
    ))
}

async fn pinned_squid(
    campaign: &Campaign,
    folder: &Path,
    config: &str,
    site: &Site,
) -> anyhow::Result<String> {
    let child = start(campaign, folder, config)?;
    site.set("/pinned", Served::fresh(&Arc::new(b"content".to_vec())));
    let before = site.origin.request_count();
    let mut client = Client::connect(child.address()).await?;
    let answer = client.get(&site.url("/pinned"), &[]).await?;
    ensure!(answer.status >= 500, "status {}", answer.status);
    ensure!(
        site.origin.request_count() == before,
        "it went out in clear"
    );
    for _ in 0..STATUS_LOOKS {
        let said = status(campaign, child.admin())?;
        if said.contains("down: ") {
            let advice = said.contains("`link_listen`");
            ensure!(advice, "no advice: {said}");
            return Ok(format!("refused; status: {}", one_line(&said)));
        }
        sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!(
        "the status says nothing: {}",
        status(campaign, child.admin())?
    )
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

const STATUS_LOOKS: u32 = 100;
