//! Sites of the real proxy (`[[site]]`): which fields an origin gets, which origin is asked, which
//! fields the rules change, and which response a client gets.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use hashcache_testkit::{Client, Origin, RawRequest, Response, Script, reserved_address};
use tokio::net::TcpListener;

use crate::Home;
use crate::proxy_process::Proxy;

/// A proxy in front of `www.a.test`.
pub fn front(home: &Home, config: &str) -> Proxy {
    let file = home.file("site.toml", config);
    let (cache, log) = (home.path().join("cache.img"), home.path().join("log"));
    let flags = [
        format!("--config={}", file.display()),
        format!("--access-log={}", log.display()),
    ];
    Proxy::start(&cache, &[&flags[0], &flags[1]]).unwrap()
}

/// One site at these origins, with further lines.
pub fn site(origins: &[&Origin], more: &str) -> String {
    let urls: Vec<String> = origins
        .iter()
        .map(|origin| format!("\"http://{}\"", origin.address()))
        .collect();
    site_at(&urls.join(", "), more)
}

pub fn site_at(urls: &str, more: &str) -> String {
    format!("[[site]]\nhosts = [\"www.a.test\", \"a.test\"]\norigins = [{urls}]\n{more}\n")
}

pub async fn origin(answer: impl Fn(&RawRequest) -> Script + Send + Sync + 'static) -> Origin {
    Origin::start(answer).await.unwrap()
}

/// An origin whose responses are fresh.
pub async fn plain(content: &'static str) -> Origin {
    origin(move |_| Script::response(200, &FRESH, content)).await
}

pub const FRESH: [(&str, &str); 1] = [("Cache-Control", "max-age=600")];
pub const WWW: (&str, &str) = ("Host", "www.a.test");

pub async fn ask(proxy: &Proxy, method: &str, path: &str, fields: &[(&str, &str)]) -> Response {
    let mut client = Client::connect(proxy.address()).await.unwrap();
    client.request(method, path, fields).await.unwrap();
    client.read_response(method).await.unwrap()
}

pub async fn get(proxy: &Proxy, path: &str, fields: &[(&str, &str)]) -> Response {
    let fields: Vec<_> = [WWW].iter().chain(fields).copied().collect();
    ask(proxy, "GET", path, &fields).await
}

/// An address at which nothing listens.
fn nobody() -> SocketAddr {
    reserved_address(Ipv4Addr::LOCALHOST).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origin_sees_the_host_of_the_client_and_where_it_is_from() {
    let (home, origin) = (Home::new(), plain("page").await);
    let proxy = front(&home, &site(&[&origin], ""));
    let forged = [
        ("Host", "a.test:8080"),
        ("X-Forwarded-For", "192.0.2.9"),
        ("X-Forwarded-Host", "evil.test"),
        ("X-Forwarded-Prefix", "/evil"),
        ("Forwarded", "for=192.0.2.9"),
    ];
    assert_eq!(ask(&proxy, "GET", "/a", &forged).await.body, b"page");
    let request = &origin.requests()[0];
    for (name, value) in [
        ("Host", "a.test:8080"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Host", "a.test:8080"),
        ("Forwarded", "for=127.0.0.1;host=\"a.test:8080\";proto=http"),
    ] {
        assert_eq!(request.field(name), Some(value), "{name}");
    }
    assert_eq!(request.field("X-Forwarded-Prefix"), None);
    assert!(origin.complaints().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_trusted_proxy_says_of_the_scheme_counts_where_the_key_holds_it() {
    let (home, origin) = (Home::new(), plain("page").await);
    let trust = site(&[&origin], "trust_forwarded = [\"127.0.0.0/8\"]");
    let proxy = front(&home, &trust);
    let own = ("CF-Visitor", "{\"scheme\":\"https\"}");
    // The other fields leave the key that of plain HTTP, and the origin may read `own`.
    for (path, fields, fetches) in [
        ("/named", &[own, ("X-Forwarded-Proto", "https")][..], 1),
        (
            "/forwarded",
            &[own, ("Forwarded", "for=192.0.2.9;proto=https")],
            1,
        ),
        ("/unknown", &[own, ("X-Forwarded-Proto", "gopher")], 2),
        ("/unnamed", &[own], 2),
        ("/https", &[("X-Forwarded-Https", "on")], 2),
        ("/protocol", &[("X-Forwarded-Protocol", "https")], 2),
        ("/scheme", &[("X-Forwarded-Scheme", "https")], 2),
        ("/ssl", &[("X-Forwarded-Ssl", "on")], 2),
        ("/port", &[("X-Forwarded-Port", "443")], 2),
    ] {
        let before = origin.request_count();
        for _ in 0..2 {
            assert_eq!(get(&proxy, path, fields).await.body, b"page");
        }
        assert_eq!(origin.request_count() - before, fetches, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_speaks_for_its_client_and_schemes_are_stored_apart() {
    let (home, origin) = (Home::new(), plain("page").await);
    let log = home.path().join("log");
    let trust = site(&[&origin], "trust_forwarded = [\"127.0.0.0/8\"]");
    let proxy = front(
        &home,
        &format!(
            "allow_purge = [\"127.0.0.1\"]
{trust}"
        ),
    );
    let fields = [
        ("X-Forwarded-For", "203.0.113.5, 192.0.2.9"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "evil.test"),
    ];
    get(&proxy, "/a", &fields).await;
    get(&proxy, "/a", &fields).await;
    assert_eq!(origin.request_count(), 1);
    get(&proxy, "/a", &[]).await;
    assert_eq!(origin.request_count(), 2);
    // A purge is about the page, whatever its scheme; the proxy's client may not purge.
    let of_client: Vec<_> = [WWW].iter().chain(&fields).copied().collect();
    for (asked, status) in [(&of_client[..], 403), (&[WWW], 200)] {
        assert_eq!(ask(&proxy, "PURGE", "/a", asked).await.status, status);
    }
    get(&proxy, "/a", &fields).await;
    get(&proxy, "/a", &[]).await;
    assert_eq!(origin.request_count(), 4);
    let request = &origin.requests()[0];
    assert_eq!(
        request.field("X-Forwarded-For"),
        Some("192.0.2.9, 127.0.0.1")
    );
    assert_eq!(request.field("X-Forwarded-Proto"), Some("https"));
    assert_eq!(request.field("X-Forwarded-Host"), Some("www.a.test"));
    let logged = loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.lines().count() == 7 {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let from = |client: &str| logged.lines().filter(|line| line.contains(client)).count();
    assert_eq!(
        (from(" 192.0.2.9 "), from(" 127.0.0.1 ")),
        (4, 3),
        "{logged}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_a_site_gets_421_and_each_site_has_its_own_origins() {
    let (home, one, two) = (Home::new(), plain("one").await, plain("two").await);
    let other = format!(
        "[[site]]\nhosts = [\"b.test\"]\norigins = [\"http://{}\"]\nhost = \"inside.test\"\n",
        two.address()
    );
    let proxy = front(&home, &(site(&[&one], "host = \"origin\"") + &other));
    assert_eq!(get(&proxy, "/", &[]).await.body, b"one");
    let at_b = ask(&proxy, "GET", "/", &[("Host", "B.test")]).await;
    assert_eq!(at_b.body, b"two");
    for host in ["c.test", "x.a.test", "127.0.0.1"] {
        assert_eq!(
            ask(&proxy, "GET", "/", &[("Host", host)]).await.status,
            421,
            "{host}"
        );
    }
    assert_eq!(
        ask(&proxy, "CONNECT", "a.test:443", &[WWW]).await.status,
        501
    );
    let host = one.address().to_string();
    assert_eq!(one.requests()[0].field("Host"), Some(&*host));
    assert_eq!(two.requests()[0].field("Host"), Some("inside.test"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_take_turns_and_a_dead_origin_costs_no_request() {
    let (home, one, two) = (Home::new(), plain("x").await, plain("x").await);
    let proxy = front(&home, &site(&[&one, &two], ""));
    for n in 0..6 {
        get(&proxy, &format!("/{n}"), &[]).await;
    }
    assert_eq!((one.request_count(), two.request_count()), (3, 3));
    drop(one);
    for n in 6..26 {
        assert_eq!(get(&proxy, &format!("/{n}"), &[]).await.status, 200, "{n}");
    }
    // A connection of the origin that ends may answer once more.
    let count = two.request_count();
    assert!((22..=23).contains(&count), "{count}");
    assert!(proxy.kill().contains("origin fails"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_content_is_sent_once_and_only_once() {
    let home = Home::new();
    let broken = origin(|_| Script::new().close()).await;
    let good = plain("x").await;
    let proxy = front(&home, &site(&[&broken, &good], "balance = \"first\""));
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let head = "POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc";
    client.send(head.as_bytes()).await.unwrap();
    assert_eq!(client.read_response("POST").await.unwrap().status, 502);
    assert_eq!((broken.request_count(), good.request_count()), (1, 0));
    assert_eq!(get(&proxy, "/a", &[]).await.status, 200);
    assert_eq!(good.request_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_response_is_validated_at_the_origin_that_gave_its_tag() {
    let tagged = |tag: &'static str| {
        origin(
            move |request: &RawRequest| match request.field("If-None-Match") {
                Some(known) if known == tag => Script::response(304, &[("ETag", tag)], ""),
                _ => Script::response(200, &[("ETag", tag), ("Cache-Control", "no-cache")], tag),
            },
        )
    };
    let (home, one, two) = (Home::new(), tagged("\"1\"").await, tagged("\"2\"").await);
    let proxy = front(&home, &site(&[&one, &two], ""));
    let first = get(&proxy, "/a", &[]).await;
    assert_eq!(first.field("hashcache-origin"), None);
    for _ in 0..4 {
        assert_eq!(get(&proxy, "/a", &[]).await.body, first.body);
    }
    let counts = [one.request_count(), two.request_count()];
    assert!(counts == [5, 0] || counts == [0, 5], "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_take_an_origin_out_and_bring_it_back() {
    let home = Home::new();
    let status = Arc::new(AtomicU16::new(500));
    let shown = Arc::clone(&status);
    let checked = origin(move |request: &RawRequest| match request.target() {
        "/health" => Script::response(shown.load(Ordering::Relaxed), &[], ""),
        _ => Script::response(200, &FRESH, "checked"),
    });
    let (checked, other) = (checked.await, plain("other").await);
    let more = "balance = \"first\"\nhealth = { path = \"/health\", interval = \"50ms\" }";
    let proxy = front(&home, &site(&[&checked, &other], more));
    let mut number = 0;
    for (status_now, content) in [(500, "other"), (200, "checked"), (404, "other")] {
        status.store(status_now, Ordering::Relaxed);
        let begun = tokio::time::Instant::now();
        loop {
            number += 1;
            let answer = get(&proxy, &format!("/{number}"), &[]).await;
            // `other` answers its checks with 200, as it answers everything.
            if answer.body == content.as_bytes() {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{status_now}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let requests = checked.requests();
    let check = requests.iter().find(|it| it.target() == "/health").unwrap();
    assert_eq!(check.field("Host"), Some("www.a.test"));
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_requests_are_redirected_except_for_proofs_of_the_domain() {
    let (home, origin) = (Home::new(), plain("proof").await);
    let more = "redirect_to_https = true\ntrust_forwarded = [\"127.0.0.1\"]";
    let proxy = front(&home, &site(&[&origin], more));
    let answer = ask(&proxy, "GET", "/a?b", &[("Host", "a.test:8080")]).await;
    assert_eq!(answer.status, 308);
    assert_eq!(answer.field("Location"), Some("https://a.test/a?b"));
    assert_eq!(origin.request_count(), 0);
    let proof = get(&proxy, "/.well-known/acme-challenge/x", &[]).await;
    assert_eq!(proof.body, b"proof");
    let secure = get(&proxy, "/a", &[("X-Forwarded-Proto", "https")]).await;
    assert_eq!(secure.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_responses_stand_in_for_errors_within_the_grace() {
    for (more, expected) in [("stale_if_error = \"1h\"", 200), ("", 500)] {
        let home = Home::new();
        let count = AtomicU16::new(0);
        let origin = origin(move |_| match count.fetch_add(1, Ordering::Relaxed) {
            0 => Script::response(
                200,
                &[("Cache-Control", "max-age=0"), ("ETag", "\"1\"")],
                "x",
            ),
            _ => Script::response(500, &[], "error"),
        });
        let origin = origin.await;
        let proxy = front(&home, &site(&[&origin], more));
        assert_eq!(get(&proxy, "/a", &[]).await.status, 200);
        assert_eq!(get(&proxy, "/a", &[]).await.status, expected, "{more}");
        assert_eq!(origin.request_count(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_origin_the_stale_response_is_served_and_else_the_error_page() {
    let home = Home::new();
    let page = home.file("error.html", "<h1>Back soon</h1>");
    let stale = [("Cache-Control", "max-age=0"), ("ETag", "\"1\"")];
    let origin = origin(move |_| Script::response(200, &stale, "old")).await;
    let more = format!("error_page = \"{}\"", page.display());
    let proxy = front(&home, &site(&[&origin], &more));
    assert_eq!(get(&proxy, "/a", &[]).await.body, b"old");
    drop(origin);
    assert_eq!(get(&proxy, "/a", &[]).await.body, b"old");
    let browser = get(&proxy, "/b", &[("Accept", "text/html")]).await;
    assert_eq!(browser.status, 502);
    assert_eq!(browser.body, b"<h1>Back soon</h1>");
    assert_eq!(browser.field("Cache-Control"), Some("no-store"));
    let program = get(&proxy, "/b", &[]).await;
    assert!(program.body.starts_with(b"Cannot") || program.status == 502);
    assert_ne!(program.body, b"<h1>Back soon</h1>");
}

#[tokio::test(flavor = "multi_thread")]
async fn key_rules_decide_what_is_one_response() {
    let home = Home::new();
    let origin = origin(|request: &RawRequest| {
        Script::response(200, &FRESH, request.field("Cookie").unwrap_or("none"))
    });
    let origin = origin.await;
    let more = "key = { drop_query = [\"utm_*\"], sort_query = true, cookies = [\"lang\"] }\n\
                bypass_cookie = [\"session\"]";
    let config = "allow_purge = [\"127.0.0.1\"]\n".to_owned() + &site(&[&origin], more);
    let proxy = front(&home, &config);
    let german = [("Cookie", "id=1; lang=de")];
    let first = get(&proxy, "/a?b=2&utm_x=1&a=1", &german).await;
    assert_eq!(first.body, b"id=1; lang=de");
    assert_eq!(first.field("Vary"), Some("cookie"));
    assert_eq!(origin.requests()[0].target(), "/a?a=1&b=2");
    assert_eq!(origin.requests()[0].field("hashcache-key"), None);
    let same = get(&proxy, "/a?a=1&b=2&utm_y=2", &[("Cookie", "lang=de; id=2")]).await;
    assert_eq!(same.body, first.body);
    assert_eq!(origin.request_count(), 1);
    let english = [("Cookie", "lang=en")];
    assert_eq!(get(&proxy, "/a?a=1&b=2", &english).await.body, b"lang=en");
    assert_eq!(get(&proxy, "/a?a=1&b=2", &english).await.body, b"lang=en");
    assert_eq!(origin.request_count(), 2);
    for n in 3..5 {
        get(&proxy, "/a?a=1&b=2", &[("Cookie", "session=1; lang=de")]).await;
        assert_eq!(origin.request_count(), n);
    }
    let purge = ask(&proxy, "PURGE", "/a?b=2&a=1", &[WWW]).await;
    assert_eq!(purge.status, 200);
    for fields in [&german, &english] {
        get(&proxy, "/a?a=1&b=2", fields).await;
    }
    assert_eq!(origin.request_count(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn header_rules_change_requests_and_responses_but_not_what_is_stored() {
    let home = Home::new();
    let fields = [FRESH[0], ("Server", "secret"), ("Vary", "Accept-Language")];
    let origin = origin(move |_| Script::response(200, &fields, "x")).await;
    let more = "request_headers = { set = { Accept-Language = \"de\" }, remove = [\"X-Debug\"] }\n\
                response_headers = { remove = [\"Server\"], set = { X-Frame-Options = \"DENY\" } }";
    let proxy = front(&home, &site(&[&origin], more));
    for language in ["en", "fr"] {
        let asked = [("Accept-Language", language), ("X-Debug", "1")];
        let answer = get(&proxy, "/a", &asked).await;
        assert_eq!(answer.field("Server"), None);
        assert_eq!(answer.field("X-Frame-Options"), Some("DENY"));
    }
    assert_eq!(origin.request_count(), 1, "the origin saw one language");
    assert_eq!(origin.requests()[0].field("Accept-Language"), Some("de"));
    assert_eq!(origin.requests()[0].field("X-Debug"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_stored_once_and_served_in_the_coding_of_each_client() {
    let home = Home::new();
    let content: &'static str = Box::leak("<p>text of a page</p>\n".repeat(5_000).into());
    let fields = [FRESH[0], ("Content-Type", "text/html"), ("ETag", "\"v1\"")];
    let origin = origin(move |_| Script::response(200, &fields, content)).await;
    let proxy = front(&home, &site(&[&origin], "compress = [\"br\", \"gzip\"]"));
    for _ in 0..2 {
        let gzip = get(&proxy, "/a", &[("Accept-Encoding", "gzip")]).await;
        assert_eq!(gzip.field("Content-Encoding"), Some("gzip"));
        assert_eq!(gzip.field("ETag"), Some("W/\"v1\""));
        assert_eq!(gzip.field("Vary"), Some("accept-encoding"));
        assert!(gzip.body.len() * 10 < content.len());
        let mut decoded = String::new();
        let mut decoder = flate2::read::GzDecoder::new(&gzip.body[..]);
        decoder.read_to_string(&mut decoded).unwrap();
        assert!(decoded == content);
        let br = get(&proxy, "/a", &[("Accept-Encoding", "gzip, br")]).await;
        assert_eq!(br.field("Content-Encoding"), Some("br"));
        assert!(br.body.len() < content.len() / 10);
        let identity = get(&proxy, "/a", &[]).await;
        assert_eq!(identity.field("Content-Encoding"), None);
        assert_eq!(identity.field("ETag"), Some("\"v1\""));
        assert_eq!(identity.field("Vary"), Some("accept-encoding"));
        assert!(identity.body == content.as_bytes());
    }
    let part = [("Accept-Encoding", "gzip"), ("Range", "bytes=3-6")];
    let part = get(&proxy, "/a", &part).await;
    assert_eq!((part.status, &part.body[..]), (206, &b"text"[..]));
    let known = [("Accept-Encoding", "gzip"), ("If-None-Match", "W/\"v1\"")];
    let known = get(&proxy, "/a", &known).await;
    assert_eq!((known.status, known.field("ETag")), (304, Some("W/\"v1\"")));
    let head = ask(&proxy, "HEAD", "/a", &[WWW, ("Accept-Encoding", "gzip")]).await;
    assert_eq!(head.field("Content-Encoding"), Some("gzip"));
    assert_eq!(head.field("Content-Length"), None);
    assert_eq!(origin.request_count(), 1);
    assert_eq!(origin.requests()[0].field("Accept-Encoding"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_of_unknown_length_without_a_byte_is_a_whole_stream_of_its_coding() {
    let home = Home::new();
    let fields = "Cache-Control: max-age=600\r\nContent-Type: text/html\r\n";
    let answer = format!("HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    let origin = origin(move |_| Script::new().bytes(answer.as_bytes())).await;
    let proxy = front(&home, &site(&[&origin], "compress = [\"gzip\"]"));
    for path in ["/a", "/a", "/b"] {
        let gzip = get(&proxy, path, &[("Accept-Encoding", "gzip")]).await;
        assert_eq!(gzip.field("Content-Encoding"), Some("gzip"));
        let mut decoded = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&gzip.body[..]);
        decoder.read_to_end(&mut decoded).unwrap();
        assert!(decoded.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_304_says_vary_as_the_response_does() {
    let home = Home::new();
    let origin = origin(move |request: &RawRequest| {
        let fields = [
            ("Cache-Control", "max-age=600"),
            ("Content-Type", "text/html"),
            ("ETag", "\"v1\""),
        ];
        match request.field("If-None-Match") {
            // The origin omits `Vary`, although it should not.
            Some(_) => Script::response(304, &fields[..1], ""),
            None => {
                let fields = [&fields[..], &[("Vary", "Accept-Language")]].concat();
                Script::response(200, &fields, "text ".repeat(1_000))
            }
        }
    });
    let origin = origin.await;
    let more = "compress = [\"br\"]\nkey = { cookies = [\"lang\"] }";
    let proxy = front(&home, &site(&[&origin], more));
    let asked = [("Accept-Encoding", "br"), ("Accept-Language", "de")];
    let vary = |answer: &Response| {
        let lines = answer.head.fields_named("Vary").collect::<Vec<_>>();
        let mut names: Vec<_> = lines
            .join(",")
            .split(',')
            .map(|it| it.trim().to_owned())
            .collect();
        names.sort();
        names.join(" ")
    };
    let expected = "accept-encoding accept-language cookie";
    assert_eq!(vary(&get(&proxy, "/a", &asked).await), expected);
    let known = [&asked[..], &[("If-None-Match", "W/\"v1\"")]].concat();
    let known = get(&proxy, "/a", &known).await;
    assert_eq!((known.status, vary(&known)), (304, expected.into()));
    let reload = [&asked[..], &[("Cache-Control", "no-cache")]].concat();
    assert_eq!(vary(&get(&proxy, "/a", &reload).await), expected);
    // The validated response is still stored, for the same requests.
    assert_eq!(vary(&get(&proxy, "/a", &asked).await), expected);
    assert_eq!(origin.request_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn accelerate_is_a_site_whose_host_is_kept_if_it_has_a_name() {
    let (home, origin) = (Home::new(), plain("x").await);
    let url = format!("--accelerate=http://{}", origin.address());
    let named = Proxy::start(
        &home.path().join("1.img"),
        &[&url, "--accelerate-host=www.a.test"],
    );
    let named = named.unwrap();
    get(&named, "/", &[]).await;
    assert_eq!(origin.requests()[0].field("Host"), Some("www.a.test"));
    assert_eq!(
        ask(&named, "GET", "/", &[("Host", "b.test")]).await.status,
        421
    );
    let any = Proxy::start(&home.path().join("2.img"), &[&url]).unwrap();
    get(&any, "/", &[]).await;
    ask(&any, "GET", "/", &[("Host", "other.test")]).await;
    assert_eq!(origin.request_count(), 2, "any host is the same site");
    let host = origin.address().to_string();
    let request = &origin.requests()[1];
    assert_eq!(request.field("Host"), Some(&*host));
    assert_eq!(request.field("X-Forwarded-For"), Some("127.0.0.1"));
    // A host that a client named must not get into a response for all hosts.
    assert_eq!(request.field("X-Forwarded-Host"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_only_origin_is_tried_by_every_request() {
    let home = Home::new();
    let gone = nobody();
    let config = site_at(&format!("\"http://{gone}\""), "");
    let proxy = front(&home, &format!("unreachable_lifetime = \"0s\"\n{config}"));
    for n in 0..5 {
        assert_eq!(get(&proxy, &format!("/{n}"), &[]).await.status, 502);
    }
    let listener = TcpListener::bind(gone).await.unwrap();
    let mut client = Client::connect(proxy.address()).await.unwrap();
    client.request("GET", "/x", &[WWW]).await.unwrap();
    listener.accept().await.unwrap();
}
