//! Many clients, one fetch: no client waits for a response that cannot be shared, and no client
//! takes a truncated response for complete.
//!
//! The origins of these parts cut responses short, answer late or offer no validator for a
//! resumption. The clients use HTTP/1.1 and HTTP/1.0 alternately, so that each framing towards a
//! client occurs: Content-Length, chunks, connection close.
//!
//! Invariant: a body that is complete according to its framing is compared byte by byte with the
//! content that the origin intended.

mod crowd;
mod cut;
mod expiry;
mod late;
mod leaving;
mod slow;
mod uncacheable;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Verdict;
use crate::{Gate, Origin, RawRequest, Script, content};

use crowd::Crowd;
pub use cut::Cutting;
use cut::play as cut;
pub use expiry::Expiry;

/// A proxy, and the load size.
#[derive(Clone, Copy, Debug)]
pub struct Play {
    /// Proxy address.
    pub proxy: SocketAddr,
    /// Proxy process, for measuring memory; without it memory is not checked.
    pub pid: Option<u32>,
    /// Proxy memory limit, bytes.
    pub memory_bytes: u64,
    /// Concurrent clients.
    pub clients: usize,
    /// Large object size, bytes.
    pub object_bytes: u64,
    /// Concurrent clients when a response is cut short.
    pub cut_clients: usize,
    /// Size of the response that is cut short, bytes.
    pub cut_bytes: u64,
    /// Each origin delays one response by this time beforehand, so that the proxy learns how late
    /// response heads may be: on a machine that is busy with other tests every head is late. With
    /// zero there is no such response, and the proxy must learn it during the test.
    pub first_answer: Duration,
}

/// One part of the scenario.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// All clients at once request an object that is not stored.
    OneFetch,
    /// As `OneFetch`, but the first byte arrives after more than a second.
    Late,
    /// All clients at once request a stored page that is stale.
    Expired(Expiry),
    /// The origin breaks off, with few clients.
    Cut(Cutting),
    /// The origin breaks off in a large object, with all clients.
    LargeCut,
    /// All clients request a slow page; the proxy already knows that the page cannot be shared.
    Uncacheable,
    /// As `Uncacheable`, but the proxy knows this only of another page of the origin.
    UncacheableElsewhere,
    /// As `Uncacheable`, but the proxy does not know the origin yet.
    UncacheableAtFirst,
    /// The only client disconnects after a little content.
    LeaveEarly,
    /// The only client disconnects after nearly all content.
    LeaveLate,
    /// Clients that hardly read.
    Slow,
}

impl Part {
    /// All parts, in order.
    #[must_use]
    pub fn all(play: &Play) -> Vec<Self> {
        let cuts = Cutting::all(play.cut_bytes).into_iter().map(Self::Cut);
        let mut all = vec![Self::OneFetch, Self::Late];
        all.extend(Expiry::ALL.map(Self::Expired));
        all.extend(cuts);
        all.extend([
            Self::LargeCut,
            Self::Uncacheable,
            Self::UncacheableElsewhere,
            Self::UncacheableAtFirst,
            Self::LeaveEarly,
            Self::LeaveLate,
            Self::Slow,
        ]);
        all
    }

    /// Plays the part.
    pub async fn play(&self, play: &Play) -> Verdict {
        match self {
            Self::OneFetch => one_fetch(play).await,
            Self::Late => late::play(play).await,
            Self::Expired(expiry) => expiry::play(play, *expiry).await,
            Self::Cut(cutting) => cut(play, cutting).await,
            Self::LargeCut => {
                let all = Play {
                    cut_clients: play.clients,
                    ..*play
                };
                cut(&all, &Cutting::of_a_large_object(play.object_bytes)).await
            }
            Self::Uncacheable => uncacheable::known(play).await,
            Self::UncacheableElsewhere => uncacheable::elsewhere(play).await,
            Self::UncacheableAtFirst => uncacheable::unknown(play).await,
            Self::LeaveEarly => leaving::early(play).await,
            Self::LeaveLate => leaving::late(play).await,
            Self::Slow => slow::play(play).await,
        }
    }
}

/// All clients at once request an object that is not stored: the origin must get one request.
async fn one_fetch(play: &Play) -> Verdict {
    let mut verdict = Verdict::new(format!(
        "{} clients, one uncached object of {} kB",
        play.clients,
        play.object_bytes / 1000
    ));
    let content = content::body_for(1, "/large", 0, play.object_bytes);
    let length = play.object_bytes.to_string();
    let fields = [
        ("Cache-Control", "max-age=3600"),
        ("Content-Length", length.as_str()),
    ];
    let whole = Script::new().head(200, &fields).bytes(content.bytes());
    let whole_of = move |_: &RawRequest| whole.clone();
    let origin = match origin(play, whole_of).await {
        Ok(origin) => origin,
        Err(error) => {
            verdict.fault(format!("no origin: {error}"));
            return verdict;
        }
    };
    let before = (origin.request_count(), origin.bytes_written());
    let crowd = Crowd::new(
        play.proxy,
        origin.url("/large"),
        play.clients,
        vec![content],
    );
    let outcomes = crowd.ask().await;
    let requests = origin.request_count() - before.0;
    let bytes = origin.bytes_written() - before.1;
    verdict.seen = format!(
        "{requests} requests and {} kB at the origin; {}",
        bytes / 1000,
        outcomes.describe()
    );
    outcomes.expect_all_whole(&mut verdict);
    verdict.expect(requests == 1, || "more than one fetch".to_owned());
    verdict.expect(
        (play.object_bytes..play.object_bytes + 1000).contains(&bytes),
        || "more or less than one body from the origin".to_owned(),
    );
    let stored = crowd.only_if_cached().await;
    verdict.expect(stored.is_whole_and_right(), || {
        format!("it is not in the cache afterwards: {stored:?}")
    });
    verdict
}

/// Starts an origin with these answers, after one response that is as slow as `play` requires.
async fn origin(
    play: &Play,
    answer: impl Fn(&RawRequest) -> Script + Send + Sync + 'static,
) -> io::Result<Origin> {
    let time = play.first_answer;
    let origin = Origin::start(move |request| {
        if request.target() == FIRST_TARGET {
            after(
                time,
                Script::response(200, &[("Cache-Control", "no-store")], ""),
            )
        } else {
            answer(request)
        }
    })
    .await?;
    if !time.is_zero() {
        let empty = vec![content::body_for(0, "", 0, 0)];
        Crowd::new(play.proxy, origin.url(FIRST_TARGET), 1, empty)
            .ask()
            .await;
    }
    Ok(origin)
}

/// Waits for `time`, then continues with `script`.
fn after(time: Duration, script: Script) -> Script {
    let over = Gate::new();
    let waits = Script::new().wait(&over);
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        over.open();
    });
    waits.then(script)
}

const FIRST_TARGET: &str = "/first";
/// Time limit for each wait; long enough even if everything runs on one busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
