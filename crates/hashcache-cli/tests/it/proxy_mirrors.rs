//! Mirrors of registries through the real proxy, with registries that follow a script.

use std::io::Write as _;
use std::net::Ipv4Addr;

use flate2::Compression;
use flate2::write::GzEncoder;
use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Response, Script, reserved_address};

use crate::Home;
use crate::proxy_process::Proxy;

fn gzip(content: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(content.as_bytes())
        .expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

/// A proxy with these mirrors. Requests that do not use a mirror may not reach the registries'
/// addresses.
fn start(home: &Home, mirrors: &[String]) -> Proxy {
    let mut flags = vec!["--deny-destination=192.0.2.0/24"];
    flags.extend(mirrors.iter().map(String::as_str));
    Proxy::start(&home.path().join("cache"), &flags).expect("the proxy starts")
}

async fn origin(answer: impl Fn(&RawRequest) -> Script + Send + Sync + 'static) -> Origin {
    Origin::start(answer).await.expect("a free port")
}

async fn get(proxy: &Proxy, path: &str, fields: &[(&str, &str)]) -> Response {
    asked(proxy, "GET", path, fields).await
}

async fn asked(proxy: &Proxy, method: &str, path: &str, fields: &[(&str, &str)]) -> Response {
    let mut client = Client::connect(proxy.address())
        .await
        .expect("the proxy listens");
    client
        .request(method, path, fields)
        .await
        .expect("the proxy listens");
    let response = client.read_response(method).await;
    let response = response.expect("the proxy answers");
    assert_eq!(response.complaints, [""; 0]);
    response
}

fn body(response: &Response) -> &str {
    assert_eq!(response.end, BodyEnd::Complete, "{response:?}");
    std::str::from_utf8(&response.body).expect("a text")
}

/// The response of an origin to a request, possibly conditional, for content with this tag.
fn tagged(request: &RawRequest, tag: &str, fields: &[(&str, &str)], content: &[u8]) -> Script {
    let fields = [&[("ETag", tag)], fields].concat();
    let asked = request.field("if-none-match");
    if asked.is_some_and(|asked| asked.split(", ").any(|asked| asked == tag)) {
        Script::response(304, &fields, "")
    } else {
        Script::response(200, &fields, content)
    }
}

fn packument(base: &str) -> String {
    let escaped = base.replace('/', "\\/");
    format!(
        "{{\"name\":\"@s/a\",\"versions\":{{\"1.0.0\":{{\"dist\":{{\"tarball\":\
         \"{escaped}\\/@s%2fa\\/-\\/a-1.0.0.tgz\"}}}}}},\"readme\":\"{base}/x\"}}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packument_is_stored_as_it_came_and_names_us_when_it_is_served() {
    let home = Home::new();
    let registry = origin(|request| {
        let base = format!("http://{}/npm", request.field("host").unwrap());
        let fields = [
            ("Content-Type", "application/json"),
            ("Cache-Control", "max-age=300"),
            ("Content-Encoding", "gzip"),
            ("Content-MD5", "AAAA"),
            ("Vary", "Accept, Accept-Encoding"),
            ("Set-Cookie", "id=1"),
        ];
        tagged(request, "\"v1\"", &fields, &gzip(&packument(&base)))
    })
    .await;
    let proxy = start(&home, &[format!("--mirror=npm={}", registry.url("/npm/"))]);
    let expected = |host: &str| {
        let base = registry.url("/npm");
        let tarball = format!("{base}/@s%2fa/-/a-1.0.0.tgz").replace('/', "\\/");
        let ours = format!("http://{host}/mirror/npm/@s%2fa/-/a-1.0.0.tgz");
        packument(&base).replace(&tarball, &ours)
    };
    let own = proxy.address().to_string();
    let short = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8, */*";
    let first = get(
        &proxy,
        "/mirror/npm/@s%2fa",
        &[("Accept", short), ("Cookie", "a=b")],
    )
    .await;
    assert_eq!((first.status, body(&first)), (200, &expected(&own)[..]));
    for gone in [
        "content-encoding",
        "content-md5",
        "content-length",
        "set-cookie",
    ] {
        assert_eq!(first.field(gone), None, "{gone}");
    }
    assert_eq!(first.field("accept-ranges"), Some("none"));
    let sent = registry.requests();
    assert_eq!(sent[0].target(), "/npm/@s%2fa");
    assert_eq!(sent[0].field("accept-encoding"), Some("gzip"));
    assert_eq!(sent[0].field("cookie"), None);
    // Another client, which asks in other words and by another name of ours: the same stored one.
    let port = proxy.address().port();
    let host = format!("localhost:{port}");
    let accept = "application/vnd.npm.install-v1+json";
    let fields = [
        ("Accept", accept),
        ("Host", &host),
        ("Accept-Encoding", "br"),
    ];
    let second = get(&proxy, "/mirror/npm/@s%2fa", &fields).await;
    assert_eq!(body(&second), expected(&host));
    assert!(second.field("cache-status").unwrap().contains("hit"));
    assert_ne!(second.field("etag"), first.field("etag"));
    // A range of what has no length yet is answered with all of it.
    let ranged = get(
        &proxy,
        "/mirror/npm/@s%2fa",
        &[("Accept", short), ("Range", "bytes=0-9")],
    )
    .await;
    assert_eq!((ranged.status, body(&ranged)), (200, &expected(&own)[..]));
    let head = asked(&proxy, "HEAD", "/mirror/npm/@s%2fa", &[("Accept", short)]).await;
    assert_eq!(
        (head.status, head.field("etag")),
        (200, first.field("etag"))
    );
    assert_eq!(head.field("content-length"), None);
    assert_eq!(registry.request_count(), 1);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_on_what_we_made_are_answered_for_what_we_made_it_of() {
    let home = Home::new();
    let registry = origin(|request| {
        let base = format!("http://{}", request.field("host").unwrap());
        let fields = [
            ("Cache-Control", "max-age=0"),
            ("Last-Modified", "Sat, 01 Jan 2022 00:00:00 GMT"),
        ];
        tagged(request, "\"v,1\"", &fields, packument(&base).as_bytes())
    })
    .await;
    let proxy = start(&home, &[format!("--mirror=npm={}", registry.url(""))]);
    let first = get(&proxy, "/mirror/npm/a", &[]).await;
    let tag = first.field("etag").unwrap().to_owned();
    assert!(tag.starts_with("W/\"v,1-m"), "{tag}");
    assert_eq!(first.field("last-modified"), None);
    let with_tag = |tag: String| {
        let proxy = &proxy;
        async move { get(proxy, "/mirror/npm/a", &[("If-None-Match", &tag)]).await }
    };
    let same = with_tag(tag.clone()).await;
    assert_eq!((same.status, same.field("etag")), (304, Some(&tag[..])));
    // Stale, so the origin was asked, and with its own tag.
    assert_eq!(
        registry.requests()[1].field("if-none-match"),
        Some("\"v,1\"")
    );
    for other in [
        "\"v,1\"".to_owned(),
        tag.replace("-m", "-n"),
        "W/\"v,1-m0000000000000000\"".to_owned(),
    ] {
        let other = with_tag(other).await;
        assert_eq!((other.status, &other.body), (200, &first.body));
    }
    let dated = [("If-Modified-Since", "Sun, 01 Jan 2023 00:00:00 GMT")];
    assert_eq!(get(&proxy, "/mirror/npm/a", &dated).await.status, 200);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_mirror_stored_is_its_own() {
    let home = Home::new();
    let registry =
        origin(|_| Script::response(200, &[("Cache-Control", "max-age=300")], "x")).await;
    let mirrors = ["apt", "apt:two"].map(|name| format!("--mirror={name}={}", registry.url("/")));
    let proxy = start(&home, &mirrors);
    let direct = registry.url("/a");
    for (asked, requests) in [
        ("/mirror/apt/a", 1),
        ("/mirror/apt/a", 1),
        ("/mirror/two/a", 2),
        (&direct, 3),
        ("/mirror/apt/a", 3),
    ] {
        assert_eq!(body(&get(&proxy, asked, &[]).await), "x");
        assert_eq!(registry.request_count(), requests, "{asked}");
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_names_files_of_listed_hosts_through_us_and_others_as_they_are() {
    let home = Home::new();
    let files = origin(|request| {
        Script::response(200, &[("Cache-Control", "max-age=300")], request.target())
    })
    .await;
    let listed = files.url("");
    let index = origin(move |request| {
        let wants_json = request
            .field("accept")
            .is_some_and(|accept| accept.contains("json"));
        let link = format!("{listed}/p/a-1.whl");
        let (kind, text) = if wants_json {
            (
                "application/vnd.pypi.simple.v1+json",
                format!(
                    "{{\"files\":[{{\"url\":\"{link}\"}},{{\"url\":\"http://evil.test/b\"}}]}}"
                ),
            )
        } else {
            (
                "text/html",
                format!("<a href=\"{link}#sha256=ab\">a</a><a href=\"http://evil.test/b\">b</a>"),
            )
        };
        let fields = [
            ("Content-Type", kind),
            ("Vary", "Accept"),
            ("Cache-Control", "max-age=300"),
        ];
        Script::response(200, &fields, text)
    })
    .await;
    let mirror = format!("--mirror=pypi={} {}", index.url("/simple/"), files.url(""));
    let proxy = start(&home, &[mirror]);
    let (own, host) = (proxy.address(), files.address());
    let link = format!("http://{own}/mirror/pypi/files/{host}/p/a-1.whl");
    let html = get(&proxy, "/mirror/pypi/simple/a/", &[("Accept", "text/html")]).await;
    let expected =
        format!("<a href=\"{link}#sha256=ab\">a</a><a href=\"http://evil.test/b\">b</a>");
    assert_eq!(body(&html), expected);
    let json = [("Accept", "application/vnd.pypi.simple.v1+json")];
    let json = get(&proxy, "/mirror/pypi/simple/a/", &json).await;
    assert_eq!(
        json.field("content-type"),
        Some("application/vnd.pypi.simple.v1+json")
    );
    let expected =
        format!("{{\"files\":[{{\"url\":\"{link}\"}},{{\"url\":\"http://evil.test/b\"}}]}}");
    assert_eq!(body(&json), expected);
    // The file, as pip asks for it, and what it wants to know of it beforehand.
    let path = format!("/mirror/pypi/files/127.0.0.1%3A{}/p/a-1.whl", host.port());
    assert_eq!(body(&get(&proxy, &path, &[]).await), "/p/a-1.whl");
    let metadata = get(&proxy, &format!("{path}.metadata"), &[]).await;
    assert_eq!(body(&metadata), "/p/a-1.whl.metadata");
    // Ranges of what is not rewritten are ranges.
    let part = get(&proxy, &path, &[("Range", "bytes=1-2")]).await;
    assert_eq!((part.status, body(&part)), (206, "p/"));
    // No relay for anybody else.
    let before = files.request_count();
    for path in ["files/evil.test/a", "files/127.0.0.1/a", "packages/a"] {
        let refused = get(&proxy, &format!("/mirror/pypi/{path}"), &[]).await;
        assert_eq!(refused.status, 404, "{path}");
    }
    // Other resources at the host of the registry do not belong to the mirror.
    let asked_before = index.request_count();
    let registry = index.address();
    let own_host = format!("files/{registry}/service/rest/v1/status");
    let refused = get(&proxy, &format!("/mirror/pypi/{own_host}"), &[]).await;
    assert_eq!(refused.status, 404);
    for step in [
        "..",
        "..;",
        "%252e%252e",
        "..%00",
        "%2e%2E",
        "..%5c",
        "..%3bx",
    ] {
        for place in ["simple", &format!("files/{host}/p")] {
            let path = format!("/mirror/pypi/{place}/{step}/a");
            let refused = get(&proxy, &path, &[]).await;
            assert_eq!(refused.status, 400, "{path}");
        }
    }
    assert_eq!(index.request_count(), asked_before);
    assert_eq!(get(&proxy, "/mirror/other/", &[]).await.status, 404);
    assert_eq!(
        asked(&proxy, "PUT", "/mirror/pypi/simple/", &[])
            .await
            .status,
        405
    );
    assert_eq!(files.request_count(), before);
    proxy.kill_well();
}

const CARGO: [(&str, &str); 4] = [
    ("Cache-Control", "max-age=0"),
    ("Connection", "Upgrade, HTTP2-Settings"),
    ("Upgrade", "h2c"),
    ("HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_sparse_index_leads_to_downloads_through_us() {
    let home = Home::new();
    let files =
        origin(|request| Script::response(200, &[("ETag", "\"1\"")], request.target())).await;
    let dl = files.url("/c/{crate}/{version}.crate");
    let index = origin(move |request| match request.target() {
        "/i/config.json" => Script::response(200, &[], format!("{{\"dl\": \"{dl}\"}}\n")),
        "/i/moved" => Script::response(301, &[("Location", "/i/se/rd/serde")], ""),
        _ => tagged(
            request,
            "\"line\"",
            &[("Cache-Control", "max-age=0")],
            b"{\"dl\":\"http://x\"}",
        ),
    })
    .await;
    let mirror = format!("--mirror=crates={} {}", index.url("/i/"), files.url(""));
    let proxy = start(&home, &[mirror]);
    let config = get(&proxy, "/mirror/crates/config.json", &[]).await;
    let (own, host) = (proxy.address(), files.address());
    let dl = format!("http://{own}/mirror/crates/files/{host}/c/{{crate}}/{{version}}.crate");
    assert_eq!(body(&config), format!("{{\"dl\": \"{dl}\"}}\n"));
    // The index itself passes byte for byte, tag and all.
    let line = get(&proxy, "/mirror/crates/se/rd/serde", &[]).await;
    assert_eq!(
        (body(&line), line.field("etag")),
        ("{\"dl\":\"http://x\"}", Some("\"line\""))
    );
    let again = get(
        &proxy,
        "/mirror/crates/se/rd/serde",
        &[("If-None-Match", "\"line\"")],
    )
    .await;
    assert_eq!(again.status, 304);
    let moved = get(&proxy, "/mirror/crates/moved", &[]).await;
    let to = format!("http://{own}/mirror/crates/se/rd/serde");
    assert_eq!(
        (moved.status, moved.field("location")),
        (301, Some(&to[..]))
    );
    let path = format!("/mirror/crates/files/{host}/c/serde/1.0.0.crate");
    for _ in 0..2 {
        // Named by its version for good: not even asked for again, though it has no lifetime. cargo
        // offers another protocol meanwhile.
        assert_eq!(
            body(&get(&proxy, &path, &CARGO).await),
            "/c/serde/1.0.0.crate"
        );
    }
    assert_eq!(files.request_count(), 1);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_registry_breaks_is_passed_on_broken_or_refused_and_never_whole() {
    let home = Home::new();
    let registry = origin(|request| {
        let text = packument(&format!("http://{}", request.field("host").unwrap()));
        let half = &text[..text.len() / 2];
        let gzipped = gzip(&text);
        let coded = [("Content-Encoding", "gzip")];
        match request.target() {
            // Complete as an HTTP message but not as JSON: passed on unchanged.
            "/half" => Script::response(200, &[], half),
            "/short" => Script::new()
                .head(200, &[("Content-Length", "10000")])
                .bytes(half)
                .close(),
            "/cut" => Script::response(200, &coded, &gzipped[..gzipped.len() - 4]),
            "/late" => {
                let long = gzip(&"[\"x\"]".repeat(1_000_000));
                Script::response(200, &coded, &long[..long.len() - 4])
            }
            "/not" => Script::response(200, &coded, text),
            "/brotli" => {
                Script::response(200, &[("Content-Encoding", "br")], "\x0b\x02\u{0080}x\x03")
            }
            "/part" => Script::response(206, &[("Content-Range", "bytes 0-3/9")], "{\"a\""),
            "/empty" => Script::response(200, &coded, ""),
            "/gone" => Script::response(404, &coded, gzip("not here")),
            "/utf16" => {
                let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
                Script::response(
                    200,
                    &[("Content-Type", "application/json; charset=utf-16")],
                    wide,
                )
            }
            _ => {
                let long = "x".repeat(3_000_000);
                Script::response(200, &[], format!("{{\"dist\":{{\"tarball\":\"{long}\"}}}}"))
            }
        }
    })
    .await;
    let proxy = start(&home, &[format!("--mirror=npm={}", registry.url(""))]);
    let mirrored = |path: &'static str| {
        let proxy = &proxy;
        async move { get(proxy, &format!("/mirror/npm{path}"), &[]).await }
    };
    let half = mirrored("/half").await;
    // It ends within the link, which therefore is none.
    let text = packument(&registry.url(""));
    assert_eq!(body(&half), &text[..text.len() / 2]);
    for path in ["/short", "/late"] {
        let broken = mirrored(path).await;
        assert_eq!(
            (broken.status, broken.end),
            (200, BodyEnd::Truncated),
            "{path}"
        );
    }
    for path in ["/brotli", "/part", "/not", "/cut"] {
        assert_eq!(mirrored(path).await.status, 502, "{path}");
    }
    assert_eq!(body(&mirrored("/empty").await), "");
    let gone = mirrored("/gone").await;
    assert_eq!((gone.status, body(&gone)), (404, "not here"));
    let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    assert_eq!(mirrored("/utf16").await.body, wide);
    assert_eq!(mirrored("/long").await.body.len(), 3_000_000 + 23);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_ask_a_mirror_at_once_cost_one_fetch() {
    let home = Home::new();
    let gate = hashcache_testkit::Gate::new();
    let opened = gate.clone();
    let registry = origin(move |request| {
        let base = format!("http://{}", request.field("host").unwrap());
        let length = packument(&base).len().to_string();
        let fields = [
            ("Cache-Control", "max-age=300"),
            ("Content-Length", &length),
        ];
        Script::new()
            .head(200, &fields)
            .wait(&gate)
            .bytes(packument(&base))
    })
    .await;
    let proxy = start(&home, &[format!("--mirror=npm={}", registry.url(""))]);
    let mut clients = vec![];
    for _ in 0..8 {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        client.request("GET", "/mirror/npm/a", &[]).await.unwrap();
        clients.push(client);
    }
    registry.wait_for_requests(1).await;
    opened.open();
    for client in &mut clients {
        let response = client.read_response("GET").await.unwrap();
        assert!(body(&response).contains("/mirror/npm/"), "{response:?}");
    }
    assert_eq!(registry.request_count(), 1);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_url_is_the_base_and_one_of_our_names() {
    let home = Home::new();
    let registry = origin(|request| {
        let base = format!("http://{}", request.field("host").unwrap());
        Script::response(200, &[], packument(&base))
    })
    .await;
    let mirror = format!("--mirror=npm:n={}", registry.url("/"));
    let proxy = start(&home, &[mirror, "--public-url=https://box.test".into()]);
    for host in ["box.test", &proxy.address().to_string()] {
        let response = get(&proxy, "/mirror/n/a", &[("Host", host)]).await;
        let ours = "\"https://box.test/mirror/n/@s%2fa/-/a-1.0.0.tgz\"";
        assert!(body(&response).contains(ours), "{response:?}");
    }
    assert_eq!(
        get(&proxy, "/mirror/n/a", &[("Host", "other.test")])
            .await
            .status,
        400
    );
    let page = get(&proxy, "/", &[("Host", "box.test")]).await;
    assert!(body(&page).contains("registry=https://box.test/mirror/n/"));
    let pac = get(&proxy, "/proxy.pac", &[("Host", "box.test")]).await;
    assert!(body(&pac).contains("return \"HTTPS box.test:443; DIRECT\";"));
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_automatic_configuration_names_us_as_the_client_found_us() {
    let home = Home::new();
    let proxy = start(&home, &["--fail=closed".into()]);
    let own = proxy.address().to_string();
    let local = format!("localhost:{}", proxy.address().port());
    for (path, host, told) in [
        ("/proxy.pac", &own[..], &own[..]),
        ("/wpad.dat", &local, &local),
        // By this name browsers look for it in their own domain.
        ("/wpad.dat", "wpad.school.test", &own),
        ("/wpad.dat?x", "wpad", &own),
    ] {
        let pac = get(&proxy, path, &[("Host", host)]).await;
        assert_eq!(
            pac.field("content-type"),
            Some("application/x-ns-proxy-autoconfig")
        );
        assert!(
            body(&pac).contains(&format!("return \"PROXY {told}\";")),
            "{pac:?}"
        );
    }
    // Elsewhere's is elsewhere's.
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let other = client.get("http://192.0.2.1/proxy.pac", &[]).await.unwrap();
    assert_eq!(other.status, 403);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_below_a_mirror_takes_what_the_mirror_has_stored() {
    let home = Home::new();
    let registry = origin(|_| {
        let fields = [("Cache-Control", "max-age=300"), ("Cache-Groups", "\"g\"")];
        Script::response(200, &fields, "a file")
    })
    .await;
    let proxy = start(&home, &[format!("--mirror=npm={}", registry.url("/npm/"))]);
    let path = "/mirror/npm/a/-/a-1.tgz";
    let purges: [(&str, &[(&str, &str)]); 3] = [
        (path, &[]),
        ("/mirror/npm/a/*", &[]),
        (path, &[("Cache-Groups", "\"g\"")]),
    ];
    for (n, (purged, fields)) in (1..).zip(purges) {
        for _ in 0..2 {
            assert_eq!(body(&get(&proxy, path, &[]).await), "a file");
        }
        assert_eq!(registry.request_count(), n, "{purged}");
        let answer = asked(&proxy, "PURGE", purged, fields).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    get(&proxy, path, &[]).await;
    assert_eq!(registry.request_count(), 4);
}

#[tokio::test]
async fn a_registry_that_fails_is_named_by_its_own_host() {
    let closed = reserved_address(Ipv4Addr::LOCALHOST).expect("a free port");
    let home = Home::new();
    let proxy = start(&home, &[format!("--mirror=npm=http://{closed}/")]);
    let page = get(&proxy, "/mirror/npm/a", &[]).await;
    assert_eq!(page.status, 502);
    let text = String::from_utf8_lossy(&page.body).into_owned();
    assert!(text.contains(&closed.to_string()), "{text}");
    // Under a name that is not the proxy's, the page says where mirrors are.
    let elsewhere = get(&proxy, "/mirror/npm/a", &[("Host", "other.example")]).await;
    assert_eq!(elsewhere.status, 400);
    let text = String::from_utf8_lossy(&elsewhere.body).into_owned();
    assert!(text.contains("public_url"), "{text}");
    proxy.kill_well();
}
