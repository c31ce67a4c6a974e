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
use crate::proxy_users::{ANNA, USERS};

/// The totals of the responses to one client.
#[derive(Default)]
struct Got {
    requests: u64,
    bytes: u64,
}

impl Got {
    async fn ask(&mut self, proxy: &Proxy, target: &str) {
        assert_eq!(self.ask_as(proxy, target, None).await, 200);
    }

    async fn ask_as(&mut self, proxy: &Proxy, target: &str, login: Option<&str>) -> u16 {
        let mut client = Client::connect(proxy.address()).await.unwrap();
        let login = login.map(|login| ("Proxy-Authorization", login));
        let response = client.get(target, login.as_slice()).await.unwrap();
        assert_eq!(response.end, BodyEnd::Complete);
        self.requests += 1;
        self.bytes += (response.head.raw.len() + response.body.len()) as u64;
        response.status
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
    for period in ["--day", "--week", "--month", "--days=400"] {
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
    for days in ["--days=0", "--days=401"] {
        let refused = home.hashcache(&["report", days], &[]);
        assert_eq!(refused.status, Some(2), "{refused:?}");
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
        html.contains("<wbr>1:") && html.contains("<td>40<td class=h>98 %<td>"),
        "{html}"
    );
    assert!(
        !html.contains("<script") && !html.contains("http://"),
        "{html}"
    );
}

#[tokio::test]
async fn an_anonymous_report_has_networks_and_no_clients() {
    let home = Home::new();
    let origin = Origin::start(script).await.unwrap();
    let mut proxy =
        Proxy::start(&home.path().join("cache.img"), &["--log-anonymize=true"]).unwrap();
    let target = format!("http://127.0.0.1:{}/size/1", origin.address().port());
    Got::default().ask(&proxy, &target).await;
    proxy.stop();
    let csv = report(&home, &["--format=csv"]);
    assert!(csv.contains("network,\"127.0.0.0/24\",1,"), "{csv}");
    assert!(!csv.contains("127.0.0.1\""), "{csv}");
    let text = report(&home, &["--by=client"]);
    let expected = "There were no requests, or log_anonymize leaves addresses out.";
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn users_and_named_networks_have_lines() {
    let home = Home::new();
    let origin = Origin::start(script).await.unwrap();
    home.file("users", USERS);
    let users = home.path().join("users").display().to_string();
    let config = format!(
        "htpasswd = [\"{users}\"]\n[networks]\nlab = [\"127.0.0.0/8\"]\n[[group]]\nname = \
         \"staff\"\nusers = [\"anna\"]\n[[access]]\naction = \"allow\"\ngroups = [\"staff\"]\n\
         [[access]]\naction = \"deny\"\n"
    );
    home.file("h.toml", &config);
    let config = format!("--config={}", home.path().join("h.toml").display());
    let mut proxy = Proxy::start(&home.path().join("cache.img"), &[&config]).unwrap();
    let target = format!("http://127.0.0.1:{}/size/9000", origin.address().port());
    let mut got = Got::default();
    for _ in 0..4 {
        assert_eq!(got.ask_as(&proxy, &target, Some(ANNA)).await, 200);
    }
    assert_eq!(Got::default().ask_as(&proxy, &target, None).await, 407);
    proxy.stop();
    let json = |by: &str| {
        let json = report(&home, &[&config, "--week", by, "--format=json"]);
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let users = json("--by=user");
    assert_eq!(users["users"].as_array().unwrap().len(), 1, "{users:#}");
    assert_eq!(users["users"][0]["name"], "anna");
    assert_eq!(users["users"][0]["requests"], 4);
    assert_eq!(users["users"][0]["hits"], 3);
    assert_eq!(users["users"][0]["client_bytes"], got.bytes);
    // The request without a login, whose error is nothing that was served.
    assert_eq!(users["no_login"]["requests"], 1, "{users:#}");
    assert_eq!(users["no_login"]["client_bytes"], 0, "{users:#}");
    assert!(users.get("sites").is_none(), "{users:#}");
    let networks = json("--by=network");
    assert_eq!(networks["networks"][0]["name"], "lab", "{networks:#}");
    assert_eq!(networks["networks"][0]["requests"], 5);
    let text = report(&home, &[&config, "--by=user"]);
    assert!(
        text.contains("\nuser  ") && text.contains("\nanna  "),
        "{text}"
    );
    assert!(text.contains("\n(no login)  "), "{text}");
}

#[tokio::test]
async fn pages_of_the_proxy_itself_save_nothing() {
    let home = Home::new();
    let mut proxy = Proxy::start(&home.path().join("cache.img"), &[]).unwrap();
    let own = format!("http://{}", proxy.address());
    let mut got = Got::default();
    for (target, status) in [
        (format!("{own}/"), 200),
        (format!("{own}/proxy.pac"), 200),
        (format!("{own}/no-such-page"), 404),
        ("http://127.0.0.1:1/nobody-listens".to_owned(), 403),
        ("http://127.0.0.1:1025/nobody-listens".to_owned(), 502),
    ] {
        assert_eq!(got.ask_as(&proxy, &target, None).await, status, "{target}");
    }
    proxy.stop();
    let json = report(&home, &["--format=json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["saved_bytes"], 0, "{json:#}");
    assert_eq!(json["client_bytes"], 0, "{json:#}");
    assert_eq!(json["own_page_bytes"], got.bytes, "{json:#}");
    let text = report(&home, &[]);
    assert!(text.contains("saved         0 of 0 (-)"), "{text}");
}

#[test]
fn a_report_without_a_history_says_what_makes_one() {
    let home = Home::new();
    // Else it would be the one of the machine, for root.
    let cache = home.path().join("cache.img").display().to_string();
    let outcome = home.hashcache(&["report"], &[("HASHCACHE_CACHE", &cache)]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome.stderr.contains("there is no history in"),
        "{}",
        outcome.stderr
    );
}
