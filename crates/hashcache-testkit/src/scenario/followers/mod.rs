//! Many clients, one fetch: nobody waits for what cannot be shared, nobody gets half for whole.
//!
//! The origins of these parts cut their answers, take their time or offer nothing to resume by; the clients
//! speak HTTP/1.1 and HTTP/1.0 by turns, so that each framing towards a client occurs: a length, chunks, the
//! end of the connection.
//!
//! Invariant: a body that its framing calls whole is checked byte by byte against what the origin meant.

mod crowd;
mod cut;
mod leaving;
mod slow;
mod uncacheable;

use std::net::SocketAddr;

use super::Verdict;
use crate::{ContentOptions, ContentOrigin, Sizes, content};

use crowd::Crowd;
pub use cut::Cutting;
use cut::play as cut;

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
}

/// One part of the story.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// All ask at once for what nobody has.
    OneFetch,
    /// The origin breaks off, and few are there.
    Cut(Cutting),
    /// The origin breaks off in a large object, and all are there.
    LargeCut,
    /// All ask for a slow page that cannot be shared, as is known.
    Uncacheable,
    /// The same, and nobody knows.
    UncacheableAtFirst,
    /// The only client leaves when little has come.
    LeaveEarly,
    /// The only client leaves when nearly all has come.
    LeaveLate,
    /// Clients that hardly read.
    Slow,
}

impl Part {
    /// All parts, in order.
    #[must_use]
    pub fn all(play: &Play) -> Vec<Self> {
        let cuts = Cutting::all(play.cut_bytes).into_iter().map(Self::Cut);
        let mut all = vec![Self::OneFetch];
        all.extend(cuts);
        all.extend([
            Self::LargeCut,
            Self::Uncacheable,
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
            Self::Cut(cutting) => cut(play, cutting).await,
            Self::LargeCut => {
                let all = Play {
                    cut_clients: play.clients,
                    ..*play
                };
                cut(&all, &Cutting::of_a_large_object(play.object_bytes)).await
            }
            Self::Uncacheable => uncacheable::known(play).await,
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
    let options = ContentOptions {
        sizes: Sizes::Fixed(play.object_bytes),
        ..ContentOptions::default()
    };
    let origin = match ContentOrigin::start_thread(options) {
        Ok(origin) => origin,
        Err(error) => {
            verdict.fault(format!("no origin: {error}"));
            return verdict;
        }
    };
    let target = "/large";
    let expected = vec![content::body_for(
        options.seed,
        target,
        0,
        play.object_bytes,
    )];
    let crowd = Crowd::new(play.proxy, origin.url(target), play.clients, expected);
    let outcomes = crowd.ask().await;
    let counts = origin.counts();
    verdict.seen = format!(
        "{} requests and {} kB at the origin; {}",
        counts.requests,
        counts.body_bytes / 1000,
        outcomes.describe()
    );
    outcomes.expect_all_whole(&mut verdict);
    verdict.expect(counts.requests == 1, || "more than one fetch".to_owned());
    verdict.expect(counts.body_bytes == play.object_bytes, || {
        "more or less than one body from the origin".to_owned()
    });
    let stored = crowd.only_if_cached().await;
    verdict.expect(stored.is_whole_and_right(), || {
        format!("it is not in the cache afterwards: {stored:?}")
    });
    verdict
}

/// Long for any wait here, even with everything on one busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);
