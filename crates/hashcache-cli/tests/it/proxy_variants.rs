//! Several variants of one URL, through the real proxy.

use hashcache_testkit::{BodyEnd, Client, Origin, RawRequest, Response, Script};

use crate::Home;
use crate::proxy_process::Proxy;

fn start(home: &Home) -> Proxy {
    Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts")
}

/// An origin that answers in the requested language and recognises its own entity tags.
async fn polyglot() -> Origin {
    let origin = Origin::start(|request: &RawRequest| {
        if request.method() == "POST" {
            return Script::response(204, &[], "");
        }
        // The origin has no texts in `de-AT`, and sends texts in `de`.
        let wanted = request.field("accept-language").unwrap_or("en");
        let language = wanted.split('-').next().unwrap_or(wanted);
        let tag = format!("\"{language}\"");
        let fields = [
            ("ETag", &tag[..]),
            ("Vary", "Accept-Language"),
            ("Cache-Control", "max-age=600"),
        ];
        let known = request.field("if-none-match").unwrap_or_default();
        if known.split(", ").any(|known| known == tag) {
            Script::response(304, &fields, "")
        } else {
            Script::response(200, &fields, format!("in {language}"))
        }
    });
    origin.await.expect("a free port")
}

async fn ask(proxy: &Proxy, url: &str, fields: &[(&str, &str)]) -> Response {
    let client = Client::connect(proxy.address()).await;
    let mut client = client.expect("the proxy accepts");
    let response = client.get(url, fields).await.expect("the proxy answers");
    assert_eq!(response.end, BodyEnd::Complete);
    response
}

/// Waits for the store, of which a client may be ahead.
async fn until_stored(proxy: &Proxy, url: &str, name: &str, value: &str) {
    let fields = [(name, value), ("Cache-Control", "only-if-cached")];
    while ask(proxy, url, &fields).await.status == 504 {}
}

async fn ask_for(proxy: &Proxy, url: &str, language: &str) -> Response {
    let response = ask(proxy, url, &[("Accept-Language", language)]).await;
    until_stored(proxy, url, "Accept-Language", language).await;
    response
}

fn assert_told(response: &Response, body: &str, cache_status: &str) {
    assert_eq!(
        (response.status, &response.body[..]),
        (200, body.as_bytes())
    );
    let status = response.field("cache-status").expect("we tell");
    let told = status.strip_prefix("hashcache; ").expect("our name");
    assert!(told.starts_with(cache_status), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_variant_is_fetched_once_and_all_are_there_after_a_restart() {
    let (home, origin) = (Home::new(), polyglot().await);
    let mut proxy = start(&home);
    let url = origin.url("/x");
    for (language, told) in [
        ("en", "fwd=uri-miss"),
        ("fr", "fwd=vary-miss"),
        ("sw", "fwd=vary-miss"),
    ] {
        let first = ask_for(&proxy, &url, language).await;
        assert_told(&first, &format!("in {language}"), told);
    }
    for _ in 0..2 {
        for language in ["fr", "en", "sw"] {
            let again = ask_for(&proxy, &url, language).await;
            assert_told(&again, &format!("in {language}"), "hit");
        }
        proxy.end_well();
        proxy = start(&home);
    }
    assert_eq!(origin.request_count(), 3);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_another_variant_names_all_that_are_stored_and_a_304_picks_one() {
    let (home, origin) = (Home::new(), polyglot().await);
    let proxy = start(&home);
    let url = origin.url("/x");
    for language in ["en", "de"] {
        ask_for(&proxy, &url, language).await;
    }
    let picked = ask_for(&proxy, &url, "de-AT").await;
    assert_told(&picked, "in de", "fwd=vary-miss; fwd-status=304");
    let requests = origin.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[2].field("if-none-match"), Some("\"en\", \"de\""));
    // From now on the stored one answers both.
    for language in ["de-AT", "de", "en"] {
        let again = ask_for(&proxy, &url, language).await;
        assert_told(&again, &format!("in {}", &language[..2]), "hit");
    }
    assert_eq!(origin.request_count(), 3);
    // A variant of the first one, which lies under the key itself.
    let picked = ask_for(&proxy, &url, "en-GB").await;
    assert_told(&picked, "in en", "fwd=vary-miss; fwd-status=304");
    assert_told(&ask_for(&proxy, &url, "en-GB").await, "in en", "hit");
    assert_eq!(origin.request_count(), 4);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unsafe_request_removes_all_variants_and_what_comes_after_is_stored_anew() {
    let (home, origin) = (Home::new(), polyglot().await);
    let proxy = start(&home);
    let url = origin.url("/x");
    for language in ["en", "fr"] {
        ask_for(&proxy, &url, language).await;
    }
    let mut client = Client::connect(proxy.address()).await.unwrap();
    let fields = [("Content-Length", "0")];
    client.request("POST", &url, &fields).await.unwrap();
    let posted = client.read_response("POST").await.unwrap();
    assert_eq!(posted.status, 204);
    // The POST has removed the list of variants, so nothing is validated and no old variant is
    // found.
    assert_told(&ask_for(&proxy, &url, "fr").await, "in fr", "fwd=uri-miss");
    assert_told(&ask_for(&proxy, &url, "en").await, "in en", "fwd=vary-miss");
    let requests = origin.requests();
    assert_eq!(requests.len(), 5);
    assert_eq!(requests[3].field("if-none-match"), None);
    assert_eq!(requests[4].field("if-none-match"), Some("\"fr\""));
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_mean_the_same_are_one_variant() {
    let origin = Origin::start(|request: &RawRequest| {
        let fields = [
            ("Vary", "Accept-Encoding"),
            ("Cache-Control", "max-age=600"),
        ];
        let coding = request.field("accept-encoding").unwrap_or("none");
        Script::response(200, &fields, coding)
    });
    let (home, origin) = (Home::new(), origin.await.expect("a free port"));
    let proxy = start(&home);
    let url = origin.url("/x");
    let name = "Accept-Encoding";
    for (value, body, told) in [
        ("gzip, br", "gzip, br", "fwd=uri-miss"),
        ("br;q=0.5, gzip", "gzip, br", "hit"),
        ("br", "br", "fwd=vary-miss"),
        ("compress, BR, identity", "br", "hit"),
    ] {
        let response = ask(&proxy, &url, &[(name, value)]).await;
        assert_told(&response, body, told);
        until_stored(&proxy, &url, name, value).await;
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_more_variants_than_a_table_holds_the_oldest_goes_but_for_the_first() {
    let origin = Origin::start(|request: &RawRequest| {
        let fields = [("Vary", "X-Number"), ("Cache-Control", "max-age=600")];
        Script::response(200, &fields, request.field("x-number").unwrap_or("none"))
    });
    let (home, origin) = (Home::new(), origin.await.expect("a free port"));
    let proxy = start(&home);
    let url = origin.url("/x");
    for number in 0..=16 {
        let number = number.to_string();
        ask(&proxy, &url, &[("X-Number", &number)]).await;
        until_stored(&proxy, &url, "X-Number", &number).await;
    }
    for (number, told) in [
        ("0", "hit"),
        ("16", "hit"),
        ("2", "hit"),
        ("1", "fwd=vary-miss"),
    ] {
        let response = ask(&proxy, &url, &[("X-Number", number)]).await;
        assert_told(&response, number, told);
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vary_that_names_more_begins_a_table_that_tells_all_of_it_apart() {
    let origin = Origin::start(|request: &RawRequest| {
        let (one, two) = (request.field("x-one"), request.field("x-two"));
        let vary = if one == Some("b") {
            "X-One, X-Two"
        } else {
            "X-One"
        };
        let fields = [("Vary", vary), ("Cache-Control", "max-age=600")];
        let body = format!("{} {}", one.unwrap_or("-"), two.unwrap_or("-"));
        Script::response(200, &fields, body)
    });
    let (home, origin) = (Home::new(), origin.await.expect("a free port"));
    let proxy = start(&home);
    let url = origin.url("/x");
    let only = [("Cache-Control", "only-if-cached")];
    for (one, two, told) in [
        ("a", "1", "fwd=uri-miss"),
        ("b", "1", "fwd=vary-miss"),
        ("b", "2", "fwd=vary-miss"),
        ("b", "1", "hit"),
        ("b", "2", "hit"),
    ] {
        let fields = [("X-One", one), ("X-Two", two)];
        let response = ask(&proxy, &url, &fields).await;
        assert_told(&response, &format!("{one} {two}"), told);
        while ask(&proxy, &url, &[&fields[..], &only].concat())
            .await
            .status
            == 504
        {}
    }
    proxy.kill_well();
}
