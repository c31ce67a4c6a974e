//! Many clients at once request a stored page that has become stale: the origin gets one request,
//! whatever the response is.
//!
//! If each follower then sent a request of its own, a failing origin would get the next crowd of
//! requests just after it has answered the first request with an error. A page that is stale on
//! arrival (`max-age=0`) is the most common case.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::Play;
use super::crowd::Crowd;
use crate::content::{self, Content};
use crate::scenario::Verdict;
use crate::{Origin, RawRequest, Script};

/// The origin's response to the validation.
#[derive(Clone, Copy, Debug)]
pub enum Expiry {
    /// A server error with this status, which may not be stored.
    Failing(u16),
    /// The connection is closed without a response.
    Closing,
    /// 304.
    Unchanged,
    /// A new page, stale on arrival like the old page.
    Changed,
}

impl Expiry {
    /// All variants.
    pub const ALL: [Self; 5] = [
        Self::Failing(503),
        // Cloudflare's status for an origin response that it cannot interpret.
        Self::Failing(520),
        Self::Closing,
        Self::Unchanged,
        Self::Changed,
    ];

    fn answer(self, page: &Content) -> Script {
        match self {
            Self::Failing(status) => {
                Script::response(status, &[("Cache-Control", "no-store")], "sick")
            }
            Self::Closing => Script::new().close(),
            Self::Unchanged => Script::new().head(304, &[STALE, ("ETag", "\"1\"")]),
            Self::Changed => Script::response(200, &[STALE, ("ETag", "\"2\"")], page.bytes()),
        }
    }

    fn has_page(self) -> bool {
        matches!(self, Self::Unchanged | Self::Changed)
    }
}

/// A single client brings the page into the cache; then all clients request it.
pub(super) async fn play(play: &Play, expiry: Expiry) -> Verdict {
    let mut verdict = Verdict::new(format!(
        "{} clients, a stale page, the origin {expiry:?}",
        play.clients
    ));
    let page = content::body_for(1, "page", 0, 1000);
    let first = Script::response(200, &[STALE, ("ETag", "\"1\"")], page.bytes());
    let (was_asked, later) = (AtomicBool::new(false), expiry.answer(&page));
    let answer = move |_: &RawRequest| {
        if was_asked.swap(true, Relaxed) {
            super::after(ANSWER_TIME, later.clone())
        } else {
            first.clone()
        }
    };
    let origin = match Origin::start(answer).await {
        Ok(origin) => origin,
        Err(error) => {
            verdict.fault(format!("no origin: {error}"));
            return verdict;
        }
    };
    let url = origin.url("/page");
    let one = Crowd::new(play.proxy, url.clone(), 1, vec![page]);
    one.ask().await.expect_all_whole(&mut verdict);
    let crowd = Crowd::new(play.proxy, url, play.clients, vec![page]);
    let all = crowd.ask().await;
    // If an idle connection is closed without a response, the request is retried once on a new
    // connection.
    let (most, most_time) = match expiry {
        Expiry::Closing => (2, 4 * ANSWER_TIME),
        _ => (1, 3 * ANSWER_TIME),
    };
    let requests = origin.request_count() - 1;
    verdict.seen = format!("{requests} requests at the origin; {}", all.describe());
    if expiry.has_page() {
        all.expect_all_whole(&mut verdict);
    } else {
        // The client of the forwarded request gets the origin's error, the others get an error page
        // about it.
        verdict.expect(all.outcomes.iter().all(|one| one.status >= 500), || {
            format!("not all got the error: {:?}", all.outcomes)
        });
    }
    verdict.expect(requests <= most, || {
        format!("the origin was asked {requests} times")
    });
    // If the clients queued behind a failing origin, each would wait for every response before its
    // own.
    verdict.expect(all.took < most_time, || {
        "clients waited for several answers".to_owned()
    });
    verdict
}

const STALE: (&str, &str) = ("Cache-Control", "max-age=0, must-revalidate");
/// Long enough for all clients to arrive while other tests run.
const ANSWER_TIME: Duration = Duration::from_millis(1500);
