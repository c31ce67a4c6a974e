//! Clients that ask at once for a stored page that has become stale: the origin is asked once,
//! whatever it answers.
//!
//! A sick origin gets its next crowd just when it has answered the first request with an error, if
//! each follower then asks for itself. A page that is stale on arrival (`max-age=0`) is the most
//! common one of all.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::Play;
use super::crowd::Crowd;
use crate::content::{self, Content};
use crate::scenario::Verdict;
use crate::{Origin, RawRequest, Script};

/// The origin's answer to the one validation.
#[derive(Clone, Copy, Debug)]
pub enum Expiry {
    /// An error of the server with this status, not to be stored.
    Failing(u16),
    /// The connection ends without a response.
    Closing,
    /// 304.
    Unchanged,
    /// A new page, stale on arrival like the old one.
    Changed,
}

impl Expiry {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Failing(503),
        // What Cloudflare sends for an origin that it does not understand.
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

/// One client brings the page into the cache; then all ask.
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
    // An idle connection that ends without a response is retried once, on a new connection.
    let (most, most_time) = match expiry {
        Expiry::Closing => (2, 4 * ANSWER_TIME),
        _ => (1, 3 * ANSWER_TIME),
    };
    let requests = origin.request_count() - 1;
    verdict.seen = format!("{requests} requests at the origin; {}", all.describe());
    if expiry.has_page() {
        all.expect_all_whole(&mut verdict);
    } else {
        // The client of the one request gets the origin's own error, the others a page about it.
        verdict.expect(all.outcomes.iter().all(|one| one.status >= 500), || {
            format!("not all got the error: {:?}", all.outcomes)
        });
    }
    verdict.expect(requests <= most, || {
        format!("the origin was asked {requests} times")
    });
    // A crowd that queues behind an origin that fails waits for every answer before its own.
    verdict.expect(all.took < most_time, || {
        "clients waited for several answers".to_owned()
    });
    verdict
}

const STALE: (&str, &str) = ("Cache-Control", "max-age=0, must-revalidate");
/// Long enough for all clients to arrive while other tests run.
const ANSWER_TIME: Duration = Duration::from_millis(1500);
