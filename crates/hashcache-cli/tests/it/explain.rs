//! `hashcache explain` and `hashcache list`: what a running proxy says of requests and its store.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use hashcache_testkit::{Client, Origin, Script};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::Home;
use super::proxy_process::Proxy;
use super::proxy_sites::{front, plain, site};

/// A proxy with a token for its admin listener.
fn start(home: &Home, flags: &[&str]) -> Proxy {
    let token = token(home);
    let token = format!("--admin-token-file={}", token.display());
    let flags = [flags, &[token.as_str()]].concat();
    Proxy::start(&home.path().join("c.img"), &flags).unwrap()
}

fn token(home: &Home) -> PathBuf {
    home.file("token", "a-token-for-this-test-alone\n")
}

async fn get(proxy: &Proxy, url: &str, fields: &[(&str, &str)]) -> u16 {
    let mut client = Client::connect(proxy.address()).await.unwrap();
    client.get(url, fields).await.unwrap().status
}

/// The output of `hashcache explain`, with and without `--json`.
pub fn explain(home: &Home, admin: SocketAddr, arguments: &[&str]) -> (Value, String) {
    let admin = format!("--admin={admin}");
    let token = format!("--admin-token-file={}", token(home).display());
    let asked = [
        &["explain", "--config=/dev/null", &admin, &token],
        arguments,
    ]
    .concat();
    let told = home.hashcache(&asked, &[]);
    assert_eq!(
        (told.status, told.stderr.as_str()),
        (Some(0), ""),
        "{asked:?}"
    );
    let json = home.hashcache(&[&asked[..], &["--json"]].concat(), &[]);
    let json = serde_json::from_str(&json.stdout).expect(&json.stderr);
    (json, told.stdout)
}

/// The lines of `hashcache list --json`.
fn list(home: &Home, proxy: &Proxy, arguments: &[&str]) -> Vec<Value> {
    let admin = format!("--admin={}", proxy.admin());
    let token = format!("--admin-token-file={}", token(home).display());
    let own = ["list", "--config=/dev/null", "--json", &admin, &token];
    let outcome = home.hashcache(&[&own[..], arguments].concat(), &[]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    let lines = outcome.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Metrics that requests change, and questions of operators do not, once `requests` are counted:
/// that is a moment after the client has its response.
async fn traces(proxy: &Proxy, requests: u64) -> Vec<String> {
    loop {
        let mut client = Client::connect(proxy.admin()).await.unwrap();
        let answer = client.get("/metrics", &[("Host", "localhost")]).await;
        let text = String::from_utf8(answer.unwrap().body).unwrap();
        let traces: Vec<String> = text
            .lines()
            .filter(|line| TRACES.iter().any(|name| line.starts_with(name)))
            .map(str::to_owned)
            .collect();
        let counts = traces.iter().filter(|line| line.starts_with(TRACES[0]));
        let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        if counts.sum::<u64>() >= requests {
            return traces;
        }
        tokio::task::yield_now().await;
    }
}

const TRACES: [&str; 5] = [
    "hashcache_requests_total",
    "hashcache_plain_hits_total",
    "hashcache_origin_bytes_total",
    "hashcache_failures_total",
    "hashcache_readmitted_total",
];

async fn origin() -> Origin {
    let origin = Origin::start(|request| match request.target() {
        "/no-store" => Script::response(200, &[("Cache-Control", "no-store")], "x"),
        "/gzip" => {
            let fields = [
                ("Cache-Control", "max-age=600"),
                ("Vary", "Accept-Encoding"),
            ];
            Script::response(200, &fields, "x")
        }
        "/must" => {
            let fields = [
                ("Cache-Control", "max-age=0, must-revalidate"),
                ("ETag", "\"a\""),
            ];
            Script::response(200, &fields, "x")
        }
        _ => Script::response(200, &[("Cache-Control", "max-age=600")], "content"),
    });
    origin.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_is_told_and_nothing_changes_by_the_question() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, &[]);
    let url = origin.url("/a");
    let admin = format!("--admin={}", proxy.admin());
    let without = home.hashcache(&["explain", "--config=/dev/null", &admin, &url], &[]);
    assert_eq!((without.status, without.stdout.as_str()), (Some(2), ""));
    assert!(without.stderr.contains("token"), "{without:?}");
    let (before, _) = explain(&home, proxy.admin(), &[&url]);
    assert_eq!(before["store"]["state"], "miss");
    assert_eq!(origin.request_count(), 0);
    get(&proxy, &url, &[]).await;
    let marks = traces(&proxy, 1).await;

    let (fresh, told) = explain(&home, proxy.admin(), &[&url]);
    assert_eq!(fresh["store"]["state"], "fresh", "{fresh}");
    assert_eq!(fresh["store"]["lifetime"], 600);
    assert_eq!(fresh["store"]["lifetime_from"], "max-age of the response");
    assert_eq!(fresh["store"]["content_bytes"], 7);
    assert_eq!(
        (&fresh["store"]["device"], &fresh["store"]["devices"]),
        (&0.into(), &1.into())
    );
    assert!(
        told.contains("answered from the store; fresh for another "),
        "{told}"
    );

    let (later, told) = explain(&home, proxy.admin(), &[&url, "--at=+1h"]);
    assert_eq!(later["store"]["state"], "validated", "{later}");
    assert!(told.contains("validated at the next hop first"), "{told}");

    let (posted, _) = explain(&home, proxy.admin(), &[&url, "--method=POST"]);
    assert_eq!(posted["store"]["state"], "bypass", "{posted}");
    let no_cache = "--header=Cache-Control: no-cache";
    let (reloaded, _) = explain(&home, proxy.admin(), &[&url, no_cache]);
    assert_eq!(reloaded["store"]["state"], "validated", "{reloaded}");

    assert_eq!(traces(&proxy, 1).await, marks);
    assert_eq!(origin.request_count(), 1);
    assert!(origin.complaints().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_response_is_not_stored_or_not_served_is_told() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, &[]);
    let url = origin.url("/no-store");
    get(&proxy, &url, &[]).await;
    let (answer, told) = explain(&home, proxy.admin(), &[&url]);
    let last = &answer["store"]["last_response_not_stored"];
    assert_eq!(last["reason"], "no-store", "{answer}");
    assert!(
        told.contains("the last response was not stored: no-store"),
        "{told}"
    );

    let url = origin.url("/must");
    get(&proxy, &url, &[]).await;
    let (_, told) = explain(&home, proxy.admin(), &[&url]);
    assert!(told.contains("may not be served unvalidated"), "{told}");

    let url = origin.url("/gzip");
    get(&proxy, &url, &[("Accept-Encoding", "gzip")]).await;
    let gzip = "--header=Accept-Encoding: gzip";
    let (answer, _) = explain(&home, proxy.admin(), &[&url, gzip]);
    assert_eq!(answer["store"]["state"], "fresh", "{answer}");
    assert_eq!(answer["store"]["variant"]["accept-encoding"], "gzip");
    let (answer, _) = explain(&home, proxy.admin(), &[&url]);
    assert_eq!(answer["store"]["state"], "vary-miss", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_and_by_which_setting_is_told() {
    let home = Home::new();
    let proxy = start(&home, &["--allow-client=203.0.113.0/24"]);
    let refused = |arguments: &[&str]| {
        let (answer, _) = explain(&home, proxy.admin(), arguments);
        let checks = answer["access"]["checks"].as_array().unwrap().clone();
        let refused = checks.into_iter().find(|check| check["allowed"] == false);
        refused.map(|check| (check["error"].clone(), check["check"].clone()))
    };
    let url = "http://a.test/";
    assert_eq!(refused(&[url]), None);
    for client in ["--client=10.1.2.3", "--client=203.0.113.7", "--client=::1"] {
        assert_eq!(refused(&[url, client]), None, "{client}");
    }
    for (arguments, error, check) in [
        (
            &[url, "--client=198.51.100.1"][..],
            "client-denied",
            "client",
        ),
        (&["http://a.test:25/"], "port-denied", "port"),
        (&["https://a.test:8443/"], "connect-port-denied", "port"),
        (&["http://10.0.0.1/"], "destination-denied", "destination"),
        (&["ftp://a.test/x"], "not-implemented", "scheme"),
    ] {
        let expected = Some((error.into(), check.into()));
        assert_eq!(refused(arguments), expected, "{arguments:?}");
    }
    let (answer, told) = explain(&home, proxy.admin(), &["https://a.test/"]);
    assert_eq!(answer["interception"]["reason"], "off", "{answer}");
    assert!(told.contains("passed on in a tunnel"), "{told}");
    let own = format!("http://{}/", proxy.address());
    let (_, told) = explain(&home, proxy.admin(), &[&own]);
    assert!(told.contains("answered by the proxy itself"), "{told}");

    let wrong = ["explain", "nonsense", "--config=/dev/null"];
    let admin = format!("--admin={}", proxy.admin());
    let token = format!("--admin-token-file={}", token(&home).display());
    let outcome = home.hashcache(&[&wrong[..], &[&admin, &token]].concat(), &[]);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("nonsense"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_hops_are_told_in_their_order() {
    let home = Home::new();
    let parents = ["--parent=http://127.0.0.1:1", "--parent=http://127.0.0.2:1"];
    let flags = [&parents[..], &["--peer-choice=round-robin"]].concat();
    let proxy = start(&home, &flags);
    let hops = |url: &str| -> Vec<String> {
        let (answer, _) = explain(&home, proxy.admin(), &[url]);
        let hops = answer["route"]["hops"].as_array().unwrap().clone();
        hops.iter()
            .map(|hop| hop["to"].as_str().unwrap().to_owned())
            .collect()
    };
    let expected = ["127.0.0.1:1", "127.0.0.2:1", "a.test:80"];
    // A question takes no turn.
    for _ in 0..3 {
        assert_eq!(hops("http://a.test/"), expected);
    }
    assert_eq!(hops("https://a.test/")[2], "a.test:443");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_front_of_a_site_its_origins_and_its_store_are_told() {
    let (home, origin) = (Home::new(), plain("page").await);
    let proxy = front(&home, &site(&[&origin], ""));
    let www = ("Host", "www.a.test");
    let mut client = Client::connect(proxy.address()).await.unwrap();
    client.get("/a", &[www]).await.unwrap();
    let (answer, _) = explain(&home, proxy.admin(), &["http://www.a.test/a"]);
    assert_eq!(answer["store"]["state"], "fresh", "{answer}");
    let to = origin.address().to_string();
    assert_eq!(answer["route"]["hops"][0]["to"], to, "{answer}");
    let (_, told) = explain(&home, proxy.admin(), &["http://other.test/a"]);
    assert!(told.contains("no site has this host"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_is_stored_is_listed_by_prefix_if_the_token_is_right() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, &[]);
    for number in 0..60 {
        get(&proxy, &origin.url(&format!("/a/{number}")), &[]).await;
        get(&proxy, &origin.url(&format!("/b/{number}?x=y")), &[]).await;
    }
    get(&proxy, &origin.url("/gzip"), &[("Accept-Encoding", "gzip")]).await;
    get(&proxy, &origin.url("/gzip"), &[("Accept-Encoding", "br")]).await;
    let marks = traces(&proxy, 122).await;
    let urls = |prefix: &str| {
        let prefix = format!("--prefix={}", origin.url(prefix));
        let objects = list(&home, &proxy, &[&prefix]);
        let urls = objects
            .iter()
            .map(|it| it["url"].as_str().unwrap().to_owned());
        let mut urls: Vec<_> = urls.collect();
        urls.sort();
        urls.dedup();
        urls
    };
    assert_eq!(urls("/").len(), 121);
    assert_eq!(urls("/a/").len(), 60);
    assert_eq!(urls("/b/7"), [origin.url("/b/7?x=y")]);
    assert!(urls("/c").is_empty());
    let gzip = format!("--prefix={}", origin.url("/gzip"));
    let variants = list(&home, &proxy, &[&gzip]);
    assert!(variants.len() >= 2, "{variants:?}");
    assert!(
        variants.iter().all(|it| it["varies"] == true),
        "{variants:?}"
    );
    assert_eq!(list(&home, &proxy, &["--limit=3"]).len(), 3);
    assert_eq!(traces(&proxy, 122).await, marks);

    let admin = format!("--admin={}", proxy.admin());
    fs::write(home.path().join("token"), "another-token-of-good-length").unwrap();
    let token = format!("--admin-token-file={}", home.path().join("token").display());
    // The proxy reads the file for each question: it is the same file.
    let outcome = home.hashcache(&["list", "--config=/dev/null", &admin, &token], &[]);
    assert_eq!(outcome.status, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("  200 "), "{outcome:?}");
    let wrong = home.file("wrong", "a-token-that-is-not-the-one");
    let token = format!("--admin-token-file={}", wrong.display());
    let outcome = home.hashcache(&["list", "--config=/dev/null", &admin, &token], &[]);
    assert_eq!(outcome.status, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("token"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_its_walk() {
    let (home, origin) = (Home::new(), origin().await);
    let proxy = start(&home, &[]);
    for number in 0..200 {
        get(&proxy, &origin.url(&format!("/{number}")), &[]).await;
    }
    let token = fs::read_to_string(token(&home)).unwrap();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(proxy.admin()).await.unwrap();
        let head = format!(
            "GET /-/list HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
            token.trim()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        drop(stream);
    }
    // One walk is under way at a time, so this waits for whatever the others have left.
    assert_eq!(list(&home, &proxy, &["--limit=1"]).len(), 1);
}
