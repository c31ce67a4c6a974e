//! Origins that speak HTTP/2, played by the crate below hyper, which can refuse and go away.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use tokio::task::spawn_local;

use super::tests::{ServerStream, locally, send, trusted_origin};
use super::*;
use crate::http2;
use crate::odd_target::set_target;
use crate::pinned::Pinning;
use crate::{Endpoint, RequestBody, SendOptions, Upstream};

/// How an origin treats a request.
#[derive(Clone, Copy, Debug)]
enum Treat {
    Answer,
    Misdirected,
    Reset(Reason),
    /// Answers, and says that it takes no more.
    GoAway,
    /// Sends five content bytes, of which it may have announced another length, and resets.
    Break(Option<u64>, Reason),
}

struct Origin {
    to: Endpoint,
    /// For each connection the requests on it: authority, path, version offered.
    heard: Rc<RefCell<Vec<Vec<String>>>>,
    upstream: Upstream,
}

/// An origin whose connections treat their requests as `plan` says, then answer; it offers these
/// versions.
async fn origin(plan: &[&[Treat]], versions: &[&[u8]]) -> Origin {
    let heard = Rc::new(RefCell::new(Vec::new()));
    let all = Rc::clone(&heard);
    let plan: Vec<Vec<Treat>> = plan.iter().map(|it| it.to_vec()).collect();
    let (to, upstream) = trusted_origin(versions, move |stream| {
        let number = all.borrow().len();
        all.borrow_mut().push(Vec::new());
        let plan = plan.get(number).cloned().unwrap_or_default();
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            spawn_local(play(stream, plan, Rc::clone(&all), number));
        } else {
            spawn_local(plain(stream, Rc::clone(&all), number));
        }
    })
    .await;
    Origin {
        to,
        heard,
        upstream,
    }
}

async fn play(
    stream: ServerStream,
    plan: Vec<Treat>,
    heard: Rc<RefCell<Vec<Vec<String>>>>,
    number: usize,
) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let mut plan = plan.into_iter();
    while let Some(Ok((request, reply))) = connection.accept().await {
        assert!(!request.headers().contains_key("host"));
        heard.borrow_mut()[number].push(request.uri().to_string());
        let treat = plan.next().unwrap_or(Treat::Answer);
        if matches!(treat, Treat::GoAway) {
            connection.graceful_shutdown();
        }
        answer(treat, reply);
    }
}

fn answer(treat: Treat, mut reply: SendResponse<Bytes>) {
    let mut response = Response::new(());
    match treat {
        Treat::Reset(reason) => return reply.send_reset(reason),
        Treat::Misdirected => *response.status_mut() = StatusCode::MISDIRECTED_REQUEST,
        Treat::Break(Some(length), _) => {
            response
                .headers_mut()
                .insert("content-length", length.into());
        }
        Treat::Break(None, _) | Treat::Answer | Treat::GoAway => {}
    }
    let mut content = reply.send_response(response, false).unwrap();
    let is_whole = !matches!(treat, Treat::Break(..));
    content
        .send_data(Bytes::from_static(b"hello"), is_whole)
        .unwrap();
    if let Treat::Break(_, reason) = treat {
        spawn_local(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            content.send_reset(reason);
        });
    }
}

/// An origin's connection in HTTP/1.1, for one request.
async fn plain(mut stream: ServerStream, heard: Rc<RefCell<Vec<Vec<String>>>>, number: usize) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut page = vec![0; 4096];
    let read = stream.read(&mut page).await.unwrap();
    let text = String::from_utf8_lossy(&page[..read]);
    let line = text.lines().next().unwrap_or_default().to_owned();
    heard.borrow_mut()[number].push(line);
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    stream.write_all(answer).await.unwrap();
    stream.shutdown().await.unwrap();
}

async fn fetched(origin: &Origin) -> (StatusCode, Version, Result<Bytes, Failure>) {
    let exchange = send(&origin.upstream, &origin.to).await.unwrap();
    let (head, body) = exchange.response.into_parts();
    let content = body.collect().await.map(|content| content.to_bytes());
    (head.status, head.version, content)
}

const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];

#[tokio::test]
async fn one_connection_carries_all_requests_to_an_origin_that_offers_http_2() {
    locally(async {
        let origin = origin(&[], BOTH).await;
        let (first, second) = tokio::join!(fetched(&origin), fetched(&origin));
        let third = fetched(&origin).await;
        for (status, version, content) in [first, second, third] {
            assert_eq!((status, version), (StatusCode::OK, Version::HTTP_2));
            assert_eq!(content.unwrap(), "hello");
        }
        let url = format!("https://127.0.0.1:{}/page", origin.to.authority.port);
        assert_eq!(
            *origin.heard.borrow(),
            [vec![url.clone(), url.clone(), url]]
        );
        assert_eq!(origin.upstream.http2_conns.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_origin_without_http_2_is_asked_in_http_1() {
    locally(async {
        let origin = origin(&[], &[b"http/1.1"]).await;
        for _ in 0..2 {
            let (_, version, content) = fetched(&origin).await;
            assert_eq!(version, Version::HTTP_11);
            assert_eq!(content.unwrap(), "hello");
        }
        let conn = vec!["GET /page HTTP/1.1".to_owned()];
        assert_eq!(*origin.heard.borrow(), [conn.clone(), conn]);
        assert_eq!(origin.upstream.http2_conns.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn what_was_not_looked_at_is_asked_again_by_a_new_connection() {
    locally(async {
        for (treat, connections) in [
            (Treat::Reset(Reason::REFUSED_STREAM), 2),
            (Treat::GoAway, 2),
        ] {
            let origin = origin(&[&[Treat::Answer, treat]], BOTH).await;
            for _ in 0..3 {
                let (status, _, content) = fetched(&origin).await;
                assert_eq!(status, StatusCode::OK, "{treat:?}");
                assert_eq!(content.unwrap(), "hello");
            }
            assert_eq!(origin.heard.borrow().len(), connections, "{treat:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_may_have_been_looked_at_is_not_asked_again() {
    locally(async {
        let refused: &[Treat] = &[Treat::Reset(Reason::INTERNAL_ERROR)];
        let origin = origin(&[refused], BOTH).await;
        let failed = send(&origin.upstream, &origin.to).await.unwrap_err();
        assert_eq!(failed.failure, Failure::ConnectionTerminated);
        assert_eq!(
            *origin.heard.borrow()[0],
            [format!(
                "https://127.0.0.1:{}/page",
                origin.to.authority.port
            )]
        );
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_repeated_does_not_take_a_connection_that_lay_idle() {
    locally(async {
        let origin = origin(&[], BOTH).await;
        fetched(&origin).await.2.unwrap();
        for (seconds, connections) in [(0, 1), (2, 2)] {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(seconds)).await;
            tokio::time::resume();
            let content = http_body_util::Full::new(Bytes::from_static(b"x"));
            let request = http::Request::post("/page")
                .body(RequestBody::streamed(content))
                .unwrap();
            let options = SendOptions::default();
            let exchange = origin.upstream.send(&origin.to, request, options);
            exchange.await.unwrap().response.collect().await.unwrap();
            assert_eq!(origin.heard.borrow().len(), connections);
        }
    })
    .await;
}

#[tokio::test]
async fn an_origin_that_wants_http_1_for_a_request_gets_it() {
    locally(async {
        let wants: &[Treat] = &[Treat::Reset(Reason::HTTP_1_1_REQUIRED)];
        let origin = origin(&[wants], BOTH).await;
        let (status, version, _) = fetched(&origin).await;
        assert_eq!((status, version), (StatusCode::OK, Version::HTTP_11));
        assert_eq!(origin.heard.borrow()[1], ["GET /page HTTP/1.1"]);
    })
    .await;
}

#[tokio::test]
async fn a_target_that_http_2_cannot_carry_goes_to_no_other_page_with_a_login() {
    locally(async {
        let origin = origin(&[], &[b"h2"]).await;
        let sent = async |target: &[u8]| {
            let mut request = http::Request::new(RequestBody::empty());
            set_target(&mut request, &hashcache_http::octet_text(target));
            let login = http::HeaderValue::from_static("NTLM TlRM");
            request.headers_mut().insert("authorization", login);
            let options = SendOptions {
                pinning: Pinning::Alone,
                ..SendOptions::default()
            };
            let exchange = origin.upstream.send(&origin.to, request, options).await;
            exchange.map(|exchange| exchange.response.status())
        };
        assert_eq!(sent(b"/page").await.unwrap(), StatusCode::OK);
        let failed = sent(b"/<page>?\xff").await.unwrap_err();
        assert_eq!(failed.failure, http2::NEEDED);
        let heard = origin.heard.borrow().concat();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].ends_with("/page"), "{heard:?}");
    })
    .await;
}

#[tokio::test]
async fn a_login_has_a_connection_in_http_2_that_no_other_request_gets() {
    locally(async {
        let origin = origin(&[], &[b"h2"]).await;
        let log_in = async || {
            let mut request = http::Request::new(RequestBody::empty());
            set_target(&mut request, "/private");
            let login = http::HeaderValue::from_static("NTLM TlRM");
            request.headers_mut().insert("authorization", login);
            let options = SendOptions {
                pinning: Pinning::Alone,
                ..SendOptions::default()
            };
            let exchange = origin.upstream.send(&origin.to, request, options).await;
            assert_eq!(exchange.unwrap().response.status(), StatusCode::OK);
        };
        log_in().await;
        assert_eq!(fetched(&origin).await.0, StatusCode::OK);
        log_in().await;
        assert_eq!(fetched(&origin).await.0, StatusCode::OK);
        let heard = origin.heard.borrow();
        let sent: Vec<usize> = heard.iter().map(Vec::len).collect();
        assert_eq!(sent, [1, 2, 1], "{heard:?}");
    })
    .await;
}

#[tokio::test]
async fn a_misdirected_request_is_tried_once_on_a_connection_of_its_own() {
    locally(async {
        let origin = origin(&[&[Treat::Answer, Treat::Misdirected]], BOTH).await;
        for _ in 0..2 {
            assert_eq!(fetched(&origin).await.0, StatusCode::OK);
        }
        assert_eq!(origin.heard.borrow().len(), 2);
        // On a connection that was new it is the answer.
        let origin = self::origin(&[&[Treat::Misdirected]], BOTH).await;
        assert_eq!(fetched(&origin).await.0, StatusCode::MISDIRECTED_REQUEST);
        assert_eq!(origin.heard.borrow().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_breaks_ends_its_content_in_a_failure() {
    locally(async {
        let breaks = [
            (Some(10), Reason::INTERNAL_ERROR),
            (Some(10), Reason::NO_ERROR),
            (None, Reason::INTERNAL_ERROR),
            (None, Reason::NO_ERROR),
        ];
        let plan = breaks.map(|(length, reason)| Treat::Break(length, reason));
        let whole = Treat::Break(Some(5), Reason::NO_ERROR);
        let origin = origin(&[&[&plan[..], &[whole]].concat()], BOTH).await;
        for broken in breaks {
            let (_, _, content) = fetched(&origin).await;
            assert_eq!(content, Err(Failure::ResponseIncomplete), "{broken:?}");
        }
        assert_eq!(fetched(&origin).await.2.unwrap(), "hello", "by its length");
        assert_eq!(fetched(&origin).await.2.unwrap(), "hello");
        assert_eq!(origin.heard.borrow().len(), 1, "the connection goes on");
    })
    .await;
}
