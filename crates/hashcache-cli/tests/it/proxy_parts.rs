//! Parts of one response: which bytes fit together, which fields fit them, and what is promised
//! before all bytes are there. Cases that depend on what memory knows are played with every policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashcache_testkit::{BodyEnd, Client, Gate, Origin, RawRequest, Response, Script};

use crate::Home;
use crate::proxy_process::Proxy;
use crate::proxy_ranges::until_stored;

const POLICIES: [&str; 6] = ["log", "log-lru", "basic", "set", "set-mem", "set-mem-lru"];
const LENGTH: usize = 1_000_000;
const MODIFIED: &str = "Mon, 01 Jan 2024 00:00:00 GMT";

/// Starts a proxy with this policy.
fn start(home: &Home, policy: &str) -> Proxy {
    let cache = home.path().join("cache");
    Proxy::start(&cache, &[&format!("--policy={policy}")]).expect("the proxy starts")
}

async fn get(proxy: &Proxy, url: &str, fields: &[(&str, &str)]) -> Response {
    send(proxy, "GET", url, fields).await
}

async fn send(proxy: &Proxy, method: &str, url: &str, fields: &[(&str, &str)]) -> Response {
    let mut client = Client::connect(proxy.address()).await.expect("it accepts");
    client.request(method, url, fields).await.expect("it reads");
    client.read_response(method).await.expect("it answers")
}

fn status_of(response: &Response) -> &str {
    response.field("cache-status").unwrap_or_default()
}

fn is_hit(response: &Response) -> bool {
    status_of(response).starts_with("hashcache; hit")
}

/// The range of a request, if it asks for one of content of this length.
fn asked(request: &RawRequest, length: usize) -> Option<(usize, usize)> {
    let range = request.field("range")?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    if first.is_empty() {
        let count = last.parse::<usize>().ok()?.min(length);
        return Some((length - count, length - 1));
    }
    let last = last.parse().map_or(length - 1, |last: usize| last);
    Some((first.parse().ok()?, last.min(length - 1)))
}

/// A part of `content`, or all of it if the request has no range.
fn part(request: &RawRequest, content: &[u8], fields: &[(&str, &str)]) -> Script {
    let Some((first, last)) = asked(request, content.len()) else {
        return Script::response(200, fields, content);
    };
    let range = format!("bytes {first}-{last}/{}", content.len());
    let fields = [fields, &[("Content-Range", &range)]].concat();
    Script::response(206, &fields, &content[first..=last])
}

const TAGGED: [(&str, &str); 2] = [("ETag", "\"e\""), ("Cache-Control", "max-age=600")];

/// Content in a coding or without one, under one strong tag and without `Vary`.
async fn careless() -> Origin {
    let origin = Origin::start(|request: &RawRequest| {
        let accepted = request.field("accept-encoding").unwrap_or_default();
        if !accepted.contains("gzip") {
            return part(request, &[b'i'; LENGTH], &TAGGED);
        }
        let fields = [&TAGGED[..], &[("Content-Encoding", "gzip")]].concat();
        part(request, &[b'g'; LENGTH], &fields)
    });
    origin.await.expect("a free port")
}

fn assert_one_coding(response: &Response) {
    let byte = match response.field("content-encoding") {
        Some("gzip") => b'g',
        _ => b'i',
    };
    assert!(response.body.iter().all(|it| *it == byte), "{response:?}");
    assert_eq!(response.end, BodyEnd::Complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_two_codings_with_one_tag_are_never_put_together() {
    let home = Home::new();
    let (proxy, origin) = (start(&home, "log"), careless().await);
    let gzip = ("Accept-Encoding", "gzip");
    for (number, first, then) in [(0, Some(gzip), None), (1, None, Some(gzip))] {
        for range in [None, Some(("Range", "bytes=50000-250000"))] {
            let url = origin.url(&format!("/{number}{}", range.is_some()));
            let begun = ("Range", "bytes=0-99999");
            let fields: Vec<_> = std::iter::once(begun).chain(first).collect();
            assert_one_coding(&get(&proxy, &url, &fields).await);
            let fields: Vec<_> = range.into_iter().chain(then).collect();
            for _ in 0..2 {
                assert_one_coding(&get(&proxy, &url, &fields).await);
            }
        }
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_transfer_is_not_taken_up_in_another_coding() {
    let home = Home::new();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let origin = Origin::start(move |request: &RawRequest| {
        if counted.fetch_add(1, Ordering::Relaxed) > 0 {
            // Whatever is accepted: a part without a coding, and with the tag of the coded form.
            return part(request, &[b'i'; LENGTH], &TAGGED);
        }
        let length = LENGTH.to_string();
        let more = [("Content-Encoding", "gzip"), ("Content-Length", &length)];
        let script = Script::new().head(200, &[&TAGGED[..], &more].concat());
        script.bytes([b'g'; 300_000]).close()
    });
    let origin = origin.await.expect("a free port");
    let proxy = start(&home, "log");
    let fields = [("Accept-Encoding", "gzip, br")];
    let broken = get(&proxy, &origin.url("/x"), &fields).await;
    assert_eq!(broken.end, BodyEnd::Truncated);
    assert!(broken.body.iter().all(|it| *it == b'g'));
    let rest = origin.requests();
    assert!(rest.len() > 1, "the transfer is taken up");
    for request in &rest[1..] {
        assert_eq!(request.field("accept-encoding"), Some("gzip"));
    }
    proxy.kill_well();
}

/// An origin that breaks its first response off and is sick until `well` is open.
async fn sick(content: Vec<u8>, well: &Gate) -> Origin {
    let (count, well) = (AtomicUsize::new(0), well.clone());
    let origin = Origin::start(move |request: &RawRequest| {
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            let length = content.len().to_string();
            let fields = [&TAGGED[..], &[("Content-Length", &length)]].concat();
            let begun = &content[..content.len() * 2 / 5];
            return Script::new().head(200, &fields).bytes(begun).close();
        }
        if well.is_open() {
            part(request, &content, &TAGGED)
        } else {
            Script::response(503, &[("Retry-After", "7")], "sick")
        }
    });
    origin.await.expect("a free port")
}

fn random(length: usize) -> Vec<u8> {
    let content = hashcache_testkit::content::body_for(3, "/parts", 1, length as u64);
    content.bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_length_is_promised_before_the_rest_of_a_broken_transfer_arrives() {
    for policy in POLICIES {
        let (home, well, content) = (Home::new(), Gate::new(), random(LENGTH));
        let origin = sick(content.clone(), &well).await;
        let (proxy, url) = (start(&home, policy), origin.url("/x"));
        let broken = get(&proxy, &url, &[]).await;
        assert_eq!(broken.end, BodyEnd::Truncated, "{policy}");
        until_stored(&proxy, &url, "bytes=0-99").await;
        for _ in 0..2 {
            let before = origin.request_count();
            let sick = get(&proxy, &url, &[]).await;
            let said = (sick.status, sick.field("retry-after"), &sick.body[..]);
            assert_eq!(said, (503, Some("7"), &b"sick"[..]), "{policy}");
            assert_eq!(origin.request_count(), before + 1, "{policy}");
        }
        // Bytes that are stored cost no request.
        let before = origin.request_count();
        let stored = get(&proxy, &url, &[("Range", "bytes=1000-1999")]).await;
        assert_eq!(
            (stored.status, &stored.body[..]),
            (206, &content[1000..2000])
        );
        assert_eq!(origin.request_count(), before, "{policy}");
        well.open();
        for _ in 0..3 {
            let whole = get(&proxy, &url, &[]).await;
            assert_eq!((whole.status, whole.end), (200, BodyEnd::Complete));
            assert!(whole.body == content, "{policy}");
        }
        assert_eq!(origin.request_count(), before + 1, "{policy}");
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_if_cached_is_no_reason_to_fetch_what_a_read_does_not_find() {
    for policy in POLICIES {
        let (home, well) = (Home::new(), Gate::new());
        let origin = sick(random(LENGTH), &well).await;
        let (proxy, url) = (start(&home, policy), origin.url("/x"));
        get(&proxy, &url, &[]).await;
        until_stored(&proxy, &url, "bytes=0-99").await;
        let before = origin.request_count();
        let response = get(&proxy, &url, &[("Cache-Control", "only-if-cached")]).await;
        assert_eq!(response.status, 504, "{policy}");
        assert_eq!(origin.request_count(), before, "{policy}");
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_the_whole_is_stored_as_the_whole() {
    for policy in POLICIES {
        let home = Home::new();
        let content = random(200_000);
        let sent = content.clone();
        let origin = Origin::start(move |request: &RawRequest| part(request, &sent, &TAGGED));
        let origin = origin.await.expect("a free port");
        let (proxy, url) = (start(&home, policy), origin.url("/x"));
        let first = get(&proxy, &url, &[("Range", "bytes=100-199999")]).await;
        assert_eq!((first.status, &first.body[..]), (206, &content[100..]));
        assert_eq!(
            first.field("content-range"),
            Some("bytes 100-199999/200000")
        );
        until_stored(&proxy, &url, "bytes=0-99").await;
        let whole = get(&proxy, &url, &[]).await;
        assert!(is_hit(&whole) && whole.body == content, "{policy}");
        assert_eq!(whole.field("content-range"), None);
        let ranged = get(&proxy, &url, &[("Range", "bytes=-5")]).await;
        assert!(is_hit(&ranged) && ranged.body == content[199_995..]);
        assert_eq!(origin.request_count(), 1, "{policy}");
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_part_of_the_length_that_was_requested_is_not_believed_to_be_the_whole() {
    let home = Home::new();
    let origin = Origin::start(|request: &RawRequest| match request.field("range") {
        // The origin sends the part as if it were the whole.
        Some(_) => {
            let fields = [&TAGGED[..], &[("Content-Range", "bytes 0-1/2")]].concat();
            Script::response(206, &fields, "pl")
        }
        None => Script::response(200, &TAGGED, "plain"),
    });
    let (origin, proxy) = (origin.await.expect("a free port"), start(&home, "log"));
    let (url, range) = (origin.url("/x"), ("Range", "bytes=0-1"));
    let first = get(&proxy, &url, &[range]).await;
    assert_eq!((first.status, &first.body[..]), (206, &b"pl"[..]));
    until_stored(&proxy, &url, range.1).await;
    assert!(is_hit(&get(&proxy, &url, &[range]).await));
    assert_eq!(origin.request_count(), 1);
    let head = send(&proxy, "HEAD", &url, &[]).await;
    assert_eq!(head.field("content-length"), Some("5"));
    let plain = get(&proxy, &url, &[]).await;
    assert_eq!((plain.status, &plain.body[..]), (200, &b"plain"[..]));
    proxy.kill_well();
}

/// An origin that cuts the part out of its content, and then says that this is all there is.
async fn cutting(content: Vec<u8>) -> Origin {
    let origin = Origin::start(
        move |request: &RawRequest| match asked(request, content.len()) {
            Some((first, last)) => part_of(&TAGGED, &content[first..=last]),
            None => Script::response(200, &TAGGED, &content),
        },
    );
    origin.await.expect("a free port")
}

fn part_of(fields: &[(&str, &str)], part: &[u8]) -> Script {
    let range = format!("bytes 0-{}/{}", part.len() - 1, part.len());
    let fields = [fields, &[("Content-Range", &range)]].concat();
    Script::response(206, &fields, part)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_part_of_the_length_that_was_requested_is_not_believed_to_be_the_whole() {
    for range in [
        "bytes=0-99999",
        "bytes=0-131071",
        "bytes=100000-200000",
        "bytes=-70000",
    ] {
        let (home, content) = (Home::new(), random(700_000));
        let origin = cutting(content.clone()).await;
        let (proxy, url) = (start(&home, "log"), origin.url("/x"));
        let first = get(&proxy, &url, &[("Range", range)]).await;
        let length = first.field("content-range");
        let is_whole = length.is_some_and(|length| length.ends_with("/700000"));
        assert_eq!((first.status, is_whole), (206, true), "{range}");
        until_stored(&proxy, &url, "bytes=0-99").await;
        for _ in 0..2 {
            let whole = get(&proxy, &url, &[]).await;
            assert_eq!((whole.status, whole.body.len()), (200, 700_000), "{range}");
            assert!(whole.body == content, "{range}");
        }
        assert_eq!(origin.request_count(), 2, "{range}");
        proxy.kill_well();
    }
}

/// An origin that evaluates preconditions; `version` is the number of its current version.
async fn conditional(version: &Arc<AtomicUsize>) -> Origin {
    let version = Arc::clone(version);
    let origin = Origin::start(move |request: &RawRequest| {
        let version = version.load(Ordering::Relaxed);
        let (tag, date) = (
            format!("\"{version}\""),
            format!("Mon, 0{version} Jan 2024 00:00:00 GMT"),
        );
        let fields = [("ETag", &*tag), ("Last-Modified", &*date), TAGGED[1]];
        let matches = match (
            request.field("if-match"),
            request.field("if-unmodified-since"),
        ) {
            (Some(tags), _) => tags == tag,
            (None, Some(since)) => since == date,
            (None, None) => true,
        };
        if matches {
            part(request, &vec![b"0123456789"[version]; LENGTH], &fields)
        } else {
            Script::response(412, &fields, "")
        }
    });
    origin.await.expect("a free port")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_with_a_precondition_that_holds_is_answered_from_the_store_and_stored() {
    for policy in POLICIES {
        let (home, version) = (Home::new(), Arc::new(AtomicUsize::new(1)));
        let origin = conditional(&version).await;
        let proxy = start(&home, policy);
        let range = ("Range", "bytes=70000-79999");
        for (number, condition) in [
            ("If-Match", "\"1\""),
            ("If-Match", "\"x\", \"1\""),
            ("If-Match", "*"),
            ("If-Unmodified-Since", MODIFIED),
            ("If-Range", "\"1\""),
        ]
        .into_iter()
        .enumerate()
        {
            let whole = origin.url(&format!("/whole{number}"));
            get(&proxy, &whole, &[]).await;
            until_stored(&proxy, &whole, "bytes=0-9").await;
            let stored = get(&proxy, &whole, &[range, condition]).await;
            assert_eq!((stored.status, stored.body.len()), (206, 10_000));
            assert!(
                is_hit(&stored),
                "{policy} {condition:?} {}",
                status_of(&stored)
            );
            if condition.1.contains(',') || condition.1 == "*" {
                // This origin does not know lists.
                continue;
            }
            let part = origin.url(&format!("/part{number}"));
            let first = get(&proxy, &part, &[range, condition]).await;
            assert_eq!((first.status, first.body.len()), (206, 10_000));
            until_stored(&proxy, &part, range.1).await;
            let second = get(&proxy, &part, &[range, condition]).await;
            assert!(
                is_hit(&second),
                "{policy} {condition:?} {}",
                status_of(&second)
            );
        }
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_precondition_that_does_not_hold_for_the_stored_response_is_for_the_origin() {
    let (home, version) = (Home::new(), Arc::new(AtomicUsize::new(1)));
    let origin = conditional(&version).await;
    let (proxy, url) = (start(&home, "log"), origin.url("/x"));
    get(&proxy, &url, &[]).await;
    until_stored(&proxy, &url, "bytes=0-9").await;
    version.store(2, Ordering::Relaxed);
    let range = ("Range", "bytes=0-9");
    let newer = get(&proxy, &url, &[range, ("If-Match", "\"2\"")]).await;
    assert_eq!((newer.status, &newer.body[..]), (206, &b"2222222222"[..]));
    for condition in [
        ("If-Match", "\"3\""),
        ("If-Match", "W/\"1\""),
        ("If-Unmodified-Since", "Sun, 31 Dec 2023 00:00:00 GMT"),
    ] {
        let failed = get(&proxy, &url, &[range, condition]).await;
        assert_eq!(failed.status, 412, "{condition:?}");
    }
    // The 412 was about those clients.
    let plain = get(&proxy, &url, &[]).await;
    assert!(is_hit(&plain), "{}", status_of(&plain));
    proxy.kill_well();
}

/// Digests of content that nobody checks, in the fields of a complete response.
const DIGESTS: [(&str, &str); 4] = [
    ("Content-Digest", "x-other=:AA==:"),
    ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ("Repr-Digest", "x-other=:AA==:"),
    ("Digest", "x-other=AA=="),
];

/// Which of [`DIGESTS`] a response has.
fn digests(response: &Response) -> [bool; 4] {
    DIGESTS.map(|(name, _)| response.field(name).is_some())
}

const ALL: [bool; 4] = [true; 4];
const OF_REPRESENTATION: [bool; 4] = [false, false, true, true];

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_is_sent_only_with_the_bytes_that_it_describes() {
    let home = Home::new();
    let origin = Origin::start(|request: &RawRequest| {
        let fields = [&TAGGED[..], &DIGESTS].concat();
        if request.target().starts_with("/ignores-range") {
            Script::response(200, &fields, [b'x'; LENGTH])
        } else {
            part(request, &[b'x'; LENGTH], &fields)
        }
    });
    let (origin, proxy) = (origin.await.expect("a free port"), start(&home, "log"));
    let range = ("Range", "bytes=100000-100099");
    let url = origin.url("/whole");
    assert_eq!(digests(&get(&proxy, &url, &[]).await), ALL);
    until_stored(&proxy, &url, "bytes=0-9").await;
    assert_eq!(digests(&get(&proxy, &url, &[]).await), ALL);
    for two in [range.1, "bytes=0-9,100000-100099"] {
        let cut = get(&proxy, &url, &[("Range", two)]).await;
        assert_eq!((cut.status, digests(&cut)), (206, OF_REPRESENTATION));
    }
    let head = send(&proxy, "HEAD", &url, &[]).await;
    assert_eq!((head.status, digests(&head)), (200, OF_REPRESENTATION));
    let known = get(&proxy, &url, &[("If-None-Match", "\"e\"")]).await;
    assert_eq!((known.status, digests(&known)), (304, OF_REPRESENTATION));
    // The part brings digests of itself, which are not those of other parts or of the whole.
    for path in ["/parts", "/ignores-range"] {
        let url = origin.url(path);
        let cut = get(&proxy, &url, &[range]).await;
        assert_eq!(
            (cut.status, digests(&cut)),
            (206, OF_REPRESENTATION),
            "{path}"
        );
        until_stored(&proxy, &url, range.1).await;
        let cut = get(&proxy, &url, &[range]).await;
        assert_eq!(
            (cut.status, digests(&cut)),
            (206, OF_REPRESENTATION),
            "{path}"
        );
    }
    let composed = get(&proxy, &origin.url("/parts"), &[]).await;
    assert_eq!(
        (composed.status, digests(&composed)),
        (200, OF_REPRESENTATION)
    );
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_the_last_part_are_not_trailers_of_the_whole() {
    let home = Home::new();
    let count = AtomicUsize::new(0);
    let origin = Origin::start(move |_: &RawRequest| {
        let trailers = "0\r\nContent-Digest: x-other=:AA==:\r\nX-Time: 7\r\n\r\n";
        let fields = [
            &TAGGED[..],
            &[("Transfer-Encoding", "chunked"), ("Trailer", "x-time")],
        ]
        .concat();
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            return Script::new().head(200, &fields).chunk([b'x'; 1000]).close();
        }
        let fields = [&fields[..], &[("Content-Range", "bytes 999-1999/2000")]].concat();
        Script::new()
            .head(206, &fields)
            .chunk([b'x'; 1001])
            .bytes(trailers)
    });
    let (origin, proxy) = (origin.await.expect("a free port"), start(&home, "log"));
    let whole = get(&proxy, &origin.url("/x"), &[("TE", "trailers")]).await;
    assert_eq!((whole.end, whole.body.len()), (BodyEnd::Complete, 2000));
    let has_digest = |name: &str| {
        whole
            .trailers
            .iter()
            .any(|(it, _)| it.eq_ignore_ascii_case(name))
    };
    assert!(!has_digest("content-digest"), "{:?}", whole.trailers);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_forbids_storing_does_not_take_the_stored_response_away() {
    let home = Home::new();
    let status = Arc::new(AtomicUsize::new(200));
    let now = Arc::clone(&status);
    let origin = Origin::start(move |_: &RawRequest| match now.load(Ordering::Relaxed) {
        200 => Script::response(200, &TAGGED, "page"),
        other => {
            let fields = [("Cache-Control", "no-store")];
            Script::response(u16::try_from(other).expect("a status"), &fields, "no")
        }
    });
    let (origin, proxy) = (origin.await.expect("a free port"), start(&home, "log"));
    let url = origin.url("/x");
    get(&proxy, &url, &[]).await;
    until_stored(&proxy, &url, "bytes=0-1").await;
    for sick in [500, 502, 503, 504, 429, 403, 401] {
        status.store(sick, Ordering::Relaxed);
        let validated = get(&proxy, &url, &[("Cache-Control", "no-cache")]).await;
        assert_eq!(usize::from(validated.status), sick);
        let plain = get(&proxy, &url, &[]).await;
        assert!(is_hit(&plain), "{sick}: {}", status_of(&plain));
    }
    status.store(404, Ordering::Relaxed);
    get(&proxy, &url, &[("Cache-Control", "no-cache")]).await;
    assert_eq!(get(&proxy, &url, &[]).await.status, 404);
    proxy.kill_well();
}
