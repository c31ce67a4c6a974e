//! A fast origin that serves generated [`content`], with validators and ranges.
//!
//! Campaigns measure proxies against this origin, so it does little work per request: one pass over
//! the head, and one write for the response head and the first 64 KiB. The origin answers GET and
//! HEAD for any path. The query may set `size` (bytes), `v` (version) and `max-age` (seconds), or
//! forbid storing (`no-store`).

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use httpdate::HttpDate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::content::{self, Content};

/// Object size if the URL does not set `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// As on the web; see [`content::web_size`].
    Web,
    /// This size for all objects, bytes.
    Fixed(u64),
}

/// Settings for a [`ContentOrigin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentOptions {
    /// Seed for all content; a client needs it to verify responses.
    pub seed: u64,
    /// Freshness lifetime, seconds.
    pub max_age: u64,
    /// Object sizes.
    pub sizes: Sizes,
    /// Delay before each response, to simulate a distant origin.
    pub wait: Duration,
    /// Address at which the origin listens.
    pub address: IpAddr,
}

impl Default for ContentOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            max_age: 3600,
            sizes: Sizes::Web,
            wait: Duration::ZERO,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }
}

/// Counters of a [`ContentOrigin`], since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Requests received, counted before the response is sent.
    pub requests: u64,
    /// Requests answered with 304.
    pub not_modified: u64,
    /// Requests answered with 206 or 416.
    pub partial: u64,
    /// Bytes of content sent.
    pub body_bytes: u64,
}

/// An origin with generated content, on a port that the system chooses; dropping it stops the
/// server.
#[derive(Debug)]
pub struct ContentOrigin {
    address: SocketAddr,
    options: ContentOptions,
    shared: Arc<Shared>,
    running: Running,
}

#[derive(Debug, Default)]
struct Shared {
    version: AtomicU64,
    connections: AtomicU64,
    requests: AtomicU64,
    not_modified: AtomicU64,
    partial: AtomicU64,
    body_bytes: AtomicU64,
}

#[derive(Debug)]
enum Running {
    Task(JoinHandle<()>),
    /// Stops when the sender is dropped.
    Thread {
        _stop: oneshot::Sender<()>,
    },
}

impl ContentOrigin {
    /// Starts an origin on the current runtime.
    ///
    /// # Errors
    /// If the listener cannot be bound.
    pub async fn start(options: ContentOptions) -> io::Result<Self> {
        let listener = TcpListener::bind((options.address, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(accept(listener, options, shared.clone()));
        Ok(Self {
            address,
            options,
            shared,
            running: Running::Task(task),
        })
    }

    /// Starts an origin on a thread of its own, so that it takes no time from the runtime that
    /// measures.
    ///
    /// # Errors
    /// If the listener cannot be bound or the thread cannot be started.
    pub fn start_thread(options: ContentOptions) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((options.address, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let served = shared.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("content-origin".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let listener = TcpListener::from_std(listener).expect("is non-blocking");
                    tokio::select! {
                        () = accept(listener, options, served) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            address,
            options,
            shared,
            running: Running::Thread { _stop: stop },
        })
    }

    /// Address at which the origin listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns an http URL of this origin.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Changes all objects without `v` in the URL: they get new content and a new validator.
    pub fn set_version(&self, version: u64) {
        self.shared.version.store(version, Ordering::Relaxed);
    }

    /// Returns the content that the origin now serves for `target` (path and query).
    #[must_use]
    pub fn content(&self, target: &str) -> Content {
        object(target, &self.options, &self.shared).content
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let shared = &self.shared;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            connections: load(&shared.connections),
            requests: load(&shared.requests),
            not_modified: load(&shared.not_modified),
            partial: load(&shared.partial),
            body_bytes: load(&shared.body_bytes),
        }
    }
}

impl Drop for ContentOrigin {
    fn drop(&mut self) {
        if let Running::Task(task) = &self.running {
            task.abort();
        }
    }
}

async fn accept(listener: TcpListener, options: ContentOptions, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = shared.clone();
        connections.spawn(async move {
            // An error only means that the client disconnected, which closes no other connection.
            let _ = serve(socket, &options, &shared).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut socket: TcpStream, options: &ContentOptions, shared: &Shared) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut input = Vec::with_capacity(4 << 10);
    let mut output = Vec::with_capacity(PAGE);
    loop {
        let end = loop {
            if let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if input.len() > HEAD_MAX || socket.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        };
        // Counted before the response is sent, because a test may read the counter as soon as it
        // has the response.
        shared.requests.fetch_add(1, Ordering::Relaxed);
        if !options.wait.is_zero() {
            tokio::time::sleep(options.wait).await;
        }
        output.clear();
        let last = match Request::parse(&input[..end]) {
            Some(request) => {
                answer(&mut socket, &mut output, &request, options, shared).await?;
                request.close
            }
            None => {
                let refused = b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                socket.write_all(refused).await?;
                true
            }
        };
        if last {
            return socket.shutdown().await;
        }
        input.drain(..end);
    }
}

async fn answer(
    socket: &mut TcpStream,
    output: &mut Vec<u8>,
    request: &Request<'_>,
    options: &ContentOptions,
    shared: &Shared,
) -> io::Result<()> {
    let Object {
        content,
        version,
        lifetime,
    } = object(request.target, options, shared);
    let length = content.length();
    let etag = content::etag(version, length);
    let matches = |condition: &str| condition.split(',').any(|each| each.trim() == etag);
    let not_modified = request
        .if_none_match
        .is_some_and(|value| value == "*" || matches(value));
    let range = request
        .range
        .filter(|_| request.if_range.is_none_or(|value| value == etag));
    let range = range
        .filter(|_| request.method == "GET")
        .and_then(|range| Range::parse(range, length));
    let (from, to) = match range {
        _ if not_modified => (0, 0),
        Some(Range::Part { from, to }) => (from, to),
        Some(Range::Unsatisfiable) => (0, 0),
        None => (0, length),
    };
    let size = to - from;
    let status = match range {
        _ if not_modified => "304 Not Modified",
        Some(Range::Part { .. }) => "206 Partial Content",
        Some(Range::Unsatisfiable) => "416 Range Not Satisfiable",
        None => "200 OK",
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "an origin must send Date (RFC 9110, section 6.6.1); Squid asks again without it"
    )]
    let date = HttpDate::from(SystemTime::now());
    // Writing into memory cannot fail.
    let _ = write!(
        output,
        "HTTP/1.1 {status}\r\nDate: {date}\r\nETag: {etag}\r\n"
    );
    let _ = match lifetime {
        Some(seconds) => write!(output, "Cache-Control: max-age={seconds}\r\n"),
        None => write!(output, "Cache-Control: no-store\r\n"),
    };
    output.extend_from_slice(b"Accept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\n");
    match range {
        _ if not_modified => {}
        Some(Range::Part { from, to }) => {
            let _ = write!(
                output,
                "Content-Range: bytes {from}-{}/{length}\r\n",
                to - 1
            );
        }
        Some(Range::Unsatisfiable) => {
            let _ = write!(output, "Content-Range: bytes */{length}\r\n");
        }
        None => {}
    }
    if !not_modified {
        let _ = write!(output, "Content-Length: {size}\r\n");
    }
    output.extend_from_slice(b"\r\n");
    if not_modified {
        shared.not_modified.fetch_add(1, Ordering::Relaxed);
    } else if range.is_some() {
        shared.partial.fetch_add(1, Ordering::Relaxed);
    }
    let mut at = if request.method == "HEAD" { to } else { from };
    shared.body_bytes.fetch_add(to - at, Ordering::Relaxed);
    loop {
        let begun = output.len();
        let page = usize::try_from(to - at).map_or(PAGE, |left| left.min(PAGE - begun.min(PAGE)));
        output.resize(begun + page, 0);
        content.fill(at, &mut output[begun..]);
        at += page as u64;
        socket.write_all(output).await?;
        output.clear();
        if at == to {
            return Ok(());
        }
    }
}

/// The object that a target names.
struct Object {
    content: Content,
    version: u64,
    /// Freshness lifetime, seconds; `None` if the object may not be stored.
    lifetime: Option<u64>,
}

fn object(target: &str, options: &ContentOptions, shared: &Shared) -> Object {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let (mut size, mut version, mut lifetime) = (None, None, Some(options.max_age));
    for pair in query.split('&') {
        if pair == "no-store" {
            lifetime = None;
        }
        let Some((name, value)) = pair.split_once('=') else {
            continue;
        };
        match (name, value.parse()) {
            ("size", Ok(value)) => size = Some(value),
            ("v", Ok(value)) => version = Some(value),
            ("max-age", Ok(value)) => lifetime = Some(value),
            _ => {}
        }
    }
    let version = version.unwrap_or_else(|| shared.version.load(Ordering::Relaxed));
    let size = size.unwrap_or_else(|| match options.sizes {
        Sizes::Web => content::web_size(options.seed, target),
        Sizes::Fixed(size) => size,
    });
    Object {
        content: content::body_for(options.seed, target, version, size),
        version,
        lifetime,
    }
}

/// The parts of a request that this origin uses.
#[derive(Default)]
struct Request<'a> {
    method: &'a str,
    target: &'a str,
    range: Option<&'a str>,
    if_range: Option<&'a str>,
    if_none_match: Option<&'a str>,
    close: bool,
}

impl<'a> Request<'a> {
    fn parse(head: &'a [u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let http_10 = words.next()? == "HTTP/1.0";
        if !matches!(method, "GET" | "HEAD") {
            return None;
        }
        // A target in absolute-form names the same resource as the path in it.
        let target = match target.strip_prefix("http://") {
            Some(rest) => rest.find('/').map_or("/", |path| &rest[path..]),
            None => target,
        };
        let mut request = Self {
            method,
            target,
            close: http_10,
            ..Self::default()
        };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match name.len() {
                5 if name.eq_ignore_ascii_case("range") => request.range = Some(value),
                8 if name.eq_ignore_ascii_case("if-range") => request.if_range = Some(value),
                13 if name.eq_ignore_ascii_case("if-none-match") => {
                    request.if_none_match = Some(value);
                }
                10 if name.eq_ignore_ascii_case("connection") => {
                    request.close |= value.eq_ignore_ascii_case("close");
                }
                _ => {}
            }
        }
        Some(request)
    }
}

/// A byte range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    Part { from: u64, to: u64 },
    Unsatisfiable,
}

impl Range {
    /// Returns `None` if the server must or may ignore the field: another unit, several ranges,
    /// invalid syntax.
    fn parse(value: &str, length: u64) -> Option<Self> {
        let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
        let (from, to) = match (first, last) {
            ("", suffix) => (length.saturating_sub(suffix.parse().ok()?), length),
            (first, "") => (first.parse().ok()?, length),
            (first, last) => {
                let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
                if last < first {
                    return None;
                }
                (first, length.min(last.saturating_add(1)))
            }
        };
        Some(if from < to {
            Self::Part { from, to }
        } else {
            Self::Unsatisfiable
        })
    }
}

const PAGE: usize = 64 << 10;
const HEAD_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyEnd, Client, content};

    #[tokio::test]
    async fn content_can_be_verified_from_its_name() {
        let origin = ContentOrigin::start(ContentOptions::default())
            .await
            .unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        for target in [
            "/obj/1",
            "/obj/2?size=0",
            "/obj/3?size=65536",
            "/obj/4?size=1000000&v=9",
        ] {
            let response = client.get(target, &[]).await.unwrap();
            assert_eq!((response.status, response.end), (200, BodyEnd::Complete));
            assert_eq!(response.complaints, [""; 0]);
            let (version, length) = content::parse_etag(response.field("ETag").unwrap()).unwrap();
            assert_eq!(length, response.body.len() as u64);
            let expected = content::body_for(1, target, version, length);
            assert_eq!(content::verify(&expected, 0, &response.body), Ok(()));
            assert_eq!(origin.content(target), expected);
        }
        // An absolute URL, as a proxy sends it.
        let response = client
            .get(&origin.url("/obj/4?size=1000000&v=9"), &[])
            .await
            .unwrap();
        assert_eq!(
            response.body,
            origin.content("/obj/4?size=1000000&v=9").bytes()
        );
        assert_eq!(
            (origin.counts().requests, origin.counts().connections),
            (5, 1)
        );
    }

    #[tokio::test]
    async fn ranges_and_conditions_are_those_of_the_rfc() {
        let origin = ContentOrigin::start(ContentOptions::default())
            .await
            .unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        let target = "/obj/1?size=1000&max-age=7";
        let etag = content::etag(0, 1000);
        let whole = origin.content(target).bytes();
        type Case<'a> = (&'a [(&'a str, &'a str)], u16, &'a [u8]);
        let cases: [Case<'_>; 11] = [
            (&[("Range", "bytes=0-0")], 206, &whole[..1]),
            (&[("Range", "bytes=10-19")], 206, &whole[10..20]),
            (&[("Range", "bytes=990-2000")], 206, &whole[990..]),
            (&[("Range", "bytes=-10")], 206, &whole[990..]),
            (
                &[("Range", "bytes=990-"), ("If-Range", &etag)],
                206,
                &whole[990..],
            ),
            (
                &[("Range", "bytes=990-"), ("If-Range", "\"other\"")],
                200,
                &whole,
            ),
            (&[("Range", "bytes=1000-")], 416, &[]),
            (&[("Range", "bytes=5-4")], 200, &whole),
            (&[("Range", "bytes=0-1,5-6")], 200, &whole),
            (&[("If-None-Match", &format!("\"x\", {etag}"))], 304, &[]),
            (&[("If-None-Match", "\"x\"")], 200, &whole),
        ];
        for (fields, status, body) in cases {
            let response = client.get(target, fields).await.unwrap();
            assert_eq!(
                (response.status, &response.body[..]),
                (status, body),
                "{fields:?}"
            );
            assert_eq!(response.field("ETag"), Some(etag.as_str()));
            assert_eq!(response.field("Cache-Control"), Some("max-age=7"));
        }
        client.request("HEAD", target, &[]).await.unwrap();
        let head = client.read_response("HEAD").await.unwrap();
        assert_eq!(head.field("Content-Length"), Some("1000"));
        assert_eq!(
            (origin.counts().not_modified, origin.counts().partial),
            (1, 6)
        );
    }

    #[tokio::test]
    async fn a_query_may_forbid_storing() {
        let origin = ContentOrigin::start(ContentOptions::default())
            .await
            .unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        let response = client.get("/obj/1?size=9&no-store", &[]).await.unwrap();
        assert_eq!(response.field("Cache-Control"), Some("no-store"));
        assert_eq!(response.body.len(), 9);
    }

    #[tokio::test]
    async fn a_new_version_has_new_content_and_a_new_validator() {
        let origin = ContentOrigin::start_thread(ContentOptions::default()).unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        let before = client.get("/obj/1?size=99", &[]).await.unwrap();
        origin.set_version(5);
        let condition = [("If-None-Match", before.field("ETag").unwrap())];
        let after = client.get("/obj/1?size=99", &condition).await.unwrap();
        assert_eq!(after.status, 200);
        assert_ne!(before.body, after.body);
        assert_eq!(after.body, origin.content("/obj/1?size=99").bytes());
    }
}
