//! TLS and HTTP/2 on both sides of the real proxy: changed certificates; hits, misses, ranges and
//! broken origins as a client with HTTP/2 sees them.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use hashcache_testkit::{Client, Origin, RawRequest, Script};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::Home;
use crate::operation::Running;

pub type Pair = CertifiedKey<KeyPair>;

pub fn pair(name: &str) -> Pair {
    generate_simple_self_signed([name.to_owned()]).unwrap()
}

pub fn write(home: &Home, certificate: &Pair, key: &Pair) {
    home.file("site.pem", &certificate.cert.pem());
    home.file("site.key", &key.signing_key.serialize_pem());
}

/// Makes a handshake with the proxy as `a.test`; `None` if it presents another certificate.
pub async fn handshake(at: SocketAddr, pair: &Pair, alpn: &[u8]) -> Option<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(pair.cert.der().clone()).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = ServerName::try_from("a.test").unwrap();
    let socket = TcpStream::connect(at).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, socket).await.ok()
}

/// The response to a request in HTTP/1.1 through TLS.
async fn asked(mut stream: TlsStream<TcpStream>, host: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // Succeeds only after close_notify.
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_speaks_tls_and_a_reload_takes_a_new_certificate_but_no_bad_one() {
    let origin = Origin::start(|_| Script::response(200, &[], "the site"));
    let origin = origin.await.unwrap();
    let home = Home::new();
    let (old, new) = (pair("a.test"), pair("a.test"));
    write(&home, &old, &old);
    let accelerate = format!("--accelerate={}", origin.url("").trim_end_matches('/'));
    let flags = [
        "--config=/dev/null",
        &accelerate,
        "--accelerate-host=a.test",
        "--tls-cert=site.pem",
        "--tls-key=site.key",
    ];
    let mut proxy = Running::start(&home, &flags);
    let stream = handshake(proxy.listen, &old, b"http/1.1").await.unwrap();
    let answer = asked(stream, "a.test").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("the site"), "{answer}");

    // A certificate with the key of another one.
    write(&home, &new, &old);
    proxy.signal(Signal::HUP);
    let said = proxy.says("configuration not reloaded");
    assert!(said.contains("site.pem"), "{said}");
    assert!(handshake(proxy.listen, &old, b"http/1.1").await.is_some());

    write(&home, &new, &new);
    proxy.signal(Signal::HUP);
    proxy.says("configuration reloaded");
    assert!(handshake(proxy.listen, &old, b"http/1.1").await.is_none());
    let stream = handshake(proxy.listen, &new, b"http/1.1").await.unwrap();
    let answer = asked(stream, "b.test").await;
    assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
    proxy.end();
}

#[test]
fn a_certificate_that_cannot_be_had_is_named() {
    let home = Home::new();
    let site = pair("a.test");
    write(&home, &site, &pair("a.test"));
    for (key, expected) in [
        ("--tls-key=site.key", "does not match its key"),
        ("--tls-key=none.key", "cannot read a key from none.key"),
        ("--tls-key=site.pem", "cannot read a key from site.pem"),
    ] {
        let flags = [
            "proxy",
            "--config=/dev/null",
            "--admin=none",
            "--listen=127.0.0.1:0",
            "--cache=c.img",
            "--cache-size=32MiB",
            "--accelerate=http://127.0.0.1:9",
            "--tls-cert=site.pem",
            key,
        ];
        let outcome = home.hashcache(&flags, &[]);
        assert_eq!(outcome.status, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(expected), "{outcome:?}");
        assert!(outcome.stderr.contains("hint: "), "{outcome:?}");
    }
}

type Http2 = SendRequest<Empty<Bytes>>;

/// A client in HTTP/2 of a site on `home`'s proxy.
async fn http2(proxy: &Running, site: &Pair) -> Http2 {
    let stream = handshake(proxy.listen, site, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn get(path: &str, fields: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let mut request = Request::get(format!("https://a.test{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Empty::new()).unwrap()
}

async fn text(response: Response<hyper::body::Incoming>) -> hyper::Result<Bytes> {
    Ok(response.into_body().collect().await?.to_bytes())
}

fn site(request: &RawRequest) -> Script {
    let fields = [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")];
    match request.target() {
        "/broken" => Script::new()
            .head(200, &[("Content-Length", "100")])
            .bytes("a beginning")
            .close(),
        "/trailers" => Script::new().bytes(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
             5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n",
        ),
        _ => Script::response(200, &fields, "a page of the site"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_http_2_a_client_gets_what_it_would_in_http_1() {
    let origin = Origin::start(site).await.unwrap();
    let home = Home::new();
    let pair = pair("a.test");
    write(&home, &pair, &pair);
    let accelerate = format!("--accelerate={}", origin.url("").trim_end_matches('/'));
    let flags = [
        "--config=/dev/null",
        &accelerate,
        "--accelerate-host=a.test",
        "--tls-cert=site.pem",
        "--tls-key=site.key",
        "--access-log=log",
        "--log-format=combined",
    ];
    let proxy = Running::start(&home, &flags);
    let mut client = http2(&proxy, &pair).await;
    for expected in ["; fwd=uri-miss; ttl=", "hashcache; hit"] {
        let response = client.send_request(get("/page", &[])).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.version(), Version::HTTP_2);
        let status = response.headers()["cache-status"].to_str().unwrap();
        assert!(status.contains(expected), "{status}");
        assert!(!response.headers().contains_key("connection"));
        assert_eq!(text(response).await.unwrap(), "a page of the site");
    }
    let range = get("/page", &[("range", "bytes=2-5")]);
    let response = client.send_request(range).await.unwrap();
    assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(response.headers()["content-range"], "bytes 2-5/18");
    assert_eq!(text(response).await.unwrap(), "page");
    let known = get("/page", &[("if-none-match", "\"1\"")]);
    let response = client.send_request(known).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    let mut head = get("/page", &[]);
    *head.method_mut() = hyper::Method::HEAD;
    let response = client.send_request(head).await.unwrap();
    assert_eq!(response.headers()["content-length"], "18");
    assert_eq!(text(response).await.unwrap(), "");
    let response = client.send_request(get("/trailers", &[])).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "7");
    // A broken response must not look complete: it ends in a reset, before or after the head.
    if let Ok(response) = client.send_request(get("/broken", &[])).await {
        text(response).await.unwrap_err();
    }
    let elsewhere = Request::get("https://b.test/page").body(Empty::new());
    let response = client.send_request(elsewhere.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
    let two = get("/page", &[("host", "b.test")]);
    let response = client.send_request(two).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(response.headers().contains_key("proxy-status"));
    drop(client);
    proxy.end();
    assert_eq!(origin.request_count(), 3);
    let log = fs::read_to_string(home.path().join("log")).unwrap();
    assert_eq!(
        log.matches("HTTP/2.0\"").count(),
        log.lines().count(),
        "{log}"
    );
    assert!(log.lines().count() >= 8, "{log}");
}

/// An origin with TLS that serves one request per connection.
async fn tls_origin(pair: &Pair) -> SocketAddr {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()));
    let certificate: CertificateDer<'static> = pair.cert.der().clone();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(socket).await else {
                continue;
            };
            let mut head = vec![0; 4096];
            assert!(stream.read(&mut head).await.unwrap() > 0);
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn an_https_url_is_fetched_from_an_origin_that_can_be_believed() {
    let pair = pair("127.0.0.1");
    let origin = tls_origin(&pair).await;
    let home = Home::new();
    home.file("authority.pem", &pair.cert.pem());
    for (flag, status) in [
        ("--upstream-ca=authority.pem", 200),
        ("--name=hashcache", 502),
    ] {
        let proxy = Running::start(&home, &["--config=/dev/null", flag]);
        let mut client = Client::connect(proxy.listen).await.unwrap();
        let host = origin.to_string();
        let url = format!("https://{host}/");
        let answer = client.get(&url, &[("Host", &host)]).await.unwrap();
        assert_eq!(answer.status, status, "{flag}");
        let text = String::from_utf8(answer.body.clone()).unwrap();
        if status == 200 {
            assert_eq!(text, "secret");
        } else {
            let why = answer.field("Proxy-Status").unwrap();
            assert!(why.contains("error=tls_certificate_error"), "{why}");
            assert!(why.contains("unknown issuer"), "{why}");
            assert!(text.contains("--upstream-ca"), "{text}");
        }
        proxy.end();
    }
}
