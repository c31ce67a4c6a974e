//! A slow page that must not be shared: a hundred clients get it as fast as one.
//!
//! A proxy that makes them wait for each other takes a hundred times as long; one that makes all
//! wait for the first takes twice.

use std::time::Duration;

use super::Play;
use super::crowd::Crowd;
use crate::content;
use crate::scenario::Verdict;
use crate::{Origin, Script};

/// The page has been asked for before, by the one client that the crowd is measured against.
pub async fn known(play: &Play) -> Verdict {
    let name = format!("{} clients, an uncacheable page of 1 s", play.clients);
    compare(play, Verdict::new(name), "/page", 1.2).await
}

/// Nobody has asked for this page of the origin: who waits for the first to learn that it cannot be
/// shared may wait for one answer, no more.
pub async fn unknown(play: &Play) -> Verdict {
    let name = format!(
        "{} clients, such a page that nobody asked for before",
        play.clients
    );
    compare(play, Verdict::new(name), "/other-page", 2.2).await
}

/// One client asks for `/page`, then all for `crowds`, in at most `most` times the time.
async fn compare(play: &Play, mut verdict: Verdict, crowds: &str, most: f64) -> Verdict {
    let page = content::body_for(1, "page", 0, 1000);
    let fields = [("Cache-Control", "no-store")];
    let answer = Script::response(200, &fields, page.bytes());
    let origin = Origin::start(move |_| super::after(PAGE_TIME, answer.clone())).await;
    let origin = match origin {
        Ok(origin) => origin,
        Err(error) => {
            verdict.fault(format!("no origin: {error}"));
            return verdict;
        }
    };
    let alone = Crowd::new(play.proxy, origin.url("/page"), 1, vec![page])
        .ask()
        .await;
    alone.expect_all_whole(&mut verdict);
    let all = Crowd::new(play.proxy, origin.url(crowds), play.clients, vec![page])
        .ask()
        .await;
    all.expect_all_whole(&mut verdict);
    let ratio = all.took.as_secs_f64() / alone.took.as_secs_f64();
    verdict.seen = format!(
        "one {:.2} s; {}: {ratio:.2} times, {most} allowed; {} connections to the origin",
        alone.took.as_secs_f64(),
        all.describe(),
        origin.connections()
    );
    verdict.expect(ratio <= most, || "they wait for each other".to_owned());
    verdict.expect(origin.request_count() == 1 + play.clients, || {
        format!("{} requests at the origin", origin.request_count())
    });
    verdict
}

const PAGE_TIME: Duration = Duration::from_secs(1);
