//! Both sides of a pipe: hyper as a well-behaved client, and bare frames for a misbehaving one.
//! Time is paused.

mod from_memory;

use std::collections::VecDeque;

use hashcache_base::share::{PIECE_BYTES, Shares};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::{JoinHandle, LocalSet};

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config};

use super::super::cell::ExchangeEnd;
use super::flow::ENTRY_BYTES;
use super::frames::FRAME_HEAD;
use super::*;

/// The contents of a response.
#[derive(Default)]
struct Answer {
    frames: VecDeque<Result<Frame<Bytes>, &'static str>>,
    /// The content never ends.
    endless: bool,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        if self.endless {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; 16 << 10])))));
        }
        Poll::Ready(self.frames.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && !self.endless
    }
}

fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

static PAGE: [u8; 32 << 10] = [7; 32 << 10];

/// Answers by path; reports the totals of each response.
async fn service(
    cell: Rc<Cell>,
    request: Request<ClientBody>,
    told: Rc<RefCell<Vec<ExchangeEnd>>>,
) -> Response<Answer> {
    let mut answer = Answer::default();
    let mut response = Response::new(());
    let info = match cell.next_head() {
        RequestHead::Accepted(info) => info,
        RequestHead::Refused(failure) => {
            *response.status_mut() = failure.status();
            return response.map(|()| answer);
        }
    };
    let target = std::str::from_utf8(&info.target).unwrap();
    if let Some((_, path)) = target.rsplit_once("/hints/") {
        let mut fields = HeaderMap::new();
        fields.insert("link", HeaderValue::try_from(path).unwrap());
        for status in [StatusCode::PROCESSING, StatusCode::EARLY_HINTS] {
            assert!(cell.send_interim(status, &fields));
        }
        assert!(
            !cell.send_interim(StatusCode::CONTINUE, &fields),
            "that one is ours"
        );
    }
    match target.rsplit('/').next().unwrap() {
        "hello" => answer.frames.push_back(data("hello")),
        "broken" => answer
            .frames
            .extend([data("hel"), Err("the origin hung up")]),
        "endless" => answer.endless = true,
        "page" => answer
            .frames
            .push_back(Ok(Frame::data(Bytes::from_static(&PAGE)))),
        "slow" => tokio::time::sleep(Duration::from_secs(5)).await,
        "length" => {
            let fields = response.headers_mut();
            fields.insert(CONTENT_LENGTH, HeaderValue::from(5));
            answer.frames.push_back(data("hello"));
        }
        "trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", HeaderValue::from_static("7"));
            answer.frames.push_back(data("hello"));
            answer.frames.push_back(Ok(Frame::trailers(trailers)));
        }
        "echo" => match request.into_body().collect().await {
            Ok(content) => answer.frames.push_back(Ok(Frame::data(content.to_bytes()))),
            Err(_) => {
                let failure = cell.body_failure().expect("the client is to blame");
                *response.status_mut() = failure.status();
            }
        },
        _ => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    cell.on_sent(move |sent| told.borrow_mut().push(sent));
    response.map(|()| answer)
}

/// A served connection.
struct Served {
    ending: JoinHandle<Ending>,
    stop: watch::Sender<bool>,
    told: Rc<RefCell<Vec<ExchangeEnd>>>,
}

fn serve(limits: Limits) -> (DuplexStream, Served) {
    serve_within(limits, None)
}

fn serve_within(limits: Limits, allowance: Option<Allowance>) -> (DuplexStream, Served) {
    serve_as(Http2Kind::Client, limits, allowance, None)
}

/// A child's link with the default number of streams for children.
fn serve_link(allowance: Option<Allowance>) -> (DuplexStream, Served) {
    let limits = Limits {
        streams: hashcache_link::STREAMS,
        frames: 16 * Limits::default().frames,
        ..Limits::default()
    };
    let kind = Http2Kind::Link {
        windows: Windows::within(0),
        counters: Arc::default(),
    };
    serve_as(kind, limits, allowance, None)
}

fn serve_as(
    kind: Http2Kind,
    limits: Limits,
    allowance: Option<Allowance>,
    memory_hits: Option<Rc<dyn MemoryHits>>,
) -> (DuplexStream, Served) {
    let (client, server) = tokio::io::duplex(64 << 10);
    let (stop, stopping) = watch::channel(false);
    let told = Rc::new(RefCell::new(Vec::new()));
    let all = Rc::clone(&told);
    let service = move |cell, request| service(cell, request, Rc::clone(&all));
    let ending = spawn_local(async move {
        let limits = Rc::new(limits);
        serve_http2(
            server,
            (&limits, &kind),
            allowance.as_ref(),
            memory_hits,
            service,
            stopping,
        )
        .await
    });
    (client, Served { ending, stop, told })
}

type Client = SendRequest<Full<Bytes>>;

/// A hyper client; the task stops when the connection closes.
async fn client(pipe: DuplexStream) -> (Client, JoinHandle<hyper::Result<()>>) {
    let builder = hyper::client::conn::http2::Builder::new(LocalTasks);
    let (sender, connection) = builder.handshake(TokioIo::new(pipe)).await.unwrap();
    (sender, spawn_local(connection))
}

#[derive(Clone)]
struct LocalTasks;

impl<T: Future<Output = ()> + 'static> Executor<T> for LocalTasks {
    fn execute(&self, task: T) {
        spawn_local(task);
    }
}

fn get(path: &str) -> Request<Full<Bytes>> {
    let url = format!("https://a.test/{path}");
    Request::get(url).body(Full::default()).unwrap()
}

async fn content(sender: &mut Client, path: &str) -> (StatusCode, hyper::Result<Bytes>) {
    let response = sender.send_request(get(path)).await.unwrap();
    let status = response.status();
    let content = response.into_body().collect().await;
    (status, content.map(|content| content.to_bytes()))
}

async fn locally<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

#[tokio::test(start_paused = true)]
async fn requests_at_once_are_answered_apart() {
    locally(async {
        let (pipe, served) = serve(Limits::default());
        let (sender, _connection) = client(pipe).await;
        let (mut first, mut second) = (sender.clone(), sender);
        let (slow, fast) = tokio::join!(content(&mut first, "slow"), content(&mut second, "hello"));
        assert_eq!(slow.1.unwrap(), "");
        assert_eq!(fast.1.unwrap(), "hello");
        let told = served.told.borrow();
        assert_eq!(told.len(), 2);
        assert!(told.iter().all(|sent| sent.complete && sent.bytes_read > 0));
        assert!(told[0].bytes_written > 5, "{told:?}");
    })
    .await;
}

/// The interim responses on a stream, and the status of the final one.
async fn interim_of(
    sender: &mut h2::client::SendRequest<Bytes>,
    path: &str,
) -> (Vec<(u16, Option<HeaderValue>)>, u16) {
    let request = Request::get(format!("https://a.test/{path}"));
    let request = request.header("retry-after", "1").body(()).unwrap();
    let (mut response, _) = sender.send_request(request, true).unwrap();
    let mut interim = Vec::new();
    while let Some(next) = poll_fn(|cx| response.poll_informational(cx)).await {
        let next = next.unwrap();
        interim.push((next.status().as_u16(), next.headers().get("link").cloned()));
        if interim.len() == 2 {
            break;
        }
    }
    (interim, response.await.unwrap().status().as_u16())
}

#[tokio::test(start_paused = true)]
async fn interim_responses_arrive_at_once_on_their_own_stream() {
    locally(async {
        let (pipe, _served) = serve(Limits::default());
        let (sender, connection) = h2::client::handshake(pipe).await.unwrap();
        spawn_local(connection);
        let (mut first, mut second) = (sender.clone(), sender);
        let (one, other) = tokio::join!(
            interim_of(&mut first, "hints/slow"),
            interim_of(&mut second, "hints/hello")
        );
        for ((interim, status), link) in [(one, "slow"), (other, "hello")] {
            let link = Some(HeaderValue::from_static(link));
            assert_eq!(interim, [(102, link.clone()), (103, link)]);
            assert_eq!(status, 200);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn interim_responses_wait_for_the_end_of_a_frame() {
    locally(async {
        let (pipe, _served) = serve(Limits::default());
        let (mut sender, connection) = h2::client::handshake(pipe).await.unwrap();
        spawn_local(connection);
        // More than the pipe and the windows hold: h2 stops in the middle of a frame.
        let request = Request::get("https://a.test/endless").body(()).unwrap();
        let (endless, _) = sender.send_request(request, true).unwrap();
        let mut content = endless.await.unwrap().into_body();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut other = sender.clone();
        let hinted = spawn_local(async move { interim_of(&mut other, "hints/slow").await });
        let mut received = 0;
        while received < 1 << 20 {
            let data = content.data().await.unwrap().unwrap();
            assert!(data.iter().all(|byte| *byte == 7));
            received += data.len();
            content.flow_control().release_capacity(data.len()).unwrap();
        }
        let (interim, status) = hinted.await.unwrap();
        assert_eq!((interim.len(), status), (2, 200));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn content_that_waits_for_a_100_gets_one_when_the_service_wants_it() {
    locally(async {
        let (pipe, _served) = serve(Limits::default());
        let (mut sender, connection) = h2::client::handshake(pipe).await.unwrap();
        spawn_local(connection);
        let request = Request::post("https://a.test/echo").header("expect", "100-continue");
        let sent = sender.send_request(request.body(()).unwrap(), false);
        let (mut response, mut content) = sent.unwrap();
        let interim = poll_fn(|cx| response.poll_informational(cx)).await;
        assert_eq!(interim.unwrap().unwrap().status(), StatusCode::CONTINUE);
        content
            .send_data(Bytes::from_static(b"late"), true)
            .unwrap();
        let mut echoed = response.await.unwrap().into_body();
        assert_eq!(echoed.data().await.unwrap().unwrap(), "late");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn malformed_trailers_are_the_clients_fault() {
    locally(async {
        let (pipe, _served) = serve(Limits::default());
        let (mut sender, connection) = h2::client::handshake(pipe).await.unwrap();
        spawn_local(connection);
        let request = Request::post("https://a.test/echo").body(()).unwrap();
        let (response, mut content) = sender.send_request(request, false).unwrap();
        content.send_data(Bytes::from_static(b"x"), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("7 "));
        content.send_trailers(trailers).unwrap();
        assert_eq!(response.await.unwrap().status(), StatusCode::BAD_REQUEST);
    })
    .await;
}

#[tokio::test]
async fn a_pseudo_field_in_trailers_resets_its_stream_and_no_other() {
    locally(async {
        let field = b"\0\x01t\x01v";
        // `:path: /` by index in the static table, and as a literal.
        for pseudo in [&[0x84][..], b"\0\x05:path\x01/"] {
            for trailers in [
                frame(1, 5, 1, pseudo),
                frame(1, 5, 1, &[field, pseudo].concat()),
                frame(1, 5, 1, &[pseudo, field].concat()),
                // After a table size update, padded, and in two frames.
                frame(1, 5, 1, &[&[0x20], pseudo].concat()),
                frame(1, 0x0d, 1, &[&[2], pseudo, &[0, 0]].concat()),
                [frame(1, 1, 1, b""), frame(9, 4, 1, pseudo)].concat(),
            ] {
                let (mut pipe, _served) = serve(Limits::default());
                let bytes = [
                    opening(),
                    frame(1, 4, 1, &fields("POST", "/echo")),
                    frame(0, 0, 1, b"content"),
                    trailers.clone(),
                    frame(1, 5, 3, &fields("GET", "/hello")),
                ];
                pipe.write_all(&bytes.concat()).await.unwrap();
                let reset = next_of(&mut pipe, 3).await.expect("a reset");
                assert_eq!((reset.stream, &reset.payload[..]), (1, &[0, 0, 0, 1][..]));
                let head = next_of(&mut pipe, 1).await.expect("a head");
                assert_eq!((head.stream, head.payload[0]), (3, 0x88), "{trailers:?}");
            }
        }
        // Trailers without pseudo-fields pass, also after a table size update.
        for trailers in [&field[..], b"\x20\0\x01t\x01v"] {
            let (mut pipe, _served) = serve(Limits::default());
            let bytes = [
                opening(),
                frame(1, 4, 1, &fields("POST", "/echo")),
                frame(0, 0, 1, b"content"),
                frame(1, 5, 1, trailers),
            ];
            pipe.write_all(&bytes.concat()).await.unwrap();
            assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
        }
    })
    .await;
}

/// The bytes that hyper reads if the client's bytes arrive in these parts.
async fn read_by_hyper(parts: impl IntoIterator<Item = &[u8]>) -> Vec<u8> {
    let (mut pipe, server) = tokio::io::duplex(1 << 10);
    let socket = Rc::new(RefCell::new(server.into()));
    let flow = Flow::new(Rc::default(), None, &Http2Kind::Client);
    let mut hyper = TokioIo::new(Framed::new(socket, flow));
    let mut read = Vec::new();
    let sending = async move {
        for part in parts {
            // The reader may close the pipe before it has read everything.
            let _ = pipe.write_all(part).await;
            tokio::task::yield_now().await;
        }
    };
    let both = async { tokio::join!(sending, hyper.read_to_end(&mut read)).1 };
    let waiting = tokio::time::timeout(Duration::from_secs(1), both);
    waiting.await.expect("the reader is woken").unwrap();
    read
}

#[tokio::test(start_paused = true)]
async fn hyper_reads_on_when_all_bytes_of_one_read_were_kept() {
    let bytes = [
        opening(),
        frame(1, 4, 1, &fields("POST", "/echo")),
        frame(0, 0, 1, b"content"),
        // Trailers with padding, which are kept until they are complete.
        frame(1, 0x0d, 1, b"\x02\0\x01x\x01y\0\0"),
        frame(6, 0, 0, &[1; 8]),
    ]
    .concat();
    let expected = read_by_hyper([&bytes[..]]).await;
    assert!(expected.len() > bytes.len());
    assert_eq!(read_by_hyper(bytes.chunks(1)).await, expected);
    // Reads with a few bytes, starting at any offset, also at a frame.
    for begin in 0..bytes.len() {
        for length in 1..=FRAME_HEAD.min(bytes.len() - begin) {
            let (before, after) = bytes.split_at(begin);
            let (kept, after) = after.split_at(length);
            let read = read_by_hyper([before, kept, after]).await;
            assert_eq!(read, expected, "{length} bytes after {begin}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_of_trailers_beyond_the_size_limit_ends_the_connection_at_once() {
    locally(async {
        let (mut pipe, _served) = serve(Limits::default());
        let request = frame(1, 4, 1, &fields("POST", "/echo"));
        // PADDED, with the largest length in 24 bits: the payload never arrives.
        let trailers = [0xff, 0xff, 0xff, 1, 8, 0, 0, 0, 1];
        let bytes = [opening(), request, trailers.to_vec()].concat();
        let began = Instant::now();
        pipe.write_all(&bytes).await.unwrap();
        let farewell = next_of(&mut pipe, 7).await.expect("GOAWAY");
        assert_eq!(farewell.payload[4..8], [0, 0, 0, 6], "FRAME_SIZE_ERROR");
        assert_eq!(Instant::now(), began);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_is_never_ended_cleanly() {
    locally(async {
        let (pipe, served) = serve(Limits::default());
        let (mut sender, _connection) = client(pipe).await;
        // The RST_STREAM may arrive before the response head.
        if let Ok(response) = sender.send_request(get("broken")).await {
            response.into_body().collect().await.unwrap_err();
        }
        assert!(!served.told.borrow()[0].complete);
        // Other streams of the connection are not affected.
        assert_eq!(content(&mut sender, "hello").await.1.unwrap(), "hello");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn head_answers_have_a_length_and_no_content_and_trailers_pass() {
    locally(async {
        let (pipe, _served) = serve(Limits::default());
        let (mut sender, _connection) = client(pipe).await;
        let mut request = get("length");
        *request.method_mut() = Method::HEAD;
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.headers()[CONTENT_LENGTH], "5");
        assert!(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .is_empty()
        );
        let response = sender.send_request(get("trailers")).await.unwrap();
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "7");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_answers_end_and_takes_no_more_requests() {
    locally(async {
        let (pipe, served) = serve(Limits::default());
        let (mut sender, connection) = client(pipe).await;
        let mut late = sender.clone();
        let slow = spawn_local(async move { content(&mut sender, "slow").await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        served.stop.send_replace(true);
        tokio::time::sleep(Duration::from_secs(1)).await;
        late.send_request(get("hello")).await.unwrap_err();
        assert_eq!(slow.await.unwrap().1.unwrap(), "");
        drop(late);
        connection.await.unwrap().unwrap();
        assert_eq!(served.ending.await.unwrap(), Ending::Closed);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_streams_ends_after_the_idle_time_and_says_so() {
    locally(async {
        let limits = Limits::default();
        let idle = limits.idle_time;
        let (pipe, served) = serve(limits);
        let (mut sender, connection) = client(pipe).await;
        assert_eq!(content(&mut sender, "hello").await.1.unwrap(), "hello");
        let since = Instant::now();
        // The client sees a GOAWAY and no error.
        connection.await.unwrap().unwrap();
        assert_eq!(served.ending.await.unwrap(), Ending::Idle);
        assert!(since.elapsed() >= idle && since.elapsed() < idle + 2 * LINGER_TIME);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_may_be_given_up_only_without_streams_and_unwritten_bytes() {
    locally(async {
        let (_cache, allowance) = allowance(16 << 20);
        let _open = allowance.open_connection();
        let gives_up = || allowance.share().make_room(9, 1);
        let (pipe, served) = serve_within(Limits::default(), Some(allowance.clone()));
        assert!(!gives_up(), "the preface is missing");
        let (mut sender, connection) = client(pipe).await;
        let slow = sender.send_request(get("slow"));
        let slow = spawn_local(slow);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!gives_up(), "a request is open");
        slow.await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(gives_up());
        assert!(!gives_up(), "once");
        // A request that arrives in time ends the idle time.
        assert_eq!(content(&mut sender, "hello").await.1.unwrap(), "hello");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(gives_up());
        served.stop.send_replace(true);
        drop(sender);
        connection.await.unwrap().unwrap();
        assert_eq!(served.ending.await.unwrap(), Ending::Closed);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn content_that_stops_coming_is_the_clients_fault() {
    locally(async {
        let (mut pipe, _served) = serve(Limits::default());
        pipe.write_all(&opening()).await.unwrap();
        pipe.write_all(&frame(1, 4, 1, &fields("POST", "/echo")))
            .await
            .unwrap();
        pipe.write_all(&frame(0, 0, 1, b"hel")).await.unwrap();
        let status = first_status(&mut pipe).await;
        assert_eq!(status, Some(StatusCode::BAD_REQUEST));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_get_is_answered_when_its_stream_has_ended() {
    locally(async {
        let (mut pipe, _served) = serve(Limits::default());
        pipe.write_all(&opening()).await.unwrap();
        pipe.write_all(&frame(1, 4, 1, &fields("GET", "/hello")))
            .await
            .unwrap();
        pipe.write_all(&frame(0, 0, 1, b"for nobody"))
            .await
            .unwrap();
        // A second head without END_STREAM is not a trailer section.
        pipe.write_all(&frame(1, 4, 1, &fields("GET", "/hello")))
            .await
            .unwrap();
        let reset = next_of(&mut pipe, 3).await.expect("RST_STREAM");
        assert_eq!(reset.payload, [0, 0, 0, 1], "PROTOCOL_ERROR");
        pipe.write_all(&frame(1, 4, 3, &fields("GET", "/hello")))
            .await
            .unwrap();
        pipe.write_all(&frame(0, 1, 3, b"for nobody"))
            .await
            .unwrap();
        assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_client_takes_nothing_is_reset() {
    locally(async {
        let limits = Limits::default();
        let time = limits.progress_time;
        let (mut pipe, served) = serve(limits);
        pipe.write_all(&opening()).await.unwrap();
        pipe.write_all(&frame(1, 5, 1, &fields("GET", "/endless")))
            .await
            .unwrap();
        let since = Instant::now();
        let reset = next_of(&mut pipe, 3).await;
        assert!(reset.is_some(), "RST_STREAM");
        assert!(since.elapsed() >= time && since.elapsed() < time + LINGER_TIME);
        assert!(!served.told.borrow()[0].complete);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_preface_or_a_head_that_is_never_complete_has_its_time() {
    locally(async {
        let half = frame(1, 0, 1, &fields("GET", "/hello"));
        for sent in [PREFACE[..9].to_vec(), [opening(), half].concat()] {
            let limits = Limits::default();
            let time = limits.head_time;
            let (mut pipe, served) = serve(limits);
            pipe.write_all(&sent).await.unwrap();
            let since = Instant::now();
            let reading = spawn_local(async move { pipe.read_to_end(&mut Vec::new()).await });
            assert_eq!(served.ending.await.unwrap(), Ending::SlowHead);
            assert!(since.elapsed() >= time && since.elapsed() <= time + 2 * LINGER_TIME);
            reading.abort();
        }
    })
    .await;
}

/// The reason for closing a connection if the client sends `frames` repeatedly.
async fn flooded(frames: impl Fn(u32) -> Vec<u8>) -> Ending {
    let (pipe, served) = serve(Limits::default());
    let (mut read, mut write) = tokio::io::split(pipe);
    let reading = spawn_local(async move {
        let mut page = vec![0; 64 << 10];
        while read.read(&mut page).await.is_ok_and(|read| read > 0) {}
    });
    write.write_all(&opening()).await.unwrap();
    for round in 0..100_000 {
        if write.write_all(&frames(round)).await.is_err() || served.ending.is_finished() {
            break;
        }
    }
    reading.abort();
    drop(write);
    served.ending.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn floods_of_frames_that_ask_for_nothing_end_the_connection() {
    locally(async {
        let get = |round: u32| frame(1, 5, 2 * round + 1, &fields("GET", "/slow"));
        for (what, ending) in [
            ("PING", flooded(|_| frame(6, 0, 0, &[0; 8])).await),
            ("SETTINGS", flooded(|_| frame(4, 0, 0, &[])).await),
            (
                "WINDOW_UPDATE",
                flooded(|_| frame(8, 0, 0, &[0, 0, 0, 1])).await,
            ),
            (
                "PRIORITY",
                flooded(|_| frame(2, 0, 1, &[0, 0, 0, 0, 9])).await,
            ),
            (
                "RST_STREAM",
                flooded(|round| {
                    let reset = frame(3, 0, 2 * round + 1, &[0, 0, 0, 8]);
                    [get(round), reset].concat()
                })
                .await,
            ),
        ] {
            assert!(
                matches!(ending, Ending::Flood | Ending::Broken),
                "{what}: {ending:?}"
            );
        }
        // hyper closes the connection before a field table has grown.
        let continued = flooded(|round| match round {
            0 => frame(1, 1, 1, &fields("GET", "/hello")),
            _ => frame(9, 0, 1, &[0x40, 1, b'a', 1, b'b']),
        });
        assert!(matches!(continued.await, Ending::Flood | Ending::Broken));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_head_beyond_the_limits_is_refused() {
    locally(async {
        let (pipe, _served) = serve(Limits::default());
        let (mut sender, _connection) = client(pipe).await;
        for (fields, length) in [(300, 1), (2, 40 << 10)] {
            let mut request = get("hello");
            for n in 0..fields {
                let name = http::HeaderName::try_from(format!("x-{n}")).unwrap();
                let value = HeaderValue::try_from("y".repeat(length)).unwrap();
                request.headers_mut().insert(name, value);
            }
            // A head larger than our announced limit is not sent at all.
            match sender.send_request(request).await {
                Ok(response) => {
                    assert_eq!(
                        response.status(),
                        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
                    );
                }
                Err(error) => assert!(error.is_user(), "{error:?}"),
            }
        }
        assert_eq!(content(&mut sender, "hello").await.1.unwrap(), "hello");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_more_streams_than_allowed_are_served_at_once() {
    locally(async {
        let limits = Limits {
            streams: 3,
            ..Limits::default()
        };
        let (mut pipe, _served) = serve(limits);
        pipe.write_all(&opening()).await.unwrap();
        for stream in 0..4 {
            let request = frame(1, 5, 2 * stream + 1, &fields("GET", "/slow"));
            pipe.write_all(&request).await.unwrap();
        }
        let reset = next_of(&mut pipe, 3).await.expect("RST_STREAM");
        assert_eq!(reset.stream, 7);
        assert_eq!(reset.payload, [0, 0, 0, 7], "REFUSED_STREAM");
    })
    .await;
}

fn opening() -> Vec<u8> {
    [&PREFACE[..], &frame(4, 0, 0, &[])].concat()
}

/// h2 then holds the first piece of a response, and the stream waits with the rest.
fn opening_with_a_window_of_one() -> Vec<u8> {
    let window = [0, 4, 0, 0, 0, 1];
    [&PREFACE[..], &frame(4, 0, 0, &window)].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A request's fields in HPACK, without indexing.
fn fields(method: &str, path: &str) -> Vec<u8> {
    let mut block = vec![0x86]; // :scheme http
    for (name, value) in [(2, method), (4, path), (1, "a.test")] {
        block.extend([name, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    block
}

struct Raw {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

async fn next(pipe: &mut DuplexStream) -> Option<Raw> {
    let mut head = [0; 9];
    pipe.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, _, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    pipe.read_exact(&mut payload).await.ok()?;
    Some(Raw {
        kind,
        stream: u32::from_be_bytes(stream),
        payload,
    })
}

/// The next frame with this type.
async fn next_of(pipe: &mut DuplexStream, kind: u8) -> Option<Raw> {
    loop {
        let raw = next(pipe).await?;
        if raw.kind == kind {
            return Some(raw);
        }
    }
}

/// The status in the first response.
async fn first_status(pipe: &mut DuplexStream) -> Option<StatusCode> {
    let head = next_of(pipe, 1).await?;
    // Static entries of HPACK (RFC 7541, appendix A).
    let status = match head.payload.first()? {
        0x88 => 200,
        0x8c => 400,
        0x8d => 404,
        _ => return None,
    };
    StatusCode::from_u16(status).ok()
}

/// Number of concurrent requests.
fn gets(count: u32, path: &str) -> Vec<u8> {
    let get = |stream| frame(1, 5, 2 * stream + 1, &fields("GET", path));
    (0..count).flat_map(get).collect()
}

/// An allowance with `bytes` in a much larger budget.
fn allowance(bytes: u64) -> (Cache, Allowance) {
    let config = Config {
        memory_bytes: 16 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    let cache = Cache::open(config).unwrap();
    let share = Shares::new(bytes, 100).of([192, 0, 2, 1].into());
    (cache.clone(), Allowance::new(share, cache))
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_cannot_be_paid_for_is_refused_without_an_answer() {
    locally(async {
        // Plus 32 table entries, of which 8 are free.
        let tables = 24 * ENTRY_BYTES;
        let (cache, allowance) = allowance(3 * STREAM_BYTES + PIECE_BYTES + tables);
        let before = cache.stats().memory_used_bytes;
        let (pipe, served) = serve_within(Limits::default(), Some(allowance));
        let (mut sender, _connection) = client(pipe).await;
        let slow = |_| {
            let mut sender = sender.clone();
            spawn_local(async move { sender.send_request(get("slow")).await.map(|_| ()) })
        };
        let many: Vec<_> = (0..20).map(slow).collect();
        let mut answered = 0;
        for one in many {
            match one.await.unwrap() {
                Ok(()) => answered += 1,
                Err(error) => {
                    let cause = error.source().and_then(|it| it.downcast_ref::<h2::Error>());
                    let reason = cause.and_then(h2::Error::reason);
                    assert_eq!(reason, Some(Reason::REFUSED_STREAM), "{error:?}");
                }
            }
        }
        assert_eq!(answered, 3, "what the share has room for");
        assert_eq!(
            served.told.borrow().len(),
            3,
            "the service was asked for no other"
        );
        assert_eq!(cache.stats().memory_used_bytes, before + tables);
        assert_eq!(content(&mut sender, "hello").await.1.unwrap(), "hello");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_on_and_on_beyond_its_share_loses_the_connection() {
    locally(async {
        let (_cache, allowance) = allowance(STREAM_BYTES / 2);
        let limits = Limits {
            frames: 64,
            ..Limits::default()
        };
        let (mut pipe, served) = serve_within(limits, Some(allowance));
        pipe.write_all(&opening()).await.unwrap();
        let (mut input, mut output) = tokio::io::split(pipe);
        let reading = spawn_local(async move {
            let mut page = vec![0; 4 << 10];
            while input.read(&mut page).await.is_ok_and(|read| read > 0) {}
        });
        for stream in 0..200 {
            let asked = frame(1, 5, 2 * stream + 1, &fields("GET", "/slow"));
            if output.write_all(&asked).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(served.ending.await.unwrap(), Ending::Flood);
        drop(output);
        reading.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_not_read_hold_no_more_pieces_than_the_share_has_room_for() {
    locally(async {
        // Ten streams and three pieces of 64 KiB.
        let (_cache, allowance) = allowance(10 * (STREAM_BYTES + 200) + 3 * PIECE_BYTES);
        let share = allowance.share().clone();
        let (mut pipe, served) = serve_within(Limits::default(), Some(allowance));
        pipe.write_all(&opening()).await.unwrap();
        for stream in 0..10 {
            let asked = frame(1, 5, 2 * stream + 1, &fields("GET", "/endless"));
            pipe.write_all(&asked).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(share.take(PIECE_BYTES).is_none(), "pieces are on the books");
        // The client has read nothing for too long: all memory is returned.
        assert_eq!(served.ending.await.unwrap(), Ending::SlowWrite);
        drop(pipe);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(share.take(10 * STREAM_BYTES).is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_stream_is_reset_before_any_task_runs() {
    locally(async {
        let (_cache, allowance) = allowance(32 << 10);
        let (mut client, server) = tokio::io::duplex(64 << 10);
        client.write_all(&opening()).await.unwrap();
        client.write_all(&gets(8, "/hello")).await.unwrap();
        let (_stop, stopping) = watch::channel(false);
        let told = Rc::default();
        let service = move |cell, request| service(cell, request, Rc::clone(&told));
        let limits = Rc::new(Limits::default());
        let mut serving = pin!(serve_http2(
            server,
            (&limits, &Http2Kind::Client),
            Some(&allowance),
            None,
            service,
            stopping
        ));
        // Polled once as a task; tasks spawned by it do not run.
        let mut cx = Context::from_waker(Waker::noop());
        assert!(serving.as_mut().poll(&mut cx).is_pending());
        let mut bytes = vec![0; 4 << 10];
        let read = client.read(&mut bytes).await.unwrap();
        let reset = frame(3, 0, 15, &7_u32.to_be_bytes());
        assert!(bytes[..read].windows(reset.len()).any(|it| it == reset));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tables_of_streams_are_paid_for_until_the_connection_ends() {
    locally(async {
        let (cache, allowance) = allowance(4 << 20);
        let before = cache.stats().memory_used_bytes;
        let (mut pipe, _served) = serve_within(Limits::default(), Some(allowance));
        pipe.write_all(&opening()).await.unwrap();
        pipe.write_all(&gets(100, "/slow")).await.unwrap();
        for _ in 0..100 {
            assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        // 128 entries, of which 8 are free.
        let tables = 120 * ENTRY_BYTES;
        assert_eq!(cache.stats().memory_used_bytes, before + tables);
        drop(pipe);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(cache.stats().memory_used_bytes, before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_stream_after_another_needs_no_larger_tables() {
    locally(async {
        let (cache, allowance) = allowance(4 << 20);
        let before = cache.stats().memory_used_bytes;
        let (pipe, _served) = serve_within(Limits::default(), Some(allowance));
        let (mut sender, _connection) = client(pipe).await;
        for _ in 0..200 {
            assert_eq!(content(&mut sender, "hello").await.1.unwrap(), "hello");
        }
        assert_eq!(cache.stats().memory_used_bytes, before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_cannot_pay_for_its_tables_ends() {
    locally(async {
        let (_cache, allowance) = allowance(100 * ENTRY_BYTES);
        let (mut pipe, served) = serve_within(Limits::default(), Some(allowance));
        pipe.write_all(&opening()).await.unwrap();
        pipe.write_all(&gets(100, "/hello")).await.unwrap();
        let (mut input, _output) = tokio::io::split(pipe);
        let reading = spawn_local(async move {
            let mut page = vec![0; 4 << 10];
            while input.read(&mut page).await.is_ok_and(|read| read > 0) {}
        });
        assert_eq!(served.ending.await.unwrap(), Ending::NoMemory);
        reading.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_piece_stays_in_the_share_until_h2_has_sent_it() {
    locally(async {
        let all = 1 << 20;
        let (_cache, allowance) = allowance(all);
        let share = allowance.share().clone();
        let (mut pipe, served) = serve_within(Limits::default(), Some(allowance));
        // With a window of one byte, hyper passes the whole response to h2, which sends one byte.
        pipe.write_all(&opening_with_a_window_of_one())
            .await
            .unwrap();
        pipe.write_all(&gets(1, "/page")).await.unwrap();
        assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(served.told.borrow().len(), 1, "hyper is done with it");
        assert!(share.take(all - PAGE.len() as u64 + 1).is_none());
        let more = frame(8, 0, 1, &(1_u32 << 20).to_be_bytes());
        pipe.write_all(&more).await.unwrap();
        let mut sent = 0;
        while sent < PAGE.len() - 1 {
            sent += next_of(&mut pipe, 0).await.unwrap().payload.len();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(share.take(all).is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_link_goes_on_while_the_share_of_its_child_is_full() {
    locally(async {
        let (_cache, allowance) = allowance(1 << 20);
        let (mut pipe, served) = serve_link(Some(allowance.clone()));
        pipe.write_all(&opening()).await.unwrap();
        let upload = frame(1, 4, 1, &fields("POST", "/echo"));
        pipe.write_all(&upload).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let full: Vec<_> = std::iter::from_fn(|| allowance.reserve(4 << 10)).collect();
        // Content, and more streams than the tables have free room for.
        for _ in 0..3 {
            let content = frame(0, 0, 1, &[b'x'; 16 << 10]);
            pipe.write_all(&content).await.unwrap();
        }
        for stream in 1..40 {
            let request = frame(1, 5, 2 * stream + 1, &fields("GET", "/hello"));
            pipe.write_all(&request).await.unwrap();
        }
        for _ in 1..40 {
            let reset = next_of(&mut pipe, 3).await.expect("RST_STREAM");
            assert_eq!(reset.payload, [0, 0, 0, 7], "REFUSED_STREAM");
        }
        assert!(!served.ending.is_finished());
        drop(full);
        pipe.write_all(&frame(0, 1, 1, b"")).await.unwrap();
        assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_users_of_a_link_may_cancel_all_their_requests_at_once() {
    locally(async {
        let (mut pipe, _served) = serve_link(None);
        let mut sent = opening();
        let cancelled = 800;
        for stream in 0..cancelled {
            sent.extend(frame(1, 5, 2 * stream + 1, &fields("GET", "/slow")));
            sent.extend(frame(3, 0, 2 * stream + 1, &[0, 0, 0, 8]));
        }
        sent.extend(frame(1, 5, 2 * cancelled + 1, &fields("GET", "/hello")));
        assert!(sent.len() < 64 << 10, "what a pipe takes at once");
        pipe.write_all(&sent).await.unwrap();
        assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn all_requests_that_arrive_together_on_a_link_are_answered() {
    locally(async {
        let (mut pipe, _served) = serve_link(None);
        // hyper gets the heads in small groups.
        let sent = [opening(), gets(300, "/hello")].concat();
        pipe.write_all(&sent).await.unwrap();
        for _ in 0..300 {
            assert_eq!(first_status(&mut pipe).await, Some(StatusCode::OK));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_head_of_a_link_is_not_given_up_for_others() {
    locally(async {
        for (is_link, has_head) in [(false, true), (true, false)] {
            let (_cache, allowance) = allowance(1 << 20);
            let (mut pipe, _served) = if is_link {
                serve_link(Some(allowance.clone()))
            } else {
                serve_within(Limits::default(), Some(allowance.clone()))
            };
            let half = frame(1, 0, 1, &fields("GET", "/hello"));
            for sent in [vec![], [opening(), half].concat()] {
                pipe.write_all(&sent).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(allowance.share().make_room(1, 1), has_head);
            }
        }
    })
    .await;
}
