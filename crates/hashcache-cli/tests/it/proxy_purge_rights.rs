//! Which clients may send PURGE to the real proxy, and how far one PURGE reaches.

use std::net::SocketAddr;

use hashcache_testkit::{Client, Origin, Script};

use crate::Home;
use crate::operation::Running;

/// An origin that labels all its objects.
async fn origin() -> Origin {
    let fields = [("Cache-Control", "max-age=3600"), ("Surrogate-Key", "news")];
    let origin = Origin::start(move |_| Script::response(200, &fields, "page"));
    origin.await.expect("a free port")
}

async fn status(proxy: SocketAddr, method: &str, url: &str, fields: &[(&str, &str)]) -> u16 {
    let mut client = Client::connect(proxy).await.expect("the proxy listens");
    let sent = client.request(method, url, fields).await;
    sent.expect("the proxy reads");
    let answer = client.read_response(method).await;
    answer.expect("the proxy answers").status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_in_a_browser_cannot_purge_and_a_label_ends_at_its_origin() {
    let home = Home::new();
    let (mine, theirs) = (origin().await, origin().await);
    let proxy = Running::start(&home, &["--config=/dev/null"]);
    let [my_page, their_page] = [mine.url("/a"), theirs.url("/a")];
    for url in [&my_page, &their_page] {
        assert_eq!(status(proxy.listen, "GET", url, &[]).await, 200);
    }
    let of_pages = [
        ("Origin", "https://evil.test"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "cors"),
        ("sec-fetch-dest", "empty"),
    ];
    for field in of_pages {
        for fields in [&[field][..], &[field, ("Surrogate-Key", "news")]] {
            let purge = status(proxy.listen, "PURGE", &my_page, fields).await;
            assert_eq!(purge, 403, "{field:?}");
        }
    }
    status(proxy.listen, "GET", &my_page, &[]).await;
    assert_eq!((mine.request_count(), theirs.request_count()), (1, 1));
    for name in ["Surrogate-Key", "xkey", "xkey-purge"] {
        let before = mine.request_count();
        let purge = status(proxy.listen, "PURGE", &mine.url("/b"), &[(name, "news")]).await;
        assert_eq!(purge, 200);
        for url in [&my_page, &their_page] {
            status(proxy.listen, "GET", url, &[]).await;
        }
        assert_eq!(mine.request_count(), before + 1, "{name}");
        assert_eq!(theirs.request_count(), 1, "{name}");
    }
    proxy.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_front_of_a_site_nobody_purges_unless_named_and_this_machine_can_be_left_out() {
    let origin = origin().await;
    let site = format!("--accelerate={}", origin.url("").trim_end_matches('/'));
    for (flags, expected) in [
        (vec![&*site], 403),
        (vec![&*site, "--allow-purge=127.0.0.0/8"], 200),
        (vec![&*site, "--allow-purge=192.0.2.0/24"], 403),
        (vec![], 200),
        (vec!["--allow-purge=192.0.2.0/24"], 403),
    ] {
        let home = Home::new();
        let proxy = Running::start(&home, &[&["--config=/dev/null"], &flags[..]].concat());
        let url = origin.url("/*");
        let given = status(proxy.listen, "PURGE", &url, &[]).await;
        assert_eq!(given, expected, "{flags:?}");
        proxy.end();
    }
}
