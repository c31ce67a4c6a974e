//! Names of a page's other objects on the link between a child and a parent: two real proxies.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::time::Duration;

use hashcache_testkit::{Client, Origin, Script};

use crate::proxy_link::{CacheBox, Pair};

/// A page with a style sheet, which needs a font, an image, and what is no object of it.
async fn site() -> Origin {
    let site = Origin::start(|request| {
        let (kind, cache_control) = match request.target() {
            "/page" | "/next" => ("text/html; charset=utf-8", "max-age=600"),
            "/s.css" => ("text/css", "max-age=600"),
            "/f.woff" => ("font/woff2", "max-age=600"),
            "/private.png" => ("image/png", "private, max-age=600"),
            "/stale.png" => ("image/png", "max-age=0"),
            "/validated.png" => ("image/png", "no-cache, max-age=600"),
            _ => ("image/png", "max-age=600"),
        };
        let mut fields = vec![("Content-Type", kind), ("Cache-Control", cache_control)];
        if request.target() == "/cookie.png" {
            fields.push(("Vary", "Cookie"));
        }
        if request.target() == "/page" {
            fields.push(("Hashcache-Related", "\"/never\""));
        }
        Script::response(200, &fields, request.target().repeat(100))
    });
    site.await.unwrap()
}

/// Two clients load a page. The child's own copies are removed between them, so that the parent
/// hears of both.
async fn visits(pair: &Pair, cache_box: &CacheBox, site: &Origin) {
    visit(cache_box, site, 1, &[]).await;
    purge(&pair.child, site, &ALL).await;
    visit(cache_box, site, 2, &[]).await;
}

/// Loads a page as a browser does at the address 127.0.0.`client`, with all that it names.
async fn visit(cache_box: &CacheBox, site: &Origin, client: u8, cookie: &[(&str, &str)]) {
    let from = std::net::IpAddr::from([127, 0, 0, client]);
    let client = Client::connect_from(from, cache_box.proxy.address()).await;
    let mut client = client.unwrap();
    for (path, accept, referer) in [
        ("/page", "text/html,*/*;q=0.8", None),
        ("/s.css", "text/css,*/*;q=0.1", Some("/page")),
        ("/f.woff", "*/*", Some("/s.css")),
        ("/i.png", "image/*", Some("/page")),
        ("/private.png", "image/*", Some("/page")),
        ("/cookie.png", "image/*", Some("/page")),
        ("/stale.png", "image/*", Some("/page")),
        ("/validated.png", "image/*", Some("/page")),
        ("/alone.png", "image/*", None),
        ("/next", "text/html,*/*;q=0.8", Some("/page")),
    ] {
        let referer = referer.map(|path| site.url(path));
        let mut fields = vec![("Accept", accept)];
        fields.extend(referer.as_deref().map(|url| ("Referer", url)));
        fields.extend(cookie);
        let response = client.get(&site.url(path), &fields).await.unwrap();
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.field("Hashcache-Related"), None, "{path}");
    }
}

async fn purge(cache_box: &CacheBox, site: &Origin, paths: &[&str]) {
    let mut client = cache_box.client().await;
    for path in paths {
        let url = site.url(path);
        client.request("PURGE", &url, &[]).await.unwrap();
        let status = client.read_response("PURGE").await.unwrap().status;
        assert!(matches!(status, 200 | 404), "{status}");
    }
}

/// Objects that were fetched because of hints, or named to a child.
async fn hints(cache_box: &CacheBox, direction: &str) -> u64 {
    let mut admin = Client::connect(cache_box.proxy.admin()).await.unwrap();
    let metrics = admin.get("/metrics", &[("Host", "localhost")]).await;
    let metrics = String::from_utf8(metrics.unwrap().body).unwrap();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("hashcache_link_hints_total") && line.contains(direction));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

async fn wait_for_hints(cache_box: &CacheBox, wanted: u64) {
    for _ in 0..400 {
        if hints(cache_box, "direction=\"in\"").await >= wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("not {wanted} objects were fetched because of hints");
}

const ALL: [&str; 10] = [
    "/page",
    "/s.css",
    "/f.woff",
    "/i.png",
    "/private.png",
    "/cookie.png",
    "/stale.png",
    "/validated.png",
    "/alone.png",
    "/next",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_of_a_page_are_fetched_before_the_client_asks_for_them() {
    let pair = Pair::start(&[], &[]).await;
    let site = site().await;
    visits(&pair, &pair.child, &site).await;
    assert_eq!(hints(&pair.child, "direction=\"in\"").await, 0);
    purge(&pair.child, &site, &ALL).await;
    let before = 2 * ALL.len();
    let at_parent = pair.parent.log(before).await.lines().count();
    assert_eq!(at_parent, before);
    let page = pair.child.get(&site.url("/page")).await;
    assert_eq!((page.status, page.field("Hashcache-Related")), (200, None));
    wait_for_hints(&pair.child, 3).await;
    let log = pair.parent.log(before + 4).await;
    let asked: Vec<&str> = log.lines().skip(before).collect();
    for path in ["/page", "/s.css", "/f.woff", "/i.png"] {
        let times = asked.iter().filter(|line| line.contains(path)).count();
        assert_eq!(times, 1, "{path}: {log}");
    }
    assert_eq!(hints(&pair.parent, "direction=\"out\"").await, 3);
    // Now they are here. What is fresh is not asked for again.
    for path in ["/s.css", "/f.woff", "/i.png"] {
        let response = pair.child.get(&site.url(path)).await;
        assert_eq!(response.body, path.repeat(100).into_bytes());
    }
    purge(&pair.child, &site, &["/page", "/i.png"]).await;
    pair.child.get(&site.url("/page")).await;
    wait_for_hints(&pair.child, 4).await;
    pair.child.get(&site.url("/alone.png")).await;
    let log = pair.parent.log(before + 4 + 3).await;
    assert_eq!(log.lines().count(), before + 4 + 3, "{log}");
    assert!(site.requests().iter().all(|it| it.target() != "/never"));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_other_clients_of_the_parent_asked_for_are_named_too() {
    let pair = Pair::start(&[], &[]).await;
    let site = site().await;
    visits(&pair, &pair.parent, &site).await;
    let fetched = site.request_count();
    pair.child.get(&site.url("/page")).await;
    wait_for_hints(&pair.child, 3).await;
    for path in ["/s.css", "/f.woff", "/i.png"] {
        let response = pair.child.get(&site.url(path)).await;
        assert_eq!(response.body, path.repeat(100).into_bytes());
    }
    let lines = 2 * ALL.len() + 4;
    let log = pair.parent.log(lines).await;
    assert_eq!(log.lines().count(), lines, "{log}");
    assert_eq!(site.request_count(), fetched, "the parent has all of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn hinted_requests_have_no_cookies_and_pages_of_users_are_hinted_too() {
    let pair = Pair::start(&[], &[]).await;
    let site = site().await;
    let cookie = [("Cookie", "session=1")];
    visits(&pair, &pair.child, &site).await;
    for cache_box in [&pair.child, &pair.parent] {
        purge(cache_box, &site, &ALL).await;
    }
    let before = site.request_count();
    let mut client = pair.child.client().await;
    client.get(&site.url("/page"), &cookie).await.unwrap();
    wait_for_hints(&pair.child, 3).await;
    // Both boxes have purged it, so each of them is asked of the origin.
    for _ in 0..400 {
        if site.request_count() >= before + 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let requests = site.requests();
    let asked = &requests[before..];
    assert_eq!(asked.len(), 4);
    let of_page = site.url("/page");
    for request in asked {
        let is_page = request.target() == "/page";
        assert_eq!(request.field("Cookie").is_some(), is_page, "{request:?}");
        assert_eq!(request.field("Hashcache-Link"), None);
        if !is_page {
            assert_eq!(request.field("Referer"), Some(of_page.as_str()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_are_for_children_alone_and_may_be_switched_off() {
    let pair = Pair::start(&[], &["--link-hints=false"]).await;
    let site = site().await;
    visits(&pair, &pair.child, &site).await;
    purge(&pair.child, &site, &ALL).await;
    visit(&pair.child, &site, 3, &[]).await;
    assert_eq!(hints(&pair.child, "direction=\"in\"").await, 0);
    // A client of the parent that is no child asks for the names of the others.
    let mut client = pair.parent.client().await;
    let asks = [("Hashcache-Link", "v=1, hints")];
    let page = client.get(&site.url("/page"), &asks).await.unwrap();
    assert_eq!((page.status, page.field("Hashcache-Related")), (200, None));
    assert_eq!(hints(&pair.parent, "direction=\"out\"").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_named_that_one_client_or_only_clients_with_cookies_have_asked_for() {
    let pair = Pair::start(&[], &[]).await;
    let site = site().await;
    for _ in 0..3 {
        visit(&pair.child, &site, 1, &[]).await;
        purge(&pair.child, &site, &ALL).await;
    }
    pair.child.get(&site.url("/page")).await;
    assert_eq!(hints(&pair.parent, "direction=\"out\"").await, 0);
    let cookies = [[("Cookie", "session=1")], [("Cookie", "session=2")]];
    for (client, cookie) in (2..).zip(&cookies) {
        purge(&pair.child, &site, &ALL).await;
        visit(&pair.child, &site, client, cookie).await;
    }
    purge(&pair.child, &site, &ALL).await;
    pair.child.get(&site.url("/page")).await;
    assert_eq!(hints(&pair.parent, "direction=\"out\"").await, 0);
}
