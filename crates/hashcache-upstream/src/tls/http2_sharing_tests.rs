//! One client's requests to an origin that speaks HTTP/2 do not stop those of others: downloads
//! that nobody reads, uploads that the origin does not read, and requests for which it ends the
//! connection.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use hashcache_base::share::{Share, Shares};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use super::super::kept_content::tests::Parts;
use super::tests::{locally, trusted_origin};
use super::*;
use crate::{Endpoint, RequestBody, SendFailure, SendOptions, Upstream, UpstreamExchange};

/// An origin in HTTP/2, which treats requests by their paths.
struct Origin {
    to: Endpoint,
    upstream: Rc<Upstream>,
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    /// The paths of the requests on each connection.
    heard: RefCell<Vec<Vec<String>>>,
    /// Bytes of `/big` that were sent.
    sent: Cell<usize>,
    /// Bytes of `/slow` that were received.
    received: Cell<usize>,
    /// How often `/slow` has accepted more.
    accepted: watch::Sender<usize>,
    /// The resets of requests to `/early/…`.
    resets: RefCell<Vec<Option<Reason>>>,
    /// Requests to `/held` wait until it is true.
    released: watch::Sender<bool>,
}

impl Origin {
    async fn start(builder: Builder) -> Self {
        let state = Rc::<State>::default();
        let all = Rc::clone(&state);
        let (to, upstream) = trusted_origin(&[b"h2"], move |stream| {
            let (builder, state) = (builder.clone(), Rc::clone(&all));
            spawn_local(async move {
                let mut connection = builder.handshake(stream).await.unwrap();
                let number = state.heard.borrow().len();
                state.heard.borrow_mut().push(Vec::new());
                while let Some(Ok((request, reply))) = connection.accept().await {
                    let path = request.uri().path().to_owned();
                    state.heard.borrow_mut()[number].push(path.clone());
                    if path == "/kill" {
                        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    } else {
                        let state = Rc::clone(&state);
                        spawn_local(answer(path, request.into_body(), reply, state));
                    }
                }
            });
        })
        .await;
        Self {
            to,
            upstream: Rc::new(upstream),
            state,
        }
    }

    /// Waits until the origin has seen this, in any order of events before.
    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        let waiting = async {
            while !is_so(&self.state) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = timeout(WAIT, waiting).await;
        assert!(waited.is_ok(), "{:?}", self.state.heard.borrow());
    }

    fn send(&self, request: Request<RequestBody>) -> JoinHandle<Sent> {
        self.send_for(None, request)
    }

    fn send_for(&self, client: Option<Share>, request: Request<RequestBody>) -> JoinHandle<Sent> {
        let (upstream, to) = (Rc::clone(&self.upstream), self.to.clone());
        spawn_local(async move {
            let options = SendOptions {
                client,
                ..SendOptions::default()
            };
            timeout(WAIT, upstream.send(&to, request, options))
                .await
                .expect("an answer")
        })
    }

    /// The status of the response, and its content.
    async fn fetch(&self, request: Request<RequestBody>) -> (StatusCode, Bytes) {
        whole(self.send(request).await.unwrap().unwrap()).await
    }

    fn requests(&self) -> usize {
        self.state.heard.borrow().iter().map(Vec::len).sum()
    }
}

type Sent = Result<UpstreamExchange, SendFailure>;

async fn whole(exchange: UpstreamExchange) -> (StatusCode, Bytes) {
    let (head, body) = exchange.response.into_parts();
    let content = timeout(WAIT, body.collect()).await.expect("content");
    (head.status, content.unwrap().to_bytes())
}

async fn answer(
    path: String,
    mut content: RecvStream,
    mut reply: SendResponse<Bytes>,
    state: Rc<State>,
) {
    let mut response = Response::new(());
    match path.as_str() {
        "/big" => {
            let mut stream = reply.send_response(response, false).unwrap();
            loop {
                stream.reserve_capacity(16 << 10);
                let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                let Some(Ok(capacity)) = capacity else { return };
                let page = Bytes::from(vec![7; capacity]);
                if stream.send_data(page, false).is_err() {
                    return;
                }
                state.sent.set(state.sent.get() + capacity);
            }
        }
        "/held" => {
            let mut released = state.released.subscribe();
            released.wait_for(|released| *released).await.unwrap();
        }
        "/huge-head" => {
            let fields = response.headers_mut();
            for number in 0..12 {
                let name = HeaderName::try_from(format!("x-{number}")).unwrap();
                let value = HeaderValue::try_from("v".repeat(8 << 10)).unwrap();
                fields.insert(name, value);
            }
        }
        "/read" => {
            let mut bytes = 0;
            while let Some(data) = content.data().await {
                let Ok(data) = data else { return };
                bytes += data.len();
                content.flow_control().release_capacity(data.len()).unwrap();
            }
            let mut stream = reply.send_response(response, false).unwrap();
            let text = Bytes::from(bytes.to_string());
            return stream.send_data(text, true).unwrap();
        }
        // Accepts content beyond the windows in steps.
        "/slow" => {
            let (mut accepted, mut steps) = (state.accepted.subscribe(), 0);
            while !content.is_end_stream() {
                tokio::select! {
                    Some(Ok(data)) = content.data() => {
                        state.received.set(state.received.get() + data.len());
                    }
                    _ = accepted.wait_for(|accepted| *accepted > steps) => {
                        content.flow_control().release_capacity(SLOW_STEP).unwrap();
                        steps += 1;
                    }
                }
            }
        }
        // Answer before the content, and accept none of it beyond the windows.
        "/early/whole" | "/early/200" | "/early/413" => {
            if path.ends_with("413") {
                *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            }
            let is_whole = path.ends_with("whole");
            let stream = reply.send_response(response, is_whole).unwrap();
            while let Some(data) = content.data().await {
                if let Err(error) = data {
                    state.resets.borrow_mut().push(error.reason());
                    break;
                }
            }
            return drop(stream);
        }
        // Accepts no content beyond the windows, and does not answer.
        "/unread" => {
            std::future::pending::<()>().await;
        }
        _ => {}
    }
    if let Ok(mut stream) = reply.send_response(response, false) {
        let _ = stream.send_data(Bytes::from_static(b"hello"), true);
    }
}

fn get(path: &str) -> Request<RequestBody> {
    Request::get(path).body(RequestBody::empty()).unwrap()
}

fn post(path: &str, bytes: usize) -> Request<RequestBody> {
    let content = http_body_util::Full::new(Bytes::from(vec![1; bytes]));
    Request::post(path)
        .body(RequestBody::streamed(content))
        .unwrap()
}

/// How much `/slow` accepts at once. h2 sends no updates for less than half of a window.
const SLOW_STEP: usize = 40_000;
/// For what arrives at once, or never.
const WAIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn downloads_that_nobody_reads_do_not_stop_others_on_their_connection() {
    locally(async {
        let origin = Origin::start(Builder::new()).await;
        let mut unread = Vec::new();
        for _ in 0..31 {
            unread.push(origin.send(get("/big")).await.unwrap().unwrap());
        }
        // Each has sent all that its window admits.
        origin
            .until(|state| state.sent.get() == 31 * (256 << 10))
            .await;
        for _ in 0..10 {
            assert_eq!(origin.fetch(get("/small")).await.1, "hello");
        }
        assert_eq!(origin.state.heard.borrow().len(), 1, "one connection");
        // Two more find no room on it: the second of them would be the 33rd stream.
        unread.push(origin.send(get("/big")).await.unwrap().unwrap());
        assert_eq!(origin.fetch(get("/small")).await.1, "hello");
        assert_eq!(origin.state.heard.borrow()[1], ["/small"]);
    })
    .await;
}

#[tokio::test]
async fn concurrent_requests_use_as_many_streams_of_a_connection_as_the_origin_allows() {
    locally(async {
        let mut builder = Builder::new();
        builder.max_concurrent_streams(2);
        let origin = Origin::start(builder).await;
        let held: Vec<_> = (0..5).map(|_| origin.send(get("/held"))).collect();
        origin
            .until(|state| state.heard.borrow().iter().flatten().count() == 5)
            .await;
        let heard = origin.state.heard.borrow().clone();
        assert!(heard.iter().all(|paths| paths.len() <= 2), "{heard:?}");
        assert_eq!(heard.len(), 3, "connections");
        origin.state.released.send_replace(true);
        for held in held {
            assert_eq!(whole(held.await.unwrap().unwrap()).await.1, "hello");
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_with_a_large_head_shares_no_connection() {
    locally(async {
        for (announced, field_bytes) in [(None, 5000), (Some(2000), 2500)] {
            let mut builder = Builder::new();
            if let Some(announced) = announced {
                builder.max_header_list_size(announced);
            }
            let origin = Origin::start(builder).await;
            origin.fetch(get("/first")).await;
            let held = origin.send(get("/held"));
            origin
                .until(|state| state.heard.borrow()[0].len() == 2)
                .await;
            for (path, bytes) in [("/large", field_bytes), ("/small", 100)] {
                let mut request = get(path);
                let value = HeaderValue::try_from("c".repeat(bytes)).unwrap();
                request.headers_mut().insert("cookie", value);
                // h2 itself may refuse a head above the announced limit.
                drop(origin.send(request).await.unwrap());
            }
            let heard = origin.state.heard.borrow().clone();
            assert_eq!(heard[0], ["/first", "/held", "/small"], "{announced:?}");
            assert_eq!(heard.len(), 2, "{announced:?}");
            drop(held);
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_for_which_the_origin_ends_a_connection_ends_that_of_others_once_only() {
    locally(async {
        let shares = Shares::new(1 << 30, 100);
        let client = |last: u8| Some(shares.of([192, 0, 2, last].into()));
        let origin = Origin::start(Builder::new()).await;
        origin.fetch(get("/first")).await;
        let held = origin.send_for(client(1), get("/held"));
        origin
            .until(|state| state.heard.borrow()[0].len() == 2)
            .await;
        origin.state.released.send_replace(true);
        let held = held.await.unwrap().unwrap();
        let waiting = origin.send_for(client(1), get("/unread"));
        origin
            .until(|state| state.heard.borrow()[0].len() == 3)
            .await;
        for _ in 0..3 {
            let killed = origin.send_for(client(2), get("/kill")).await.unwrap();
            assert!(killed.is_err(), "it has no answer");
        }
        // The request that waited is sent again, and so are others, on connections that the
        // requests of the other client do not end.
        origin
            .until(|state| {
                state
                    .heard
                    .borrow()
                    .iter()
                    .flatten()
                    .filter(|it| *it == "/unread")
                    .count()
                    == 2
            })
            .await;
        assert!(!waiting.is_finished());
        let heard = origin.state.heard.borrow().clone();
        let killed = heard
            .iter()
            .filter(|paths| paths.iter().any(|path| path == "/kill"));
        let beside: HashSet<_> = killed.skip(1).flatten().cloned().collect();
        assert_eq!(beside, HashSet::from(["/kill".to_owned()]), "{heard:?}");
        assert_eq!(whole(held).await.1, "hello");
    })
    .await;
}

/// Many origins end a connection for that, with the responses to others.
#[tokio::test]
async fn a_client_that_gives_up_many_requests_at_once_shares_no_connection() {
    const GIVEN_UP: usize = 65;
    locally(async {
        let shares = Shares::new(1 << 30, 4);
        let client = |last: u8| Some(shares.of([192, 0, 2, last].into()));
        let origin = Origin::start(Builder::new()).await;
        origin.fetch(get("/first")).await;
        let held = origin.send_for(client(1), get("/held"));
        for n in 0..GIVEN_UP {
            let given_up = origin.send_for(client(2), get("/held"));
            origin
                .until(|state| state.heard.borrow()[0].len() == n + 3)
                .await;
            given_up.abort();
            assert!(given_up.await.unwrap_err().is_cancelled());
        }
        for number in [1, 2] {
            let sent = origin.send_for(client(number), get("/small")).await;
            assert_eq!(whole(sent.unwrap().unwrap()).await.1, "hello");
        }
        let heard = origin.state.heard.borrow().clone();
        assert_eq!(heard[0].len(), GIVEN_UP + 3, "that of the other client too");
        assert_eq!(heard[1..], [["/small"]]);
        origin.state.released.send_replace(true);
        assert!(held.await.unwrap().is_ok());
    })
    .await;
}

#[tokio::test]
async fn a_response_with_a_huge_head_fails_without_the_others() {
    locally(async {
        let origin = Origin::start(Builder::new()).await;
        let unread = origin.send(get("/big")).await.unwrap().unwrap();
        let failed = origin.send(get("/huge-head")).await.unwrap().unwrap_err();
        assert_eq!(
            failed.failure,
            Failure::ResponseMalformed("head is too large")
        );
        assert_eq!(origin.fetch(get("/small")).await.1, "hello");
        assert_eq!(origin.state.heard.borrow().len(), 1);
        let mut body = unread.response.into_body();
        let frame = timeout(WAIT, body.frame()).await.unwrap();
        assert!(frame.unwrap().is_ok());
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_the_origin_does_not_read_does_not_stop_that_of_another_client() {
    locally(async {
        let mut builder = Builder::new();
        builder.initial_window_size(1 << 20);
        let origin = Origin::start(builder).await;
        origin.fetch(get("/first")).await;
        let unread = origin.send(post("/unread", 1 << 20));
        origin
            .until(|state| state.heard.borrow()[0].len() == 2)
            .await;
        let (_, read) = origin.fetch(post("/read", 3000)).await;
        assert_eq!(read, "3000");
        assert_eq!(origin.fetch(get("/small")).await.1, "hello");
        let heard = origin.state.heard.borrow().clone();
        assert_eq!(heard[0], ["/first", "/unread", "/small"]);
        assert_eq!(heard[1], ["/read"]);
        // Uploads that fit into the smallest window together share a connection.
        let posts: Vec<_> = (0..4).map(|_| origin.send(post("/read", 3000))).collect();
        for sent in posts {
            assert_eq!(whole(sent.await.unwrap().unwrap()).await.1, "3000");
        }
        assert_eq!(
            (origin.state.heard.borrow().len(), origin.requests()),
            (2, 8)
        );
        drop(unread);
    })
    .await;
}

#[tokio::test]
async fn an_upload_ends_with_its_exchange() {
    // More than the window: the second frame waits for the origin.
    const FRAMES: &[&[u8]] = &[&[1; 65_535], b"rest"];
    locally(async {
        for (path, has_end, is_read) in [
            // Held for good after the error.
            ("/early/413", false, false),
            ("/early/200", false, false),
            // All content was taken from the client.
            ("/early/200", true, false),
            ("/early/whole", false, true),
            ("/early/whole", true, true),
        ] {
            let mut builder = Builder::new();
            builder.max_concurrent_streams(1);
            let origin = Origin::start(builder).await;
            origin.fetch(get("/first")).await;
            let body = RequestBody::streamed(Parts::new(FRAMES, has_end));
            let request = Request::post(path).body(body).unwrap();
            let exchange = origin.send(request).await.unwrap().unwrap();
            if is_read {
                drop(whole(exchange).await);
            } else {
                drop(exchange);
            }
            origin
                .until(|state| *state.resets.borrow() == [Some(Reason::CANCEL)])
                .await;
            // The origin allows one stream.
            assert_eq!(origin.fetch(get("/small")).await.1, "hello");
            let heard = origin.state.heard.borrow().clone();
            assert_eq!(heard, [["/first", path, "/small"]], "{has_end}");
        }
    })
    .await;
}

impl Origin {
    /// As `send`, without a limit to the time.
    fn wait_for(&self, request: Request<RequestBody>) -> JoinHandle<Sent> {
        let (upstream, to) = (Rc::clone(&self.upstream), self.to.clone());
        spawn_local(async move { upstream.send(&to, request, SendOptions::default()).await })
    }
}

/// Lets 40 s pass, of the 60 s in which a response has to begin.
async fn pass_time() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(40)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn requests_of_others_do_not_put_off_the_timeout_of_an_origin_that_does_not_answer() {
    locally(async {
        for request in [get("/held"), post("/unread", 1 << 20)] {
            let origin = Origin::start(Builder::new()).await;
            origin.fetch(get("/first")).await;
            let waiting = origin.wait_for(request);
            origin
                .until(|state| state.heard.borrow()[0].len() == 2)
                .await;
            for _ in 0..2 {
                pass_time().await;
                assert_eq!(origin.fetch(get("/small")).await.1, "hello");
            }
            let failed = timeout(WAIT, waiting).await.expect("a timeout");
            let failure = failed.unwrap().unwrap_err().failure;
            let limit = Duration::from_secs(60);
            assert_eq!(failure, Failure::FirstByteTimeout(limit));
            assert_eq!(origin.state.heard.borrow().len(), 1, "one connection");
        }
    })
    .await;
}

#[tokio::test]
async fn an_origin_that_reads_an_upload_slowly_has_time_as_long_as_it_reads() {
    locally(async {
        let origin = Origin::start(Builder::new()).await;
        let received = |steps| 65_535 + steps * SLOW_STEP;
        let waiting = origin.wait_for(post("/slow", received(3)));
        for steps in 0..3 {
            let expected = received(steps);
            origin.until(|state| state.received.get() == expected).await;
            pass_time().await;
            origin.state.accepted.send_replace(steps + 1);
        }
        let sent = timeout(WAIT, waiting).await.expect("an answer");
        assert_eq!(whole(sent.unwrap().unwrap()).await.1, "hello");
    })
    .await;
}
