//! Our proxy is the child: Squid is its parent or sibling.
//!
//! Each case of the table is a Squid that knows objects which our proxy does not, and a proxy of
//! ours with one `[[peer]]`. `script` shows the same of Squid without our proxy.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::sleep;

use super::Bench;
use super::digest::Digest;
use super::log::Line;
use super::ours::{Feature, Ours, peer};
use super::process::{Settings, Squid};
use super::site::{KNOWN, UNKNOWN, VARIES};

/// How our proxy uses Squid.
#[derive(Debug)]
struct Case {
    name: &'static str,
    kind: &'static str,
    needs: Feature,
    credentials: Option<(&'static str, &'static str)>,
    /// In our log, for what Squid knows.
    known: &'static str,
    /// The same for what nobody knows.
    unknown: &'static str,
}

impl Case {
    /// Names the objects of an attempt.
    fn objects(&self, attempt: usize) -> String {
        match attempt {
            0 => format!("ours {}", self.name),
            again => format!("ours {} again {again}", self.name),
        }
    }

    /// Our proxy went on to the origin: the head of Squid's response was late, or Squid is not
    /// asked because it did not reply before. With a digest there is time enough.
    fn missed_head(&self, line: &Line) -> bool {
        self.known == "SIBLING_HIT" && line.hierarchy == "HIER_DIRECT"
    }
}

/// Squid's reply to a query was late. Our proxy waits for it for 50 to 100 ms, which a busy machine
/// may need, so this says nothing about the two programs.
fn timed_out(line: &Line) -> bool {
    line.hierarchy.starts_with("TIMEOUT_")
}

const CASES: [Case; 5] = [
    Case {
        name: "parent",
        kind: "parent",
        needs: Feature::Peers,
        credentials: None,
        known: "FIRSTUP_PARENT",
        unknown: "FIRSTUP_PARENT",
    },
    Case {
        name: "parent with Basic",
        kind: "parent",
        needs: Feature::Peers,
        credentials: Some(CREDENTIALS),
        known: "FIRSTUP_PARENT",
        unknown: "FIRSTUP_PARENT",
    },
    Case {
        name: "sibling by ICP",
        kind: "sibling",
        needs: Feature::Icp,
        credentials: None,
        known: "SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
    Case {
        name: "sibling by HTCP",
        kind: "sibling",
        needs: Feature::Htcp,
        credentials: None,
        known: "SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
    Case {
        name: "sibling by digest",
        kind: "sibling",
        needs: Feature::Digest,
        credentials: None,
        known: "CD_SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
];

/// Plays the cases in which our proxy asks Squid.
pub async fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for case in &CASES {
        let name = format!("our proxy as child, {}", case.name);
        if !bench.wants(&name) {
            continue;
        }
        if let Some(lack) = bench.abilities.lack(case.needs) {
            bench.campaign.report.skip(name, lack);
            continue;
        }
        let id = format!("ours {}", case.name).replace(' ', "");
        let mut settings = Settings::new(&id);
        settings.credentials = case.credentials;
        let folder = bench.campaign.folder();
        let mut squid = Squid::start(&bench.installed, folder, &settings)?;
        let table = peer(folder, &squid, case.kind, case.needs, case.credentials)?;
        let mut ours = Ours::start(bench.campaign, &id, bench.site.address(), &table)?;
        let outcome = known(bench, case, &squid, &ours).await;
        bench
            .campaign
            .report
            .outcome(format!("{name}: known"), outcome);
        let outcome = unknown(bench, case, &ours).await;
        bench
            .campaign
            .report
            .outcome(format!("{name}: unknown"), outcome);
        if case.kind == "parent" {
            let outcome = tunnel_of_ours(bench, case, &squid, &ours).await;
            bench
                .campaign
                .report
                .outcome(format!("{name}: CONNECT"), outcome);
        } else {
            let outcome = lied_to(bench, case, &squid, &ours).await;
            bench
                .campaign
                .report
                .outcome(format!("{name}: a lie"), outcome);
        }
        let outcome = squid.check().and_then(|()| ours.check());
        let outcome = outcome.map(|()| String::new());
        bench
            .campaign
            .report
            .outcome(format!("{name}: both still run"), outcome);
    }
    Ok(())
}

async fn known(
    bench: &Bench<'_>,
    case: &Case,
    squid: &Squid,
    ours: &Ours,
) -> anyhow::Result<String> {
    let urls = bench.site.urls(&case.objects(0), KNOWN);
    let fields = case.credentials.map(|_| RIGHT);
    for url in &urls {
        bench.site.fetch(squid.http, url, fields.as_slice()).await?;
    }
    if case.needs == Feature::Digest {
        // Our proxy fetches it when it first needs it; a digest from before knows none of these.
        Digest::with(squid.http, &urls).await?;
    }
    for (number, url) in urls.iter().enumerate() {
        let mut url = url.clone();
        for attempt in 1.. {
            bench.site.fetch(ours.address(), &url, &[]).await?;
            let [line] = ours.log.about(&url).await?;
            let is_late = timed_out(&line) || case.missed_head(&line);
            if !is_late || attempt > REPEATS {
                line.expect(200, "TCP_MISS", case.known)?;
                break;
            }
            sleep(REPEAT_PAUSE).await;
            url = bench
                .site
                .urls(&case.objects(attempt), KNOWN)
                .remove(number);
            bench
                .site
                .fetch(squid.http, &url, fields.as_slice())
                .await?;
        }
        bench.site.expect_requests(&url, 1)?;
        let [_, line] = squid.log.about(&url).await?;
        line.expect(200, HITS, "HIER_NONE")?;
    }
    Ok(format!("{} objects, {}", urls.len(), case.known))
}

async fn unknown(bench: &Bench<'_>, case: &Case, ours: &Ours) -> anyhow::Result<String> {
    for attempt in 0.. {
        let url = bench.site.url(&case.objects(attempt), UNKNOWN);
        bench.site.fetch(ours.address(), &url, &[]).await?;
        bench.site.expect_requests(&url, 1)?;
        let request = bench.site.requests(&url).remove(0);
        let told = request.field("Proxy-Authorization");
        ensure!(told.is_none(), "the origin learns {told:?}");
        let [line] = ours.log.about(&url).await?;
        if !timed_out(&line) || attempt == REPEATS {
            line.expect(200, "TCP_MISS", case.unknown)?;
            break;
        }
        sleep(REPEAT_PAUSE).await;
    }
    Ok(case.unknown.to_owned())
}

async fn tunnel_of_ours(
    bench: &Bench<'_>,
    case: &Case,
    squid: &Squid,
    ours: &Ours,
) -> anyhow::Result<String> {
    let url = bench.site.url(&format!("ours {}", case.name), "tunnelled");
    let answer = bench
        .site
        .fetch_in_tunnel(ours.address(), &url, &[])
        .await?;
    ensure!(answer.status == 200, "status {}", answer.status);
    let authority = bench.site.address().to_string();
    let [line] = ours.log.about(&authority).await?;
    line.expect(200, "TCP_TUNNEL", case.known)?;
    let [line] = squid.log.about(&authority).await?;
    line.expect(200, "TCP_TUNNEL", "HIER_DIRECT")?;
    Ok(format!("TCP_TUNNEL, {}", case.known))
}

/// Squid says that it has a URL, and has another variant of it: our client sees nothing of that.
async fn lied_to(
    bench: &Bench<'_>,
    case: &Case,
    squid: &Squid,
    ours: &Ours,
) -> anyhow::Result<String> {
    let mut attempt = 0;
    let url = loop {
        let url = bench.site.url(&case.objects(attempt), VARIES);
        bench
            .site
            .fetch(squid.http, &url, &[("Accept-Language", "en")])
            .await?;
        bench
            .site
            .fetch(ours.address(), &url, &[("Accept-Language", "de")])
            .await?;
        bench.site.expect_requests(&url, 2)?;
        let [line] = ours.log.about(&url).await?;
        if !timed_out(&line) || attempt == REPEATS {
            line.expect(200, "TCP_MISS", "HIER_DIRECT")?;
            break url;
        }
        attempt += 1;
        sleep(REPEAT_PAUSE).await;
    };
    let answers = squid
        .log
        .about::<2>(&url)
        .await
        .ok()
        .map(|[_, line]| line.status);
    Ok(format!("Squid's answer: {answers:?}, then HIER_DIRECT"))
}

/// How often an object is asked for under another URL when Squid's reply is late.
const REPEATS: usize = 10;
/// After three late replies in a row, a probe has to find Squid well again.
const REPEAT_PAUSE: Duration = Duration::from_millis(500);
/// Codes of Squid for what it has.
pub const HITS: &str = "TCP_HIT|TCP_MEM_HIT";
pub const CREDENTIALS: (&str, &str) = ("child", "secret");
/// The same in Base64.
pub const RIGHT: (&str, &str) = ("Proxy-Authorization", "Basic Y2hpbGQ6c2VjcmV0");
