//! Squid is the child: our proxy is its parent or sibling.
//!
//! Each case of the table is a Squid with one `cache_peer`, and a proxy of ours that knows objects
//! which Squid does not. Where an answer by UDP must be a lie, a script answers instead of our
//! proxy; the HTTP requests that follow are always answered by our proxy.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::Bench;
use super::datagrams::{Answers, Protocol};
use super::digest::{self, Digest};
use super::log::Line;
use super::ours::{self, Feature, Ours, udp_peer};
use super::process::{Places, Settings, Squid, address};
use super::site::{CLAIMED, KNOWN, UNKNOWN};

/// How Squid uses our proxy.
#[derive(Debug)]
struct Case {
    name: &'static str,
    /// Further options of `cache_peer`.
    options: &'static str,
    /// What our proxy is to Squid.
    kind: Kind,
    /// What answers Squid's queries.
    queries: Queries,
    /// Codes in Squid's log for what our proxy knows and for what nobody knows.
    known: &'static str,
    unknown: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Parent,
    Sibling,
}

#[derive(Clone, Copy, Debug)]
enum Queries {
    /// There are none.
    None,
    /// The campaign answers for our proxy.
    Scripted(Protocol),
    /// Our proxy, which needs this.
    Ours(Feature),
}

const CASES: [Case; 11] = [
    Case {
        name: "parent",
        options: "no-query",
        kind: Kind::Parent,
        queries: Queries::None,
        known: "FIRSTUP_PARENT",
        unknown: "FIRSTUP_PARENT",
    },
    Case {
        name: "parent with Basic",
        options: "no-query login=squid:secret",
        kind: Kind::Parent,
        queries: Queries::None,
        known: "FIRSTUP_PARENT",
        unknown: "FIRSTUP_PARENT",
    },
    Case {
        name: "parent by ICP",
        options: "",
        kind: Kind::Parent,
        queries: Queries::Scripted(Protocol::Icp),
        known: "PARENT_HIT",
        unknown: "FIRST_PARENT_MISS",
    },
    Case {
        name: "sibling by ICP",
        options: "",
        kind: Kind::Sibling,
        queries: Queries::Scripted(Protocol::Icp),
        known: "SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
    Case {
        name: "parent by HTCP",
        options: "htcp",
        kind: Kind::Parent,
        queries: Queries::Scripted(Protocol::Htcp),
        known: "PARENT_HIT",
        unknown: "FIRST_PARENT_MISS",
    },
    Case {
        name: "sibling by HTCP",
        options: "htcp",
        kind: Kind::Sibling,
        queries: Queries::Scripted(Protocol::Htcp),
        known: "SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
    Case {
        name: "parent by our ICP",
        options: "",
        kind: Kind::Parent,
        queries: Queries::Ours(Feature::Icp),
        known: "PARENT_HIT",
        unknown: "FIRST_PARENT_MISS",
    },
    Case {
        name: "sibling by our ICP",
        options: "",
        kind: Kind::Sibling,
        queries: Queries::Ours(Feature::Icp),
        known: "SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
    Case {
        name: "parent by our HTCP",
        options: "htcp",
        kind: Kind::Parent,
        queries: Queries::Ours(Feature::Htcp),
        known: "PARENT_HIT",
        unknown: "FIRST_PARENT_MISS",
    },
    Case {
        name: "sibling by our HTCP",
        options: "htcp",
        kind: Kind::Sibling,
        queries: Queries::Ours(Feature::Htcp),
        known: "SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
    Case {
        name: "sibling by digest",
        options: "no-query",
        kind: Kind::Sibling,
        queries: Queries::Ours(Feature::Digest),
        known: "CD_SIBLING_HIT",
        unknown: "HIER_DIRECT",
    },
];

/// Plays all cases.
pub async fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for case in &CASES {
        let name = format!("Squid as child, {}", case.name);
        if !bench.wants(&name) {
            continue;
        }
        if let Queries::Ours(feature) = case.queries
            && let Some(lack) = bench.abilities.lack(feature)
        {
            bench.campaign.report.skip(name, lack);
            continue;
        }
        let mut pair = Pair::start(bench, case).await?;
        let outcome = pair.known(bench, case).await;
        bench
            .campaign
            .report
            .outcome(format!("{name}: known"), outcome);
        let outcome = pair.unknown(bench, case).await;
        bench
            .campaign
            .report
            .outcome(format!("{name}: unknown"), outcome);
        if let Queries::Scripted(_) = case.queries {
            let outcome = pair.claimed(bench, case).await;
            bench
                .campaign
                .report
                .outcome(format!("{name}: claimed"), outcome);
        }
        if let (Kind::Parent, Queries::None) = (case.kind, case.queries) {
            let outcome = pair.tunnel(bench, case).await;
            bench
                .campaign
                .report
                .outcome(format!("{name}: CONNECT"), outcome);
        }
        let outcome = pair.squid.check().and_then(|()| pair.ours.check());
        let outcome = outcome.map(|()| String::new());
        bench
            .campaign
            .report
            .outcome(format!("{name}: both still run"), outcome);
    }
    Ok(())
}

/// Squid and our proxy.
struct Pair {
    squid: Squid,
    ours: Ours,
    /// Ends when dropped.
    _answers: Option<Answers>,
}

impl Pair {
    async fn start(bench: &Bench<'_>, case: &Case) -> anyhow::Result<Self> {
        let name = format!("child {}", case.name).replace(' ', "");
        let port = ours::free_port()?;
        let start =
            |peers: &str| Ours::start_at(bench.campaign, &name, port, bench.site.address(), peers);
        let places = Places::free()?;
        let own_udp = ours::free_udp_port()?;
        // Before Squid, which looks at its start whether a peer listens.
        let ours = match case.queries {
            Queries::Ours(feature) => start(&udp_peer(places, "sibling", feature, own_udp))?,
            Queries::None | Queries::Scripted(_) => start("")?,
        };
        let answers = match case.queries {
            Queries::Scripted(protocol) => {
                let has: &[&str] = &[KNOWN, CLAIMED];
                Some(Answers::start(ours::address().into(), protocol, has).await?)
            }
            Queries::None | Queries::Ours(_) => None,
        };
        let udp = match (&answers, case.queries) {
            (Some(answers), _) => answers.address.port(),
            (None, Queries::Ours(Feature::Icp | Feature::Htcp)) => own_udp,
            (None, _) => 0,
        };
        let kind = match case.kind {
            Kind::Parent => "parent",
            Kind::Sibling => "sibling",
        };
        let mut settings = Settings::new(&name);
        settings.places = Some(places);
        settings.peers = format!(
            "cache_peer {} {kind} {port} {udp} name=ours {}",
            ours::address(),
            case.options
        );
        if case.kind == Kind::Parent {
            settings.peers += "\nnever_direct allow all";
        }
        if !matches!(case.queries, Queries::None) {
            // On a kept connection, Squid 5 logs the code of the connection's first request.
            settings.peers += "\nserver_persistent_connections off";
        }
        let folder = bench.campaign.folder();
        let squid = Squid::start(&bench.installed, folder, &settings)?;
        Ok(Self {
            squid,
            ours,
            _answers: answers,
        })
    }

    /// What our proxy knows is fetched from it, and the two logs agree.
    async fn known(&self, bench: &Bench<'_>, case: &Case) -> anyhow::Result<String> {
        let site = &bench.site;
        let urls = site.urls(case.name, KNOWN);
        for url in &urls {
            site.fetch(self.ours.address(), url, &[]).await?;
        }
        if let Queries::Ours(Feature::Digest) = case.queries {
            self.wait_for_digest(bench, &urls).await?;
        }
        for url in &urls {
            site.fetch(self.squid.http, url, &[]).await?;
            site.expect_requests(url, 1)?;
        }
        for url in &urls {
            let [line] = self.squid.log.served(url).await?;
            line.expect(200, "TCP_MISS", case.known)?;
            // Our log has the lines of two threads in any order.
            let lines: [Line; 2] = self.ours.log.about(url).await?;
            let squid = address().to_string();
            let line = lines.iter().find(|line| line.client == squid);
            let line = line.with_context(|| format!("{squid} has not asked: {lines:?}"))?;
            line.expect(200, "TCP_HIT|TCP_MEM_HIT", "HIER_NONE")?;
        }
        Ok(format!("{} objects, {}", urls.len(), case.known))
    }

    /// Squid fetches our digest at its first request after it has seen that we listen, and for
    /// minutes not again: by then these URLs must be in it. It started before us, so the first
    /// request may only make it look.
    async fn wait_for_digest(&self, bench: &Bench<'_>, urls: &[String]) -> anyhow::Result<()> {
        let digest = Digest::with(self.ours.address(), urls).await?;
        let before = format!("http://{}{}", self.ours.address(), digest::PATH);
        for request in 0..REQUESTS {
            let first = bench.site.url(&format!("first {request}"), UNKNOWN);
            bench.site.fetch(self.squid.http, &first, &[]).await?;
            // Lines about our own requests can still be missing.
            if self.ours.log.count(&before)? > digest.requests {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        bail!("Squid does not ask for {before}")
    }

    /// What nobody knows reaches the origin once: through our proxy only if it is a parent.
    async fn unknown(&self, bench: &Bench<'_>, case: &Case) -> anyhow::Result<String> {
        let url = bench.site.url(case.name, UNKNOWN);
        bench.site.fetch(self.squid.http, &url, &[]).await?;
        bench.site.expect_requests(&url, 1)?;
        let [line] = self.squid.log.served(&url).await?;
        line.expect(200, "TCP_MISS", case.unknown)?;
        let request = bench.site.requests(&url).remove(0);
        let via = request
            .head
            .fields_named("Via")
            .collect::<Vec<_>>()
            .join(", ");
        let proxies = via.split(',').count();
        match case.kind {
            Kind::Parent => {
                let [line] = self.ours.log.about(&url).await?;
                line.expect(200, "TCP_MISS", "HIER_DIRECT")?;
                ensure!(proxies == 2, "Via: {via}");
            }
            Kind::Sibling => {
                let [] = self.ours.log.about(&url).await?;
                ensure!(proxies == 1, "Via: {via}");
            }
        }
        // Squid's credentials are for our proxy.
        let told = request.field("Proxy-Authorization");
        ensure!(told.is_none(), "the origin learns {told:?}");
        Ok(format!("{}, Via: {via}", case.unknown))
    }

    /// What a query was answered with and our proxy does not have: a parent fetches it; a sibling
    /// says 504, and Squid goes on to the origin.
    async fn claimed(&self, bench: &Bench<'_>, case: &Case) -> anyhow::Result<String> {
        let url = bench.site.url(case.name, CLAIMED);
        bench.site.fetch(self.squid.http, &url, &[]).await?;
        bench.site.expect_requests(&url, 1)?;
        let [squids] = self.squid.log.about(&url).await?;
        let [ours] = self.ours.log.about(&url).await?;
        match case.kind {
            Kind::Parent => {
                squids.expect(200, "TCP_MISS", case.known)?;
                ours.expect(200, "TCP_MISS", "HIER_DIRECT")?;
            }
            Kind::Sibling => {
                squids.expect(200, "TCP_MISS", "HIER_DIRECT")?;
                ours.expect(504, &ours.code, "HIER_NONE")?;
            }
        }
        Ok(format!(
            "{} from us, then {}",
            ours.status, squids.hierarchy
        ))
    }

    /// A tunnel passes through both.
    async fn tunnel(&self, bench: &Bench<'_>, case: &Case) -> anyhow::Result<String> {
        let url = bench.site.url(case.name, "tunnelled");
        let answer = bench
            .site
            .fetch_in_tunnel(self.squid.http, &url, &[])
            .await?;
        ensure!(answer.status == 200, "status {}", answer.status);
        bench.site.expect_requests(&url, 1)?;
        let authority = bench.site.address().to_string();
        let [line] = self.squid.log.about(&authority).await?;
        line.expect(200, "TCP_TUNNEL", case.known)?;
        let [line] = self.ours.log.about(&authority).await?;
        line.expect(200, "TCP_TUNNEL", "HIER_DIRECT")?;
        Ok(format!("TCP_TUNNEL, {}", case.known))
    }
}

/// How many requests Squid may need until it fetches our digest.
const REQUESTS: u32 = 50;
