//! Requests to scripted origins on loopback. Time is paused: it moves only when both sides wait.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;

use bytes::Bytes;
use hashcache_base::net::address::Purpose;
use hashcache_base::share::Shares;
use hashcache_http::{Authority, Host};
use http_body::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, advance};

use super::dns::NameServers;
use super::framing::Framing;
use super::*;

/// A step of an origin on one connection; after the last step it closes.
#[derive(Clone, Copy)]
enum Step {
    /// Reads a head and as much content as its Content-Length says, or up to the last chunk.
    Request,
    /// Reads a head only.
    Head,
    Send(&'static str),
    /// Waits as long.
    Pause(u64),
    /// Breaks the connection with RST.
    Reset,
    /// Reads until the other side closes.
    Hang,
}
use Step::{Hang, Head, Pause, Request as Get, Reset, Send};

struct Origin {
    to: Endpoint,
    /// The received bytes, one text per connection.
    heard: Rc<RefCell<Vec<String>>>,
}

impl Origin {
    /// Serves one connection after the other as `scripts` say, then refuses.
    async fn start(scripts: &[&[Step]]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Rc::new(RefCell::new(Vec::new()));
        let mut scripts: VecDeque<Vec<Step>> = scripts.iter().map(|s| s.to_vec()).collect();
        let all = Rc::clone(&heard);
        spawn_local(async move {
            while let Some(script) = scripts.pop_front() {
                let (stream, _) = listener.accept().await.unwrap();
                all.borrow_mut().push(String::new());
                let number = all.borrow().len() - 1;
                spawn_local(play(stream, script, Rc::clone(&all), number));
            }
        });
        let host = Host::V4([127, 0, 0, 1].into());
        Self {
            to: Endpoint {
                authority: Authority { host, port },
                purpose: Purpose::Forward,
                scheme: Scheme::Http,
                through: None,
            },
            heard,
        }
    }

    fn connections(&self) -> usize {
        self.heard.borrow().len()
    }

    fn heard(&self, connection: usize) -> String {
        self.heard.borrow()[connection].clone()
    }
}

async fn play(
    mut stream: TcpStream,
    script: Vec<Step>,
    heard: Rc<RefCell<Vec<String>>>,
    number: usize,
) {
    for step in script {
        match step {
            Get | Head => {
                let mut text = String::new();
                while !is_whole(&text, matches!(step, Head)) {
                    let mut byte = [0];
                    if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                        return;
                    }
                    text.push(char::from(byte[0]));
                    heard.borrow_mut()[number].push(char::from(byte[0]));
                }
            }
            Send(text) => {
                if stream.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            Pause(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            Reset => {
                socket2::SockRef::from(&stream)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                return;
            }
            Hang => {
                let mut byte = [0];
                while stream.read(&mut byte).await.unwrap_or(0) == 1 {
                    heard.borrow_mut()[number].push(char::from(byte[0]));
                }
            }
        }
    }
}

fn is_whole(text: &str, head_only: bool) -> bool {
    let Some((head, content)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let head = head.to_ascii_lowercase();
    if head_only {
        true
    } else if head.contains("transfer-encoding: chunked") {
        content.starts_with("0\r\n")
            || content.contains("\r\n0\r\n") && content.ends_with("\r\n\r\n")
    } else if let Some((_, length)) = head.split_once("content-length: ") {
        content.len() >= length.lines().next().unwrap().parse::<usize>().unwrap()
    } else {
        true
    }
}

pub(super) fn upstream_with(limits: Limits) -> Upstream {
    let own = OwnAddresses::fixed(&[], &[]);
    let allow = ["127.0.0.0/8".parse().unwrap()];
    let destinations = Destinations::new(&allow, &[], own.clone());
    let names = DnsCache::new(NameServers::Fixed(Arc::new([])), limits.dns_time);
    let trust = Trust::of_test(&[]);
    Upstream::new(&UpstreamShared::new(
        names,
        destinations,
        own,
        trust,
        Arc::new(limits),
        HeaderValue::from_static("1.1 test"),
    ))
}

pub(super) fn upstream() -> Upstream {
    upstream_with(Limits::default())
}

pub(super) async fn locally<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

fn get(path: &str) -> Request<RequestBody> {
    let url = format!("http://ignored.test{path}");
    Request::get(url)
        .header("host", "a.test")
        .body(RequestBody::empty())
        .unwrap()
}

/// A POST whose content arrives in two pieces, with trailers.
fn post(content: &'static str) -> Request<RequestBody> {
    let body = http_body_util::Full::new(Bytes::from_static(content.as_bytes()));
    let request = Request::post("/").header("host", "a.test");
    request.body(RequestBody::streamed(body)).unwrap()
}

/// Content that waits for its pieces.
struct Slow(tokio::sync::mpsc::Receiver<Frame<Bytes>>);

impl http_body::Body for Slow {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// Content that breaks off at once.
struct Torn;

impl http_body::Body for Torn {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        std::task::Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())))
    }
}

async fn send(
    upstream: &Upstream,
    origin: &Origin,
    path: &str,
) -> Result<UpstreamExchange, SendFailure> {
    upstream
        .send(&origin.to, get(path), SendOptions::default())
        .await
}

async fn failure(steps: &[Step]) -> SendFailure {
    let origin = Origin::start(&[steps]).await;
    send(&upstream(), &origin, "/").await.unwrap_err()
}

/// All content, or the failure that ended it.
async fn content(body: &mut ResponseBody) -> (String, Option<Failure>) {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.extend(frame.into_data().unwrap_or_default()),
            Err(failure) => return (String::from_utf8(text).unwrap(), Some(failure)),
        }
    }
    (String::from_utf8(text).unwrap(), None)
}

async fn fetched(upstream: &Upstream, origin: &Origin, path: &str) -> (String, bool) {
    let mut exchange = send(upstream, origin, path).await.unwrap();
    let (text, failure) = content(exchange.response.body_mut()).await;
    assert_eq!(failure, None);
    assert!(exchange.response.body().is_complete());
    (text, exchange.reused)
}

const OK: Step = Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");

#[tokio::test(start_paused = true)]
async fn a_connection_is_used_again_after_each_kind_of_framed_response() {
    locally(async {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
        let script = [
            Get,
            OK,
            Get,
            Send(chunked),
            Get,
            Send("HTTP/1.1 204 No\r\n\r\n"),
            Get,
            Send("HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\n"),
            Get,
            OK,
            Hang,
        ];
        let origin = Origin::start(&[&script]).await;
        let upstream = upstream();
        let mut seen = Vec::new();
        for number in 0..5 {
            seen.push(fetched(&upstream, &origin, &format!("/{number}")).await);
            assert_eq!(upstream.permits.busy(), 0);
            assert_eq!(upstream.idle(), 1);
        }
        let expected = [
            ("ok", false),
            ("ok", true),
            ("", true),
            ("", true),
            ("ok", true),
        ];
        assert!(
            seen.iter()
                .map(|(text, reused)| (text.as_str(), *reused))
                .eq(expected)
        );
        assert_eq!(origin.connections(), 1);
        // Origin-form, names in title case, and the Host the caller gave.
        assert!(
            origin
                .heard(0)
                .starts_with("GET /0 HTTP/1.1\r\nHost: a.test\r\n\r\nGET /1 ")
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_after_their_time_and_when_the_origin_closes() {
    locally(async {
        let origin = Origin::start(&[&[Get, OK, Hang], &[Get, OK], &[Get, OK, Hang]]).await;
        let upstream = upstream();
        fetched(&upstream, &origin, "/").await;
        assert_eq!(upstream.idle(), 1);
        advance(Duration::from_secs(31)).await;
        assert_eq!(fetched(&upstream, &origin, "/").await, ("ok".into(), false));
        // The second origin connection closes behind its answer.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(fetched(&upstream, &origin, "/").await, ("ok".into(), false));
        tokio::time::sleep(Duration::from_secs(31)).await;
        assert_eq!(upstream.idle(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stale_connection_costs_one_repetition_and_only_one() {
    locally(async {
        for (first, second) in [
            (&[Get, OK, Get][..], &[Get, OK, Hang][..]),
            (&[Get, OK, Get, Reset], &[Get, OK, Hang]),
        ] {
            let origin = Origin::start(&[first, second]).await;
            let upstream = upstream();
            fetched(&upstream, &origin, "/1").await;
            assert_eq!(
                fetched(&upstream, &origin, "/2").await,
                ("ok".into(), false)
            );
            assert!(origin.heard(0).contains("/2") && origin.heard(1).contains("/2"));
        }
        let origin = Origin::start(&[&[Get, OK, Get], &[Get], &[Get, OK]]).await;
        let upstream = upstream();
        fetched(&upstream, &origin, "/1").await;
        let failed = send(&upstream, &origin, "/2").await.unwrap_err();
        assert_eq!(failed.failure, Failure::ConnectionTerminated);
        assert_eq!((failed.origin_bytes, origin.connections()), (0, 2));
        assert_eq!(upstream.permits.busy(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_repeated_with_content_after_a_byte_or_on_a_new_connection() {
    locally(async {
        let origin = Origin::start(&[&[Get, OK, Get], &[Get, OK]]).await;
        let first = upstream();
        fetched(&first, &origin, "/1").await;
        let failed = first
            .send(&origin.to, post("x"), SendOptions::default())
            .await
            .unwrap_err();
        assert_eq!(failed.failure, Failure::ConnectionTerminated);
        assert_eq!(origin.connections(), 1);

        // A POST without content is not idempotent: it may have been done.
        let origin = Origin::start(&[&[Get, OK, Get], &[Get, OK]]).await;
        let second = upstream();
        fetched(&second, &origin, "/1").await;
        let empty = Request::post("/").body(RequestBody::empty()).unwrap();
        assert!(
            second
                .send(&origin.to, empty, SendOptions::default())
                .await
                .is_err()
        );
        assert_eq!(origin.connections(), 1);

        let origin = Origin::start(&[&[Get, OK, Get, Send("HTTP/1.1 2")], &[Get, OK]]).await;
        let third = upstream();
        fetched(&third, &origin, "/1").await;
        let failed = send(&third, &origin, "/2").await.unwrap_err();
        assert_eq!(
            (failed.failure, failed.origin_bytes),
            (Failure::ConnectionTerminated, 10)
        );
        assert_eq!(origin.connections(), 1);

        assert_eq!(failure(&[Get]).await.failure, Failure::ConnectionTerminated);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_cannot_be_repeated_survives_the_end_of_an_idle_connection() {
    use std::io::{Read as _, Write as _};
    use std::sync::mpsc;

    locally(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (close, closing) = mpsc::channel::<()>();
        let (closed, is_closed) = mpsc::channel();
        // A thread, because nothing of this one may run while the connection ends.
        let origin = std::thread::spawn(move || {
            let mut heard = Vec::new();
            for is_first in [true, false] {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut text, mut page) = (String::new(), [0; 1024]);
                while !is_whole(&text, false) {
                    let read = stream.read(&mut page).unwrap();
                    assert!(read > 0, "{text}");
                    text.push_str(std::str::from_utf8(&page[..read]).unwrap());
                }
                heard.push(text);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                stream.write_all(answer).unwrap();
                if is_first {
                    closing.recv().unwrap();
                    drop(stream);
                    closed.send(()).unwrap();
                }
            }
            heard
        });
        let host = Host::V4([127, 0, 0, 1].into());
        let to = Endpoint {
            authority: Authority { host, port },
            purpose: Purpose::Forward,
            scheme: Scheme::Http,
            through: None,
        };
        let upstream = upstream();
        let options = SendOptions::default();
        let mut first = upstream
            .send(&to, get("/1"), options.clone())
            .await
            .unwrap();
        content(first.response.body_mut()).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        close.send(()).unwrap();
        is_closed.recv().unwrap();
        let mut second = upstream.send(&to, post("x"), options).await.unwrap();
        assert_eq!(content(second.response.body_mut()).await.0, "ok");
        let heard = origin.join().unwrap();
        assert!(heard[0].starts_with("GET /1 "), "{heard:?}");
        assert!(
            heard[1].starts_with("POST / ") && heard[1].ends_with("\r\n\r\nx"),
            "{heard:?}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_with_many_origins_leaves_idle_connections_to_others() {
    locally(async {
        let upstream = upstream();
        upstream.pool.idle_max.set(8);
        let shares = Shares::new(1 << 30, 100);
        let fetched_by = async |client: u8| {
            let script: &[Step] = &[Get, OK, Get, OK, Hang];
            let origin = Origin::start(&[script, script]).await;
            let reused = again(&upstream, &origin, shares.of([192, 0, 2, client].into())).await;
            assert!(!reused);
            advance(Duration::from_millis(1)).await;
            origin
        };
        let other = fetched_by(1).await;
        let mut own = Vec::new();
        for _ in 0..20 {
            own.push(fetched_by(2).await);
        }
        assert_eq!(upstream.idle(), 8);
        let client = || shares.of([192, 0, 2, 1].into());
        assert!(again(&upstream, &other, client()).await);
        assert!(!again(&upstream, &own[12], client()).await, "the oldest");
        assert!(again(&upstream, &own[19], client()).await);
    })
    .await;
}

/// Fetches for `client`. Returns whether a connection was used again.
async fn again(upstream: &Upstream, origin: &Origin, client: Share) -> bool {
    let options = SendOptions {
        client: Some(client),
        ..SendOptions::default()
    };
    let sent = upstream.send(&origin.to, get("/"), options).await;
    let mut exchange = sent.unwrap();
    content(exchange.response.body_mut()).await;
    exchange.reused
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_repeated_takes_a_fresh_connection() {
    locally(async {
        let origin = Origin::start(&[&[Get, OK, Hang], &[Get, OK, Get, OK, Hang]]).await;
        let upstream = upstream();
        fetched(&upstream, &origin, "/").await;
        advance(Duration::from_secs(2)).await;
        for reused in [false, true] {
            let sent = upstream
                .send(&origin.to, post("x"), SendOptions::default())
                .await;
            let mut exchange = sent.unwrap();
            assert_eq!(exchange.reused, reused);
            content(exchange.response.body_mut()).await;
        }
        assert_eq!(upstream.idle(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ambiguous_and_malformed_heads_are_refused() {
    locally(async {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\nok",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\x01\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer\x7f-Encoding: chunked\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\n Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
            "HTTP/1.10 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/2.0 200 OK\r\n\r\n",
            "hello\r\n\r\n",
            "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        ] {
            let failed = failure(&[Get, Send(text), Hang]).await;
            assert!(
                matches!(failed.failure, Failure::ResponseMalformed(_)),
                "{text:?}: {failed:?}"
            );
            assert!(failed.origin_bytes > 0 && failed.peer.is_some());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn heads_over_the_limits_are_refused() {
    locally(async {
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(257));
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(100 << 10));
        let empty = "\r\n".repeat(40 << 10);
        for text in [long, many, endless, empty] {
            let failed = failure(&[Get, Send(text.leak()), Hang]).await;
            let expected = Failure::ResponseMalformed("head is too large");
            assert_eq!(failed.failure, expected);
        }
        let within = format!("HTTP/1.1 204 No\r\n{}\r\n", "a: b\r\n".repeat(256));
        let origin = Origin::start(&[&[Get, Send(within.leak())]]).await;
        fetched(&upstream(), &origin, "/").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_length_beside_chunked_is_dropped_with_its_connection() {
    locally(async {
        let both = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n\
                    2\r\nok\r\n0\r\n\r\n";
        let origin = Origin::start(&[&[Get, Send(both), Hang], &[Get, OK, Hang]]).await;
        let upstream = upstream();
        let mut exchange = send(&upstream, &origin, "/").await.unwrap();
        let fields = exchange.response.headers();
        assert!(
            !fields.contains_key("content-length") && !fields.contains_key("transfer-encoding")
        );
        assert_eq!(
            content(exchange.response.body_mut()).await,
            ("ok".into(), None)
        );
        assert_eq!(upstream.idle(), 0);
        assert_eq!(fetched(&upstream, &origin, "/").await, ("ok".into(), false));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn folded_fields_and_spaces_before_the_colon_are_repaired() {
    locally(async {
        let text = "HTTP/1.1 200 OK\r\nX: a\r\n  b\r\nY : c\r\nContent-Length: 0\r\n\r\n";
        let origin = Origin::start(&[&[Get, Send(text), Hang]]).await;
        let exchange = send(&upstream(), &origin, "/").await.unwrap();
        assert_eq!(exchange.response.headers()["x"], "a b");
        assert_eq!(exchange.response.headers()["y"], "c");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_head_with_one_meaning_is_taken_whatever_else_is_in_it() {
    locally(async {
        for (text, reason) in [
            (
                "HTTP/1.9 200 OK\r\nX: a\x7fb\r\nContent-Length: 2\r\n\r\nok",
                None,
            ),
            (
                "HTTP/1.1 200 \x01\x7f\0\r\nX: a\x02b\r\nContent-Length: 2\r\n\r\nok",
                Some("   "),
            ),
            (
                "HTTP/1.1 200 \u{e4}\r\nX: a b\r\nContent-Length: 2\r\n\r\nok",
                Some(""),
            ),
            (
                "HTTP/1.1 200\r\nno colon\r\n: y\r\nX: a\x1bb\r\nA B: c\r\n\
              Content-Length: 2\r\n\r\nok",
                Some(""),
            ),
            (
                "HTTP/1.1 103 \x01\r\nX: \x7f\r\n\r\nHTTP/1.2 200 OK\r\nX: a\x01b\r\n\
                 Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                None,
            ),
        ] {
            let origin = Origin::start(&[&[Get, Send(text), Hang]]).await;
            let mut exchange = send(&upstream(), &origin, "/").await.unwrap();
            let response = &mut exchange.response;
            assert_eq!(response.headers()["x"], "a b", "{text:?}");
            assert_eq!(response.version(), Version::HTTP_11, "{text:?}");
            let told = response.extensions().get::<hyper::ext::ReasonPhrase>();
            let told = told.map(|reason| reason.as_bytes());
            assert_eq!(told, reason.map(str::as_bytes), "{text:?}");
            let body = content(response.body_mut()).await;
            assert_eq!(body, ("ok".into(), None), "{text:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn content_is_not_taken_for_a_head() {
    locally(async {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\nHTTP/1.9 200 \x01\r\n\x7f\0\x02";
        let origin = Origin::start(&[&[Get, Send(text), Get, Send(text), Hang]]).await;
        let upstream = upstream();
        for reused in [false, true] {
            let (body, was_reused) = fetched(&upstream, &origin, "/").await;
            assert_eq!(
                (&*body, was_reused),
                ("HTTP/1.9 200 \x01\r\n\x7f\0\x02", reused)
            );
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_target_that_no_uri_can_hold_is_written_as_it_is_and_once() {
    locally(async {
        let origin = Origin::start(&[&[Get, OK, Get, OK, Get, OK, Hang]]).await;
        let upstream = upstream();
        for (target, reused) in [
            (&b"/<\xe4>?\"q\""[..], false),
            (b"/plain", true),
            (b"/`", true),
        ] {
            let mut request = get("/");
            set_target(&mut request, &hashcache_http::octet_text(target));
            let sent = upstream
                .send(&origin.to, request, SendOptions::default())
                .await;
            let mut exchange = sent.unwrap();
            assert_eq!(exchange.reused, reused);
            content(exchange.response.body_mut()).await;
        }
        let heard = origin.heard(0);
        let lines: Vec<_> = heard
            .lines()
            .filter(|line| line.contains(" HTTP/"))
            .collect();
        let expected = [
            "GET /<\u{e4}>?\"q\" HTTP/1.1",
            "GET /plain HTTP/1.1",
            "GET /` HTTP/1.1",
        ];
        assert_eq!(lines, expected);
        assert_eq!(heard.matches("Host: a.test").count(), 3, "{heard}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn content_that_breaks_off_never_ends_cleanly() {
    locally(async {
        let broken = [Failure::ResponseIncomplete];
        let malformed = [Failure::ResponseMalformed("chunks are damaged")];
        let length = Send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok");
        let cut = Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
        let cut_in_size = Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0");
        let bad = Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n");
        let close = Send("HTTP/1.1 200 OK\r\n\r\nok");
        for (script, failures) in [
            (&[Get, length][..], &broken),
            (&[Get, cut], &broken),
            (&[Get, cut_in_size], &broken),
            (&[Get, bad, Hang], &malformed),
            (&[Get, close, Pause(1), Reset], &broken),
        ] {
            let origin = Origin::start(&[script]).await;
            let upstream = upstream();
            let mut exchange = send(&upstream, &origin, "/").await.unwrap();
            let body = exchange.response.body_mut();
            let (text, failure) = content(body).await;
            assert_eq!(
                (text.as_str(), &failure),
                ("ok", &Some(failures[0].clone()))
            );
            // Asked again, it is still no clean end.
            assert_eq!(body.frame().await.map(|frame| frame.err()), Some(failure));
            assert!(!body.is_complete() && !http_body::Body::is_end_stream(body));
            assert_eq!((upstream.permits.busy(), upstream.idle()), (0, 0));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn content_until_the_close_is_whole_after_a_clean_one() {
    locally(async {
        let text = "HTTP/1.1 200 OK\r\n\r\nok";
        let origin = Origin::start(&[&[Get, Send(text)]]).await;
        let mut exchange = send(&upstream(), &origin, "/").await.unwrap();
        assert_eq!(exchange.response.body().framing(), Framing::UntilClose);
        assert!(!exchange.response.body().is_complete());
        assert_eq!(
            content(exchange.response.body_mut()).await,
            ("ok".into(), None)
        );
        assert!(exchange.response.body().is_complete());
        assert_eq!(exchange.response.body().origin_bytes(), text.len() as u64);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_response_closes_its_connection_and_frees_its_place() {
    locally(async {
        let partial = Send("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nok");
        let origin = Origin::start(&[&[Get, partial, Hang], &[Get, OK, Hang]]).await;
        let upstream = upstream();
        let exchange = send(&upstream, &origin, "/").await.unwrap();
        assert_eq!(upstream.permits.busy(), 1);
        drop(exchange);
        assert_eq!((upstream.permits.busy(), upstream.idle()), (0, 0));
        assert_eq!(fetched(&upstream, &origin, "/").await, ("ok".into(), false));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn silence_has_its_limits_before_within_and_after_the_head() {
    locally(async {
        let minute = Duration::from_secs(60);
        let begun = Instant::now();
        let failed = failure(&[Get, Hang]).await;
        assert_eq!(failed.failure, Failure::FirstByteTimeout(minute));
        assert!(begun.elapsed() < minute + Duration::from_secs(1));

        // A head that has begun in time gets more time, but not for ever.
        let late = Send("HTTP/1.1 204 No\r\n\r\n");
        let origin = Origin::start(&[&[Get, Send("HT"), Pause(59), Hang]]).await;
        let begun = Instant::now();
        let failed = send(&upstream(), &origin, "/").await.unwrap_err();
        assert_eq!(failed.failure, Failure::FirstByteTimeout(minute));
        assert!(begun.elapsed() < 2 * minute + Duration::from_secs(1));
        let origin = Origin::start(&[&[Get, Pause(59), late]]).await;
        fetched(&upstream(), &origin, "/").await;

        let partial = Send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nok");
        let script = [
            Get,
            partial,
            Pause(50),
            Send("ok"),
            Pause(50),
            Send("o"),
            Hang,
        ];
        let origin = Origin::start(&[&script]).await;
        let mut exchange = send(&upstream(), &origin, "/").await.unwrap();
        let begun = Instant::now();
        let ended = content(exchange.response.body_mut()).await;
        assert_eq!(ended, ("okoko".into(), Some(Failure::ReadTimeout(minute))));
        assert!(begun.elapsed() >= Duration::from_secs(160));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_not_held_against_the_origin() {
    locally(async {
        let partial = Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok");
        let origin = Origin::start(&[&[Get, partial, Pause(150), Send("ok"), Hang]]).await;
        let mut exchange = send(&upstream(), &origin, "/").await.unwrap();
        let body = exchange.response.body_mut();
        body.frame().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(content(body).await, ("ok".into(), None));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn caps_bound_busy_connections_and_the_wait_for_them() {
    locally(async {
        let limits = Limits {
            upstream_per_origin: 1,
            ..Limits::default()
        };
        let partial = Send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok");
        let script = [Get, partial, Pause(12), Send("ok"), Get, OK, Hang];
        let origin = Origin::start(&[&script]).await;
        let upstream = upstream_with(limits);
        let mut first = send(&upstream, &origin, "/").await.unwrap();
        let begun = Instant::now();
        let failed = send(&upstream, &origin, "/").await.unwrap_err();
        assert_eq!(failed, Failure::UpstreamLimit.into());
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        let (whole, second) = tokio::join!(
            content(first.response.body_mut()),
            fetched(&upstream, &origin, "/"),
        );
        // The second waited for the first and took over its connection.
        assert_eq!(
            (whole, second),
            (("okok".into(), None), ("ok".into(), true))
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn interim_responses_are_passed_on_up_to_a_bound() {
    locally(async {
        let hints = "HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 102 Busy\r\n\r\n";
        let script = [
            Get,
            Send(hints),
            Pause(50),
            Send("HTTP/1.1 102 B\r\n\r\n"),
            Pause(50),
            OK,
        ];
        let origin = Origin::start(&[&script]).await;
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (into, begun) = (Rc::clone(&seen), Instant::now());
        let options = SendOptions {
            informational: Some(Rc::new(move |status: StatusCode, fields: HeaderMap| {
                let has_link = fields.contains_key("link");
                let seconds = begun.elapsed().as_secs();
                into.borrow_mut().push((status.as_u16(), has_link, seconds));
            })),
            ..SendOptions::default()
        };
        // Each is a sign of life: 100 s pass before the final head, with 60 s allowed.
        upstream()
            .send(&origin.to, get("/"), options)
            .await
            .unwrap();
        // And is passed on at once.
        let expected = [(103, true, 0), (102, false, 0), (102, false, 50)];
        assert_eq!(*seen.borrow(), expected);

        let flood = "HTTP/1.1 103 Hints\r\n\r\n".repeat(33) + "HTTP/1.1 204 No\r\n\r\n";
        let failed = failure(&[Get, Send(flood.leak()), Hang]).await;
        let expected = Failure::ResponseMalformed("too many interim responses");
        assert_eq!(failed.failure, expected);
        let bearable = "HTTP/1.1 103 Hints\r\n\r\n".repeat(32) + "HTTP/1.1 204 No\r\n\r\n";
        let origin = Origin::start(&[&[Get, Send(bearable.leak())]]).await;
        fetched(&upstream(), &origin, "/").await;
    })
    .await;
}

fn expecting(body: RequestBody) -> Request<RequestBody> {
    let request = Request::put("/")
        .header("host", "a.test")
        .header("expect", "100-continue");
    request.header("content-length", "4").body(body).unwrap()
}

fn full(text: &'static str) -> RequestBody {
    RequestBody::streamed(http_body_util::Full::new(Bytes::from_static(
        text.as_bytes(),
    )))
}

#[tokio::test(start_paused = true)]
async fn held_content_goes_out_on_100_or_after_a_second() {
    locally(async {
        for (script, seconds) in [
            (
                &[
                    Head,
                    Pause(0),
                    Send("HTTP/1.1 100 Go\r\n\r\n"),
                    Pause(5),
                    OK,
                    Hang,
                ][..],
                5,
            ),
            (&[Head, Pause(5), OK, Hang], 5),
        ] {
            let origin = Origin::start(&[script]).await;
            let upstream = upstream();
            let begun = Instant::now();
            let sent = upstream.send(&origin.to, expecting(full("data")), SendOptions::default());
            let mut exchange = sent.await.unwrap();
            assert_eq!(begun.elapsed().as_secs(), seconds);
            assert_eq!(
                content(exchange.response.body_mut()).await,
                ("ok".into(), None)
            );
            assert_eq!(upstream.idle(), 1); // the content went out: the connection is clean
            drop(upstream);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(origin.heard(0).ends_with("data"), "{}", origin.heard(0));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn held_content_is_never_sent_after_a_final_response() {
    locally(async {
        let refusal = Send("HTTP/1.1 417 No\r\nContent-Length: 2\r\n\r\nno");
        let origin = Origin::start(&[&[Head, refusal, Hang], &[Get, OK]]).await;
        let upstream = upstream();
        let sent = upstream.send(&origin.to, expecting(full("data")), SendOptions::default());
        let mut exchange = sent.await.unwrap();
        assert_eq!(exchange.response.status(), 417);
        assert_eq!(
            content(exchange.response.body_mut()).await,
            ("no".into(), None)
        );
        assert_eq!((upstream.permits.busy(), upstream.idle()), (0, 0));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(origin.heard(0).ends_with("\r\n\r\n"), "{}", origin.heard(0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn content_is_chunked_with_its_trailers_filtered() {
    locally(async {
        let (pieces, receiver) = tokio::sync::mpsc::channel(4);
        let request = Request::get("/").header("trailer", "x-sum, set-cookie");
        let request = request.body(RequestBody::streamed(Slow(receiver))).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("1"));
        trailers.insert("set-cookie", HeaderValue::from_static("a=b"));
        pieces
            .send(Frame::data(Bytes::from_static(b"data")))
            .await
            .unwrap();
        pieces.send(Frame::trailers(trailers)).await.unwrap();
        drop(pieces);
        let origin = Origin::start(&[&[Get, OK, Hang]]).await;
        upstream()
            .send(&origin.to, request, SendOptions::default())
            .await
            .unwrap();
        let heard = origin.heard(0);
        assert!(heard.contains("Transfer-Encoding: chunked\r\n"), "{heard}");
        assert!(
            heard.ends_with("\r\n\r\n4\r\ndata\r\n0\r\nX-Sum: 1\r\n\r\n"),
            "{heard}"
        );
        // The Host of the endpoint stands in for the one that was not given.
        let port = origin.to.authority.port;
        assert!(
            heard.contains(&format!("Host: 127.0.0.1:{port}\r\n")),
            "{heard}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_early_answer_is_heard_while_content_goes_out_or_can_no_longer() {
    locally(async {
        let refusal = Send("HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno");
        // The second origin closes with content unread: our writes meet a RST.
        for script in [&[Head, refusal, Hang][..], &[Head, refusal]] {
            let (pieces, receiver) = tokio::sync::mpsc::channel(1);
            let request = Request::put("/")
                .body(RequestBody::streamed(Slow(receiver)))
                .unwrap();
            let feeder = spawn_local(async move {
                // Ends when the request is dropped.
                while pieces
                    .send(Frame::data(Bytes::from_static(&[0; 4096])))
                    .await
                    .is_ok()
                {}
            });
            let origin = Origin::start(&[script]).await;
            let upstream = upstream();
            let sent = upstream
                .send(&origin.to, request, SendOptions::default())
                .await;
            let mut exchange = sent.unwrap();
            assert_eq!(exchange.response.status(), 413);
            assert_eq!(
                content(exchange.response.body_mut()).await,
                ("no".into(), None)
            );
            assert_eq!((upstream.permits.busy(), upstream.idle()), (0, 0));
            feeder.await.unwrap();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_more_content_goes_out_once_an_error_has_come() {
    locally(async {
        let head = Send("HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\n");
        let origin = Origin::start(&[&[Head, head, Pause(5), Send("no"), Hang]]).await;
        let (pieces, receiver) = tokio::sync::mpsc::channel(1);
        let request = Request::put("/")
            .body(RequestBody::streamed(Slow(receiver)))
            .unwrap();
        let taken = Rc::new(std::cell::Cell::new(0));
        let count = Rc::clone(&taken);
        spawn_local(async move {
            let piece = Bytes::from_static(&[0; 64]);
            while pieces.send(Frame::data(piece.clone())).await.is_ok() {
                count.set(count.get() + 1);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let sent = upstream()
            .send(&origin.to, request, SendOptions::default())
            .await;
        let mut exchange = sent.unwrap();
        let before = taken.get();
        let content = content(exchange.response.body_mut()).await;
        assert_eq!(content, ("no".into(), None));
        // The channel holds one, and one was on its way.
        assert!(taken.get() <= before + 2, "{} after {before}", taken.get());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn content_goes_out_while_nobody_reads_the_response() {
    locally(async {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nec";
        let origin = Origin::start(&[&[Head, Send(head), Hang]]).await;
        let (pieces, receiver) = tokio::sync::mpsc::channel(1);
        let request = Request::put("/")
            .body(RequestBody::streamed(Slow(receiver)))
            .unwrap();
        let upstream = upstream();
        let sent = upstream
            .send(&origin.to, request, SendOptions::default())
            .await
            .unwrap();
        for piece in [&b"first"[..], b"second", b"third"] {
            let piece = Frame::data(Bytes::from_static(piece));
            pieces.send(piece).await.unwrap();
        }
        drop(pieces);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let heard = origin.heard(0);
        assert!(heard.ends_with("5\r\nthird\r\n0\r\n\r\n"), "{heard}");
        drop(sent);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn another_protocol_is_recognised_by_its_first_bytes() {
    locally(async {
        let malformed = Failure::ResponseMalformed("head is not HTTP/1");
        for banner in [
            "SSH-2.0-OpenSSH_9\r\n",
            "220 mail.test ESMTP\r\n",
            "\r\nHTTP/2 200",
        ] {
            let begun = Instant::now();
            let failed = failure(&[Head, Send(banner), Hang]).await;
            assert_eq!(failed.failure, malformed, "{banner}");
            assert!(begun.elapsed() < Duration::from_secs(1), "{banner}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stalls_or_breaks_off_is_not_the_origins_fault() {
    locally(async {
        let (pieces, receiver) = tokio::sync::mpsc::channel(1);
        let request = Request::put("/")
            .body(RequestBody::streamed(Slow(receiver)))
            .unwrap();
        let origin = Origin::start(&[&[Get, OK, Hang]]).await;
        spawn_local(async move {
            tokio::time::sleep(Duration::from_secs(100)).await;
            pieces
                .send(Frame::data(Bytes::from_static(b"late")))
                .await
                .unwrap();
        });
        upstream()
            .send(&origin.to, request, SendOptions::default())
            .await
            .unwrap();

        let request = Request::put("/").body(RequestBody::streamed(Torn)).unwrap();
        let origin = Origin::start(&[&[Hang]]).await;
        let failed = upstream()
            .send(&origin.to, request, SendOptions::default())
            .await;
        let status = StatusCode::BAD_REQUEST;
        assert!(
            matches!(failed.unwrap_err().failure, Failure::Refused { status: s, .. } if s == status)
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_protocol_keeps_its_place() {
    locally(async {
        let switch = "HTTP/1.1 101 Go\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello";
        let origin = Origin::start(&[&[Get, Send(switch), Hang]]).await;
        let upstream = upstream();
        let mut request = get("/");
        request
            .headers_mut()
            .insert("upgrade", HeaderValue::from_static("echo"));
        request
            .headers_mut()
            .insert("connection", HeaderValue::from_static("upgrade"));
        let mut exchange = upstream
            .send(&origin.to, request, SendOptions::default())
            .await
            .unwrap();
        assert_eq!(exchange.response.status(), 101);
        let Upgrade {
            stream,
            permit: _place,
        } = exchange.upgrade.take().unwrap();
        let mut stream = stream;
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        stream.write_all(b"!").await.unwrap();
        assert_eq!((upstream.permits.busy(), upstream.idle()), (1, 0));
        drop((stream, _place));
        assert_eq!(upstream.permits.busy(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn connections_are_not_shared_between_purposes() {
    locally(async {
        let origin = Origin::start(&[&[Get, OK, Hang], &[Get, OK, Hang]]).await;
        let upstream = upstream();
        let configured = Endpoint {
            purpose: Purpose::Configured,
            ..origin.to.clone()
        };
        let mut exchange = upstream
            .send(&configured, get("/"), SendOptions::default())
            .await
            .unwrap();
        content(exchange.response.body_mut()).await;
        assert_eq!(upstream.idle(), 1);
        assert_eq!(fetched(&upstream, &origin, "/").await, ("ok".into(), false));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_is_denied_is_told_as_such() {
    locally(async {
        let own = OwnAddresses::fixed(&[], &[]);
        let names = DnsCache::new(NameServers::Fixed(Arc::new([])), Duration::from_secs(5));
        let destinations = Destinations::new(&[], &[], own.clone());
        let shared = UpstreamShared::new(
            names,
            destinations,
            own,
            Trust::of_test(&[]),
            Arc::new(Limits::default()),
            HeaderValue::from_static("1.1 test"),
        );
        let origin = Origin::start(&[&[Get, OK]]).await;
        let failed = send(&Upstream::new(&shared), &origin, "/")
            .await
            .unwrap_err();
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(failed, Failure::DestinationDenied { address }.into());
        assert_eq!((origin.connections(), shared.permits.busy()), (0, 0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_name_leads_to_its_addresses_and_an_address_to_itself() {
    locally(async {
        let upstream = upstream();
        for (host, address, expected) in [
            ("localhost", "127.0.0.1", true),
            ("localhost", "::1", true),
            ("localhost", "::ffff:127.0.0.1", true),
            ("localhost", "127.0.0.2", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("[2001:db8::1]", "2001:db8::1", true),
            ("[2001:db8::1]", "2001:db8::2", false),
            // A name that nobody knows leads nowhere.
            ("unknown.test", "192.0.2.1", false),
        ] {
            let named = Host::parse(host).unwrap();
            let client = Network::containing([192, 0, 2, 9].into());
            let leads = upstream
                .leads_to(&named, address.parse().unwrap(), client)
                .await;
            assert_eq!(leads, expected, "{host} {address}");
        }
    })
    .await;
}
