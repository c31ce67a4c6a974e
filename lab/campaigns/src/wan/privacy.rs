//! Section `privacy`: what some user's own content is never used for.
//!
//! A matrix of requests and responses. Each case sends content that nothing makes smaller, then
//! content that differs in a few bytes from it: at the same URL, and at another URL of the origin.
//! If either is sent with a dictionary, it takes a few kB instead of all its bytes.
//!
//! Limit: in the cases with private content, in both directions, no dictionary is used: the bytes
//! on the socket, the access logs and the metrics of both boxes say so. Public content in the same
//! matrix shows that a use would be seen.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use hashcache_testkit::Client;

use super::Progress;
use super::boxes::{Pair, Settings, Side};
use super::made;
use super::site::{Served, Site};
use super::tls::TlsSite;
use crate::campaign::Campaign;

/// One case of the matrix.
struct Case {
    name: &'static str,
    field: Option<(&'static str, &'static str)>,
    cache_control: &'static str,
    /// Whether a dictionary is used for the next version, and for another URL.
    is_used: bool,
}

#[rustfmt::skip]
const CASES: [Case; 7] = [
    Case { name: "public", field: None, cache_control: "public, max-age=0", is_used: true },
    Case { name: "Authorization", field: Some(CREDENTIALS), cache_control: "max-age=0", is_used: false },
    Case { name: "Authorization, public", field: Some(CREDENTIALS), cache_control: "public, max-age=0", is_used: false },
    Case { name: "Cookie, nothing stored", field: Some(COOKIE), cache_control: "no-store", is_used: false },
    Case { name: "private", field: None, cache_control: "private, max-age=0", is_used: false },
    Case { name: "private, Cookie", field: Some(COOKIE), cache_control: "private, max-age=0", is_used: false },
    Case { name: "no-store", field: None, cache_control: "no-store", is_used: false },
];

const CREDENTIALS: (&str, &str) = ("Authorization", "Basic eDp5");
const COOKIE: (&str, &str) = ("Cookie", "session=1");

/// Plays the section.
pub async fn run(campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    progress.expect(CASES.len() as u64 + 2);
    let tls = TlsSite::start(campaign.folder()).await?;
    let mut settings = Settings::new("privacy");
    settings.upstream_ca = Some(tls.certificate.clone());
    let bench = Bench {
        pair: Pair::start(campaign, &settings).await?,
        site: Site::start().await?,
        other: Site::start().await?,
        tls,
    };
    for (case, number) in CASES.iter().zip(1..) {
        let outcome = bench.case(case, number).await;
        campaign
            .report
            .outcome(format!("dictionary, {}", case.name), outcome);
        progress.step();
    }
    let outcome = bench.users().await;
    campaign
        .report
        .outcome("dictionary, from a user to all", outcome);
    progress.step();
    for (name, is_tls) in [("port", false), ("scheme", true)] {
        let outcome = bench.other_origin(is_tls).await;
        campaign
            .report
            .outcome(format!("dictionary, another {name}"), outcome);
    }
    let mut pair = bench.pair;
    campaign
        .report
        .outcome("both boxes still run", pair.check().map(|()| String::new()));
    Ok(())
}

struct Bench {
    pair: Pair,
    site: Site,
    other: Site,
    tls: TlsSite,
}

impl Bench {
    /// Fetches `url`, whose content is `content`; whether a dictionary was used.
    async fn uses(
        &self,
        url: &str,
        field: Option<(&str, &str)>,
        content: &[u8],
    ) -> anyhow::Result<bool> {
        let (before, seen_before) = (self.pair.used().await?.down, self.seen()?);
        let mut client = Client::connect(self.pair.address()?).await?;
        let answer = client.get(url, field.as_slice()).await?;
        ensure!(answer.status == 200, "{url}: status {}", answer.status);
        ensure!(answer.body == content, "{url}: wrong bytes");
        let bytes = self.pair.used().await?.down - before;
        let seen = self.seen()? > seen_before;
        let is_small = bytes < content.len() as u64 / 2;
        if is_small != seen {
            bail!("{url}: {bytes} bytes, but the logs and metrics say {seen}");
        }
        Ok(is_small)
    }

    /// How often logs and metrics of both boxes name a dictionary.
    fn seen(&self) -> anyhow::Result<u64> {
        let mut seen = 0;
        for side in Side::BOTH {
            for kind in ["offered", "named"] {
                let coding = format!("link_coding={kind}");
                seen += self.pair.log(side).matches(&coding).count() as u64;
                let used = format!("kind=\"{kind}\",result=\"used\"");
                let name = "hashcache_link_dictionary_total";
                seen += self.pair.metric(side, name, &used)?;
            }
        }
        Ok(seen)
    }

    async fn case(&self, case: &Case, number: u64) -> anyhow::Result<String> {
        let serve = |path: &str, content: &[u8]| {
            let served = Served::with(&Arc::new(content.to_vec()), case.cache_control);
            self.site.set(path, served);
            self.site.url(path)
        };
        let path = format!("/{number}/app.js");
        let versions = versions(number);
        let url = serve(&path, &versions[0]);
        let first = self.uses(&url, case.field, &versions[0]).await?;
        ensure!(!first, "a dictionary for the first version");
        serve(&path, &versions[1]);
        let next = self.uses(&url, case.field, &versions[1]).await?;
        ensure!(next == case.is_used, "the next version: {next}");
        let url = serve(&format!("/{number}/app.2.js"), &versions[2]);
        let moved = self.uses(&url, case.field, &versions[2]).await?;
        ensure!(moved == case.is_used, "at another URL: {moved}");
        Ok(if case.is_used {
            "used at the same URL and at another one, as it should be"
        } else {
            "not used at the same URL, nor at another one"
        }
        .to_owned())
    }

    /// What one user got is no dictionary of what all may have.
    async fn users(&self) -> anyhow::Result<String> {
        let fields = [
            (Some(CREDENTIALS), "max-age=600"),
            (Some(COOKIE), "private, max-age=600"),
            (None, "private, max-age=600"),
            (None, "no-store"),
        ];
        for ((field, cache_control), number) in fields.into_iter().zip(100..) {
            let versions = versions(number);
            let own = Served::with(&Arc::new(versions[0].clone()), cache_control);
            self.site.set(&format!("/{number}/own.js"), own);
            let public = Served::fresh(&Arc::new(versions[1].clone()));
            self.site.set(&format!("/{number}/public.js"), public);
            let own = self.site.url(&format!("/{number}/own.js"));
            self.uses(&own, field, &versions[0]).await?;
            let public = self.site.url(&format!("/{number}/public.js"));
            let used = self.uses(&public, None, &versions[1]).await?;
            ensure!(!used, "{cache_control} {field:?}: it was used");
        }
        Ok("not used in 4 cases".to_owned())
    }

    /// The same content at another port, or at another scheme.
    async fn other_origin(&self, is_tls: bool) -> anyhow::Result<String> {
        let versions = versions(if is_tls { 201 } else { 200 });
        let path = format!("/{is_tls}.js");
        let first = Served::fresh(&Arc::new(versions[0].clone()));
        self.site.set(&path, first);
        let used = self.uses(&self.site.url(&path), None, &versions[0]).await?;
        ensure!(!used, "a dictionary for the first version");
        let second = Arc::new(versions[1].clone());
        let url = if is_tls {
            self.tls.set(Arc::clone(&second));
            self.tls.url(&path)
        } else {
            self.other.set(&path, Served::fresh(&second));
            self.other.url(&path)
        };
        let used = self.uses(&url, None, &second).await;
        ensure!(!used.context(url)?, "it was used");
        // The same origin uses it, so the rule was what kept it from being used.
        let third = Served::fresh(&Arc::new(versions[2].clone()));
        self.site.set(&format!("/again{path}"), third);
        let again = self.site.url(&format!("/again{path}"));
        let used = self.uses(&again, None, &versions[2]).await?;
        ensure!(used, "the same origin does not use it either");
        Ok("not used there, and used at the same origin".to_owned())
    }
}

/// Content that nothing makes smaller, and versions that differ in a few bytes.
fn versions(seed: u64) -> [Vec<u8>; 3] {
    let first = made::noise(seed, CONTENT_BYTES);
    let edited = |mark: &[u8]| {
        let (begin, end) = first.split_at(CONTENT_BYTES / 2);
        [begin, mark, end].concat()
    };
    [first.clone(), edited(b"<2>"), edited(b"<3>")]
}

const CONTENT_BYTES: usize = 200_000;
