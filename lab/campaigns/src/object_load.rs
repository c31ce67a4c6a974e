//! Requests for numbered objects of one size, each answer checked byte by byte.
//!
//! Used by `restart` and `index_memory`. A hit is a request for which the server does not ask the
//! origin, so the counters of the origin tell how many there were, whatever the server says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use hashcache_testkit::ContentOrigin;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checked_request::Ask;

/// Requests for objects of an origin through a proxy.
#[derive(Clone, Copy, Debug)]
pub struct ObjectLoad<'a> {
    pub origin: &'a ContentOrigin,
    /// Bytes of each object.
    pub bytes: u64,
    pub connections: usize,
    /// Requests a second, at most: caches lose objects that come faster than they can store them.
    pub per_second: u64,
}

/// What a number of requests showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    pub requests: u64,
    /// Requests to the origin.
    pub missed: u64,
    /// Right answers that did not come from the origin, at least: a wrong answer may be one of
    /// those that did.
    pub hits: u64,
    /// Wrong answers and missing ones, and the first of them.
    pub wrong: u64,
    pub first_wrong: Option<String>,
}

impl Answers {
    /// Hits of 1000 requests.
    pub fn hits_per_mille(&self) -> u64 {
        self.hits * 1000 / self.requests.max(1)
    }
}

impl ObjectLoad<'_> {
    /// Asks for these objects, in this order.
    pub async fn ask(&self, server: SocketAddr, objects: Vec<u64>) -> anyhow::Result<Answers> {
        let asked_before = self.origin.counts().requests;
        let shared = Arc::new(Shared {
            server,
            bytes: self.bytes,
            per_second: self.per_second,
            begun: Instant::now(),
            objects,
            next: AtomicUsize::new(0),
            wrong: AtomicU64::new(0),
            first_wrong: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections {
            tasks.spawn(Arc::clone(&shared).ask());
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        let first = shared.first_wrong.lock();
        let first_wrong = first.unwrap_or_else(PoisonError::into_inner).clone();
        let wrong = shared.wrong.load(Relaxed);
        if wrong > WRONG_MAX {
            bail!("{wrong} wrong answers, first: {first_wrong:?}");
        }
        let requests = shared.objects.len() as u64;
        let missed = self.origin.counts().requests - asked_before;
        Ok(Answers {
            requests,
            missed,
            hits: requests.saturating_sub(missed + wrong),
            wrong,
            first_wrong,
        })
    }

    /// Asks for the first `count` objects until nearly all of a sample are hits, or no more of them
    /// than the time before. The answers for the last sample, with the wrong ones of all requests.
    pub async fn fill(&self, server: SocketAddr, count: u64) -> anyhow::Result<Answers> {
        let step = usize::try_from(count.div_ceil(SAMPLE).max(1))?;
        let (mut all, mut missed_before) = (Answers::default(), u64::MAX);
        for _ in 0..FILLS_MAX {
            let filled = self.ask(server, (0..count).collect()).await?;
            let sample = self.ask(server, (0..count).step_by(step).collect()).await?;
            all = Answers {
                wrong: all.wrong + filled.wrong + sample.wrong,
                first_wrong: all
                    .first_wrong
                    .or(filled.first_wrong)
                    .or(sample.first_wrong),
                ..sample
            };
            // A cache that loses some by its nature has as many after each time.
            let gains = all.missed < missed_before / 4 * 3;
            if all.missed <= all.requests / FILLED_PART || !gains {
                break;
            }
            missed_before = all.missed;
        }
        Ok(all)
    }
}

struct Shared {
    server: SocketAddr,
    bytes: u64,
    per_second: u64,
    begun: Instant,
    objects: Vec<u64>,
    /// Index of the object to ask for next.
    next: AtomicUsize,
    wrong: AtomicU64,
    first_wrong: Mutex<Option<String>>,
}

impl Shared {
    async fn ask(self: Arc<Self>) {
        let mut connection = None;
        loop {
            let place = self.next.fetch_add(1, Relaxed);
            let Some(&object) = self.objects.get(place) else {
                return;
            };
            let due = Duration::from_millis(place as u64 * 1000 / self.per_second);
            sleep_until(self.begun + due).await;
            let ask = Ask::object(object, self.bytes);
            let (kept, fault) = ask.answer(connection, self.server).await;
            connection = kept;
            let Some(fault) = fault else {
                continue;
            };
            let fault = format!("{}: {fault}", ask.target);
            let first = self.first_wrong.lock();
            first
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(fault);
            if self.wrong.fetch_add(1, Relaxed) >= WRONG_MAX {
                return;
            }
            sleep(WRONG_TIME).await;
        }
    }
}

/// More are no accident.
const WRONG_MAX: u64 = 200;
/// A server that refuses connections is not asked as often as possible.
const WRONG_TIME: Duration = Duration::from_millis(50);
const FILLS_MAX: usize = 5;
/// Objects of a sample, at most.
const SAMPLE: u64 = 10_000;
/// Of so many objects, one may be no hit in a server that is filled.
const FILLED_PART: u64 = 200;

#[cfg(test)]
mod tests {
    use hashcache_testkit::ContentOptions;

    use super::*;

    #[tokio::test]
    async fn hits_are_requests_that_did_not_reach_the_origin() {
        let origin = ContentOrigin::start(ContentOptions::default())
            .await
            .unwrap();
        let load = ObjectLoad {
            origin: &origin,
            bytes: 100,
            connections: 2,
            per_second: 100_000,
        };
        // The origin is its own server: nothing is a hit.
        let answers = load.ask(origin.address(), vec![1, 2, 3]).await.unwrap();
        let expected = Answers {
            requests: 3,
            missed: 3,
            ..Answers::default()
        };
        assert_eq!(answers, expected);
        assert_eq!(answers.hits_per_mille(), 0);
        // Another one leaves the origin alone, but its bytes are those of another seed.
        let options = ContentOptions {
            seed: 9,
            ..ContentOptions::default()
        };
        let other = ContentOrigin::start(options).await.unwrap();
        let answers = load.ask(other.address(), vec![1, 2]).await.unwrap();
        assert_eq!((answers.missed, answers.wrong), (0, 2));
        assert_eq!(answers.hits_per_mille(), 0);
        assert!(answers.first_wrong.unwrap().contains("wrong byte"));
    }
}
