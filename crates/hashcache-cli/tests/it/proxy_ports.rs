//! Which destination ports clients may request, and the error for all others.

use hashcache_testkit::{Client, Origin, Response, Script};

use crate::Home;
use crate::operation::Running;

async fn asked(proxy: &Running, url: &str) -> Response {
    let mut client = Client::connect(proxy.listen).await.expect("it listens");
    let answer = client.get(url, &[("Accept", "text/html")]).await;
    answer.expect("the proxy answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_server_is_not_asked_for_a_page_and_the_flag_is_named() {
    let home = Home::new();
    let proxy = Running::start(&home, &["--config=/dev/null"]);
    for (url, port) in [
        ("http://127.0.0.1:25/", 25),
        ("http://127.0.0.1:1023/", 1023),
        ("https://127.0.0.1:22/", 22),
    ] {
        let refused = asked(&proxy, url).await;
        assert_eq!(refused.status, 403, "{url}");
        let page = String::from_utf8_lossy(&refused.body);
        assert!(page.contains(&format!("--allow-port {port}")), "{page}");
        let status = refused.field("Proxy-Status").unwrap_or_default();
        assert!(status.contains("http_request_denied"), "{status}");
    }
    // A port that is allowed but has no listener.
    assert_ne!(asked(&proxy, "http://127.0.0.1:80/").await.status, 403);
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_list_of_ports_takes_the_place_of_the_default_one() {
    let home = Home::new();
    let origin = Origin::start(|_| Script::response(200, &[], "page")).await;
    let origin = origin.expect("a free port");
    let port = origin.address().port();
    let only = |ports: &str| format!("--allow-port={ports}");
    for (ports, expected) in [
        (format!("80,{port}"), 200),
        ("80,1-1023".to_owned(), 403),
        (format!("1024-{port}"), 200),
    ] {
        let proxy = Running::start(&home, &["--config=/dev/null", &only(&ports)]);
        let status = asked(&proxy, &origin.url("/")).await.status;
        assert_eq!(status, expected, "{ports}");
        proxy.end();
    }
    // The configured origin needs no list of ports.
    let site = format!("--accelerate={}", origin.url("").trim_end_matches('/'));
    let proxy = Running::start(&home, &["--config=/dev/null", &site, &only("80")]);
    assert_eq!(asked(&proxy, &origin.url("/")).await.status, 200);
    proxy.end();
}
