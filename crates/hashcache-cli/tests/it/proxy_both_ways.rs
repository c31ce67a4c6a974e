//! A hit in memory is answered by the shortest way or by the usual one; no client may notice which.
//!
//! Each conversation takes place twice on connections of its own, against the same stored objects:
//! once as the client sent it, and once with a field that keeps its requests off the shortest way.
//! Status, fields, content, whether the connection goes on, and the entries of the access log must
//! be the same. `HASHCACHE_BOTH_WAYS=20000` has so many conversations made at random in each mode.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

mod heads;

use std::collections::{HashMap, VecDeque};
use std::fs;

use hashcache_testkit::Origin;
use hashcache_testkit::scenario::smuggling::SHAPES;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, sleep, timeout};

use self::heads::{Grammar, Names, PATHS, Requests};
use crate::Home;
use crate::operation::Running;
use crate::proxy_intercept::{self, Clients, HTTP_1, HTTP_2, Program, Site, authority, pair};
use crate::proxy_memory_hits::script;

/// A proxy, and how its clients speak to it.
struct Ways {
    proxy: Running,
    names: Names,
    entry: Entry,
    home: Home,
    /// Keeps the origin running.
    _origin: Box<dyn Send>,
    /// The responses to all clients, in this order.
    heard: Vec<Heard>,
    plain_hits: u64,
    /// An object may have been fetched again, which is in memory a moment later.
    is_cold: bool,
}

/// The responses to one client.
struct Heard {
    way: Way,
    /// The port of the client; a later client may have the same port.
    port: u16,
    /// The sizes of the responses, if the client knows what the log counts.
    sizes: Vec<Option<usize>>,
}

/// Which part of a conversation a client had.
#[derive(Clone, Copy)]
enum Way {
    WarmUp,
    Short,
    /// The requests of the client before, with the additional field.
    Usual,
}

/// How a connection begins.
enum Entry {
    Tcp,
    /// TLS of the site `a.test`.
    Tls(Program),
    /// CONNECT to `a.localhost` at this port, where TLS is intercepted.
    Intercepted(Program, u16),
}

trait Channel: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Channel for T {}

impl Ways {
    fn new(
        proxy: Running,
        names: Names,
        entry: Entry,
        home: Home,
        origin: impl Send + 'static,
    ) -> Self {
        Self {
            proxy,
            names,
            entry,
            home,
            _origin: Box::new(origin),
            heard: Vec::new(),
            plain_hits: 0,
            is_cold: true,
        }
    }

    async fn forward() -> Self {
        let (home, origin) = (Home::new(), Origin::start(script).await.unwrap());
        let proxy = Running::start(&home, &["--config=/dev/null", LOG, FORMAT]);
        let names = Names {
            scheme: "http",
            authority: origin.address().to_string(),
            is_absolute: true,
        };
        Self::new(proxy, names, Entry::Tcp, home, origin)
    }

    /// The site `a.test`.
    async fn site(is_tls: bool) -> Self {
        let (home, origin) = (Home::new(), Origin::start(script).await.unwrap());
        let site = format!(
            "[[site]]\nhosts = [\"a.test\"]\norigins = [\"http://{}\"]\n",
            origin.address()
        );
        home.file("config.toml", &site);
        let pair = pair("a.test");
        home.file("site.pem", &pair.cert.pem());
        home.file("site.key", &pair.signing_key.serialize_pem());
        let plain = ["--config=config.toml", LOG, FORMAT];
        let tls = ["--tls-cert=site.pem", "--tls-key=site.key"];
        let flags = if is_tls {
            [&plain[..], &tls].concat()
        } else {
            plain.to_vec()
        };
        let proxy = Running::start(&home, &flags);
        let (scheme, entry) = if is_tls {
            ("https", Entry::Tls(Program::new(pair.cert.der(), HTTP_1)))
        } else {
            ("http", Entry::Tcp)
        };
        let names = Names {
            scheme,
            authority: "a.test".to_owned(),
            is_absolute: false,
        };
        Self::new(proxy, names, entry, home, origin)
    }

    async fn intercepted() -> Self {
        let home = Home::new();
        let root = authority(&home, &[]);
        let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
        let proxy = proxy_intercept::proxy(&home, &site, "a.localhost", &[FORMAT]);
        let names = Names {
            scheme: "https",
            authority: format!("a.localhost:{}", site.port()),
            is_absolute: false,
        };
        let entry = Entry::Intercepted(Program::new(&root, HTTP_1), site.port());
        Self::new(proxy, names, entry, home, site)
    }

    /// A new connection, and its port at the client.
    async fn connect(&self) -> (Box<dyn Channel>, u16) {
        let direct = async || {
            let socket = TcpStream::connect(self.proxy.listen).await.unwrap();
            let port = socket.local_addr().unwrap().port();
            (socket, port)
        };
        match &self.entry {
            Entry::Tcp => {
                let (socket, port) = direct().await;
                (Box::new(socket), port)
            }
            Entry::Tls(program) => {
                let (socket, port) = direct().await;
                (
                    Box::new(program.shake("a.test", socket).await.unwrap()),
                    port,
                )
            }
            Entry::Intercepted(program, port) => {
                let stream = program.reach(&self.proxy, "a.localhost", *port).await;
                let stream = stream.unwrap();
                let port = stream.get_ref().0.local_addr().unwrap().port();
                (Box::new(stream), port)
            }
        }
    }

    /// Sends all bytes at once, and reads to the end of the connection.
    async fn say(&self, bytes: &[u8]) -> (u16, Vec<u8>) {
        let (stream, port) = self.connect().await;
        let (mut read, mut write) = tokio::io::split(stream);
        let mut said = Vec::new();
        let writing = async {
            // After a refusal the proxy need not read the rest.
            let _ = write.write_all(bytes).await;
            let _ = write.flush().await;
        };
        let both = async { tokio::join!(writing, read.read_to_end(&mut said)).1 };
        let ended = timeout(PATIENCE, both).await;
        assert!(ended.is_ok(), "no end: {}", bytes.escape_ascii());
        (port, said)
    }

    async fn count(&self) -> u64 {
        let figure = self.proxy.figure("hashcache_plain_hits_total").await;
        figure.parse().unwrap()
    }

    /// Asks for all objects until all are answered on the shortest way.
    async fn warm_up(&mut self) {
        if !std::mem::take(&mut self.is_cold) {
            return;
        }
        let requests = Requests::plain(&self.names, PATHS).closed(&self.names);
        let begun = Instant::now();
        loop {
            let before = self.count().await;
            let (port, _) = self.say(&requests.short).await;
            self.heard(Way::WarmUp, port, vec![None; requests.methods.len()]);
            if self.count().await - before == PATHS.len() as u64 {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "not all objects are in memory");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// The answers of the proxy in one of the ways.
    async fn answers(&mut self, way: Way, bytes: &[u8], methods: &[String]) -> Vec<Answer> {
        let (port, said) = self.say(bytes).await;
        let answers = Answer::all(&said, methods);
        self.is_cold = answers.iter().any(|it| it.head.contains("; fwd="));
        self.heard(way, port, answers.iter().map(|it| Some(it.size)).collect());
        answers
    }

    /// Has one conversation in both ways.
    async fn compare(&mut self, name: &str, requests: Requests) {
        let requests = requests.closed(&self.names);
        let what = || format!("{name}: {}", requests.short.escape_ascii());
        self.warm_up().await;
        let before = self.count().await;
        let methods = &requests.methods;
        let short = self.answers(Way::Short, &requests.short, methods).await;
        self.plain_hits += self.count().await - before;
        self.warm_up().await;
        let between = self.count().await;
        let usual = self.answers(Way::Usual, &requests.usual, methods).await;
        assert_eq!(self.count().await, between, "{}", what());
        assert_eq!(short.len(), usual.len(), "{}", what());
        assert!(!short.is_empty(), "{}", what());
        for (short, usual) in short.iter().zip(&usual) {
            assert_eq!(short.shape(), usual.shape(), "{}", what());
            assert!(short.content() == usual.content(), "{}", what());
        }
    }

    fn heard(&mut self, way: Way, port: u16, sizes: Vec<Option<usize>>) {
        self.heard.push(Heard { way, port, sizes });
    }

    /// A new connection in HTTP/2, and its port at the client.
    async fn connect_http2(&self) -> (Http2, u16) {
        let stream = match &self.entry {
            Entry::Tcp => unreachable!("HTTP/2 needs TLS"),
            Entry::Tls(program) => {
                let socket = TcpStream::connect(self.proxy.listen).await.unwrap();
                program.speaking(HTTP_2).shake("a.test", socket).await
            }
            Entry::Intercepted(program, port) => {
                let program = program.speaking(HTTP_2);
                program.reach(&self.proxy, "a.localhost", *port).await
            }
        };
        let stream = stream.unwrap();
        let port = stream.get_ref().0.local_addr().unwrap().port();
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        (sender, port)
    }

    /// The answers of the proxy to these requests in HTTP/2, one after the other.
    async fn answers_http2(&mut self, way: Way, requests: &[Request<()>]) -> Vec<Http2Answer> {
        let (mut client, port) = self.connect_http2().await;
        let mut answers = Vec::new();
        for request in requests {
            let request = request.clone().map(|()| Empty::new());
            let answer = async {
                let (head, body) = client.send_request(request).await?.into_parts();
                let body = body.collect().await?.to_bytes();
                Ok::<_, hyper::Error>((head.status, head.headers, body))
            };
            let (status, mut fields, content) = answer.await.unwrap();
            let says = |fields: &HeaderMap, word: &str| {
                let mut values = fields.get_all("cache-status").iter();
                values.any(|value| value.as_bytes().escape_ascii().to_string().contains(word))
            };
            self.is_cold |= says(&fields, "; fwd=");
            let is_error = status.is_client_error() || status.is_server_error();
            for name in ["age", "date", "content-length"] {
                if name != "content-length" || is_error {
                    fields.remove(name);
                }
            }
            // Values that change every second are left out.
            let values = fields
                .iter_mut()
                .filter(|(name, _)| *name == "cache-status");
            values.for_each(|(_, value)| *value = without_ttl(value));
            let content = if is_error { Bytes::new() } else { content };
            answers.push((status, fields, content));
        }
        self.heard(way, port, vec![None; requests.len()]);
        answers
    }

    /// With the shapes of the smuggling table too.
    async fn with_shapes(mut self) -> Self {
        self.compare_shapes().await;
        self
    }

    /// Asserts that both ways say the same, in the log too.
    async fn same(mut self) {
        self.compare_random().await;
        self.compare_logs();
    }

    async fn same_in_http2(mut self) {
        self.compare_http2().await;
        self.compare_logs();
    }

    async fn compare_http2(&mut self) {
        for seed in 0..number() {
            let random = fastrand::Rng::with_seed(seed);
            let requests = Grammar { random }.http2_requests(&self.names);
            let usual = requests.iter().cloned().map(|mut request| {
                let fields = request.headers_mut();
                fields.insert("x-usual", HeaderValue::from_static("1"));
                request
            });
            let usual_requests: Vec<_> = usual.collect();
            self.warm_up().await;
            let before = self.count().await;
            let short = self.answers_http2(Way::Short, &requests).await;
            self.plain_hits += self.count().await - before;
            self.warm_up().await;
            let between = self.count().await;
            let usual = self.answers_http2(Way::Usual, &usual_requests).await;
            assert_eq!(self.count().await, between, "seed {seed}");
            assert!(
                short == usual,
                "seed {seed}: {requests:?}\n{short:?}\n{usual:?}"
            );
        }
    }

    async fn compare_shapes(&mut self) {
        for shape in SHAPES {
            if shape.is_for(!self.names.is_absolute) {
                let requests = || Requests::of_shape(shape, &self.names);
                let (first, requests) = (requests().closed(&self.names), requests());
                // The target of the last request may be another object, which is stored now.
                self.warm_up().await;
                self.answers(Way::WarmUp, &first.usual, &first.methods)
                    .await;
                self.compare(shape.name, requests).await;
            }
        }
    }

    async fn compare_random(&mut self) {
        for seed in 0..number() {
            let random = fastrand::Rng::with_seed(seed);
            let requests = Grammar { random }.requests(&self.names);
            self.compare(&format!("seed {seed}"), requests).await;
        }
    }

    /// Compares the log entries of all conversations, each of which has one entry a response.
    fn compare_logs(self) {
        // The comparison needs responses from memory, not only responses that took the usual way
        // anyway.
        assert!(self.plain_hits > number(), "{} hits", self.plain_hits);
        self.proxy.end();
        let log = fs::read_to_string(self.home.path().join("log")).unwrap();
        let mut of_port = HashMap::<u64, VecDeque<Value>>::new();
        for line in log.lines() {
            let entry: Value = serde_json::from_str(line).unwrap();
            if entry["hashcache.outcome"] != "intercepted" {
                let port = entry["client.port"].as_u64().unwrap();
                of_port.entry(port).or_default().push_back(entry);
            }
        }
        let mut short = Vec::new();
        for heard in &self.heard {
            let entries = of_port.entry(u64::from(heard.port)).or_default();
            assert!(entries.len() >= heard.sizes.len(), "{entries:?}");
            let entries: Vec<Value> = entries.drain(..heard.sizes.len()).collect();
            let shapes = entries
                .into_iter()
                .zip(&heard.sizes)
                .map(|(mut entry, size)| {
                    if let Some(size) = size {
                        assert_eq!(entry["http.response.bytes"], *size as u64, "{entry}");
                    }
                    let members = entry.as_object_mut().unwrap();
                    for name in DIFFERENT {
                        assert!(members.remove(name).is_some(), "{name}");
                    }
                    entry
                });
            let shapes: Vec<_> = shapes.collect();
            match heard.way {
                Way::WarmUp => {}
                Way::Short => short = shapes,
                Way::Usual => assert_eq!(short, shapes),
            }
        }
        assert!(of_port.values().all(VecDeque::is_empty), "{of_port:?}");
    }
}

/// How many conversations are made at random in each mode.
fn number() -> u64 {
    let number = std::env::var("HASHCACHE_BOTH_WAYS").ok();
    number.map_or(NUMBER, |number| number.parse().unwrap())
}

type Http2 = SendRequest<Empty<Bytes>>;

type Http2Answer = (StatusCode, HeaderMap, Bytes);

/// A value of Cache-Status up to the lifetime that is left.
fn without_ttl(value: &HeaderValue) -> HeaderValue {
    let bytes = value.as_bytes();
    let end = bytes.windows(6).position(|it| it == b"; ttl=");
    HeaderValue::from_bytes(&bytes[..end.unwrap_or(bytes.len())]).unwrap()
}

/// A response as it came.
struct Answer {
    /// From the status line to the empty line.
    head: String,
    content: Vec<u8>,
    /// Bytes of the response, interim responses included.
    size: usize,
}

impl Answer {
    /// The responses to requests with these methods; fewer if the connection ended before.
    fn all(mut bytes: &[u8], methods: &[String]) -> Vec<Self> {
        let mut answers = Vec::new();
        for method in methods {
            let (mut head, mut size) = (String::new(), 0);
            while head.is_empty() || head.starts_with("HTTP/1.1 1") {
                let Some(end) = bytes.windows(4).position(|it| it == b"\r\n\r\n") else {
                    assert!(bytes.is_empty(), "{}", bytes.escape_ascii());
                    return answers;
                };
                head = String::from_utf8_lossy(&bytes[..end + 4]).into_owned();
                bytes = &bytes[end + 4..];
                size += end + 4;
            }
            let is_bodiless = method == "HEAD" || [" 204", " 304"].contains(&&head[8..12]);
            let length = head
                .lines()
                .find_map(|it| it.strip_prefix("Content-Length: "));
            let length = match length {
                _ if is_bodiless => 0,
                Some(length) => length.parse().unwrap(),
                None => panic!("no length: {head}"),
            };
            let content = bytes[..length].to_vec();
            bytes = &bytes[length..];
            size += length;
            answers.push(Self {
                head,
                content,
                size,
            });
        }
        assert!(bytes.is_empty(), "{}", bytes.escape_ascii());
        answers
    }

    /// Returns true if this is an error page of the proxy, which names the request.
    fn is_error(&self) -> bool {
        self.head[9..].starts_with(['4', '5'])
    }

    fn content(&self) -> &[u8] {
        if self.is_error() { b"" } else { &self.content }
    }

    /// The status line and the fields, sorted by name; lines of one name stay in order. Values that
    /// change every second are left out.
    fn shape(&self) -> Vec<&str> {
        let names = if self.is_error() { 3 } else { 2 };
        let ticking = &["Age: ", "Date: ", "Content-Length: "][..names];
        let mut lines: Vec<&str> = self.head.lines().collect();
        for line in &mut lines {
            let name = ticking.iter().find(|name| line.starts_with(**name));
            let ttl = line.find("; ttl=");
            *line = &line[..name.map(|name| name.len()).or(ttl).unwrap_or(line.len())];
        }
        lines.sort_by_key(|line| line.split(':').next().unwrap_or_default());
        lines
    }
}

/// Members of a log entry in which two requests differ.
const DIFFERENT: [&str; 6] = [
    "@timestamp",
    "client.port",
    "event.duration",
    "hashcache.first_byte_ns",
    "http.request.id",
    // The number of digits in Age changes.
    "http.response.bytes",
];

const LOG: &str = "--access-log=log";
const FORMAT: &str = "--log-format=json";
const PATIENCE: Duration = Duration::from_secs(20);
/// Conversations made at random in each mode.
const NUMBER: u64 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_proxy_says_the_same_in_both_ways() {
    Ways::forward().await.with_shapes().await.same().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_says_the_same_in_both_ways() {
    Ways::site(false).await.with_shapes().await.same().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_with_tls_says_the_same_in_both_ways() {
    Ways::site(true).await.same().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intercepted_host_says_the_same_in_both_ways() {
    Ways::intercepted().await.same().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_with_http_2_says_the_same_in_both_ways() {
    Ways::site(true).await.same_in_http2().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intercepted_host_with_http_2_says_the_same_in_both_ways() {
    Ways::intercepted().await.same_in_http2().await;
}
