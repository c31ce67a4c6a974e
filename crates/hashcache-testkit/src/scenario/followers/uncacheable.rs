//! A slow page that must not be shared: a hundred clients must get it as fast as a single client.
//!
//! A proxy that makes the clients wait for each other takes a hundred times as long. A proxy that
//! makes all clients wait for the first takes twice as long, and so does a proxy that sends fewer
//! than all requests at once.

use std::time::Duration;

use super::Play;
use super::crowd::Crowd;
use crate::content;
use crate::scenario::Verdict;
use crate::{Origin, Script};

/// A single client, against which the crowd is measured, has requested the page before.
pub async fn known(play: &Play) -> Verdict {
    let name = format!("{} clients, an uncacheable page of 1 s", play.clients);
    compare(play, name, ["/page", "/page"], Order::OneFirst, 1.2).await
}

/// No client has requested this page before, but a client has requested another page that could not
/// be shared either: the proxy knows this of the origin and lets no client wait for its pages.
pub async fn elsewhere(play: &Play) -> Verdict {
    let name = format!(
        "{} clients, such a page of an origin asked for another before",
        play.clients
    );
    compare(play, name, ["/page", "/other-page"], Order::OneFirst, 1.2).await
}

/// No client has sent a request to this origin before: a request that waits for the first response,
/// and then learns that the response cannot be shared, may wait for one response, but no more.
pub async fn unknown(play: &Play) -> Verdict {
    let name = format!(
        "{} clients, such a page of an origin not met before",
        play.clients
    );
    compare(play, name, ["/page", "/other-page"], Order::AllFirst, 2.2).await
}

/// Request order.
#[derive(Clone, Copy)]
enum Order {
    OneFirst,
    AllFirst,
}

/// One client requests the first target and all clients the second; the second may take at most
/// `most` times as long.
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
