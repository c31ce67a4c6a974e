//! Purges: a purged response is never served again, and no other response is lost.
//!
//! The origin serves objects in editions, which it can replace. Each object shares a prefix, a
//! label and a cache group with some of the others. Purged objects are requested immediately, while
//! an old edition is in flight, and after the proxy was killed directly after the PURGE response.
//!
//! Invariant: a request sent after the PURGE response gets the edition that is current at that
//! time, or the proxy has validated the response with the origin.

mod site;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use site::{Kind, Site};

use super::Verdict;
use super::never_wrong::Victim;
use crate::client::Client;
use crate::script::Gate;

/// Scenario size.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Objects in each part.
    pub objects: usize,
    /// Kills for each kind of purge.
    pub kills: usize,
}

/// Plays all parts against `victim`, which is killed and restarted with its cache.
///
/// # Errors
/// If the proxy does not start or the origin cannot bind a port.
pub async fn play(victim: &mut dyn Victim, options: &Options) -> Result<Vec<Verdict>, String> {
    let failed = |error: io::Error| error.to_string();
    let mut verdicts = Vec::new();
    let site = Site::start().await.map_err(failed)?;
    let proxy = victim.start()?;
    for kind in Kind::ALL {
        for soft in [false, true] {
            let mut part = Part::new(&site, proxy, kind, soft, options);
            verdicts.push(part.at_once().await);
            verdicts.push(part.on_its_way().await);
        }
    }
    verdicts.push(by_unsafe_method(&site, proxy, options).await);
    victim.kill();
    for kind in Kind::ALL {
        for soft in [false, true] {
            verdicts.push(over_kills(victim, &site, kind, soft, options).await?);
        }
    }
    Ok(verdicts)
}

/// Test for one kind of purge, with separate objects.
struct Part<'a> {
    site: &'a Site,
    proxy: SocketAddr,
    kind: Kind,
    soft: bool,
    objects: usize,
    verdict: Verdict,
}

impl<'a> Part<'a> {
    fn new(site: &'a Site, proxy: SocketAddr, kind: Kind, soft: bool, options: &Options) -> Self {
        Self {
            site,
            proxy,
            kind,
            soft,
            objects: options.objects,
            verdict: Verdict::default(),
        }
    }

    fn begin(&mut self, what: &str) {
        let how = if self.soft { "soft" } else { "hard" };
        self.verdict = Verdict::new(format!("{how} purge by {}, {what}", self.kind.name()));
        self.site.another_shelf();
    }

    fn end(&mut self, outcome: io::Result<()>) -> Verdict {
        if let Err(error) = outcome {
            self.verdict
                .fault(format!("the proxy did not answer: {error}"));
        }
        for complaint in self.site.complaints() {
            self.verdict.fault(complaint);
        }
        std::mem::take(&mut self.verdict)
    }

    /// Stores all objects, replaces the edition and purges: objects that the purge names must then
    /// be of the new edition, all others must be served as stored, without a request to the origin.
    async fn at_once(&mut self) -> Verdict {
        self.begin("at once");
        let outcome = self.try_at_once().await;
        self.end(outcome)
    }

    async fn try_at_once(&mut self) -> io::Result<()> {
        let mut client = Client::connect(self.proxy).await?;
        let site = self.site;
        self.store(&mut client).await?;
        if self.soft {
            self.confirmed(&mut client).await?;
        }
        let before = site.edition();
        site.bring_out();
        self.purge(&mut client).await?;
        let (mut new, mut old) = (0, 0);
        for n in 0..self.objects {
            let asked = site.asked();
            let found = self.edition_of(&mut client, n).await?;
            if site.is_named(self.kind, n) {
                new += 1;
                let right = found == Some(site.edition());
                self.verdict
                    .expect(right, || format!("object {n} is of edition {found:?}"));
            } else {
                old += 1;
                let right = found == Some(before) && site.asked() == asked;
                self.verdict
                    .expect(right, || format!("object {n} went too: edition {found:?}"));
            }
        }
        self.verdict.seen = format!("{new} purged, {old} kept");
        Ok(())
    }

    /// Soft purge without a new edition: each named object is validated once and not sent again.
    async fn confirmed(&mut self, client: &mut Client) -> io::Result<()> {
        let site = self.site;
        self.purge(client).await?;
        let (asked, sent) = (site.asked(), site.sent());
        for _ in 0..2 {
            for n in 0..self.objects {
                self.edition_of(client, n).await?;
            }
        }
        let named = (0..self.objects).filter(|n| site.is_named(self.kind, *n));
        let (named, asked) = (named.count(), site.asked() - asked);
        self.verdict.expect(asked == named, || {
            format!("{asked} questions about {named} objects")
        });
        let sent = site.sent() - sent;
        self.verdict
            .expect(sent == 0, || format!("{sent} objects were sent again"));
        Ok(())
    }

    /// An old edition is in flight at the time of the purge: later requests must get the new
    /// edition, which must stay stored.
    async fn on_its_way(&mut self) -> Verdict {
        self.begin("on its way");
        let outcome = self.try_on_its_way().await;
        self.end(outcome)
    }

    async fn try_on_its_way(&mut self) -> io::Result<()> {
        let site = self.site;
        let mut client = Client::connect(self.proxy).await?;
        let n = site.named(self.kind);
        let (arrived, leave) = (Gate::new(), Gate::new());
        site.hold(&arrived, &leave);
        let (proxy, url) = (self.proxy, site.url(n));
        let first = tokio::spawn(async move {
            let mut client = Client::connect(proxy).await?;
            client.get(&url, &[]).await
        });
        if tokio::time::timeout(PATIENCE, arrived.opened())
            .await
            .is_err()
        {
            self.verdict.fault("the request never came to the origin");
            leave.open();
            return Ok(());
        }
        site.bring_out();
        self.purge(&mut client).await?;
        let meanwhile = self.edition_of(&mut client, n).await?;
        leave.open();
        let first = first.await.map_err(io::Error::other)??;
        self.verdict.expect(first.status == 200, || {
            format!("who had asked before got {}", first.status)
        });
        for _ in 0..3 {
            let found = self.edition_of(&mut client, n).await?;
            let right = found == Some(site.edition()) && found == meanwhile;
            self.verdict
                .expect(right, || format!("the old edition came back: {found:?}"));
        }
        self.verdict.seen = "who asked afterwards got the new edition".to_owned();
        Ok(())
    }

    async fn store(&mut self, client: &mut Client) -> io::Result<()> {
        for n in 0..self.objects {
            let found = self.edition_of(client, n).await?;
            let right = found == Some(self.site.edition());
            self.verdict
                .expect(right, || format!("object {n} came as edition {found:?}"));
        }
        Ok(())
    }

    async fn edition_of(&self, client: &mut Client, n: usize) -> io::Result<Option<u64>> {
        let response = client.get(&self.site.url(n), &[]).await?;
        Ok(self.site.edition_in(n, &response))
    }

    async fn purge(&mut self, client: &mut Client) -> io::Result<()> {
        let status = purge(client, self.site, self.kind, self.soft).await?;
        self.verdict
            .expect(status == 200, || format!("PURGE was answered {status}"));
        Ok(())
    }
}

/// Time limit for each wait; a PURGE without a response by then will never get one.
const PATIENCE: Duration = Duration::from_secs(20);

async fn purge(client: &mut Client, site: &Site, kind: Kind, soft: bool) -> io::Result<u16> {
    let (url, mut fields) = site.purge(kind);
    if soft {
        fields.push(("Soft-Purge", "1".to_owned()));
    }
    let fields: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    client.request("PURGE", &url, &fields).await?;
    let response = tokio::time::timeout(PATIENCE, client.read_response("PURGE"));
    Ok(response.await.map_err(io::Error::other)??.status)
}

/// Tests `Cache-Group-Invalidation` in the response to a POST.
async fn by_unsafe_method(site: &Site, proxy: SocketAddr, options: &Options) -> Verdict {
    let mut part = Part::new(site, proxy, Kind::Group, false, options);
    part.begin("by an unsafe method");
    let outcome = try_unsafe_method(&mut part).await;
    part.end(outcome)
}

async fn try_unsafe_method(part: &mut Part<'_>) -> io::Result<()> {
    let site = part.site;
    let mut client = Client::connect(part.proxy).await?;
    part.store(&mut client).await?;
    let before = site.edition();
    site.bring_out();
    client
        .request("POST", &site.form(), &[("Content-Length", "0")])
        .await?;
    let answer = client.read_response("POST").await?;
    part.verdict.expect(answer.status == 200, || {
        format!("POST was answered {}", answer.status)
    });
    for n in 0..part.objects {
        let found = part.edition_of(&mut client, n).await?;
        let expected = if site.is_named(Kind::Group, n) {
            site.edition()
        } else {
            before
        };
        part.verdict.expect(found == Some(expected), || {
            format!("object {n} is of edition {found:?}, not {expected}")
        });
    }
    part.verdict.seen = format!("{} objects, one group of them went", part.objects);
    Ok(())
}

/// Kills the proxy directly after the PURGE response, restarts it and requests the objects.
async fn over_kills(
    victim: &mut dyn Victim,
    site: &Site,
    kind: Kind,
    soft: bool,
    options: &Options,
) -> Result<Verdict, String> {
    let proxy = victim.start()?;
    let mut part = Part::new(site, proxy, kind, soft, options);
    part.begin("over kills");
    let left = (0..options.objects)
        .filter(|n| !site.is_named(kind, *n))
        .count();
    let mut kept_all = 0;
    for _ in 0..options.kills {
        let mut kept = 0;
        for pause in PAUSES {
            kept = part.over_kill(victim, pause).await?;
            if 2 * kept >= left {
                break;
            }
        }
        // If no object survived the kill, the check for purged objects would prove nothing.
        part.verdict.expect(2 * kept >= left, || {
            format!("{kept} of {left} others survived")
        });
        kept_all += kept;
    }
    victim.kill();
    let mut verdict = part.verdict;
    verdict.seen = format!(
        "{} kills, {kept_all} of {} others survived",
        options.kills,
        left * options.kills
    );
    Ok(verdict)
}

impl Part<'_> {
    /// Stores all objects, waits for `pause`, purges, kills and restarts the proxy and requests the
    /// objects. Returns the number of objects that survived.
    async fn over_kill(
        &mut self,
        victim: &mut dyn Victim,
        pause: Duration,
    ) -> Result<usize, String> {
        let site = self.site;
        site.another_shelf();
        let before = site.edition();
        let stored = async {
            let mut client = Client::connect(self.proxy).await?;
            self.store(&mut client).await?;
            // Until the objects are on disk, so that a restart can find them.
            tokio::time::sleep(pause).await;
            site.bring_out();
            self.purge(&mut client).await
        };
        let outcome: io::Result<()> = stored.await;
        victim.kill();
        if let Err(error) = outcome {
            self.verdict.fault(format!("before the kill: {error}"));
        }
        self.proxy = victim.start()?;
        let mut kept = 0;
        let looked = async {
            let mut client = Client::connect(self.proxy).await?;
            for n in 0..self.objects {
                let found = self.edition_of(&mut client, n).await?;
                kept += usize::from(found == Some(before));
                let is_old = site.is_named(self.kind, n) && found != Some(site.edition());
                self.verdict.expect(!is_old, || {
                    format!("object {n} came back: edition {found:?}")
                });
            }
            Ok::<_, io::Error>(())
        };
        if let Err(error) = looked.await {
            self.verdict.fault(format!("after the kill: {error}"));
        }
        Ok(kept)
    }
}

/// Pauses before a purge that is followed by a kill: the first is twice as long as a put waits for
/// its batch; the longer ones are used if the disk was too slow for that.
const PAUSES: [Duration; 3] = [
    Duration::from_millis(600),
    Duration::from_secs(2),
    Duration::from_secs(6),
];
