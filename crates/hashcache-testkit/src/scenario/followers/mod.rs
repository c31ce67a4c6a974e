//! Many clients, one fetch: nobody waits for what cannot be shared, nobody gets half for whole.
//!
//! The origins of these parts cut their answers, take their time or offer nothing to resume by; the
//! clients speak HTTP/1.1 and HTTP/1.0 by turns, so that each framing towards a client occurs: a
//! length, chunks, the end of the connection.
//!
//! Invariant: a body that its framing calls whole is checked byte by byte against what the origin
//! meant.

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

/// A proxy, and how much to ask of it.
#[derive(Clone, Copy, Debug)]
pub struct Play {
    /// Where the proxy listens.
    pub proxy: SocketAddr,
    /// Its process, to see what memory it holds; without it that is not judged.
    pub pid: Option<u32>,
    /// What its memory may grow to, bytes.
    pub memory_bytes: u64,
    /// Clients at once.
    pub clients: usize,
    /// Size of the large object, bytes.
    pub object_bytes: u64,
    /// Clients at once when an answer is cut.
    pub cut_clients: usize,
    /// Size of what is cut, bytes.
    pub cut_bytes: u64,
    /// Each origin takes this long for one answer beforehand, so that the proxy learns how long its
    /// heads may take: on a machine that is busy with other tests they take long by themselves.
    /// Zero leaves it to find that out.
    pub first_answer: Duration,
}

/// One part of the story.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// All ask at once for what nobody has.
    OneFetch,
    /// The same, and the first byte takes a second and more.
    Late,
    /// All ask at once for a stored page that is stale.
    Expired(Expiry),
    /// The origin breaks off, and few are there.
    Cut(Cutting),
    /// The origin breaks off in a large object, and all are there.
    LargeCut,
    /// All ask for a slow page that cannot be shared, as is known.
    Uncacheable,
    /// The same, and nobody asked for this page before: of the origin as much is known.
    UncacheableElsewhere,
    /// The same, and nothing is known of the origin.
    UncacheableAtFirst,
    /// The only client leaves after a little content.
    LeaveEarly,
    /// The only client leaves after nearly all content.
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

    /// Plays it.
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

/// All ask at once for what nobody has: the origin is asked once.
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

/// An origin that answers as `answer` says, and the first time as slowly as `play` wants it.
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

/// Waits for so long, then continues with `script`.
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
/// Long for any wait here, even with everything on one busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
