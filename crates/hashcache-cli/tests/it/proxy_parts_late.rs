//! Ranges that another client's request fetches late: its client reads slowly, or its origin is
//! slow for that request only. Nobody else waits for it longer than the patience of the proxy.

use std::time::Duration;

use hashcache_testkit::{
    Client, ContentOptions, ContentOrigin, Gate, Origin, RawRequest, Script, Sizes, content,
};

use crate::Home;
use crate::proxy_process::Proxy;
use crate::proxy_ranges::{assert_part, ranged, until_stored};

/// Without the mending of what is shown here, a request waits for a minute.
const PATIENCE: Duration = Duration::from_secs(40);

fn start(home: &Home) -> Proxy {
    Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts")
}

/// Sends a request and reads nothing.
async fn unread(proxy: &Proxy, url: &str, fields: &str) -> Client {
    let mut client = Client::connect(proxy.address()).await.expect("it accepts");
    let request = format!("GET {url} HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
    client.send(request.as_bytes()).await.expect("it reads");
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_its_client_does_not_read_is_driven_by_those_who_do() {
    let home = Home::new();
    let options = ContentOptions {
        sizes: Sizes::Fixed(24 << 20),
        ..ContentOptions::default()
    };
    let origin = ContentOrigin::start(options).await.expect("a free port");
    let (proxy, url) = (start(&home), origin.url("/x"));
    let content = origin.content("/x");
    ranged(&proxy, &url, "bytes=0-9").await;
    until_stored(&proxy, &url, "bytes=0-9").await;
    let slow = unread(&proxy, &url, "Range: bytes=10000000-\r\n").await;
    let others = async {
        // Behind what the fetch of the slow client has brought, and far ahead of it.
        for first in [10_000_000, 17_000_000, 20_000_000, 24_000_000] {
            let range = format!("bytes={first}-{}", first + 999);
            let part = ranged(&proxy, &url, &range).await;
            assert_part(&part, &content, first, first + 999);
        }
    };
    let others = tokio::time::timeout(PATIENCE, others).await;
    others.expect("they do not wait for the slow client");
    drop(slow);
    proxy.kill_well();
}

/// An origin that keeps a request with `X-Slow` waiting until `gate` is open: for its head, or for
/// its content after the first `begun` bytes.
async fn slow_for_some(bytes: Vec<u8>, begun: Option<usize>, gate: &Gate) -> Origin {
    let gate = gate.clone();
    let origin = Origin::start(move |request: &RawRequest| {
        let range = request.field("range").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            let last = last.parse().map_or(bytes.len() - 1, |last: usize| last);
            Some((first.parse::<usize>().ok()?, last.min(bytes.len() - 1)))
        });
        let (first, last) = range.expect("only ranges are requested here");
        let told = format!("bytes {first}-{last}/{}", bytes.len());
        let (part, length) = (&bytes[first..=last], (last + 1 - first).to_string());
        let fields = [
            ("ETag", "\"1\""),
            ("Cache-Control", "max-age=600"),
            ("Content-Range", &*told),
            ("Content-Length", &*length),
        ];
        let script = Script::new();
        match (request.field("x-slow"), begun) {
            (None, _) => script.head(206, &fields).bytes(part),
            (Some(_), None) => script.wait(&gate).head(206, &fields).bytes(part),
            (Some(_), Some(begun)) => {
                let (begun, rest) = part.split_at(begun.min(part.len()));
                let script = script.head(206, &fields).bytes(begun);
                script.wait(&gate).bytes(rest)
            }
        }
    });
    origin.await.expect("a free port")
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_long_for_a_range_that_a_field_of_its_client_makes_slow() {
    let content = content::body_for(1, "/s", 1, 8 << 20);
    for begun in [None, Some(0), Some(70_000)] {
        let (home, gate) = (Home::new(), Gate::new());
        let origin = slow_for_some(content.bytes(), begun, &gate).await;
        let (proxy, url) = (start(&home), origin.url("/s"));
        ranged(&proxy, &url, "bytes=0-9").await;
        until_stored(&proxy, &url, "bytes=0-9").await;
        let fields = "Range: bytes=100000-2000000\r\nX-Slow: 1\r\n";
        let slow = unread(&proxy, &url, fields).await;
        origin.wait_for_requests(2).await;
        let one = |first: u64| {
            let (proxy, url, content) = (&proxy, &url, &content);
            async move {
                let last = first + 300_000;
                let part = ranged(proxy, url, &format!("bytes={first}-{last}")).await;
                assert_part(&part, content, first, last);
            }
        };
        let others = async { tokio::join!(one(120_000), one(120_000), one(500_000), one(900_000)) };
        let others = tokio::time::timeout(PATIENCE, others).await;
        others.expect("they do not wait for the slow request");
        // Late bytes were taken over, not fetched by each of those who waited.
        assert!(origin.request_count() <= 5, "{}", origin.request_count());
        gate.open();
        drop(slow);
        proxy.kill_well();
    }
}
