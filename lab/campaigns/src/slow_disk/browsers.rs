//! Browsers that visit pages through a server: first the page, then its objects on up to six
//! connections, each with the page as Referer.
//!
//! What they visit follows from a seed or a file ([`Source`]); which browser takes which visit
//! depends on the server's speed. Each response must have the length and the bytes that follow from
//! its URL. Invariant: a browser begins a visit when its last one has ended, so a slow server is
//! asked for less.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{bail, ensure};
use hashcache_testkit::Client;
use hashcache_workload::{Kind, Request, Workload};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::har::Har;
use crate::checked_request::{Ask, OTHER_ACCEPT};

/// What browsers visit.
pub enum Source {
    /// Pages of a site in front of which the server stands.
    Workload(Workload),
    /// Pages of many sites, through a proxy.
    Har(Har),
}

/// Browsers at work; they stop when this is dropped.
pub struct Browsers {
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    server: SocketAddr,
    source: Mutex<Source>,
    begun: Instant,
    /// Requests a second while the server is filled.
    fill_rate: u64,
    /// Whether only what is new is visited.
    fills: AtomicBool,
    visits: AtomicU64,
    requests: AtomicU64,
    again: AtomicU64,
    faults: AtomicU64,
    first_fault: Mutex<Option<String>>,
}

/// What browsers have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Visits that have ended.
    pub visits: u64,
    /// Answered requests, the wrong answers included.
    pub requests: u64,
    /// Of these, for objects that a cache that loses nothing has stored.
    pub again: u64,
}

impl Browsers {
    /// Starts `number` browsers, which fill the server: they visit only what is new, with at most
    /// `fill_rate` requests a second. A workload must have as many clients.
    pub fn start(server: SocketAddr, source: Source, number: usize, fill_rate: u64) -> Self {
        let shared = Arc::new(Shared {
            server,
            source: Mutex::new(source),
            begun: Instant::now(),
            fill_rate,
            fills: AtomicBool::new(true),
            visits: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            again: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            first_fault: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for number in 0..number {
            tasks.spawn(Arc::clone(&shared).browse(number));
        }
        Self {
            shared,
            _tasks: tasks,
        }
    }

    /// From now on they visit what the workload says, old and new.
    pub fn revisit(&self) {
        self.shared.fills.store(false, Relaxed);
    }

    /// Waits until this many more requests are answered; an error if the server answers no more.
    pub async fn send(&self, requests: u64) -> anyhow::Result<()> {
        let aim = self.counts().requests + requests;
        // Faults are read first: each is a request.
        let right = || {
            let faults = self.faults().0;
            self.counts().requests - faults
        };
        let mut last = (right(), Instant::now());
        while self.counts().requests < aim {
            sleep(LOOK_TIME).await;
            let now = right();
            if now > last.0 {
                last = (now, Instant::now());
            }
            let first = || self.faults().1.unwrap_or_default();
            ensure!(
                last.1.elapsed() < PATIENCE,
                "it answers no more: {}",
                first()
            );
            self.check_faults()?;
        }
        Ok(())
    }

    /// An error if the server has given too many wrong answers or none.
    pub fn check_faults(&self) -> anyhow::Result<()> {
        match self.faults() {
            (faults, Some(first)) if faults > FAULTS_MAX => {
                bail!("{faults} faults, first: {first}")
            }
            _ => Ok(()),
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            visits: self.shared.visits.load(Relaxed),
            requests: self.shared.requests.load(Relaxed),
            again: self.shared.again.load(Relaxed),
        }
    }

    /// Wrong and missing answers so far, and the first of them.
    pub fn faults(&self) -> (u64, Option<String>) {
        let first = self.shared.first_fault.lock();
        let first = first.unwrap_or_else(PoisonError::into_inner).clone();
        (self.shared.faults.load(Relaxed), first)
    }
}

impl Shared {
    async fn browse(self: Arc<Self>, number: usize) {
        let mut connections: Vec<Option<Client>> = (0..CONNECTIONS).map(|_| None).collect();
        loop {
            let visit: Arc<[Ask]> = self.visit(number).into();
            // The other objects are known when the page is there.
            connections[0] = self.get(connections[0].take(), &visit[0]).await;
            let next = Arc::new(AtomicUsize::new(1));
            let mut together = JoinSet::new();
            for _ in 1..visit.len().min(CONNECTIONS + 1) {
                let (shared, visit) = (Arc::clone(&self), Arc::clone(&visit));
                let (next, mut connection) = (Arc::clone(&next), connections.pop().flatten());
                together.spawn(async move {
                    while let Some(ask) = visit.get(next.fetch_add(1, Relaxed)) {
                        connection = shared.get(connection.take(), ask).await;
                    }
                    connection
                });
            }
            while let Some(connection) = together.join_next().await {
                connections.push(connection.ok().flatten());
            }
            self.visits.fetch_add(1, Relaxed);
            if self.fills.load(Relaxed) {
                let due_ms = self.requests.load(Relaxed) * 1000 / self.fill_rate;
                sleep_until(self.begun + Duration::from_millis(due_ms)).await;
            }
        }
    }

    fn visit(&self, browser: usize) -> Vec<Ask> {
        let fills = self.fills.load(Relaxed);
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *source {
            Source::Har(har) if fills => har.new_visit(),
            Source::Har(har) => har.visit(),
            Source::Workload(workload) => {
                let requests = if fills {
                    let mut new = workload.new_visit(browser);
                    // The rest fills nothing. The page stays, because its objects name it.
                    let mut is_page = true;
                    new.retain(|it| std::mem::take(&mut is_page) || it.kind == Kind::New);
                    new
                } else {
                    workload.visit(browser)
                };
                asks(&requests, workload, self.server)
            }
        }
    }

    /// Sends a request; the connection, if it can be used again.
    async fn get(&self, connection: Option<Client>, ask: &Ask) -> Option<Client> {
        let (connection, fault) = ask.answer(connection, self.server).await;
        // Counted first, so that there are never more faults than requests.
        self.requests.fetch_add(1, Relaxed);
        if let Some(fault) = fault {
            self.note(format!("{}: {fault}", ask.target));
            sleep(FAULT_TIME).await;
        }
        self.again
            .fetch_add(u64::from(ask.kind == Kind::Again), Relaxed);
        connection
    }

    fn note(&self, fault: String) {
        self.faults.fetch_add(1, Relaxed);
        let first = self.first_fault.lock();
        first
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(fault);
    }
}

/// The requests of a visit.
fn asks(requests: &[Request], workload: &Workload, server: SocketAddr) -> Vec<Ask> {
    let path = |request: &Request| {
        let name = workload.name(request.object);
        let path = name.splitn(4, '/').last().unwrap_or_default();
        let bytes = workload.content(request.object).len();
        let store = match request.kind {
            Kind::Uncacheable => "&no-store",
            Kind::Again | Kind::New => "",
        };
        (format!("/{path}?size={bytes}{store}"), bytes as u64)
    };
    let page = requests.first().filter(|it| it.group != 0);
    let page = page.map(|it| format!("http://{server}{}", path(it).0));
    let ask = |(place, request): (usize, &Request)| {
        let (target, bytes) = path(request);
        let (accept, referer) = match place {
            0 if page.is_some() => (PAGE_ACCEPT, None),
            0 => (OTHER_ACCEPT, None),
            _ => (OTHER_ACCEPT, page.clone()),
        };
        Ask {
            target,
            bytes,
            kind: request.kind,
            accept: accept.to_owned(),
            destination: None,
            referer,
        }
    };
    requests.iter().enumerate().map(ask).collect()
}

/// What browsers use for a server that speaks HTTP/1.1.
const CONNECTIONS: usize = 6;
const PAGE_ACCEPT: &str = "text/html,application/xhtml+xml,*/*;q=0.8";
const LOOK_TIME: Duration = Duration::from_millis(50);
/// A browser does not ask a server that refuses connections as often as it can.
const FAULT_TIME: Duration = Duration::from_millis(50);
const FAULTS_MAX: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use hashcache_testkit::{ContentOptions, ContentOrigin};
    use hashcache_workload::{Shape, Sizes};

    use super::*;

    fn workload() -> Workload {
        Workload::new(1, Shape::Pages, Sizes::Web, 13, 2)
    }

    #[test]
    fn a_page_is_asked_for_as_such_and_named_by_its_objects() {
        let mut workload = workload();
        let server = "127.0.0.1:80".parse().unwrap();
        let visit = workload.visit(0);
        let asks = asks(&visit, &workload, server);
        assert!(asks.len() >= 13);
        let page = format!("http://127.0.0.1:80{}", asks[0].target);
        assert!(asks[0].target.starts_with("/w1/t1/_"), "{}", asks[0].target);
        assert_eq!((&*asks[0].accept, &asks[0].referer), (PAGE_ACCEPT, &None));
        for ask in &asks[1..] {
            assert_eq!(ask.referer.as_ref(), Some(&page));
            let may_be_stored = !ask.target.ends_with("&no-store");
            assert_eq!(ask.kind != Kind::Uncacheable, may_be_stored);
        }
    }

    #[tokio::test]
    async fn right_answers_are_counted_and_wrong_ones_are_faults() {
        for (seed, right) in [(ContentOptions::default().seed, true), (9, false)] {
            let options = ContentOptions {
                seed,
                ..ContentOptions::default()
            };
            let origin = ContentOrigin::start(options).await.unwrap();
            let source = Source::Workload(workload());
            let browsers = Browsers::start(origin.address(), source, 2, u64::MAX);
            browsers.send(30).await.unwrap();
            let (faults, first) = browsers.faults();
            assert_eq!(faults == 0, right, "{first:?}");
            if right {
                browsers.revisit();
                browsers.send(300).await.unwrap();
                assert!(browsers.counts().again > 0);
                assert_eq!(browsers.faults(), (0, None));
            }
        }
    }
}
