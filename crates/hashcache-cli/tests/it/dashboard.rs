//! The dashboard of a running proxy: its figures are those of the clients, and who may see it.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use hashcache_testkit::{BodyEnd, Client, Origin};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};

use crate::Home;
use crate::proxy_memory_hits::script;
use crate::proxy_process::Proxy;

/// Totals of the responses that clients have received.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    requests: u64,
    hits: u64,
    bytes: u64,
    /// Of these, the bytes of errors.
    error_bytes: u64,
}

impl Got {
    fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            hits: self.hits + other.hits,
            bytes: self.bytes + other.bytes,
            error_bytes: self.error_bytes + other.error_bytes,
        }
    }
}

/// Sends requests for `objects` objects at `site` until `end`, with a pause after each; every 50th
/// is refused.
async fn load(
    proxy: SocketAddr,
    from: IpAddr,
    (site, objects): (String, u64),
    (end, pause): (Instant, Duration),
) -> Got {
    let mut got = Got::default();
    let mut random = fastrand::Rng::with_seed(u64::from(from.to_canonical().is_ipv4()));
    let mut client = Client::connect_from(from, proxy).await.unwrap();
    while Instant::now() < end {
        // Sizes from a line to one that is sent in several pieces; each object has one size.
        let number = random.u64(..objects);
        let size = 100 + number * number * 37 % 150_000;
        let is_refused = got.requests % 50 == 49;
        let target = if is_refused {
            "http://127.0.0.1:1/".to_owned()
        } else {
            format!("http://{site}/size/{size}?{number}")
        };
        let response = client.get(&target, &[]).await.unwrap();
        assert_eq!(response.end, BodyEnd::Complete);
        assert_eq!(response.status == 403, is_refused);
        let status = response.field("Cache-Status").unwrap_or_default();
        got.requests += 1;
        got.hits += u64::from(status.contains("; hit"));
        let bytes = (response.head.raw.len() + response.body.len()) as u64;
        got.bytes += bytes;
        got.error_bytes += if is_refused { bytes } else { 0 };
        sleep(pause).await;
    }
    got
}

async fn view(proxy: &Proxy) -> Value {
    let mut client = Client::connect(proxy.admin()).await.unwrap();
    let response = client.get("/-/view", &[]).await.unwrap();
    assert_eq!(response.status, 200);
    serde_json::from_slice(&response.body).unwrap()
}

fn assert_near(shown: &Value, got: u64, what: &str) {
    let shown = shown.as_u64().unwrap();
    let most = got / 100;
    assert!(
        shown.abs_diff(got) <= most,
        "{what}: {shown} shown, {got} got"
    );
}

fn line<'a>(lines: &'a Value, name: &str) -> &'a Value {
    let mut lines = lines.as_array().unwrap().iter();
    let found = lines.find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {lines:?}"))
}

/// Runs a load and compares what clients got with what the dashboard says.
async fn figures_equal_those_of_clients_after(time: Duration, pause: Duration) {
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let origins = [
        Origin::start(script).await.unwrap(),
        Origin::start(script).await.unwrap(),
    ];
    let end = Instant::now() + time;
    let mut loads = JoinSet::new();
    for (number, origin) in (0_u8..).zip(&origins) {
        for client in [1, 2] {
            let from = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 10 * number + client));
            let site = format!("127.0.0.1:{}", origin.address().port());
            let asked = (site.clone(), 50 + 100 * u64::from(number));
            let load = load(proxy.address(), from, asked, (end, pause));
            loads.spawn(async move { (site, from, load.await) });
        }
    }
    let done = loads.join_all().await;
    let all = done.iter().fold(Got::default(), |sum, it| sum.plus(it.2));
    // The cores tell what they have counted within a second, and a view may be a second old.
    let begun = Instant::now();
    let view = loop {
        let view = view(&proxy).await;
        let is_complete = view["since_start"]["requests"] == all.requests;
        if is_complete || begun.elapsed() > Duration::from_secs(20) {
            break view;
        }
        sleep(Duration::from_millis(100)).await;
    };
    for span in ["since_start", "day", "week"] {
        assert_near(&view[span]["requests"], all.requests, span);
        assert_near(&view[span]["hits"], all.hits, span);
        assert_near(&view[span]["client_bytes"], all.bytes, span);
        let sent: u64 = origins.iter().map(Origin::bytes_written).sum();
        assert_near(&view[span]["origin_bytes"], sent, span);
        let saved = (all.bytes - all.error_bytes).saturating_sub(sent);
        assert_near(&view[span]["saved_bytes"], saved, span);
    }
    let kinds = view["since_start"]["kinds"].as_object().unwrap().values();
    let bytes: u64 = kinds.map(|it| it["bytes"].as_u64().unwrap()).sum();
    assert_near(&bytes.into(), all.bytes, "bytes by kind");
    for origin in &origins {
        let name = format!("127.0.0.1:{}", origin.address().port());
        let of_site = done.iter().filter(|(site, ..)| *site == name);
        let got = of_site.fold(Got::default(), |sum, it| sum.plus(it.2));
        let shown = line(&view["sites"], &name);
        assert_near(&shown["hits"], got.hits, &name);
        assert_near(&shown["client_bytes"], got.bytes - got.error_bytes, &name);
    }
    for (_, from, got) in &done {
        let shown = line(&view["clients"], &from.to_string());
        assert_near(&shown["requests"], got.requests, "client");
        assert_near(
            &shown["client_bytes"],
            got.bytes - got.error_bytes,
            "client",
        );
    }
    println!(
        "{} requests, {} hits, {} bytes in {time:?}; the dashboard: {}",
        all.requests, all.hits, all.bytes, view["since_start"]
    );
}

#[tokio::test]
async fn figures_equal_those_of_clients() {
    figures_equal_those_of_clients_after(Duration::from_secs(3), Duration::ZERO).await;
}

/// The long form at a low rate; `HASHCACHE_LOAD_SECONDS` is its time, ten minutes unless it is set.
#[tokio::test]
#[ignore = "takes minutes"]
async fn figures_equal_those_of_clients_over_minutes() {
    let seconds = std::env::var("HASHCACHE_LOAD_SECONDS");
    let seconds = seconds.map_or(600, |it| it.parse().unwrap());
    let pause = Duration::from_millis(40);
    figures_equal_those_of_clients_after(Duration::from_secs(seconds), pause).await;
}

/// The head of a response and its first `lines` lines of content.
fn ask(proxy: &Proxy, target: &str, fields: &str, lines: usize) -> (String, Vec<String>) {
    let mut stream = TcpStream::connect(proxy.admin()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let request = format!("GET {target} HTTP/1.1\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = BufReader::new(stream).lines().map(Result::unwrap);
    let head: Vec<String> = all.by_ref().take_while(|line| !line.is_empty()).collect();
    (head.join("\n"), all.take(lines).collect())
}

#[tokio::test]
async fn a_stream_sends_the_parts_of_the_page() {
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let host = format!("Host: {}\r\n", proxy.admin());
    // Of content in chunks: the length, the retry field, the event.
    let (head, lines) = ask(&proxy, "/-/events", &host, 3);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    let data = lines[2].strip_prefix("data: ").unwrap();
    let parts: Value = serde_json::from_str(data).unwrap();
    let (head, page) = ask(&proxy, "/dashboard", &host, 2);
    assert!(
        head.contains("default-src 'none'; script-src 'self'"),
        "{head}"
    );
    // No token is configured, so no button would do anything.
    let line = parts["line"].as_str().unwrap();
    assert!(line.contains("admin_token_file"), "{line}");
    assert!(!line.contains("<button"), "{line}");
    for id in parts.as_object().unwrap().keys() {
        let section = format!("<section id={id}>");
        assert!(page.iter().any(|line| line.contains(&section)), "{section}");
    }
    for (target, kind) in [
        ("/dashboard.js", "text/javascript"),
        ("/dashboard.css", "text/css"),
    ] {
        let (head, _) = ask(&proxy, target, &host, 1);
        assert!(head.contains(kind), "{head}");
    }
}

#[tokio::test]
async fn pages_of_other_origins_get_nothing() {
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let host = format!("Host: {}\r\n", proxy.admin());
    for target in ["/dashboard", "/-/events", "/-/view", "/dashboard.js"] {
        for (fields, status) in [
            ("Host: evil.test\r\n".to_owned(), "421"),
            (format!("{host}Origin: http://evil.test\r\n"), "403"),
            (format!("{host}Origin: null\r\n"), "403"),
            (format!("{host}Sec-Fetch-Site: cross-site\r\n"), "403"),
            (format!("{host}Origin: http://{}\r\n", proxy.admin()), "200"),
        ] {
            let (head, _) = ask(&proxy, target, &fields, 0);
            let expected = format!("HTTP/1.1 {status}");
            assert!(head.starts_with(&expected), "{target} {fields} {head}");
        }
    }
}
