//! Origins that speak HTTP/2, as clients of the real proxy see them: a connection that many
//! requests share may end because of one of them.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use hyper::header::{HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;

use crate::Home;
use crate::operation::Running;
use crate::proxy_sites::site_at;
use crate::proxy_tls::{Pair, pair};

/// An origin of one file. The first response breaks off in the middle of it, together with its
/// connection, when the test says so.
struct Origin {
    address: SocketAddr,
    /// Range and If-Range of the requests.
    heard: Arc<Mutex<Vec<[String; 2]>>>,
    cut: Arc<Notify>,
}

/// Content that has no end if its length is not complete.
struct Content {
    left: Bytes,
    has_end: bool,
    trailers: Option<HeaderMap>,
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let size = self.left.len().min(16 << 10);
        match (size, self.has_end) {
            (0, true) => Poll::Ready(self.trailers.take().map(|it| Ok(Frame::trailers(it)))),
            (0, false) => Poll::Pending,
            _ => Poll::Ready(Some(Ok(Frame::data(self.left.split_to(size))))),
        }
    }
}

/// The file: each four bytes are their number.
fn file() -> Bytes {
    (0..FILE_BYTES / 4)
        .flat_map(|number| u32::try_from(number).unwrap().to_be_bytes())
        .collect()
}

impl Origin {
    /// An origin whose responses have this Cache-Control, and that answers requests for ranges with
    /// `rest`: 206, or an error.
    async fn start(pair: &Pair, store: &'static str, rest: u16) -> Self {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der()));
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![pair.cert.der().clone()], key);
        let mut config = config.unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::<Mutex<Vec<[String; 2]>>>::default();
        let cut = Arc::<Notify>::default();
        let (all, cutting) = (Arc::clone(&heard), Arc::clone(&cut));
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let stream = acceptor.accept(socket).await.unwrap();
                let (all, cut) = (Arc::clone(&all), Arc::clone(&cutting));
                let answer = service_fn(move |request| {
                    let response = answer(&request, &all, (store, rest));
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(async move {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let serving = builder.serve_connection(TokioIo::new(stream), answer);
                    tokio::select! {
                        _ = serving => {}
                        () = cut.notified() => {}
                    }
                });
            }
        });
        Self {
            address,
            heard,
            cut,
        }
    }
}

fn answer<B>(
    request: &Request<B>,
    heard: &Mutex<Vec<[String; 2]>>,
    (store, rest): (&'static str, u16),
) -> Response<Content> {
    let field = |name: &str| {
        let value = request.headers().get(name);
        value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    };
    if request.uri().path() == "/text" {
        let content = Content {
            left: Bytes::new(),
            has_end: true,
            trailers: None,
        };
        let response = Response::builder().header("content-type", "text/html");
        let response = response.header("content-length", 5000);
        return response.body(content).unwrap();
    }
    if request.uri().path() == "/sum" {
        let sum = (
            HeaderName::from_static("x-sum"),
            HeaderValue::from_static("10"),
        );
        let content = Content {
            left: Bytes::from_static(b"1234"),
            has_end: true,
            trailers: Some(HeaderMap::from_iter([sum])),
        };
        let response = Response::builder().header("cache-control", store);
        let response = response
            .header("content-length", 4)
            .header("trailer", "x-sum");
        return response.body(content).unwrap();
    }
    let (range, condition) = (field("range"), field("if-range"));
    heard.lock().unwrap().push([range.clone(), condition]);
    let response = Response::builder()
        .header("etag", "\"v1\"")
        .header("cache-control", store);
    let first = range
        .strip_prefix("bytes=")
        .and_then(|it| it.strip_suffix('-'));
    let Some(first) = first else {
        let content = Content {
            left: file().slice(..FILE_BYTES / 2),
            has_end: false,
            trailers: None,
        };
        let response = response.header("content-length", FILE_BYTES);
        return response.body(content).unwrap();
    };
    if rest != 206 {
        let content = Content {
            left: Bytes::new(),
            has_end: true,
            trailers: None,
        };
        return response.status(rest).body(content).unwrap();
    }
    let first: usize = first.parse().unwrap();
    let content_range = format!("bytes {first}-{}/{FILE_BYTES}", FILE_BYTES - 1);
    let content = Content {
        left: file().slice(first..),
        has_end: true,
        trailers: None,
    };
    let response = response.status(206).header("content-range", content_range);
    response.body(content).unwrap()
}

const FILE_BYTES: usize = 2 << 20;
const WAIT: Duration = Duration::from_secs(30);

fn proxy(home: &Home, pair: &Pair, origin: &Origin) -> Running {
    home.file("origin.pem", &pair.cert.pem());
    let site = format!("--accelerate=https://localhost:{}", origin.address.port());
    let flags = ["--config=/dev/null", "--upstream-ca=origin.pem", &site];
    Running::start(home, &flags)
}

/// Asks for the file, cuts the connection of the origin in the middle of it, and returns all that
/// arrives.
async fn download(home: &Home, pair: &Pair, origin: &Origin) -> Vec<u8> {
    let proxy = proxy(home, pair, origin);
    let mut client = TcpStream::connect(proxy.listen).await.unwrap();
    let request = "GET /file HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = async {
        while answer.len() < FILE_BYTES / 2 {
            assert!(client.read_buf(&mut answer).await.unwrap() > 0);
        }
        origin.cut.notify_waiters();
        // A transfer that is not whole may end with a reset.
        let _ = client.read_to_end(&mut answer).await;
    };
    timeout(WAIT, reading).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_goes_on_when_its_shared_connection_to_the_origin_ends() {
    for store in ["no-store", "max-age=60"] {
        let (home, pair) = (Home::new(), pair("localhost"));
        let origin = Origin::start(&pair, store, 206).await;
        let answer = download(&home, &pair, &origin).await;
        let head = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
        let text = String::from_utf8_lossy(&answer[..head]).into_owned();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        assert!(answer[head..] == file(), "{store}: {} bytes", answer.len());
        let heard = origin.heard.lock().unwrap().clone();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert_eq!(heard[0], [String::new(), String::new()]);
        assert_eq!(heard[1][1], "\"v1\"", "{heard:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_answers_otherwise_than_with_the_rest_is_not_asked_for_it_again() {
    for (store, rest) in [
        ("no-store", 503),
        ("max-age=60", 520),
        ("no-store", 404),
        ("max-age=60", 404),
    ] {
        let (home, pair) = (Home::new(), pair("localhost"));
        let origin = Origin::start(&pair, store, rest).await;
        let answer = download(&home, &pair, &origin).await;
        assert!(answer.len() < FILE_BYTES, "{store}");
        let heard = origin.heard.lock().unwrap().clone();
        assert_eq!(heard.len(), 2, "{store}, {rest}: {heard:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_behind_content_of_a_stated_length_reach_a_client_that_asks_for_them() {
    let (home, pair) = (Home::new(), pair("localhost"));
    let origin = Origin::start(&pair, "no-store", 206).await;
    let proxy = proxy(&home, &pair, &origin);
    for (te, end) in [
        (
            "TE: trailers\r\nConnection: TE\r\n",
            "\r\n0\r\nX-Sum: 10\r\n\r\n",
        ),
        ("", "\r\n\r\n1234"),
    ] {
        let mut client = TcpStream::connect(proxy.listen).await.unwrap();
        let request = format!("GET /sum HTTP/1.1\r\nHost: a.test\r\n{te}\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let reading = async {
            while !answer.ends_with(end.as_bytes()) {
                assert!(
                    client.read_buf(&mut answer).await.unwrap() > 0,
                    "{answer:?}"
                );
            }
        };
        let is_read = timeout(WAIT, reading).await.is_ok();
        let text = String::from_utf8(answer).unwrap().to_ascii_lowercase();
        assert!(is_read, "{text}");
        assert_eq!(
            text.contains("content-length: 4\r\n"),
            te.is_empty(),
            "{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_for_text_that_would_be_encoded_gets_no_length_of_the_plain_text() {
    let (home, pair) = (Home::new(), pair("localhost"));
    home.file("origin.pem", &pair.cert.pem());
    let origin = Origin::start(&pair, "no-store", 206).await;
    let url = format!("\"https://localhost:{}\"", origin.address.port());
    let config = site_at(&url, "compress = [\"gzip\"]");
    let config = format!("upstream_ca = \"origin.pem\"\n{config}");
    let file = home.file("site.toml", &config);
    let proxy = Running::start(&home, &[&format!("--config={}", file.display())]);
    let mut client = TcpStream::connect(proxy.listen).await.unwrap();
    let request = "HEAD /text HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\
                   Connection: close\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(WAIT, client.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    let answer = answer.to_ascii_lowercase();
    assert!(answer.contains("content-encoding: gzip\r\n"), "{answer}");
    assert!(!answer.contains("content-length"), "{answer}");
}
