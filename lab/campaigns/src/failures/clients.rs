//! Clients that fetch one object after another through the proxy and check each byte.
//!
//! Used by `bench`. Every request is for an object of its own, so that the proxy has to fetch it.
//!
//! Invariant: a request without a complete, right answer in [`ANSWER_TIME`] is an error.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashcache_testkit::{BodyEnd, Client, content};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::server::{content_of, path_of};

/// How many clients there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One client, which pauses between requests.
    Idle,
    /// Many clients, which hardly pause.
    Load,
}

impl Load {
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Load => "load",
        }
    }

    fn clients(self) -> (usize, Duration) {
        match self {
            Self::Idle => (1, Duration::from_millis(100)),
            Self::Load => (24, Duration::from_millis(50)),
        }
    }
}

/// Where clients ask.
#[derive(Clone, Debug)]
pub struct Door {
    pub proxy: SocketAddr,
    /// What stands before the path in a request.
    pub before_path: String,
    /// The Host field, if it does not follow from the URL.
    pub host: Option<String>,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Sample {
    pub begun: Instant,
    pub took: Duration,
    pub fault: Option<Fault>,
}

/// Why a request is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No answer, an error, or an answer that is known to be incomplete.
    Failed(String),
    /// An answer that looks complete and is not the object.
    Wrong(String),
}

/// Running clients.
#[derive(Debug)]
pub struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    door: Door,
    next: AtomicU64,
    is_over: AtomicBool,
    samples: Mutex<Vec<Sample>>,
}

impl Clients {
    pub fn start(door: Door, load: Load) -> Self {
        let shared = Arc::new(Shared {
            door,
            next: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            samples: Mutex::default(),
        });
        let (clients, pause) = load.clients();
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            tasks.spawn(run(Arc::clone(&shared), pause));
        }
        Self { shared, tasks }
    }

    /// The number of the object that is asked for next.
    pub fn next(&self) -> u64 {
        self.shared.next.load(Relaxed)
    }

    /// Lets the open requests end; all requests, in the order of their ends.
    pub async fn finish(mut self) -> Vec<Sample> {
        self.shared.is_over.store(true, Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let mut samples = self
            .shared
            .samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut samples)
    }
}

impl Shared {
    fn note(&self, sample: Sample) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push(sample);
    }
}

async fn run(shared: Arc<Shared>, pause: Duration) {
    let mut connection = None;
    while !shared.is_over.load(Relaxed) {
        let number = shared.next.fetch_add(1, Relaxed);
        let begun = Instant::now();
        let asked = timeout(ANSWER_TIME, ask(&shared.door, number, &mut connection)).await;
        let failed = || Fault::Failed(format!("no answer in {ANSWER_TIME:?}"));
        let fault = asked.unwrap_or_else(|_| Err(failed())).err();
        if fault.is_some() {
            connection = None;
        }
        let took = begun.elapsed();
        let sample = Sample { begun, took, fault };
        shared.note(sample);
        // Not all at the same moment.
        sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
    }
}

async fn ask(door: &Door, number: u64, connection: &mut Option<Client>) -> Result<(), Fault> {
    let failed = |what: &dyn std::fmt::Display| Fault::Failed(format!("object {number}: {what}"));
    let mut client = match connection.take() {
        Some(client) => client,
        None => {
            let connected = Client::connect(door.proxy).await;
            connected.map_err(|error| failed(&error))?
        }
    };
    let path = path_of(number);
    let expected = content_of(&path);
    let host = door.host.as_deref().map(|host| ("Host", host));
    let target = format!("{}{path}", door.before_path);
    let response = client.get(&target, host.as_slice()).await;
    let response = response.map_err(|error| failed(&error))?;
    if response.status != 200 {
        let said = response.field("Proxy-Status").unwrap_or_default();
        return Err(failed(&format_args!("status {} {said}", response.status)));
    }
    let checked = content::verify(&expected, 0, &response.body);
    let length = response.body.len() as u64;
    if response.end == BodyEnd::Truncated {
        return Err(failed(&format_args!("cut after {length} bytes")));
    }
    if let Err(at) = checked {
        return Err(Fault::Wrong(format!("object {number}: wrong byte at {at}")));
    }
    if length != expected.length() {
        return Err(Fault::Wrong(format!("object {number}: {length} bytes")));
    }
    *connection = Some(client);
    Ok(())
}

/// Longer than a user waits, and than the proxy may take while another way is left.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
