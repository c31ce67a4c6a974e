//! TLS interception by the real proxy: hits instead of tunnels, and tunnels wherever interception
//! is not possible.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use hashcache_proxy::{CertificateAuthority, MakeOptions};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::Home;
use crate::operation::Running;

/// An origin that speaks HTTP/1.1 through TLS.
pub struct Site {
    address: SocketAddr,
    pub certificate: CertificateDer<'static>,
    requests: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

/// Client certificates that an origin requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    Anybody,
    Certified,
    /// With TLS 1.2 alone: a client without a certificate gets the error within the handshake.
    CertifiedOld,
}

pub type Pair = CertifiedKey<KeyPair>;

pub fn pair(name: &str) -> Pair {
    generate_simple_self_signed([name.to_owned()]).unwrap()
}

impl Site {
    pub async fn start(pair: &Pair, clients: Clients) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), pair, clients).await
    }

    /// Starts the site at an address that another site used before.
    async fn start_at(address: SocketAddr, pair: &Pair, clients: Clients) -> Self {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()));
        let certificate: CertificateDer<'static> = pair.cert.der().clone();
        let builder = match clients {
            Clients::Anybody => ServerConfig::builder().with_no_client_auth(),
            Clients::Certified | Clients::CertifiedOld => {
                let roots = roots(std::slice::from_ref(&certificate));
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
                let versions = match clients {
                    Clients::CertifiedOld => &[&rustls::version::TLS12][..],
                    _ => rustls::ALL_VERSIONS,
                };
                ServerConfig::builder_with_protocol_versions(versions)
                    .with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = builder.with_single_cert(vec![certificate.clone()], key);
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let accepting = tokio::spawn(async move {
            // The connections end with this task.
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else {
                        return;
                    };
                    let _ = answer(stream, &count).await;
                });
            }
        });
        Self {
            address,
            certificate,
            requests,
            accepting,
        }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Stops the site: its port is closed afterwards.
    async fn stop(&mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

/// Answers the requests of one connection; after an upgrade, echoes all bytes.
async fn answer(
    mut stream: tokio_rustls::server::TlsStream<TcpStream>,
    count: &AtomicUsize,
) -> io::Result<()> {
    // The user who has logged in on this connection.
    let mut user = None;
    loop {
        let head = head_of(&mut stream).await?;
        count.fetch_add(1, Ordering::Relaxed);
        if head.contains("GET /login ") {
            let answer = login_answer(&head, &mut user);
            say(&mut stream, answer.as_bytes()).await?;
            continue;
        }
        if head.contains("GET /socket ") {
            let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                             Upgrade: websocket\r\n\r\n";
            say(&mut stream, switching.as_bytes()).await?;
            let (mut read, mut write) = tokio::io::split(stream);
            tokio::io::copy(&mut read, &mut write).await?;
            return write.shutdown().await;
        }
        let control = if head.contains("GET /private ") {
            "private, no-store"
        } else {
            "max-age=3600"
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: {control}\r\nContent-Length: 8\r\n\r\nthe page"
        );
        say(&mut stream, answer.as_bytes()).await?;
    }
}

/// The answer of an origin that logs in connections: `T3 NAME` ends a login that `T1` has begun.
fn login_answer(head: &str, user: &mut Option<String>) -> String {
    let message = head
        .lines()
        .find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let value = value.strip_prefix("NTLM ")?;
            name.eq_ignore_ascii_case("authorization").then_some(value)
        })
        .unwrap_or_default();
    let (status, challenge, content) = match (message.strip_prefix("T3"), &*user) {
        (Some(name), Some(begun)) if begun.is_empty() => {
            *user = Some(name.to_owned());
            ("200 OK", "", format!("hello {name}"))
        }
        (_, Some(name)) if !name.is_empty() => ("200 OK", "", format!("hello {name}")),
        _ if message == "T1" => {
            *user = Some(String::new());
            let challenge = "WWW-Authenticate: NTLM CHALLENGE\r\n";
            ("401 Unauthorized", challenge, "CHALLENGE".to_owned())
        }
        _ => {
            let offer = "WWW-Authenticate: NTLM\r\n";
            ("401 Unauthorized", offer, "who is there?".to_owned())
        }
    };
    let length = content.len();
    format!(
        "HTTP/1.1 {status}\r\n{challenge}Cache-Control: public, max-age=600\r\n\
         Content-Length: {length}\r\n\r\n{content}"
    )
}

/// Requests `/login` with these credentials, if any; returns the content.
pub async fn login(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: &str,
    credentials: &str,
) -> String {
    let field = match credentials {
        "" => String::new(),
        credentials => format!("Authorization: {credentials}\r\n"),
    };
    let request = format!("GET /login HTTP/1.1\r\nHost: {host}\r\n{field}\r\n");
    say(stream, request.as_bytes()).await.unwrap();
    let head = head_of(stream).await.unwrap();
    let length = head.lines().find_map(|line| {
        let line = line.to_ascii_lowercase();
        line.strip_prefix("content-length: ")?.parse().ok()
    });
    let mut content = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut content).await.unwrap();
    String::from_utf8(content).unwrap()
}

/// Writes and flushes: TLS may otherwise keep the bytes until the next write.
pub async fn say(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Reads a head byte by byte, so that no byte after it is consumed.
pub async fn head_of(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

fn roots(certificates: &[CertificateDer<'static>]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).unwrap();
    }
    roots
}

/// Makes an authority in `home`; its root.
#[expect(
    clippy::disallowed_methods,
    reason = "the proxy judges it by the same clock"
)]
pub fn authority(home: &Home, only: &[&str]) -> CertificateDer<'static> {
    let options = MakeOptions {
        name: "Tests".to_owned(),
        only: only.iter().map(|it| (*it).to_owned()).collect(),
        now: SystemTime::now(),
    };
    let authority = CertificateAuthority::make(&home.path().join("ca"), &options).unwrap();
    CertificateDer::from(authority.root_der().to_vec())
}

/// A proxy that trusts `site` and intercepts `hosts`, with more flags.
pub fn proxy(home: &Home, site: &Site, hosts: &str, more: &[&str]) -> Running {
    configured(home, site, hosts, &[&["--config=/dev/null"], more].concat())
}

/// Starts the proxy with a configuration file among the flags.
fn configured(home: &Home, site: &Site, hosts: &str, more: &[&str]) -> Running {
    let pem = pem(&site.certificate);
    home.file("origin.pem", &pem);
    let port = format!("--allow-connect-port={}", site.port());
    let hosts = format!("--intercept={hosts}");
    let flags = [
        "--upstream-ca=origin.pem",
        "--intercept-ca=ca",
        "--access-log=log",
        &port,
        &hosts,
    ];
    Running::start(home, &[&flags, more].concat())
}

pub fn pem(certificate: &CertificateDer<'_>) -> String {
    let mut text = String::new();
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (at, part) in certificate.chunks(3).enumerate() {
        let bits = part
            .iter()
            .fold(0u32, |all, byte| all << 8 | u32::from(*byte))
            << (8 * (3 - part.len()));
        for place in 0..4 {
            let digit = bits >> (18 - 6 * place) & 63;
            text.push(if place <= part.len() {
                char::from(digits[digit as usize])
            } else {
                '='
            });
        }
        if at % 16 == 15 {
            text.push('\n');
        }
    }
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// Sends a CONNECT to `host` with these lines; returns the socket and the head of the answer.
async fn ask_for(proxy: &Running, host: &str, fields: &str) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(proxy.listen).await.unwrap();
    let head = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    say(&mut socket, head.as_bytes()).await.unwrap();
    let head = head_of(&mut socket).await.unwrap();
    (socket, head)
}

/// A connection through the proxy to `authority`, before any byte is sent on it.
async fn connected(proxy: &Running, authority: &str) -> TcpStream {
    let (socket, answer) = ask_for(proxy, authority, "").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    socket
}

/// A client: the certificate it trusts and the protocols it offers.
#[derive(Clone)]
pub struct Program {
    roots: RootCertStore,
    protocols: Vec<Vec<u8>>,
}

impl Program {
    pub fn new(trusted: &CertificateDer<'static>, protocols: &[&[u8]]) -> Self {
        Self {
            roots: roots(std::slice::from_ref(trusted)),
            protocols: protocols.iter().map(|it| it.to_vec()).collect(),
        }
    }

    /// Returns this client with other protocols.
    pub fn speaking(&self, protocols: &[&[u8]]) -> Self {
        Self {
            protocols: protocols.iter().map(|it| it.to_vec()).collect(),
            ..self.clone()
        }
    }

    /// Makes a TLS handshake as a client of `name`.
    pub async fn shake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        name: &str,
        socket: S,
    ) -> io::Result<TlsStream<S>> {
        let mut config = ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = self.protocols.clone();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, socket)
            .await
    }

    /// Connects through the proxy to that name at `port`.
    pub async fn reach(
        &self,
        proxy: &Running,
        name: &str,
        port: u16,
    ) -> io::Result<TlsStream<TcpStream>> {
        let socket = connected(proxy, &format!("{name}:{port}")).await;
        self.shake(name, socket).await
    }
}

/// The server's certificate in this connection.
fn shown<S>(stream: &TlsStream<S>) -> &CertificateDer<'static> {
    &stream.get_ref().1.peer_certificates().unwrap()[0]
}

/// Requests `path` of `host`; returns the head of the response after reading its content.
async fn get(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), host: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    say(stream, request.as_bytes()).await.unwrap();
    let head = head_of(stream).await.unwrap();
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    let mut content = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut content).await.unwrap();
    if head.starts_with("HTTP/1.1 200 ") && !path.contains("self") {
        assert_eq!(content, b"the page");
    }
    head
}

fn status(head: &str) -> &str {
    head.lines()
        .find_map(|line| line.strip_prefix("Cache-Status: "))
        .unwrap_or("none")
}

pub const HTTP_1: &[&[u8]] = &[b"http/1.1"];
pub const HTTP_2: &[&[u8]] = &[b"h2", b"http/1.1"];

#[tokio::test(flavor = "multi_thread")]
async fn the_second_visit_is_a_hit_in_both_versions() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let proxy = proxy(&home, &site, "a.localhost", &[]);
    let host = format!("a.localhost:{}", site.port());
    // A client that offers no protocol in ALPN speaks HTTP/1.1.
    for (protocols, expected) in [(HTTP_1, "fwd=uri-miss"), (&[], "hit")] {
        let program = Program::new(&root, protocols);
        let mut stream = program
            .reach(&proxy, "a.localhost", site.port())
            .await
            .unwrap();
        assert_ne!(*shown(&stream), site.certificate);
        let head = get(&mut stream, &host, "/page").await;
        assert!(status(&head).contains(expected), "{head}");
        let head = get(&mut stream, &host, "/page").await;
        assert!(status(&head).contains("hit"), "{head}");
    }
    let program = Program::new(&root, HTTP_2);
    let stream = program
        .reach(&proxy, "a.localhost", site.port())
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (host, expected) in [
        (&*host, StatusCode::OK),
        ("b.localhost", StatusCode::MISDIRECTED_REQUEST),
    ] {
        let request = Request::get(format!("https://{host}/page")).body(Empty::<Bytes>::new());
        let response = sender.send_request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), expected);
        if expected == StatusCode::OK {
            assert!(
                response.headers()["cache-status"]
                    .to_str()
                    .unwrap()
                    .contains("hit")
            );
            let content = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(content, "the page");
        }
    }
    assert_eq!(site.requests(), 1);
    let handshakes = "hashcache_intercepted_total{handshake=\"finished\"}";
    assert_eq!(proxy.figure(handshakes).await, "3");
    assert_eq!(proxy.figure("hashcache_verified_hosts").await, "1");
    // The stop of the proxy closes idle connections inside a tunnel as it does those outside.
    let program = Program::new(&root, HTTP_1);
    let resting = program.reach(&proxy, "a.localhost", site.port()).await;
    let since = Instant::now();
    proxy.end();
    assert!(since.elapsed() < Duration::from_secs(15));
    drop((sender, resting));
    let log = fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(
        log.matches(&format!("NONE_NONE/200 0 CONNECT {host} "))
            .count(),
        4,
        "{log}"
    );
    assert!(log.contains(&format!(" GET https://{host}/page ")), "{log}");
    assert!(!log.contains("TCP_TUNNEL"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_is_there_when_the_origin_is_gone_also_after_a_restart() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let mut site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let host = format!("a.localhost:{}", site.port());
    let program = Program::new(&root, HTTP_1);
    let first = proxy(&home, &site, "a.localhost", &[]);
    let mut stream = program
        .reach(&first, "a.localhost", site.port())
        .await
        .unwrap();
    get(&mut stream, &host, "/page").await;
    drop(stream);
    site.stop().await;
    let visit = async |proxy: &Running| {
        let mut stream = program
            .reach(proxy, "a.localhost", site.port())
            .await
            .unwrap();
        let head = get(&mut stream, &host, "/page").await;
        assert!(status(&head).contains("hit"), "{head}");
        // A request inside the tunnel that misses gets the error of the stopped origin.
        let head = get(&mut stream, &host, "/other").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        assert!(head.contains("connection_refused"), "{head}");
    };
    visit(&first).await;
    first.end();
    let again = proxy(&home, &site, "a.localhost", &[]);
    visit(&again).await;
    again.end();

    // The proxy has lost its record of the host, so every client gets the error of the missing
    // origin.
    let kept = home.path().join("c.verified");
    let text = fs::read_to_string(&kept).unwrap();
    assert!(text.contains(&host), "{text}");
    fs::write(&kept, &text[..text.len() - 2]).unwrap();
    let mut damaged = proxy(&home, &site, "a.localhost", &[]);
    damaged.says("the file is damaged");
    let (_, answer) = ask_for(&damaged, &host, "").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    damaged.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_and_destinations_are_refused_as_for_any_connect() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let host = format!("a.localhost:{}", site.port());
    let program = Program::new(&root, HTTP_1);
    let first = proxy(&home, &site, "a.localhost,b.localhost", &[]);
    let mut stream = program
        .reach(&first, "a.localhost", site.port())
        .await
        .unwrap();
    get(&mut stream, &host, "/page").await;
    drop(stream);
    first.end();
    let deny = ["--deny-destination=127.0.0.0/8"];
    let proxy = proxy(&home, &site, "a.localhost,b.localhost", &deny);
    let mut stream = program
        .reach(&proxy, "a.localhost", site.port())
        .await
        .unwrap();
    let head = get(&mut stream, &host, "/page").await;
    assert!(status(&head).contains("hit"), "{head}");
    let head = get(&mut stream, &host, "/other").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    for to in [&format!("b.localhost:{}", site.port()), "a.localhost:25"] {
        let (_, answer) = ask_for(&proxy, to, "").await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_named_or_never_to_be_intercepted_shows_its_own_certificate() {
    let home = Home::new();
    let root = authority(&home, &["localhost"]);
    let names = [
        "a.localhost",
        "www.mybank.localhost",
        "b.localhost",
        "a.test",
    ];
    let own = generate_simple_self_signed(names.map(str::to_owned)).unwrap();
    let site = Site::start(&own, Clients::Anybody).await;
    let hosts = "a.localhost,www.mybank.localhost";
    let proxy = proxy(&home, &site, hosts, &[]);
    let program = Program::new(&site.certificate, HTTP_1);
    for name in ["b.localhost", "www.mybank.localhost"] {
        let mut stream = program.reach(&proxy, name, site.port()).await.unwrap();
        assert_eq!(*shown(&stream), site.certificate, "{name}");
        let head = get(&mut stream, &format!("{name}:{}", site.port()), "/page").await;
        assert_eq!(status(&head), "none", "{head}");
    }
    let never = "hashcache_not_intercepted_total{reason=\"never\"}";
    assert_eq!(proxy.figure(never).await, "1");
    let not_listed = "hashcache_not_intercepted_total{reason=\"not_listed\"}";
    assert_eq!(proxy.figure(not_listed).await, "1");
    proxy.end();
    drop(root);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_its_own_takes_a_host_off_the_list_of_those_never_to_be_intercepted() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("www.mybank.localhost"), Clients::Anybody).await;
    let config = "[intercept]\ndespite_never = [\"www.mybank.localhost\"]\n";
    home.file("hashcache.toml", config);
    home.file("origin.pem", &pem(&site.certificate));
    let port = format!("--allow-connect-port={}", site.port());
    let flags = [
        "--config=hashcache.toml",
        "--upstream-ca=origin.pem",
        "--intercept-ca=ca",
        "--intercept=*.mybank.localhost",
        &port,
    ];
    let mut proxy = Running::start(&home, &flags);
    let program = Program::new(&root, HTTP_1);
    let reach = program.reach(&proxy, "www.mybank.localhost", site.port());
    assert_ne!(*shown(&reach.await.unwrap()), site.certificate);
    // A reload without the authority changes nothing.
    let (ca, away) = (home.path().join("ca"), home.path().join("away"));
    fs::rename(&ca, &away).unwrap();
    proxy.signal(Signal::HUP);
    let said = proxy.says("configuration not reloaded");
    assert!(said.contains("cannot use the CA in ca"), "{said}");
    let reach = program.reach(&proxy, "www.mybank.localhost", site.port());
    assert_ne!(*shown(&reach.await.unwrap()), site.certificate);
    fs::rename(&away, &ca).unwrap();
    // With the authority's directory back, a reload loads it again.
    home.file("hashcache.toml", "");
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    let program = Program::new(&site.certificate, HTTP_1);
    let reach = program.reach(&proxy, "www.mybank.localhost", site.port());
    assert_eq!(*shown(&reach.await.unwrap()), site.certificate);
    proxy.end();
}

/// A stream that writes a few bytes at a time.
struct Dripping(TcpStream, usize);

impl AsyncRead for Dripping {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Dripping {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self(socket, step) = self.get_mut();
        let written = ready!(Pin::new(socket).poll_write(cx, &bytes[..bytes.len().min(*step)]))?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_in_many_segments_or_of_post_quantum_size_is_one_all_the_same() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let proxy = proxy(&home, &site, "a.localhost", &[]);
    let host = format!("a.localhost:{}", site.port());
    let long: Vec<Vec<u8>> = (0..60).map(|n| vec![b'a' + n; 200]).collect();
    let long: Vec<&[u8]> = long
        .iter()
        .map(|it| &**it)
        .chain([&b"http/1.1"[..]])
        .collect();
    for (protocols, step) in [
        (HTTP_1, 1),
        (&long[..], 1 << 16),
        (&long[..], 97),
        (&long[50..], 7),
    ] {
        let program = Program::new(&root, protocols);
        let socket = connected(&proxy, &host).await;
        socket.set_nodelay(true).unwrap();
        let mut stream = program
            .shake("a.localhost", Dripping(socket, step))
            .await
            .unwrap();
        assert_ne!(*shown(&stream), site.certificate);
        get(&mut stream, &host, "/page").await;
    }
    assert_eq!(site.requests(), 1);
    proxy.end();
}

/// An origin that records the bytes it receives and echoes them.
async fn echo() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    (address, accepting)
}

/// A record with a ClientHello of TLS 1.1, which names `a.localhost`.
fn old_hello() -> Vec<u8> {
    let name = b"a.localhost";
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let entry = [&[0][..], &length(name.len()), name].concat();
    let list = [&length(entry.len())[..], &entry].concat();
    let named = [&[0, 0][..], &length(list.len()), &list].concat();
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    let groups = [0, 10, 0, 4, 0, 2, 0, 23];
    let extensions = [&named[..], &signatures, &groups].concat();
    let suites = [0, 2, 0xc0, 0x09];
    let body = [
        &[3, 2][..],
        &[7; 32],
        &[0],
        &suites,
        &[1, 0],
        &length(extensions.len()),
        &extensions,
    ]
    .concat();
    let message = [&[1, 0][..], &length(body.len()), &body].concat();
    [&[22, 3, 1][..], &length(message.len()), &message].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_intercepted_is_passed_on_byte_for_byte() {
    let home = Home::new();
    authority(&home, &[]);
    let (address, _accepting) = echo().await;
    let port = format!("--allow-connect-port={}", address.port());
    let flags = [
        "--config=/dev/null",
        "--intercept-ca=ca",
        "--intercept=a.localhost",
        &port,
    ];
    let proxy = Running::start(&home, &flags);
    let authority = format!("a.localhost:{}", address.port());
    let hello = old_hello();
    let mut cut = hello.clone();
    // The length of the suites.
    cut[44] = 0xff;
    let endless = [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &[0; 0x3ffc]].concat();
    let endless = [&endless[..], &[22, 3, 1, 0x40, 0], &[0; 0x4000]].concat();
    for (what, bytes) in [
        ("not_tls", &b"SSH-2.0-OpenSSH_9.6\r\n"[..]),
        ("not_tls", b"GET / HTTP/1.1\r\n\r\n"),
        ("not_tls", &[0x80, 0x2e, 1, 3, 1]),
        ("old_tls", &hello),
        ("malformed", &cut),
        ("malformed", &[22, 3, 1, 0, 0, 22, 3, 1, 0, 0]),
        ("malformed", &[22, 99, 99, 99, 99, 99, 99, 99, 99]),
        ("ended", &hello[..20]),
        ("ended", &endless),
    ] {
        let mut socket = connected(&proxy, &authority).await;
        socket.write_all(bytes).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut heard = Vec::new();
        socket.read_to_end(&mut heard).await.unwrap();
        assert!(
            heard == bytes,
            "{what}: {} of {} bytes",
            heard.len(),
            bytes.len()
        );
        let counted = format!("hashcache_not_intercepted_total{{reason=\"{what}\"}}");
        assert_ne!(
            proxy.figure(&counted).await,
            "0",
            "{what} of {} bytes",
            bytes.len()
        );
    }
    // Nothing, or not enough, in three seconds.
    for begun in [&hello[..0], &hello[..30]] {
        let since = Instant::now();
        let mut socket = connected(&proxy, &authority).await;
        socket.write_all(begun).await.unwrap();
        let mut heard = vec![0; begun.len()];
        socket.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, begun);
        while proxy
            .figure("hashcache_not_intercepted_total{reason=\"slow\"}")
            .await
            == "0"
        {
            assert!(since.elapsed() < Duration::from_secs(20));
            sleep(Duration::from_millis(50)).await;
        }
        assert!(since.elapsed() >= Duration::from_secs(3) || !begun.is_empty());
        socket.write_all(b"more").await.unwrap();
        let mut more = [0; 4];
        socket.read_exact(&mut more).await.unwrap();
        assert_eq!(more, *b"more");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_names_another_host_or_none_sees_the_origin() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let names = ["a.localhost", "b.localhost", "127.0.0.1"].map(str::to_owned);
    let own = generate_simple_self_signed(names).unwrap();
    let site = Site::start(&own, Clients::Anybody).await;
    let proxy = proxy(&home, &site, "a.localhost,b.localhost", &[]);
    let program = Program::new(&site.certificate, HTTP_1);
    let to = format!("a.localhost:{}", site.port());
    for (name, to, reason) in [
        ("b.localhost", &*to, "other_name"),
        ("127.0.0.1", &to, "no_name"),
        (
            "127.0.0.1",
            &format!("127.0.0.1:{}", site.port()),
            "address",
        ),
    ] {
        let socket = connected(&proxy, to).await;
        let stream = program.shake(name, socket).await.unwrap();
        assert_eq!(*shown(&stream), site.certificate, "{reason}");
        let counted = format!("hashcache_not_intercepted_total{{reason=\"{reason}\"}}");
        assert_eq!(proxy.figure(&counted).await, "1", "{reason}");
    }
    let mail = Program::new(&site.certificate, &[b"imap"]);
    let socket = connected(&proxy, &to).await;
    // The origin has no protocols at all, so it takes what it gets.
    let stream = mail.shake("a.localhost", socket).await.unwrap();
    assert_eq!(*shown(&stream), site.certificate);
    let counted = "hashcache_not_intercepted_total{reason=\"not_http\"}";
    assert_eq!(proxy.figure(counted).await, "1");
    drop((root, stream));
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_refuses_gets_a_tunnel_from_its_third_try_on_and_another_keeps_its_hits() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let proxy = proxy(&home, &site, "a.localhost", &["--log-format=combined"]);
    let host = format!("a.localhost:{}", site.port());
    let believer = Program::new(&root, HTTP_1);
    // Trusts only the origin's certificate, as programs with a pinned certificate do.
    let refuser = Program::new(&site.certificate, HTTP_2);
    for _ in 0..2 {
        refuser
            .reach(&proxy, "a.localhost", site.port())
            .await
            .unwrap_err();
        // The client's alert arrives after the proxy has finished its handshake, so the refusal is
        // counted a moment later.
        let mut stream = believer
            .reach(&proxy, "a.localhost", site.port())
            .await
            .unwrap();
        get(&mut stream, &host, "/page").await;
    }
    let since = Instant::now();
    while proxy.figure("hashcache_refusing_clients").await == "0" {
        assert!(since.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_millis(20)).await;
    }
    let mut stream = refuser
        .reach(&proxy, "a.localhost", site.port())
        .await
        .unwrap();
    assert_eq!(*shown(&stream), site.certificate);
    let head = get(&mut stream, &host, "/page").await;
    assert_eq!(status(&head), "none", "{head}");
    drop(stream);
    let mut stream = believer
        .reach(&proxy, "a.localhost", site.port())
        .await
        .unwrap();
    let head = get(&mut stream, &host, "/page").await;
    assert!(status(&head).contains("hit"), "{head}");
    let mut client = hashcache_testkit::Client::connect(proxy.admin)
        .await
        .unwrap();
    let stats = client
        .get("/stats", &[("Host", "localhost")])
        .await
        .unwrap();
    let stats: serde_json::Value = serde_json::from_slice(&stats.body).unwrap();
    assert_eq!(stats["intercept"]["refusing"][0]["host"], "a.localhost");
    assert_eq!(stats["intercept"]["refusing"][0]["client"], "127.0.0.1");
    assert_eq!(stats["intercept"]["handshakes"]["refused"], 2);
    drop(stream);
    proxy.end();
    let log = fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(log.matches("error=certificate-refused").count(), 2, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_not_to_be_believed_or_wants_certificates_is_seen_by_the_client() {
    for (clients, trusted, reason) in [
        (Clients::Anybody, false, "unverified"),
        (Clients::Certified, true, "client_certificate"),
    ] {
        let home = Home::new();
        let root = authority(&home, &[]);
        let site = Site::start(&pair("a.localhost"), clients).await;
        let more: &[&str] = if trusted {
            &[]
        } else {
            &["--upstream-ca=other.pem"]
        };
        home.file("other.pem", &pair("other.localhost").cert.pem());
        home.file("origin.pem", &pem(&site.certificate));
        let port = format!("--allow-connect-port={}", site.port());
        let mut flags = vec![
            "--config=/dev/null",
            "--intercept-ca=ca",
            "--intercept=a.localhost",
            &port,
        ];
        flags.extend(more);
        if trusted {
            flags.push("--upstream-ca=origin.pem");
        }
        let proxy = Running::start(&home, &flags);
        // A client that trusts only our authority sees the error of the origin's certificate.
        let believer = Program::new(&root, HTTP_1);
        let error = believer
            .reach(&proxy, "a.localhost", site.port())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("UnknownIssuer"), "{error}");
        // A client that trusts the origin gets a tunnel to it.
        let program = Program::new(&site.certificate, HTTP_1);
        let stream = program
            .reach(&proxy, "a.localhost", site.port())
            .await
            .unwrap();
        assert_eq!(*shown(&stream), site.certificate);
        drop(stream);
        let counted = format!("hashcache_not_intercepted_total{{reason=\"{reason}\"}}");
        assert_eq!(proxy.figure(&counted).await, "2", "{reason}");
        assert_eq!(proxy.figure("hashcache_verified_hosts").await, "0");
        proxy.end();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_origin_that_goes_bad_what_is_stored_stays_and_one_that_refuses_us_is_forgotten() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let own = pair("a.localhost");
    let mut site = Site::start(&own, Clients::Anybody).await;
    let (port, address) = (site.port(), site.address);
    let host = format!("a.localhost:{port}");
    let proxy = proxy(&home, &site, "a.localhost", &[]);
    let program = Program::new(&root, HTTP_1);
    let mut stream = program.reach(&proxy, "a.localhost", port).await.unwrap();
    get(&mut stream, &host, "/page").await;
    site.stop().await;
    let mut bad = Site::start_at(address, &pair("a.localhost"), Clients::Anybody).await;
    let mut stream = program.reach(&proxy, "a.localhost", port).await.unwrap();
    let head = get(&mut stream, &host, "/page").await;
    assert!(status(&head).contains("hit"), "{head}");
    let head = get(&mut stream, &host, "/other").await;
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(head.contains("tls_certificate_error"), "{head}");
    assert_eq!(bad.requests(), 0);
    assert_eq!(proxy.figure("hashcache_verified_hosts").await, "1");
    bad.stop().await;

    let _certified = Site::start_at(address, &own, Clients::CertifiedOld).await;
    let mut stream = program.reach(&proxy, "a.localhost", port).await.unwrap();
    let head = get(&mut stream, &host, "/other").await;
    assert!(head.contains("tls_alert_received"), "{head}");
    assert_eq!(proxy.figure("hashcache_verified_hosts").await, "0");
    let error = program.reach(&proxy, "a.localhost", port).await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    let counted = "hashcache_not_intercepted_total{reason=\"client_certificate\"}";
    assert_eq!(proxy.figure(counted).await, "1");
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_there_is_one_host() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let proxy = proxy(&home, &site, "a.localhost,b.localhost", &[]);
    let port = site.port();
    let program = Program::new(&root, HTTP_1);
    let own = format!("a.localhost:{port}");
    for (request, expected) in [
        (format!("GET /page HTTP/1.1\r\nHost: {own}\r\n\r\n"), "200"),
        (
            format!("GET https://{own}/page HTTP/1.1\r\nHost: {own}\r\n\r\n"),
            "200",
        ),
        ("GET /page HTTP/1.0\r\n\r\n".to_owned(), "200"),
        (
            format!("GET /page HTTP/1.1\r\nHost: b.localhost:{port}\r\n\r\n"),
            "421",
        ),
        (
            "GET /page HTTP/1.1\r\nHost: a.localhost\r\n\r\n".to_owned(),
            "421",
        ),
        (
            format!("GET https://b.localhost:{port}/page HTTP/1.1\r\nHost: {own}\r\n\r\n"),
            "421",
        ),
        (
            format!("GET http://{own}/page HTTP/1.1\r\nHost: {own}\r\n\r\n"),
            "421",
        ),
        (
            format!("CONNECT {own} HTTP/1.1\r\nHost: {own}\r\n\r\n"),
            "501",
        ),
        (format!("OPTIONS * HTTP/1.1\r\nHost: {own}\r\n\r\n"), "200"),
        (
            "OPTIONS * HTTP/1.1\r\nHost: b.localhost\r\n\r\n".to_owned(),
            "421",
        ),
        (
            format!("GET /page HTTP/1.1\r\nHost: {}\r\n\r\n", proxy.listen),
            "421",
        ),
    ] {
        let mut stream = program.reach(&proxy, "a.localhost", port).await.unwrap();
        say(&mut stream, request.as_bytes()).await.unwrap();
        let head = head_of(&mut stream).await.unwrap();
        assert!(
            head[8..].starts_with(&format!(" {expected} ")),
            "{request}{head}"
        );
    }
    assert_eq!(site.requests(), 1);
    // The same resource by an https URL, without a tunnel.
    let mut client = hashcache_testkit::Client::connect(proxy.listen)
        .await
        .unwrap();
    let answer = client
        .get(&format!("https://{own}/page"), &[("Host", &own)])
        .await
        .unwrap();
    assert!(answer.field("Cache-Status").unwrap().contains("hit"));
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_inside_is_passed_on() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let proxy = proxy(&home, &site, "a.localhost", &[]);
    let program = Program::new(&root, HTTP_1);
    let mut stream = program
        .reach(&proxy, "a.localhost", site.port())
        .await
        .unwrap();
    let request = format!(
        "GET /socket HTTP/1.1\r\nHost: a.localhost:{}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\n\r\n",
        site.port()
    );
    say(&mut stream, request.as_bytes()).await.unwrap();
    let head = head_of(&mut stream).await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for word in ["one", "two"] {
        say(&mut stream, word.as_bytes()).await.unwrap();
        let mut heard = [0; 3];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, word.as_bytes());
    }
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_self_test_is_answered_by_the_proxy_alone() {
    let home = Home::new();
    let root = authority(&home, &["localhost"]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let port = format!("--allow-connect-port=443,{}", site.port());
    let proxy = proxy(&home, &site, "a.localhost", &[&port]);
    let name = "trust-test.hashcache.internal";
    let program = Program::new(&root, HTTP_1);
    let mut stream = program.reach(&proxy, name, 443).await.unwrap();
    let head = get(&mut stream, name, "/self").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("Access-Control-Allow-Origin: *"), "{head}");
    assert!(head.contains("Cache-Control: no-store"), "{head}");
    drop(stream);
    // A client that does not trust the authority is intercepted every time: this name has no origin
    // to which a tunnel could lead.
    let stranger = Program::new(&site.certificate, HTTP_1);
    for _ in 0..4 {
        stranger.reach(&proxy, name, 443).await.unwrap_err();
    }
    assert_eq!(proxy.figure("hashcache_refusing_clients").await, "0");
    let mut stream = program.reach(&proxy, name, 443).await.unwrap();
    get(&mut stream, name, "/self").await;
    proxy.end();
}

#[test]
fn an_authority_that_cannot_be_had_is_named_and_hosts_need_one() {
    let home = Home::new();
    let flags = [
        "proxy",
        "--config=/dev/null",
        "--admin=none",
        "--listen=127.0.0.1:0",
        "--cache=c.img",
    ];
    let outcome = home.hashcache(
        &[&flags[..], &["--intercept-ca=none", "--intercept=a.test"]].concat(),
        &[],
    );
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    let told = "hashcache: cannot use the CA in none: ";
    assert!(outcome.stderr.contains(told), "{outcome:?}");
    assert!(
        outcome.stderr.contains("`hashcache ca init`"),
        "{outcome:?}"
    );
    for (more, told) in [
        (&["--intercept=a.test"][..], "needs a certificate authority"),
        (
            &["--intercept-list=cacheable"],
            "needs a certificate authority",
        ),
        (
            &["--intercept-ca=ca", "--intercept=127.0.0.1"],
            "it is an IP address",
        ),
        (
            &["--intercept-ca=ca", "--intercept=*.test"],
            "a whole top-level domain",
        ),
        (
            &["--intercept-ca=ca", "--accelerate=http://127.0.0.1:9"],
            "works only in a forward proxy",
        ),
    ] {
        let outcome = home.hashcache(&[&flags[..], more].concat(), &[]);
        assert_eq!(outcome.status, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(told), "{outcome:?}");
    }
    let path = PathBuf::from("c.verified");
    assert!(!home.path().join(path).exists());
}

/// A proxy for `a.localhost` with access rules.
fn with_rules(home: &Home, site: &Site, rules: &str) -> Running {
    home.file("rules.toml", rules);
    configured(home, site, "a.localhost", &["--config=rules.toml"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_no_tunnel_to_another_host_that_the_rules_deny() {
    let home = Home::new();
    authority(&home, &[]);
    let names = ["a.localhost", "free.localhost", "denied.localhost"];
    let pair = generate_simple_self_signed(names.map(str::to_owned)).unwrap();
    let site = Site::start(&pair, Clients::Anybody).await;
    let rules = "[[access]]\naction = \"deny\"\ndestinations = [\"denied.localhost\"]\n";
    let proxy = with_rules(&home, &site, rules);
    let program = Program::new(&site.certificate, HTTP_1);
    for (name, is_served) in [("free.localhost", true), ("denied.localhost", false)] {
        let socket = connected(&proxy, &format!("a.localhost:{}", site.port())).await;
        let shaken = program.shake(name, socket).await;
        assert_eq!(shaken.is_ok(), is_served, "{name}");
    }
    proxy.end();
}

const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11)\r\n";

/// Opens a connection as a browser that trusts the authorities of `program` does.
async fn browse(proxy: &Running, program: &Program, host: &str) -> TlsStream<TcpStream> {
    let (socket, head) = ask_for(proxy, host, BROWSER).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let name = host.split(':').next().unwrap();
    program.shake(name, socket).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_rule_that_denies_a_host_is_seen_inside_an_interception() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let mut proxy = with_rules(&home, &site, "");
    let host = format!("a.localhost:{}", site.port());
    let program = Program::new(&root, HTTP_1);
    let mut inside = browse(&proxy, &program, &host).await;
    for expected in ["fwd=uri-miss", "hit", "hit"] {
        let head = get(&mut inside, &host, "/page").await;
        assert!(status(&head).contains(expected), "{head}");
    }
    drop(inside);
    let asked = site.requests();
    let deny = "contact = \"Ms Abara\"\n[[access]]\nname = \"no games\"\naction = \"deny\"\n\
                destinations = [\"a.localhost\", \"b.localhost\"]\n";
    home.file("rules.toml", deny);
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    // Objects in memory are no exception.
    for path in ["/page", "/other"] {
        let mut inside = browse(&proxy, &program, &host).await;
        // Browsers connect before they need it.
        sleep(Duration::from_millis(1500)).await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\n\r\n");
        say(&mut inside, request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // To the end: it is the only one on the connection.
        inside.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        for word in ["\r\nConnection: close\r\n", "no games", "Ms Abara"] {
            assert!(answer.contains(word), "{word}: {answer}");
        }
    }
    let in_http_2 = Program::new(&root, HTTP_2);
    let inside = browse(&proxy, &in_http_2, &host).await;
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(inside)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get(format!("https://{host}/page")).body(Empty::<Bytes>::new());
    let response = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    drop(response.into_body().collect().await.unwrap());
    let ended = timeout(Duration::from_secs(20), connection).await;
    ended.unwrap().unwrap().unwrap();
    // A program that does not trust our authority gets no tunnel.
    let (socket, head) = ask_for(&proxy, &host, BROWSER).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let stranger = Program::new(&site.certificate, HTTP_1);
    assert!(stranger.shake("a.localhost", socket).await.is_err());
    // A host that is not intercepted, a program, another proxy.
    let other = format!("b.localhost:{}", site.port());
    let through = format!("{BROWSER}Via: 1.1 other\r\n");
    for (host, fields) in [
        (&other, BROWSER),
        (&host, "User-Agent: curl/8.0\r\n"),
        (&host, &through),
    ] {
        let (_, head) = ask_for(&proxy, host, fields).await;
        assert!(head.starts_with("HTTP/1.1 403 "), "{host} {fields}: {head}");
    }
    // A later rule promises that TLS of this host never ends here.
    let never = "[[access]]\naction = \"tunnel\"\ndestinations = [\"a.localhost\"]\n\
                 times = [\"mon 00:00-00:01\"]\n";
    home.file("rules.toml", &format!("{deny}{never}"));
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    let (_, head) = ask_for(&proxy, &host, BROWSER).await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(site.requests(), asked);
    proxy.end();
    let log = fs::read_to_string(home.path().join("log")).unwrap();
    assert!(log.contains(&format!(" GET https://{host}/page ")), "{log}");
    let denied = log.lines().filter(|line| line.contains(" TCP_DENIED"));
    // Three pages, the stranger, three that get none, and the last one.
    assert_eq!(denied.count(), 8, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn that_the_line_is_down_is_seen_inside_an_interception() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let proxy = proxy(&home, &site, "a.localhost", &["--offline=on"]);
    let host = format!("a.localhost:{}", site.port());
    let program = Program::new(&root, HTTP_1);
    let mut inside = browse(&proxy, &program, &host).await;
    let head = get(&mut inside, &host, "/page").await;
    assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
    let (_, head) = ask_for(&proxy, &host, "").await;
    assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
    assert_eq!(site.requests(), 0);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hides_the_host_of_its_handshake_from_the_rules_gets_no_tunnel() {
    let home = Home::new();
    authority(&home, &[]);
    let (address, _accepting) = echo().await;
    let port = format!("--allow-connect-port={}", address.port());
    let flags = ["--intercept-ca=ca", "--intercept=a.localhost", &port];
    let host = format!("a.localhost:{}", address.port());
    let limits = "[limits]\nhead_time = \"1s\"\n";
    let about_hosts = "[[access]]\naction = \"deny\"\ndestinations = [\"denied.localhost\"]\n";
    let about_others = format!("{about_hosts}clients = [\"127.0.0.9\"]\n");
    // Three seconds pass before the rest is sent.
    let slow = &old_hello()[..30];
    let malformed = &[22, 3, 1, 0, 0, 22, 3, 1, 0, 0][..];
    let no_tls = &b"SSH-2.0-OpenSSH_9.6\r\n"[..];
    for (rules, begun, is_served) in [
        (about_hosts, slow, false),
        (about_hosts, malformed, false),
        (about_hosts, no_tls, true),
        (&*about_others, slow, true),
        (&*about_others, malformed, true),
    ] {
        home.file("rules.toml", &format!("{rules}{limits}"));
        let all = [&["--config=rules.toml"][..], &flags].concat();
        let proxy = Running::start(&home, &all);
        let mut socket = connected(&proxy, &host).await;
        socket.write_all(begun).await.unwrap();
        let mut heard = vec![0; begun.len()];
        let is_heard = socket.read_exact(&mut heard).await.is_ok();
        assert_eq!(is_heard, is_served, "{begun:?}");
        if is_heard {
            assert_eq!(heard, begun);
        }
        drop(socket);
        proxy.end();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dot_behind_the_host_of_a_connect_is_no_way_around_interception() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let rules = "[[access]]\naction = \"deny\"\nmethods = [\"GET\"]\n";
    let proxy = with_rules(&home, &site, rules);
    let host = format!("a.localhost.:{}", site.port());
    let socket = connected(&proxy, &host).await;
    let program = Program::new(&root, HTTP_1);
    let mut inside = program.shake("a.localhost", socket).await.unwrap();
    let head = get(&mut inside, &host, "/").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(site.requests(), 0);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_inside_an_intercepted_connection_are_counted_by_their_limits() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let rules = "
        [[limit]]
        name = \"calm\"
        quota = \"1MiB\"
        every = \"month\"
        requests = 1
        requests_burst = 3
        [[access]]
        action = \"limit\"
        limits = [\"calm\"]";
    let proxy = with_rules(&home, &site, rules);
    let host = format!("a.localhost:{}", site.port());
    let program = Program::new(&root, HTTP_1);
    let mut inside = program
        .reach(&proxy, "a.localhost", site.port())
        .await
        .unwrap();
    let head = get(&mut inside, &host, "/").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let bytes = "hashcache_quota_bytes_total{limit=\"calm\"}";
    let fetched = proxy.figure(bytes).await;
    assert_ne!(fetched, "0");
    let mut heads = Vec::new();
    for _ in 0..20 {
        heads.push(get(&mut inside, &host, "/").await);
    }
    let refused = heads.iter().find(|head| head.starts_with("HTTP/1.1 429 "));
    let refused = refused
        .expect("20 requests take no 18 s")
        .to_ascii_lowercase();
    assert!(refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    assert!(refused.contains("\r\nproxy-status: "), "{refused}");
    assert_eq!(site.requests(), 1);
    assert_eq!(proxy.figure(bytes).await, fetched, "hits are free");
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_is_asked_for_the_user_that_a_rule_about_requests_inside_needs() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    // The password is `right:1`.
    let hash = "$2y$04$bvIG6Nmid91Mu9RcmmWZfO9uJIet1vZ5RxKoHcc2APXp/vBHdBvP.";
    home.file("users", &format!("anna:{hash}\n"));
    let rules = "
        htpasswd = [\"users\"]
        [[access]]
        action = \"allow\"
        methods = [\"POST\"]
        users = [\"anna\"]
        [[access]]
        action = \"deny\"
        methods = [\"POST\"]
        ";
    let mut proxy = with_rules(&home, &site, rules);
    let login = "Proxy-Authorization: Basic YW5uYTpyaWdodDox\r\n";
    let mut kept = None;
    for (name, login, status) in [
        ("a.localhost", "", "407"),
        // It is not intercepted.
        ("localhost", "", "200"),
        ("a.localhost", login, "200"),
    ] {
        let host = format!("{name}:{}", site.port());
        let (socket, head) = ask_for(&proxy, &host, login).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        if login.is_empty() {
            continue;
        }
        let program = Program::new(&root, HTTP_1);
        let mut inside = program.shake(name, socket).await.unwrap();
        let head = post(&mut inside, &host).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        kept = Some((inside, host));
    }
    assert_eq!(site.requests(), 1);
    // A user who is removed is none inside a connection either that was made before.
    let (mut inside, host) = kept.unwrap();
    home.file("users", &format!("bert:{hash}\n"));
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    let head = post(&mut inside, &host).await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert_eq!(site.requests(), 1);
    proxy.end();
}

/// Sends an empty POST; returns the head of the response.
async fn post(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), host: &str) -> String {
    let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
    say(stream, head.as_bytes()).await.unwrap();
    let head = head_of(stream).await.unwrap();
    // The content of the site's response.
    if head.starts_with("HTTP/1.1 200 ") {
        stream.read_exact(&mut [0; 8]).await.unwrap();
    }
    head
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_applies_to_hits_in_memory_inside_interceptions() {
    let home = Home::new();
    let root = authority(&home, &[]);
    let site = Site::start(&pair("a.localhost"), Clients::Anybody).await;
    let mut proxy = with_rules(&home, &site, "");
    let host = format!("a.localhost:{}", site.port());
    let program = Program::new(&root, HTTP_1);
    let inside = program.reach(&proxy, "a.localhost", site.port()).await;
    let mut inside = inside.unwrap();
    for expected in ["fwd=uri-miss", "hit", "hit"] {
        let head = get(&mut inside, &host, "/page").await;
        assert!(status(&head).contains(expected), "{head}");
    }
    let deny =
        "[[access]]\naction = \"deny\"\nmethods = [\"GET\"]\ndestinations = [\"a.localhost\"]\n";
    for (rules, status) in [(deny, "403"), ("", "200"), (deny, "403")] {
        home.file("rules.toml", rules);
        proxy.signal(Signal::HUP);
        proxy.says("configuration reloaded");
        let head = get(&mut inside, &host, "/page").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    assert_eq!(site.requests(), 1);
    proxy.end();
}
