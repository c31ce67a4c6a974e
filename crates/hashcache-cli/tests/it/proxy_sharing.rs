//! No client gets a response that was made for another one, through the real proxy: fields that the
//! cache key does not contain, cookies, rules that ship, errors that a client provokes.

use hashcache_testkit::{BodyEnd, Client, Gate, Origin, RawRequest, Response, Script};

use crate::Home;
use crate::proxy_process::Proxy;

fn start(home: &Home, flags: &[&str]) -> Proxy {
    Proxy::start(&home.path().join("cache"), flags).expect("the proxy starts")
}

async fn origin(answer: impl Fn(&RawRequest) -> Script + Send + Sync + 'static) -> Origin {
    Origin::start(answer).await.expect("a free port")
}

async fn ask(proxy: &Proxy, method: &str, url: &str, fields: &[(&str, &str)]) -> Response {
    let client = Client::connect(proxy.address()).await;
    let mut client = client.expect("the proxy accepts");
    let sent = client.request(method, url, fields).await;
    sent.expect("the proxy reads");
    let response = client.read_response(method).await;
    let response = response.expect("the proxy answers");
    assert_eq!(response.end, BodyEnd::Complete);
    response
}

async fn get(proxy: &Proxy, url: &str, fields: &[(&str, &str)]) -> Response {
    ask(proxy, "GET", url, fields).await
}

/// Waits for the store, of which a client may be ahead.
async fn until_stored(proxy: &Proxy, url: &str, fields: &[(&str, &str)]) {
    let only = [("Cache-Control", "only-if-cached, max-stale")];
    let fields = [fields, &only].concat();
    for _ in 0..2_000 {
        if get(proxy, url, &fields).await.status != 504 {
            return;
        }
    }
    panic!("{url} was never stored");
}

fn text(response: &Response) -> &str {
    std::str::from_utf8(&response.body).unwrap_or("?")
}

fn is_hit(response: &Response) -> bool {
    let status = response.field("cache-status").unwrap_or_default();
    status.starts_with("hashcache; hit")
}

/// An origin whose response contains the request's Origin field.
async fn echo_of_origin() -> Origin {
    origin(|request| {
        let fields = [("Vary", "Origin"), ("Cache-Control", "max-age=600")];
        Script::response(200, &fields, request.field("origin").unwrap_or("none"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_connection_names_selects_no_stored_response() {
    for connection in ["Origin", "close, ORIGIN", "x,origin , te"] {
        let (home, origin) = (Home::new(), echo_of_origin().await);
        let (proxy, url) = (start(&home, &[]), origin.url("/x"));
        let app = ("Origin", "https://app");
        let hidden = get(&proxy, &url, &[app, ("Connection", connection)]).await;
        assert_eq!(text(&hidden), "none", "{connection}");
        until_stored(&proxy, &url, &[]).await;
        // The client of the app gets a variant of its own, not the attacker's.
        let real = get(&proxy, &url, &[app]).await;
        assert_eq!(text(&real), "https://app", "{connection}");
        let plain = get(&proxy, &url, &[("Connection", connection), app]).await;
        assert_eq!((text(&plain), is_hit(&plain)), ("none", true));
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_or_condition_that_connection_names_is_none() {
    let origin = origin(|_| {
        let fields = [("ETag", "\"a\""), ("Cache-Control", "max-age=600")];
        Script::response(200, &fields, "hello")
    });
    let (home, origin) = (Home::new(), origin.await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    get(&proxy, &url, &[]).await;
    until_stored(&proxy, &url, &[]).await;
    for (name, value) in [("Range", "bytes=1-2"), ("If-None-Match", "\"a\"")] {
        let response = get(&proxy, &url, &[(name, value), ("Connection", name)]).await;
        assert_eq!((response.status, text(&response)), (200, "hello"), "{name}");
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_whose_connection_names_what_storing_rests_on_is_not_stored() {
    for (name, value) in [
        ("Vary", "X-Who"),
        ("Set-Cookie", "a=b"),
        ("Expires", "Sat, 01 Jan 2050 00:00:00 GMT"),
        ("Age", "0"),
    ] {
        let origin = origin(move |request| {
            let fields = [
                ("Cache-Control", "public, max-age=600"),
                ("Connection", name),
                (name, value),
            ];
            Script::response(200, &fields, request.field("x-who").unwrap_or("none"))
        });
        let (home, origin) = (Home::new(), origin.await);
        let (proxy, url) = (start(&home, &[]), origin.url("/x"));
        for who in ["ann", "bob"] {
            let response = get(&proxy, &url, &[("X-Who", who)]).await;
            assert_eq!(text(&response), who, "{name}");
        }
        proxy.kill_well();
    }
}

/// An origin that gives each new client a cookie, and recognises clients by it.
async fn shop(control: &'static str) -> Origin {
    origin(move |request| {
        let met = request.field("cookie").unwrap_or("none");
        let cookie = format!("id={}", request.connection);
        let fields = [("Cache-Control", control), ("Set-Cookie", &cookie)];
        Script::response(200, &fields, met)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_is_set_for_the_client_it_was_made_for_alone() {
    let (home, origin) = (Home::new(), shop("max-age=600").await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    for (count, client) in ["id=ann", "id=bob", "id=ann"].into_iter().enumerate() {
        let response = get(&proxy, &url, &[("Cookie", client)]).await;
        assert_eq!(text(&response), client);
        assert_eq!(origin.request_count(), count + 1);
        let status = response.field("cache-status").unwrap_or_default();
        assert!(status.contains("detail=set-cookie"), "{status}");
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_for_everybody_is_stored_and_replayed_whole() {
    for control in ["max-age=600, public", "s-maxage=600"] {
        let (home, origin) = (Home::new(), shop(control).await);
        let (proxy, url) = (start(&home, &[]), origin.url("/x"));
        let first = get(&proxy, &url, &[]).await;
        until_stored(&proxy, &url, &[]).await;
        let again = get(&proxy, &url, &[]).await;
        assert!(is_hit(&again), "{control}");
        assert_eq!(again.field("set-cookie"), first.field("set-cookie"));
        proxy.kill_well();
    }
    let (home, origin) = (Home::new(), shop("max-age=600").await);
    let (proxy, url) = (start(&home, &["--set-cookie=rfc"]), origin.url("/x"));
    get(&proxy, &url, &[]).await;
    until_stored(&proxy, &url, &[]).await;
    let again = get(&proxy, &url, &[]).await;
    assert!(is_hit(&again) && again.field("set-cookie").is_some());
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_rule_says_that_a_cookie_is_for_everybody() {
    let (home, origin) = (Home::new(), shop("max-age=600").await);
    let file = home.path().join("config.toml");
    let rule = "[[rule]]\npath = \"/open/**\"\nlifetime = \"1h\"\n";
    std::fs::write(&file, rule).unwrap();
    let config = format!("--config={}", file.display());
    let proxy = start(&home, &[&config]);
    let url = origin.url("/open/x");
    get(&proxy, &url, &[]).await;
    until_stored(&proxy, &url, &[]).await;
    let again = get(&proxy, &url, &[]).await;
    assert!(is_hit(&again) && again.field("set-cookie").is_some());
    let other = origin.url("/x");
    get(&proxy, &other, &[]).await;
    assert!(!is_hit(&get(&proxy, &other, &[]).await));
    proxy.kill_well();
}

/// An origin that sets cookies in a 304 and in the response to a HEAD.
async fn renewing() -> Origin {
    origin(|request| {
        let cookie = format!("id={}", request.field("x-who").unwrap_or("none"));
        let fields = [
            ("ETag", "\"a\""),
            ("Age", "2"),
            ("Cache-Control", "public, max-age=1"),
            ("X-Count", "1"),
        ];
        let with = [&fields[..], &[("Set-Cookie", &cookie[..])]].concat();
        if request.field("if-none-match").is_some() {
            let later = [
                ("ETag", "\"a\""),
                ("Cache-Control", "public, max-age=600"),
                ("X-Count", "2"),
                ("Set-Cookie", &cookie),
            ];
            return Script::response(304, &later, "");
        }
        match request.method() {
            "HEAD" => Script::new().head(200, &[&with[..], &[("Content-Length", "5")]].concat()),
            _ => Script::response(200, &fields, "hello"),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_304_nor_a_head_brings_a_cookie_into_what_is_stored() {
    for flags in [&[][..], &["--set-cookie=rfc"]] {
        let (home, origin) = (Home::new(), renewing().await);
        let (proxy, url) = (start(&home, flags), origin.url("/x"));
        get(&proxy, &url, &[]).await;
        until_stored(&proxy, &url, &[]).await;
        let head = ask(&proxy, "HEAD", &url, &[("X-Who", "ann")]).await;
        assert_eq!(head.field("set-cookie"), Some("id=ann"));
        let stale = [("Cache-Control", "only-if-cached, max-stale")];
        let kept = get(&proxy, &url, &stale).await;
        assert_eq!((text(&kept), kept.field("set-cookie")), ("hello", None));
        let own = get(&proxy, &url, &[("X-Who", "ann")]).await;
        // The 304 was made for this client: only this client gets the cookie.
        assert_eq!(
            (text(&own), own.field("set-cookie")),
            ("hello", Some("id=ann"))
        );
        let next = get(&proxy, &url, &[("X-Who", "bob")]).await;
        assert!(is_hit(&next));
        assert_eq!((text(&next), next.field("set-cookie")), ("hello", None));
        assert_eq!(next.field("x-count"), Some("2"));
        proxy.kill_well();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_response_that_sets_a_cookie_goes_alone() {
    let (go, came) = (Gate::new(), Gate::new());
    let (waits, tells) = (go.clone(), came.clone());
    let origin = origin(move |request| {
        let who = request.field("x-who").unwrap_or("none");
        let cookie = format!("id={who}");
        let fields = [("Cache-Control", "max-age=600"), ("Set-Cookie", &cookie)];
        let answer = Script::response(200, &fields, who);
        match who {
            "ann" => Script::new().open(&tells).wait(&waits).then(answer),
            _ => answer,
        }
    });
    let (home, origin) = (Home::new(), origin.await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    let ann = [("X-Who", "ann")];
    let bob = [("X-Who", "bob")];
    let leader = get(&proxy, &url, &ann);
    let follower = async {
        came.opened().await;
        let follower = get(&proxy, &url, &bob);
        tokio::pin!(follower);
        // The second request either waits as a follower or has been forwarded; both are correct.
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut follower).await;
        go.open();
        match early {
            Ok(response) => response,
            Err(_) => follower.await,
        }
    };
    let (leader, follower) = tokio::join!(leader, follower);
    assert_eq!(
        (text(&leader), leader.field("set-cookie")),
        ("ann", Some("id=ann"))
    );
    assert_eq!(
        (text(&follower), follower.field("set-cookie")),
        ("bob", Some("id=bob"))
    );
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_like_a_packages_keeps_nothing_that_was_made_for_one_client() {
    let origin = origin(|request| {
        let kind = request.field("x-kind").unwrap_or("application/gzip");
        let body = request.field("cookie").unwrap_or("none");
        Script::response(200, &[("Content-Type", kind)], body)
    });
    let (home, origin) = (Home::new(), origin.await);
    let proxy = start(&home, &[]);
    let url = origin.url("/account/x-1.0.0.crate");
    for (name, value) in [
        ("Cookie", "ann"),
        ("Authorization", "Basic x"),
        ("X-Kind", "text/html; charset=utf-8"),
        ("X-Kind", "application/json"),
    ] {
        get(&proxy, &url, &[(name, value)]).await;
        let plain = get(&proxy, &url, &[("Cache-Control", "only-if-cached")]).await;
        assert_eq!(plain.status, 504, "{name}: {value}");
    }
    // Without a version, a name may stand for anything.
    let unnamed = origin.url("/account/x.crate");
    get(&proxy, &unnamed, &[]).await;
    let plain = get(&proxy, &unnamed, &[("Cache-Control", "only-if-cached")]).await;
    assert_eq!(plain.status, 504);
    get(&proxy, &url, &[]).await;
    until_stored(&proxy, &url, &[]).await;
    proxy.kill_well();
}

/// An origin of private files and pages, which confirms each of them to anybody.
async fn confirming() -> Origin {
    origin(|request| {
        let mut fields = vec![("ETag", "\"a\"")];
        if request.target().ends_with("html") {
            fields.extend([
                ("Last-Modified", "Fri, 01 Jan 2021 00:00:00 GMT"),
                ("Content-Type", "text/html"),
            ]);
        } else {
            fields.push(("Content-Type", "application/gzip"));
        }
        if request.target().contains("stated") {
            fields.extend([("Cache-Control", "max-age=1"), ("Age", "2")]);
        }
        if request.field("if-none-match").is_some() {
            return Script::response(304, &fields, "");
        }
        let origin = request.field("origin").unwrap_or("*");
        fields.push(("Access-Control-Allow-Origin", origin));
        Script::response(200, &fields, "private")
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_304_makes_nothing_fresh_that_was_made_for_one_client() {
    let (home, origin) = (Home::new(), confirming().await);
    let proxy = start(&home, &[]);
    for (path, field) in [
        ("/account/x-1.0.0.crate", ("Cookie", "u=ann")),
        ("/shared/x-1.0.0.crate", ("Origin", "http://a.test")),
        ("/list.html", ("X-Forwarded-For", "192.0.2.1")),
        ("/stated/x-1.0.0.crate", ("X-Api-Key", "secret")),
    ] {
        let url = origin.url(path);
        get(&proxy, &url, &[field]).await;
        until_stored(&proxy, &url, &[]).await;
        for asked in 0..3 {
            // Each use is validated, however many validations were before.
            let before = origin.request_count();
            let other = get(&proxy, &url, &[]).await;
            assert!(
                !is_hit(&other),
                "{path} {asked}: {:?}",
                other.field("cache-status")
            );
            assert_eq!(origin.request_count(), before + 1, "{path} {asked}");
        }
    }
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_made_to_fail_decides_nothing_for_others() {
    let long = "x".repeat(9 << 10);
    let origin = origin(|request| {
        let fields = [("Cache-Control", "max-age=600")];
        let bytes: usize = request.head.raw.len();
        let status = match request.field("x-status") {
            Some(status) => status.parse().unwrap_or(400),
            None if bytes > 8 << 10 => 400,
            None if request.field("x-http-method-override").is_some() => 405,
            None => 200,
        };
        Script::response(status, &fields, status.to_string())
    });
    let (home, origin) = (Home::new(), origin.await);
    let proxy = start(&home, &[]);
    let cases = [
        ("X-Long", &long[..]),
        ("X-HTTP-Method-Override", "POST"),
        ("X-Status", "413"),
        ("X-Status", "417"),
        ("X-Status", "429"),
        ("X-Status", "431"),
    ];
    for (number, field) in cases.into_iter().enumerate() {
        let url = origin.url(&format!("/{number}"));
        let failed = get(&proxy, &url, &[field]).await;
        assert!(failed.status >= 400, "{}", field.0);
        let plain = get(&proxy, &url, &[]).await;
        assert_eq!(plain.status, 200, "{} {}", field.0, text(&failed));
    }
    proxy.kill_well();
}

/// An origin whose 304 and response to HEAD repeat the request's `X-Host`.
async fn echo_of_host() -> Origin {
    origin(|request| {
        let host = request.field("x-host").unwrap_or("good");
        let fields = [
            ("ETag", "\"a\""),
            ("Cache-Control", "max-age=600"),
            ("Link", host),
        ];
        if request.field("if-none-match").is_some() {
            return Script::response(304, &fields, "");
        }
        match request.method() {
            "HEAD" => Script::new().head(200, &[&fields[..], &[("Content-Length", "5")]].concat()),
            _ => Script::response(200, &fields, "hello"),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_outside_the_key_rewrites_no_fresh_response() {
    let (home, origin) = (Home::new(), echo_of_host().await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    get(&proxy, &url, &[]).await;
    until_stored(&proxy, &url, &[]).await;
    for method in ["HEAD", "GET"] {
        let evil = [("X-Host", "evil"), ("Cache-Control", "no-cache")];
        let own = ask(&proxy, method, &url, &evil).await;
        assert_eq!(own.field("link"), Some("evil"), "{method}");
        let other = get(&proxy, &url, &[]).await;
        assert!(is_hit(&other), "{method}");
        assert_eq!(other.field("link"), Some("good"), "{method}");
    }
    // A plain reload keeps what is stored up to date.
    get(&proxy, &url, &[("Cache-Control", "no-cache")]).await;
    assert!(is_hit(&get(&proxy, &url, &[]).await));
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interim_response_loses_what_belongs_to_the_connection() {
    let origin = origin(|_| {
        let early = [
            ("Link", "</a>; rel=preload"),
            ("Connection", "x-mine, upgrade"),
            ("X-Mine", "1"),
            ("Upgrade", "h2c"),
            ("Keep-Alive", "timeout=9"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authenticate", "Basic"),
            ("Proxy-Authentication-Info", "x"),
            ("TE", "trailers"),
            ("Set-Cookie", "a=b"),
        ];
        let answer = Script::response(200, &[("Cache-Control", "no-store")], "x");
        Script::new().head(103, &early).then(answer)
    });
    let (home, origin) = (Home::new(), origin.await);
    let (proxy, url) = (start(&home, &[]), origin.url("/x"));
    let response = get(&proxy, &url, &[]).await;
    assert_eq!(response.interim.len(), 1, "{response:?}");
    let names: Vec<_> = response.interim[0]
        .fields
        .iter()
        .map(|field| &field.0[..])
        .collect();
    assert_eq!(names, ["Link", "Set-Cookie"]);
    proxy.kill_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_never_switched_to_past_an_accelerated_host() {
    let origin = origin(|request| match request.field("upgrade") {
        Some(offer) if offer.contains("h2c") => {
            Script::new().head(101, &[("Connection", "upgrade"), ("Upgrade", "h2c")])
        }
        offer => Script::response(200, &[], offer.unwrap_or("none")),
    });
    let (home, origin) = (Home::new(), origin.await);
    let site = format!("http://{}", origin.address());
    let proxy = start(&home, &[&format!("--accelerate={site}")]);
    for upgrade in ["h2c", "x, h2c", "H2C, websocket", "h2c/1", "x,,\th2c"] {
        let fields = [
            ("Connection", "Upgrade, HTTP2-Settings"),
            ("Upgrade", upgrade),
            ("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"),
        ];
        let response = get(&proxy, "/x", &fields).await;
        assert_eq!(response.status, 200, "{upgrade}");
        assert!(!text(&response).to_ascii_lowercase().contains("h2c"));
    }
    let told = origin.requests();
    assert!(
        told.iter()
            .all(|request| request.field("http2-settings").is_none())
    );
    proxy.kill_well();
}
