//! Clients that request one URL at once and check the responses.
//!
//! Invariant: each outcome separates framing from content: *whole* is about the framing, *right* is
//! about the bytes.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::PATIENCE;
use crate::content::{Content, verify};
use crate::scenario::Verdict;
use crate::{BodyEnd, Client, Gate};

/// The clients and their request.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    proxy: SocketAddr,
    url: String,
    clients: usize,
    /// Permitted contents; a complete body must be equal to one of them.
    expected: Arc<[Content]>,
    /// Opened when all clients have received content.
    begun: Gate,
    seen: Arc<AtomicUsize>,
}

/// Response to one client.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) status: u16,
    pub(super) own_page: bool,
    /// How the body was terminated according to the framing.
    pub(super) end: BodyEnd,
    /// Index of the expected content that matches all bytes received.
    pub(super) content: Option<usize>,
    pub(super) bytes: u64,
    /// True if the body is equal to an expected content, length included.
    pub(super) right: bool,
    pub(super) took: Duration,
    pub(super) complaints: Vec<String>,
    /// Set if there was no response.
    pub(super) error: Option<io::ErrorKind>,
}

impl Outcome {
    /// Returns true if a client would accept the response as complete origin content.
    pub(super) fn looks_whole(&self) -> bool {
        self.error.is_none() && !self.own_page && self.end != BodyEnd::Truncated
    }

    pub(super) fn is_whole_and_right(&self) -> bool {
        self.looks_whole() && self.status == 200 && self.right
    }
}

impl Crowd {
    pub(super) fn new(
        proxy: SocketAddr,
        url: String,
        clients: usize,
        expected: Vec<Content>,
    ) -> Self {
        Self {
            proxy,
            url,
            clients,
            expected: expected.into(),
            begun: Gate::new(),
            seen: Arc::default(),
        }
    }

    /// Gate that opens when every client has received content.
    pub(super) fn begun(&self) -> &Gate {
        &self.begun
    }

    /// All clients send the request at once; returns when each has a response or will get none.
    pub(super) async fn ask(&self) -> Outcomes {
        let mut asking = JoinSet::new();
        let since = Instant::now();
        for number in 0..self.clients {
            let (crowd, version) = (self.clone(), if number % 2 == 0 { "1.1" } else { "1.0" });
            asking.spawn(async move { crowd.one(version, "").await });
        }
        let outcomes = asking.join_all().await;
        Outcomes {
            outcomes,
            took: since.elapsed(),
        }
    }

    /// A single client requests the object from the cache only.
    pub(super) async fn only_if_cached(&self) -> Outcome {
        self.one("1.1", "Cache-Control: only-if-cached\r\n").await
    }

    pub(super) async fn one(&self, version: &str, fields: &str) -> Outcome {
        let since = Instant::now();
        let asked = timeout(PATIENCE, self.exchange(version, fields)).await;
        let asked = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let mut outcome = asked.unwrap_or_else(|error| Outcome {
            status: 0,
            own_page: false,
            end: BodyEnd::Truncated,
            content: None,
            bytes: 0,
            right: false,
            took: Duration::ZERO,
            complaints: vec![],
            error: Some(error.kind()),
        });
        outcome.took = since.elapsed();
        outcome
    }

    async fn exchange(&self, version: &str, fields: &str) -> io::Result<Outcome> {
        let authority = self.url.strip_prefix("http://").unwrap_or_default();
        let authority = authority.split('/').next().unwrap_or_default();
        let head = format!(
            "GET {} HTTP/{version}\r\nHost: {authority}\r\n{fields}\r\n",
            self.url
        );
        let mut client = Client::connect(self.proxy).await?;
        client.send(head.as_bytes()).await?;
        let mut check = Check::new(self.expected.clone());
        let response = client.read_response_to("GET", |part| {
            if check.bytes == 0
                && !part.is_empty()
                && self.seen.fetch_add(1, Ordering::Relaxed) + 1 == self.clients
            {
                self.begun.open();
            }
            check.take(part);
        });
        let response = response.await?;
        let ours = response.field("Proxy-Status");
        Ok(Outcome {
            status: response.status,
            own_page: response.status >= 400 && ours.is_some_and(|ours| ours.contains("error=")),
            end: response.end,
            content: check.content(),
            bytes: check.bytes,
            right: check.is_right(),
            took: Duration::ZERO,
            complaints: response.complaints,
            error: None,
        })
    }
}

/// Compares a response with the permitted contents.
#[derive(Debug)]
pub(super) struct Check {
    expected: Arc<[Content]>,
    /// For each expected content, true if all bytes so far match it.
    possible: Vec<bool>,
    pub(super) bytes: u64,
}

impl Check {
    pub(super) fn new(expected: Arc<[Content]>) -> Self {
        let possible = vec![true; expected.len()];
        Self {
            expected,
            possible,
            bytes: 0,
        }
    }

    pub(super) fn take(&mut self, part: &[u8]) {
        for (content, possible) in self.expected.iter().zip(&mut self.possible) {
            *possible = *possible && verify(content, self.bytes, part).is_ok();
        }
        self.bytes += part.len() as u64;
    }

    fn content(&self) -> Option<usize> {
        self.possible.iter().position(|&possible| possible)
    }

    pub(super) fn is_right(&self) -> bool {
        let mut all = self.expected.iter().zip(&self.possible);
        all.any(|(content, possible)| *possible && content.length() == self.bytes)
    }
}

/// Responses to a crowd.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) took: Duration,
}

impl Outcomes {
    pub(super) fn whole_and_right(&self) -> usize {
        let whole = |outcome: &&Outcome| outcome.is_whole_and_right();
        self.outcomes.iter().filter(whole).count()
    }

    /// Records a fault if a response looks complete but is wrong, is missing in time, or is
    /// doubtful.
    pub(super) fn expect_no_lie(&self, verdict: &mut Verdict) {
        for outcome in &self.outcomes {
            if outcome.looks_whole() && !outcome.is_whole_and_right() {
                verdict.fault(format!("looks whole and is not: {outcome:?}"));
            }
            if outcome.error == Some(io::ErrorKind::TimedOut) {
                verdict.fault("a client got no answer in time");
            }
            for complaint in &outcome.complaints {
                verdict.fault(format!("a doubtful answer: {complaint}"));
            }
        }
        verdict.faults.sort();
        verdict.faults.dedup();
    }

    pub(super) fn expect_all_whole(&self, verdict: &mut Verdict) {
        self.expect_no_lie(verdict);
        let whole = self.whole_and_right();
        verdict.expect(whole == self.outcomes.len(), || {
            let other = self.outcomes.iter().find(|one| !one.is_whole_and_right());
            let (all, missing) = (self.outcomes.len(), self.outcomes.len() - whole);
            format!("{missing} of {all} did not get the whole, such as {other:?}")
        });
    }

    pub(super) fn describe(&self) -> String {
        let mut text = format!("{} whole", self.whole_and_right());
        let count = |what: &dyn Fn(&Outcome) -> bool| {
            self.outcomes.iter().filter(|outcome| what(outcome)).count()
        };
        for (name, number) in [
            (
                "told short",
                count(&|one| one.error.is_none() && one.end == BodyEnd::Truncated),
            ),
            ("told by a page", count(&|one| one.own_page)),
            ("without answer", count(&|one| one.error.is_some())),
        ] {
            if number > 0 {
                // Writing to a `String` cannot fail.
                let _ = write!(text, ", {number} {name}");
            }
        }
        let _ = write!(text, " in {:.2} s", self.took.as_secs_f64());
        text
    }
}
