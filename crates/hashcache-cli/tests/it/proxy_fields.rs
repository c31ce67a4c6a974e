//! Request fields outside the cache key: what one client sends must not reach another client.

use hashcache_testkit::{Client, Origin, RawRequest, Response, Script};

use crate::Home;
use crate::proxy_process::Proxy;

async fn ask(proxy: &Proxy, url: &str, fields: &[(&str, &str)]) -> Response {
    asked(proxy, "GET", url, fields).await
}

async fn asked(proxy: &Proxy, method: &str, url: &str, fields: &[(&str, &str)]) -> Response {
    let client = Client::connect(proxy.address()).await;
    let mut client = client.expect("the proxy accepts");
    let sent = client.request(method, url, fields).await;
    sent.expect("the proxy reads");
    let response = client.read_response(method).await;
    response.expect("the proxy answers")
}

/// An origin whose content is the value of `name` in the request, with these response fields.
async fn echo(name: &'static str, status: u16, fields: &'static [(&str, &str)]) -> Origin {
    let origin = Origin::start(move |request: &RawRequest| {
        let value = request.head.field(name).unwrap_or("nothing").to_owned();
        Script::response(status, fields, &value)
    });
    origin.await.expect("a free port")
}

const FRESH: &[(&str, &str)] = &[("Cache-Control", "max-age=600")];

fn text(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_to_an_override_reaches_its_client_only() {
    let home = Home::new();
    let proxy = Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts");
    for name in [
        "x-forwarded-host",
        "x-original-url",
        "forwarded",
        "x-forwarded",
        "x-original-path",
        "x-matched-path",
        "x-invoke-path",
        "x-middleware-rewrite",
    ] {
        let origin = echo(name, 200, FRESH).await;
        let url = origin.url("/x");
        let evil = ask(&proxy, &url, &[(name, "host=evil")]).await;
        assert_eq!(text(&evil), "host=evil");
        let status = evil.field("cache-status").unwrap_or_default();
        assert!(status.contains("detail=override-field"), "{name}: {status}");
        for _ in 0..2 {
            assert_eq!(text(&ask(&proxy, &url, &[]).await), "nothing", "{name}");
        }
        // Nor is it answered from the store.
        let again = ask(&proxy, &url, &[(name, "host=other")]).await;
        assert_eq!(text(&again), "host=other", "{name}");
        assert_eq!(origin.requests().len(), 3, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_field_named_like_an_override_brought_changes_no_stored_response() {
    // Confirms what it has sent, and says what the field said.
    let origin = Origin::start(|request: &RawRequest| {
        let said = request.head.field("x-source-url").unwrap_or("nothing");
        let is_confirmed = request.head.field("if-none-match").is_some();
        let varies = !request.target().ends_with("/x");
        let is_fresh = match request.target().rsplit('/').next() {
            Some("varied") => is_confirmed,
            Some("choice") => true,
            _ => said != "nothing",
        };
        let mut fields = vec![
            ("ETag", "\"a\""),
            (
                "Cache-Control",
                if is_fresh {
                    "max-age=1000"
                } else {
                    "max-age=0"
                },
            ),
            ("X-Said", said),
        ];
        if varies {
            fields.push(("Vary", "X-Source-URL"));
        }
        let (status, text) = if is_confirmed {
            (304, "")
        } else {
            (200, "text")
        };
        Script::response(status, &fields, text)
    });
    let (home, origin) = (Home::new(), origin.await.expect("a free port"));
    let proxy = Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts");
    let url = origin.url("/x");
    let evil = [("x-source-url", "evil")];
    ask(&proxy, &url, &[]).await;
    let answer = ask(&proxy, &url, &evil).await;
    assert_eq!(answer.field("x-said"), Some("evil"));
    let head = asked(&proxy, "HEAD", &url, &evil).await;
    assert_eq!(head.field("x-said"), Some("evil"));
    let plain = ask(&proxy, &url, &[]).await;
    assert_eq!(plain.field("x-said"), Some("nothing"));
    assert_eq!(origin.requests().len(), 4);
    // A response that varies by the field is one for such requests, and is refreshed by them.
    let url = origin.url("/varied");
    for _ in 0..4 {
        let answer = ask(&proxy, &url, &evil).await;
        assert_eq!(
            (answer.field("x-said"), text(&answer)),
            (Some("evil"), "text".into())
        );
    }
    assert_eq!(origin.requests().len(), 6);
    // For a request with the field, the proxy validates the plain response, and the origin confirms
    // it with a 304. For requests without the field, the plain response stays as it is.
    let url = origin.url("/choice");
    for (fields, said) in [(&[][..], "nothing"), (&evil, "evil"), (&[], "nothing")] {
        let answer = ask(&proxy, &url, fields).await;
        assert_eq!(
            (answer.field("x-said"), text(&answer)),
            (Some(said), "text".into())
        );
    }
    let requests = origin.requests();
    assert_eq!(requests.len(), 8);
    assert_eq!(requests[7].field("if-none-match"), Some("\"a\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_without_a_lifetime_answers_no_client_with_other_fields() {
    let (home, origin) = (Home::new(), echo("accept", 404, &[]).await);
    let proxy = Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts");
    let url = origin.url("/x");
    for fields in [
        &[("accept", "x/y")][..],
        &[("accept", "x/y")],
        &[],
        &[("authorization", "Bearer x")],
        &[("cookie", "a=1")],
    ] {
        ask(&proxy, &url, fields).await;
    }
    // The second request alone is answered from the store.
    assert_eq!(origin.requests().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coding_that_vary_does_not_name_reaches_clients_that_accept_it() {
    let origin = Origin::start(|request: &RawRequest| {
        let accepted = request.head.field("accept-encoding").unwrap_or_default();
        if accepted.contains("gzip") {
            let coded = [FRESH, &[("Content-Encoding", "gzip")]].concat();
            Script::response(200, &coded, "coded")
        } else {
            Script::response(200, FRESH, "plain")
        }
    });
    let (home, origin) = (Home::new(), origin.await.expect("a free port"));
    let proxy = Proxy::start(&home.path().join("cache"), &[]).expect("the proxy starts");
    for path in ["/a", "/b", "/c"] {
        let url = origin.url(path);
        for _ in 0..3 {
            let coded = ask(&proxy, &url, &[("accept-encoding", "gzip")]).await;
            assert_eq!(text(&coded), "coded");
        }
        let fields: &[(&str, &str)] = match path {
            "/a" => &[],
            "/b" => &[("accept-encoding", "identity")],
            _ => &[("accept-encoding", "gzip;q=0")],
        };
        let plain = ask(&proxy, &url, fields).await;
        let expected = if path == "/c" { "coded" } else { "plain" };
        // The origin of this test looks for the word only; the proxy must have asked it.
        assert_eq!(text(&plain), expected);
    }
    assert_eq!(origin.requests().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_gets_no_client_addresses_and_overrides_unless_it_passes_them() {
    let origin = echo(
        "x-http-method-override",
        200,
        &[("Cache-Control", "no-store")],
    )
    .await;
    let (home, sent) = (
        Home::new(),
        [
            ("client-ip", "192.0.2.1"),
            ("cf-connecting-ip", "192.0.2.1"),
            ("fastly-client-ip", "192.0.2.1"),
            ("x-remote-user", "root"),
            ("x-forwarded-user", "root"),
            ("x-original-url", "/admin"),
            ("x-replaced-path", "/admin"),
            ("x-middleware-subrequest", "middleware"),
            ("x-invoke-status", "500"),
            ("x-http-method-override", "PUT"),
        ],
    );
    let config = format!(
        "[[site]]\nhosts = [\"127.0.0.1\"]\norigins = [\"{}\"]\n\
         pass_fields = [\"X-HTTP-Method-Override\"]\n",
        origin.url("").trim_end_matches('/'),
    );
    let file = home.file("c.toml", &config);
    let flags = [format!("--config={}", file.display())];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let proxy = Proxy::start(&home.path().join("cache"), &flags).expect("the proxy starts");
    let host = proxy.address().to_string();
    let fields = [&[("host", host.as_str())][..], &sent].concat();
    assert_eq!(text(&ask(&proxy, "/x", &fields).await), "PUT");
    let requests = origin.requests();
    let head = &requests.first().expect("a request").head;
    for (name, _) in &sent[..sent.len() - 1] {
        assert_eq!(head.field(name), None, "{name}");
    }
}
