//! The load of the campaign: clients that play a fixed sequence of requests.
//!
//! Used by `mod`. URLs are chosen by rank with a probability that falls with the rank (Zipf), from
//! so many that the last part still has URLs that no client has asked for.
//!
//! Invariant: content and length follow from the URL, and every response is compared with them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashcache_testkit::{BodyEnd, Client, Response, Script, content};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::boxes::HOST;
use super::haproxy::BOX_FIELD;

/// A part of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Warm,
    Before,
    /// Begins with the loss of a box.
    Outage,
    /// Begins with its return.
    Return,
    After,
}

impl Part {
    pub const ALL: [Self; 5] = [
        Self::Warm,
        Self::Before,
        Self::Outage,
        Self::Return,
        Self::After,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "while warming up",
            Self::Before => "before",
            Self::Outage => "without one box",
            Self::Return => "when it is back",
            Self::After => "after",
        }
    }
}

/// The size of the load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub clients: usize,
    /// Requests of a part; warming up takes four times as many, and the return of a box six
    /// times.
    pub part: usize,
}

/// The results of some requests.
#[derive(Debug, Default)]
pub struct Sent {
    pub requests: usize,
    pub repeated: usize,
    pub errors: Vec<String>,
    /// Which box the responses came from that were cut.
    pub cut: Vec<String>,
}

impl Load {
    /// Windows of a part, for each of which origin requests are counted.
    pub fn windows(&self, part: Part) -> usize {
        match part {
            Part::Return => 2 * WINDOWS,
            Part::Warm | Part::Before | Part::Outage | Part::After => WINDOWS,
        }
    }

    /// Requests of a window.
    pub fn window(&self, part: Part) -> usize {
        let requests = match part {
            Part::Warm => 4 * self.part,
            Part::Return => 6 * self.part,
            Part::Before | Part::Outage | Part::After => self.part,
        };
        requests / self.windows(part)
    }

    /// Sends the requests of a window and waits for all responses. Says so when half of the
    /// requests were sent.
    pub async fn send(
        &self,
        to: SocketAddr,
        (part, window): (Part, usize),
        half: oneshot::Sender<()>,
    ) -> Sent {
        let sequence: Arc<[usize]> = self.sequence(part, window).into();
        let next = Arc::new(AtomicUsize::new(0));
        let half = Arc::new(Mutex::new(Some(half)));
        let mut clients = JoinSet::new();
        for _ in 0..self.clients {
            let (sequence, next) = (Arc::clone(&sequence), Arc::clone(&next));
            let half = Arc::clone(&half);
            clients.spawn(async move {
                let mut user = User::new(to);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if 2 * number >= sequence.len() {
                        let half = half.lock().unwrap_or_else(PoisonError::into_inner).take();
                        // Fails if nothing waits for it.
                        let _ = half.map(|half| half.send(()));
                    }
                    let Some(rank) = sequence.get(number) else {
                        break;
                    };
                    user.get(*rank).await;
                }
                user.sent
            });
        }
        let mut all = Sent::default();
        while let Some(sent) = clients.join_next().await {
            match sent {
                Ok(sent) => {
                    all.requests += sent.requests;
                    all.repeated += sent.repeated;
                    all.errors.extend(sent.errors);
                    all.cut.extend(sent.cut);
                }
                Err(error) => all.errors.push(error.to_string()),
            }
        }
        all
    }

    fn sequence(&self, part: Part, window: usize) -> Vec<usize> {
        let seed = (part as u64) << 32 | window as u64;
        let mut random = fastrand::Rng::with_seed(seed);
        let urls = 4 * self.part;
        let mut ranks = Vec::new();
        for _ in 0..self.window(part) {
            // The inverse of the distribution function of a Zipf law with this exponent.
            let share = random.f64().powf(1.0 / (1.0 - EXPONENT));
            #[expect(clippy::cast_possible_truncation, reason = "a rank is a whole number")]
            let rank = (urls as f64 * share) as usize;
            ranks.push(rank.min(urls - 1));
        }
        ranks
    }
}

/// A client with one connection.
struct User {
    to: SocketAddr,
    client: Option<Client>,
    sent: Sent,
}

impl User {
    fn new(to: SocketAddr) -> Self {
        Self {
            to,
            client: None,
            sent: Sent::default(),
        }
    }

    async fn get(&mut self, rank: usize) {
        self.sent.requests += 1;
        let is_reused = self.client.is_some();
        let mut asked = self.ask(rank).await;
        // A server may close a kept connection at any time; every client then asks again.
        if asked.is_err() && is_reused {
            self.sent.repeated += 1;
            asked = self.ask(rank).await;
        }
        let fault = match asked {
            Ok(response) if response.end != BodyEnd::Complete => {
                let from = response.field(BOX_FIELD).unwrap_or("no box");
                self.sent.cut.push(from.to_owned());
                return;
            }
            Ok(response) => wrong(rank, &response),
            Err(error) => Some(error.to_string()),
        };
        let fault = fault.map(|fault| format!("{}: {fault}", path(rank)));
        self.sent.errors.extend(fault);
    }

    async fn ask(&mut self, rank: usize) -> std::io::Result<Response> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(self.to).await?,
        };
        let response = client.get(&path(rank), &[("Host", HOST)]).await?;
        let closes = response.field("Connection") == Some("close");
        self.client = (!closes && response.end == BodyEnd::Complete).then_some(client);
        Ok(response)
    }
}

/// What is wrong with a response.
fn wrong(rank: usize, response: &Response) -> Option<String> {
    if response.status != 200 {
        return Some(format!("status {}", response.status));
    }
    (response.body != body(&path(rank))).then(|| "wrong content".to_owned())
}

fn path(rank: usize) -> String {
    format!("/page/{rank}")
}

fn body(path: &str) -> Vec<u8> {
    let number: u64 = path
        .bytes()
        .map(u64::from)
        .fold(7, |all, byte| all * 31 % 40_009 + byte);
    content::body_for(SEED, path, 1, number).bytes()
}

/// The response of the origin.
pub fn answer(target: &str) -> Script {
    let tag = format!("\"{target}\"");
    let fields = [("Cache-Control", "max-age=3600"), ("ETag", &*tag)];
    Script::response(200, &fields, body(target))
}

const SEED: u64 = 1;
const WINDOWS: usize = 10;
/// Of the popularity of pages; 0.6 to 0.9 are measured for web caches.
const EXPONENT: f64 = 0.7;
