//! `hashcache report`: what a proxy has counted is what its clients got.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use hashcache_testkit::{BodyEnd, Client, Origin};
use serde_json::Value;

use crate::Home;
use crate::proxy_memory_hits::script;
use crate::proxy_process::Proxy;

/// What one client has got.
#[derive(Default)]
struct Got {
    requests: u64,
    bytes: u64,
}

impl Got {
    async fn ask(&mut self, proxy: &Proxy, target: &str) {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        let response = client.get(target, &[]).await.unwrap();
        assert_eq!(response.end, BodyEnd::Complete);
        self.requests += 1;
        self.bytes += (response.head.raw.len() + response.body.len()) as u64;
    }
}

fn report(home: &Home, arguments: &[&str]) -> String {
    let cache = home.path().join("cache.img").display().to_string();
    let all = [&["report"], arguments].concat();
    let outcome = home.hashcache(&all, &[("HASHCACHE_CACHE", &cache)]);
    assert_eq!((outcome.status, &*outcome.stderr), (Some(0), ""));
    outcome.stdout
}

#[tokio::test]
async fn a_report_says_what_clients_got_and_what_was_saved() {
    let home = Home::new();
    let origin = Origin::start(script).await.unwrap();
    let cache = home.path().join("cache.img");
    let site = format!("127.0.0.1:{}", origin.address().port());
    let target = format!("http://{site}/size/20000");
    let mut got = Got::default();
    // The second process continues the hour of the first one.
    for _ in 0..2 {
        let mut proxy = Proxy::start(&cache, &[]).unwrap();
        for _ in 0..20 {
            got.ask(&proxy, &target).await;
        }
        proxy.stop();
    }
    for period in ["--day", "--week", "--month"] {
        let json = report(&home, &[period, "--format=json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["requests"], got.requests, "{json:#}");
        assert_eq!(json["hits"], got.requests - 1, "{json:#}");
        assert_eq!(json["client_bytes"], got.bytes, "{json:#}");
        assert_eq!(json["damaged_hours"], 0);
        let fetched = json["origin_bytes"].as_u64().unwrap();
        assert!((20_000..21_000).contains(&fetched), "{json:#}");
        assert_eq!(json["saved_bytes"], got.bytes - fetched);
        let [line] = &json["sites"].as_array().unwrap()[..] else {
            panic!("{json:#}")
        };
        assert_eq!(line["name"], *site);
        assert_eq!(line["client_bytes"], got.bytes);
        let [line] = &json["clients"].as_array().unwrap()[..] else {
            panic!("{json:#}")
        };
        assert_eq!(line["name"], "127.0.0.1");
        assert_eq!(line["requests"], got.requests);
    }
    let text = report(&home, &["--week"]);
    assert!(text.starts_with("HashCache, the last 7 days\n"), "{text}");
    assert!(text.contains("40, of them 39 hits (98 %)"), "{text}");
    assert!(text.contains(&site), "{text}");
    let csv = report(&home, &["--format=csv"]);
    let line = format!("site,\"{site}\",40,39,{},", got.bytes);
    assert!(csv.contains(&line), "{line} in\n{csv}");
    let html = report(&home, &["--month", "--format=html"]);
    assert!(
        html.contains(&format!("<td>{site}<td>40<td>98 %<td>")),
        "{html}"
    );
    assert!(
        !html.contains("<script") && !html.contains("http://"),
        "{html}"
    );
}

#[tokio::test]
async fn clients_are_networks_where_the_log_is_anonymous() {
    let home = Home::new();
    let origin = Origin::start(script).await.unwrap();
    let mut proxy =
        Proxy::start(&home.path().join("cache.img"), &["--log-anonymize=true"]).unwrap();
    let target = format!("http://127.0.0.1:{}/size/1", origin.address().port());
    Got::default().ask(&proxy, &target).await;
    proxy.stop();
    let csv = report(&home, &["--format=csv"]);
    assert!(csv.contains("client,\"127.0.0.0/24\",1,"), "{csv}");
    assert!(!csv.contains("\"127.0.0.1\""), "{csv}");
}

#[test]
fn a_report_without_a_history_says_what_makes_one() {
    let home = Home::new();
    let outcome = home.hashcache(&["report"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome.stderr.contains("there is no history in"),
        "{}",
        outcome.stderr
    );
}
