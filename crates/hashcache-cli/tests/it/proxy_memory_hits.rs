//! Hits in memory on the shortest way, through the real proxy: what a client gets is what the usual
//! way gives.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::net::SocketAddr;
use std::path::PathBuf;

use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Response, Script};
use tokio::time::{Duration, Instant, sleep};

use crate::Home;
use crate::proxy_process::Proxy;

struct Shown {
    proxy: Proxy,
    origin: Origin,
    log: PathBuf,
    _home: Home,
}

/// The response of the origin to a path: `/size/N`, with fields that the path names.
pub fn script(request: &RawRequest) -> Script {
    let path = request
        .target()
        .split('?')
        .next()
        .unwrap_or_default()
        .to_owned();
    let words: Vec<&str> = path.split('/').collect();
    let size: usize = words
        .get(2)
        .and_then(|word| word.parse().ok())
        .unwrap_or(10);
    let content: String = (0..size)
        .map(|n| char::from(b"abcdefghijklmnopqrstuvwxyz"[n % 26]))
        .collect();
    let mut fields = vec![
        ("Cache-Control", "max-age=600"),
        ("Content-Type", "text/plain"),
    ];
    let has = |word: &str| words.contains(&word);
    for (word, name, value) in [
        ("vary", "Vary", "Accept-Language"),
        ("aged", "Age", "100"),
        ("via", "Via", "1.1 other"),
        ("told", "Cache-Status", "other; hit"),
        ("twice", "X-Twice", "1"),
        ("twice", "X-twice", "2"),
        ("etag", "ETag", "\"x\""),
        ("etag", "Last-Modified", "Mon, 02 Jan 2023 03:04:05 GMT"),
    ] {
        if has(word) {
            fields.push((name, value));
        }
    }
    let status = if has("404") { 404 } else { 200 };
    Script::response(status, &fields, content)
}

async fn show(config: impl FnOnce(SocketAddr) -> String) -> Shown {
    let home = Home::new();
    let origin = Origin::start(script).await.unwrap();
    let log = home.path().join("log");
    let config = home.file("config.toml", &config(origin.address()));
    let flags = [
        format!("--config={}", config.display()),
        format!("--access-log={}", log.display()),
        "--log-format=json".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let proxy = Proxy::start(&home.path().join("cache.img"), &flags).unwrap();
    Shown {
        proxy,
        origin,
        log,
        _home: home,
    }
}

impl Shown {
    async fn ask(&self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        let mut client = Client::connect(self.proxy.address()).await.unwrap();
        client.request(method, target, fields).await.unwrap();
        let response = client.read_response(method).await.unwrap();
        assert_eq!(response.end, BodyEnd::Complete);
        response
    }

    /// How many requests took the shortest way.
    async fn plain_hits(&self) -> u64 {
        let mut client = Client::connect(self.proxy.admin()).await.unwrap();
        let page = client.get("/metrics", &[]).await.unwrap();
        let page = String::from_utf8(page.body).unwrap();
        let line = page
            .lines()
            .find(|it| it.starts_with("hashcache_plain_hits_total "));
        line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// Asks until the response is a hit in memory that took the shortest way, or for two seconds
    /// and ten times.
    async fn until_plain(&self, target: &str, fields: &[(&str, &str)]) -> Option<Response> {
        let begun = Instant::now();
        let mut asked = 0;
        while asked < 10 || begun.elapsed() < Duration::from_secs(2) {
            asked += 1;
            let before = self.plain_hits().await;
            let response = self.ask("GET", target, fields).await;
            if self.plain_hits().await > before {
                return Some(response);
            }
            sleep(Duration::from_millis(20)).await;
        }
        None
    }
}

/// The status line and the fields, sorted by name; lines of one name stay in order. Numbers that a
/// second changes are left out.
fn shape(response: &Response) -> Vec<String> {
    let head = String::from_utf8_lossy(&response.head.raw).into_owned();
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    for line in &mut lines {
        if let Some(at) = line.find("; ttl=") {
            line.truncate(at);
        }
        if line.starts_with("Age: ") {
            line.truncate(5);
        }
    }
    lines.sort_by_key(|line| line.split(':').next().unwrap_or_default().to_owned());
    lines
}

const PATHS: [(&str, bool); 12] = [
    ("/size/10", true),
    ("/size/0", true),
    ("/size/8192", true),
    ("/size/70000", true),
    ("/size/200000", true),
    ("/size/10/aged", true),
    ("/size/10/via/told/twice", true),
    ("/size/10/etag?x=1&y=%2F", true),
    ("/size/10/vary", false),
    ("/size/10/404", false),
    ("/size/9000000", false),
    ("/size/10/twice/via", true),
];

/// Fields of plain requests.
const PLAIN: [(&str, &str); 14] = [
    ("User-Agent", "a"),
    ("Accept", "text/html,*/*"),
    ("accept-encoding", "gzip"),
    ("Accept-Language", "sw"),
    ("Cookie", "a=b; c=d"),
    ("Referer", "http://x.test/p"),
    ("Connection", "keep-alive"),
    ("Proxy-Connection", "Keep-Alive"),
    ("Sec-Fetch-Dest", "document"),
    ("Sec-Fetch-Mode", "navigate"),
    ("Upgrade-Insecure-Requests", "1"),
    ("Origin", "http://x.test"),
    ("DNT", "1"),
    ("Sec-GPC", "1"),
];

async fn compare(shown: &Shown, url: impl Fn(&str) -> String, host: Option<(&str, &str)>) {
    let mut seed = 7_u64;
    for (path, is_plain) in PATHS {
        let target = url(path);
        let host: Vec<_> = host.into_iter().collect();
        let plain = shown.until_plain(&target, &host).await;
        assert_eq!(plain.is_some(), is_plain, "{path}");
        for _ in 0..8 {
            seed = seed.wrapping_mul(25_214_903_917).wrapping_add(11);
            let chosen = PLAIN
                .iter()
                .enumerate()
                .filter(|(n, _)| seed >> (16 + n) & 1 == 1);
            let fields: Vec<_> = chosen.map(|(_, field)| *field).collect();
            let fields = [&host[..], &fields].concat();
            let usual = [&fields[..], &[("X-Usual", "1")]].concat();
            let before = shown.plain_hits().await;
            let short = shown.ask("GET", &target, &fields).await;
            let between = shown.plain_hits().await;
            assert_eq!(between - before, u64::from(is_plain), "{path} {fields:?}");
            if !is_plain {
                continue;
            }
            let long = shown.ask("GET", &target, &usual).await;
            assert_eq!(shown.plain_hits().await, between);
            assert_eq!(shape(&short), shape(&long), "{path} {fields:?}");
            assert!(short.body == long.body, "{path} {fields:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forward_proxy_gives_the_same_response_on_both_ways() {
    let shown = show(|_| String::new()).await;
    let base = shown.origin.url("");
    compare(&shown, |path| format!("{base}{path}"), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_gives_the_same_response_on_both_ways() {
    let one =
        |address| format!("[[site]]\nhosts = [\"a.test\"]\norigins = [\"http://{address}\"]\n");
    let shown = show(one).await;
    compare(&shown, str::to_owned, Some(("Host", "a.test"))).await;
    let shown = show(|address| format!("accelerate = \"http://{address}\"\n")).await;
    compare(&shown, str::to_owned, Some(("Host", "any.test"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_whose_rules_change_responses_takes_the_usual_way() {
    for more in [
        "compress = [\"gzip\"]",
        "key = { cookies = [\"a\"] }",
        "response_headers = { set = { X-Out = \"1\" } }",
        "request_headers = { set = { X-In = \"1\" } }",
    ] {
        let site = |address| {
            format!("[[site]]\nhosts = [\"a.test\"]\norigins = [\"http://{address}\"]\n{more}\n")
        };
        let shown = show(site).await;
        let host = [("Host", "a.test")];
        let plain = shown.until_plain("/size/10", &host).await;
        assert!(plain.is_none(), "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_a_meaning_of_their_own_take_the_usual_way() {
    let shown = show(|_| String::new()).await;
    let url = shown.origin.url("/size/10/etag");
    shown.until_plain(&url, &[]).await.unwrap();
    let before = shown.plain_hits().await;
    for (field, status) in [
        (("Range", "bytes=1-2"), 206),
        (("If-None-Match", "\"x\""), 304),
        (("Cache-Control", "no-cache"), 200),
        (("Authorization", "Basic eDp5"), 200),
        (("Connection", "close"), 200),
        (("Proxy-Connection", "close"), 200),
        (("Connection", "keep-alive, user-agent"), 200),
        (("Max-Forwards", "0"), 200),
        (("Via", "1.1 other"), 200),
    ] {
        let response = shown.ask("GET", &url, &[field]).await;
        assert_eq!(response.status, status, "{field:?}");
        assert_eq!(shown.plain_hits().await, before, "{field:?}");
    }
    assert_eq!(shown.ask("HEAD", &url, &[]).await.body, b"");
    assert_eq!(shown.plain_hits().await, before);
    // The proxy's own pages, and what it must not fetch.
    let own = format!("http://{}/", shown.proxy.address());
    shown.ask("GET", &own, &[]).await;
    let admin = format!("http://{}/metrics", shown.proxy.admin());
    assert_eq!(shown.ask("GET", &admin, &[]).await.status, 421);
    for host in ["localhost", "a.localhost", "A.LOCALHOST."] {
        let admin = format!("http://{host}:{}/metrics", shown.proxy.admin().port());
        assert_eq!(shown.ask("GET", &admin, &[]).await.status, 421, "{host}");
    }
    assert_eq!(shown.plain_hits().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_and_the_end_of_the_lifetime_hold_on_the_shortest_way() {
    let shown = show(|_| String::new()).await;
    let url = shown.origin.url("/size/10");
    shown.until_plain(&url, &[]).await.unwrap();
    let fetched = shown.origin.request_count();
    assert_eq!(shown.ask("PURGE", &url, &[]).await.status, 200);
    shown.ask("GET", &url, &[]).await;
    assert_eq!(shown.origin.request_count(), fetched + 1);
    shown.until_plain(&url, &[]).await.unwrap();
    // A soft one makes it stale: it is asked for again.
    assert_eq!(
        shown
            .ask("PURGE", &url, &[("Soft-Purge", "1")])
            .await
            .status,
        200
    );
    let before = shown.plain_hits().await;
    shown.ask("GET", &url, &[]).await;
    assert_eq!(shown.plain_hits().await, before);
    assert_eq!(shown.origin.request_count(), fetched + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_the_same_of_both_ways() {
    let shown = show(|_| String::new()).await;
    let url = shown.origin.url("/size/10?q=1");
    shown.until_plain(&url, &[]).await.unwrap();
    let referer = ("Referer", "http://x.test/p?\"q");
    let before = shown.plain_hits().await;
    shown
        .ask("GET", &url, &[("User-Agent", "short"), referer])
        .await;
    assert_eq!(shown.plain_hits().await, before + 1);
    let usual = [("User-Agent", "usual"), referer, ("X-Usual", "1")];
    shown.ask("GET", &url, &usual).await;
    let log = shown.log.clone();
    shown.proxy.end_well();
    let log = std::fs::read_to_string(log).unwrap();
    let line_of = |agent: &str| {
        let lines = log
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut lines = lines.filter(|line| line["user_agent.original"] == agent);
        lines.next().unwrap().as_object().unwrap().clone()
    };
    let (mut short, mut long) = (line_of("short"), line_of("usual"));
    for name in [
        "@timestamp",
        "client.port",
        "event.duration",
        "hashcache.first_byte_ns",
        "http.request.id",
        "user_agent.original",
    ] {
        assert!(short.remove(name).is_some(), "{name}");
        assert!(long.remove(name).is_some(), "{name}");
    }
    assert_eq!(short, long);
    assert_eq!(short["http.request.referrer"], "http://x.test/p?\"q");
}
