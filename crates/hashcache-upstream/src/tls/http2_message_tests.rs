//! Messages of origins in HTTP/2 that h2 or hyper lose, or end a connection for. The origin is a
//! script of frames.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use hashcache_wire::frames::{CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use super::tests::{ServerStream, locally, trusted_origin};
use super::*;
use crate::{Endpoint, RequestBody, SendOptions, Upstream, UpstreamExchange};

/// The frames that answer one request, on stream 1, 3, and so on. They are sent when its head has
/// arrived, from [`AFTER_CONTENT`] on when its content has.
type Answer = Vec<(u8, u8, Vec<u8>)>;

struct Origin {
    to: Endpoint,
    upstream: Rc<Upstream>,
    heard: Rc<Heard>,
}

/// Kind and payload.
type HeardFrame = (u8, Vec<u8>);

#[derive(Default)]
struct Heard {
    /// The frames of requests on each connection.
    frames: RefCell<Vec<Vec<HeardFrame>>>,
    changed: Notify,
}

/// An origin that sends these answers on each connection, each when the head of its request has
/// arrived.
async fn origin(answers: Vec<Answer>) -> Origin {
    let heard = Rc::<Heard>::default();
    let all = Rc::clone(&heard);
    let answers = Rc::new(answers);
    let (to, upstream) = trusted_origin(&[b"h2"], move |stream| {
        all.frames.borrow_mut().push(Vec::new());
        spawn_local(play(stream, Rc::clone(&answers), Rc::clone(&all)));
    })
    .await;
    Origin {
        to,
        upstream: Rc::new(upstream),
        heard,
    }
}

async fn play(mut stream: ServerStream, answers: Rc<Vec<Answer>>, heard: Rc<Heard>) {
    let number = heard.frames.borrow().len() - 1;
    stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    let (mut frames, mut page) = (Frames::of_client(), [0; 4096]);
    loop {
        let read = stream.read(&mut page).await.unwrap_or(0);
        if read == 0 {
            return;
        }
        // The requests of these tests are short: their frames arrive whole.
        let mut bytes = &page[..read];
        while !bytes.is_empty() {
            let mut begun = None;
            let end = frames.advance_while(bytes, |head| {
                begun = Some(head);
                false
            });
            bytes = &bytes[end..];
            if let Some(head) = begun.filter(|head| matches!(head.kind, DATA | HEADERS)) {
                let payload = bytes[..head.length].to_vec();
                heard.frames.borrow_mut()[number].push((head.kind, payload));
                heard.changed.notify_one();
                let answer = answers.get((head.stream as usize - 1) / 2);
                let mut parts = answer
                    .map_or(&[][..], |it| it)
                    .split(|it| it.0 == AFTER_CONTENT);
                let at_once = parts.next().filter(|_| head.kind == HEADERS);
                let later = parts.next().filter(|_| head.ends_stream());
                let frames = at_once.into_iter().chain(later).flatten();
                let frames =
                    frames.map(|(kind, flags, payload)| frame(*kind, *flags, head.stream, payload));
                let frames = frames.collect::<Vec<_>>().concat();
                stream.write_all(&frames).await.unwrap();
            }
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A head or an interim response, whose fields enter the table.
fn head(status: &str, fields: &[(&str, &str)]) -> (u8, u8, Vec<u8>) {
    let mut block = vec![0x08, 3];
    block.extend(status.as_bytes());
    block.extend(literals(fields));
    (HEADERS, END_HEADERS, block)
}

fn trailers(fields: &[(&str, &str)]) -> (u8, u8, Vec<u8>) {
    (HEADERS, END_HEADERS | END_STREAM, literals(fields))
}

fn literals(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0x40);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

fn content(text: &str) -> (u8, u8, Vec<u8>) {
    (DATA, 0, text.as_bytes().to_vec())
}

fn end() -> (u8, u8, Vec<u8>) {
    (DATA, END_STREAM, Vec::new())
}

/// A response with its interim responses, as a client receives them.
struct Got {
    interim: Vec<(u16, HeaderMap)>,
    exchange: Result<UpstreamExchange, Failure>,
}

impl Got {
    async fn whole(self) -> (HeaderMap, Bytes, Option<HeaderMap>) {
        let (head, body) = self.exchange.unwrap().response.into_parts();
        let body = timeout(WAIT, body.collect()).await.unwrap().unwrap();
        let trailers = body.trailers().cloned();
        (head.headers, body.to_bytes(), trailers)
    }
}

impl Origin {
    async fn get(&self) -> Got {
        self.send(Request::get("/").body(RequestBody::empty()).unwrap())
            .await
    }

    async fn send(&self, request: Request<RequestBody>) -> Got {
        let interim = Rc::<RefCell<Vec<_>>>::default();
        let seen = Rc::clone(&interim);
        let options = SendOptions {
            informational: Some(Rc::new(move |status: StatusCode, fields| {
                seen.borrow_mut().push((status.as_u16(), fields));
            })),
            ..SendOptions::default()
        };
        let sending = self.upstream.send(&self.to, request, options);
        let sent = timeout(WAIT, sending).await.expect("an answer");
        Got {
            interim: interim.take(),
            exchange: sent.map_err(|failed| failed.failure),
        }
    }

    fn connections(&self) -> usize {
        self.heard.frames.borrow().len()
    }
}

const AFTER_CONTENT: u8 = 0xff;
const WAIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn interim_responses_are_passed_on_in_their_order_before_the_response() {
    locally(async {
        let origin = origin(vec![vec![
            head("103", &[("link", "</a>"), ("keep-alive-not", "x")]),
            head("102", &[]),
            head("103", &[("link", "</b>")]),
            head("200", &[]),
            content("hello"),
            trailers(&[("sum", "7")]),
        ]])
        .await;
        let got = origin.get().await;
        let seen: Vec<_> = got
            .interim
            .iter()
            .map(|(status, fields)| (*status, fields.get("link").cloned()))
            .collect();
        let link = |text| Some(http::HeaderValue::from_static(text));
        let expected = [(103, link("</a>")), (102, None), (103, link("</b>"))];
        assert_eq!(seen, expected);
        let (_, content, trailers) = got.whole().await;
        assert_eq!(content, "hello");
        assert_eq!(trailers.unwrap()["sum"], "7");
    })
    .await;
}

#[tokio::test]
async fn an_interim_response_that_no_client_may_get_fails_its_request_only() {
    locally(async {
        let many = vec![head("103", &[]); 33];
        for (interim, reason) in [
            (vec![head("101", &[])], "protocol switch in HTTP/2"),
            (
                vec![head("103", &[("link", " </a>")])],
                "a field value begins or ends with a blank",
            ),
            (many, "too many interim responses"),
        ] {
            let answer = [interim, vec![head("200", &[]), end()]].concat();
            let origin = origin(vec![answer, vec![head("200", &[]), end()]]).await;
            let failed = origin.get().await.exchange.unwrap_err();
            assert_eq!(failed, Failure::ResponseMalformed(reason));
            assert!(origin.get().await.exchange.is_ok());
            assert_eq!(origin.connections(), 1, "{reason}");
        }
    })
    .await;
}

#[tokio::test]
async fn control_characters_in_a_field_become_spaces_and_cost_no_response() {
    locally(async {
        let odd = [
            ("x", "\u{1}a\u{7f}b\u{1f}"),
            ("y", "c\u{b}"),
            ("z", "\u{8}"),
        ];
        let origin = origin(vec![
            vec![head("200", &[]), content("first")],
            vec![
                head("103", &odd),
                head("200", &odd),
                content("hello"),
                trailers(&[("t", "\u{2}d")]),
            ],
            // By their places in the table of the connection.
            vec![
                (HEADERS, END_HEADERS, vec![0x88, 0xbf, 0xc0, 0xc1]),
                content("again"),
                end(),
            ],
        ])
        .await;
        let mut first = origin.get().await.exchange.unwrap().response.into_body();
        let got = origin.get().await;
        assert_eq!(got.interim[0].1["x"], "a b");
        let (head, content, trailers) = got.whole().await;
        let values = ["x", "y", "z"].map(|name| head[name].to_str().unwrap());
        assert_eq!((values, head.len()), (["a b", "c", ""], 3), "{head:?}");
        assert_eq!(content, "hello");
        assert_eq!(trailers.unwrap()["t"], "d");
        let (head, content, _) = origin.get().await.whole().await;
        assert_eq!(content, "again");
        let values = ["x", "y"].map(|name| head[name].to_str().unwrap());
        assert_eq!(values, ["a b", "c"]);
        let frame = first.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "first");
        assert_eq!(origin.connections(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_malformed_response_does_not_end_the_connection_of_others() {
    const NO_STATUS: &str = "no status, or none of three digits";
    const MISPLACED: &str = "a pseudo-field in the wrong place";
    const OF_CONNECTION: &str = "a field of the connection in HTTP/2";
    locally(async {
        let one = |fields: &[(&str, &str)]| vec![(HEADERS, END_HEADERS, literals(fields))];
        // Behind a value that fills the first frame of the block.
        let late = |field: (&str, &str)| {
            let value = [&b"\x7f\x81\x7f"[..], &[b'v'; 16_384]].concat();
            let first = [literals(&[(":status", "200")]), b"\0\x01x".to_vec(), value].concat();
            vec![
                (HEADERS, 0, first),
                (CONTINUATION, END_HEADERS, literals(&[field])),
            ]
        };
        let status = (":status", "200");
        for (block, reason) in [
            (
                one(&[status, ("x", "a\0b")]),
                "a field value has a line end or NUL",
            ),
            (
                one(&[status, ("x", "a\r\nSet-Cookie: b")]),
                "a field value has a line end or NUL",
            ),
            (one(&[status, ("Upper", "a")]), "a field name is no token"),
            (one(&[status, ("a b", "a")]), "a field name is no token"),
            (one(&[status, ("", "a")]), "a field name is empty"),
            (one(&[status, (":unknown", "a")]), MISPLACED),
            (one(&[status, (":path", "\u{e9}")]), MISPLACED),
            (one(&[status, (":method", "a b")]), MISPLACED),
            (one(&[("x", "y"), status]), MISPLACED),
            (one(&[status, status]), "two statuses"),
            (one(&[]), NO_STATUS),
            (one(&[("x", "y")]), NO_STATUS),
            (one(&[(":status", "20")]), NO_STATUS),
            (one(&[(":status", "two")]), NO_STATUS),
            (one(&[(":status", "")]), NO_STATUS),
            (one(&[status, ("connection", "close")]), OF_CONNECTION),
            (one(&[status, ("keep-alive", "a")]), OF_CONNECTION),
            (
                one(&[status, ("transfer-encoding", "chunked")]),
                OF_CONNECTION,
            ),
            (one(&[status, ("upgrade", "h2c")]), OF_CONNECTION),
            (late(status), MISPLACED),
            (late((":path", "/")), MISPLACED),
            (late(("connection", "close")), OF_CONNECTION),
            (late(("", "a")), "a field name is empty"),
            (late(("Upper", "a")), "a field name is no token"),
            (vec![content("x")], "content without a head"),
        ] {
            let others = vec![head("200", &[]), content("first")];
            let whole = vec![head("200", &[]), end()];
            let malformed = [block, vec![end()]].concat();
            let hints = vec![head("103", &[("link", "</a>")])];
            let after_hints = [hints, malformed.clone()].concat();
            let origin = origin(vec![others, malformed, after_hints, whole]).await;
            let first = origin.get().await.exchange.unwrap();
            for _ in 0..2 {
                let failed = origin.get().await.exchange.unwrap_err();
                assert_eq!(failed, Failure::ResponseMalformed(reason), "{reason}");
            }
            origin.get().await.whole().await;
            let mut body = first.response.into_body();
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), "first");
            assert_eq!(origin.connections(), 1, "{reason}");
        }
    })
    .await;
}

#[tokio::test]
async fn fields_of_a_malformed_response_stay_in_the_table_of_the_connection() {
    locally(async {
        let fields = [(":status", "20"), ("X", "a"), ("y", "b"), ("", "c")];
        let malformed = (HEADERS, END_HEADERS, literals(&fields));
        // Their places begin with 62, the newest one's.
        let upper_case_name = (HEADERS, END_HEADERS, vec![0x88, 0x7f, 1, 1, b'z']);
        let short_status = (HEADERS, END_HEADERS, vec![0xc2]);
        let good = (HEADERS, END_HEADERS, vec![0x88, 0xc0]);
        let answers = [malformed, upper_case_name, short_status, good];
        let origin = origin(answers.map(|block| vec![block, end()]).to_vec()).await;
        for reason in [
            "no status, or none of three digits",
            "a field name is no token",
            "no status, or none of three digits",
        ] {
            let failed = origin.get().await.exchange.unwrap_err();
            assert_eq!(failed, Failure::ResponseMalformed(reason));
        }
        let (head, ..) = origin.get().await.whole().await;
        assert_eq!((head["y"].as_bytes(), head.len()), (&b"b"[..], 1));
        assert_eq!(origin.connections(), 1);
    })
    .await;
}

/// h2 ends the connection for 16,000 frames of a few bytes that nobody has read.
#[tokio::test]
async fn events_that_nobody_reads_do_not_end_the_connection_of_others() {
    // Together less than the window that every receiver begins with.
    const EVENTS: usize = 30_000;
    locally(async {
        let events = [
            vec![head("200", &[])],
            vec![content("e\n"); EVENTS],
            vec![content("the last"), trailers(&[("t", "v")])],
        ];
        let others = vec![head("200", &[]), content("whole"), end()];
        let origin = origin(vec![events.concat(), others.clone(), others]).await;
        let unread = origin.get().await;
        for _ in 0..2 {
            let (_, content, _) = origin.get().await.whole().await;
            assert_eq!(content, "whole");
        }
        let (_, content, trailers) = unread.whole().await;
        assert_eq!(content.len(), EVENTS * 2 + 8);
        assert!(content.ends_with(b"e\nthe last"));
        assert_eq!(trailers.unwrap()["t"], "v");
        assert_eq!(origin.connections(), 1);
    })
    .await;
}

/// For 100 of them in its life h2 ends a connection.
#[tokio::test]
async fn frames_without_content_do_not_end_the_connection() {
    locally(async {
        let flushed = [
            vec![head("200", &[]), content("a")],
            vec![content(""); 60],
            vec![content("b"), end()],
        ];
        let origin = origin(vec![flushed.concat(); 3]).await;
        for _ in 0..3 {
            let (_, content, _) = origin.get().await.whole().await;
            assert_eq!(content, "ab");
        }
        assert_eq!(origin.connections(), 1);
    })
    .await;
}

#[tokio::test]
async fn content_with_a_pseudo_field_in_its_trailers_is_broken() {
    locally(async {
        for fields in [
            &[(":status", "200")][..],
            &[(":path", "/")],
            &[(":status", "200"), ("t", "v")],
            &[("t", "v"), (":status", "200")],
            &[("t", " v")],
            &[("T", "v")],
            &[("t\"", "v")],
            &[("t", "v\0")],
            &[("", "v")],
            &[("connection", "close")],
        ] {
            let answer = vec![head("200", &[]), content("hello"), trailers(fields)];
            let whole = vec![head("200", &[]), content("hello"), trailers(&[("t", "v")])];
            let origin = origin(vec![answer, whole]).await;
            let body = origin.get().await.exchange.unwrap().response.into_body();
            let collected = timeout(WAIT, body.collect()).await.unwrap();
            assert!(collected.is_err(), "{fields:?}");
            let (_, _, trailers) = origin.get().await.whole().await;
            let trailers = trailers.unwrap();
            assert_eq!((trailers["t"].as_bytes(), trailers.len()), (&b"v"[..], 1));
            assert_eq!(origin.connections(), 1, "{fields:?}");
        }
    })
    .await;
}

fn upload() -> Request<RequestBody> {
    let content = http_body_util::Full::new(Bytes::from_static(b"content"));
    Request::put("/")
        .header(header::EXPECT, "100-continue")
        .body(RequestBody::streamed(content))
        .unwrap()
}

#[tokio::test]
async fn content_waits_for_the_100_of_the_origin() {
    locally(async {
        let origin = origin(vec![vec![head("100", &[]), head("200", &[]), end()]]).await;
        let got = origin.send(upload()).await;
        assert!(
            got.interim.is_empty(),
            "the content's reader sends its own 100"
        );
        got.whole().await;
        // A final response instead of it: the content is not sent.
        let origin = self::origin(vec![vec![head("413", &[]), end()]]).await;
        let got = origin.send(upload()).await;
        got.whole().await;
        let heard = origin.heard.frames.borrow();
        assert!(
            heard[0].iter().all(|(kind, _)| *kind == HEADERS),
            "{heard:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_origin_that_sends_no_100_is_waited_for_once() {
    locally(async {
        let after_content = (AFTER_CONTENT, 0, Vec::new());
        let answer = vec![after_content, head("200", &[]), end()];
        let origin = Rc::new(origin(vec![answer.clone(), answer]).await);
        let first = spawn_local({
            let origin = Rc::clone(&origin);
            async move { origin.send(upload()).await.whole().await }
        });
        let content = || {
            let heard = origin.heard.frames.borrow();
            let frames = heard.iter().flatten();
            frames.filter(|(kind, _)| *kind == DATA).count()
        };
        origin.heard.changed.notified().await;
        assert_eq!(content(), 0);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        first.await.unwrap();
        let sent = content();
        let begun = Instant::now();
        origin.send(upload()).await.whole().await;
        assert!(content() > sent && begun.elapsed() < Duration::from_millis(900));
    })
    .await;
}

#[tokio::test]
async fn content_waits_for_the_100_of_an_origin_whose_last_one_was_late() {
    locally(async {
        let late = vec![
            (AFTER_CONTENT, 0, Vec::new()),
            head("100", &[]),
            head("200", &[]),
            end(),
        ];
        let refusal = vec![head("413", &[]), end()];
        let origin = Rc::new(origin(vec![late, refusal]).await);
        let first = spawn_local({
            let origin = Rc::clone(&origin);
            async move { origin.send(upload()).await.whole().await }
        });
        origin.heard.changed.notified().await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        first.await.unwrap();
        origin.send(upload()).await.whole().await;
        let heard = origin.heard.frames.borrow();
        let content = heard.iter().flatten().filter(|(kind, _)| *kind == DATA);
        assert_eq!(content.count(), 1, "that of the first request");
    })
    .await;
}
