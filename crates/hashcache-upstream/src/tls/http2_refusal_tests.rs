//! Requests that an origin in HTTP/2 has certainly not processed are sent again with their content,
//! and no others. The origin is a script of frames.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use h2::Reason;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;

use super::tests::{ServerStream, locally, trusted_origin};
use super::*;
use crate::{Endpoint, RequestBody, SendFailure, SendOptions, Upstream};

/// A step of an origin on one connection.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Waits until this many requests have arrived with all of their content.
    Requests(usize),
    /// Waits until this many heads have arrived.
    Heads(usize),
    /// Sends SETTINGS with one value, or with none.
    Settings(Option<(u16, u32)>),
    /// Lets time pass in which a request might arrive that must not.
    Pause,
    /// Answers a stream with 200.
    Answer(u32),
    Reset(u32, Reason),
    /// GOAWAY with this last stream.
    GoAway(u32, Reason),
    /// Adds to the window of a stream.
    Window(u32, u32),
    /// Answers every request from now on.
    Serve,
    Close,
}
use Step::{Answer, Close, GoAway, Heads, Pause, Requests, Reset, Serve, Settings, Window};

struct Origin {
    to: Endpoint,
    upstream: Rc<Upstream>,
    heard: Heard,
}

/// The requests of each connection.
type Heard = Rc<RefCell<Vec<Vec<Arrived>>>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Arrived {
    stream: u32,
    content: Vec<u8>,
    is_whole: bool,
    /// True if SETTINGS had been sent before.
    has_settings: bool,
}

/// An origin whose connections follow `scripts`; further ones answer all requests.
async fn origin(scripts: &[&[Step]]) -> Origin {
    let heard = Heard::default();
    let all = Rc::clone(&heard);
    let scripts: Vec<Vec<Step>> = scripts.iter().map(|it| it.to_vec()).collect();
    let (to, upstream) = trusted_origin(&[b"h2"], move |stream| {
        let number = all.borrow().len();
        all.borrow_mut().push(Vec::new());
        let script = scripts.get(number).cloned();
        let script = script.unwrap_or_else(|| vec![Settings(None), Serve]);
        spawn_local(play(stream, script, Rc::clone(&all), number));
    })
    .await;
    Origin {
        to,
        upstream: Rc::new(upstream),
        heard,
    }
}

async fn play(mut stream: ServerStream, script: Vec<Step>, heard: Heard, number: usize) {
    let mut bytes = Vec::new();
    let mut script = script.into_iter().peekable();
    let mut has_settings = false;
    loop {
        while let Some(step) = script.peek().copied() {
            let is_due = {
                let heard = heard.borrow();
                let whole = heard[number].iter().filter(|request| request.is_whole);
                match step {
                    Requests(wanted) => whole.count() >= wanted,
                    Heads(wanted) => heard[number].len() >= wanted,
                    Serve => false,
                    _ => true,
                }
            };
            if !is_due {
                break;
            }
            script.next();
            has_settings |= matches!(step, Settings(_));
            match step {
                Pause => {
                    // Reads what arrives meanwhile.
                    let reading = read(&mut stream, &mut bytes);
                    let _ = timeout(Duration::from_millis(50), reading).await;
                    note(&mut bytes, &mut heard.borrow_mut()[number], has_settings);
                }
                Close => {
                    let _ = stream.shutdown().await;
                    return;
                }
                step => stream.write_all(&step.frame()).await.unwrap(),
            }
        }
        if !read(&mut stream, &mut bytes).await {
            return;
        }
        let ended = note(&mut bytes, &mut heard.borrow_mut()[number], has_settings);
        if let Some(Serve) = script.peek() {
            for id in ended {
                stream.write_all(&Answer(id).frame()).await.unwrap();
            }
        }
    }
}

async fn read(stream: &mut ServerStream, bytes: &mut Vec<u8>) -> bool {
    let mut page = vec![0; 16 << 10];
    let read = stream.read(&mut page).await.unwrap_or(0);
    bytes.extend(&page[..read]);
    read > 0
}

/// Takes whole frames from `bytes`; returns the streams that have ended.
fn note(bytes: &mut Vec<u8>, heard: &mut Vec<Arrived>, has_settings: bool) -> Vec<u32> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if bytes.starts_with(b"PRI") {
        if bytes.len() < PREFACE.len() {
            return Vec::new();
        }
        bytes.drain(..PREFACE.len());
    }
    let mut ended = Vec::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        if bytes.len() < 9 + length {
            break;
        }
        let frame: Vec<u8> = bytes.drain(..9 + length).collect();
        let stream = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
        if frame[3] == 1 {
            heard.push(Arrived {
                stream,
                has_settings,
                ..Arrived::default()
            });
        }
        let request = heard.iter_mut().find(|request| request.stream == stream);
        if let (0 | 1, Some(request)) = (frame[3], request) {
            if frame[3] == 0 {
                request.content.extend(&frame[9..]);
            }
            if frame[4] & 1 != 0 {
                request.is_whole = true;
                ended.push(stream);
            }
        }
    }
    ended
}

impl Step {
    fn frame(self) -> Vec<u8> {
        let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
            let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags];
            frame.extend(stream.to_be_bytes());
            frame.extend(payload);
            frame
        };
        match self {
            Settings(None) => frame(4, 0, 0, &[]),
            Settings(Some((name, value))) => {
                let setting = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
                frame(4, 0, 0, &setting)
            }
            // `:status: 200`, by its index.
            Answer(stream) => frame(1, 5, stream, &[0x88]),
            Reset(stream, reason) => frame(3, 0, stream, &u32::from(reason).to_be_bytes()),
            GoAway(last, reason) => {
                let payload = [last.to_be_bytes(), u32::from(reason).to_be_bytes()].concat();
                frame(7, 0, 0, &payload)
            }
            Window(stream, bytes) => frame(8, 0, stream, &bytes.to_be_bytes()),
            Requests(_) | Heads(_) | Pause | Serve | Close => Vec::new(),
        }
    }
}

impl Origin {
    fn send(&self, request: Request<RequestBody>) -> JoinHandle<Result<StatusCode, SendFailure>> {
        let (upstream, to) = (Rc::clone(&self.upstream), self.to.clone());
        spawn_local(async move {
            let sending = upstream.send(&to, request, SendOptions::default());
            let sent = timeout(WAIT, sending).await.expect("an answer");
            let (head, body) = sent?.response.into_parts();
            timeout(WAIT, body.collect())
                .await
                .expect("content")
                .unwrap();
            Ok(head.status)
        })
    }

    /// Waits for the first request with all of its content.
    async fn first_arrived(&self) {
        self.until(|heard| heard.first().is_some_and(|first| first.is_whole))
            .await;
    }

    /// Waits until this holds for the first connection.
    async fn until(&self, is_so: impl Fn(&[Arrived]) -> bool) {
        let waiting = async {
            while !self.heard.borrow().first().is_some_and(|it| is_so(it)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(WAIT, waiting).await.expect("a request");
    }

    /// The content of the requests on each connection.
    fn content(&self) -> Vec<Vec<Vec<u8>>> {
        let content =
            |arrived: &Vec<Arrived>| arrived.iter().map(|it| it.content.clone()).collect();
        self.heard.borrow().iter().map(content).collect()
    }
}

fn get() -> Request<RequestBody> {
    Request::get("/").body(RequestBody::empty()).unwrap()
}

/// A request whose length is not known before its end.
fn upload(method: Method, parts: &'static [&'static [u8]]) -> Request<RequestBody> {
    let (sender, content) = tokio::sync::mpsc::channel(1);
    spawn_local(async move {
        for part in parts {
            let _ = sender.send(Bytes::from_static(part)).await;
        }
    });
    let body = RequestBody::streamed(Parts(content));
    Request::builder()
        .method(method)
        .uri("/")
        .body(body)
        .unwrap()
}

struct Parts(tokio::sync::mpsc::Receiver<Bytes>);

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, io::Error>>> {
        let part = self.0.poll_recv(cx);
        part.map(|part| part.map(|part| Ok(http_body::Frame::data(part))))
    }
}

const WAIT: Duration = Duration::from_secs(20);
/// SETTINGS_MAX_CONCURRENT_STREAMS.
const STREAMS: u16 = 3;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const WINDOW: u16 = 4;

#[tokio::test]
async fn a_refused_request_is_sent_again_with_its_content_whatever_its_method() {
    locally(async {
        for method in [Method::POST, Method::PATCH, Method::DELETE] {
            for refusal in [
                Reset(1, Reason::REFUSED_STREAM),
                GoAway(0, Reason::NO_ERROR),
                GoAway(0, Reason::ENHANCE_YOUR_CALM),
            ] {
                let first = [Settings(None), Requests(1), refusal];
                let origin = origin(&[&first]).await;
                let sent = origin.send(upload(method.clone(), &[b"one", b"two"]));
                assert_eq!(sent.await.unwrap(), Ok(StatusCode::OK), "{refusal:?}");
                let content = [[b"onetwo".to_vec()], [b"onetwo".to_vec()]];
                assert_eq!(origin.content(), content, "{method} {refusal:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_that_the_origin_may_have_processed_is_not_sent_again() {
    locally(async {
        for fault in [
            &[Reset(1, Reason::INTERNAL_ERROR)][..],
            &[Reset(1, Reason::CANCEL)],
            &[Reset(1, Reason::NO_ERROR)],
            &[GoAway(1, Reason::NO_ERROR), Close],
            &[GoAway(1, Reason::INTERNAL_ERROR), Close],
            &[GoAway(u32::MAX >> 1, Reason::NO_ERROR), Close],
            &[Close],
        ] {
            let first = [&[Settings(None), Requests(1)], fault].concat();
            let origin = origin(&[&first]).await;
            let sent = origin.send(upload(Method::POST, &[b"x"])).await.unwrap();
            assert!(sent.is_err(), "{fault:?}");
            assert_eq!(origin.content(), [[b"x".to_vec()]], "{fault:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn requests_above_the_last_of_a_goaway_are_sent_again_and_those_below_end() {
    locally(async {
        for reason in [Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
            let first = [
                Settings(None),
                Requests(1),
                // A graceful end says so twice; a request may arrive in between.
                GoAway(u32::MAX >> 1, Reason::NO_ERROR),
                Pause,
                GoAway(1, reason),
                Pause,
                Answer(1),
                Close,
            ];
            let both = [
                Settings(None),
                Requests(2),
                GoAway(1, reason),
                Pause,
                Answer(1),
                Close,
            ];
            for script in [&first[..], &both] {
                let origin = origin(&[script]).await;
                let one = origin.send(upload(Method::POST, &[b"one"]));
                origin.first_arrived().await;
                let two = origin.send(upload(Method::POST, &[b"two"]));
                assert_eq!(one.await.unwrap(), Ok(StatusCode::OK), "{reason:?}");
                assert_eq!(two.await.unwrap(), Ok(StatusCode::OK), "{reason:?}");
                let content = origin.content();
                assert_eq!(content[0][0], b"one", "{reason:?}");
                assert_eq!(content[1], [b"two".to_vec()], "{reason:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_connection_gets_its_second_stream_after_the_settings_of_the_origin() {
    locally(async {
        let first = [
            Heads(1),
            Pause,
            Settings(Some((STREAMS, 1))),
            Pause,
            Answer(1),
            Serve,
        ];
        let origin = origin(&[&first]).await;
        let sent = [(); 3].map(|()| origin.send(get()));
        for sent in sent {
            assert_eq!(sent.await.unwrap(), Ok(StatusCode::OK));
        }
        let heard = origin.heard.borrow();
        let early = heard[0].iter().filter(|request| !request.has_settings);
        assert_eq!(early.count(), 1, "{heard:?}");
        assert_eq!(heard.iter().map(Vec::len).sum::<usize>(), 3);
    })
    .await;
}

#[tokio::test]
async fn a_limit_on_streams_that_shrinks_under_way_costs_no_request() {
    locally(async {
        // The origin refuses a stream that crosses its SETTINGS.
        let first = [
            Settings(None),
            Heads(1),
            Settings(Some((STREAMS, 0))),
            Pause,
            Answer(1),
            Serve,
        ];
        let origin = origin(&[&first]).await;
        let one = origin.send(upload(Method::POST, &[b"one"]));
        assert_eq!(one.await.unwrap(), Ok(StatusCode::OK));
        let two = origin.send(upload(Method::POST, &[b"two"]));
        assert_eq!(two.await.unwrap(), Ok(StatusCode::OK));
        let content = [[b"one".to_vec()], [b"two".to_vec()]];
        assert_eq!(origin.content(), content);
    })
    .await;
}

#[tokio::test]
async fn content_waits_for_a_window_without_stopping_other_requests() {
    locally(async {
        let first = [
            Settings(Some((WINDOW, 0))),
            Requests(1),
            Answer(1),
            Heads(3),
            Pause,
            Answer(5),
            Window(3, 2),
            Pause,
            Window(3, 100),
            Requests(3),
            Answer(3),
        ];
        let origin = origin(&[&first]).await;
        assert_eq!(origin.send(get()).await.unwrap(), Ok(StatusCode::OK));
        let posted = origin.send(upload(Method::POST, &[b"four"]));
        origin.until(|heard| heard.len() == 2).await;
        assert_eq!(origin.send(get()).await.unwrap(), Ok(StatusCode::OK));
        assert_eq!(posted.await.unwrap(), Ok(StatusCode::OK));
        let content = [Vec::new(), b"four".to_vec(), Vec::new()];
        assert_eq!(origin.content(), [content]);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_refused_each_time_ends_after_three_attempts() {
    locally(async {
        let refuses = [
            Settings(None),
            Requests(1),
            Reset(1, Reason::REFUSED_STREAM),
            Requests(9),
        ];
        let origin = origin(&[&refuses, &refuses, &refuses]).await;
        let sent = origin.send(upload(Method::POST, &[b"x"])).await.unwrap();
        assert_eq!(sent.unwrap_err().failure, Failure::ConnectionTerminated);
        assert_eq!(origin.content(), vec![vec![b"x".to_vec()]; 3]);
    })
    .await;
}
