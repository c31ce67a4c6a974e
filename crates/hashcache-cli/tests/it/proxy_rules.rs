//! Rules of caching that show only in the life of a request, through the real proxy.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Response, Script};

use crate::Home;
use crate::proxy_process::Proxy;

fn start(home: &Home, flags: &[&str]) -> Proxy {
    Proxy::start(&home.path().join("cache"), flags).expect("the proxy starts")
}

/// An origin that goes through `answers`, and stays with the last.
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

/// Waits for the store, of which a client may be ahead.
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
        // What is short is seen to be wrong before its head has gone.
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
        let url = match accelerates {
            true => "/x".to_owned(),
            false => origin.url("/x"),
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
