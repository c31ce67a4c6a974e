//! A page with a late first byte, from an origin that the proxy does not know yet: clients that
//! request the page in the meantime wait for the single fetch.
//!
//! On a line with a delay of 600 ms this is the usual case for every page.

use std::time::Duration;

use super::Play;
use super::crowd::Crowd;
use crate::content;
use crate::scenario::Verdict;
use crate::{Origin, Script};

/// All clients send requests at once; the origin gets one request, and no client waits for a second
/// response.
pub(super) async fn play(play: &Play) -> Verdict {
    let mut verdict = Verdict::new(format!(
        "{} clients, a page of 1.5 s to the first byte, of an origin not met before",
        play.clients
    ));
    let page = content::body_for(1, "late", 0, 1000);
    let fields = [("Cache-Control", "max-age=3600")];
    let answer = Script::response(200, &fields, page.bytes());
    let origin = Origin::start(move |_| super::after(PAGE_TIME, answer.clone())).await;
    let origin = match origin {
        Ok(origin) => origin,
        Err(error) => {
            verdict.fault(format!("no origin: {error}"));
            return verdict;
        }
    };
    let crowd = Crowd::new(play.proxy, origin.url("/late"), play.clients, vec![page]);
    let all = crowd.ask().await;
    let requests = origin.request_count();
    verdict.seen = format!("{requests} requests at the origin; {}", all.describe());
    all.expect_all_whole(&mut verdict);
    verdict.expect(requests == 1, || "more than one fetch".to_owned());
    verdict
}

/// More than a second: a line with a delay of 600 ms, plus a name lookup and a connection setup.
const PAGE_TIME: Duration = Duration::from_millis(1500);
