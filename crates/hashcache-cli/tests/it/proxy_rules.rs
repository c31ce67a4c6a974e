//! Caching rules that only a whole exchange can show, through the real proxy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Response, Script};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::Home;
use crate::proxy_process::Proxy;

fn start(home: &Home, flags: &[&str]) -> Proxy {
    Proxy::start(&home.path().join("cache"), flags).expect("the proxy starts")
}

/// An origin that sends `answers` one after the other and repeats the last.
async fn origin_of(answers: Vec<Script>) -> Origin {
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |_: &RawRequest| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        answers[number.min(answers.len() - 1)].clone()
    });
    origin.await.expect("a free port")
}

async fn ask(proxy: &Proxy, method: &str, url: &str, fields: &[(&str, &str)]) -> Response {
    let client = Client::connect(proxy.address()).await;
    let mut client = client.expect("the proxy accepts");
    let sent = client.request(method, url, fields).await;
    sent.expect("the proxy reads");
    let response = client.read_response(method).await;
    response.expect("the proxy answers")
}

/// Waits until the store has the object, which may be later than the response.
async fn until_stored(proxy: &Proxy, url: &str) {
    let fields = [("Cache-Control", "only-if-cached, max-stale")];
    while ask(proxy, "GET", url, &fields).await.status == 504 {}
}

fn cache_status(response: &Response) -> &str {
    let status = response.field("cache-status").unwrap_or_default();
    status.strip_prefix("hashcache; ").unwrap_or_default()
}

/// Of `hello`.
const DIGEST: &str = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_not_what_its_digest_says_is_not_told_as_whole_nor_stored() {
    let fields = [("Repr-Digest", DIGEST), ("Cache-Control", "max-age=600")];
    let chunked = [&fields[..], &[("Transfer-Encoding", "chunked")]].concat();
    let origin = origin_of(vec![
        Script::response(200, &fields, "jello"),
        Script::new().head(200, &chunked).chunk("jello").chunk(""),
        Script::response(200, &fields, "hello"),
    ]);
    let (home, origin) = (Home::new(), origin.await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    for _ in 0..2 {
        // The proxy checks the digest of a short response before it sends the head.
        let mut client = Client::connect(proxy.address()).await.unwrap();
        client.request("GET", &url, &[]).await.unwrap();
        let broken = client.read_response("GET").await;
        assert!(
            broken
                .as_ref()
                .map_or(true, |broken| broken.end == BodyEnd::Truncated),
            "{broken:?}"
        );
    }
    let sound = ask(&proxy, "GET", &url, &[]).await;
    assert_eq!(
        (sound.end, &sound.body[..]),
        (BodyEnd::Complete, &b"hello"[..])
    );
    until_stored(&proxy, &url).await;
    let again = ask(&proxy, "GET", &url, &[]).await;
    assert_eq!(
        (&again.body[..], origin.request_count()),
        (&b"hello"[..], 3)
    );
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_speaks_of_the_same_content_freshens_it_and_another_ends_it() {
    let answer = |tag: &str, number: &str| {
        let fields = [
            ("ETag", tag),
            ("Cache-Control", "max-age=600"),
            ("X-Number", number),
        ];
        Script::response(200, &fields, "hello")
    };
    let head = |tag: &str, number: &str| {
        let fields = [
            ("ETag", tag),
            ("Cache-Control", "max-age=600"),
            ("X-Number", number),
            ("Content-Length", "5"),
        ];
        Script::new().head(200, &fields)
    };
    let origin = origin_of(vec![
        answer("\"a\"", "1"),
        head("\"a\"", "2"),
        head("\"b\"", "3"),
        answer("\"b\"", "4"),
    ]);
    let (home, origin) = (Home::new(), origin.await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    let reload = [("Cache-Control", "no-cache")];
    ask(&proxy, "GET", &url, &[]).await;
    until_stored(&proxy, &url).await;
    let asked = ask(&proxy, "HEAD", &url, &reload).await;
    assert_eq!((asked.field("x-number"), asked.body.len()), (Some("2"), 0));
    assert_eq!(origin.requests()[1].method(), "HEAD");
    let same = ask(&proxy, "GET", &url, &[]).await;
    assert_eq!(
        (same.field("x-number"), &same.body[..]),
        (Some("2"), &b"hello"[..])
    );
    assert!(cache_status(&same).starts_with("hit"));
    ask(&proxy, "HEAD", &url, &reload).await;
    let other = ask(&proxy, "GET", &url, &[]).await;
    assert_eq!(
        (other.field("x-number"), origin.request_count()),
        (Some("4"), 4)
    );
    proxy.kill_well();
}

/// A response that is a second past its lifetime, which may be used for ten minutes `while`, and
/// then errors that could be stored.
async fn failing(window: &str) -> Origin {
    let lifetime = format!("max-age=1, {window}=600");
    let good = [
        ("Cache-Control", &lifetime[..]),
        ("Age", "2"),
        ("ETag", "\"a\""),
    ];
    let bad = [("Cache-Control", "max-age=600")];
    origin_of(vec![
        Script::response(200, &good, "good"),
        Script::response(503, &bad, "bad"),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_revalidating_an_error_replaces_nothing_and_is_not_asked_for_again_at_once() {
    let (home, origin) = (Home::new(), failing("stale-while-revalidate").await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    ask(&proxy, "GET", &url, &[]).await;
    until_stored(&proxy, &url).await;
    for _ in 0..5 {
        let stale = ask(&proxy, "GET", &url, &[]).await;
        assert_eq!((stale.status, &stale.body[..]), (200, &b"good"[..]));
        assert!(cache_status(&stale).starts_with("hit"), "{stale:?}");
        origin.wait_for_requests(2).await;
    }
    assert_eq!(origin.request_count(), 2);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_response_stands_in_for_an_error_that_could_be_stored() {
    let (home, origin) = (Home::new(), failing("stale-if-error").await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    ask(&proxy, "GET", &url, &[]).await;
    until_stored(&proxy, &url).await;
    for number in 2..4 {
        let stale = ask(&proxy, "GET", &url, &[]).await;
        assert_eq!((stale.status, &stale.body[..]), (200, &b"good"[..]));
        assert!(cache_status(&stale).starts_with("fwd=stale"), "{stale:?}");
        assert_eq!(origin.request_count(), number);
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_be_validated_is_not_served_when_the_origin_hangs_up() {
    let answer = |directives: &str| {
        let fields = [
            ("Cache-Control", directives),
            ("Age", "2"),
            ("ETag", "\"a\""),
        ];
        let good = Script::response(200, &fields, "good");
        origin_of(vec![good, Script::new().close()])
    };
    for (directives, status) in [("max-age=1", 200), ("max-age=1, must-revalidate", 502)] {
        let (home, origin) = (Home::new(), answer(directives).await);
        let (proxy, url) = (start(&home, &[]), origin.url("/x"));
        ask(&proxy, "GET", &url, &[]).await;
        if status == 200 {
            until_stored(&proxy, &url).await;
        }
        let later = ask(&proxy, "GET", &url, &[]).await;
        assert_eq!(later.status, status, "{directives}: {later:?}");
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_cache_that_an_origin_has_put_before_itself_heeds_what_it_says_to_that() {
    for (accelerates, requests) in [(true, 1), (false, 2)] {
        let fields = [
            ("CDN-Cache-Control", "max-age=600"),
            ("Cache-Control", "no-store"),
        ];
        let origin = origin_of(vec![Script::response(200, &fields, "hello")]).await;
        let home = Home::new();
        let flag = format!("--accelerate=http://{}", origin.address());
        let flags = [&flag[..]];
        let proxy = start(&home, if accelerates { &flags } else { &[] });
        let url = if accelerates {
            "/x".to_owned()
        } else {
            origin.url("/x")
        };
        ask(&proxy, "GET", &url, &[]).await;
        if accelerates {
            until_stored(&proxy, &url).await;
        }
        let again = ask(&proxy, "GET", &url, &[]).await;
        assert_eq!(
            (&again.body[..], origin.request_count()),
            (&b"hello"[..], requests)
        );
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_are_safe_invalidate_nothing() {
    let origin = origin_of(vec![Script::response(
        200,
        &[("Cache-Control", "max-age=600")],
        "x",
    )]);
    let (home, origin) = (Home::new(), origin.await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    ask(&proxy, "GET", &url, &[]).await;
    until_stored(&proxy, &url).await;
    for method in ["PROPFIND", "REPORT", "SEARCH", "QUERY", "OPTIONS"] {
        ask(&proxy, method, &url, &[]).await;
        let again = ask(&proxy, "GET", &url, &[]).await;
        assert!(cache_status(&again).starts_with("hit"), "{method}");
    }
    ask(&proxy, "PROPPATCH", &url, &[]).await;
    let again = ask(&proxy, "GET", &url, &[]).await;
    assert!(!cache_status(&again).starts_with("hit"));
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn options_for_a_host_without_a_path_asks_the_server_as_a_whole() {
    let origin = origin_of(vec![Script::response(200, &[], "x")]);
    let (home, origin) = (Home::new(), origin.await);
    let proxy = start(&home, &[]);
    for (path, target) in [("", "*"), ("/", "/"), ("?x", "/?x")] {
        let answer = ask(&proxy, "OPTIONS", &origin.url(path), &[]).await;
        assert_eq!(answer.status, 200, "{path:?}");
        let requests = origin.requests();
        let asked = requests.last().expect("it was asked");
        assert_eq!(asked.head.start_line, format!("OPTIONS {target} HTTP/1.1"));
    }
    proxy.kill_well();
}

/// How a client sends a request whose response begins before all content has been sent.
#[derive(Clone, Copy, Debug)]
enum Sends {
    /// The client sends no content before the response.
    Nothing,
    /// The client sends half of the content, then waits for the response.
    Half,
    /// The client sends and reads at the same time.
    All,
    /// The client sends everything, then reads.
    AllFirst,
}

const EARLY_BYTES: usize = 110_000;
const CONTENT_BYTES: usize = 4 << 20;

/// An early response to a POST.
#[derive(Debug)]
struct EarlyAnswer {
    status_line: String,
    content_bytes: usize,
    /// The longest time between the ends of two writes of the client.
    pause_max: Duration,
}

impl EarlyAnswer {
    fn is_whole(&self) -> bool {
        self.status_line == "HTTP/1.1 413 Scripted" && self.content_bytes == EARLY_BYTES
    }
}

async fn early_answer(proxy: &Proxy, url: &str, sends: Sends) -> EarlyAnswer {
    let socket = TcpStream::connect(proxy.address()).await;
    let socket = socket.expect("the proxy accepts");
    let (mut from, mut to) = socket.into_split();
    let length = CONTENT_BYTES;
    let head = format!("POST {url} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    let content = match sends {
        Sends::Nothing => 0,
        Sends::Half => length / 2,
        Sends::All | Sends::AllFirst => length,
    };
    let pause_max = Arc::new(Mutex::new(Duration::ZERO));
    let noted = Arc::clone(&pause_max);
    let sending = tokio::spawn(async move {
        // Small writes, so that the response arrives before most of them.
        to.write_all(head.as_bytes()).await?;
        let mut before = Instant::now();
        let page = [b'x'; 8 << 10];
        for _ in 0..content / page.len() {
            let written = to.write_all(&page).await;
            let now = Instant::now();
            let mut longest = noted.lock().expect("no thread panics");
            *longest = longest.max(now - before);
            before = now;
            written?;
        }
        Ok::<_, std::io::Error>(to)
    });
    let count = |answer: &[u8]| answer.iter().filter(|&&byte| byte == b'~').count();
    let mut answer = Vec::new();
    let conversation = async {
        // A client that cannot send everything has lost the response, whatever it could still read.
        let open = match sends {
            Sends::AllFirst => sending.await.expect("no panic").ok(),
            _ => None,
        };
        if matches!(sends, Sends::AllFirst) && open.is_none() {
            return;
        }
        while count(&answer) < EARLY_BYTES && from.read_buf(&mut answer).await.is_ok_and(|n| n > 0)
        {
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(30), conversation).await;
    assert!(in_time.is_ok(), "neither an answer nor an end: {sends:?}");
    let line = answer
        .split(|&byte| byte == b'\r')
        .next()
        .unwrap_or_default();
    let pause_max = *pause_max.lock().expect("no thread panics");
    EarlyAnswer {
        status_line: String::from_utf8_lossy(line).into_owned(),
        content_bytes: count(&answer),
        pause_max,
    }
}

/// As `early_answer`, but repeated if the client paused for long: the proxy waits for one second
/// for more of the content, then it closes the connection; if the client sends more after that, the
/// system resets the connection, and the response is lost.
async fn early_answer_without_pause(proxy: &Proxy, url: &str, sends: Sends) -> EarlyAnswer {
    let mut told = early_answer(proxy, url, sends).await;
    for _ in 0..5 {
        if told.is_whole() || told.pause_max <= Duration::from_millis(500) {
            break;
        }
        told = early_answer(proxy, url, sends).await;
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_before_the_content_is_sent_reaches_the_client_whole() {
    let page = "~".repeat(EARLY_BYTES);
    let length = page.len().to_string();
    let answer = Script::new()
        .head(413, &[("Content-Length", &length)])
        .bytes(&page);
    let chunked = Script::new()
        .head(413, &[("Transfer-Encoding", "chunked")])
        .chunk(&page)
        .chunk("");
    let mut faults = Vec::new();
    for (name, early) in [
        // Read after the answer, as RFC 9112 9.6 wants it: a server that closes with content unread
        // resets the connection, and may lose its own answer.
        ("with a length", answer.clone().read_body()),
        ("and then a close", answer.read_body().close()),
        ("in chunks", chunked.read_body().close()),
    ] {
        let origin = Origin::start(move |_: &RawRequest| early.clone());
        let (home, origin) = (Home::new(), origin.await.expect("a free port"));
        let (proxy, url) = (start(&home, &[]), origin.url("/x"));
        for sends in [Sends::Nothing, Sends::Half, Sends::All, Sends::AllFirst] {
            let told = early_answer_without_pause(&proxy, &url, sends).await;
            if !told.is_whole() {
                faults.push((name, sends, told));
            }
        }
        proxy.kill_well();
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_ranges_of_a_short_object_that_are_apart_come_as_parts() {
    let fields = [("Cache-Control", "max-age=600"), ("ETag", "\"a\"")];
    let origin = origin_of(vec![Script::response(
        200,
        &fields,
        "abcdefghijklmnopqrstuvwxyz",
    )]);
    let (home, origin) = (Home::new(), origin.await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    ask(&proxy, "GET", &url, &[]).await;
    until_stored(&proxy, &url).await;
    let parts = ask(&proxy, "GET", &url, &[("Range", "bytes=0-1,24-25")]).await;
    let body = String::from_utf8_lossy(&parts.body);
    assert_eq!(parts.status, 206, "{body}");
    let kind = parts.field("content-type").unwrap_or_default();
    assert!(kind.starts_with("multipart/byteranges"), "{kind}");
    for part in ["bytes 0-1/26\r\n\r\nab\r\n", "bytes 24-25/26\r\n\r\nyz\r\n"] {
        assert!(body.contains(part), "{body}");
    }
    // Overlapping ranges, and ranges that cost more than the whole, are answered with the whole
    // object.
    for range in ["bytes=0-5,3-9", "bytes=0-0,2-2,4-4"] {
        let whole = ask(&proxy, "GET", &url, &[("Range", range)]).await;
        assert_eq!((whole.status, whole.body.len()), (200, 26), "{range}");
    }
    proxy.kill_well();
}
