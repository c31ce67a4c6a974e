//! A slow page that must not be shared: a hundred clients get it as fast as one.
//!
//! A proxy that makes them wait for each other takes a hundred times as long; one that makes all
//! wait for the first takes twice, and so does one that asks for less than all of them at once.

use std::time::Duration;

use super::Play;
use super::crowd::Crowd;
use crate::content;
use crate::scenario::Verdict;
use crate::{Origin, Script};

/// The page has been asked for before, by the one client that the crowd is measured against.
pub async fn known(play: &Play) -> Verdict {
    let name = format!("{} clients, an uncacheable page of 1 s", play.clients);
    compare(play, name, ["/page", "/page"], Order::OneFirst, 1.2).await
}

/// Nobody has asked for this page, but one client for another that could not be shared either: the
/// origin is known for it, and its pages are not waited for.
pub async fn elsewhere(play: &Play) -> Verdict {
    let name = format!(
        "{} clients, such a page of an origin asked for another before",
        play.clients
    );
    compare(play, name, ["/page", "/other-page"], Order::OneFirst, 1.2).await
}

/// No client has asked the origin before: a request that waits for the first response, and then
/// learns that it cannot be shared, may wait for one response, no more.
pub async fn unknown(play: &Play) -> Verdict {
    let name = format!(
        "{} clients, such a page of an origin not met before",
        play.clients
    );
    compare(play, name, ["/page", "/other-page"], Order::AllFirst, 2.2).await
}

/// Which client asks first.
#[derive(Clone, Copy)]
enum Order {
    OneFirst,
    AllFirst,
}

/// One client asks for the first target and all for the second, in at most `most` times the time.
async fn compare(
    play: &Play,
    name: String,
    [ones, crowds]: [&str; 2],
    order: Order,
    most: f64,
) -> Verdict {
    let mut verdict = Verdict::new(name);
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
    let crowd = |target, clients| Crowd::new(play.proxy, origin.url(target), clients, vec![page]);
    let (one, many) = (crowd(ones, 1), crowd(crowds, play.clients));
    let (alone, all) = match order {
        Order::OneFirst => {
            let alone = one.ask().await;
            (alone, many.ask().await)
        }
        Order::AllFirst => {
            let all = many.ask().await;
            (one.ask().await, all)
        }
    };
    alone.expect_all_whole(&mut verdict);
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
