//! A server that has every object, and lies about them on request: an origin, a parent or a
//! sibling, which differ only in how the proxy asks them.
//!
//! Used by `bench`. The content of an object follows from its path, so all servers have the same
//! objects with the same entity tags, and clients can check each byte.
//!
//! Invariant: a check of the health of the server gets an honest answer, so that a lie is found out
//! by requests alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use hashcache_peers::icp::{Answer, Message, parse};
use hashcache_testkit::content::{self, Content};
use hashcache_testkit::{Origin, RawRequest, Script};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// How a server lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It answers with this status instead of the object.
    Status(u16),
    /// What it answers is not HTTP.
    Garbage,
    /// A third of the content, then a chunk that is none.
    BrokenContent,
    /// It announces more content than there is, and closes the connection.
    WrongLength,
}

/// A running server; it ends when dropped.
#[derive(Debug)]
pub struct Server {
    origin: Origin,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    lie: Mutex<Option<Lie>>,
    /// The largest number of an object that was asked for, and 1; 0: none was.
    newest: AtomicU64,
}

impl Server {
    /// Starts a server on a port of 127.0.0.1.
    pub async fn start() -> anyhow::Result<Self> {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let origin = Origin::start(move |request| answer(request, &shared)).await?;
        Ok(Self { origin, state })
    }

    pub fn address(&self) -> SocketAddr {
        self.origin.address()
    }

    /// Lies from now on, or no longer.
    pub fn lie(&self, lie: Option<Lie>) {
        *self
            .state
            .lie
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = lie;
    }

    /// Whether it was asked for object `number` or a later one.
    pub fn was_asked_since(&self, number: u64) -> bool {
        self.state.newest.load(Relaxed) > number
    }
}

/// The path of an object.
pub fn path_of(number: u64) -> String {
    format!("/o/{number}")
}

/// The content of the object with this path.
pub fn content_of(path: &str) -> Content {
    content::body_for(SEED, path, 0, OBJECT_BYTES)
}

fn answer(request: &RawRequest, state: &State) -> Script {
    let target = request.target();
    // Peers are asked with the whole URL.
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let Some(number) = path
        .strip_prefix("/o/")
        .and_then(|it| it.parse::<u64>().ok())
    else {
        return Script::response(200, &[], "well");
    };
    state.newest.fetch_max(number + 1, Relaxed);
    let lie = *state.lie.lock().unwrap_or_else(PoisonError::into_inner);
    let content = content_of(path);
    let tag = content::etag(0, content.length());
    let fields = [("Cache-Control", "max-age=600"), ("ETag", tag.as_str())];
    let bytes = content.bytes();
    match lie {
        None => whole_or_rest(request, &tag, &fields, &bytes),
        Some(Lie::Status(status)) => Script::response(status, &[], "no"),
        Some(Lie::Garbage) => Script::new().bytes("what is this\r\n\r\n").close(),
        Some(Lie::BrokenContent) => {
            let chunked = [fields[0], fields[1], ("Transfer-Encoding", "chunked")];
            let begun = Script::new().head(200, &chunked);
            begun
                .chunk(&bytes[..bytes.len() / 3])
                .bytes("no size\r\n")
                .close()
        }
        Some(Lie::WrongLength) => {
            let length = (bytes.len() + 1000).to_string();
            let wrong = [fields[0], fields[1], ("Content-Length", length.as_str())];
            Script::new().head(200, &wrong).bytes(bytes).close()
        }
    }
}

/// The object, or the part from the offset on that the request wants.
fn whole_or_rest(request: &RawRequest, tag: &str, fields: &[(&str, &str)], bytes: &[u8]) -> Script {
    let first = request
        .field("Range")
        .filter(|_| request.field("If-Range") == Some(tag))
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'))
        .and_then(|first| first.parse::<usize>().ok())
        .filter(|first| *first < bytes.len());
    let Some(first) = first else {
        return Script::response(200, fields, bytes);
    };
    let range = format!("bytes {first}-{}/{}", bytes.len() - 1, bytes.len());
    let fields = [fields, &[("Content-Range", range.as_str())]].concat();
    Script::response(206, &fields, &bytes[first..])
}

/// Answers every query of ICP by HIT; ends when dropped.
#[derive(Debug)]
pub struct HasEverything {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl HasEverything {
    pub async fn start() -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        let task = tokio::spawn(async move {
            let mut buffer = vec![0; DATAGRAM_BYTES];
            // An error is a report about an earlier datagram that found nobody.
            loop {
                let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                    continue;
                };
                if let Ok(Message::Query(query)) = parse(&buffer[..length]) {
                    let reply = query.reply(Answer::Hit).to_datagram();
                    // A reply that cannot be sent is a lost one.
                    let _ = socket.send_to(&reply, from).await;
                }
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for HasEverything {
    fn drop(&mut self) {
        self.task.abort();
    }
}

const SEED: u64 = 1;
/// Size of every object: a transfer that is cut after [`CUT_BYTES`] again and again does not end
/// within the four attempts of the proxy.
const OBJECT_BYTES: u64 = 100_000;
/// Bytes after which a connection is cut.
pub const CUT_BYTES: u64 = 15_000;
const DATAGRAM_BYTES: usize = 20_000;
