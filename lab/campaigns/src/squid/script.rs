//! Squid is the parent or sibling of a scripted client.
//!
//! Needs nothing of our proxy. It shows that the Squid of this campaign serves in every way that a
//! child may use it, so that a failure of a case with our proxy is our proxy's.

use anyhow::ensure;

use super::Bench;
use super::datagrams::Protocol;
use super::digest::Digest;
use super::parent::{CREDENTIALS, HITS, RIGHT};
use super::process::{Settings, Squid};
use super::site::{KNOWN, Site, UNKNOWN, VARIES, ask};

/// Plays the scripted client.
pub async fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let name = "Squid as parent of a script";
    if !bench.wants(name) {
        return Ok(());
    }
    let start = |name: &str| {
        Squid::start(
            &bench.installed,
            bench.campaign.folder(),
            &Settings::new(name),
        )
    };
    let squid = start("open")?;
    let mut settings = Settings::new("basic");
    settings.credentials = Some(CREDENTIALS);
    let basic = Squid::start(&bench.installed, bench.campaign.folder(), &settings)?;
    let mut ten = Settings::new("tenbits");
    ten.digest_bits = 10;
    let ten = Squid::start(&bench.installed, bench.campaign.folder(), &ten)?;
    let site = &bench.site;
    let report = &mut bench.campaign.report;
    let mut row = |what: &str, outcome| report.outcome(format!("{name}: {what}"), outcome);
    row("http", http(site, &squid).await);
    row("only-if-cached", only_if_cached(site, &squid).await);
    row("CONNECT", tunnel(site, &squid).await);
    row("Basic", credentials(site, &basic).await);
    for protocol in [Protocol::Icp, Protocol::Htcp] {
        row(
            &format!("{protocol:?}"),
            query(site, &squid, protocol).await,
        );
        let what = format!("{protocol:?} lies about a variant");
        row(&what, lie(site, &squid, protocol).await);
    }
    row("a loop ends", own_via(site, &squid).await);
    row("digest of 5 bits", digest(site, &squid, 5).await);
    row("digest of 10 bits", digest(site, &ten, 10).await);
    for mut squid in [basic, ten] {
        row("Squid still runs", squid.check().map(|()| String::new()));
    }
    row("Squid stops when asked", squid.stop());
    Ok(())
}

async fn http(site: &Site, squid: &Squid) -> anyhow::Result<String> {
    let urls = site.fetch_known("script", squid.http, squid.http).await?;
    for url in &urls {
        let [first, second] = squid.log.about(url).await?;
        first.expect(200, "TCP_MISS", "HIER_DIRECT")?;
        second.expect(200, HITS, "HIER_NONE")?;
    }
    Ok(format!("{} objects in absolute-form", urls.len()))
}

async fn only_if_cached(site: &Site, squid: &Squid) -> anyhow::Result<String> {
    let known = site.url("only-if-cached", KNOWN);
    site.fetch(squid.http, &known, &[]).await?;
    site.fetch(squid.http, &known, &[ONLY_IF_CACHED]).await?;
    let unknown = site.url("only-if-cached", UNKNOWN);
    let refused = ask(squid.http, &unknown, &[ONLY_IF_CACHED]).await?;
    ensure!(
        refused.status == 504,
        "status {} for what it has not",
        refused.status
    );
    site.expect_requests(&known, 1)?;
    site.expect_requests(&unknown, 0)?;
    Ok("200 and 504".to_owned())
}

async fn tunnel(site: &Site, squid: &Squid) -> anyhow::Result<String> {
    let url = site.url("script", "tunnelled");
    let answer = site.fetch_in_tunnel(squid.http, &url, &[]).await?;
    ensure!(answer.status == 200, "status {}", answer.status);
    let [line] = squid.log.about(&site.address().to_string()).await?;
    line.expect(200, "TCP_TUNNEL", "HIER_DIRECT")?;
    Ok("TCP_TUNNEL, HIER_DIRECT".to_owned())
}

async fn credentials(site: &Site, squid: &Squid) -> anyhow::Result<String> {
    let url = site.url("basic", KNOWN);
    for fields in [&[][..], &[WRONG]] {
        let status = ask(squid.http, &url, fields).await?.status;
        ensure!(status == 407, "status {status} with {fields:?}");
        let status = site.fetch_in_tunnel(squid.http, &url, fields).await?.status;
        ensure!(status == 407, "status {status} to CONNECT with {fields:?}");
    }
    site.fetch(squid.http, &url, &[RIGHT]).await?;
    let asked = site.requests(&url);
    ensure!(
        asked.len() == 1,
        "the origin was asked {} times",
        asked.len()
    );
    let told = asked[0].field("Proxy-Authorization");
    ensure!(told.is_none(), "the origin learns {told:?}");
    let status = site
        .fetch_in_tunnel(squid.http, &url, &[RIGHT])
        .await?
        .status;
    ensure!(status == 200, "status {status} to CONNECT");
    Ok("407 without and with wrong ones, then 200".to_owned())
}

async fn query(site: &Site, squid: &Squid, protocol: Protocol) -> anyhow::Result<String> {
    let (known, unknown) = (site.url("query", KNOWN), site.url("query", UNKNOWN));
    site.fetch(squid.http, &known, &[]).await?;
    let cache = udp(squid, protocol);
    ensure!(protocol.ask(cache, &known).await?, "a miss for what it has");
    ensure!(
        !protocol.ask(cache, &unknown).await?,
        "a hit for what it has not"
    );
    Ok("hit and miss".to_owned())
}

/// A query names no language, so the answer ignores `Vary`; the request that follows gets 504.
async fn lie(site: &Site, squid: &Squid, protocol: Protocol) -> anyhow::Result<String> {
    let url = site.url("lie", VARIES);
    site.fetch(squid.http, &url, &[("Accept-Language", "en")])
        .await?;
    let says_hit = protocol.ask(udp(squid, protocol), &url).await?;
    ensure!(
        says_hit,
        "Squid no longer lies: the cases of a lie need another object"
    );
    let other = [("Accept-Language", "de"), ONLY_IF_CACHED];
    let refused = ask(squid.http, &url, &other).await?;
    ensure!(refused.status == 504, "status {}", refused.status);
    Ok("hit, then 504".to_owned())
}

/// Squid refuses what has passed through it.
async fn own_via(site: &Site, squid: &Squid) -> anyhow::Result<String> {
    let url = site.url("loop", UNKNOWN);
    site.fetch(squid.http, &url, &[]).await?;
    let requests = site.requests(&url);
    let via = requests.first().and_then(|request| request.field("Via"));
    let via = via.unwrap_or_default();
    let again = site.url("loop", "again");
    let refused = ask(squid.http, &again, &[("Via", via)]).await?;
    ensure!(
        refused.status == 403,
        "status {} with Via: {via}",
        refused.status
    );
    site.expect_requests(&again, 0)?;
    Ok(format!("403 to Via: {via}"))
}

async fn digest(site: &Site, squid: &Squid, bits: u8) -> anyhow::Result<String> {
    let urls = site
        .fetch_known(&format!("digest-{bits}"), squid.http, squid.http)
        .await?;
    let digest = Digest::with(squid.http, &urls).await?;
    ensure!(digest.bits == bits, "{} bits an object", digest.bits);
    let mut falsely = 0;
    for number in 0..UNKNOWN_URLS {
        let url = site.url(&format!("digest-{bits}"), &number.to_string());
        falsely += u32::from(digest.has(&url)?);
    }
    // By the filter's arithmetic 2 of 40 at 5 bits; 20 would be one with nearly all bits set.
    ensure!(
        falsely < UNKNOWN_URLS / 2,
        "it has {falsely} of {UNKNOWN_URLS} unknown URLs"
    );
    let (count, all) = (digest.count, urls.len());
    Ok(format!(
        "{count} objects, all {all} of ours; {falsely} of {UNKNOWN_URLS} false"
    ))
}

fn udp(squid: &Squid, protocol: Protocol) -> std::net::SocketAddr {
    match protocol {
        Protocol::Icp => squid.places.icp,
        Protocol::Htcp => squid.places.htcp,
    }
}

const ONLY_IF_CACHED: (&str, &str) = ("Cache-Control", "only-if-cached");
/// `child:guessed` in Base64.
const WRONG: (&str, &str) = ("Proxy-Authorization", "Basic Y2hpbGQ6Z3Vlc3NlZA==");
const UNKNOWN_URLS: u32 = 40;
